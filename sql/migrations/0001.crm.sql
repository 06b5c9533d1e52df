-- The domain: leads, bookings, deals, fixations, the deal's timeline, the audit log.
-- A table that is there already is its team's own and stays as it is: `pyrunner doctor` says what the engine misses in it.

do $table$
begin
    if to_regclass('crm.leads') is null then
        create table crm.leads (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            executor_agent_user_id uuid not null,
            primary_investor_user_id uuid,
            status text not null default 'Active',
            expires_at timestamptz,
            expired_at timestamptz,
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            version integer not null default 1,
            constraint leads_pkey primary key (id),
            constraint leads_status_is_known check (status in ('Active', 'Expired', 'Archived')),
            constraint leads_active_has_deadline check (status <> 'Active' or expires_at is not null),
            constraint leads_active_is_not_expired check (status <> 'Active' or expired_at is null),
            constraint leads_times_are_finite check (isfinite(expires_at) and isfinite(expired_at)),
            constraint leads_version_is_positive check (version >= 1)
        ) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

        comment on table crm.leads is 'Leads of all tenants. An Active lead expires once expires_at has passed; its agent can extend it again.';
        comment on column crm.leads.id is 'The lead.';
        comment on column crm.leads.tenant_id is 'The tenant (developer) it belongs to.';
        comment on column crm.leads.executor_agent_user_id is 'The agent at work on it, who is told to extend it.';
        comment on column crm.leads.primary_investor_user_id is 'The investor, where one is known.';
        comment on column crm.leads.status is 'Active, Expired or Archived.';
        comment on column crm.leads.expires_at is 'Deadline; an Active lead has one.';
        comment on column crm.leads.expired_at is 'The cut-off of the cycle that expired it; cleared when it is extended.';
        comment on column crm.leads.created_at is 'When the row was made.';
        comment on column crm.leads.updated_at is 'When it was last changed.';
        comment on column crm.leads.version is 'Optimistic lock: from 1, one more with every change.';

        create index ix_leads_expires_at on crm.leads (expires_at, id) where status = 'Active';
        comment on index crm.ix_leads_expires_at is 'Due leads, oldest deadline first: the claim of lead-expiration.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.bookings') is null then
        create table crm.bookings (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            deal_id uuid not null,
            property_object_id uuid not null,
            status text not null default 'Reserved',
            reserve_expires_at timestamptz,
            booking_expires_at timestamptz,
            expired_at timestamptz,
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            version integer not null default 1,
            constraint bookings_pkey primary key (id),
            constraint bookings_status_is_known check (
                status in ('Reserved', 'AwaitingPayment', 'Booked', 'ReserveExpired', 'BookingExpired', 'Cancelled')
            ),
            constraint bookings_reserve_has_deadline check (
                status not in ('Reserved', 'AwaitingPayment') or reserve_expires_at is not null
            ),
            constraint bookings_booked_has_deadline check (status <> 'Booked' or booking_expires_at is not null),
            constraint bookings_active_is_not_expired check (
                status not in ('Reserved', 'AwaitingPayment', 'Booked') or expired_at is null
            ),
            constraint bookings_times_are_finite check (
                isfinite(reserve_expires_at) and isfinite(booking_expires_at) and isfinite(expired_at)
            ),
            constraint bookings_version_is_positive check (version >= 1)
        ) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

        comment on table crm.bookings is 'Bookings of property objects. A reserve and a booking each have a deadline; both expire into a terminal state.';
        comment on column crm.bookings.id is 'The booking.';
        comment on column crm.bookings.tenant_id is 'The tenant (developer) it belongs to.';
        comment on column crm.bookings.deal_id is 'The deal it was made for.';
        comment on column crm.bookings.property_object_id is 'The property object that it keeps from sale.';
        comment on column crm.bookings.status is 'Reserved, AwaitingPayment, Booked; terminal: ReserveExpired, BookingExpired, Cancelled.';
        comment on column crm.bookings.reserve_expires_at is 'Deadline of the reserve (Reserved, AwaitingPayment).';
        comment on column crm.bookings.booking_expires_at is 'Deadline of the booking (Booked).';
        comment on column crm.bookings.expired_at is 'The cut-off of the cycle that expired it.';
        comment on column crm.bookings.created_at is 'When the row was made.';
        comment on column crm.bookings.updated_at is 'When it was last changed.';
        comment on column crm.bookings.version is 'Optimistic lock: from 1, one more with every change.';

        create index ix_bookings_reserve_expires_at on crm.bookings (reserve_expires_at, id)
        where status in ('Reserved', 'AwaitingPayment');
        comment on index crm.ix_bookings_reserve_expires_at is 'Due reserves, oldest deadline first: the claim of phase Reserve.';

        create index ix_bookings_booking_expires_at on crm.bookings (booking_expires_at, id) where status = 'Booked';
        comment on index crm.ix_bookings_booking_expires_at is 'Due bookings, oldest deadline first: the claim of phase Booking.';

        create unique index ux_bookings_property_object_id on crm.bookings (property_object_id)
        where status in ('Reserved', 'AwaitingPayment', 'Booked');
        comment on index crm.ux_bookings_property_object_id is 'At most one active booking keeps a property object.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.deals') is null then
        create table crm.deals (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            lead_id uuid not null,
            status text not null default 'Active',
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            constraint deals_pkey primary key (id)
        );
        -- a team's own leads need not let anybody refer to them
        if has_table_privilege('crm.leads', 'references') then
            alter table crm.deals add constraint deals_lead_id_fkey foreign key (lead_id) references crm.leads (id);
        end if;
        comment on table crm.deals is 'Deals of leads. The expiration of a lead leaves its deals as they are (INV-LEAD-4).';
        comment on column crm.deals.id is 'The deal.';
        comment on column crm.deals.tenant_id is 'The tenant it belongs to.';
        comment on column crm.deals.lead_id is 'The lead it grew from.';
        comment on column crm.deals.status is 'State of the deal; the engine neither reads nor writes it.';
        comment on column crm.deals.created_at is 'When the row was made.';
        comment on column crm.deals.updated_at is 'When it was last changed.';
        create index ix_deals_lead_id on crm.deals (lead_id);
        comment on index crm.ix_deals_lead_id is 'Deals of a lead.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.fixations') is null then
        create table crm.fixations (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            lead_id uuid not null,
            status text not null default 'Active',
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            constraint fixations_pkey primary key (id)
        );
        -- a team's own leads need not let anybody refer to them
        if has_table_privilege('crm.leads', 'references') then
            alter table crm.fixations add constraint fixations_lead_id_fkey foreign key (lead_id) references crm.leads (id);
        end if;
        comment on table crm.fixations is 'Fixations of clients to agents. The expiration of a lead leaves them as they are (INV-LEAD-4).';
        comment on column crm.fixations.id is 'The fixation.';
        comment on column crm.fixations.tenant_id is 'The tenant it belongs to.';
        comment on column crm.fixations.lead_id is 'The lead it fixes.';
        comment on column crm.fixations.status is 'State of the fixation; the engine neither reads nor writes it.';
        comment on column crm.fixations.created_at is 'When the row was made.';
        comment on column crm.fixations.updated_at is 'When it was last changed.';
        create index ix_fixations_lead_id on crm.fixations (lead_id);
        comment on index crm.ix_fixations_lead_id is 'Fixations of a lead.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.deal_timeline') is null then
        create table crm.deal_timeline (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            deal_id uuid not null,
            booking_id uuid not null,
            kind text not null,
            phase text,
            occurred_at timestamptz not null default now(),
            correlation_id uuid,
            constraint deal_timeline_pkey primary key (id)
        );
        comment on table crm.deal_timeline is 'Cards on a deal''s timeline; one a change of its booking, written in the transaction of the change.';
        comment on column crm.deal_timeline.id is 'The card.';
        comment on column crm.deal_timeline.tenant_id is 'The tenant it belongs to.';
        comment on column crm.deal_timeline.deal_id is 'The deal whose timeline it stands on.';
        comment on column crm.deal_timeline.booking_id is 'The booking that changed.';
        comment on column crm.deal_timeline.kind is 'The domain event: BookingExpired, BookingConfirmed, BookingExtended, BookingCancelled, PropertyReserved.';
        comment on column crm.deal_timeline.phase is 'Reserve or Booking where the event has one.';
        comment on column crm.deal_timeline.occurred_at is 'When it happened; for an expiration the cut-off of its cycle.';
        comment on column crm.deal_timeline.correlation_id is 'The run that did it, or the caller''s own id.';
        create index ix_deal_timeline_deal_id on crm.deal_timeline (deal_id);
        comment on index crm.ix_deal_timeline_deal_id is 'The timeline of a deal.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.audit_log') is null then
        create table crm.audit_log (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            entity_type text not null,
            entity_id uuid not null,
            action text not null,
            actor text not null,
            from_status text,
            to_status text,
            correlation_id uuid,
            occurred_at timestamptz not null default now(),
            constraint audit_log_pkey primary key (id)
        );
        comment on table crm.audit_log is 'One row a transition, written in its transaction.';
        comment on column crm.audit_log.id is 'The audit row.';
        comment on column crm.audit_log.tenant_id is 'The tenant of the entity.';
        comment on column crm.audit_log.entity_type is 'Lead or Booking.';
        comment on column crm.audit_log.entity_id is 'The lead or booking.';
        comment on column crm.audit_log.action is 'Expire, Confirm, Extend, Cancel or Reserve.';
        comment on column crm.audit_log.actor is 'system for the jobs, otherwise who gave the command.';
        comment on column crm.audit_log.from_status is 'Status before; null for a new entity.';
        comment on column crm.audit_log.to_status is 'Status after.';
        comment on column crm.audit_log.correlation_id is 'The run that did it, or the caller''s own id.';
        comment on column crm.audit_log.occurred_at is 'When it happened; for an expiration the cut-off of its cycle.';
        create index ix_audit_log_entity_id on crm.audit_log (entity_id);
        comment on index crm.ix_audit_log_entity_id is 'The history of an entity.';
    end if;
end
$table$;

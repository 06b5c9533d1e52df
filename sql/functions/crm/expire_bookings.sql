create or replace function crm.expire_bookings(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer default 1,
    rehearsal boolean default false
) returns uuid[]
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_from constant text[] := case expire_bookings.phase
        when 'Reserve' then array['Reserved', 'AwaitingPayment']
        else array['Booked']
    end;
    v_to constant text := expire_bookings.phase || 'Expired';
    v_expired_at text;
    v_traceparent text;
    v_expired uuid[];
begin
    if expire_bookings.rehearsal then
        -- a statement of its own: an insert fires the triggers of its statement even when it inserts no row
        with expired as (
            update crm.bookings as b
            set
                status = v_to,
                expired_at = expire_bookings.as_of,
                updated_at = expire_bookings.as_of,
                version = b.version + 1
            from crm.bookings as before
            where b.id = any((expire_bookings.claim).ids) and before.id = b.id and before.status = any(v_from)
            returning b.id, b.tenant_id, b.deal_id, before.status as from_status
        ),

        timeline as (
            insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
            select
                e.tenant_id, e.deal_id, e.id, 'BookingExpired', expire_bookings.phase, expire_bookings.as_of,
                expire_bookings.run_id
            from expired as e
        )

        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, v_to, expire_bookings.run_id,
            expire_bookings.as_of
        from expired as e;
        return array[]::uuid[];
    end if;

    -- the same for the whole batch, so made once and not a row
    v_expired_at := outbox.utc(expire_bookings.as_of);
    v_traceparent := outbox.traceparent(expire_bookings.run_id, expire_bookings.batch_number);
    with expired as (
        update crm.bookings as b
        set
            status = v_to,
            expired_at = expire_bookings.as_of,
            updated_at = expire_bookings.as_of,
            version = b.version + 1
        from
            unnest(
                (expire_bookings.claim).ids, (expire_bookings.claim).row_ids, (expire_bookings.claim).statuses
            ) as claimed (id, row_id, status)
        where
            -- where the claim has locked it; the id, since in a partitioned table the same place is there many times
            b.ctid = claimed.row_id
            and b.id = claimed.id
            and b.status = claimed.status
            and b.status = any(v_from)
            and case when b.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end
            < expire_bookings.as_of
        returning
            b.id,
            b.tenant_id,
            b.deal_id,
            b.property_object_id,
            claimed.status as from_status,
            case when claimed.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end as deadline
    ),

    events as (
        insert into outbox.event (
            aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            'Booking',
            e.id,
            e.tenant_id,
            'BookingExpiredEvent',
            1,
            'pin.crm.booking-expired.v1',
            jsonb_build_object(
                'bookingId', e.id,
                'tenantId', e.tenant_id,
                'dealId', e.deal_id,
                'propertyObjectId', e.property_object_id,
                'phase', expire_bookings.phase,
                'expiredAt', v_expired_at
            ),
            expire_bookings.run_id,
            v_traceparent,
            expire_bookings.as_of
        from expired as e
        order by e.deadline, e.id
    ),

    timeline as (
        insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
        select
            e.tenant_id, e.deal_id, e.id, 'BookingExpired', expire_bookings.phase, expire_bookings.as_of,
            expire_bookings.run_id
        from expired as e
    ),

    audit as (
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, v_to, expire_bookings.run_id,
            expire_bookings.as_of
        from expired as e
    )

    select coalesce(array_agg(e.id), array[]::uuid[]) into v_expired from expired as e;
    return v_expired;
end
$function$;

comment on function crm.expire_bookings(text, expiration.claim, timestamptz, uuid, integer, boolean) is
'Expire(as_of) for the bookings of a claim of a phase, which this transaction has locked: those still active and past that phase''s deadline become ReserveExpired or BookingExpired, each with its event, timeline card and audit row; the others are left alone (INV-BKG-5, INV-BKG-8). Returns the ids that expired. rehearsal leaves the outbox out, to learn whether the fault is its or the row''s, and is for a subtransaction that is rolled back.';

-- As lean_leads, for the two phases of bookings.
create procedure bench.lean_bookings(as_of timestamptz)
language plpgsql
as $procedure$
declare
    v_run_id constant uuid := gen_random_uuid();
    v_expired_at constant text := outbox.utc(lean_bookings.as_of);
    v_batch integer := 0;
    v_traceparent text;
    v_count integer;
    v_deadline timestamptz := '-infinity';
    v_id uuid := '00000000-0000-0000-0000-000000000000';
begin
    set plan_cache_mode = force_generic_plan;
    set enable_hashjoin = off;
    set enable_mergejoin = off;
    loop
        v_batch := v_batch + 1;
        v_traceparent := outbox.traceparent(v_run_id, v_batch);
        with due as materialized (
            select b.id, b.status, b.reserve_expires_at
            from crm.bookings as b
            where
                b.status in ('Reserved', 'AwaitingPayment')
                and b.reserve_expires_at < lean_bookings.as_of
                and (b.reserve_expires_at, b.id) > (v_deadline, v_id)
            order by b.reserve_expires_at, b.id
            limit {batch_size}
            for no key update skip locked
        ),

        expired as (
            update crm.bookings as b
            set
                status = 'ReserveExpired',
                expired_at = lean_bookings.as_of,
                updated_at = lean_bookings.as_of,
                version = b.version + 1
            from due as d
            where b.id = d.id
            returning b.id, b.tenant_id, b.deal_id, b.property_object_id, d.status as from_status
        ),

        events as (
            insert into outbox.event (
                aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
                correlation_id, traceparent, occurred_at
            )
            select
                'Booking', e.id, e.tenant_id, 'BookingExpiredEvent', 1, 'pin.crm.booking-expired.v1',
                jsonb_build_object(
                    'bookingId', e.id,
                    'tenantId', e.tenant_id,
                    'dealId', e.deal_id,
                    'propertyObjectId', e.property_object_id,
                    'phase', 'Reserve',
                    'expiredAt', v_expired_at
                ),
                v_run_id, v_traceparent, lean_bookings.as_of
            from expired as e
        ),

        timeline as (
            insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
            select e.tenant_id, e.deal_id, e.id, 'BookingExpired', 'Reserve', lean_bookings.as_of, v_run_id
            from expired as e
        ),

        audit as (
            insert into crm.audit_log (
                tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
            )
            select
                e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, 'ReserveExpired', v_run_id,
                lean_bookings.as_of
            from expired as e
        )

        select c.expired, d.reserve_expires_at, d.id
        into v_count, v_deadline, v_id
        from (select count(*) as expired from expired) as c
        left join (select d.reserve_expires_at, d.id from due as d offset {batch_size} - 1) as d on true;
        commit;
        exit when v_count < {batch_size};
    end loop;
    -- a batch that was full and the last leaves an empty one behind it
    if v_count = 0 then
        v_batch := v_batch - 1;
    end if;

    v_deadline := '-infinity';
    v_id := '00000000-0000-0000-0000-000000000000';
    loop
        v_batch := v_batch + 1;
        v_traceparent := outbox.traceparent(v_run_id, v_batch);
        with due as materialized (
            select b.id, b.booking_expires_at
            from crm.bookings as b
            where
                b.status = 'Booked'
                and b.booking_expires_at < lean_bookings.as_of
                and (b.booking_expires_at, b.id) > (v_deadline, v_id)
            order by b.booking_expires_at, b.id
            limit {batch_size}
            for no key update skip locked
        ),

        expired as (
            update crm.bookings as b
            set
                status = 'BookingExpired',
                expired_at = lean_bookings.as_of,
                updated_at = lean_bookings.as_of,
                version = b.version + 1
            from due as d
            where b.id = d.id
            returning b.id, b.tenant_id, b.deal_id, b.property_object_id
        ),

        events as (
            insert into outbox.event (
                aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
                correlation_id, traceparent, occurred_at
            )
            select
                'Booking', e.id, e.tenant_id, 'BookingExpiredEvent', 1, 'pin.crm.booking-expired.v1',
                jsonb_build_object(
                    'bookingId', e.id,
                    'tenantId', e.tenant_id,
                    'dealId', e.deal_id,
                    'propertyObjectId', e.property_object_id,
                    'phase', 'Booking',
                    'expiredAt', v_expired_at
                ),
                v_run_id, v_traceparent, lean_bookings.as_of
            from expired as e
        ),

        timeline as (
            insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
            select e.tenant_id, e.deal_id, e.id, 'BookingExpired', 'Booking', lean_bookings.as_of, v_run_id
            from expired as e
        ),

        audit as (
            insert into crm.audit_log (
                tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
            )
            select
                e.tenant_id, 'Booking', e.id, 'Expire', 'system', 'Booked', 'BookingExpired', v_run_id,
                lean_bookings.as_of
            from expired as e
        )

        select c.expired, d.booking_expires_at, d.id
        into v_count, v_deadline, v_id
        from (select count(*) as expired from expired) as c
        left join (select d.booking_expires_at, d.id from due as d offset {batch_size} - 1) as d on true;
        commit;
        exit when v_count < {batch_size};
    end loop;
end
$procedure$;

create or replace function crm.claim_bookings(
    phase text,
    as_of timestamptz,
    batch_size integer,
    after_deadline timestamptz,
    after_id uuid
) returns expiration.claim
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_none_failed boolean;
    v_claim expiration.claim;
begin
    -- @plpgsql_check_options: performance_warnings = off
    -- (it takes a function that locks rows for one that could be stable)
    v_none_failed := not exists (
        select from expiration.failed_item as f where f.job = 'booking-expiration' and f.phase = claim_bookings.phase
    );
    -- two statements, since each phase has its own partial index; the marker is a scalar subquery, since a join
    -- could cost the ordered index scan
    if claim_bookings.phase = 'Reserve' then
        select
            array_agg(c.id),
            array_agg(c.deadline),
            array_agg(c.ctid),
            array_agg(c.status)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select b.id, b.reserve_expires_at as deadline, b.ctid, b.status
            from crm.bookings as b
            where
                b.status in ('Reserved', 'AwaitingPayment')
                and b.reserve_expires_at < claim_bookings.as_of
                and (b.reserve_expires_at, b.id) > (claim_bookings.after_deadline, claim_bookings.after_id)
                and (v_none_failed or (
                    select true
                    from expiration.failed_item as f
                    where
                        f.job = 'booking-expiration'
                        and f.phase = 'Reserve'
                        and f.item_id = b.id
                        and f.row_xmin = b.xmin
                ) is null)
            order by b.reserve_expires_at, b.id
            limit claim_bookings.batch_size
            for no key update skip locked
        ) as c;
    else
        select
            array_agg(c.id),
            array_agg(c.deadline),
            array_agg(c.ctid),
            array_agg(c.status)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select b.id, b.booking_expires_at as deadline, b.ctid, b.status
            from crm.bookings as b
            where
                b.status = 'Booked'
                and b.booking_expires_at < claim_bookings.as_of
                and (b.booking_expires_at, b.id) > (claim_bookings.after_deadline, claim_bookings.after_id)
                and (v_none_failed or (
                    select true
                    from expiration.failed_item as f
                    where
                        f.job = 'booking-expiration'
                        and f.phase = 'Booking'
                        and f.item_id = b.id
                        and f.row_xmin = b.xmin
                ) is null)
            order by b.booking_expires_at, b.id
            limit claim_bookings.batch_size
            for no key update skip locked
        ) as c;
    end if;
    v_claim.is_full := coalesce(cardinality(v_claim.ids), 0) >= claim_bookings.batch_size;
    return v_claim;
end
$function$;

comment on function crm.claim_bookings(text, timestamptz, integer, timestamptz, uuid) is
'Locks the next due bookings of a phase beyond the cursor, oldest deadline first, passing over those that others hold and those that failed.';

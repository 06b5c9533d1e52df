create or replace function expiration.claim_failed(
    job text,
    phase text,
    as_of timestamptz,
    failed_before timestamptz,
    batch_size integer
) returns expiration.claim
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_waiting uuid[];
    v_due uuid[];
    v_resolved bigint;
    v_claim expiration.claim;
begin
    select array_agg(w.item_id) into v_waiting
    from (
        select f.item_id
        from expiration.failed_item as f
        where f.job = claim_failed.job and f.phase = claim_failed.phase and f.last_failed_at < failed_before
        order by f.last_failed_at, f.item_id
        limit claim_failed.batch_size
    ) as w;
    if v_waiting is null then
        v_claim.is_full := false;
        return v_claim;
    end if;

    -- cancelled, extended, confirmed or deleted meanwhile: no longer failed
    select coalesce(array_agg(d.item_id), '{}') into v_due
    from expiration.due_item as d
    where
        d.job = claim_failed.job
        and d.phase = claim_failed.phase
        and d.item_id = any(v_waiting)
        and d.deadline < claim_failed.as_of;
    delete from expiration.failed_item as f
    -- an array is made once, where a join could lock again and again
    where f.ctid = any(array(
        select g.ctid
        from expiration.failed_item as g
        where
            g.job = claim_failed.job
            and g.phase = claim_failed.phase
            and g.item_id = any(v_waiting)
            and g.item_id <> all(v_due)
        for update skip locked
    ));
    get diagnostics v_resolved = row_count;

    if claim_failed.phase = 'Lead' then
        select
            array_agg(c.id order by c.deadline, c.id),
            array_agg(c.deadline order by c.deadline, c.id),
            array_agg(c.ctid order by c.deadline, c.id)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids
        from (
            select l.id, l.expires_at as deadline, l.ctid
            from crm.leads as l
            where l.id = any(v_due) and l.status = 'Active' and l.expires_at < claim_failed.as_of
            for no key update skip locked
        ) as c;
    else
        select
            array_agg(c.id order by c.deadline, c.id),
            array_agg(c.deadline order by c.deadline, c.id),
            array_agg(c.ctid order by c.deadline, c.id),
            array_agg(c.status order by c.deadline, c.id)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select
                b.id,
                case when b.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end as deadline,
                b.ctid,
                b.status
            from crm.bookings as b
            where
                b.id = any(v_due)
                and (b.status = 'Booked') = (claim_failed.phase = 'Booking')
                and b.status in ('Reserved', 'AwaitingPayment', 'Booked')
            for no key update skip locked
        ) as c;
    end if;
    -- where all that wait are held by others, trying on would go round in circles
    v_claim.is_full := cardinality(v_waiting) >= claim_failed.batch_size and (v_claim.ids is not null or v_resolved > 0);
    return v_claim;
end
$function$;

comment on function expiration.claim_failed(text, text, timestamptz, timestamptz, integer) is
'Locks failed items for another try, longest waiting first: those that last failed before failed_before and are still due. Items that are due no longer leave the list.';

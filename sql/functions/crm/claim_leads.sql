create or replace function crm.claim_leads(
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
        select from expiration.failed_item as f where f.job = 'lead-expiration' and f.phase = 'Lead'
    );
    -- the marker is a scalar subquery: a join could cost the ordered index scan
    select
        array_agg(c.id),
        array_agg(c.expires_at),
        array_agg(c.ctid)
    into v_claim.ids, v_claim.deadlines, v_claim.row_ids
    from (
        select l.id, l.expires_at, l.ctid
        from crm.leads as l
        where
            l.status = 'Active'
            and l.expires_at < claim_leads.as_of
            and (l.expires_at, l.id) > (claim_leads.after_deadline, claim_leads.after_id)
            and (v_none_failed or (
                select true
                from expiration.failed_item as f
                where
                    f.job = 'lead-expiration'
                    and f.phase = 'Lead'
                    and f.item_id = l.id
                    and f.row_xmin = l.xmin
            ) is null)
        order by l.expires_at, l.id
        limit claim_leads.batch_size
        for no key update skip locked
    ) as c;
    v_claim.is_full := coalesce(cardinality(v_claim.ids), 0) >= claim_leads.batch_size;
    return v_claim;
end
$function$;

comment on function crm.claim_leads(timestamptz, integer, timestamptz, uuid) is
'Locks the next due leads beyond the cursor, oldest deadline first, passing over those that others hold and those that failed.';

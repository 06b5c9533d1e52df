create or replace function expiration.count_due(
    job text,
    phase text,
    as_of timestamptz,
    after_deadline timestamptz default '-infinity',
    after_id uuid default '00000000-0000-0000-0000-000000000000',
    upto_deadline timestamptz default null,
    upto_id uuid default null
) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_count bigint;
begin
    -- a scalar subquery keeps its plan whatever the statistics say; an anti join may not
    select count(*) into v_count
    from expiration.due_item as d
    where
        d.job = count_due.job
        and d.phase = count_due.phase
        and d.deadline < count_due.as_of
        and (d.deadline, d.item_id) > (count_due.after_deadline, count_due.after_id)
        and (d.deadline, d.item_id) <= (
            coalesce(count_due.upto_deadline, 'infinity'),
            coalesce(count_due.upto_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        )
        and (
            select true
            from expiration.failed_item as f
            where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
        ) is null;
    return v_count;
end
$function$;

comment on function expiration.count_due(text, text, timestamptz, timestamptz, uuid, timestamptz, uuid) is
'How many items of a phase are due before as_of, failed ones apart, beyond the cursor (after_...] and up to another.';

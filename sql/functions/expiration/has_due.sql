create or replace function expiration.has_due(
    job text,
    phase text,
    as_of timestamptz,
    after_deadline timestamptz,
    after_id uuid
) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
begin
    return exists (
        select
        from expiration.due_item as d
        where
            d.job = has_due.job
            and d.phase = has_due.phase
            and d.deadline < has_due.as_of
            and (d.deadline, d.item_id) > (has_due.after_deadline, has_due.after_id)
            and (
                select true
                from expiration.failed_item as f
                where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
            ) is null
    );
end
$function$;

comment on function expiration.has_due(text, text, timestamptz, timestamptz, uuid) is
'Whether anything is due beyond the cursor, failed items apart.';

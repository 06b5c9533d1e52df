create or replace function expiration.close_run(
    run_id uuid,
    status text,
    reason text,
    finished_at timestamptz,
    sqlstate text default null,
    error text default null
) returns expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_run expiration.run;
begin
    update expiration.run as r
    set
        status = close_run.status,
        reason = close_run.reason,
        finished_at = close_run.finished_at,
        sqlstate = close_run.sqlstate,
        error = close_run.error,
        expired = t.expired,
        failed = t.failed,
        skipped_locked = t.skipped_locked,
        batches = t.batches
    from (
        select
            coalesce(sum(b.expired), 0) as expired,
            coalesce(sum(b.failed), 0) as failed,
            coalesce(sum(b.skipped_locked), 0) as skipped_locked,
            count(*) filter (where b.claimed > 0) as batches
        from expiration.batch as b
        where b.run_id = close_run.run_id
    ) as t
    where r.id = close_run.run_id and r.status = 'running'
    returning r.* into v_run;
    return v_run;
end
$function$;

comment on function expiration.close_run(uuid, text, text, timestamptz, text, text) is
'Ends a run that is still running, its counts summed from its batches. Returns the run, or null when it was over already.';

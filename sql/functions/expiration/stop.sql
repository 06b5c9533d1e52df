create or replace function expiration.stop(job text) returns setof expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    perform expiration.check_job(job, 'expiration.stop');
    return query
    update expiration.run as r
    set
        stop_requested_at = coalesce(r.stop_requested_at, clock_timestamp()),
        stop_requested_by = coalesce(r.stop_requested_by, session_user)
    where r.job = stop.job and r.status = 'running'
    returning r.*;
end
$function$;

comment on function expiration.stop(text) is
'Asks the runs of a job that are at work to stop: each ends after the batch in hand. The next tick runs again; pause keeps it from doing so. Returns the runs asked.';

create or replace function expiration.reap_runs(job text default null) returns setof expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_run expiration.run;
begin
    for v_run in
        select r.*
        from expiration.run as r
        where r.status = 'running' and (reap_runs.job is null or r.job = reap_runs.job)
    loop
        -- the run may have begun after this transaction first looked at who is at work
        perform pg_stat_clear_snapshot();
        continue when expiration.is_alive(v_run);
        -- whoever reaps or ends it at this moment needs no help; a run at work is never locked
        perform r.id from expiration.run as r where r.id = v_run.id and r.status = 'running' for no key update skip locked;
        continue when not found;
        return next expiration.close_run(
            v_run.id, 'abandoned', 'backend gone', expiration.last_sign_of_life(v_run.id), null,
            format('its driver %s (backend %s) is gone', v_run.driver, v_run.backend_pid)
        );
    end loop;
end
$function$;

comment on function expiration.reap_runs(text) is
'Marks runs whose driver is gone as abandoned, of one job or of all, and returns them. What they had committed stays.';

create or replace function expiration.batch_failed(run_id uuid, sqlstate text, error text)
returns table (retry boolean, delay interval)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_run expiration.run;
    v_max integer;
begin
    select r.* into v_run from expiration.run as r where r.id = batch_failed.run_id;
    if not found then
        perform expiration.raise_error('unknown_run', coalesce(batch_failed.run_id::text, 'null'));
    elsif batch_failed.sqlstate is null then
        perform expiration.raise_error('null_argument', 'sqlstate', 'expiration.batch_failed');
    end if;
    select j.max_transient_retries into strict v_max from expiration.job as j where j.name = v_run.job;

    -- serialization failure, deadlock, lock timeout: the next try may find the way free
    if batch_failed.sqlstate in ('40001', '40P01', '55P03') and v_run.status = 'running' and v_run.retries < v_max then
        update expiration.run as r set retries = r.retries + 1 where r.id = v_run.id;
        retry := true;
        delay := make_interval(secs => 0.05 * 2 ^ v_run.retries * (0.5 + random()));
    else
        perform expiration.close_run(v_run.id, 'failed', 'error', clock_timestamp(), batch_failed.sqlstate, batch_failed.error);
        retry := false;
        delay := interval '0';
    end if;
    return next;
end
$function$;

comment on function expiration.batch_failed(uuid, text, text) is
'What to do after a batch that raised and was rolled back: retry after delay (deadlock, lock timeout, serialization failure; at most job.max_transient_retries times a run), or not: then the run has been ended as failed.';

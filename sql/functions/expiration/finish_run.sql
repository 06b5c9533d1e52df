create or replace function expiration.finish_run(run_id uuid, reason text) returns expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_status constant text := case finish_run.reason
        when 'drained' then 'completed'
        when 'locked' then 'completed'
        when 'capped' then 'capped'
        when 'out of time' then 'capped'
        when 'stop requested' then 'stopped'
        when 'paused' then 'stopped'
    end;
    v_run expiration.run;
begin
    if v_status is null then
        perform expiration.raise_error(
            'invalid_argument', 'reason', 'expiration.finish_run',
            'drained, locked, capped, out of time, stop requested or paused', coalesce(finish_run.reason, 'null')
        );
    end if;
    v_run := expiration.close_run(run_id, v_status, reason, clock_timestamp());
    if v_run.id is null then
        select r.* into v_run from expiration.run as r where r.id = finish_run.run_id;
        if not found then
            perform expiration.raise_error('unknown_run', coalesce(finish_run.run_id::text, 'null'));
        end if;
    end if;
    return v_run;
end
$function$;

comment on function expiration.finish_run(uuid, text) is
'Ends a run with the reason that run_batch gave, and returns it with its counts. A run that was over already is returned as it is.';

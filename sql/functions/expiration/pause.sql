create or replace function expiration.pause(job text, reason text default null) returns expiration.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.pause');
    update expiration.job as j
    set
        paused_at = coalesce(j.paused_at, clock_timestamp()),
        paused_by = coalesce(j.paused_by, session_user),
        paused_reason = coalesce(pause.reason, j.paused_reason)
    where j.name = pause.job
    returning j.* into v_job;
    return v_job;
end
$function$;

comment on function expiration.pause(text, text) is
'Pauses a job, whoever drives it: no run starts, and a run at work ends after the batch in hand. Until resume.';

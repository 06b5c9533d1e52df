create or replace function expiration.resume(job text) returns expiration.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.resume');
    update expiration.job as j
    set paused_at = null, paused_by = null, paused_reason = null
    where j.name = resume.job
    returning j.* into v_job;
    return v_job;
end
$function$;

comment on function expiration.resume(text) is
'Ends a pause: the next tick of any driver runs the job again.';

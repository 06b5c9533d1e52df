create or replace function expiration.check_job(job text, function_name text) returns void
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if job is null then
        perform expiration.raise_error('null_argument', 'job', function_name);
    elsif not exists (select from expiration.job as j where j.name = check_job.job) then
        perform expiration.raise_error('unknown_job', job);
    end if;
end
$function$;

comment on function expiration.check_job(text, text) is
'Refuses a job that is null (XP005) or unknown (XP003).';

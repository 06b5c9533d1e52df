create or replace function expiration.cron_uninstall()
returns table (jobname text, schedule text, command text, action text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
    v_present record;
begin
    for v_present in select c.* from expiration.cron_job() as c loop
        execute 'select cron.unschedule($1)' using v_present.jobid;
        jobname := v_present.jobname;
        schedule := v_present.schedule;
        command := v_present.command;
        action := 'unscheduled';
        return next;
    end loop;
end
$function$;

comment on function expiration.cron_uninstall() is
'Takes our entries out of pg_cron. A run at work goes on to its end; expiration.stop ends it after the batch in hand.';

create or replace function expiration.cron_install()
returns table (jobname text, schedule text, command text, action text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
    v_version text;
    v_wanted record;
    v_present record;
begin
    select e.extversion into v_version from pg_extension as e where e.extname = 'pg_cron';
    if not found then
        perform expiration.raise_error(
            'cron_missing',
            current_database(),
            coalesce(
                -- only some may read that setting
                case when pg_has_role('pg_read_all_settings', 'usage') then
                    ' (it lives in database ' || nullif(current_setting('cron.database_name', true), '')
                    || '; from there, schedule by cron.schedule_in_database)'
                end,
                ''
            )
        );
    end if;

    for v_wanted in
        select p.*
        from expiration.cron_plan(
            string_to_array(substring(v_version, '^\d+\.\d+'), '.')::integer[] >= array[1, 5]
        ) as p
    loop
        jobname := v_wanted.jobname;
        schedule := v_wanted.schedule;
        command := v_wanted.command;
        select c.* into v_present from expiration.cron_job() as c where c.command = v_wanted.command order by c.jobid limit 1;
        if not found then
            execute 'select cron.schedule($1, $2, $3)' using v_wanted.jobname, v_wanted.schedule, v_wanted.command;
            action := 'scheduled';
        elsif v_present.schedule = v_wanted.schedule and v_present.active then
            action := case
                when v_present.username = current_user then 'kept'
                else format('kept: it belongs to %s', v_present.username)
            end;
        else
            -- alter_job is for superusers only; one's own entry is made anew, which also makes it active
            if v_present.username = current_user then
                execute 'select cron.unschedule($1)' using v_present.jobid;
                execute 'select cron.schedule($1, $2, $3)' using v_wanted.jobname, v_wanted.schedule, v_wanted.command;
            else
                execute 'select cron.alter_job(job_id := $1, schedule := $2, active := true)'
                using v_present.jobid, v_wanted.schedule;
            end if;
            action := format('changed from %s', v_present.schedule);
        end if;
        return next;
    end loop;
end
$function$;

comment on function expiration.cron_install() is
'Schedules both jobs and upkeep by pg_cron, under the caller''s login. Idempotent: what is there is kept or brought to the job''s period. For the database in which pg_cron lives; elsewhere it says what to do.';

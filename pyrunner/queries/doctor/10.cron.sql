-- pg_cron
-- Run it where pg_cron lives. pyrunner.database is our database's name; pyrunner.cron_plan the entries that it needs
-- (JSON of expiration.cron_plan), empty where we may not see it.
with entry as (
    select
        j.jobid,
        coalesce(j.jobname::text, j.jobid::text) as name,
        j.schedule,
        j.command,
        j.username,
        j.active
    from cron.job as j
    where j.database = current_setting('pyrunner.database') and j.command ~* '\mexpiration\.'
),

plan as (
    select p.*
    from jsonb_to_recordset(nullif(current_setting('pyrunner.cron_plan'), '')::jsonb)
        as p (jobname text, schedule text, command text)
),

last_run as (
    select distinct on (d.jobid)
        d.jobid,
        d.status,
        d.start_time,
        d.return_message
    from cron.job_run_details as d
    where d.jobid in (select e.jobid from entry as e)
    order by d.jobid asc, d.runid desc
)

select
    'ok' as severity,
    format('pg_cron %s in database %s, %s entries of ours', x.extversion, current_database(), (select count(*) from entry)) as what,
    null as why,
    null as remedy
from pg_extension as x
where x.extname = 'pg_cron'
union all
select
    'warning',
    format('pg_cron %s runs with cron.use_background_workers = on', x.extversion),
    'in versions 1.4 a long job delays every other one, and its recorded times are wrong; expiration.run has the right ones',
    'alter system set cron.use_background_workers = off; and restart, or upgrade pg_cron'
from pg_extension as x
inner join pg_settings as s on s.name = 'cron.use_background_workers'
where x.extname = 'pg_cron' and x.extversion like '1.4%' and s.setting = 'on'
union all
select
    'error',
    format('entry %s is not exactly one CALL: %s', e.name, e.command),
    'a procedure that commits cannot run beside other statements ("invalid transaction termination")',
    format('select cron.alter_job(%s, command := $$CALL expiration.run_job(''...'')$$);', e.jobid)
from entry as e
where e.command !~* '^\s*call\s+expiration\.\w+\s*\([^;]*\)\s*;?\s*$'
union all
select
    'warning',
    format('%s is scheduled %s times: entries %s', e.command, count(*), string_agg(format('%s of %s', e.jobid, e.username), ', ' order by e.jobid)),
    'all but one of the runs end as skipped, every time',
    string_agg(format('select cron.unschedule(%s);', e.jobid), ' ' order by e.jobid) filter (where e.jobid > (
        select min(f.jobid)
        from entry as f
        where f.command = e.command
    ))
from entry as e
group by e.command
having count(*) > 1
union all
select
    'warning',
    format('entry %s is not active', e.name),
    'pg_cron does not run it',
    'pyrunner cron install'
from entry as e
where not e.active
union all
select
    'warning',
    format('entry %s runs at %s, and the job''s period asks for %s', e.name, e.schedule, p.schedule),
    'the period was changed after it had been scheduled',
    'pyrunner cron install'
from entry as e
inner join plan as p on e.command = p.command
where e.schedule <> p.schedule
union all
select
    'warning',
    format('%s is not scheduled', p.command),
    'other entries of ours are',
    'pyrunner cron install'
from plan as p
where p.command not in (select e.command from entry as e) and exists (select from entry)
union all
select
    'error',
    format('entry %s failed at %s: %s', e.name, r.start_time, trim(r.return_message)),
    'nothing of ours ran then',
    'pyrunner cron status'
from last_run as r
inner join entry as e on r.jobid = e.jobid
where r.status = 'failed'
union all
select
    'warning',
    format('cron.job_run_details holds about %s rows', c.reltuples::bigint),
    'pg_cron never clears its history; upkeep clears our part of it, as far as it may',
    'delete from cron.job_run_details where end_time < now() - interval ''7 days'';'
from pg_class as c
inner join pg_namespace as s on c.relnamespace = s.oid
where s.nspname = 'cron' and c.relname = 'job_run_details' and c.reltuples > 1000000
union all
select
    'unseen',
    'entries that other logins made in pg_cron',
    'pg_cron shows each user its own, so a second installation may go unnoticed',
    'pyrunner doctor as a superuser'
from pg_roles as r
where r.rolname = current_user and not r.rolsuper and not r.rolbypassrls

-- Our entries in pg_cron, each with its last run. Run it where pg_cron lives.
select
    j.jobid,
    coalesce(j.jobname::text, '') as jobname,
    j.schedule,
    j.command,
    j.database,
    j.username,
    j.active,
    d.status as last_status,
    d.start_time as last_start,
    d.return_message as last_message
from cron.job as j
left join lateral (
    select
        r.status,
        r.start_time,
        r.return_message
    from cron.job_run_details as r
    where r.jobid = j.jobid
    order by r.runid desc
    limit 1
) as d on true
where j.database = %(database)s and j.command ~* '^\s*call\s+expiration\.'
order by j.jobname, j.jobid

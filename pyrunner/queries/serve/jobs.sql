-- Both jobs as they are: settings, who paused one and why, how its last cycle went.
select
    f.*,
    j.period,
    j.max_duration,
    j.paused_at,
    j.paused_by,
    j.paused_reason,
    r.error as last_run_error
from expiration.job_figures as f
inner join expiration.job as j on f.job = j.name
left join expiration.run as r on f.last_run_id = r.id
order by f.job desc

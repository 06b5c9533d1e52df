-- Jobs
select
    'warning' as severity,
    format('%s is %s', s.job, s.why_not) as what,
    'no driver runs it until it is resumed' as why,
    format('pyrunner resume %s', s.job) as remedy
from expiration.status as s
where s.paused
union all
select
    'warning',
    format('%s has never run', s.job),
    'no driver has called it',
    'pyrunner worker, or: pyrunner cron install'
from expiration.status as s
where s.last_run_at is null and s.running = 0 and not s.paused
union all
select
    'error',
    format('%s: %s', s.job, s.why_not),
    'what was due then waits for a cycle that succeeds',
    format('pyrunner history --job %s', s.job)
from expiration.status as s
where s.last_run_status = 'failed' and not s.paused
union all
select
    'error',
    format(
        '%s has had no successful cycle for %s', s.job, date_trunc('second', clock_timestamp() - coalesce(s.last_success_at, s.last_run_at))
    ),
    format('its period is %s', s.period),
    'see that pyrunner worker runs, or: pyrunner cron status'
from expiration.status as s
where
    not s.paused
    and clock_timestamp() - coalesce(s.last_success_at, s.last_run_at) > 2 * s.period + interval '1 minute'
union all
select
    'warning',
    format('%s: %s failed items', s.job, s.failed_items),
    'each is tried again, a bounded number a cycle, until somebody mends its row',
    format('pyrunner failed list %s', s.job)
from expiration.status as s
where s.failed_items > 0
union all
select
    'warning',
    format('%s: the last cycle ended with %s, and %s items are due', s.job, s.last_run_reason, s.due),
    case s.last_run_reason
        when 'locked' then 'other sessions hold them; see Sessions below'
        else 'more comes in than a cycle may take'
    end,
    case s.last_run_reason
        when 'locked' then format('pyrunner preview %s', s.job)
        else format('pyrunner config set %s MaxBatchesPerCycle ... (or BatchSize, or a shorter Period)', s.job)
    end
from expiration.status as s
where s.last_run_reason in ('capped', 'out of time', 'locked') and s.due > s.failed_items
union all
select
    'warning',
    format('run %s of %s is on record as running, and its driver %s is gone', r.id, r.job, r.driver),
    'the next start or upkeep marks it as abandoned',
    'call expiration.run_upkeep();'
from expiration.run as r
where r.status = 'running' and not expiration.is_alive(r)
union all
select
    'warning',
    format('%s: %s runs were abandoned within a day, the last at %s', r.job, count(*), max(r.finished_at)),
    'their drivers or connections died; what they had committed stays',
    format('pyrunner history --job %s', r.job)
from expiration.run as r
where r.status = 'abandoned' and r.finished_at > clock_timestamp() - interval '1 day'
group by r.job

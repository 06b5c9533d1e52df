create or replace view expiration.status as
select
    j.name as job,
    j.period,
    j.paused_at is not null as paused,
    coalesce(running.runs, 0) as running,
    running.since as running_since,
    last_run.started_at as last_run_at,
    last_run.status as last_run_status,
    last_run.reason as last_run_reason,
    last_run.last_success_at as last_success_at,
    extract(epoch from clock_timestamp() - last_run.last_success_at)::double precision as seconds_since_last_success,
    due.items as due,
    due.oldest as oldest_due_at,
    case when isfinite(due.oldest) then clock_timestamp() - due.oldest end as oldest_due_age,
    failed.items as failed_items,
    case
        when j.paused_at is not null
            then format('paused by %s since %s%s', j.paused_by, j.paused_at, ': ' || j.paused_reason)
        when running.runs > 0 then null
        when last_run.run_id is null then 'it has never run: no driver has called it'
        when last_run.status = 'failed' then format('the last run failed with %s: %s', last_run.sqlstate, last_run.error)
        when last_run.failed > 0 and last_run.expired = 0
            then format('the last run expired nothing, and %s items failed: see expiration.failed', last_run.failed)
        when last_run.started_at < clock_timestamp() - 2 * j.period - interval '1 minute'
            then format('no driver has called it since %s: are pg_cron or pyrunner worker at work?', last_run.started_at)
    end as why_not
from expiration.job as j
left join lateral (
    select
        count(*) as runs,
        min(r.started_at) as since
    from expiration.run as r
    where r.job = j.name and r.status = 'running' and expiration.is_alive(r)
) as running on true
inner join expiration.last_cycle as last_run on j.name = last_run.job
left join lateral (
    select
        count(*) as items,
        min(d.deadline) as oldest
    from expiration.due_item as d
    where d.job = j.name and d.deadline < now()
) as due on true
left join lateral (
    select count(*) as items
    from expiration.failed_item as f
    where f.job = j.name
) as failed on true;

comment on view expiration.status is
'One row a job: its last runs, what is due and since when (failed items among it), and why it does not run when it does not.';

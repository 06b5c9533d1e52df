create or replace view expiration.job_figures as
select
    j.name as job,
    extract(epoch from j.period)::double precision as period_seconds,
    extract(epoch from j.max_duration)::double precision as max_duration_seconds,
    j.paused_at is not null as paused,
    (
        select count(*)
        from expiration.run as r
        where r.status = 'running' and r.job = j.name and expiration.is_alive(r)
    ) as running,
    last_run.run_id as last_run_id,
    last_run.status as last_run_status,
    last_run.reason as last_run_reason,
    last_run.started_at as last_run_at,
    last_run.sqlstate as last_run_sqlstate,
    last_run.last_success_at as last_success_at,
    greatest(
        extract(epoch from clock_timestamp() - coalesce(last_run.last_success_at, j.created_at))::double precision, 0
    ) as seconds_since_last_success,
    coalesce(backlog.due_before, 0) as backlog,
    coalesce(last_run.expired, 0) as last_run_expired,
    coalesce(last_run.failed, 0) as last_run_failed,
    failed.items as failed_items,
    failed.oldest_at as oldest_failed_at
from expiration.job as j
inner join expiration.last_cycle as last_run on j.name = last_run.job
cross join lateral (
    select
        count(*) as items,
        min(f.first_failed_at) as oldest_at
    from (
        select i.first_failed_at
        from expiration.failed_item as i
        where i.job = j.name
        limit 10000
    ) as f
) as failed
left join lateral (
    -- the cycle at work, where there is one
    select b.due_before
    from (
        select r.due_before, r.started_at
        from expiration.run as r
        where r.job = j.name and r.status = 'running'
        union all
        select last_run.due_before, last_run.started_at
    ) as b
    where b.due_before is not null
    order by b.started_at desc
    limit 1
) as backlog on true;

comment on view expiration.job_figures is
'One row a job, at the same cost at any length of history: its settings and state, its last cycle (skipped ones and bare batches left out), the seconds since its last success (since the job came into being when there was none), backlog (what was due before the latest cycle, exactly), failed items (up to 10000).';

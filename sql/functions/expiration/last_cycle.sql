create or replace view expiration.last_cycle as
select
    j.name as job,
    c.id as run_id,
    c.status,
    c.reason,
    c.started_at,
    c.due_before,
    c.expired,
    c.failed,
    c.sqlstate,
    c.error,
    s.finished_at as last_success_at
from expiration.job as j
left join lateral (
    select r.*
    from expiration.run as r
    where r.job = j.name and r.driver <> 'sql' and r.status not in ('skipped', 'running')
    order by r.started_at desc
    limit 1
) as c on true
left join lateral (
    select r.finished_at
    from expiration.run as r
    where r.job = j.name and r.status in ('completed', 'capped') and r.driver <> 'sql'
    order by r.finished_at desc
    limit 1
) as s on true;

comment on view expiration.last_cycle is
'The last cycle of each job that did something, skipped ones and bare batches left out, and the end of its last success; one row a job, nulls where there was none.';

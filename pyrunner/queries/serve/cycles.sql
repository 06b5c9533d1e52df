-- The last cycles of each job, oldest first; neither skipped ones nor bare batches.
select
    c.job,
    c.id,
    c.driver,
    c.status,
    c.reason,
    c.started_at,
    greatest(extract(epoch from c.finished_at - c.started_at)::double precision, 0) as seconds,
    c.due_before,
    c.expired,
    c.failed,
    c.skipped_locked,
    c.sqlstate,
    left(c.error, 1000) as error
from expiration.job as j
cross join lateral (
    select r.*
    from expiration.run as r
    where r.job = j.name and r.driver <> 'sql' and r.status not in ('skipped', 'running')
    order by r.started_at desc
    limit 40
) as c
order by c.job desc, c.started_at

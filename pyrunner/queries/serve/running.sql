-- Runs at work, and what each has done so far.
select
    r.job,
    r.id,
    r.driver,
    r.started_at,
    r.due_before,
    r.stop_requested_at,
    b.batches,
    b.expired,
    b.failed
from expiration.run as r
cross join lateral (
    select
        count(*) filter (where h.claimed > 0) as batches,
        coalesce(sum(h.expired), 0)::bigint as expired,
        coalesce(sum(h.failed), 0)::bigint as failed
    from expiration.batch as h
    where h.run_id = r.id
) as b
where r.status = 'running' and expiration.is_alive(r)
order by r.started_at
limit 20

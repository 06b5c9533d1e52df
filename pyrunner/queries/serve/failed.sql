-- The items of each job that failed last, and why.
select
    f.job,
    f.phase,
    f.item_id,
    f.first_failed_at,
    f.last_failed_at,
    f.attempts,
    f.sqlstate,
    left(f.message, 2000) as message
from expiration.job as j
cross join lateral (
    select i.*
    from expiration.failed_item as i
    where i.job = j.name
    order by i.last_failed_at desc
    limit 10
) as f
order by f.job desc, f.last_failed_at desc, f.item_id

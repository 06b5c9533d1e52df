-- The items that a run expired, one event each, in order.
select
    i.at,
    'debug' as level,
    i.event,
    r.job,
    r.driver,
    r.id as run_id,
    i.fields
from expiration.run as r
cross join lateral expiration.log_item(r.id) as i
where r.id = %(run_id)s

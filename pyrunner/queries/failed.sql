-- Failed items, longest waiting first.
select f.*
from expiration.failed as f
where %(job)s::text is null or f.job = %(job)s
order by f.job, f.last_failed_at, f.item_id
limit %(limit)s

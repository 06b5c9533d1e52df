-- Runs, newest first.
select h.*
from expiration.history as h
where %(job)s::text is null or h.job = %(job)s
order by h.started_at desc
limit %(limit)s

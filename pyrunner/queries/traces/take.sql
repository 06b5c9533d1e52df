-- Runs that are over and not sent yet; traceparent is the span of the cycle.
select
    t.*,
    outbox.traceparent(t.id, 0) as traceparent
from expiration.take_traces(%(name)s, %(max_runs)s) as t
order by t.tally_number

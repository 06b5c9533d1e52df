-- Ends a cycle.
select
    r.*,
    expiration.run_result(r) as result
from expiration.finish_run(%(run_id)s, %(reason)s) as r

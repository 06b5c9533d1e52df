-- One batch, a transaction of its own.
select
    b.state,
    b.reason,
    b.number,
    b.phase,
    b.step,
    b.claimed,
    b.expired,
    b.failed,
    b.skipped_locked,
    b.elapsed_ms
from expiration.run_batch(%(run_id)s) as b

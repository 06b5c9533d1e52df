-- Whether a batch that failed is tried again, and when; if not, its run is over.
select
    f.retry,
    f.delay
from expiration.batch_failed(%(run_id)s, %(sqlstate)s, %(error)s) as f

-- Starts a cycle, driven by us.
select
    r.*,
    expiration.run_result(r) as result
from expiration.start_run(
    job => %(job)s,
    driver => 'pyrunner',
    instance => %(instance)s,
    as_of => %(as_of)s,
    batch_size => %(batch_size)s::integer,
    max_batches_per_cycle => %(max_batches_per_cycle)s::integer,
    max_duration => %(max_duration)s,
    pooled => %(pooled)s
) as r

create or replace view expiration.history as
select
    r.id,
    r.job,
    r.driver,
    r.instance,
    r.status,
    r.reason,
    r.as_of,
    r.started_at,
    r.finished_at,
    coalesce(r.finished_at, clock_timestamp()) - r.started_at as duration,
    r.due_before,
    r.expired,
    r.failed,
    r.skipped_locked,
    r.batches,
    r.retries,
    r.sqlstate,
    r.error,
    r.started_by,
    expiration.run_result(r) as result
from expiration.run as r;

comment on view expiration.history is
'Runs with their durations and their results as the documents name them. Newest first: order by started_at desc.';

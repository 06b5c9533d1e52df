create or replace view expiration.batch_total as
select
    j.name as job,
    p.phase,
    coalesce(t.batches, 0) + coalesce(b.batches, 0) as batches,
    coalesce(t.expired, 0) + coalesce(b.expired, 0) as expired,
    coalesce(t.failed, 0) + coalesce(b.failed, 0) as failed,
    coalesce(t.skipped_locked, 0) + coalesce(b.skipped_locked, 0) as skipped_locked,
    (coalesce(t.lateness_seconds, 0) + coalesce(b.lateness_seconds, 0))::double precision as lateness_seconds
from expiration.job as j
cross join lateral expiration.phases(j.name) as p
left join expiration.batch_tally as t on j.name = t.job and p.phase = t.phase
left join (
    select
        h.phase,
        count(*) filter (where h.claimed > 0) as batches,
        sum(h.expired) as expired,
        sum(h.failed) as failed,
        sum(h.skipped_locked) as skipped_locked,
        sum(h.lateness_seconds::numeric) as lateness_seconds
    from expiration.batch as h
    where not h.tallied
    group by h.phase
) as b on p.phase = b.phase;

comment on view expiration.batch_total is
'Counts of all batches ever, purged ones too, by job and phase: they only grow. lateness_seconds sums as_of - deadline of the items expired.';

create or replace view expiration.batch_total as
select
    j.name as job,
    p.phase,
    coalesce(g.batches, 0) + coalesce(b.batches, 0) as batches,
    coalesce(g.expired, 0) + coalesce(b.expired, 0) as expired,
    coalesce(g.failed, 0) + coalesce(b.failed, 0) as failed,
    coalesce(g.skipped_locked, 0) + coalesce(b.skipped_locked, 0) as skipped_locked
from expiration.job as j
cross join lateral expiration.phases(j.name) as p
left join expiration.purged_batch_total as g on j.name = g.job and p.phase = g.phase
left join (
    select
        h.phase,
        count(*) filter (where h.claimed > 0) as batches,
        sum(h.expired) as expired,
        sum(h.failed) as failed,
        sum(h.skipped_locked) as skipped_locked
    from expiration.batch as h
    group by h.phase
) as b on p.phase = b.phase;

comment on view expiration.batch_total is
'Counts of all batches ever, purged ones too, by job and phase: they only grow.';

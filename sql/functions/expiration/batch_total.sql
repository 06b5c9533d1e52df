create or replace view expiration.batch_total as
select
    p.job,
    p.phase,
    sum(t.batches)::bigint as batches,
    sum(t.expired)::bigint as expired,
    sum(t.failed)::bigint as failed,
    sum(t.skipped_locked)::bigint as skipped_locked
from expiration.job as j
cross join lateral expiration.phases(j.name) as known
cross join lateral (select j.name as job, known.phase) as p
left join lateral (
    select g.batches, g.expired, g.failed, g.skipped_locked
    from expiration.purged_batch_total as g
    where g.job = p.job and g.phase = p.phase
    union all
    select
        count(*) filter (where b.claimed > 0),
        coalesce(sum(b.expired), 0),
        coalesce(sum(b.failed), 0),
        coalesce(sum(b.skipped_locked), 0)
    from expiration.batch as b
    where b.phase = p.phase
) as t on true
group by p.job, p.phase;

comment on view expiration.batch_total is
'Counts of all batches ever, purged ones too, by job and phase: they only grow.';

create or replace view expiration.lateness_histogram as
select
    p.job,
    p.phase,
    coalesce((expiration.lateness_bounds())[b.bucket], 'Infinity') as le,
    sum(coalesce(t.items, 0) + coalesce(w.items, 0)) over (partition by p.job, p.phase order by b.bucket)::bigint as items
from (
    select j.name as job, h.phase
    from expiration.job as j
    cross join lateral expiration.phases(j.name) as h
) as p
cross join generate_series(1, cardinality(expiration.lateness_bounds()) + 1) as b (bucket)
left join expiration.lateness_tally as t on p.job = t.job and p.phase = t.phase and b.bucket = t.bucket
left join (
    select h.phase, l.bucket, sum(l.items) as items
    from expiration.batch as h
    cross join lateral unnest(h.lateness) with ordinality as l (items, bucket)
    where not h.tallied
    group by h.phase, l.bucket
) as w on p.phase = w.phase and b.bucket = w.bucket;

comment on view expiration.lateness_histogram is
'Items ever expired no later than le seconds after their deadline (as_of - deadline), by job and phase, counted up to the last bound, Infinity: they only grow. What expired before version 0.3.0 was not counted.';

create or replace view expiration.duration_histogram as
select
    j.name as job,
    coalesce((expiration.duration_bounds())[b.bucket], 'Infinity') as le,
    sum(coalesce(t.runs, 0) + coalesce(w.runs, 0)) over (partition by j.name order by b.bucket)::bigint as runs,
    sum(coalesce(t.seconds, 0) + coalesce(w.seconds, 0)) over (
        partition by j.name order by b.bucket
    )::double precision as seconds
from expiration.job as j
cross join generate_series(1, cardinality(expiration.duration_bounds()) + 1) as b (bucket)
left join expiration.duration_tally as t on j.name = t.job and b.bucket = t.bucket
left join (
    select
        r.job,
        expiration.duration_bucket(r.finished_at - r.started_at) as bucket,
        count(*) as runs,
        sum(greatest(extract(epoch from r.finished_at - r.started_at), 0)) as seconds
    from expiration.run as r
    where
        r.tally_number is null
        and r.driver <> 'sql'
        and r.status in ('completed', 'capped', 'stopped', 'failed')
    group by 1, 2
) as w on j.name = w.job and b.bucket = w.bucket;

comment on view expiration.duration_histogram is
'Cycles ever that took no longer than le seconds, by job, counted up to the last bound, Infinity, with their durations summed likewise (seconds): they only grow. Neither skipped nor abandoned ones; what ran before version 0.3.0 was not counted.';

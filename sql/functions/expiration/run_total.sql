create or replace view expiration.run_total as
select
    t.job,
    t.status,
    sum(t.runs)::bigint as runs,
    sum(t.seconds) as seconds,
    sum(t.retries)::bigint as retries
from (
    select g.job, g.status, g.runs, g.seconds, g.retries
    from expiration.run_tally as g
    union all
    select
        r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision,
        sum(r.retries)
    from expiration.run as r
    where r.tally_number is null and r.finished_at is not null
    group by r.job, r.status
) as t
group by t.job, t.status;

comment on view expiration.run_total is
'Counts and summed durations (seconds) of all finished runs ever, purged ones too, by job and status: they only grow. retries counts batches tried again after a transient fault.';

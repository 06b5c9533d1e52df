create or replace view expiration.run_total as
select
    t.job,
    t.status,
    sum(t.runs)::bigint as runs,
    sum(t.seconds) as seconds
from (
    select g.job, g.status, g.runs, g.seconds
    from expiration.purged_run_total as g
    union all
    select r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision
    from expiration.run as r
    where r.finished_at is not null
    group by r.job, r.status
) as t
group by t.job, t.status;

comment on view expiration.run_total is
'Counts and summed durations (seconds) of all finished runs ever, purged ones too, by job and status: they only grow.';

-- Takes it down, of runs whose partitions the outbox still has. It is done before the events are: those of a batch seen here are seen then.
insert into pg_temp.expired (run_id, events, started_at)
select b.run_id, sum(b.expired), min(b.started_at)
from expiration.batch as b
group by b.run_id
having
    sum(b.expired) > 0
    and min(b.started_at) >= coalesce(
        %(since)s::timestamptz + interval '1 minute',
        (select min(p.from_time) from outbox.partition as p where not p.is_default),
        '-infinity'
    )

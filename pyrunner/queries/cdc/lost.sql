-- Events that runs have appended by their own books, and that are neither in the outbox nor in Kafka.
with known as (
    select k.run_id, count(*) as events
    from (
        select a.run_id, a.id from pg_temp.appended as a
        union
        select r.run_id, r.id from pg_temp.arrived as r
    ) as k
    group by k.run_id
)

select x.run_id, x.started_at, x.events - coalesce(k.events, 0) as events
from pg_temp.expired as x
left join known as k on k.run_id = x.run_id
where x.started_at >= coalesce(%(horizon)s::timestamptz, '-infinity') and x.events > coalesce(k.events, 0)
order by x.started_at

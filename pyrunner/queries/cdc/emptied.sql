-- Partitions that somebody truncated: the events of the day's first batches are not there any more, and the slot may still have to deliver some.
with day as (
    select
        p.name,
        p.from_time,
        p.to_time,
        sum(b.expired)::bigint as expired,
        min(b.finished_at) as first_at
    from outbox.partition as p
    inner join expiration.batch as b on b.started_at >= p.from_time and b.finished_at < p.to_time
    where not p.is_default and b.expired > 0
    group by p.name, p.from_time, p.to_time
)

select
    d.name as partition,
    d.expired,
    coalesce(k.events, 0) as events
from day as d
-- a table that nobody truncated begins with an event of the first batches; only where it does not, all are counted
left join lateral (
    select e.created_at from outbox.event as e where e.created_at >= d.from_time and e.created_at < d.to_time limit 1
) as f on true
left join lateral (
    select
        count(*) as events,
        min(e.lsn) as since
    from outbox.event as e
    where
        f.created_at > d.first_at and e.created_at >= d.from_time and e.created_at < d.to_time and e.replay_id is null
) as k on true
left join pg_replication_slots as s on s.slot_name = %(slot)s
where
    f.created_at is null
    -- whatever was there before had been confirmed when what came after it was
    or f.created_at > d.first_at and k.events < d.expired and k.since >= coalesce(s.confirmed_flush_lsn, '0/0')
order by d.name

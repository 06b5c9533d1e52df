create or replace view outbox.slot_figures as
select
    s.name,
    s.connector,
    s.state,
    s.wal_status,
    pg_catalog.pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0')::bigint as confirmed_bytes,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    b.events as backlog_events,
    case
        when b.events is not null
            then greatest(extract(epoch from clock_timestamp() - b.oldest_at)::double precision, 0)
    end as backlog_seconds
from outbox.slot_state as s
left join lateral (
    select
        count(*) as events,
        min(c.created_at) as oldest_at
    from (
        select e.created_at
        from outbox.event as e
        where e.lsn >= s.confirmed_flush_lsn
        limit 10000
    ) as c
) as b on s.confirmed_flush_lsn is not null;

comment on view outbox.slot_figures is
'As outbox.slot_status, at a bounded cost: backlog_events counts up to 10000 and stops there. confirmed_bytes only grows, and stands still when nothing is confirmed any more, the connector''s heartbeat included.';

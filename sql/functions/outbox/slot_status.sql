create or replace view outbox.slot_status as
select
    s.name,
    s.publication,
    s.connector,
    s.state,
    s.plugin,
    s.active,
    s.wal_status,
    s.restart_lsn,
    s.confirmed_flush_lsn,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    b.events as backlog_events,
    b.oldest_at as oldest_backlog_at,
    extract(epoch from clock_timestamp() - b.oldest_at)::double precision as backlog_seconds,
    s.gap_since
from outbox.slot_state as s
left join lateral (
    select
        count(*) as events,
        min(e.created_at) as oldest_at
    from outbox.event as e
    where e.lsn >= s.confirmed_flush_lsn
) as b on s.confirmed_flush_lsn is not null;

comment on view outbox.slot_status is
'outbox.slot_state with the events beyond each slot''s confirmed position, all counted. An event whose transaction was open for long may be confirmed later than its position says.';

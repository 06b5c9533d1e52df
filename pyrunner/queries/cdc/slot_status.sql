-- The slot as the registry and the server know it: no row where it is not registered.
select
    s.name,
    s.publication,
    s.connector,
    s.state,
    s.plugin,
    s.active,
    s.wal_status,
    s.restart_lsn::text,
    s.confirmed_flush_lsn::text,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    s.backlog_events,
    s.oldest_backlog_at,
    s.backlog_seconds
from outbox.slot_status as s
where s.name = %(slot)s

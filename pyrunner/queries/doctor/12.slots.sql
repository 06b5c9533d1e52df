-- Replication slots
select
    'error' as severity,
    format('slot %s has lost its place in the log', s.slot_name) as what,
    'events that it had not delivered are in the outbox only, and must be replayed' as why,
    format('select pg_drop_replication_slot(%L); then make the connector''s slot anew and replay', s.slot_name) as remedy
from pg_replication_slots as s
where s.slot_type = 'logical' and s.database = current_database() and s.wal_status = 'lost'
union all
select
    'error',
    format('slot %s is about to lose its place in the log', s.slot_name),
    'the log that it still needs is beyond max_slot_wal_keep_size',
    'start its connector, or raise max_slot_wal_keep_size'
from pg_replication_slots as s
where s.slot_type = 'logical' and s.database = current_database() and s.wal_status = 'unreserved'
union all
select
    'warning',
    format(
        'nobody reads slot %s, which keeps %s of log',
        s.slot_name, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn))
    ),
    'events are not delivered, and the log fills the disk',
    'start its connector, or drop the slot'
from pg_replication_slots as s
where
    s.slot_type = 'logical'
    and s.database = current_database()
    and not s.active
    and not pg_is_in_recovery()
    and s.wal_status in ('reserved', 'extended')

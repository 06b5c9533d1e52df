-- Replication slots
select
    'error' as severity,
    format('slot %s has lost its place in the log', s.slot_name) as what,
    'events that it had not delivered are in the outbox only, and must be replayed' as why,
    case
        when o.name is not null then format('pyrunner cdc recover --slot %s', s.slot_name)
        else format('select pg_drop_replication_slot(%L);', s.slot_name)
    end as remedy
from pg_replication_slots as s
left join outbox.slot as o on s.slot_name = o.name
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
union all
select
    'error',
    format('slot %s, which reads the outbox, is not there', s.name),
    'what is appended meanwhile is not delivered by itself, and no partition of the outbox is dropped',
    format('pyrunner cdc recover --slot %1$s; where nobody reads it any more: select outbox.forget_slot(%1$L);', s.name)
from outbox.slot_status as s
where s.state = 'missing'
union all
select
    'warning',
    format('partitions of the outbox past their retention, and no slot registered: %s', count(*)),
    'nobody is known to have read them, so they are kept',
    'pyrunner cdc install; or, where nobody is to read them, drop them by hand'
from outbox.partition as p
cross join outbox.settings as w
where not p.is_default and p.to_time < now() - w.retention and not exists (select from outbox.slot)
having count(*) > 0

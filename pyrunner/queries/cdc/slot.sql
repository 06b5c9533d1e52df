-- A replication slot, in whichever database, and whether it is registered as one of the outbox's: one row.
select
    s.slot_name is not null as is_there,
    coalesce(
        s.slot_type = 'logical' and not s.temporary and s.database = current_database() and s.plugin = %(plugin)s, false
    ) as is_fit,
    concat_ws(
        ', ', s.slot_type, 'plugin ' || s.plugin, 'database ' || s.database, case when s.temporary then 'temporary' end
    ) as kind,
    coalesce(s.wal_status = 'lost', false) as is_lost,
    coalesce(s.active, false) as active,
    s.active_pid,
    (s.confirmed_flush_lsn - '0/0')::bigint as confirmed,
    s.confirmed_flush_lsn::text as confirmed_lsn,
    o.name is not null as is_registered,
    o.publication,
    o.connector,
    o.gap_since
from (values (%(slot)s)) as w (name)
left join pg_replication_slots as s on s.slot_name = w.name
left join outbox.slot as o on o.name = w.name

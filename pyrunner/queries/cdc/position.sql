-- How far the log has come, and how far the slot has; no place where there is no such slot.
select
    (pg_current_wal_insert_lsn() - '0/0')::bigint as written,
    (select (s.confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots as s where s.slot_name = %(slot)s) as confirmed

create or replace view outbox.slot_state as
select
    s.name,
    s.publication,
    s.connector,
    case
        when r.slot_name is null then 'missing'
        when r.wal_status = 'lost' then 'lost'
        when r.active then 'active'
        else 'inactive'
    end as state,
    r.plugin::text as plugin,
    r.active,
    r.wal_status,
    r.restart_lsn,
    r.confirmed_flush_lsn,
    pg_catalog.pg_wal_lsn_diff(w.lsn, r.restart_lsn)::bigint as retained_bytes,
    pg_catalog.pg_wal_lsn_diff(w.lsn, r.confirmed_flush_lsn)::bigint as lag_bytes,
    r.safe_wal_size,
    s.gap_since
from outbox.slot as s
left join pg_catalog.pg_replication_slots as r
    on s.name = r.slot_name and r.slot_type = 'logical' and r.database = pg_catalog.current_database()
cross join lateral (
    select
        case
            when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
            else pg_catalog.pg_current_wal_lsn()
        end as lsn
) as w;

comment on view outbox.slot_state is
'Slots of the outbox, each as it is now: state missing, lost, inactive or active; WAL held back for it (retained_bytes), not yet confirmed (lag_bytes), left before it is lost (safe_wal_size); gap_since as in outbox.slot. Reads no event.';

-- Since when the slot has its reader; null where that is hidden from this login.
select r.backend_start as since
from pg_replication_slots as s
inner join pg_stat_replication as r on s.active_pid = r.pid
where s.slot_name = %(slot)s

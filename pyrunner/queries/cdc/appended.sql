-- Takes them down. Whatever is seen here was committed before, so in the log before the position asked for next.
insert into pg_temp.appended (id, seq, topic, created_at, lsn, run_id)
select distinct on (e.id) e.id, e.seq, e.topic, e.created_at, e.lsn, e.correlation_id
from outbox.event as e
where e.id is not null and e.topic is not null and e.created_at >= coalesce(%(since)s::timestamptz, '-infinity')
order by e.id, e.seq

-- What a backend waits for: the transactions that block it, the longest open first.
select
    nullif(b.pid, 0) as pid,
    coalesce(a.usename::text, p.owner::text) as login,
    a.application_name,
    a.state,
    p.gid,
    clock_timestamp() - coalesce(a.xact_start, p.prepared) as age
from unnest(pg_blocking_pids(%(pid)s)) as b (pid)
left join pg_stat_activity as a on a.pid = b.pid
-- a prepared transaction has no backend
left join lateral (
    select x.gid, x.owner, x.prepared from pg_prepared_xacts as x where b.pid = 0 order by x.prepared limit 1
) as p on true
order by coalesce(a.xact_start, p.prepared)

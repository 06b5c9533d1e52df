-- Whom a backend waits for, and for what.
select b.pid, a.usename, a.application_name, a.state, wanted.what
from unnest(pg_blocking_pids(%(pid)s)) as b (pid)
left join pg_stat_activity as a on b.pid = a.pid
cross join (
    select string_agg(
        case
            when l.relation is not null then 'a lock on ' || l.relation::regclass
            when l.locktype = 'advisory' then 'the lock of an installation'
            else 'a row or a name that is needed'
        end,
        ', '
    )
    from pg_locks as l
    where l.pid = %(pid)s and not l.granted
) as wanted (what)
order by b.pid
limit 1;

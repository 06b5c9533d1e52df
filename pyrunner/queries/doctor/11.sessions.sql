-- Sessions
with session as (
    select
        a.pid,
        coalesce(nullif(a.application_name, ''), a.usename::text, 'a prepared transaction') as name,
        a.state,
        clock_timestamp() - a.xact_start as age,
        clock_timestamp() - a.state_change as since
    from pg_stat_activity as a
    where a.datname = current_database() and a.pid <> pg_backend_pid()
)

select
    'warning' as severity,
    format('session %s (%s) is idle in a transaction for %s', s.pid, s.name, date_trunc('second', s.since)) as what,
    'the rows that it locked are skipped, and dead rows cannot be cleared away' as why,
    format('select pg_terminate_backend(%s);', s.pid) as remedy
from session as s
where s.state like 'idle in transaction%' and s.since > interval '1 minute'
union all
select
    'warning',
    format('session %s (%s) has had a transaction open for %s', s.pid, s.name, date_trunc('second', s.age)),
    'its snapshot keeps dead rows, over which every claim walks',
    format('select pg_cancel_backend(%s);', s.pid)
from session as s
where s.state = 'active' and s.age > interval '10 minutes'
union all
select
    'warning',
    format('prepared transaction %s is open since %s', p.gid, p.prepared),
    'it keeps its locks and dead rows until somebody ends it',
    format('rollback prepared %L;', p.gid)
from pg_prepared_xacts as p
where p.database = current_database() and p.prepared < clock_timestamp() - interval '1 minute'
union all
select
    'unseen',
    format('what %s sessions of other users do', count(*)),
    'only members of pg_read_all_stats see it',
    format('grant pg_read_all_stats to %I;', current_user)
from pg_stat_activity as a
where a.datname = current_database() and a.query = '<insufficient privilege>'
having count(*) > 0

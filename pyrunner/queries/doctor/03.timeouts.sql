-- Timeouts
with guarded (name, least, why) as (
    values
    ('statement_timeout', interval '10 seconds', 'it would cut off a batch'),
    ('transaction_timeout', interval '10 seconds', 'it would cut off a batch'),
    ('idle_in_transaction_session_timeout', interval '5 seconds', 'it would break a worker''s connection between two statements'),
    ('lock_timeout', interval '100 milliseconds', 'a batch that has to wait for anything would fail')
),

-- what is in force for us, and what is set for other logins that may run the jobs
found as (
    select
        current_user::text as login,
        g.name,
        current_setting(g.name, true)::interval as value
    from guarded as g
    union all
    select
        r.rolname::text,
        split_part(e.entry, '=', 1),
        case
            when split_part(e.entry, '=', 2) ~ '^\d+$' then split_part(e.entry, '=', 2)::bigint * interval '1 millisecond'
            else split_part(e.entry, '=', 2)::interval
        end
    from pg_db_role_setting as d
    inner join pg_roles as r on d.setrole = r.oid
    cross join unnest(d.setconfig) as e (entry)
    where
        r.rolcanlogin
        and r.rolname <> current_user
        and d.setdatabase in (0, (select b.oid from pg_database as b where b.datname = current_database()))
        and split_part(e.entry, '=', 1) in (select g.name from guarded as g)
        and exists (
            select
            from pg_roles as o
            where o.rolname = 'crm_runner' and pg_has_role(r.oid, o.oid, 'member')
        )
)

select
    'warning' as severity,
    format('%s is %s for %s', f.name, f.value, f.login) as what,
    g.why,
    format('alter role %I set %s = 0;', f.login, f.name) as remedy
from found as f
inner join guarded as g on f.name = g.name
where f.value > interval '0' and f.value < g.least
union all
select
    'warning',
    format('statement_timeout is %s for %s', f.value, f.login),
    format('a cycle of %s by CALL (pg_cron, psql) may take %s', j.name, j.max_duration),
    format('alter role %I set statement_timeout = 0;', f.login)
from found as f
inner join guarded as g on f.name = g.name
inner join expiration.job as j on f.value < j.max_duration
where f.name = 'statement_timeout' and f.value >= g.least

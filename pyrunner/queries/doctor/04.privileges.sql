-- Privileges
with ours as (
    select
        r.rolname::text as name,
        r.oid
    from pg_roles as r
    where r.rolname in ('crm_owner', 'crm_runner', 'crm_operator', 'crm_monitor', 'crm_app', 'crm_chessboard', 'crm_notifications')
),

-- what the functions need, whoever owns the tables
needed_table (name, privilege) as (
    values
    ('crm.leads', 'select'), ('crm.leads', 'update'), ('crm.bookings', 'select'), ('crm.bookings', 'update'),
    ('crm.deal_timeline', 'insert'), ('crm.audit_log', 'insert'), ('outbox.event', 'insert')
),

needed_function (role, name) as (
    values
    ('crm_monitor', 'run_result'), ('crm_monitor', 'is_alive'), ('crm_monitor', 'log_item'), ('crm_monitor', 'preview'),
    ('crm_runner', 'start_run'), ('crm_runner', 'run_batch'), ('crm_runner', 'finish_run'),
    ('crm_runner', 'batch_failed'), ('crm_runner', 'run_job'), ('crm_runner', 'run_upkeep'),
    ('crm_operator', 'pause'), ('crm_operator', 'resume'), ('crm_operator', 'stop'),
    ('crm_operator', 'retry_failed'), ('crm_operator', 'set_job')
)

select
    'ok' as severity,
    format(
        '%s may %s',
        current_user,
        coalesce(
            string_agg(
                case o.name
                    when 'crm_monitor' then 'look on'
                    when 'crm_runner' then 'run the jobs'
                    when 'crm_operator' then 'change settings'
                end,
                ', ' order by o.name
            ) filter (where pg_has_role(o.oid, 'usage')),
            'do nothing'
        )
    ) as what,
    null as why,
    null as remedy
from ours as o
where o.name in ('crm_monitor', 'crm_runner', 'crm_operator')
union all
select
    'error',
    format('there is no role %s', w.name),
    'the installation is not complete',
    'pyrunner migrate'
from (values ('crm_owner'), ('crm_runner'), ('crm_operator'), ('crm_monitor'), ('crm_app'), ('crm_chessboard'), ('crm_notifications')) as w (name)
where w.name not in (select o.name from ours as o)
union all
select
    'error',
    'crm_owner may not read other sessions'' state',
    'a dead run is recognised only by its silence (stale_after), which blocks its successor as long',
    'grant pg_read_all_stats to crm_owner;'
from ours as o
where o.name = 'crm_owner' and not pg_has_role(o.oid, 'pg_read_all_stats', 'usage')
union all
select
    'error',
    format('crm_owner may not %s %s', n.privilege, n.name),
    'every batch that needs it fails',
    format('grant %s on %s to crm_owner;', n.privilege, n.name)
from needed_table as n
inner join pg_namespace as s on s.nspname = split_part(n.name, '.', 1)
inner join pg_class as c on c.relnamespace = s.oid and c.relname = split_part(n.name, '.', 2)
inner join ours as o on o.name = 'crm_owner'
where not has_table_privilege(o.oid, c.oid, n.privilege)
union all
select
    'error',
    format('crm_owner may not use schema %s', s.nspname),
    'every batch fails',
    format('grant usage on schema %s to crm_owner;', s.nspname)
from pg_namespace as s
inner join ours as o on o.name = 'crm_owner'
where s.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and not has_schema_privilege(o.oid, s.oid, 'usage')
union all
select
    'error',
    format('%s may not execute expiration.%s', f.role, f.name),
    'its members cannot do their work',
    'pyrunner migrate'
from needed_function as f
inner join ours as o on f.role = o.name
inner join pg_namespace as s on s.nspname = 'expiration'
inner join pg_proc as p on p.pronamespace = s.oid and f.name = p.proname
where not has_function_privilege(o.oid, p.oid, 'execute')
union all
select
    'error',
    format('everybody may execute %s', string_agg(p.oid::regprocedure::text, ', ' order by p.oid::regprocedure::text)),
    'these functions act with their owner''s rights',
    'pyrunner migrate'
from pg_proc as p
inner join pg_namespace as s on p.pronamespace = s.oid
cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
where s.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and p.prosecdef and a.grantee = 0
having count(*) > 0

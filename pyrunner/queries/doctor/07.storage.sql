-- Storage
select
    'warning' as severity,
    format('autovacuum is disabled on %s.%s', s.nspname, c.relname) as what,
    'every expiration leaves a dead row, and the claims walk over them' as why,
    format('alter table %s.%s reset (autovacuum_enabled);', s.nspname, c.relname) as remedy
from pg_class as c
inner join pg_namespace as s on c.relnamespace = s.oid
cross join unnest(c.reloptions) as o (entry)
where s.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and c.relkind = 'r' and o.entry in ('autovacuum_enabled=false', 'autovacuum_enabled=off')
union all
select
    'warning',
    format('crm.%s holds %s dead rows beside %s live ones', t.relname, t.n_dead_tup, t.n_live_tup),
    'the claims walk over them; a long-open snapshot or a slow autovacuum keeps them',
    format('vacuum (verbose) crm.%s;', t.relname)
from pg_stat_user_tables as t
where t.schemaname = 'crm' and t.relname in ('leads', 'bookings') and t.n_dead_tup > greatest(t.n_live_tup, 100000)

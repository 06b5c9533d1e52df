-- The connector's role, and what it may do here: no row where there is none.
select
    r.rolcanlogin as may_login,
    r.rolreplication or r.rolsuper as may_replicate,
    r.rolsuper as is_superuser,
    has_schema_privilege(r.oid, 'outbox', 'usage') as may_use_schema,
    has_database_privilege(r.oid, current_database(), 'connect') as may_connect,
    -- what it was given itself, not by way of PUBLIC or another role
    exists (
        select
        from pg_namespace as n
        cross join lateral aclexplode(n.nspacl) as a
        where n.nspname = 'outbox' and a.grantee = r.oid
    ) as was_given_schema,
    exists (
        select
        from pg_database as d
        cross join lateral aclexplode(d.datacl) as a
        where d.datname = current_database() and a.grantee = r.oid
    ) as was_given_database
from pg_roles as r
where r.rolname = %(role)s

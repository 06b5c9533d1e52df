-- What an installation by the current user would lack.
select
    r.rolname as me,
    quote_ident(r.rolname) as quoted,
    r.rolsuper as is_superuser,
    r.rolcreaterole as may_make_roles,
    quote_ident(current_database()) as database,
    has_database_privilege(current_database(), 'create') as may_make_schemas,
    array(select w.name from unnest(%(roles)s::text[]) as w (name) where to_regrole(w.name) is null) as roles,
    taken.name as schema,
    taken.owner,
    pg_is_in_recovery() as is_standby
from pg_roles as r
left join lateral (
    -- a schema that was there before, in which crm_owner may not work and cannot be allowed to by us
    select n.nspname as name, pg_get_userbyid(n.nspowner) as owner
    from pg_namespace as n
    where n.nspname = any (%(schemas)s)
        and not (
            has_schema_privilege(n.oid, 'create with grant option')
            and has_schema_privilege(n.oid, 'usage with grant option')
        )
        and not coalesce(
            has_schema_privilege(to_regrole('crm_owner'), n.oid, 'create')
            and has_schema_privilege(to_regrole('crm_owner'), n.oid, 'usage'),
            false
        )
    order by 1
    limit 1
) as taken on true
where r.rolname = current_user;

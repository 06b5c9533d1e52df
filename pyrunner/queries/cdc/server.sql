-- What the server and the login are able to do.
select
    pg_is_in_recovery() as is_standby,
    current_setting('wal_level') as wal_level,
    current_setting('max_replication_slots')::integer as max_slots,
    (select count(*) from pg_replication_slots) as slots,
    current_setting('max_wal_senders')::integer as max_senders,
    (select count(*) from pg_stat_replication) as senders,
    current_user::text as login,
    r.rolsuper as is_superuser,
    r.rolreplication or r.rolsuper as may_replicate,
    r.rolcreaterole or r.rolsuper as may_create_role,
    has_database_privilege(current_database(), 'create') as may_create,
    current_database()::text as database
from pg_roles as r
where r.rolname = current_user

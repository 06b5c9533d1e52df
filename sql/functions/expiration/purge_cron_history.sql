create or replace function expiration.purge_cron_history(retention interval default interval '7 days') returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_deleted bigint := bigint '0';
begin
    if exists (
        select
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname = 'cron'
            and c.relname = 'job_run_details'
            and has_schema_privilege(n.oid, 'usage')
            and has_table_privilege(c.oid, 'delete')
    ) then
        execute $sql$
            delete from cron.job_run_details
            where database = current_database() and end_time < now() - $1 and command ~* '^\s*call\s+expiration\.'
        $sql$ using purge_cron_history.retention;
        get diagnostics v_deleted = row_count;
    end if;
    return v_deleted;
end
$function$;

comment on function expiration.purge_cron_history(interval) is
'Deletes old entries of our jobs from pg_cron''s own history, which grows without bound; as far as the caller may, in the database where pg_cron lives.';

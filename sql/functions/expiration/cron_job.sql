create or replace function expiration.cron_job()
returns table (jobid bigint, jobname text, schedule text, command text, username text, active boolean)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
begin
    -- not by to_regclass, which raises for those who may not look into the schema
    if not exists (
        select
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where n.nspname = 'cron' and c.relname = 'job' and has_schema_privilege(n.oid, 'usage')
    ) then
        return;
    end if;
    -- @plpgsql_check_options: performance_warnings = off
    -- (dynamic, since the table is there only beside pg_cron)
    return query execute $sql$
        select c.jobid, c.jobname::text, c.schedule, c.command, c.username, c.active
        from cron.job as c
        where c.database = current_database() and c.command ~* '^\s*call\s+expiration\.'
        order by c.jobname, c.jobid
    $sql$;
end
$function$;

comment on function expiration.cron_job() is
'Our entries in pg_cron for this database, as far as the caller may see them (pg_cron hides those of other users); empty where pg_cron is not installed here.';

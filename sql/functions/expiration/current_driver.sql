create or replace function expiration.current_driver() returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (
    select case
        when a.backend_type = 'pg_cron' or a.application_name like 'pg_cron%' then 'pg_cron'
        else 'psql'
    end
    from pg_stat_activity as a
    where a.pid = pg_backend_pid()
);

comment on function expiration.current_driver() is
'Who calls: pg_cron in either of its modes, or somebody by hand (psql).';

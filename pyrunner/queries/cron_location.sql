-- Where pg_cron is: whether here, and the database that it lives in, as far as we may see it.
select
    current_database()::text as ours,
    (
        select e.extversion
        from pg_extension as e
        where e.extname = 'pg_cron'
    ) as version_here,
    (
        select s.setting
        from pg_settings as s
        where s.name = 'cron.database_name'
    ) as theirs

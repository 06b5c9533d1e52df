create or replace function expiration.cron_plan(seconds_allowed boolean default false)
returns table (jobname text, schedule text, command text)
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    select
        j.name,
        expiration.cron_schedule(j.name, j.period, cron_plan.seconds_allowed),
        format('CALL expiration.run_job(%L)', j.name)
    from expiration.job as j
    union all
    select 'expiration-upkeep', '7 * * * *', 'CALL expiration.run_upkeep()'
    order by 1;
end;

comment on function expiration.cron_plan(boolean) is
'The entries that pg_cron needs: one a job and one for upkeep, each command exactly one CALL.';

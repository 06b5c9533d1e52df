create or replace function expiration.cron_schedule(job text, period interval, seconds_allowed boolean default false)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_seconds constant numeric := extract(epoch from period);
    v_possible record;
    v_nearest text;
begin
    if job is null or period is null or seconds_allowed is null then
        perform expiration.raise_error(
            'null_argument',
            case when job is null then 'job' when period is null then 'period' else 'seconds_allowed' end,
            'expiration.cron_schedule'
        );
    end if;
    -- every expressible period: seconds where pg_cron knows them, divisors of the hour and of the day
    for v_possible in
        select s.seconds, s.schedule
        from (
            select n::numeric as seconds, n || ' seconds' as schedule from generate_series(1, 59) as n where seconds_allowed
            union all
            select n * 60, case n when 1 then '* * * * *' else '*/' || n || ' * * * *' end
            from generate_series(1, 30) as n
            where 60 % n = 0
            union all
            select n * 3600, case n when 1 then '0 * * * *' else '0 */' || n || ' * * *' end
            from generate_series(1, 12) as n
            where 24 % n = 0
            union all
            select 86400, '0 0 * * *'
        ) as s
        where s.seconds = v_seconds
    loop
        return v_possible.schedule;
    end loop;

    select string_agg(justify_interval(make_interval(secs => n.seconds::double precision))::text, ' and ' order by n.seconds)
    into v_nearest
    from (
        select max(p.seconds) filter (where p.seconds < v_seconds) as below, min(p.seconds) filter (where p.seconds > v_seconds) as above
        from (
            select n::numeric as seconds from generate_series(1, 59) as n where seconds_allowed
            union all
            select n * 60 from generate_series(1, 30) as n where 60 % n = 0
            union all
            select n * 3600 from generate_series(1, 24) as n where 24 % n = 0
        ) as p
    ) as b
    cross join lateral (values (b.below), (b.above)) as n (seconds)
    where n.seconds is not null;
    perform expiration.raise_error('inexpressible_period', job, period::text, v_nearest);
    return null;
end
$function$;

comment on function expiration.cron_schedule(text, interval, boolean) is
'A period as a schedule of pg_cron (GMT). Refuses one that it cannot express, naming the nearest (XP012); seconds_allowed from pg_cron 1.5.';

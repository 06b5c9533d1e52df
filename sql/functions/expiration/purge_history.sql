create or replace function expiration.purge_history(max_runs integer default 10000)
returns table (runs bigint, batches bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if purge_history.max_runs is null or purge_history.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.purge_history', 'greater than 0',
            coalesce(purge_history.max_runs::text, 'null')
        );
    end if;
    runs := 0;
    batches := 0;
    -- two at once would wait for each other's rows
    if pg_try_advisory_xact_lock(hashtext('expiration.purge_history')) then
        with doomed as materialized (
            select r.id
            from expiration.job as j
            cross join lateral (
                select h.id
                from expiration.run as h
                where
                    h.job = j.name
                    and h.status <> 'running'
                    and h.started_at < now() - j.history_retention
                    and h.finished_at < now() - j.history_retention
                    -- what they have counted stays in the tallies
                    and h.tally_number is not null
                    and not exists (select from expiration.batch as b where b.run_id = h.id and not b.tallied)
                    -- the last success stays, however old: the dead man's switch counts from it
                    and h.id is distinct from (
                        select s.id
                        from expiration.run as s
                        where s.job = j.name and s.status in ('completed', 'capped') and s.driver <> 'sql'
                        order by s.finished_at desc
                        limit 1
                    )
                order by h.started_at
                limit purge_history.max_runs
            ) as r
        ),

        gone_batches as (
            delete from expiration.batch as b
            using doomed as d
            where b.run_id = d.id
            returning b.run_id
        ),

        gone_runs as (
            delete from expiration.run as r
            using doomed as d
            where r.id = d.id
            returning r.id
        )

        select (select count(*) from gone_runs), (select count(*) from gone_batches)
        into purge_history.runs, purge_history.batches;
    end if;
    return next;
end
$function$;

comment on function expiration.purge_history(integer) is
'Deletes finished runs older than job.history_retention with their batches, at most max_runs a job, once they are in the tallies (expiration.tally_runs), so that batch_total and run_total never move. Returns what it deleted.';

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
    -- the totals have a row a phase: one purge at a time
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
            returning b.*
        ),

        gone_runs as (
            delete from expiration.run as r
            using doomed as d
            where r.id = d.id
            returning r.*
        ),

        batch_sums as (
            insert into expiration.purged_batch_total as t (job, phase, batches, expired, failed, skipped_locked)
            select
                case when b.phase = 'Lead' then 'lead-expiration' else 'booking-expiration' end,
                b.phase,
                count(*) filter (where b.claimed > 0),
                sum(b.expired),
                sum(b.failed),
                sum(b.skipped_locked)
            from gone_batches as b
            group by b.phase
            on conflict on constraint purged_batch_total_pkey do update
            set
                batches = t.batches + excluded.batches,
                expired = t.expired + excluded.expired,
                failed = t.failed + excluded.failed,
                skipped_locked = t.skipped_locked + excluded.skipped_locked
        ),

        run_sums as (
            insert into expiration.purged_run_total as t (job, status, runs, seconds)
            select r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision
            from gone_runs as r
            group by r.job, r.status
            on conflict on constraint purged_run_total_pkey do update
            set runs = t.runs + excluded.runs, seconds = t.seconds + excluded.seconds
        )

        select (select count(*) from gone_runs), (select count(*) from gone_batches)
        into purge_history.runs, purge_history.batches;
    end if;
    return next;
end
$function$;

comment on function expiration.purge_history(integer) is
'Deletes finished runs older than job.history_retention with their batches, at most max_runs a job, and adds what they had counted to the purged totals, all in one statement, so that batch_total and run_total never move. Returns what it deleted.';

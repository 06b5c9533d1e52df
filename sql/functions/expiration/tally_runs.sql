create or replace function expiration.tally_runs(max_runs integer default 1000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_runs bigint := bigint '0';
begin
    if tally_runs.max_runs is null or tally_runs.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.tally_runs', 'greater than 0',
            coalesce(tally_runs.max_runs::text, 'null')
        );
    end if;
    -- the tally has a row a phase, and its numbers are in the order of commits: one at a time, and nobody waits
    if not pg_try_advisory_xact_lock(hashtext('expiration.tally_runs')) then
        return v_runs;
    end if;
    with waiting as materialized (
        select r.id
        from expiration.run as r
        where r.tally_number is null and r.status <> 'running'
        order by r.finished_at
        limit tally_runs.max_runs
    ),

    runs as (
        update expiration.run as r
        set tally_number = nextval('expiration.tally_number_seq')
        from waiting as w
        where r.id = w.id
        returning r.job, r.driver, r.status, r.started_at, r.finished_at, r.retries
    ),

    batches as (
        update expiration.batch as b
        set tallied = true
        from expiration.run as r
        where
            b.run_id = r.id
            and not b.tallied
            -- a run that was taken for abandoned may have had a batch in hand
            and (r.tally_number is not null or r.id in (select w.id from waiting as w))
        returning
            r.job, b.phase, b.claimed, b.expired, b.failed, b.skipped_locked, b.lateness, b.lateness_seconds
    ),

    batch_sums as (
        insert into expiration.batch_tally as t (
            job, phase, batches, expired, failed, skipped_locked, lateness_seconds
        )
        select
            b.job, b.phase, count(*) filter (where b.claimed > 0), sum(b.expired), sum(b.failed),
            sum(b.skipped_locked), coalesce(sum(b.lateness_seconds::numeric), 0)
        from batches as b
        group by b.job, b.phase
        on conflict on constraint batch_tally_pkey do update
        set
            batches = t.batches + excluded.batches,
            expired = t.expired + excluded.expired,
            failed = t.failed + excluded.failed,
            skipped_locked = t.skipped_locked + excluded.skipped_locked,
            lateness_seconds = t.lateness_seconds + excluded.lateness_seconds
    ),

    lateness_sums as (
        insert into expiration.lateness_tally as t (job, phase, bucket, items)
        select b.job, b.phase, l.bucket, sum(l.items)
        from batches as b
        cross join lateral unnest(b.lateness) with ordinality as l (items, bucket)
        where l.items > 0
        group by b.job, b.phase, l.bucket
        on conflict on constraint lateness_tally_pkey do update set items = t.items + excluded.items
    ),

    run_sums as (
        insert into expiration.run_tally as t (job, status, runs, seconds, retries)
        select
            r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision,
            sum(r.retries)
        from runs as r
        group by r.job, r.status
        on conflict on constraint run_tally_pkey do update
        set
            runs = t.runs + excluded.runs,
            seconds = t.seconds + excluded.seconds,
            retries = t.retries + excluded.retries
    ),

    duration_sums as (
        insert into expiration.duration_tally as t (job, bucket, runs, seconds)
        select
            r.job, expiration.duration_bucket(r.finished_at - r.started_at), count(*),
            sum(greatest(extract(epoch from r.finished_at - r.started_at), 0))
        from runs as r
        where r.driver <> 'sql' and r.status in ('completed', 'capped', 'stopped', 'failed')
        group by 1, 2
        on conflict on constraint duration_tally_pkey do update
        set runs = t.runs + excluded.runs, seconds = t.seconds + excluded.seconds
    )

    select count(*) into v_runs from runs as r;
    return v_runs;
end
$function$;

comment on function expiration.tally_runs(integer) is
'Adds runs that are over, at most max_runs, and their batches to the tallies, all in one statement, so that the totals never move by it. Returns how many. Every start of a run does it, and upkeep; of two at once the second does nothing.';

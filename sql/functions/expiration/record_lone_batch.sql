create or replace function expiration.record_lone_batch(
    run_id uuid,
    job text,
    phase text,
    as_of timestamptz,
    batch_size integer,
    started_at timestamptz,
    result expiration.batch_result
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into expiration.run (
        id, job, driver, status, reason, as_of, started_at, finished_at, expired, skipped_locked, failed, batches,
        batch_size, max_batches_per_cycle, max_duration
    )
    select
        record_lone_batch.run_id, j.name, 'sql',
        case when result.drained then 'completed' else 'capped' end,
        case when not result.drained then 'capped' when result.skipped_locked > 0 then 'locked' else 'drained' end,
        record_lone_batch.as_of, record_lone_batch.started_at, clock_timestamp(),
        result.expired, result.skipped_locked, result.failed, (result.claimed > 0)::integer,
        record_lone_batch.batch_size, 1, j.max_duration
    from expiration.job as j
    where j.name = record_lone_batch.job;

    insert into expiration.batch (
        run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, capped,
        oldest_deadline, last_deadline, last_id, phase_expired, failures, lateness, lateness_seconds
    )
    values (
        record_lone_batch.run_id, 1, record_lone_batch.phase, 'claim', record_lone_batch.started_at,
        result.claimed, result.expired, result.failed, result.skipped_locked, result.drained, not result.drained,
        result.oldest_deadline, result.last_deadline, result.last_id, result.expired, result.failures,
        result.lateness, result.lateness_seconds
    );
end
$function$;

comment on function expiration.record_lone_batch(uuid, text, text, timestamptz, integer, timestamptz, expiration.batch_result) is
'Books a batch that somebody called outside of any run as a run of its own (driver sql), so that the totals stay exact.';

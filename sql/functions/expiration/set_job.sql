create or replace function expiration.set_job(
    job text,
    period interval default null,
    batch_size integer default null,
    max_batches_per_cycle integer default null,
    max_duration interval default null,
    retry_failures_per_cycle integer default null,
    max_transient_retries integer default null,
    stale_after interval default null,
    history_retention interval default null
) returns expiration.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_bad record;
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.set_job');
    select c.* into v_bad
    from (values
        ('Period', 'from 1 second to 1 day', period between interval '1 second' and interval '1 day', period::text),
        ('BatchSize', 'from 1 to 100000', batch_size between 1 and 100000, batch_size::text),
        ('MaxBatchesPerCycle', 'greater than 0', max_batches_per_cycle > 0, max_batches_per_cycle::text),
        ('MaxDuration', 'greater than 0', max_duration > interval '0', max_duration::text),
        ('RetryFailuresPerCycle', '0 or greater', retry_failures_per_cycle >= 0, retry_failures_per_cycle::text),
        ('MaxTransientRetries', 'from 0 to 100', max_transient_retries between 0 and 100, max_transient_retries::text),
        ('StaleAfter', 'at least 10 seconds', stale_after >= interval '10 seconds', stale_after::text),
        ('HistoryRetention', 'at least 1 hour', history_retention >= interval '1 hour', history_retention::text)
    ) as c (setting, wanted, is_right, given)
    where not c.is_right
    limit 1;
    if found then
        perform expiration.raise_error('invalid_setting', v_bad.setting, v_bad.wanted, v_bad.given);
    end if;

    update expiration.job as j
    set
        period = coalesce(set_job.period, j.period),
        batch_size = coalesce(set_job.batch_size, j.batch_size),
        max_batches_per_cycle = coalesce(set_job.max_batches_per_cycle, j.max_batches_per_cycle),
        max_duration = coalesce(set_job.max_duration, j.max_duration),
        retry_failures_per_cycle = coalesce(set_job.retry_failures_per_cycle, j.retry_failures_per_cycle),
        max_transient_retries = coalesce(set_job.max_transient_retries, j.max_transient_retries),
        stale_after = coalesce(set_job.stale_after, j.stale_after),
        history_retention = coalesce(set_job.history_retention, j.history_retention),
        updated_at = clock_timestamp(),
        updated_by = session_user
    where j.name = set_job.job
    returning j.* into v_job;
    return v_job;
end
$function$;

comment on function expiration.set_job(text, interval, integer, integer, interval, integer, integer, interval, interval) is
'Changes settings of a job; what is left null stays. Runs at work keep theirs. After a change of the period install the cron jobs again.';

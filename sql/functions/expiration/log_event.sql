create or replace view expiration.log_event as
select
    r.id as run_id,
    r.job,
    r.driver,
    r.started_at as at,
    0 as ordinal,
    'info'::text as level,
    case when r.job = 'lead-expiration' then 'job.started' else 'cycle started' end as event,
    case
        when r.job = 'lead-expiration' then jsonb_build_object('jobRunId', r.id, 'Now', r.as_of)
        else jsonb_build_object('runId', r.id, 'AsOf', r.as_of)
    end as fields
from expiration.run as r
where r.status <> 'skipped' and r.driver <> 'sql'
union all
select
    r.id,
    r.job,
    r.driver,
    b.finished_at,
    b.number * 2,
    'info',
    case when r.job = 'lead-expiration' then 'batch.processed' else 'batch selected' end,
    case
        when r.job = 'lead-expiration' then jsonb_build_object(
            'jobRunId', r.id,
            'size', b.expired,
            'elapsedMs', round(extract(epoch from b.finished_at - b.started_at) * 1000, 3)
        )
        else jsonb_build_object('runId', r.id, 'phase', b.phase, 'count', b.claimed, 'expired', b.expired)
    end
    || jsonb_build_object('batch', b.number, 'step', b.step, 'failed', b.failed, 'skippedLocked', b.skipped_locked)
from expiration.batch as b
inner join expiration.run as r on b.run_id = r.id
union all
select
    r.id,
    r.job,
    r.driver,
    b.finished_at,
    b.number * 2 + 1,
    'error',
    case when r.job = 'lead-expiration' then 'item.failed' else 'item failed' end,
    case
        when r.job = 'lead-expiration'
            then jsonb_build_object('jobRunId', r.id, 'LeadId', f.id, 'error', f.message, 'sqlstate', f.sqlstate)
        else jsonb_build_object(
            'runId', r.id, 'BookingId', f.id, 'phase', b.phase, 'exception', f.message, 'sqlstate', f.sqlstate
        )
    end
from expiration.batch as b
inner join expiration.run as r on b.run_id = r.id
cross join lateral jsonb_to_recordset(b.failures) as f (id uuid, sqlstate text, message text)
where b.failures is not null
union all
select
    r.id,
    r.job,
    r.driver,
    r.finished_at,
    2147483647,
    case
        when r.status in ('failed', 'abandoned') then 'error'
        when r.status in ('capped', 'skipped', 'stopped') then 'warning'
        else 'info'
    end,
    case when r.job = 'lead-expiration' then 'job.' else 'cycle ' end
    || case when r.status in ('failed', 'abandoned', 'skipped') then r.status else 'completed' end,
    case
        when r.status in ('failed', 'abandoned', 'skipped') then jsonb_build_object('error', r.error, 'sqlstate', r.sqlstate)
        when r.job = 'lead-expiration' then jsonb_build_object(
            'ExpiredCount', r.expired,
            'BatchesProcessed', r.batches,
            'cappedByMaxBatches', r.reason = 'capped',
            'elapsedMs', round(extract(epoch from r.finished_at - r.started_at) * 1000, 3)
        )
        else (expiration.run_result(r) - 'SkippedLockedCount') || jsonb_build_object('SkippedLocked', r.skipped_locked)
    end
    || jsonb_build_object(
        case when r.job = 'lead-expiration' then 'jobRunId' else 'runId' end, r.id,
        'status', r.status,
        'reason', r.reason,
        'failed', r.failed
    )
from expiration.run as r
where r.finished_at is not null and r.driver <> 'sql';

comment on view expiration.log_event is
'The documents'' log events (L15, B12) of every run, whoever drove it: order by at, ordinal. What the runner prints and pg_cron''s runs leave behind is the same.';

create or replace function expiration.run_result(run expiration.run) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
return case
    when (run).job = 'lead-expiration' then jsonb_build_object(
        'ExpiredCount', (run).expired,
        'BatchesProcessed', (run).batches,
        'Elapsed', ((run).finished_at - (run).started_at)::text,
        'CappedByMaxBatches', (run).reason is not distinct from 'capped'
    )
    else (
        select jsonb_build_object(
            'ReserveExpiredCount', coalesce(sum(b.expired) filter (where b.phase = 'Reserve'), 0),
            'BookingExpiredCount', coalesce(sum(b.expired) filter (where b.phase = 'Booking'), 0),
            'SkippedLockedCount', coalesce(sum(b.skipped_locked), 0),
            'DurationMs', round(extract(epoch from (run).finished_at - (run).started_at) * 1000, 3)
        )
        from expiration.batch as b
        where b.run_id = (run).id
    )
end;

comment on function expiration.run_result(expiration.run) is
'The result of a cycle as the documents name it (L13, B11): ExpiredCount, BatchesProcessed, Elapsed, CappedByMaxBatches; or ReserveExpiredCount, BookingExpiredCount, SkippedLockedCount, DurationMs.';

create or replace function expiration.run_batch(run_id uuid) returns expiration.batch_report
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_started_at constant timestamptz := clock_timestamp();
    v_beginning constant uuid := uuid '00000000-0000-0000-0000-000000000000';
    v_run expiration.run;
    v_job expiration.job;
    v_number integer;
    v_phase record;
    v_step text;
    v_last expiration.batch;
    v_budget bigint;
    v_left bigint;
    v_size integer;
    v_result expiration.batch_result;
    v_capped boolean;
    v_report expiration.batch_report;
begin
    select r.* into v_run from expiration.run as r where r.id = run_batch.run_id;
    if not found then
        perform expiration.raise_error('unknown_run', coalesce(run_batch.run_id::text, 'null'));
    elsif v_run.status <> 'running' then
        perform expiration.raise_error('run_is_over', run_batch.run_id::text, v_run.status);
    end if;
    select j.* into strict v_job from expiration.job as j where j.name = v_run.job;

    v_report.state := 'done';
    v_report.reason := case
        when v_run.stop_requested_at is not null then 'stop requested'
        when v_job.paused_at is not null then 'paused'
        when v_started_at - v_run.started_at > v_run.max_duration then 'out of time'
    end;
    if v_report.reason is not null then
        return v_report;
    end if;

    -- a deferred constraint speaks up while the bad row can still be told from the good ones
    set constraints all immediate;

    select coalesce(max(b.number), 0) + 1 into v_number from expiration.batch as b where b.run_id = v_run.id;
    v_budget := v_run.batch_size::bigint * v_run.max_batches_per_cycle;

    -- healthy items of every phase first, then those that failed before
    foreach v_step in array array['claim', 'retry'] loop
        for v_phase in select p.phase from expiration.phases(v_run.job) as p order by p.ordinal loop
            -- where this step of the phase stands, and what the phase has expired so far
            select b.* into v_last
            from expiration.batch as b
            where b.run_id = v_run.id and b.phase = v_phase.phase
            order by b.number desc
            limit 1;
            v_last.phase_expired := coalesce(v_last.phase_expired, 0);
            v_left := v_budget - v_last.phase_expired;

            if v_step = 'claim' then
                continue when v_left <= 0 or v_last.step = 'retry' or v_last.drained;
                v_size := least(v_run.batch_size, v_left)::integer;
                if v_run.job = 'lead-expiration' then
                    v_result := crm.expire_leads_batch(
                        v_run.as_of, v_size, v_run.id, v_number,
                        coalesce(v_last.last_deadline, '-infinity'), coalesce(v_last.last_id, v_beginning)
                    );
                else
                    v_result := crm.expire_bookings_batch(
                        v_phase.phase, v_run.as_of, v_size, v_run.id, v_number,
                        coalesce(v_last.last_deadline, '-infinity'), coalesce(v_last.last_id, v_beginning)
                    );
                end if;
                v_capped := not v_result.drained
                    and v_last.phase_expired + v_result.expired >= v_budget
                    and expiration.has_due(
                        v_run.job, v_phase.phase, v_run.as_of, v_result.last_deadline, v_result.last_id
                    );
            else
                if v_last.step is distinct from 'retry' then
                    v_last.retry_failures := 0;
                    v_last.drained := false;
                end if;
                -- within the cap; a backlog that uses it up by itself does not keep them waiting for good
                continue when v_left <= 0 and v_last.step = 'retry' and v_last.expired > 0;
                v_size := least(
                    v_run.batch_size,
                    v_job.retry_failures_per_cycle - v_last.retry_failures,
                    nullif(greatest(v_left, 0), 0)
                )::integer;
                continue when v_last.drained or v_size <= 0;
                v_result := expiration.expire_batch(
                    v_run.job, v_phase.phase, 'retry', v_run.as_of, v_size, v_run.id, v_number,
                    failed_before => v_run.started_at
                );
                v_last.retry_failures := v_last.retry_failures + v_result.failed;
                -- nothing came of it, not even a failure (a trigger that suppresses the change): once a cycle will do
                v_result.drained := v_result.drained
                    or v_result.claimed > 0 and v_result.expired = 0 and v_result.failed = 0;
                v_capped := false;
            end if;
            if v_result.claimed = 0 and v_result.skipped_locked = 0 and v_result.drained then
                -- the batch before was full and the last, as is known only now: not looked for again
                update expiration.batch as b
                set drained = true
                where b.run_id = v_run.id and b.number = v_last.number and v_last.step = v_step;
                continue;
            end if;

            insert into expiration.batch (
                run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, capped,
                oldest_deadline, last_deadline, last_id, phase_expired, retry_failures, failures, lateness, lateness_seconds
            )
            values (
                v_run.id, v_number, v_phase.phase, v_step, v_started_at, v_result.claimed, v_result.expired,
                v_result.failed, v_result.skipped_locked, v_result.drained, v_capped, v_result.oldest_deadline,
                v_result.last_deadline, v_result.last_id, v_last.phase_expired + v_result.expired,
                coalesce(v_last.retry_failures, 0), v_result.failures, v_result.lateness, v_result.lateness_seconds
            );
            v_report.state := 'more';
            v_report.number := v_number;
            v_report.phase := v_phase.phase;
            v_report.step := v_step;
            v_report.claimed := v_result.claimed;
            v_report.expired := v_result.expired;
            v_report.failed := v_result.failed;
            v_report.skipped_locked := v_result.skipped_locked;
            v_report.elapsed_ms := (extract(epoch from clock_timestamp() - v_started_at) * 1000)::double precision;
            v_report.expired_ids := v_result.expired_ids;
            v_report.failures := v_result.failures;
            return v_report;
        end loop;
    end loop;

    select
        case
            when bool_or(b.capped) then 'capped'
            when sum(b.skipped_locked) > 0 then 'locked'
            else 'drained'
        end
    into v_report.reason
    from expiration.batch as b
    where b.run_id = v_run.id;
    return v_report;
end
$function$;

comment on function expiration.run_batch(uuid) is
'Does one batch of a run in the caller''s transaction. state more: commit and call again. state done: call finish_run with the reason: drained, locked (only items that others hold are left), capped, out of time, stop requested or paused.';

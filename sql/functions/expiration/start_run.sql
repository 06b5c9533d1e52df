create or replace function expiration.start_run(
    job text,
    driver text default 'psql',
    instance text default null,
    as_of timestamptz default null,
    batch_size integer default null,
    max_batches_per_cycle integer default null,
    max_duration interval default null,
    whole_statement boolean default false,
    pooled boolean default false
) returns expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_as_of constant timestamptz := coalesce(start_run.as_of, now());
    v_instance constant text := coalesce(
        start_run.instance, case when start_run.driver = 'psql' then pg_backend_pid()::text else '' end
    );
    v_job expiration.job;
    v_run expiration.run;
    v_other expiration.run;
    v_is_first boolean;
    v_due_before bigint;
    v_status text := 'running';
    v_reason text;
    v_explanation text;
    v_sqlstate text;
    v_message text;
begin
    if start_run.job is null or start_run.driver is null or whole_statement is null or pooled is null then
        perform expiration.raise_error(
            'null_argument',
            case
                when start_run.job is null then 'job'
                when start_run.driver is null then 'driver'
                when whole_statement is null then 'whole_statement'
                else 'pooled'
            end,
            'expiration.start_run'
        );
    end if;
    select j.* into v_job from expiration.job as j where j.name = start_run.job;
    if not found then
        perform expiration.raise_error('unknown_job', start_run.job);
    end if;
    if start_run.driver = 'sql' then
        perform expiration.raise_error(
            'invalid_argument', 'driver', 'expiration.start_run', 'the driver''s name, other than sql', start_run.driver
        );
    end if;
    v_job.batch_size := coalesce(start_run.batch_size, v_job.batch_size);
    v_job.max_batches_per_cycle := coalesce(start_run.max_batches_per_cycle, v_job.max_batches_per_cycle);
    v_job.max_duration := coalesce(start_run.max_duration, v_job.max_duration);
    if v_job.batch_size <= 0 then
        perform expiration.raise_error('invalid_setting', 'BatchSize', 'greater than 0', v_job.batch_size::text);
    end if;
    if v_job.max_batches_per_cycle <= 0 then
        perform expiration.raise_error(
            'invalid_setting', 'MaxBatchesPerCycle', 'greater than 0', v_job.max_batches_per_cycle::text
        );
    end if;
    if v_job.max_duration <= interval '0' then
        perform expiration.raise_error('invalid_setting', 'MaxDuration', 'greater than 0', v_job.max_duration::text);
    end if;
    if v_as_of > clock_timestamp() then
        perform expiration.raise_error('future_as_of', v_as_of::text, clock_timestamp()::text);
    end if;

    -- of two starts of one driver at once the second is an overlap, however long the first has to wait for a table
    v_is_first := pg_try_advisory_xact_lock(hashtext('expiration.start_run'), hashtext(
        start_run.job || '/' || start_run.driver || '/' || v_instance
    ));
    -- one session does one run at a time: what this one left behind is over
    if not start_run.pooled then
        perform expiration.close_run(
            r.id, 'abandoned', 'backend gone', expiration.last_sign_of_life(r.id), null,
            format('its session (backend %s) went on to another run', r.backend_pid)
        )
        from expiration.run as r
        where
            r.status = 'running'
            and r.job = start_run.job
            and r.backend_pid = pg_backend_pid()
            and r.backend_start = (select a.backend_start from pg_stat_activity as a where a.pid = pg_backend_pid());
    end if;
    perform expiration.reap_runs(start_run.job);
    begin
        perform expiration.tally_runs();
    exception
        -- expiring goes before counting; upkeep does the same, and fails with it
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate, v_message = message_text;
            raise warning 'runs were not tallied: % (%)', v_message, v_sqlstate;
    end;

    select r.* into v_other
    from expiration.run as r
    where r.status = 'running' and r.job = start_run.job and r.driver = start_run.driver and r.instance = v_instance
    limit 1;
    -- pg_cron keeps the ticks, at full minutes, that an overlong run covers, and runs them when it has ended
    if v_other.id is null and start_run.driver = 'pg_cron' and v_job.period >= interval '1 minute' then
        select r.* into v_other
        from expiration.run as r
        where
            r.job = start_run.job
            and r.driver = start_run.driver
            and r.instance = v_instance
            and r.status <> 'skipped'
            and r.started_at < date_trunc('minute', clock_timestamp())
            and r.finished_at >= date_trunc('minute', clock_timestamp())
        order by r.started_at desc
        limit 1;
    end if;
    if v_job.paused_at is not null then
        v_status := 'skipped';
        v_reason := 'paused';
        v_explanation := format(
            'paused by %s since %s%s; resume by: select expiration.resume(%L)',
            v_job.paused_by, v_job.paused_at, ': ' || v_job.paused_reason, v_job.name
        );
    elsif not v_is_first then
        v_status := 'skipped';
        v_reason := 'overlap';
        v_explanation := format('another run of %s by %s is being started at this moment', v_job.name, start_run.driver);
    elsif v_other.id is not null then
        v_status := 'skipped';
        v_reason := 'overlap';
        v_explanation := format(
            'the run of %s that %s started at %s %s (%s)',
            v_job.name, v_other.driver, v_other.started_at,
            case v_other.status when 'running' then 'still works' else 'was at work at this tick' end, v_other.id
        );
    end if;

    -- apart, so that a start that is skipped needs no lock of the items' tables
    if v_status = 'running' then
        select count(*) into v_due_before
        from expiration.due_item as d
        where d.job = start_run.job and d.deadline < v_as_of;
    end if;
    insert into expiration.run (
        job, driver, instance, status, reason, as_of, finished_at, due_before,
        batch_size, max_batches_per_cycle, max_duration, error, backend_start, statement_start
    )
    values (
        start_run.job,
        start_run.driver,
        v_instance,
        v_status,
        v_reason,
        v_as_of,
        case when v_status = 'skipped' then clock_timestamp() end,
        v_due_before,
        v_job.batch_size,
        v_job.max_batches_per_cycle,
        v_job.max_duration,
        v_explanation,
        case when not start_run.pooled then (
            select a.backend_start from pg_stat_activity as a where a.pid = pg_backend_pid()
        ) end,
        case when start_run.whole_statement then statement_timestamp() end
    )
    returning * into v_run;
    return v_run;
end
$function$;

comment on function expiration.start_run(text, text, text, timestamptz, integer, integer, interval, boolean, boolean) is
'Starts a cycle: reads the clock once (as_of, which may be set back for a rehearsal and never ahead), checks the settings, marks abandoned runs, and returns the run. Its status is skipped, and nothing is to be done, when the job is paused or the previous run of the same driver and instance still works. Arguments left null come from expiration.job. whole_statement: the calling statement is the whole run. pooled: the backend may change between calls.';

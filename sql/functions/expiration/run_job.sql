create or replace procedure expiration.run_job(job pg_catalog.text, as_of pg_catalog.timestamptz default null)
language plpgsql
as $procedure$
-- A procedure that commits can neither be SECURITY DEFINER nor pin its search_path: every name is qualified, and what
-- needs rights or a safe path stands in the functions that it calls.
declare
    v_run expiration.run;
    v_report expiration.batch_report;
    v_retry pg_catalog.bool;
    v_delay pg_catalog.interval := pg_catalog.interval '0';
    v_sqlstate pg_catalog.text;
    v_message pg_catalog.text;
    v_hint pg_catalog.text;
begin
    commit;
    set transaction isolation level read committed;
    v_run := expiration.start_run(
        job => run_job.job, driver => expiration.current_driver(), as_of => run_job.as_of, whole_statement => true
    );
    -- between a COMMIT and SET TRANSACTION nothing may be evaluated: planning an expression takes a snapshot
    if v_run.status operator(pg_catalog.=) 'skipped' then
        commit;
        raise notice '% skipped: %', run_job.job, v_run.error;
        return;
    end if;
    commit;

    loop
        set transaction isolation level read committed;
        v_sqlstate := null;
        begin
            perform pg_catalog.pg_sleep_for(v_delay);
            v_delay := pg_catalog.interval '0';
            v_report := expiration.run_batch(v_run.id);
        exception
            -- nothing is hidden: whatever it is goes on record, and is raised again
            when query_canceled or assert_failure or others then
                get stacked diagnostics
                    v_sqlstate = returned_sqlstate, v_message = message_text, v_hint = pg_exception_hint;
        end;
        if v_sqlstate is null then
            exit when v_report.state operator(pg_catalog.=) 'done';
            commit;
        else
            select f.retry, f.delay into v_retry, v_delay
            from expiration.batch_failed(v_run.id, v_sqlstate, v_message) as f;
            if not v_retry then
                commit;
                raise exception using
                    errcode = v_sqlstate,
                    message = v_message,
                    detail = pg_catalog.format(
                        'Run %s of %s failed; what it had committed stays, and the next one takes the rest.',
                        v_run.id, run_job.job
                    ),
                    hint = case
                        when v_hint operator(pg_catalog.<>) '' then v_hint
                        else 'Mend what the message names; see also: select * from expiration.status.'
                    end;
            end if;
            commit;
        end if;
    end loop;

    v_run := expiration.finish_run(v_run.id, v_report.reason);
    commit;
    raise notice '%: % expired, % failed, % skipped as locked, % batches: %',
        run_job.job, v_run.expired, v_run.failed, v_run.skipped_locked, v_run.batches, v_run.reason;
end
$procedure$;

comment on procedure expiration.run_job(text, timestamptz) is
'One whole cycle of a job, a COMMIT after every batch: what pg_cron runs and what a DBA types. Not inside a transaction block. A failure is on record in expiration.run and raised again.';

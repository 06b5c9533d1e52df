-- Who may do what. Loaded last, as the owner; monitor is a part of runner, runner of operator (bootstrap.sql).

-- PUBLIC gets nothing of ours; what a team has in a schema of the same name stays as it is
do $public$
declare
    v_object record;
begin
    for v_object in
        select 'schema' as kind, n.oid::regnamespace::text as name
        from pg_namespace as n
        where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and n.nspowner = 'crm_owner'::regrole
        union all
        select 'routine', p.oid::regprocedure::text
        from pg_proc as p
        inner join pg_namespace as n on p.pronamespace = n.oid
        where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and p.proowner = 'crm_owner'::regrole
        union all
        select 'table', c.oid::regclass::text
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')
            and c.relowner = 'crm_owner'::regrole
            and c.relkind in ('r', 'p', 'v', 'S')
    loop
        execute format('revoke all on %s %s from public', v_object.kind, v_object.name);
    end loop;
end
$public$;

-- monitor: sees runs, batches, failed items, settings, the outbox's partitions; no domain data but ids
grant usage on schema expiration, outbox, chessboard, notifications to crm_monitor;
grant select on
    expiration.job, expiration.run, expiration.batch, expiration.failed_item, expiration.batch_tally,
    expiration.run_tally, expiration.lateness_tally, expiration.duration_tally, expiration.trace_position,
    expiration.status, expiration.history, expiration.failed, expiration.log_event, expiration.batch_total,
    expiration.run_total, expiration.lateness_histogram, expiration.duration_histogram, expiration.job_figures,
    expiration.due_figures, outbox.partition, outbox.partition_figures, outbox.settings, outbox.slot,
    outbox.slot_state, outbox.slot_status, outbox.slot_figures, outbox.replay_log, chessboard.parked_total,
    notifications.parked_total
to crm_monitor;
grant execute on function
    expiration.schema_version(), expiration.errors(), expiration.phases(text),
    expiration.raise_error(text, text[]), expiration.check_job(text, text),
    expiration.is_alive(expiration.run), expiration.last_sign_of_life(uuid), expiration.run_result(expiration.run),
    expiration.log_item(uuid), expiration.batch_item(uuid, integer, integer), expiration.cron_job(),
    expiration.lateness_bounds(), expiration.duration_bounds(), expiration.duration_bucket(interval),
    expiration.preview(text, timestamptz, integer),
    outbox.partition_start(oid), outbox.is_publication_right(text), outbox.traceparent(uuid, integer)
to crm_monitor;

-- runner: the run protocol, the batches, upkeep, its own entries in pg_cron
grant execute on function
    expiration.current_driver(),
    expiration.start_run(text, text, text, timestamptz, integer, integer, interval, boolean, boolean),
    expiration.run_batch(uuid),
    expiration.finish_run(uuid, text),
    expiration.batch_failed(uuid, text, text),
    expiration.reap_runs(text),
    expiration.tally_runs(integer),
    expiration.take_traces(text, integer),
    expiration.mark_traced(text, bigint),
    expiration.purge_history(integer),
    expiration.purge_cron_history(interval),
    expiration.cron_schedule(text, interval, boolean),
    expiration.cron_plan(boolean),
    expiration.cron_install(),
    expiration.cron_uninstall(),
    outbox.make_partitions(integer),
    outbox.drop_partitions(),
    outbox.purge_inboxes(integer),
    crm.expire_leads_batch(timestamptz, integer, uuid, integer, timestamptz, uuid),
    crm.expire_bookings_batch(text, timestamptz, integer, uuid, integer, timestamptz, uuid)
to crm_runner;
grant execute on procedure expiration.run_job(text, timestamptz), expiration.run_upkeep() to crm_runner;

-- operator: the control plane
grant execute on function
    expiration.pause(text, text),
    expiration.resume(text),
    expiration.stop(text),
    expiration.retry_failed(text, uuid),
    expiration.set_job(text, interval, integer, integer, interval, integer, integer, interval, interval),
    outbox.preview_replay(uuid[], uuid, text, timestamptz, timestamptz),
    outbox.replay(text, uuid[], uuid, text, timestamptz, timestamptz, integer),
    outbox.register_slot(text, text, text),
    outbox.forget_slot(text),
    outbox.open_gap(text),
    outbox.close_gap(text)
to crm_operator;
grant execute on function chessboard.dismiss_parked(bigint), notifications.dismiss_parked(bigint) to crm_operator;
-- cdc verify and recover compare the outbox with Kafka; what an event says is none of their business
grant select (id, seq, created_at, topic, correlation_id, lsn, replay_id) on outbox.event to crm_operator;

-- app: the CRM's own work; the jobs' tables are none of its business
grant select on crm.effective_leads, crm.effective_bookings to crm_app;
do $app$
declare
    v_grant record;
begin
    -- a table, or the schema, that belongs to a team has the team's grants
    for v_grant in
        select g.privilege, c.oid::regclass::text as name
        from (values
            ('select', 'leads'), ('select', 'bookings'), ('select', 'deals'), ('select', 'fixations'),
            ('select', 'deal_timeline'), ('select', 'audit_log'),
            ('insert', 'leads'), ('insert', 'deals'), ('insert', 'fixations')
        ) as g (privilege, name)
        inner join pg_class as c on c.relname = g.name and c.relnamespace = 'crm'::regnamespace
        where c.relowner = 'crm_owner'::regrole
    loop
        execute format('grant %s on %s to crm_app', v_grant.privilege, v_grant.name);
    end loop;
    if (select n.nspowner = 'crm_owner'::regrole from pg_namespace as n where n.nspname = 'crm') then
        grant usage on schema crm to crm_runner, crm_app;
    end if;
end
$app$;
grant execute on function
    crm.confirm_booking(uuid, integer, timestamptz, text, uuid),
    crm.extend_booking(uuid, integer, timestamptz, text, uuid),
    crm.cancel_booking(uuid, integer, text, uuid),
    crm.reserve_property(uuid, uuid, uuid, timestamptz, text, uuid),
    crm.extend_lead(uuid, integer, timestamptz, text, uuid)
to crm_app;

-- consumers: each its own schema's functions and what they have put aside
grant usage on schema chessboard to crm_chessboard;
grant select on chessboard.release, chessboard.parked, chessboard.parked_total to crm_chessboard;
grant execute on function
    chessboard.free_property(uuid, uuid, uuid, uuid, text, timestamptz, text),
    chessboard.park(text, integer, bigint, uuid, text, jsonb, bytea, text)
to crm_chessboard;
grant usage on schema notifications to crm_notifications;
grant select on notifications.notice, notifications.parked, notifications.parked_total to crm_notifications;
grant execute on function
    notifications.file_notice(uuid, uuid, uuid, uuid, timestamptz, text),
    notifications.park(text, integer, bigint, uuid, text, jsonb, bytea, text),
    notifications.take_unsent(integer),
    notifications.mark_sent(uuid),
    notifications.mark_failed(uuid, text)
to crm_notifications;
-- behind the consumers', so that an upgrade leaves them in the same order
grant select on chessboard.parked, notifications.parked to crm_operator;

-- ready at once: today's partition and those of the days ahead; upkeep makes the next ones
do $partitions$
begin
    perform outbox.make_partitions();
end
$partitions$;

-- Who may do what. Loaded last, as the owner; monitor is a part of runner, runner of operator (bootstrap.sql).

revoke all on all functions in schema crm, outbox, expiration from public;
revoke all on all procedures in schema crm, outbox, expiration from public;
revoke all on all tables in schema crm, outbox, expiration from public;
revoke all on schema crm, outbox, expiration from public;

-- monitor: sees runs, batches, failed items, settings, the outbox's partitions; no domain data but ids
grant usage on schema expiration, outbox to crm_monitor;
grant select on
    expiration.job, expiration.run, expiration.batch, expiration.failed_item, expiration.purged_batch_total,
    expiration.purged_run_total, expiration.status, expiration.history, expiration.failed, expiration.log_event,
    expiration.batch_total, expiration.run_total, outbox.partition, outbox.settings
to crm_monitor;
grant execute on function
    expiration.schema_version(), expiration.errors(), expiration.phases(text),
    expiration.raise_error(text, text[]), expiration.check_job(text, text),
    expiration.is_alive(expiration.run), expiration.last_sign_of_life(uuid), expiration.run_result(expiration.run),
    expiration.log_item(uuid), expiration.cron_job(),
    expiration.preview(text, timestamptz, integer)
to crm_monitor;

-- runner: the run protocol, the batches, upkeep, its own entries in pg_cron
grant usage on schema crm to crm_runner;
grant execute on function
    expiration.current_driver(),
    expiration.start_run(text, text, text, timestamptz, integer, integer, interval, boolean, boolean),
    expiration.run_batch(uuid),
    expiration.finish_run(uuid, text),
    expiration.batch_failed(uuid, text, text),
    expiration.reap_runs(text),
    expiration.purge_history(integer),
    expiration.purge_cron_history(interval),
    expiration.cron_schedule(text, interval, boolean),
    expiration.cron_plan(boolean),
    expiration.cron_install(),
    expiration.cron_uninstall(),
    outbox.make_partitions(integer),
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
    expiration.set_job(text, interval, integer, integer, interval, integer, integer, interval, interval)
to crm_operator;

-- app: the CRM's own work; the jobs' tables are none of its business
grant usage on schema crm to crm_app;
grant select on
    crm.leads, crm.bookings, crm.deals, crm.fixations, crm.deal_timeline, crm.audit_log,
    crm.effective_leads, crm.effective_bookings
to crm_app;
grant insert on crm.leads, crm.deals, crm.fixations to crm_app;
grant execute on function
    crm.confirm_booking(uuid, integer, timestamptz, text, uuid),
    crm.extend_booking(uuid, integer, timestamptz, text, uuid),
    crm.cancel_booking(uuid, integer, text, uuid),
    crm.reserve_property(uuid, uuid, uuid, timestamptz, text, uuid),
    crm.extend_lead(uuid, integer, timestamptz, text, uuid)
to crm_app;

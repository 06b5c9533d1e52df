-- The engine: settings, runs, batches, failed items, and the totals that outlive purged history.
-- depends: 0002.outbox

create table expiration.job (
    name text not null,
    period interval not null,
    batch_size integer not null,
    max_batches_per_cycle integer not null,
    max_duration interval not null,
    retry_failures_per_cycle integer not null default 100,
    max_transient_retries integer not null default 3,
    stale_after interval not null default interval '10 minutes',
    history_retention interval not null default interval '30 days',
    paused_at timestamptz,
    paused_by text,
    paused_reason text,
    updated_at timestamptz not null default now(),
    updated_by text not null default session_user,
    constraint job_pkey primary key (name),
    constraint job_period_is_positive check (period >= interval '1 second' and period <= interval '1 day'),
    constraint job_batch_size_is_positive check (batch_size between 1 and 100000),
    constraint job_max_batches_is_positive check (max_batches_per_cycle > 0),
    constraint job_max_duration_is_positive check (max_duration > interval '0'),
    constraint job_retry_failures_is_not_negative check (retry_failures_per_cycle >= 0),
    constraint job_transient_retries_is_sane check (max_transient_retries between 0 and 100),
    constraint job_stale_after_is_sane check (stale_after >= interval '10 seconds'),
    constraint job_history_retention_is_sane check (history_retention >= interval '1 hour')
);
comment on table expiration.job is 'Settings of the jobs, one row each: the control plane. Change them by expiration.set_job, pause and resume.';
comment on column expiration.job.name is 'lead-expiration or booking-expiration.';
comment on column expiration.job.period is 'Time between two cycles.';
comment on column expiration.job.batch_size is 'Rows a batch, so a transaction.';
comment on column expiration.job.max_batches_per_cycle is 'Full batches a cycle and phase; what is left waits for the next cycle.';
comment on column expiration.job.max_duration is 'A cycle that has worked this long starts no further batch.';
comment on column expiration.job.retry_failures_per_cycle is 'A cycle stops retrying failed items once so many failed again.';
comment on column expiration.job.max_transient_retries is 'How often in a cycle a batch is tried again after a deadlock, a lock timeout or a serialization failure.';
comment on column expiration.job.stale_after is 'A run that gave no sign of life for so long counts as abandoned where its backend cannot be asked.';
comment on column expiration.job.history_retention is 'How long runs and batches are kept; totals stay exact.';
comment on column expiration.job.paused_at is 'Since when it is paused; null when it is not.';
comment on column expiration.job.paused_by is 'Who paused it.';
comment on column expiration.job.paused_reason is 'Why.';
comment on column expiration.job.updated_at is 'When a setting was last changed.';
comment on column expiration.job.updated_by is 'By whom.';

insert into expiration.job (name, period, batch_size, max_batches_per_cycle, max_duration)
values
    ('lead-expiration', interval '1 hour', 500, 200, interval '55 minutes'),
    ('booking-expiration', interval '1 minute', 200, 1, interval '30 seconds');

create table expiration.run (
    id uuid not null default gen_random_uuid(),
    job text not null,
    driver text not null,
    instance text not null default '',
    status text not null default 'running',
    reason text,
    as_of timestamptz not null,
    started_at timestamptz not null default clock_timestamp(),
    finished_at timestamptz,
    expired bigint not null default 0,
    skipped_locked bigint not null default 0,
    failed bigint not null default 0,
    batches integer not null default 0,
    due_before bigint,
    batch_size integer not null,
    max_batches_per_cycle integer not null,
    max_duration interval not null,
    retries integer not null default 0,
    sqlstate text,
    error text,
    stop_requested_at timestamptz,
    stop_requested_by text,
    started_by text not null default session_user,
    backend_pid integer not null default pg_backend_pid(),
    backend_start timestamptz,
    statement_start timestamptz,
    constraint run_pkey primary key (id),
    constraint run_job_fkey foreign key (job) references expiration.job (name),
    constraint run_status_is_known check (
        status in ('running', 'completed', 'capped', 'stopped', 'failed', 'abandoned', 'skipped')
    ),
    constraint run_finished_has_time check ((status = 'running') = (finished_at is null)),
    constraint run_failed_has_sqlstate check (status <> 'failed' or sqlstate is not null)
);
comment on table expiration.run is 'One row a cycle, whoever drove it.';
comment on column expiration.run.id is 'The run: job run id, correlation id and trace id in one.';
comment on column expiration.run.job is 'The job.';
comment on column expiration.run.driver is 'pg_cron, pyrunner, psql (the procedure called by hand) or sql (a batch called alone).';
comment on column expiration.run.instance is 'Which of several such drivers; at most one run of a job, driver and instance works at a time.';
comment on column expiration.run.status is 'running, completed, capped, stopped, failed, abandoned or skipped.';
comment on column expiration.run.reason is 'Why it ended: drained, locked, capped, out of time, stop requested, paused, overlap, error, backend gone.';
comment on column expiration.run.as_of is 'The cut-off and the timestamp of every transition of the cycle.';
comment on column expiration.run.started_at is 'When it started, by the clock.';
comment on column expiration.run.finished_at is 'When it ended, by the clock.';
comment on column expiration.run.expired is 'Items expired.';
comment on column expiration.run.skipped_locked is 'Due items passed over because another transaction held them.';
comment on column expiration.run.failed is 'Items that failed alone.';
comment on column expiration.run.batches is 'Batches that claimed at least one item.';
comment on column expiration.run.due_before is 'Due items before the cycle, poison among them.';
comment on column expiration.run.batch_size is 'Batch size in force.';
comment on column expiration.run.max_batches_per_cycle is 'Cap in force.';
comment on column expiration.run.max_duration is 'Longest duration in force.';
comment on column expiration.run.retries is 'Batches tried again after a transient fault.';
comment on column expiration.run.sqlstate is 'SQLSTATE that failed it.';
comment on column expiration.run.error is 'Message that failed it.';
comment on column expiration.run.stop_requested_at is 'When somebody asked it to stop.';
comment on column expiration.run.stop_requested_by is 'Who.';
comment on column expiration.run.started_by is 'Login that started it.';
comment on column expiration.run.backend_pid is 'Backend that started it.';
comment on column expiration.run.backend_start is 'Start of that backend; null where a pooler may change the backend between calls.';
comment on column expiration.run.statement_start is 'Start of the CALL that is the whole run; null for drivers that call batch by batch.';
create index ix_run_job_started_at on expiration.run (job, started_at desc);
comment on index expiration.ix_run_job_started_at is 'History of a job, newest first.';
create index ix_run_running on expiration.run (job) where status = 'running';
comment on index expiration.ix_run_running is 'The few runs at work.';
create index ix_run_job_success on expiration.run (job, finished_at desc)
where status in ('completed', 'capped') and driver <> 'sql';
comment on index expiration.ix_run_job_success is 'The last successful cycle of a job.';

create table expiration.batch (
    run_id uuid not null,
    number integer not null,
    phase text not null,
    step text not null,
    started_at timestamptz not null,
    finished_at timestamptz not null default clock_timestamp(),
    claimed integer not null,
    expired integer not null,
    failed integer not null,
    skipped_locked integer not null,
    drained boolean not null,
    capped boolean not null default false,
    oldest_deadline timestamptz,
    last_deadline timestamptz,
    last_id uuid,
    phase_expired bigint not null,
    retry_failures integer not null default 0,
    failures jsonb,
    constraint batch_pkey primary key (run_id, number),
    constraint batch_run_id_fkey foreign key (run_id) references expiration.run (id) on delete cascade,
    constraint batch_step_is_known check (step in ('claim', 'retry'))
);
comment on table expiration.batch is 'One row a batch, appended in the batch''s own transaction; nobody ever updates it.';
comment on column expiration.batch.run_id is 'The run.';
comment on column expiration.batch.number is 'From 1.';
comment on column expiration.batch.phase is 'Lead, Reserve or Booking.';
comment on column expiration.batch.step is 'claim (due items in deadline order) or retry (items that failed before).';
comment on column expiration.batch.started_at is 'When it started, by the clock.';
comment on column expiration.batch.finished_at is 'When its work was done, just before COMMIT.';
comment on column expiration.batch.claimed is 'Items claimed.';
comment on column expiration.batch.expired is 'Items expired, each with one event.';
comment on column expiration.batch.failed is 'Items that failed alone.';
comment on column expiration.batch.skipped_locked is 'Due items in the batch''s range that another transaction held.';
comment on column expiration.batch.drained is 'Nothing of this step is left behind it.';
comment on column expiration.batch.capped is 'The cycle''s cap was reached here while due items were left.';
comment on column expiration.batch.oldest_deadline is 'Oldest deadline claimed.';
comment on column expiration.batch.last_deadline is 'Cursor: deadline of the last item claimed.';
comment on column expiration.batch.last_id is 'Cursor: id of the last item claimed.';
comment on column expiration.batch.phase_expired is 'Items expired so far in this run and phase.';
comment on column expiration.batch.retry_failures is 'Retried items that failed again so far in this run and phase.';
comment on column expiration.batch.failures is 'The failed items: array of {id, sqlstate, message}.';

create table expiration.failed_item (
    job text not null,
    phase text not null,
    item_id uuid not null,
    first_failed_at timestamptz not null,
    last_failed_at timestamptz not null,
    attempts integer not null default 1,
    sqlstate text not null,
    message text not null,
    run_id uuid not null,
    row_xmin xid not null,
    -- the item first: a look-up of items must not be able to walk all of a job, whatever the statistics say
    constraint failed_item_pkey primary key (item_id, job, phase)
);
comment on table expiration.failed_item is 'Poison: items that failed alone. A verdict on one version of the row: whoever changes the row frees it for the next cycle.';
comment on column expiration.failed_item.job is 'The job.';
comment on column expiration.failed_item.phase is 'Lead, Reserve or Booking.';
comment on column expiration.failed_item.item_id is 'The lead or booking.';
comment on column expiration.failed_item.first_failed_at is 'When it first failed.';
comment on column expiration.failed_item.last_failed_at is 'When it last failed.';
comment on column expiration.failed_item.attempts is 'How often it was tried.';
comment on column expiration.failed_item.sqlstate is 'SQLSTATE of the last failure.';
comment on column expiration.failed_item.message is 'Message of the last failure.';
comment on column expiration.failed_item.run_id is 'Run of the last failure.';
comment on column expiration.failed_item.row_xmin is 'Version (xmin) of the row that failed; a row with another one is claimed as any other.';
-- this column alone, for the same reason
create index ix_failed_item_last_failed_at on expiration.failed_item (last_failed_at);
comment on index expiration.ix_failed_item_last_failed_at is 'Failed items, longest waiting first.';

create table expiration.purged_batch_total (
    job text not null,
    phase text not null,
    batches bigint not null,
    expired bigint not null,
    failed bigint not null,
    skipped_locked bigint not null,
    constraint purged_batch_total_pkey primary key (job, phase)
);
comment on table expiration.purged_batch_total is 'What the purged batches had counted.';
comment on column expiration.purged_batch_total.job is 'The job.';
comment on column expiration.purged_batch_total.phase is 'Lead, Reserve or Booking.';
comment on column expiration.purged_batch_total.batches is 'Batches that claimed at least one item.';
comment on column expiration.purged_batch_total.expired is 'Items expired.';
comment on column expiration.purged_batch_total.failed is 'Failures of single items.';
comment on column expiration.purged_batch_total.skipped_locked is 'Due items passed over because another transaction held them.';

create table expiration.purged_run_total (
    job text not null,
    status text not null,
    runs bigint not null,
    seconds double precision not null,
    constraint purged_run_total_pkey primary key (job, status)
);
comment on table expiration.purged_run_total is 'What the purged runs had counted.';
comment on column expiration.purged_run_total.job is 'The job.';
comment on column expiration.purged_run_total.status is 'How the runs ended.';
comment on column expiration.purged_run_total.runs is 'Number of runs.';
comment on column expiration.purged_run_total.seconds is 'Their durations, summed.';

create type expiration.claim as (
    ids uuid[],
    deadlines timestamptz[],
    is_full boolean
);
comment on type expiration.claim is 'Items locked for a batch, in deadline order, and whether the batch is full, so that more may be due behind it.';

create type expiration.batch_result as (
    claimed integer,
    expired integer,
    failed integer,
    skipped_locked integer,
    drained boolean,
    oldest_deadline timestamptz,
    last_deadline timestamptz,
    last_id uuid,
    expired_ids uuid[],
    failures jsonb
);
comment on type expiration.batch_result is 'What a batch did. last_deadline and last_id are the cursor for the next; failures is an array of {id, sqlstate, message} or null.';

create type expiration.batch_report as (
    state text,
    reason text,
    number integer,
    phase text,
    step text,
    claimed integer,
    expired integer,
    failed integer,
    skipped_locked integer,
    elapsed_ms double precision,
    expired_ids uuid[],
    failures jsonb
);
comment on type expiration.batch_report is 'What run_batch says: state more or done; with done the reason; otherwise what the batch did, elapsed_ms in milliseconds.';

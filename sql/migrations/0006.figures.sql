-- Figures that cost the same at any length of history: what is over is tallied once, and only what is not yet is summed.
-- depends: 0005.delivery

alter table expiration.job add column created_at timestamptz not null default now();
comment on column expiration.job.created_at is 'When it came into being; a job that has never succeeded is measured from then on.';

alter type expiration.batch_result add attribute lateness integer[], add attribute lateness_seconds double precision;
comment on type expiration.batch_result is 'What a batch did. last_deadline and last_id are the cursor for the next; failures is an array of {id, sqlstate, message} or null; lateness counts the expired items by bucket (expiration.lateness_bounds), null when there is none.';

-- what there is counts as tallied, since its sums are taken below, at once; what comes does not
create sequence expiration.tally_number_seq;
comment on sequence expiration.tally_number_seq is 'Numbers of tallied runs.';
alter table expiration.run add column tally_number bigint default 0;
alter table expiration.run alter column tally_number set default null;
comment on column expiration.run.tally_number is 'Place in the order in which runs were tallied, which is an order of commits; null until then, 0 for runs from before there was a tally.';
alter table expiration.batch
add column lateness integer[],
add column lateness_seconds double precision,
add column tallied boolean not null default true;
alter table expiration.batch alter column tallied set default false;
comment on column expiration.batch.lateness is 'Items expired, by bucket of lateness (as_of - deadline): see expiration.lateness_bounds; null when none expired.';
comment on column expiration.batch.lateness_seconds is 'Lateness of the items expired, summed; infinite deadlines left out.';
comment on column expiration.batch.tallied is 'Its counts are in expiration.batch_tally.';
update expiration.run set tally_number = null where status = 'running';
update expiration.batch as b
set tallied = false
from expiration.run as r
where b.run_id = r.id and r.status = 'running';

-- null in what there is: its events are looked for by the clock
alter table expiration.batch add column transaction_start timestamptz;
alter table expiration.batch alter column transaction_start set default now();
comment on column expiration.batch.transaction_start is 'Start of its transaction: outbox.event.created_at of its events. Null in batches from before 0.3.0.';

create index ix_run_tally_number on expiration.run (tally_number);
comment on index expiration.ix_run_tally_number is 'Runs in the order of their tally, and the few that wait for it.';
create index ix_batch_not_tallied on expiration.batch (run_id) where not tallied;
comment on index expiration.ix_batch_not_tallied is 'The few batches that wait to be tallied.';
create index ix_run_job_worked on expiration.run (job, started_at desc)
where driver <> 'sql' and status not in ('skipped', 'running');
comment on index expiration.ix_run_job_worked is 'The last cycle of a job that did something, however many were skipped since.';

alter table expiration.purged_batch_total rename to batch_tally;
alter table expiration.batch_tally rename constraint purged_batch_total_pkey to batch_tally_pkey;
-- sums are exact: one in floating point can move back when its parts are added in another order
alter table expiration.batch_tally add column lateness_seconds numeric not null default 0;
comment on table expiration.batch_tally is 'Counts of the batches of runs that are over, kept when history is purged.';
comment on column expiration.batch_tally.lateness_seconds is 'Lateness of the items expired, summed; infinite deadlines left out.';
alter table expiration.purged_run_total rename to run_tally;
alter table expiration.run_tally rename constraint purged_run_total_pkey to run_tally_pkey;
alter table expiration.run_tally add column retries bigint not null default 0;
comment on table expiration.run_tally is 'Counts of the runs that are over, kept when history is purged.';
comment on column expiration.run_tally.retries is 'Batches tried again after a transient fault.';

create table expiration.lateness_tally (
    job text not null,
    phase text not null,
    bucket integer not null,
    items bigint not null,
    constraint lateness_tally_pkey primary key (job, phase, bucket)
);
comment on table expiration.lateness_tally is 'Items expired by the batches of runs that are over, by lateness.';
comment on column expiration.lateness_tally.job is 'The job.';
comment on column expiration.lateness_tally.phase is 'Lead, Reserve or Booking.';
comment on column expiration.lateness_tally.bucket is 'From 1: see expiration.lateness_bounds; the last one has no bound.';
comment on column expiration.lateness_tally.items is 'Items in this bucket alone.';

create table expiration.duration_tally (
    job text not null,
    bucket integer not null,
    runs bigint not null,
    seconds numeric not null,
    constraint duration_tally_pkey primary key (job, bucket)
);
comment on table expiration.duration_tally is 'Cycles that are over, by duration: those of drivers, neither skipped nor abandoned.';
comment on column expiration.duration_tally.job is 'The job.';
comment on column expiration.duration_tally.bucket is 'From 1: see expiration.duration_bounds; the last one has no bound.';
comment on column expiration.duration_tally.runs is 'Cycles in this bucket alone.';
comment on column expiration.duration_tally.seconds is 'Their durations, summed; one that a clock set back made negative counts as none.';

create table expiration.trace_position (
    name text not null,
    tally_number bigint not null,
    updated_at timestamptz not null default clock_timestamp(),
    constraint trace_position_pkey primary key (name)
);
comment on table expiration.trace_position is 'How far the runs have been sent as traces, one row a destination.';
comment on column expiration.trace_position.name is 'The destination.';
comment on column expiration.trace_position.tally_number is 'expiration.run.tally_number of the last run sent.';
comment on column expiration.trace_position.updated_at is 'When it was last moved on.';

insert into expiration.batch_tally as t (job, phase, batches, expired, failed, skipped_locked)
select
    r.job, b.phase, count(*) filter (where b.claimed > 0), sum(b.expired), sum(b.failed), sum(b.skipped_locked)
from expiration.batch as b
inner join expiration.run as r on b.run_id = r.id
where b.tallied
group by r.job, b.phase
on conflict on constraint batch_tally_pkey do update
set
    batches = t.batches + excluded.batches,
    expired = t.expired + excluded.expired,
    failed = t.failed + excluded.failed,
    skipped_locked = t.skipped_locked + excluded.skipped_locked;

insert into expiration.run_tally as t (job, status, runs, seconds, retries)
select r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision, sum(r.retries)
from expiration.run as r
where r.tally_number is not null
group by r.job, r.status
on conflict on constraint run_tally_pkey do update
set runs = t.runs + excluded.runs, seconds = t.seconds + excluded.seconds, retries = excluded.retries;

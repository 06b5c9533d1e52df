create or replace function expiration.errors()
returns table (sqlstate text, name text, message text, hint text)
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $function$
    values
    -- settings and arguments
    ('XP001', 'invalid_setting', '%s must be %s, and is %s',
        'See select * from expiration.job; change it by expiration.set_job.'),
    ('XP002', 'future_as_of', 'as_of is %s, which is later than the database''s clock (%s): nothing may expire early',
        'Leave as_of out, or give a time that has passed.'),
    ('XP003', 'unknown_job', 'there is no job %s',
        'The jobs are lead-expiration and booking-expiration.'),
    ('XP004', 'unknown_phase', 'there is no phase %s of bookings',
        'The phases are Reserve and Booking.'),
    ('XP005', 'null_argument', '%s of %s may not be null',
        'Give a value, or leave the argument out where it has a default.'),
    ('XP006', 'unknown_run', 'there is no run %s',
        'See select * from expiration.history; finished runs are purged after job.history_retention.'),
    ('XP007', 'run_is_over', 'run %s is over (%s): it can do no further batch',
        'Start another one: call expiration.run_job(...).'),
    ('XP008', 'wrong_isolation', 'the transaction is %s, and expiring needs read committed',
        'begin isolation level read committed; or call expiration.run_job, which sees to it by itself.'),
    ('XP009', 'invalid_deadline', 'the deadline of %s may not be %s: %s',
        'Give a finite time that lies ahead.'),
    ('XP010', 'append_only', '%s of %s is refused: the outbox is append only',
        'Append a new event instead; delivered partitions are dropped whole.'),
    ('XP011', 'cron_missing', 'pg_cron is not installed in database %s%s',
        'In the database named by cron.database_name: create extension pg_cron; it must stand in shared_preload_libraries.'),
    ('XP012', 'inexpressible_period', 'pg_cron cannot run %s every %s; the nearest periods it can are %s',
        'Change it by expiration.set_job(job => ..., period => ...), or let pyrunner worker drive the job.'),
    ('XP013', 'no_such_failed_item', 'item %s of job %s is not on the list of failed items',
        'See select * from expiration.failed_item.'),
    ('XP014', 'invalid_argument', '%s of %s must be %s, and is %s',
        'See the comment of the function: \df+ in psql.'),
    ('XP015', 'rehearsal_passed', 'item %s can be changed',
        'Internal: it ends a rehearsal and never reaches a caller.'),
    ('XP016', 'slot_lost', 'replication slot %s of the outbox is %s: no partition is dropped, since the outbox may be the only copy',
        'pyrunner cdc recover makes it anew and sends what was not delivered; where nobody reads it any more: outbox.forget_slot.'),
    ('XP017', 'too_many_events', 'more than %s events match, so none is replayed',
        'Narrow it down (see outbox.preview_replay), or give a larger max_events.'),
    ('XP018', 'nothing_chosen', 'nothing says which events',
        'Give event_ids, aggregate_id, topic, since or until.'),
    ('XP019', 'no_such_event', 'no event of the outbox matches, so none is replayed',
        'See outbox.preview_replay; what was dropped after outbox.settings.retention is gone.'),
    ('XP020', 'publication_differs', 'publication %s publishes something else than INSERTs into outbox.event through its root',
        'Drop it, or give another name.'),
    ('XP021', 'slot_gap', 'replication slot %s of the outbox was made or registered when events were there already, and nobody has compared these with Kafka: no partition is dropped',
        'pyrunner cdc recover compares, and sends what was not delivered; to give that up: outbox.close_gap.'),
    -- the domain's guards
    ('XP101', 'lead_not_found', 'there is no lead %s',
        'Look its id up in crm.leads.'),
    ('XP102', 'booking_not_found', 'there is no booking %s',
        'Look its id up in crm.bookings.'),
    ('XP103', 'version_conflict', 'CRM_VERSION_CONFLICT: %s %s has version %s, and not the expected %s',
        'Somebody changed it meanwhile: read it again and decide anew.'),
    ('XP104', 'invalid_transition', 'CRM_INVALID_TRANSITION: %s %s is %s, so it cannot be changed by %s',
        'Terminal states never change; see the comments of the commands.'),
    ('XP105', 'property_not_available', 'CRM_PROPERTY_OBJECT_NOT_AVAILABLE: property object %s is kept by another booking',
        'It becomes free once that booking has ended and, where it expired, the chessboard has taken note of that (chessboard.release).')
$function$;

comment on function expiration.errors() is
'Every SQLSTATE of our own, with its message (a format() template) and hint. Class XP: 0xx the engine, 1xx guards of the domain.';

-- From the outbox to Kafka and on to the consumers: slots that must be there, retention, replay, and the consumers' own tables.
-- depends: 0004.claim

alter table outbox.event add column replay_id uuid;
comment on column outbox.event.replay_id is 'The replay that appended the event once more; null at its first publication.';

create table outbox.slot (
    name text not null,
    publication text not null,
    connector text not null,
    created_at timestamptz not null default now(),
    created_by text not null default session_user,
    constraint slot_pkey primary key (name)
);
comment on table outbox.slot is 'Replication slots that read the outbox and are expected to be there: as long as one is missing or lost, no partition is dropped.';
comment on column outbox.slot.name is 'The slot, as in pg_replication_slots.';
comment on column outbox.slot.publication is 'The publication that it reads.';
comment on column outbox.slot.connector is 'The connector that reads from it.';
comment on column outbox.slot.created_at is 'When it was registered.';
comment on column outbox.slot.created_by is 'Who registered it.';

create table outbox.sealed_partition (
    partition text not null,
    sealed_at timestamptz not null default now(),
    lsn pg_lsn not null,
    constraint sealed_partition_pkey primary key (partition)
);
comment on table outbox.sealed_partition is 'Partitions past their retention to which nobody was writing: once every slot has confirmed the position of the seal, all their events are delivered.';
comment on column outbox.sealed_partition.partition is 'The partition, a table of schema outbox.';
comment on column outbox.sealed_partition.sealed_at is 'When it was sealed.';
comment on column outbox.sealed_partition.lsn is 'Position in the log then; every transaction that had written to the partition had committed before it.';

create table outbox.replay_log (
    id uuid not null default gen_random_uuid(),
    requested_at timestamptz not null default now(),
    requested_by text not null default session_user,
    reason text not null,
    event_ids uuid[],
    aggregate_id uuid,
    topic text,
    since timestamptz,
    until timestamptz,
    events bigint not null,
    constraint replay_log_pkey primary key (id),
    constraint replay_log_has_a_reason check (reason <> ''),
    constraint replay_log_events_is_positive check (events > 0)
);
comment on table outbox.replay_log is 'Who had which events published once more, when and why.';
comment on column outbox.replay_log.id is 'The replay: outbox.event.replay_id, and the header replayed in Kafka.';
comment on column outbox.replay_log.requested_at is 'When.';
comment on column outbox.replay_log.requested_by is 'By whom.';
comment on column outbox.replay_log.reason is 'Why, in the words of whoever asked.';
comment on column outbox.replay_log.event_ids is 'The events asked for by their ids.';
comment on column outbox.replay_log.aggregate_id is 'The lead or booking whose events were asked for.';
comment on column outbox.replay_log.topic is 'The topic whose events were asked for.';
comment on column outbox.replay_log.since is 'Events appended from then on.';
comment on column outbox.replay_log.until is 'Events appended before then.';
comment on column outbox.replay_log.events is 'How many events it appended.';

-- What the property chessboard and the notifications keep: each writes in its own schema alone.
create table chessboard.inbox (
    event_id uuid not null,
    topic text not null,
    received_at timestamptz not null default now(),
    constraint inbox_pkey primary key (event_id)
);
comment on table chessboard.inbox is 'Events that have had their effect; one that comes again has none.';
comment on column chessboard.inbox.event_id is 'The event.';
comment on column chessboard.inbox.topic is 'The topic that it came by.';
comment on column chessboard.inbox.received_at is 'When it had its effect.';

create table chessboard.release (
    booking_id uuid not null,
    property_object_id uuid not null,
    tenant_id uuid not null,
    phase text not null,
    event_id uuid,
    expired_at timestamptz not null,
    released_at timestamptz not null default now(),
    constraint release_pkey primary key (booking_id)
);
comment on table chessboard.release is 'Expired bookings whose property object the chessboard has freed for sale. An object with an expired booking that is not here is not for sale yet.';
comment on column chessboard.release.booking_id is 'The booking that had kept the object.';
comment on column chessboard.release.property_object_id is 'The property object.';
comment on column chessboard.release.tenant_id is 'The tenant of both.';
comment on column chessboard.release.phase is 'Reserve or Booking.';
comment on column chessboard.release.event_id is 'The event that freed it; null for what had expired before there was a chessboard.';
comment on column chessboard.release.expired_at is 'When the booking expired.';
comment on column chessboard.release.released_at is 'When the object was freed.';
create index ix_release_property_object_id on chessboard.release (property_object_id);
comment on index chessboard.ix_release_property_object_id is 'The releases of a property object.';

create table notifications.inbox (
    event_id uuid not null,
    topic text not null,
    received_at timestamptz not null default now(),
    constraint inbox_pkey primary key (event_id)
);
comment on table notifications.inbox is 'Events that have had their effect; one that comes again has none.';
comment on column notifications.inbox.event_id is 'The event.';
comment on column notifications.inbox.topic is 'The topic that it came by.';
comment on column notifications.inbox.received_at is 'When it had its effect.';

create table notifications.notice (
    event_id uuid not null,
    tenant_id uuid not null,
    lead_id uuid not null,
    agent_user_id uuid not null,
    kind text not null default 'ExtendLead',
    expired_at timestamptz not null,
    created_at timestamptz not null default now(),
    sent_at timestamptz,
    attempts integer not null default 0,
    last_attempt_at timestamptz,
    last_error text,
    constraint notice_pkey primary key (event_id),
    constraint notice_attempts_is_not_negative check (attempts >= 0)
);
comment on table notifications.notice is 'Notices to agents: this lead of yours has expired, extend it.';
comment on column notifications.notice.event_id is 'The event that it stems from; the idempotency key of its sending.';
comment on column notifications.notice.tenant_id is 'The tenant.';
comment on column notifications.notice.lead_id is 'The lead that expired.';
comment on column notifications.notice.agent_user_id is 'The agent to be told.';
comment on column notifications.notice.kind is 'ExtendLead.';
comment on column notifications.notice.expired_at is 'When the lead expired.';
comment on column notifications.notice.created_at is 'When the notice was filed.';
comment on column notifications.notice.sent_at is 'When it was sent; null as long as it was not.';
comment on column notifications.notice.attempts is 'How often its sending was tried in vain.';
comment on column notifications.notice.last_attempt_at is 'When it was last tried.';
comment on column notifications.notice.last_error is 'What the last try failed with.';
create index ix_notice_unsent on notifications.notice (created_at, event_id) where sent_at is null;
comment on index notifications.ix_notice_unsent is 'Notices to be sent, oldest first.';

do $parked$
declare
    v_schema text;
begin
    foreach v_schema in array array['chessboard', 'notifications'] loop
        execute format($ddl$
            create table %1$I.parked (
                id bigint generated always as identity,
                topic text not null,
                partition integer not null,
                kafka_offset bigint not null,
                event_id uuid,
                message_key text,
                headers jsonb not null,
                value bytea,
                reason text not null,
                parked_at timestamptz not null default now(),
                constraint parked_pkey primary key (id),
                constraint parked_once unique (topic, partition, kafka_offset)
            );
            comment on table %1$I.parked is 'Messages that could not be understood, put aside so that those behind them go on.';
            comment on column %1$I.parked.id is 'Number.';
            comment on column %1$I.parked.topic is 'Kafka topic.';
            comment on column %1$I.parked.partition is 'Its partition.';
            comment on column %1$I.parked.kafka_offset is 'Offset within the partition.';
            comment on column %1$I.parked.event_id is 'The event, where the message told.';
            comment on column %1$I.parked.message_key is 'Key of the message.';
            comment on column %1$I.parked.headers is 'Headers of the message.';
            comment on column %1$I.parked.value is 'The message as it came.';
            comment on column %1$I.parked.reason is 'What was wrong with it.';
            comment on column %1$I.parked.parked_at is 'When it was put aside.'
        $ddl$, v_schema);
    end loop;
end
$parked$;

-- whoever reserves a property object asks for its expired bookings; a team's own table may have an index for it already
do $index$
begin
    if not exists (
        select
        from pg_index as i
        inner join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where
            i.indrelid = 'crm.bookings'::regclass and a.attname = 'property_object_id'
            and (i.indpred is null or pg_get_expr(i.indpred, i.indrelid) ~ 'ReserveExpired')
    ) and (select c.relowner = 'crm_owner'::regrole from pg_class as c where c.oid = 'crm.bookings'::regclass) then
        create index ix_bookings_expired_property_object_id on crm.bookings (property_object_id)
        where status in ('ReserveExpired', 'BookingExpired');
        comment on index crm.ix_bookings_expired_property_object_id is 'Expired bookings of a property object, which the chessboard frees.';
    end if;
end
$index$;

-- what expired before there was a chessboard is for sale
insert into chessboard.release (booking_id, property_object_id, tenant_id, phase, expired_at)
select
    b.id, b.property_object_id, b.tenant_id,
    case b.status when 'BookingExpired' then 'Booking' else 'Reserve' end,
    coalesce(b.expired_at, b.updated_at)
from crm.bookings as b
where b.status in ('ReserveExpired', 'BookingExpired');

-- The transactional outbox: append only, a partition a day, dropped whole when it has been delivered.
-- depends: 0001.crm

create table outbox.event (
    seq bigint generated always as identity,
    id uuid not null default gen_random_uuid(),
    created_at timestamptz not null default now(),
    aggregate_type text not null,
    aggregate_id uuid not null,
    tenant_id uuid not null,
    event_type text not null,
    contract_version integer not null default 1,
    topic text not null,
    payload jsonb not null,
    correlation_id uuid,
    traceparent text,
    occurred_at timestamptz not null default now(),
    lsn pg_lsn not null default pg_current_wal_insert_lsn(),
    constraint event_pkey primary key (created_at, seq),
    constraint event_is_routable check (topic <> '' and event_type <> '' and aggregate_type <> ''),
    constraint event_contract_version_is_positive check (contract_version >= 1),
    constraint event_payload_is_object check (jsonb_typeof(payload) = 'object')
) partition by range (created_at);

comment on table outbox.event is 'Integration events, one row each, read from the log by Debezium. Append only: UPDATE is refused, partitions go whole.';
comment on column outbox.event.seq is 'Order of insertion; gaps are normal, and it is not the order of commit.';
comment on column outbox.event.id is 'Event id: what consumers tell repeats by. A replay appends the same id again.';
comment on column outbox.event.created_at is 'Start of the transaction that appended it; chooses the partition.';
comment on column outbox.event.aggregate_type is 'Lead or Booking.';
comment on column outbox.event.aggregate_id is 'The lead or booking; the key in Kafka.';
comment on column outbox.event.tenant_id is 'The tenant of the aggregate.';
comment on column outbox.event.event_type is 'Name of the event, such as LeadExpiredEvent.';
comment on column outbox.event.contract_version is 'Version of the payload''s contract.';
comment on column outbox.event.topic is 'Kafka topic.';
comment on column outbox.event.payload is 'The event as JSON: camelCase names, times in UTC by ISO 8601, no personal data.';
comment on column outbox.event.correlation_id is 'The run that caused it.';
comment on column outbox.event.traceparent is 'W3C trace context: the trace is the run, the parent span its batch.';
comment on column outbox.event.occurred_at is 'When it happened in the domain: the cut-off of the cycle.';
comment on column outbox.event.lsn is 'Position in the log at insertion: beyond a slot''s confirmed_flush_lsn it is not published yet.';

create index ix_event_lsn on outbox.event using brin (lsn) with (pages_per_range = 16);
comment on index outbox.ix_event_lsn is 'Unpublished events: those beyond a slot''s confirmed position.';

create table outbox.event_default partition of outbox.event default;
comment on table outbox.event_default is 'Catches events for which upkeep made no partition; should be empty.';

create table outbox.settings (
    only_row boolean not null default true,
    partitions_ahead integer not null default 7,
    retention interval not null default interval '7 days',
    constraint settings_pkey primary key (only_row),
    constraint settings_has_one_row check (only_row),
    constraint settings_partitions_ahead_is_sane check (partitions_ahead between 1 and 366),
    constraint settings_retention_is_positive check (retention > interval '0')
);
comment on table outbox.settings is 'Settings of the outbox: one row.';
comment on column outbox.settings.only_row is 'Keeps the table to one row.';
comment on column outbox.settings.partitions_ahead is 'How many days of partitions upkeep keeps ready beyond today.';
comment on column outbox.settings.retention is 'How long delivered partitions are kept.';
insert into outbox.settings default values;

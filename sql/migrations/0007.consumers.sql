-- What consumers keep: messages of a topic that was made anew are told apart, and ids of events go in the end.
-- depends: 0006.figures

do $consumers$
declare
    v_schema text;
begin
    foreach v_schema in array array['chessboard', 'notifications'] loop
        -- a topic that was made anew counts its offsets from 0 again
        execute format($ddl$
            alter table %1$I.parked add column digest text not null generated always as (md5(coalesce(value, '\x'))) stored;
            alter table %1$I.parked
                drop constraint parked_once,
                add constraint parked_once unique (topic, partition, kafka_offset, digest);
            comment on column %1$I.parked.digest is 'MD5 of the message: with topic, partition and offset it makes the message known again.';
            create index ix_inbox_received_at on %1$I.inbox using brin (received_at) with (pages_per_range = 32);
            comment on index %1$I.ix_inbox_received_at is 'Ids that may go.'
        $ddl$, v_schema);
    end loop;
end
$consumers$;

alter table outbox.settings
add column inbox_retention interval not null default interval '90 days',
add constraint settings_inbox_retention_is_sane check (inbox_retention >= interval '30 days');
comment on column outbox.settings.inbox_retention is 'How long consumers keep the ids of events that had their effect; longer than Kafka and the outbox keep the events.';

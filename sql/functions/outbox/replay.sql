create or replace function outbox.replay(
    reason text,
    event_ids uuid[] default null,
    aggregate_id uuid default null,
    topic text default null,
    since timestamptz default null,
    until timestamptz default null,
    max_events integer default 1000
) returns outbox.replay_log
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_id constant uuid := gen_random_uuid();
    v_events bigint;
    v_record outbox.replay_log;
begin
    if reason is null or max_events is null then
        perform expiration.raise_error(
            'null_argument', case when reason is null then 'reason' else 'max_events' end, 'outbox.replay'
        );
    elsif reason = '' or max_events < 1 then
        perform expiration.raise_error(
            'invalid_argument', case when reason = '' then 'reason' else 'max_events' end, 'outbox.replay',
            case when reason = '' then 'what somebody can read later' else 'greater than 0' end,
            case when reason = '' then 'empty' else max_events::text end
        );
    end if;

    insert into outbox.event (
        id, aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload, correlation_id,
        traceparent, occurred_at, replay_id
    )
    select
        p.id, p.aggregate_type, p.aggregate_id, p.tenant_id, p.event_type, p.contract_version, p.topic, p.payload,
        p.correlation_id, p.traceparent, p.occurred_at, v_id
    from outbox.preview_replay(event_ids, aggregate_id, topic, since, until) as p
    order by p.seq
    -- one more tells that there are too many
    limit max_events::bigint + 1;
    get diagnostics v_events = row_count;
    if v_events > max_events then
        perform expiration.raise_error('too_many_events', max_events::text);
    elsif v_events = 0 then
        perform expiration.raise_error('no_such_event');
    end if;

    insert into outbox.replay_log (id, reason, event_ids, aggregate_id, topic, since, until, events)
    values (
        v_id, replay.reason, replay.event_ids, replay.aggregate_id, replay.topic, replay.since, replay.until, v_events
    )
    returning * into v_record;
    return v_record;
end
$function$;

comment on function outbox.replay(text, uuid[], uuid, text, timestamptz, timestamptz, integer) is
'Publishes events once more: appends them again with their ids, so that consumers that have had them do nothing, and with replay_id, which Kafka carries as the header replayed. All that outbox.preview_replay shows, or nothing: XP017 beyond max_events. On record in outbox.replay_log.';

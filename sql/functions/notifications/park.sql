create or replace function notifications.park(
    topic text,
    partition integer,
    kafka_offset bigint,
    event_id uuid,
    message_key text,
    headers jsonb,
    value bytea,
    reason text
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into notifications.parked (topic, partition, kafka_offset, event_id, message_key, headers, value, reason)
    values (
        park.topic, park.partition, park.kafka_offset, park.event_id, park.message_key, coalesce(park.headers, '{}'),
        park.value, park.reason
    )
    on conflict on constraint parked_once do nothing;
    return found;
end
$function$;

comment on function notifications.park(text, integer, bigint, uuid, text, jsonb, bytea, text) is
'Puts aside a message that cannot be understood, with the reason; once, however often it is tried.';

create or replace function outbox.preview_replay(
    event_ids uuid[] default null,
    aggregate_id uuid default null,
    topic text default null,
    since timestamptz default null,
    until timestamptz default null
) returns setof outbox.event
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if num_nonnulls(event_ids, aggregate_id, topic, since, until) = 0 then
        perform expiration.raise_error('nothing_chosen');
    end if;
    return query
    select o.*
    from (
        -- as it was first appended, however often it was replayed
        select distinct on (e.id) e.*
        from outbox.event as e
        where
            (preview_replay.event_ids is null or e.id = any(preview_replay.event_ids))
            and (preview_replay.aggregate_id is null or e.aggregate_id = preview_replay.aggregate_id)
            and (preview_replay.topic is null or e.topic = preview_replay.topic)
            and (preview_replay.since is null or e.created_at >= preview_replay.since)
            and (preview_replay.until is null or e.created_at < preview_replay.until)
        order by e.id, e.seq
    ) as o
    order by o.seq;
end
$function$;

comment on function outbox.preview_replay(uuid[], uuid, text, timestamptz, timestamptz) is
'The events that outbox.replay would append once more, each once, in the order in which they were first appended; everything given must hold. Only what the outbox still has: see outbox.settings.retention.';

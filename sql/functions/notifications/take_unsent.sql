create or replace function notifications.take_unsent(max_notices integer default 1) returns setof notifications.notice
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    return query
    select n.*
    from notifications.notice as n
    where
        n.sent_at is null
        and (
            n.last_attempt_at is null
            or n.last_attempt_at + least(interval '1 second' * 2 ^ least(n.attempts - 1, 20), interval '5 minutes')
            <= clock_timestamp()
        )
    order by n.created_at, n.event_id
    limit take_unsent.max_notices
    for no key update skip locked;
end
$function$;

comment on function notifications.take_unsent(integer) is
'Locks notices to be sent, oldest first, passing over those that others are sending and those that failed a moment ago (1 s, 2 s, 4 s ... at most 5 min). Send them, call mark_sent or mark_failed, then commit.';

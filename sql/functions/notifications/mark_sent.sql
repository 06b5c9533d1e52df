create or replace function notifications.mark_sent(event_id uuid) returns void
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update notifications.notice as n
    set sent_at = clock_timestamp(), last_error = null
    where n.event_id = mark_sent.event_id and n.sent_at is null;
end
$function$;

comment on function notifications.mark_sent(uuid) is
'A notice was sent.';

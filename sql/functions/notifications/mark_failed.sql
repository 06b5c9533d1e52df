create or replace function notifications.mark_failed(event_id uuid, error text) returns void
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update notifications.notice as n
    set attempts = n.attempts + 1, last_attempt_at = clock_timestamp(), last_error = left(mark_failed.error, 1000)
    where n.event_id = mark_failed.event_id and n.sent_at is null;
end
$function$;

comment on function notifications.mark_failed(uuid, text) is
'A notice could not be sent; take_unsent gives it again after a while.';

create or replace function outbox.purge_inboxes(max_ids integer default 10000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_oldest timestamptz;
    v_chessboard bigint;
    v_notifications bigint;
begin
    if purge_inboxes.max_ids is null or purge_inboxes.max_ids < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_ids', 'outbox.purge_inboxes', 'greater than 0',
            coalesce(purge_inboxes.max_ids::text, 'null')
        );
    end if;
    -- an event that the outbox still has may be replayed
    select now() - greatest(s.inbox_retention, s.retention + interval '30 days') into v_oldest
    from outbox.settings as s;
    delete from chessboard.inbox as i
    where i.ctid = any(array(
        select j.ctid from chessboard.inbox as j where j.received_at < v_oldest limit max_ids for update skip locked
    ));
    get diagnostics v_chessboard = row_count;
    delete from notifications.inbox as i
    where i.ctid = any(array(
        select j.ctid from notifications.inbox as j where j.received_at < v_oldest limit max_ids for update skip locked
    ));
    get diagnostics v_notifications = row_count;
    return v_chessboard + v_notifications;
end
$function$;

comment on function outbox.purge_inboxes(integer) is
'Deletes ids of events that the consumers had longer ago than outbox.settings.inbox_retention, at most max_ids each; returns how many. An event that comes again after that changes nothing more: its booking is released, its notice filed.';

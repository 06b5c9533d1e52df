create or replace function outbox.refuse_update() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    perform expiration.raise_error('append_only', tg_op, format('%I.%I', tg_table_schema, tg_table_name));
    return null;
end
$function$;

comment on function outbox.refuse_update() is
'Trigger: an event that has been appended never changes.';

create or replace trigger event_is_append_only
before update on outbox.event
for each row execute function outbox.refuse_update();

comment on trigger event_is_append_only on outbox.event is
'An event that has been appended never changes.';

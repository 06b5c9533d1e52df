create or replace function outbox.forget_slot(name text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    delete from outbox.slot as s where s.name = forget_slot.name;
    return found;
end
$function$;

comment on function outbox.forget_slot(text) is
'Notes that a slot reads the outbox no longer, so that retention does not wait for it. Returns whether it was known. Drops no slot.';

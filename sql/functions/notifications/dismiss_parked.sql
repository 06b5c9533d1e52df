create or replace function notifications.dismiss_parked(id bigint) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    delete from notifications.parked as p where p.id = dismiss_parked.id;
    return found;
end
$function$;

comment on function notifications.dismiss_parked(bigint) is
'Takes a message off the list of those put aside, once somebody has seen to it: its cause is mended and the event was replayed, or it needs none. Returns whether it was there. Coming again, it is put aside again.';

create or replace function outbox.open_gap(name text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update outbox.slot as s set gap_since = now() where s.name = open_gap.name and s.gap_since is null;
    return found;
end
$function$;

comment on function outbox.open_gap(text) is
'Notes that a slot is about to be made anew: events from before may not have been delivered, so no partition is dropped until outbox.close_gap. Returns whether that is news.';

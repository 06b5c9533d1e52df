create or replace function outbox.close_gap(name text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update outbox.slot as s set gap_since = null where s.name = close_gap.name and s.gap_since is not null;
    return found;
end
$function$;

comment on function outbox.close_gap(text) is
'Notes that the events from before a slot was made have been compared with Kafka and sent where they were missing, or are given up: retention goes on. Returns whether there was a gap. pyrunner cdc recover does both.';

create or replace function outbox.register_slot(name text, publication text, connector text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_confirmed pg_lsn;
begin
    select r.confirmed_flush_lsn into v_confirmed
    from pg_replication_slots as r
    where r.slot_name = register_slot.name;
    insert into outbox.slot as s (name, publication, connector, gap_since)
    values (
        register_slot.name, register_slot.publication, register_slot.connector,
        case when exists (select from outbox.event as e where e.lsn < v_confirmed) then now() end
    )
    on conflict on constraint slot_pkey do update
    set publication = excluded.publication, connector = excluded.connector
    where (s.publication, s.connector) is distinct from (excluded.publication, excluded.connector);
    return found;
end
$function$;

comment on function outbox.register_slot(text, text, text) is
'Notes that a slot reads the outbox: from now on no partition is dropped before it has confirmed it, nor while it is missing or lost, nor, where events lie before it, until these have been compared with Kafka (outbox.close_gap). Returns whether anything changed. Makes no slot.';

create or replace function expiration.expire_items(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer,
    rehearsal boolean default false
) returns uuid[]
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if expire_items.phase = 'Lead' then
        return crm.expire_leads(claim, as_of, run_id, batch_number, rehearsal);
    end if;
    return crm.expire_bookings(phase, claim, as_of, run_id, batch_number, rehearsal);
end
$function$;

comment on function expiration.expire_items(text, expiration.claim, timestamptz, uuid, integer, boolean) is
'The transition of a phase: crm.expire_leads or crm.expire_bookings.';

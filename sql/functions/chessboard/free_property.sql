create or replace function chessboard.free_property(
    event_id uuid,
    booking_id uuid,
    property_object_id uuid,
    tenant_id uuid,
    phase text,
    expired_at timestamptz,
    topic text default 'pin.crm.booking-expired.v1'
) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into chessboard.inbox as i (event_id, topic)
    values (free_property.event_id, free_property.topic)
    on conflict on constraint inbox_pkey do nothing;
    if not found then
        return false;
    end if;
    insert into chessboard.release as r (booking_id, property_object_id, tenant_id, phase, event_id, expired_at)
    values (
        free_property.booking_id, free_property.property_object_id, free_property.tenant_id, free_property.phase,
        free_property.event_id, free_property.expired_at
    )
    on conflict on constraint release_pkey do nothing;
    return true;
end
$function$;

comment on function chessboard.free_property(uuid, uuid, uuid, uuid, text, timestamptz, text) is
'What the chessboard does about a BookingExpiredEvent: the property object that the booking kept is for sale again. Returns false where the event has had its effect before. The same booking by another event changes nothing more.';

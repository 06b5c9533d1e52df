create or replace function crm.lock_booking(booking_id uuid, expected_version integer) returns crm.bookings
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_booking crm.bookings;
begin
    select b.* into v_booking from crm.bookings as b where b.id = lock_booking.booking_id for no key update;
    if not found then
        perform expiration.raise_error('booking_not_found', booking_id::text);
    elsif v_booking.version <> expected_version then
        perform expiration.raise_error(
            'version_conflict', 'booking', booking_id::text, v_booking.version::text, expected_version::text
        );
    end if;
    return v_booking;
end
$function$;

comment on function crm.lock_booking(uuid, integer) is
'Locks a booking for a command; refuses one that is not there (XP102) or has another version (XP103). The jobs pass over it until the transaction ends.';

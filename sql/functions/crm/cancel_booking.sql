create or replace function crm.cancel_booking(
    booking_id uuid,
    expected_version integer,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.bookings
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.cancel_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment', 'Booked') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'cancel');
    end if;
    update crm.bookings as b
    set status = 'Cancelled', updated_at = now(), version = b.version + 1
    where b.id = cancel_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Cancel', 'BookingCancelled', v_before.status, actor, correlation_id);
end
$function$;

comment on function crm.cancel_booking(uuid, integer, text, uuid) is
'Manager''s command: an active booking becomes Cancelled, if it still has the expected version (XP103). Returns it.';

create or replace function crm.confirm_booking(
    booking_id uuid,
    expected_version integer,
    booking_expires_at timestamptz,
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
        'crm.confirm_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text,
        'booking_expires_at', booking_expires_at::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'confirm');
    end if;
    perform crm.check_deadline('booking', booking_id, booking_expires_at);
    update crm.bookings as b
    set
        status = 'Booked',
        booking_expires_at = confirm_booking.booking_expires_at,
        updated_at = now(),
        version = b.version + 1
    where b.id = confirm_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Confirm', 'BookingConfirmed', v_before.status, actor, correlation_id);
end
$function$;

comment on function crm.confirm_booking(uuid, integer, timestamptz, text, uuid) is
'Manager''s command: Reserved or AwaitingPayment becomes Booked until booking_expires_at, if the booking still has the expected version (XP103). Returns it.';

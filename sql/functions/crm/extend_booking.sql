create or replace function crm.extend_booking(
    booking_id uuid,
    expected_version integer,
    expires_at timestamptz,
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
        'crm.extend_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text,
        'expires_at', expires_at::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment', 'Booked') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'extend');
    end if;
    perform crm.check_deadline(
        'booking', booking_id, expires_at,
        case when v_before.status = 'Booked' then v_before.booking_expires_at else v_before.reserve_expires_at end
    );
    update crm.bookings as b
    set
        reserve_expires_at = case when b.status = 'Booked' then b.reserve_expires_at else extend_booking.expires_at end,
        booking_expires_at = case when b.status = 'Booked' then extend_booking.expires_at else b.booking_expires_at end,
        updated_at = now(),
        version = b.version + 1
    where b.id = extend_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Extend', 'BookingExtended', v_before.status, actor, correlation_id);
end
$function$;

comment on function crm.extend_booking(uuid, integer, timestamptz, text, uuid) is
'Manager''s command: moves the deadline of an active booking (of the reserve, or once Booked of the booking) to expires_at, if it still has the expected version (XP103). Returns it.';

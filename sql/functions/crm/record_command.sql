create or replace function crm.record_command(
    booking crm.bookings,
    action text,
    kind text,
    from_status text,
    actor text,
    correlation_id uuid
) returns crm.bookings
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
    insert into crm.audit_log (
        tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
    )
    values (
        (booking).tenant_id, 'Booking', (booking).id, action, actor, from_status, (booking).status, correlation_id,
        (booking).updated_at
    );

    insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, occurred_at, correlation_id)
    values (
        (booking).tenant_id, (booking).deal_id, (booking).id, kind, (booking).updated_at, correlation_id
    );

    select (booking).*;
end;

comment on function crm.record_command(crm.bookings, text, text, text, text, uuid) is
'Audit row and timeline card of a manager''s command on a booking; returns the booking.';

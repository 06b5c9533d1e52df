create or replace function crm.reserve_property(
    tenant_id uuid,
    deal_id uuid,
    property_object_id uuid,
    reserve_expires_at timestamptz,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.bookings
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_constraint text;
    v_booking crm.bookings;
begin
    perform crm.check_command(
        'crm.reserve_property', 'tenant_id', tenant_id::text, 'deal_id', deal_id::text,
        'property_object_id', property_object_id::text, 'reserve_expires_at', reserve_expires_at::text, 'actor', actor
    );
    perform crm.check_deadline('property object', property_object_id, reserve_expires_at);
    begin
        insert into crm.bookings (tenant_id, deal_id, property_object_id, status, reserve_expires_at)
        values (
            reserve_property.tenant_id, reserve_property.deal_id, reserve_property.property_object_id, 'Reserved',
            reserve_property.reserve_expires_at
        )
        returning * into v_booking;
    exception
        when unique_violation then
            get stacked diagnostics v_constraint = constraint_name;
            if v_constraint <> 'ux_bookings_property_object_id' then
                raise;
            end if;
            perform expiration.raise_error('property_not_available', property_object_id::text);
    end;
    -- after the insert, whose wait for an expiration that was being written this statement sees the end of
    if exists (
        select
        from crm.bookings as b
        where
            b.property_object_id = reserve_property.property_object_id
            and b.status in ('ReserveExpired', 'BookingExpired')
            and not exists (select from chessboard.release as r where r.booking_id = b.id)
    ) then
        perform expiration.raise_error('property_not_available', property_object_id::text);
    end if;
    return crm.record_command(v_booking, 'Reserve', 'PropertyReserved', null, actor, correlation_id);
end
$function$;

comment on function crm.reserve_property(uuid, uuid, uuid, timestamptz, text, uuid) is
'Manager''s command: reserves a property object for a deal until reserve_expires_at and returns the booking. Refused with CRM_PROPERTY_OBJECT_NOT_AVAILABLE (XP105) while another active booking keeps it, and after the expiration of one until the chessboard has freed it; waits for one that is being written.';

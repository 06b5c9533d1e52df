create or replace view crm.effective_bookings as
select
    b.id,
    b.tenant_id,
    b.deal_id,
    b.property_object_id,
    b.status,
    b.reserve_expires_at,
    b.booking_expires_at,
    b.expired_at,
    b.created_at,
    b.updated_at,
    b.version,
    case
        when b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now() then 'ReserveExpired'
        when b.status = 'Booked' and b.booking_expires_at < now() then 'BookingExpired'
        else b.status
    end as effective_status,
    (b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now())
    or (b.status = 'Booked' and b.booking_expires_at < now()) as is_due
from crm.bookings as b;

comment on view crm.effective_bookings is
'Bookings as readers should see them: effective_status is the expired one as soon as the deadline has passed, whether or not the job has reached the row (is_due).';

create or replace view expiration.due_item as
select
    'lead-expiration'::text as job,
    'Lead'::text as phase,
    l.id as item_id,
    l.tenant_id,
    l.expires_at as deadline,
    l.xmin as row_xmin
from crm.leads as l
where l.status = 'Active'
union all
select
    'booking-expiration'::text,
    'Reserve'::text,
    b.id,
    b.tenant_id,
    b.reserve_expires_at,
    b.xmin
from crm.bookings as b
where b.status in ('Reserved', 'AwaitingPayment')
union all
select
    'booking-expiration'::text,
    'Booking'::text,
    b.id,
    b.tenant_id,
    b.booking_expires_at,
    b.xmin
from crm.bookings as b
where b.status = 'Booked';

comment on view expiration.due_item is
'Items that can expire, with their deadlines, by job and phase. Due are those with deadline < as_of; the indexes of the claims serve it.';

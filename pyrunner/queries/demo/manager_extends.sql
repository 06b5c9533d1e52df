-- A manager extends overdue bookings, the oldest ones.
with overdue as materialized (
    select
        b.id,
        b.version
    from crm.bookings as b
    where b.status = 'Booked' and b.booking_expires_at < now() and b.version < 2147483647
    order by b.booking_expires_at, b.id
    limit %(count)s
)

select (crm.extend_booking(o.id, o.version, now() + interval '7 days', 'manager')).id
from overdue as o

-- A manager confirms overdue reserves, the oldest ones: they were paid in time.
with overdue as materialized (
    select
        b.id,
        b.version
    from crm.bookings as b
    where b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now() and b.version < 2147483647
    order by b.reserve_expires_at, b.id
    limit %(count)s
)

select (crm.confirm_booking(o.id, o.version, now() + interval '7 days', 'manager')).id
from overdue as o

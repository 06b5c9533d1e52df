-- Leads and bookings by status, and how many of each are overdue.
with item as (
    select
        'leads' as entity,
        l.status,
        l.status = 'Active' and l.expires_at < now() as is_overdue
    from crm.leads as l
    union all
    select
        'bookings',
        b.status,
        case
            when b.status in ('Reserved', 'AwaitingPayment') then b.reserve_expires_at < now()
            when b.status = 'Booked' then b.booking_expires_at < now()
            else false
        end
    from crm.bookings as b
),

counted as (
    select
        i.entity,
        i.status,
        count(*) as items,
        count(*) filter (where i.is_overdue) as overdue
    from item as i
    group by i.entity, i.status
)

select
    k.entity,
    k.status,
    k.ordinal in (1, 4) as opens,
    coalesce(c.items, 0) as items,
    coalesce(c.overdue, 0) as overdue
from (
    values
    (1, 'leads', 'Active'),
    (2, 'leads', 'Expired'),
    (3, 'leads', 'Archived'),
    (4, 'bookings', 'Reserved'),
    (5, 'bookings', 'AwaitingPayment'),
    (6, 'bookings', 'Booked'),
    (7, 'bookings', 'ReserveExpired'),
    (8, 'bookings', 'BookingExpired'),
    (9, 'bookings', 'Cancelled')
) as k (ordinal, entity, status)
left join counted as c on k.entity = c.entity and k.status = c.status
order by k.ordinal

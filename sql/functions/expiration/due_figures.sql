create or replace view expiration.due_figures as
select
    d.job,
    d.phase,
    d.due,
    d.oldest_at as oldest_due_at,
    case
        when d.oldest_at is not null
            then greatest(extract(epoch from clock_timestamp() - d.oldest_at)::double precision, 0)
    end as oldest_due_seconds
from (
    select
        'lead-expiration' as job,
        'Lead' as phase,
        (
            select count(*)
            from (
                select from crm.leads as l
                where l.status = 'Active' and l.expires_at < now()
                limit 1000
            ) as c
        ) as due,
        (
            select l.expires_at
            from crm.leads as l
            where l.status = 'Active' and l.expires_at < now() and l.expires_at > '-infinity'
            order by l.expires_at
            limit 1
        ) as oldest_at
    union all
    select
        'booking-expiration',
        'Reserve',
        (
            select count(*)
            from (
                select from crm.bookings as b
                where b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now()
                limit 1000
            ) as c
        ),
        (
            select b.reserve_expires_at
            from crm.bookings as b
            where
                b.status in ('Reserved', 'AwaitingPayment')
                and b.reserve_expires_at < now()
                and b.reserve_expires_at > '-infinity'
            order by b.reserve_expires_at
            limit 1
        )
    union all
    select
        'booking-expiration',
        'Booking',
        (
            select count(*)
            from (
                select from crm.bookings as b
                where b.status = 'Booked' and b.booking_expires_at < now()
                limit 1000
            ) as c
        ),
        (
            select b.booking_expires_at
            from crm.bookings as b
            where b.status = 'Booked' and b.booking_expires_at < now() and b.booking_expires_at > '-infinity'
            order by b.booking_expires_at
            limit 1
        )
) as d;

comment on view expiration.due_figures is
'What is due at this moment, by job and phase, failed items among it: due counts up to 1000 and stops there, so that it costs the same in any backlog; oldest_due_seconds is the age of the oldest finite deadline passed, null when there is none. The exact count before a cycle is expiration.run.due_before.';

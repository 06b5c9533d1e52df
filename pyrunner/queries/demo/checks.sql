-- What must hold after the cycles, against the copies made before them: rows examined, and rows that break it.
with expired as materialized (
    select
        'Lead' as entity,
        l.id,
        l.tenant_id,
        l.expires_at as deadline,
        l.expired_at,
        l.updated_at,
        l.version - b.version as steps,
        l.xmin as written_by
    from crm.leads as l
    inner join lead_before as b on l.id = b.id
    where l.status = 'Expired' and b.status = 'Active'
    union all
    select
        'Booking',
        k.id,
        k.tenant_id,
        case when k.status = 'ReserveExpired' then k.reserve_expires_at else k.booking_expires_at end,
        k.expired_at,
        k.updated_at,
        k.version - b.version,
        k.xmin
    from crm.bookings as k
    inner join booking_before as b on k.id = b.id
    where
        k.status in ('ReserveExpired', 'BookingExpired')
        and b.status in ('Reserved', 'AwaitingPayment', 'Booked')
),

event as materialized (
    select
        e.aggregate_type as entity,
        e.aggregate_id as id,
        e.occurred_at,
        e.correlation_id,
        e.payload ->> 'tenantId' as tenant,
        e.xmin as written_by,
        count(*) over (partition by e.aggregate_type, e.aggregate_id) as times
    from outbox.event as e
),

commanded as materialized (
    select distinct
        a.entity_type as entity,
        a.entity_id as id
    from crm.audit_log as a
    where a.actor <> 'system'
),

checked (ordinal, claim, examined, violations) as (
    select
        1,
        'rows expired: one event each, and no event without its row',
        count(x.id),
        count(*) filter (where x.id is null or e.times is distinct from 1)
    from expired as x
    full join event as e on x.entity = e.entity and x.id = e.id
    union all
    select
        2,
        'of them past their deadline: version + 1, ExpiredAt = the cut-off',
        count(*),
        count(*) filter (where not coalesce(
            x.deadline < x.expired_at
            and x.steps = 1
            and x.updated_at = x.expired_at
            and e.occurred_at = x.expired_at
            and r.as_of = x.expired_at
            and e.tenant = x.tenant_id::text,
            false
        ))
    from expired as x
    left join event as e on x.entity = e.entity and x.id = e.id
    left join expiration.run as r on e.correlation_id = r.id
    union all
    select
        3,
        'written in one transaction with their event, audit row and card',
        count(*),
        count(*) filter (where not coalesce(
            e.written_by = x.written_by
            and a.xmin = x.written_by
            and (x.entity = 'Lead' or t.xmin = x.written_by),
            false
        ))
    from expired as x
    left join event as e on x.entity = e.entity and x.id = e.id
    left join crm.audit_log as a on x.entity = a.entity_type and x.id = a.entity_id and a.action = 'Expire'
    left join crm.deal_timeline as t on x.id = t.booking_id and t.kind = 'BookingExpired'
    union all
    select
        4,
        'rows that people extended or confirmed: none expired',
        count(*),
        count(e.id)
    from commanded as c
    left join event as e on c.entity = e.entity and c.id = e.id
    union all
    select
        5,
        'deals and fixations of expired leads, and all others: untouched',
        (select count(*) from crm.deals as d inner join expired as x on d.lead_id = x.id)
        + (select count(*) from crm.fixations as f inner join expired as x on f.lead_id = x.id),
        (select count(*) from (table crm.deals except table deal_before) as d)
        + (select count(*) from (table deal_before except table crm.deals) as d)
        + (select count(*) from (table crm.fixations except table fixation_before) as f)
        + (select count(*) from (table fixation_before except table crm.fixations) as f)
    union all
    select
        6,
        'other leads and bookings: just as they were',
        count(*),
        count(*) filter (where not o.is_same)
    from (
        select
            'Lead' as entity,
            l.id,
            l is not distinct from b as is_same
        from crm.leads as l
        full join lead_before as b on l.id = b.id
        union all
        select
            'Booking',
            k.id,
            k is not distinct from b
        from crm.bookings as k
        full join booking_before as b on k.id = b.id
    ) as o
    where
        not exists (select from expired as x where x.entity = o.entity and x.id = o.id)
        and not exists (select from commanded as c where c.entity = o.entity and c.id = o.id)
)

select
    c.claim,
    c.examined,
    c.violations
from checked as c
order by c.ordinal

-- What all runs have logged since a time, whoever drove them; item by item where that is asked for.
with seen_run as (
    select
        r.id,
        r.job,
        r.driver
    from expiration.run as r
    where
        (r.finished_at is null or r.finished_at >= %(since)s)
        and (%(job)s::text is null or r.job = %(job)s)
        and (%(run_id)s::uuid is null or r.id = %(run_id)s)
),

logged as (
    select
        e.at,
        e.level,
        e.event,
        e.job,
        e.driver,
        e.run_id,
        e.ordinal,
        e.fields
    from seen_run as r
    inner join expiration.log_event as e on r.id = e.run_id
    union all
    select
        i.at,
        'debug',
        i.event,
        r.job,
        r.driver,
        r.id,
        0,
        i.fields
    from seen_run as r
    cross join lateral expiration.log_item(r.id) as i
    where %(items)s::boolean
)

select
    l.*,
    coalesce(l.fields ->> 'LeadId', l.fields ->> 'BookingId') as item
from logged as l
where l.at >= %(since)s and l.level = any(%(levels)s::text [])
order by l.at, l.run_id, l.ordinal, item

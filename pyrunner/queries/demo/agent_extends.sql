-- An agent extends overdue leads by a month: so many of the oldest, beyond the first few.
with overdue as materialized (
    select
        l.id,
        l.version
    from crm.leads as l
    where l.status = 'Active' and l.expires_at < now() and l.version < 2147483647
    order by l.expires_at, l.id
    offset %(skip)s
    limit %(count)s
)

select (crm.extend_lead(o.id, o.version, now() + interval '30 days', 'agent')).id
from overdue as o

-- Events beyond the slot's confirmed position that cannot get to Kafka as they are, and why.
select
    e.seq,
    e.id,
    w.why
from outbox.event as e
cross join lateral (
    select
        case
            when e.id is null or e.aggregate_id is null then 'it has no id or no key'
            when e.topic !~ '^[A-Za-z0-9._-]{1,249}$' or e.topic in ('.', '..') or e.topic is null
                then format('%%L is no name of a topic', e.topic)
            when jsonb_typeof(e.payload) is distinct from 'object' then 'its payload is no JSON object'
            -- max.request.size is 1 MiB, headers and key included
            when octet_length(e.payload::text) > 1000000
                then format('its payload has %%s bytes', octet_length(e.payload::text))
        end as why
) as w
where e.lsn >= %(confirmed)s::pg_lsn and w.why is not null
order by e.seq
limit %(limit)s

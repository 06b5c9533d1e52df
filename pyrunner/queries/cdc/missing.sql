-- Finds them. An event from before Kafka's memory of its topic cannot be judged and is left out.
with emptied as (
    delete from pg_temp.missing returning id
)

insert into pg_temp.missing (id, seq, topic, created_at)
select a.id, a.seq, a.topic, a.created_at
from pg_temp.appended as a
left join unnest(%(topics)s::text[], %(horizons)s::timestamptz[]) as h (topic, at) on h.topic = a.topic
where
    a.created_at >= coalesce(h.at, '-infinity')
    and not exists (select from pg_temp.arrived as r where r.id = a.id)

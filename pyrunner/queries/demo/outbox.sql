-- The outbox by topic.
select
    e.topic,
    e.event_type,
    count(*) as events
from outbox.event as e
group by e.topic, e.event_type
order by e.topic desc

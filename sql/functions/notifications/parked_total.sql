create or replace view notifications.parked_total as
select p.topic, count(*) as messages, max(p.parked_at) as last_parked_at
from notifications.parked as p
group by p.topic;

comment on view notifications.parked_total is
'Messages put aside, by topic.';

-- Some of the events that Kafka holds more than once without a replay.
select r.id, r.replay_id, count(*) as times, min(r.topic) as topic
from pg_temp.arrived as r
group by r.id, r.replay_id
having count(*) > 1
order by times desc, r.id
limit %(limit)s

-- The topics of these events, and since when each has had some.
select a.topic, count(*) as events, min(a.created_at) as since from pg_temp.appended as a group by a.topic

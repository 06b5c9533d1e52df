-- The topics of these events.
select distinct a.topic from pg_temp.appended as a

-- The next of the missing events, in the order in which they were appended.
select m.id, m.seq, m.topic, m.created_at
from pg_temp.missing as m
where m.seq > %(after)s
order by m.seq
limit %(limit)s

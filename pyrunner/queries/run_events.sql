-- What a run has logged beyond an ordinal: its start, a batch with its failed items, its end.
select
    e.at,
    e.level,
    e.event,
    e.job,
    e.driver,
    e.run_id,
    e.ordinal,
    e.fields
from expiration.log_event as e
where e.run_id = %(run_id)s and e.ordinal > %(after)s
order by e.ordinal, e.fields ->> 'LeadId', e.fields ->> 'BookingId'

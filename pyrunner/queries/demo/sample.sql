-- The first event of a booking, with the cards on its deal's timeline.
select
    e.id,
    e.topic,
    e.aggregate_type,
    e.aggregate_id,
    e.event_type,
    e.contract_version,
    e.correlation_id,
    e.traceparent,
    e.payload,
    t.occurred_at,
    t.kind,
    t.phase
from outbox.event as e
inner join crm.deal_timeline as t
    on e.aggregate_id = t.booking_id and e.correlation_id = t.correlation_id and t.deal_id = (e.payload ->> 'dealId')::uuid
where e.aggregate_type = 'Booking'
order by e.seq
limit 1

-- Publishes events once more.
select r.id, r.requested_at, r.requested_by, r.reason, r.events
from outbox.replay(
    %(reason)s, event_ids => %(event_ids)s, aggregate_id => %(aggregate_id)s, topic => %(topic)s, since => %(since)s,
    until => %(until)s, max_events => %(max_events)s
) as r

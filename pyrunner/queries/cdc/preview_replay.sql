-- What outbox.replay would publish once more.
select p.seq, p.id, p.event_type, p.aggregate_id, p.topic, p.created_at
from outbox.preview_replay(
    event_ids => %(event_ids)s, aggregate_id => %(aggregate_id)s, topic => %(topic)s, since => %(since)s, until => %(until)s
) as p
order by p.seq
limit %(limit)s

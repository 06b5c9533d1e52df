-- The batches of a run, each with its span and, up to a number, its items.
select
    b.number,
    b.phase,
    b.step,
    b.started_at,
    b.finished_at,
    b.claimed,
    b.expired,
    b.failed,
    b.skipped_locked,
    b.drained,
    b.capped,
    outbox.traceparent(b.run_id, b.number) as traceparent,
    i.items
from expiration.batch as b
cross join lateral (
    select coalesce(jsonb_agg(to_jsonb(f) order by f.place), '[]') as items
    from expiration.batch_item(b.run_id, b.number, %(max_items)s)
        with ordinality as f (item_id, tenant_id, deal_id, sqlstate, place)
) as i
where b.run_id = %(run_id)s
order by b.number

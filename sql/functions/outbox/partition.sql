create or replace view outbox.partition as
select
    c.relname::text as name,
    p.is_default,
    p.from_time,
    p.from_time + interval '1 day' as to_time,
    greatest(c.reltuples, 0)::bigint as estimated_events,
    pg_catalog.pg_total_relation_size(c.oid) as bytes
from pg_catalog.pg_inherits as i
inner join pg_catalog.pg_class as c on i.inhrelid = c.oid
cross join lateral (
    select
        pg_catalog.pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' as is_default,
        outbox.partition_start(c.oid) as from_time
) as p
where i.inhparent = 'outbox.event'::pg_catalog.regclass;

comment on view outbox.partition is
'Partitions of the outbox: the day each covers, its size, its events by the planner''s estimate.';

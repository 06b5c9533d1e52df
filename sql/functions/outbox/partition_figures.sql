create or replace view outbox.partition_figures as
select
    count(*) filter (where not p.is_default) as partitions,
    count(*) filter (where not p.is_default and p.from_time > now()) as partitions_ahead,
    min(p.from_time) as oldest_from,
    coalesce(sum(p.bytes), 0)::bigint as bytes,
    (
        select count(*)
        from (
            select from outbox.event_default as d
            limit 1000
        ) as c
    ) as default_events
from outbox.partition as p;

comment on view outbox.partition_figures is
'The outbox''s partitions in one row: how many are made ahead of today, the oldest day kept, bytes on disk, events in the default partition (up to 1000), where none should be.';

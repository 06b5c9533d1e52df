-- Outbox
with covered as (
    select max(p.to_time) as until
    from outbox.partition as p
    where not p.is_default
)

select
    'error' as severity,
    format('the outbox has no partition for today%s', ', its last one ended at ' || c.until) as what,
    'events go to the default partition, which grows and cannot be dropped' as why,
    'call expiration.run_upkeep();' as remedy
from covered as c
where coalesce(c.until, '-infinity') <= now()
union all
select
    'warning',
    format('the outbox has partitions until %s', c.until),
    format('%s days ahead are wanted: upkeep has not run lately', s.partitions_ahead),
    'call expiration.run_upkeep();'
from covered as c
cross join outbox.settings as s
where c.until > now() and c.until < now() + (s.partitions_ahead - 1) * interval '1 day'
union all
select
    'warning',
    format('outbox.event_default holds about %s events', t.n_live_tup),
    'upkeep could not bring them home to a partition of their day; they are never dropped',
    'call expiration.run_upkeep();'
from pg_stat_user_tables as t
where t.schemaname = 'outbox' and t.relname = 'event_default' and t.n_live_tup > 0

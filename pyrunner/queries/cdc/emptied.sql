-- Partitions without a single row although a day's batches had put events there: somebody truncated them.
select
    p.name as partition,
    sum(b.expired)::bigint as expired
from outbox.partition as p
inner join expiration.batch as b on b.started_at >= p.from_time and b.finished_at < p.to_time
where not p.is_default and b.expired > 0 and pg_relation_size(to_regclass(format('outbox.%%I', p.name))) = 0
group by p.name
order by p.name

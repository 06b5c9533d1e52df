-- What the comparison comes to. Events that are neither in Kafka nor missing cannot be judged by it.
with judged as (
    select
        r.id is not null as has_arrived,
        m.id is not null as is_missing,
        -- a slot that is there vouches for them, and one that is not for what it had confirmed
        v.is_whole or coalesce(a.lsn < v.delivered_lsn, false) as is_vouched
    from pg_temp.appended as a
    left join (select distinct x.id from pg_temp.arrived as x) as r on r.id = a.id
    left join pg_temp.missing as m on m.id = a.id
    cross join (
        select
            coalesce(bool_and(s.gap_since is null and t.state not in ('missing', 'lost')), false) as is_whole,
            max(s.delivered_lsn) as delivered_lsn
        from outbox.slot as s
        inner join outbox.slot_state as t on t.name = s.name
        where s.name = %(slot)s
    ) as v
)

select
    count(*) as appended,
    count(*) filter (where j.has_arrived) as arrived,
    count(*) filter (where j.is_missing) as missing,
    count(*) filter (where not j.has_arrived and not j.is_missing) as unjudged,
    count(*) filter (where not j.has_arrived and not j.is_missing and not j.is_vouched) as doubtful,
    (
        select count(*)
        from pg_temp.arrived as r
        where not exists (select from pg_temp.appended as a where a.id = r.id)
    ) as strangers,
    (
        select count(*)
        from (select from pg_temp.arrived as r group by r.id, r.replay_id having count(*) > 1) as d
    ) as doubled
from judged as j

-- What the comparison comes to.
select
    (select count(*) from pg_temp.appended) as appended,
    (select count(*) from pg_temp.arrived) as records,
    (select count(*) from pg_temp.missing) as missing,
    (select count(*) from pg_temp.appended as a where exists (select from pg_temp.arrived as r where r.id = a.id)) as arrived,
    (
        select count(*)
        from pg_temp.arrived as r
        where not exists (select from pg_temp.appended as a where a.id = r.id)
    ) as strangers,
    (
        select count(*)
        from (select from pg_temp.arrived as r group by r.id, r.replay_id having count(*) > 1) as d
    ) as doubled

-- Since when Kafka has to be read; null where there is nothing to compare.
select
    least((select min(a.created_at) from pg_temp.appended as a), (select min(x.started_at) from pg_temp.expired as x)) as since

create or replace function expiration.duration_bucket(duration interval) returns integer
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
return (
    select count(*)::integer + 1
    from unnest(expiration.duration_bounds()) as b (bound)
    where b.bound < extract(epoch from duration)
);

comment on function expiration.duration_bucket(interval) is
'The bucket of a duration, from 1: the first of expiration.duration_bounds that it does not exceed, or the one beyond.';

create or replace function expiration.lateness_bounds() returns double precision[]
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return array[5, 15, 30, 60, 90, 120, 300, 600, 1800, 3600, 3900, 7200, 14400, 43200, 86400]::double precision[];

comment on function expiration.lateness_bounds() is
'Upper bounds of the buckets of lateness, in seconds, 90 s and 3900 s (1 h 5 min) among them, which are the objectives of bookings and leads. What was counted keeps the bounds it was counted by, so changing them takes a migration.';

create or replace function expiration.duration_bounds() returns double precision[]
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return array[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3300]::double precision[];

comment on function expiration.duration_bounds() is
'Upper bounds of the buckets of a cycle''s duration, in seconds, 30 s among them, the objective of bookings. What was counted keeps the bounds it was counted by, so changing them takes a migration.';

create or replace function expiration.schema_version() returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return '0.4.0';

comment on function expiration.schema_version() is
'Version of the functions and views installed; the runner refuses to work with another one.';

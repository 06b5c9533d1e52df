-- pyrunner @version@: expiration of leads and bookings inside PostgreSQL, the whole installation.
--
--   psql -X -d DATABASE -f THIS_FILE
--
-- As a superuser, or as a role with CREATEROLE and with CREATE on the database. One transaction: after an error
-- nothing has changed. An installation of an earlier version is upgraded. Where others hold a lock for more than two
-- seconds it gives up instead of keeping them waiting: run it again.
\set ON_ERROR_STOP on
\set QUIET on
\encoding UTF8
begin isolation level read committed read write;

@settings@
do $version$
begin
    if pg_catalog.current_setting('server_version_num')::int < @oldest@0000 then
        raise exception using
            errcode = 'feature_not_supported',
            message = pg_catalog.format(
                'PostgreSQL @oldest@ or newer is needed, and this server is %s',
                pg_catalog.current_setting('server_version')
            );
    end if;
    -- one installation of a database at a time
    set local lock_timeout = 0;
    perform pg_catalog.pg_advisory_xact_lock(@key@, 1);
    perform pg_catalog.pg_advisory_xact_lock(@key@, 2);
end
$version$;
set local lock_timeout = '2s';

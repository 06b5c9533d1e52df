-- Settings of one transaction of an installation, whatever the role's and the database's own are.
set local client_min_messages = warning;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
-- nobody may queue behind us for long
set local lock_timeout = '2s';
set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = on;
set local standard_conforming_strings = on;
set local datestyle = 'ISO, DMY';
set local intervalstyle = 'postgres';
set local timezone = 'UTC';
do $settings$
begin
    if pg_catalog.current_setting('server_version_num')::int >= 170000 then
        perform pg_catalog.set_config('transaction_timeout', '0', true);
    end if;
end
$settings$;

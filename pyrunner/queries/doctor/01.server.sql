-- Server
select
    'ok' as severity,
    format('PostgreSQL %s', current_setting('server_version')) as what,
    null as why,
    null as remedy
union all
select
    'warning',
    'this server is a standby',
    'it can be read, and no job can run on it',
    'connect to the primary, or name both hosts: --dsn "host=a,b target_session_attrs=read-write"'
where pg_is_in_recovery()
union all
select
    'error',
    'track_activities is off',
    'a run by CALL cannot be told from a dead one, and is taken for abandoned',
    'alter system set track_activities = on; select pg_reload_conf();'
where current_setting('track_activities') = 'off'
union all
select
    'warning',
    'autovacuum is off',
    'every expiration leaves a dead row, and nothing clears them away',
    'alter system set autovacuum = on; select pg_reload_conf();'
where current_setting('autovacuum') = 'off'

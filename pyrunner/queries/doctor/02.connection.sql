-- Connection
-- pyrunner.backend_pid and pyrunner.client_time are set by the caller.
with skew as (
    select extract(epoch from clock_timestamp() - current_setting('pyrunner.client_time')::timestamptz)::numeric as seconds
)

select
    'warning' as severity,
    'a pooler stands between us and the server' as what,
    'pyrunner works through it, but a dead run is recognised only when stale_after has passed' as why,
    'connect the worker to the server itself, or shorten it: pyrunner config set booking-expiration StaleAfter 00:02:00'
        as remedy
where current_setting('pyrunner.backend_pid')::integer <> pg_backend_pid()
union all
select
    'warning',
    format(
        'the clocks of the database and of this machine are %s s apart', round(abs(s.seconds), 1)
    ),
    'only the database''s clock counts for deadlines, but log lines of both will not fit together',
    'see to the time service (chrony, ntp) on both machines'
from skew as s
where abs(s.seconds) > 2
union all
select
    'warning',
    format('transactions here are %s by default', current_setting('default_transaction_isolation')),
    'our drivers ask for read committed themselves; batches called by hand are refused without it (XP008)',
    format('alter database %I set default_transaction_isolation = ''read committed'';', current_database())
where current_setting('default_transaction_isolation') <> 'read committed'
union all
select
    'error',
    'transactions here are read only by default',
    'no job can run',
    format('alter database %I reset default_transaction_read_only; or the same for role %I', current_database(), current_user)
where current_setting('default_transaction_read_only') = 'on' and not pg_is_in_recovery()

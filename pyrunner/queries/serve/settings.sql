-- For one transaction, so that it works behind a pooler: never wait for a lock, give up soon, and take the indexes
-- whatever the statistics say.
select
    set_config('lock_timeout', '5ms', true),
    set_config('statement_timeout', '1s', true),
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true)

create or replace function expiration.is_alive(run expiration.run) returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
return case
    -- the same backend is at it: a CALL until its statement ends, a driver that goes batch by batch while it is connected
    when (run).backend_start is not null and exists (
        select
        from pg_stat_activity as a
        where a.pid = (run).backend_pid and a.backend_start is not null
    ) then exists (
        select
        from pg_stat_activity as a
        where
            a.pid = (run).backend_pid
            and a.backend_start = (run).backend_start
            and case
                when (run).statement_start is not null and a.query_start is not null
                    then a.state <> 'idle' and a.query_start = (run).statement_start
                -- idle between two batches, or track_activities is off
                when a.state is null or a.state in ('idle', 'disabled') then expiration.last_sign_of_life((run).id) > clock_timestamp() - (
                    select j.stale_after from expiration.job as j where j.name = (run).job
                )
                else true
            end
    )
    -- gone for certain, unless we may not see other sessions or a pooler stands between
    when (run).backend_start is not null and not exists (
        select
        from pg_stat_activity as a
        where a.pid = (run).backend_pid
    ) then false
    else expiration.last_sign_of_life((run).id) > clock_timestamp() - (
        select j.stale_after from expiration.job as j where j.name = (run).job
    )
end;

comment on function expiration.is_alive(expiration.run) is
'Whether the driver of a run is still at work: by its backend where that can be seen, otherwise by its last sign of life (job.stale_after).';

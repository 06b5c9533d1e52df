create or replace function expiration.last_sign_of_life(run_id uuid) returns timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (
    select greatest(r.started_at, (
        select b.finished_at
        from expiration.batch as b
        where b.run_id = r.id
        order by b.number desc
        limit 1
    ))
    from expiration.run as r
    where r.id = last_sign_of_life.run_id
);

comment on function expiration.last_sign_of_life(uuid) is
'When a run last wrote anything: its last batch, or its start.';

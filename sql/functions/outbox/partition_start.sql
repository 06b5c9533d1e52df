create or replace function outbox.partition_start(partition oid) returns timestamptz
language sql stable strict
set search_path = pg_catalog, pg_temp
-- the bound is written and read back here: by the caller's own settings it need not be the same time
set timezone = 'UTC'
set datestyle = 'ISO'
return (
    select substring(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\)')::timestamptz
    from pg_class as c
    where c.oid = partition
);

comment on function outbox.partition_start(oid) is
'From when on a partition of the outbox takes events; null for the default one.';

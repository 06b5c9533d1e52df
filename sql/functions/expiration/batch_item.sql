create or replace function expiration.batch_item(
    run_id uuid,
    batch_number integer,
    max_items integer default 2147483647
) returns table (item_id uuid, tenant_id uuid, deal_id uuid, sqlstate text)
language sql stable strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
-- as text: a body that PostgreSQL keeps parsed would keep columns of the outbox from being dropped
as $function$
    with batch as materialized (
        select b.*, outbox.traceparent(b.run_id, b.number) as traceparent
        from expiration.batch as b
        where b.run_id = batch_item.run_id and b.number = batch_item.batch_number
    ),

    failed as (
        -- one that failed has no event: its tenant stands in its own row, as long as that is there
        select
            f.id as item_id,
            coalesce(l.tenant_id, k.tenant_id) as tenant_id,
            k.deal_id,
            f.sqlstate,
            0 as part,
            f.place
        from batch as b
        cross join lateral rows from (
            jsonb_to_recordset(b.failures) as (id uuid, sqlstate text)
        ) with ordinality as f (id, sqlstate, place)
        left join crm.leads as l on b.phase = 'Lead' and f.id = l.id
        left join crm.bookings as k on b.phase <> 'Lead' and f.id = k.id
        order by f.place
        limit batch_item.max_items
    ),

    expired as (
        select
            e.aggregate_id,
            e.tenant_id,
            (e.payload ->> 'dealId')::uuid,
            null::text,
            1,
            e.seq
        from batch as b
        inner join outbox.event as e on
            e.created_at between coalesce(b.transaction_start, b.started_at - interval '1 minute')
            and coalesce(b.transaction_start, b.finished_at)
            and b.traceparent = e.traceparent
            and e.replay_id is null
        order by e.seq
        limit batch_item.max_items
    )

    select i.item_id, i.tenant_id, i.deal_id, i.sqlstate
    from (
        select * from failed
        union all
        select * from expired
    ) as i
    order by i.part, i.place
    limit batch_item.max_items;
$function$;

comment on function expiration.batch_item(uuid, integer, integer) is
'The items of a batch, at most max_items: first those that failed alone (sqlstate), then those that expired, in their order. Expired ones are read from the outbox as long as it keeps them; deal_id is a booking''s.';

create or replace function expiration.log_item(run_id uuid)
returns table (at timestamptz, event text, fields jsonb)
language sql stable strict security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select
        coalesce(b.transaction_start, b.started_at),
        case when b.phase = 'Lead' then 'lead.expired' else 'booking expired' end,
        case
            when b.phase = 'Lead' then jsonb_build_object('LeadId', i.item_id, 'TenantId', i.tenant_id)
            else jsonb_build_object(
                'BookingId', i.item_id, 'DealId', i.deal_id, 'Phase', b.phase, 'TenantId', i.tenant_id
            )
        end
    from expiration.batch as b
    cross join lateral expiration.batch_item(b.run_id, b.number)
        with ordinality as i (item_id, tenant_id, deal_id, sqlstate, place)
    where b.run_id = log_item.run_id and i.sqlstate is null
    order by b.number, i.place;
end;

comment on function expiration.log_item(uuid) is
'The debug events of a run, lead.expired or booking expired, one an item, in order; read from the outbox as long as it keeps them.';

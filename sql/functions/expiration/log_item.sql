create or replace function expiration.log_item(run_id uuid)
returns table (at timestamptz, event text, fields jsonb)
language sql stable strict security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select
        e.created_at,
        case when e.aggregate_type = 'Lead' then 'lead.expired' else 'booking expired' end,
        case
            when e.aggregate_type = 'Lead' then jsonb_build_object('LeadId', e.aggregate_id, 'TenantId', e.tenant_id)
            else jsonb_build_object(
                'BookingId', e.aggregate_id, 'DealId', e.payload -> 'dealId', 'Phase', e.payload -> 'phase',
                'TenantId', e.tenant_id
            )
        end
    from expiration.run as r
    inner join outbox.event as e on
        r.id = e.correlation_id
        and e.created_at between r.started_at - interval '1 minute' and coalesce(r.finished_at, 'infinity')
    where r.id = log_item.run_id
    order by e.seq;
end;

comment on function expiration.log_item(uuid) is
'The debug events of a run, lead.expired or booking expired, one an item, in order; read from the outbox as long as it keeps them.';

-- The leanest loop that writes what the engine writes for leads: one statement a batch, a COMMIT each; no bookkeeping, no
-- poison, no settings, nothing counted. It goes on behind its last row: without that it is slower, since every batch walks
-- over the index entries of those before it.
create procedure bench.lean_leads(as_of timestamptz)
language plpgsql
as $procedure$
declare
    v_run_id constant uuid := gen_random_uuid();
    v_expired_at constant text := outbox.utc(lean_leads.as_of);
    v_batch integer := 0;
    v_traceparent text;
    v_count integer;
    v_deadline timestamptz := '-infinity';
    v_id uuid := '00000000-0000-0000-0000-000000000000';
begin
    -- one plan for all batches, the right one for small tables too
    set plan_cache_mode = force_generic_plan;
    set enable_hashjoin = off;
    set enable_mergejoin = off;
    loop
        v_batch := v_batch + 1;
        v_traceparent := outbox.traceparent(v_run_id, v_batch);
        with due as materialized (
            select l.id, l.expires_at
            from crm.leads as l
            where
                l.status = 'Active'
                and l.expires_at < lean_leads.as_of
                and (l.expires_at, l.id) > (v_deadline, v_id)
            order by l.expires_at, l.id
            limit {batch_size}
            for no key update skip locked
        ),

        expired as (
            update crm.leads as l
            set
                status = 'Expired',
                expired_at = lean_leads.as_of,
                updated_at = lean_leads.as_of,
                version = l.version + 1
            from due as d
            where l.id = d.id
            returning l.id, l.tenant_id, l.executor_agent_user_id, l.primary_investor_user_id
        ),

        events as (
            insert into outbox.event (
                aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
                correlation_id, traceparent, occurred_at
            )
            select
                'Lead', e.id, e.tenant_id, 'LeadExpiredEvent', 1, 'pin.crm.lead-expired.v1',
                jsonb_build_object(
                    'leadId', e.id,
                    'tenantId', e.tenant_id,
                    'agentUserId', e.executor_agent_user_id,
                    'investorUserId', e.primary_investor_user_id,
                    'expiredAt', v_expired_at
                ),
                v_run_id, v_traceparent, lean_leads.as_of
            from expired as e
        ),

        audit as (
            insert into crm.audit_log (
                tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
            )
            select e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', v_run_id, lean_leads.as_of
            from expired as e
        )

        select c.expired, d.expires_at, d.id
        into v_count, v_deadline, v_id
        from (select count(*) as expired from expired) as c
        left join (select d.expires_at, d.id from due as d offset {batch_size} - 1) as d on true;
        commit;
        exit when v_count < {batch_size};
    end loop;
end
$procedure$;

-- Everything by one statement, in one transaction: the least that the writes themselves cost.
create procedure bench.single_leads(as_of timestamptz)
language plpgsql
as $procedure$
declare
    v_run_id constant uuid := gen_random_uuid();
    v_expired_at constant text := outbox.utc(single_leads.as_of);
    v_traceparent constant text := outbox.traceparent(v_run_id, 1);
begin
    with expired as (
        update crm.leads as l
        set
            status = 'Expired',
            expired_at = single_leads.as_of,
            updated_at = single_leads.as_of,
            version = l.version + 1
        where l.status = 'Active' and l.expires_at < single_leads.as_of
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
            v_run_id, v_traceparent, single_leads.as_of
        from expired as e
    )

    insert into crm.audit_log (
        tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
    )
    select e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', v_run_id, single_leads.as_of
    from expired as e;
end
$procedure$;

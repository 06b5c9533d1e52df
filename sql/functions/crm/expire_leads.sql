create or replace function crm.expire_leads(
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer default 1,
    rehearsal boolean default false
) returns uuid[]
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_expired_at text;
    v_traceparent text;
    v_expired uuid[];
begin
    if expire_leads.rehearsal then
        -- a statement of its own: an insert fires the triggers of its statement even when it inserts no row
        with expired as (
            update crm.leads as l
            set
                status = 'Expired',
                expired_at = expire_leads.as_of,
                updated_at = expire_leads.as_of,
                version = l.version + 1
            where l.id = any((expire_leads.claim).ids) and case when l.status = 'Active' then true end
            returning l.id, l.tenant_id
        )

        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', expire_leads.run_id, expire_leads.as_of
        from expired as e;
        return array[]::uuid[];
    end if;

    -- the same for the whole batch, so made once and not a row
    v_expired_at := outbox.utc(expire_leads.as_of);
    v_traceparent := outbox.traceparent(expire_leads.run_id, expire_leads.batch_number);
    with expired as (
        update crm.leads as l
        set
            status = 'Expired',
            expired_at = expire_leads.as_of,
            updated_at = expire_leads.as_of,
            version = l.version + 1
        from unnest((expire_leads.claim).ids, (expire_leads.claim).row_ids) as claimed (id, row_id)
        where
            -- where the claim has locked it; the id, since in a partitioned table the same place is there many times
            l.ctid = claimed.row_id
            and l.id = claimed.id
            -- as a case, lest a plan made on stale statistics walks the index of the deadlines
            and case when l.status = 'Active' then l.expires_at < expire_leads.as_of end
        returning l.id, l.tenant_id, l.executor_agent_user_id, l.primary_investor_user_id, l.expires_at
    ),

    events as (
        insert into outbox.event (
            aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            'Lead',
            e.id,
            e.tenant_id,
            'LeadExpiredEvent',
            1,
            'pin.crm.lead-expired.v1',
            jsonb_build_object(
                'leadId', e.id,
                'tenantId', e.tenant_id,
                'agentUserId', e.executor_agent_user_id,
                'investorUserId', e.primary_investor_user_id,
                'expiredAt', v_expired_at
            ),
            expire_leads.run_id,
            v_traceparent,
            expire_leads.as_of
        from expired as e
        order by e.expires_at, e.id
    ),

    audit as (
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', expire_leads.run_id, expire_leads.as_of
        from expired as e
    )

    select coalesce(array_agg(e.id), '{}') into v_expired from expired as e;
    return v_expired;
end
$function$;

comment on function crm.expire_leads(expiration.claim, timestamptz, uuid, integer, boolean) is
'Expire(as_of) for the leads of a claim, which this transaction has locked: those still Active and past their deadline become Expired, with one event and one audit row each; the others are left alone (INV-LEAD-4). Returns the ids that expired. rehearsal leaves the outbox out, to learn whether the fault is its or the row''s, and is for a subtransaction that is rolled back.';

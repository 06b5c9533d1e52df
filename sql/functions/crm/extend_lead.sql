create or replace function crm.extend_lead(
    lead_id uuid,
    expected_version integer,
    expires_at timestamptz,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.leads
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_before crm.leads;
    v_after crm.leads;
begin
    perform crm.check_command(
        'crm.extend_lead', 'lead_id', lead_id::text, 'expected_version', expected_version::text,
        'expires_at', expires_at::text, 'actor', actor
    );
    select l.* into v_before from crm.leads as l where l.id = extend_lead.lead_id for no key update;
    if not found then
        perform expiration.raise_error('lead_not_found', lead_id::text);
    elsif v_before.version <> expected_version then
        perform expiration.raise_error(
            'version_conflict', 'lead', lead_id::text, v_before.version::text, expected_version::text
        );
    elsif v_before.status not in ('Active', 'Expired') then
        perform expiration.raise_error('invalid_transition', 'lead', lead_id::text, v_before.status, 'extend');
    end if;
    perform crm.check_deadline('lead', lead_id, expires_at, v_before.expires_at);
    update crm.leads as l
    set
        status = 'Active',
        expires_at = extend_lead.expires_at,
        expired_at = null,
        updated_at = now(),
        version = l.version + 1
    where l.id = extend_lead.lead_id
    returning l.* into v_after;
    insert into crm.audit_log (
        tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
    )
    values (
        v_after.tenant_id, 'Lead', v_after.id, 'Extend', extend_lead.actor, v_before.status, v_after.status,
        extend_lead.correlation_id, v_after.updated_at
    );
    return v_after;
end
$function$;

comment on function crm.extend_lead(uuid, integer, timestamptz, text, uuid) is
'Agent''s command: moves the deadline of an Active lead, or makes an Expired one Active again (L23), if it still has the expected version (XP103). Returns it.';

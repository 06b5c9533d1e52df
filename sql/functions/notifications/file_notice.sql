create or replace function notifications.file_notice(
    event_id uuid,
    lead_id uuid,
    tenant_id uuid,
    agent_user_id uuid,
    expired_at timestamptz,
    topic text default 'pin.crm.lead-expired.v1'
) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into notifications.inbox as i (event_id, topic)
    values (file_notice.event_id, file_notice.topic)
    on conflict on constraint inbox_pkey do nothing;
    if not found then
        return false;
    end if;
    insert into notifications.notice (event_id, tenant_id, lead_id, agent_user_id, expired_at)
    values (
        file_notice.event_id, file_notice.tenant_id, file_notice.lead_id, file_notice.agent_user_id,
        file_notice.expired_at
    )
    on conflict on constraint notice_pkey do nothing;
    return true;
end
$function$;

comment on function notifications.file_notice(uuid, uuid, uuid, uuid, timestamptz, text) is
'What the notifications do about a LeadExpiredEvent: a notice to the agent, to extend the lead. Returns false where the event has had its effect before.';

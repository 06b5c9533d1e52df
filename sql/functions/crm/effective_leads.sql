create or replace view crm.effective_leads as
select
    l.id,
    l.tenant_id,
    l.executor_agent_user_id,
    l.primary_investor_user_id,
    l.status,
    l.expires_at,
    l.expired_at,
    l.created_at,
    l.updated_at,
    l.version,
    case when l.status = 'Active' and l.expires_at < now() then 'Expired' else l.status end as effective_status,
    l.status = 'Active' and l.expires_at < now() as is_due
from crm.leads as l;

comment on view crm.effective_leads is
'Leads as readers should see them: effective_status is Expired as soon as the deadline has passed, whether or not the job has reached the row (is_due).';

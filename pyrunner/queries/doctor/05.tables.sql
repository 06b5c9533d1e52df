-- Tables and columns
with wanted (tab, col, typ) as (
    values
    ('crm.leads', 'id', 'uuid'),
    ('crm.leads', 'tenant_id', 'uuid'),
    ('crm.leads', 'executor_agent_user_id', 'uuid'),
    ('crm.leads', 'primary_investor_user_id', 'uuid'),
    ('crm.leads', 'status', 'text'),
    ('crm.leads', 'expires_at', 'timestamp with time zone'),
    ('crm.leads', 'expired_at', 'timestamp with time zone'),
    ('crm.leads', 'created_at', 'timestamp with time zone'),
    ('crm.leads', 'updated_at', 'timestamp with time zone'),
    ('crm.leads', 'version', 'integer'),
    ('crm.bookings', 'id', 'uuid'),
    ('crm.bookings', 'tenant_id', 'uuid'),
    ('crm.bookings', 'deal_id', 'uuid'),
    ('crm.bookings', 'property_object_id', 'uuid'),
    ('crm.bookings', 'status', 'text'),
    ('crm.bookings', 'reserve_expires_at', 'timestamp with time zone'),
    ('crm.bookings', 'booking_expires_at', 'timestamp with time zone'),
    ('crm.bookings', 'expired_at', 'timestamp with time zone'),
    ('crm.bookings', 'created_at', 'timestamp with time zone'),
    ('crm.bookings', 'updated_at', 'timestamp with time zone'),
    ('crm.bookings', 'version', 'integer'),
    ('crm.deals', 'id', 'uuid'),
    ('crm.deals', 'tenant_id', 'uuid'),
    ('crm.deals', 'lead_id', 'uuid'),
    ('crm.deals', 'status', 'text'),
    ('crm.fixations', 'id', 'uuid'),
    ('crm.fixations', 'tenant_id', 'uuid'),
    ('crm.fixations', 'lead_id', 'uuid'),
    ('crm.fixations', 'status', 'text'),
    ('crm.deal_timeline', 'id', 'uuid'),
    ('crm.deal_timeline', 'tenant_id', 'uuid'),
    ('crm.deal_timeline', 'deal_id', 'uuid'),
    ('crm.deal_timeline', 'booking_id', 'uuid'),
    ('crm.deal_timeline', 'kind', 'text'),
    ('crm.deal_timeline', 'phase', 'text'),
    ('crm.deal_timeline', 'occurred_at', 'timestamp with time zone'),
    ('crm.deal_timeline', 'correlation_id', 'uuid'),
    ('crm.audit_log', 'id', 'uuid'),
    ('crm.audit_log', 'tenant_id', 'uuid'),
    ('crm.audit_log', 'entity_type', 'text'),
    ('crm.audit_log', 'entity_id', 'uuid'),
    ('crm.audit_log', 'action', 'text'),
    ('crm.audit_log', 'actor', 'text'),
    ('crm.audit_log', 'from_status', 'text'),
    ('crm.audit_log', 'to_status', 'text'),
    ('crm.audit_log', 'correlation_id', 'uuid'),
    ('crm.audit_log', 'occurred_at', 'timestamp with time zone'),
    ('outbox.event', 'seq', 'bigint'),
    ('outbox.event', 'id', 'uuid'),
    ('outbox.event', 'created_at', 'timestamp with time zone'),
    ('outbox.event', 'aggregate_type', 'text'),
    ('outbox.event', 'aggregate_id', 'uuid'),
    ('outbox.event', 'tenant_id', 'uuid'),
    ('outbox.event', 'event_type', 'text'),
    ('outbox.event', 'contract_version', 'integer'),
    ('outbox.event', 'topic', 'text'),
    ('outbox.event', 'payload', 'jsonb'),
    ('outbox.event', 'correlation_id', 'uuid'),
    ('outbox.event', 'traceparent', 'text'),
    ('outbox.event', 'occurred_at', 'timestamp with time zone'),
    ('outbox.event', 'lsn', 'pg_lsn')
),

present as (
    select
        c.oid,
        format('%s.%s', s.nspname, c.relname) as tab
    from pg_class as c
    inner join pg_namespace as s on c.relnamespace = s.oid
    where s.nspname in ('crm', 'outbox') and c.relkind in ('r', 'p')
),

present_column as (
    select
        p.tab,
        a.attname::text as col,
        format_type(a.atttypid, a.atttypmod) as typ,
        a.attnotnull and not a.atthasdef and a.attidentity = '' as must_be_given
    from present as p
    inner join pg_attribute as a on p.oid = a.attrelid
    where a.attnum > 0 and not a.attisdropped
)

select
    'error' as severity,
    format('there is no table %s', w.tab) as what,
    'the engine works on it' as why,
    'pyrunner migrate, or make it with the columns of the documents' as remedy
from wanted as w
where w.tab not in (select p.tab from present as p)
group by w.tab
union all
select
    'error',
    format('%s has no column %s', w.tab, w.col),
    'the engine needs it',
    format('alter table %s add column %s %s;', w.tab, w.col, w.typ)
from wanted as w
inner join present as p on w.tab = p.tab
left join present_column as c on w.tab = c.tab and w.col = c.col
where c.col is null
union all
select
    'error',
    format('%s.%s is %s', w.tab, w.col, c.typ),
    format('the documents want %s', w.typ),
    format('alter table %s alter column %s type %s;', w.tab, w.col, w.typ)
from wanted as w
inner join present_column as c on w.tab = c.tab and w.col = c.col
where c.typ <> w.typ and not (w.typ = 'text' and c.typ like 'character varying%')
union all
select
    'error',
    format('%s.%s must be given, and the engine does not know it', c.tab, c.col),
    'every insert of the engine into this table fails',
    format('alter table %s alter column %s set default ...; or: alter column %s drop not null;', c.tab, c.col, c.col)
from present_column as c
left join wanted as w on c.tab = w.tab and c.col = w.col
where c.tab in ('crm.deal_timeline', 'crm.audit_log', 'outbox.event') and c.must_be_given and w.col is null

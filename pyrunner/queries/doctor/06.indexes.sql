-- Indexes
with wanted (name, tab, col, predicate) as (
    values
    ('ix_leads_expires_at', 'leads', 'expires_at', 'status = ''Active'''),
    ('ix_bookings_reserve_expires_at', 'bookings', 'reserve_expires_at', 'status in (''Reserved'', ''AwaitingPayment'')'),
    ('ix_bookings_booking_expires_at', 'bookings', 'booking_expires_at', 'status = ''Booked''')
),

present as (
    select
        c.relname::text as name,
        s.nspname::text as schema,
        t.relname::text as tab,
        i.indisvalid and i.indisready as is_valid,
        i.indpred is not null as is_partial,
        array(
            select pg_get_indexdef(i.indexrelid, k, true)
            from generate_series(1, i.indnkeyatts) as k
        ) as cols
    from pg_index as i
    inner join pg_class as c on i.indexrelid = c.oid
    inner join pg_class as t on i.indrelid = t.oid
    inner join pg_namespace as s on t.relnamespace = s.oid
    where s.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')
)

select
    'error' as severity,
    format('index crm.%s is missing', w.name) as what,
    format('every claim reads the whole of crm.%s', w.tab) as why,
    format('create index concurrently %s on crm.%s (%s, id) where %s;', w.name, w.tab, w.col, w.predicate) as remedy
from wanted as w
where
    exists (
        select
        from pg_class as t
        inner join pg_namespace as s on t.relnamespace = s.oid
        where s.nspname = 'crm' and t.relname = w.tab
    )
    and not exists (
        select
        from present as p
        where p.schema = 'crm' and p.tab = w.tab and p.name = w.name
    )
union all
select
    'warning',
    format('index crm.%s is on (%s)%s', w.name, array_to_string(p.cols, ', '), case when not p.is_partial then ', not partial' end),
    format('the claim is served by a partial one on (%s, id)', w.col),
    format(
        'create index concurrently %s_new on crm.%s (%s, id) where %s; drop index concurrently crm.%s; alter index crm.%s_new rename to %s;',
        w.name, w.tab, w.col, w.predicate, w.name, w.name, w.name
    )
from wanted as w
inner join present as p on w.name = p.name and w.tab = p.tab and p.schema = 'crm'
where not p.is_partial or p.cols is distinct from array[w.col, 'id']
union all
select
    'error',
    format('index %s.%s is invalid', p.schema, p.name),
    'an interrupted build left it: it costs every write and serves no query',
    format('reindex index concurrently %s.%s;', p.schema, p.name)
from present as p
where not p.is_valid

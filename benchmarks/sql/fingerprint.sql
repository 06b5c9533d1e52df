-- What a run has written, without what differs from run to run (its id, random ids, times of insertion, positions in
-- the log): equal for two ways of doing the same. `numbered` tells the batches apart and holds the order of the events.
create function bench.fingerprint(numbered boolean)
returns table (what text, rows bigint, digest text)
language sql stable
as $function$
    with event as (
        select
            e.*,
            dense_rank() over (order by e.first_seq) as batch,
            row_number() over (order by e.seq) as place
        from (
            select v.*, v.tableoid as partition, min(v.seq) over (partition by v.traceparent) as first_seq
            from outbox.event as v
        ) as e
    ),

    line (what, line) as (
        select 'leads', l::text
        from crm.leads as l
        union all
        select 'bookings', b::text
        from crm.bookings as b
        union all
        select
            'outbox',
            concat_ws(
                '|', e.aggregate_type, e.aggregate_id, e.tenant_id, e.event_type, e.contract_version, e.topic, e.payload,
                e.occurred_at,
                e.created_at is null, e.lsn is null, e.id is null,
                e.partition = 'outbox.event_default'::regclass,
                e.traceparent = outbox.traceparent(e.correlation_id, e.batch::integer),
                case when numbered then e.batch || '|' || e.place end
            )
        from event as e
        union all
        select
            'audit',
            concat_ws(
                '|', a.tenant_id, a.entity_type, a.entity_id, a.action, a.actor, a.from_status, a.to_status, a.occurred_at,
                a.correlation_id = (select max(e.correlation_id::text)::uuid from outbox.event as e)
            )
        from crm.audit_log as a
        union all
        select
            'timeline',
            concat_ws(
                '|', t.tenant_id, t.deal_id, t.booking_id, t.kind, t.phase, t.occurred_at,
                t.correlation_id = (select max(e.correlation_id::text)::uuid from outbox.event as e)
            )
        from crm.deal_timeline as t
        union all
        select 'runs in the outbox', count(distinct e.correlation_id)::text
        from outbox.event as e
    )

    select x.what, count(*), md5(string_agg(md5(x.line), '' order by x.line collate "C"))
    from line as x
    group by x.what
    order by x.what
$function$;

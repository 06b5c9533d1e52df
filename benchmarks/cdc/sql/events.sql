-- What the benchmark appends: events as the job of the leads writes them, and leads that are due.
create schema bench;

-- appends `total` events, `batch_size` a transaction; those of the past lie in partitions of `days` days that end yesterday
create procedure bench.append(total integer, batch_size integer, days integer default null)
language plpgsql
as $procedure$
declare
    v_run constant uuid := gen_random_uuid();
    v_as_of constant timestamptz := now();
    v_today constant date := (now() at time zone 'UTC')::date;
    v_done integer := 0;
begin
    while v_done < total loop
        insert into outbox.event (
            created_at, aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            case
                when days is null then now()
                else ((v_today - 1 - (v_done + n) % days)::timestamp + interval '12 hours') at time zone 'UTC'
            end,
            'Lead',
            l.id,
            l.tenant_id,
            'LeadExpiredEvent',
            1,
            'pin.crm.lead-expired.v1',
            jsonb_build_object(
                'leadId', l.id,
                'tenantId', l.tenant_id,
                'agentUserId', gen_random_uuid(),
                'investorUserId', case when n % 3 > 0 then gen_random_uuid() end,
                'expiredAt', outbox.utc(v_as_of)
            ),
            v_run,
            outbox.traceparent(v_run, v_done / batch_size),
            v_as_of
        from (
            select n, gen_random_uuid() as id, gen_random_uuid() as tenant_id
            from generate_series(1, least(batch_size, total - v_done)) as n
        ) as l;
        commit;
        v_done := v_done + batch_size;
    end loop;
end
$procedure$;

-- partitions of the days that end yesterday: the outbox of somebody whose upkeep comes now
create procedure bench.make_past(days integer)
language plpgsql
as $procedure$
declare
    v_day date;
begin
    for v_day in select (now() at time zone 'UTC')::date - n from generate_series(1, days) as n loop
        execute format(
            'create table outbox.%I partition of outbox.event for values from (%L) to (%L)',
            'event_' || to_char(v_day, 'YYYYMMDD'), v_day::timestamp at time zone 'UTC',
            (v_day + 1)::timestamp at time zone 'UTC'
        );
        execute format('alter table outbox.%I owner to crm_owner', 'event_' || to_char(v_day, 'YYYYMMDD'));
    end loop;
end
$procedure$;

create procedure bench.make_leads(total integer)
language sql
begin atomic
    insert into crm.leads (
        tenant_id, executor_agent_user_id, primary_investor_user_id, status, expires_at
    )
    select
        gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Active', now() - interval '1 day' + n * interval '1 ms'
    from generate_series(1, total) as n;
end;

create procedure bench.make_bookings(total integer)
language sql
begin atomic
    insert into crm.bookings (tenant_id, deal_id, property_object_id, status, reserve_expires_at)
    select
        gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Reserved', now() - interval '1 day' + n * interval '1 ms'
    from generate_series(1, total) as n;
end;

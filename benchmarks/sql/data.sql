-- The data of the benchmark: made once as seeds, the same in every database, and put back before every measurement.
create schema bench;

-- a number from 0 up to 1 that depends on nothing but its arguments
create function bench.chance(what text, n bigint) returns double precision
language sql immutable strict parallel safe
return (('x' || substr(md5(what || ' ' || n::text), 1, 8))::bit(32)::bigint) / 4294967296.0::double precision;

create function bench.key(what text, n bigint) returns uuid
language sql immutable strict parallel safe
return md5(what || ' ' || n::text)::uuid;

create unlogged table bench.lead (like crm.leads, poison boolean not null);
create unlogged table bench.booking (like crm.bookings);

-- `overdue` of `total` leads are due at as_of; of the others three in four have their deadline ahead, one is expired
create procedure bench.seed_leads(total integer, overdue integer, batch_size integer, as_of timestamptz)
language plpgsql
as $procedure$
begin
    truncate bench.lead;
    insert into bench.lead
    select
        bench.key('lead', n),
        bench.key('tenant', n % 20),
        bench.key('agent', n % 500),
        case when n % 3 > 0 then bench.key('investor', n) end,
        case when n <= overdue or n % 4 > 0 then 'Active' else 'Expired' end,
        case
            when n <= overdue or n % 4 = 0 then as_of - interval '1 minute' - interval '30 days' * bench.chance('deadline', n)
            else as_of + interval '1 day' + interval '30 days' * bench.chance('deadline', n)
        end,
        case when n > overdue and n % 4 = 0 then as_of - interval '1 second' end,
        as_of - interval '90 days',
        as_of - interval '60 days',
        1 + n % 5,
        false
    from generate_series(1, total) as n
    -- where a row lies has nothing to do with its deadline: the harder case, each batch changes as many pages as rows
    order by bench.chance('place', n);

    -- one in every batch, anywhere in it
    update bench.lead as l
    set poison = true
    from (
        select s.id, row_number() over (order by s.expires_at, s.id) - 1 as rank
        from bench.lead as s
        where s.status = 'Active' and s.expires_at < as_of
    ) as due
    where
        l.id = due.id
        and due.rank % batch_size = floor(batch_size * bench.chance('poison', due.rank / batch_size));
end
$procedure$;

-- as seed_leads; half of the overdue bookings are in each phase
create procedure bench.seed_bookings(total integer, overdue integer, as_of timestamptz)
language plpgsql
as $procedure$
begin
    truncate bench.booking;
    insert into bench.booking
    select
        bench.key('booking', n),
        bench.key('tenant', n % 20),
        bench.key('deal', n),
        bench.key('property', n),
        b.status,
        case when b.status = 'Booked' then as_of - interval '60 days' else b.deadline end,
        case when b.status = 'Booked' then b.deadline end,
        case when b.status = 'ReserveExpired' then as_of - interval '1 second' end,
        as_of - interval '90 days',
        as_of - interval '60 days',
        1 + n % 5
    from generate_series(1, total) as n
    cross join lateral (
        select
            case
                when n > overdue and n % 4 = 0 then 'ReserveExpired'
                when n % 2 = 0 then 'Booked'
                when n % 3 = 0 then 'AwaitingPayment'
                else 'Reserved'
            end as status,
            case
                when n <= overdue or n % 4 = 0
                    then as_of - interval '1 minute' - interval '30 days' * bench.chance('deadline', n)
                else as_of + interval '1 day' + interval '30 days' * bench.chance('deadline', n)
            end as deadline
    ) as b
    order by bench.chance('place', n);
end
$procedure$;

-- the domain as the seeds have it, the outbox and the engine's history empty
create procedure bench.restore(poisoned boolean)
language plpgsql
as $procedure$
begin
    truncate
        crm.leads, crm.bookings, crm.deals, crm.fixations, crm.deal_timeline, crm.audit_log, outbox.event,
        expiration.run, expiration.batch, expiration.failed_item
    restart identity;
    insert into crm.leads (
        id, tenant_id, executor_agent_user_id, primary_investor_user_id, status, expires_at, expired_at, created_at,
        updated_at, version
    )
    select
        s.id, s.tenant_id, s.executor_agent_user_id, s.primary_investor_user_id, s.status, s.expires_at, s.expired_at,
        s.created_at, s.updated_at, case when poisoned and s.poison then 2147483647 else s.version end
    from bench.lead as s;
    insert into crm.bookings (
        id, tenant_id, deal_id, property_object_id, status, reserve_expires_at, booking_expires_at, expired_at,
        created_at, updated_at, version
    )
    select
        s.id, s.tenant_id, s.deal_id, s.property_object_id, s.status, s.reserve_expires_at, s.booking_expires_at,
        s.expired_at, s.created_at, s.updated_at, s.version
    from bench.booking as s;
end
$procedure$;

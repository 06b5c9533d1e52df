-- Many rows, quickly: without their indexes and keys, which are made again as they were.
create procedure bench.load(target regclass, rows_from text)
language plpgsql
as $procedure$
declare
    v_definitions constant text[] := array(
        select d.definition
        from (
            select
                case when c.contype = 'f' then 3 else 1 end as step,
                format('alter table %s add constraint %I %s', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
                as definition
            from pg_constraint as c
            where (c.conrelid = target and c.contype in ('p', 'u')) or (c.confrelid = target and c.contype = 'f')
            union all
            select 2, pg_get_indexdef(i.indexrelid)
            from pg_index as i
            where i.indrelid = target and not exists (select from pg_constraint as c where c.conindid = i.indexrelid)
        ) as d
        order by d.step
    );
    v_drop text;
    v_make text;
begin
    for v_drop in
        select format('alter table %s drop constraint %I', c.conrelid::regclass, c.conname)
        from pg_constraint as c
        where (c.conrelid = target and c.contype in ('p', 'u')) or (c.confrelid = target and c.contype = 'f')
        order by c.contype
    loop
        execute v_drop;
    end loop;
    for v_drop in select format('drop index %s', i.indexrelid::regclass) from pg_index as i where i.indrelid = target loop
        execute v_drop;
    end loop;
    execute format('insert into %s %s', target, rows_from);
    foreach v_make in array v_definitions loop
        execute v_make;
    end loop;
end
$procedure$;

-- so many leads and as many bookings, none due: two in three have their deadline ahead, the others are expired
create procedure bench.fill_idle(total integer)
language plpgsql
as $procedure$
begin
    call bench.load('crm.leads', format(
        $rows$
            (id, tenant_id, executor_agent_user_id, status, expires_at, expired_at)
            select
                k.id, k.id, k.id,
                case when n %% 3 = 0 then 'Expired' else 'Active' end,
                now() + interval '1 day' * (case when n %% 3 = 0 then -1 else 1 end) * (1 + n * 0.6180339887 %% 30),
                case when n %% 3 = 0 then now() end
            from generate_series(1, %s) as n
            cross join lateral (select gen_random_uuid() as id where n > 0) as k
        $rows$,
        total
    ));
    call bench.load('crm.bookings', format(
        $rows$
            (id, tenant_id, deal_id, property_object_id, status, reserve_expires_at, booking_expires_at, expired_at)
            select
                k.id, k.id, k.id, k.id,
                case n %% 3 when 0 then 'ReserveExpired' when 1 then 'Reserved' else 'Booked' end,
                now() + interval '1 day' * (case when n %% 3 = 1 then 1 else -1 end) * (1 + n * 0.6180339887 %% 30),
                case when n %% 3 = 2 then now() + interval '1 day' * (1 + n * 0.6180339887 %% 30) end,
                case when n %% 3 = 0 then now() end
            from generate_series(1, %s) as n
            cross join lateral (select gen_random_uuid() as id where n > 0) as k
        $rows$,
        total
    ));
end
$procedure$;

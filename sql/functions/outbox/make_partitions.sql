create or replace function outbox.make_partitions(days_ahead integer default null)
returns table (partition text, events_moved bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $function$
declare
    v_ahead constant integer := coalesce(
        make_partitions.days_ahead, (select s.partitions_ahead from outbox.settings as s)
    );
    v_day date;
    v_moved bigint;
begin
    if v_ahead < 0 or v_ahead > 366 then
        perform expiration.raise_error(
            'invalid_argument', 'days_ahead', 'outbox.make_partitions', 'between 0 and 366', v_ahead::text
        );
    end if;
    -- two of us at once would only get in each other's way
    if not pg_try_advisory_xact_lock(hashtext('outbox.make_partitions')) then
        return;
    end if;

    for v_day in
        select d.day
        from (
            select (now() at time zone 'UTC')::date + n as day
            from generate_series(0, v_ahead) as n
            union
            -- events that fell into the default partition are brought home
            select (e.created_at at time zone 'UTC')::date
            from outbox.event_default as e
        ) as d (day)
        order by d.day
    loop
        partition := 'event_' || to_char(v_day, 'YYYYMMDD');
        continue when to_regclass(format('outbox.%I', partition)) is not null;

        -- made apart and attached: the root is then locked but weakly
        execute format('create table outbox.%I (like outbox.event including defaults including constraints)', partition);
        execute format(
            'comment on table outbox.%I is %L', partition, format('Events appended on %s (UTC).', v_day)
        );
        execute format(
            'alter table outbox.%I add constraint in_range check (created_at >= %L and created_at < %L)',
            partition, v_day::timestamptz, (v_day + 1)::timestamptz
        );
        -- an insert under way into the default partition must not find itself shut out of it
        if v_day <= (now() at time zone 'UTC')::date then
            lock table outbox.event in share row exclusive mode;
        end if;
        lock table outbox.event_default in access exclusive mode;
        execute format(
            'insert into outbox.%I select e.* from outbox.event_default as e where e.created_at >= %L and e.created_at < %L',
            partition, v_day::timestamptz, (v_day + 1)::timestamptz
        );
        get diagnostics v_moved = row_count;
        delete from outbox.event_default as e
        where e.created_at >= v_day::timestamptz and e.created_at < (v_day + 1)::timestamptz;
        execute format(
            'alter table outbox.event attach partition outbox.%I for values from (%L) to (%L)',
            partition, v_day::timestamptz, (v_day + 1)::timestamptz
        );
        execute format('alter table outbox.%I drop constraint in_range', partition);
        events_moved := v_moved;
        return next;
    end loop;
end
$function$;

comment on function outbox.make_partitions(integer) is
'Makes the outbox''s partitions for today and days_ahead further days (default: outbox.settings), and moves home what fell into the default partition. Returns what it made. Waits at most 2 s for a lock.';

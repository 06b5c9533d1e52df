create or replace function outbox.drop_partitions()
returns table (partition text, estimated_events bigint, bytes bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $function$
declare
    v_slot record;
    v_confirmed pg_lsn;
    v_partition record;
    v_sealed pg_lsn;
    v_is_late boolean;
begin
    -- two of us at once would only get in each other's way
    if not pg_try_advisory_xact_lock(hashtext('outbox.drop_partitions')) then
        return;
    end if;
    for v_slot in select s.name, s.state, s.confirmed_flush_lsn, s.gap_since from outbox.slot_state as s order by s.name loop
        if v_slot.state in ('missing', 'lost') then
            perform expiration.raise_error('slot_lost', v_slot.name, v_slot.state);
        end if;
        -- its position says nothing about what was appended before it was made
        if v_slot.gap_since is not null then
            perform expiration.raise_error('slot_gap', v_slot.name);
        end if;
        update outbox.slot as s
        set delivered_lsn = v_slot.confirmed_flush_lsn
        where s.name = v_slot.name and s.delivered_lsn is distinct from v_slot.confirmed_flush_lsn;
        v_confirmed := least(v_confirmed, v_slot.confirmed_flush_lsn);
    end loop;
    -- no slot has ever read the outbox, so it is the only copy
    if v_confirmed is null then
        return;
    end if;

    for v_partition in
        select p.name, p.estimated_events, p.bytes
        from outbox.partition as p
        where not p.is_default and p.to_time < now() - (select s.retention from outbox.settings as s)
        order by p.from_time
    loop
        select s.lsn into v_sealed from outbox.sealed_partition as s where s.partition = v_partition.name;
        if not found then
            begin
                -- whoever has written to it holds a lock until its transaction ends
                execute format('lock table outbox.%I in share mode nowait', v_partition.name);
            exception
                when lock_not_available then
                    continue;
            end;
            insert into outbox.sealed_partition (partition, lsn) values (v_partition.name, pg_current_wal_insert_lsn());
        elsif v_confirmed >= v_sealed then
            lock table outbox.event in access exclusive mode;
            execute format('select exists (select from outbox.%I as e where e.lsn >= $1)', v_partition.name)
            into v_is_late using v_sealed;
            delete from outbox.sealed_partition as s where s.partition = v_partition.name;
            -- somebody gave a created_at of his own: seal it again
            continue when v_is_late;
            execute format('drop table outbox.%I', v_partition.name);
            partition := v_partition.name;
            estimated_events := v_partition.estimated_events;
            bytes := v_partition.bytes;
            return next;
        end if;
    end loop;
end
$function$;

comment on function outbox.drop_partitions() is
'Drops partitions that are past outbox.settings.retention and that every slot of outbox.slot has confirmed; returns them. In two calls: the first seals a partition to which nobody writes, a later one drops it once the seal is confirmed. Raises XP016 while a registered slot is missing or lost: the outbox is then the only copy; XP021 while a slot may have left out what is older than it. Does nothing where no slot is registered. Waits at most 2 s for a lock.';

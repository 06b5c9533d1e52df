-- with the lock held, yoyo's own is one that a killed process left
delete from expiration.yoyo_lock;

do $check$
declare
    v_known constant jsonb := @known@;
    v_hint constant text := 'Use that version, or a later one, of pyrunner.';
    v_name text;
begin
    select m.migration_id into v_name
    from expiration._yoyo_migration as m
    where not v_known ? m.migration_id
    order by m.migration_id desc
    limit 1;
    if found then
        raise exception using
            message = format(
                'the database is newer than this script: it has migration %s, which pyrunner @version@ does not know', v_name
            ),
            hint = v_hint;
    end if;

    select i.version into v_name
    from expiration.installation as i
    order by i.installed_at desc
    limit 1;
    if array(select n[1]::integer from regexp_matches(split_part(v_name, '+', 1), '\d+', 'g') as n) > array@numbers@ then
        raise exception using
            message = format('the database is newer than this script: it has version %s, and this is @version@', v_name),
            hint = v_hint;
    end if;

    -- migrations that yoyo alone has applied are taken as they are
    insert into expiration.migration_checksum (migration_id, checksum)
    select m.migration_id, v_known ->> m.migration_id
    from expiration._yoyo_migration as m
    on conflict do nothing;

    select c.migration_id into v_name
    from expiration.migration_checksum as c
    where c.checksum <> v_known ->> c.migration_id
    order by c.migration_id
    limit 1;
    if found then
        raise exception using
            message = format('migration %s was edited after it had been applied to this database', v_name),
            hint = 'Put it back as it was, and make the change by a new migration.';
    end if;
end
$check$;

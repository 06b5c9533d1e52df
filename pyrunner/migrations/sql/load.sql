-- Makes the functions, views and triggers of expiration.installed_file, in the order given there.
-- They are replaced in place, which those who execute them at this moment do not notice. What PostgreSQL refuses to
-- replace (another return type, other columns) is dropped first; what no file makes any more is dropped last.
do $load$
declare
    v_last_migration constant text := (
        select m.migration_id
        from expiration._yoyo_migration as m
        order by m.applied_at_utc desc, m.migration_id desc
        limit 1
    );
    v_unit record;
    v_object record;
    v_stamps text[];
    v_tried text[] := '{}';
    v_all boolean := false;
    v_grants jsonb := '[]';
    v_grant text;
    v_state text;
    v_detail text;
begin
    loop
        begin
            v_stamps := array(select c.stamp from expiration.loadable_objects() as c);
            for v_unit in
                select f.file, f.part, f.position, f.kind, f.source, f.checksum, f.loaded_checksum, f.loaded_after
                from expiration.installed_file as f
                order by f.position
            loop
                -- to replace a view or a trigger locks its relation: one that is as it should be stays as it is
                if v_unit.kind in ('view', 'trigger')
                    and v_unit.checksum = v_unit.loaded_checksum
                    and (v_unit.kind = 'trigger' or v_unit.loaded_after = v_last_migration)
                    and (
                        select coalesce(bool_and(c.object is not null and o.fingerprint = expiration.fingerprint(c.class, c.object)), false)
                        from expiration.installed_object as o
                        left join expiration.loadable_objects() as c on o.kind = c.kind and o.identity = c.identity
                        where o.file = v_unit.file and o.part = v_unit.part
                    )
                then
                    update expiration.installed_object as o
                    set position = v_unit.position
                    where o.file = v_unit.file and o.part = v_unit.part;
                    continue;
                end if;

                execute v_unit.source;

                -- what the same file made before and does not make now, such as the function with its former arguments
                for v_object in
                    delete from expiration.installed_object as o
                    where o.file = v_unit.file and o.part = v_unit.part
                    returning o.kind, o.identity, (
                        select c.stamp = any (v_stamps)
                        from expiration.loadable_objects() as c
                        where c.kind = o.kind and c.identity = o.identity
                    ) as is_stale
                loop
                    if v_object.is_stale then
                        execute format('drop %s %s', v_object.kind, v_object.identity);
                    end if;
                end loop;

                insert into expiration.installed_object as o (kind, identity, file, part, position, fingerprint)
                select c.kind, c.identity, v_unit.file, v_unit.part, v_unit.position, expiration.fingerprint(c.class, c.object)
                from expiration.loadable_objects() as c
                where c.stamp <> all (v_stamps)
                on conflict (kind, identity) do update
                set file = excluded.file, part = excluded.part, position = excluded.position, fingerprint = excluded.fingerprint;
                v_stamps := array(select c.stamp from expiration.loadable_objects() as c);
            end loop;

            update expiration.installed_file set loaded_checksum = checksum, loaded_after = v_last_migration;

            -- what no file makes any more
            for v_object in
                select o.kind, o.identity, c.object is not null as is_there
                from expiration.installed_object as o
                left join expiration.loadable_objects() as c on o.kind = c.kind and o.identity = c.identity
                where not exists (
                    select from expiration.installed_file as f where f.file = o.file and f.part = o.part
                )
                order by o.position desc, o.kind desc
            loop
                if v_object.is_there then
                    execute format('drop %s %s', v_object.kind, v_object.identity);
                end if;
                delete from expiration.installed_object as o
                where o.kind = v_object.kind and o.identity = v_object.identity;
            end loop;
            exit;
        exception
            when invalid_function_definition or invalid_table_definition or wrong_object_type
                or ambiguous_function or dependent_objects_still_exist
            then
                if v_all then
                    raise;
                end if;
                get stacked diagnostics v_state = returned_sqlstate;
        end;

        -- first without what was refused alone, then without everything that we have made
        v_all := v_state in ('42725', '2BP01') or v_unit.file = any (v_tried);
        v_tried := v_tried || v_unit.file;
        begin
            for v_object in
                select o.kind, o.identity, c.object, coalesce(p.proacl, r.relacl) as acl
                from expiration.installed_object as o
                inner join expiration.loadable_objects() as c on o.kind = c.kind and o.identity = c.identity
                left join pg_proc as p on c.class = 'pg_proc'::regclass and c.object = p.oid
                left join pg_class as r on c.class = 'pg_class'::regclass and c.object = r.oid
                where v_all or o.file = v_unit.file
                order by o.position desc, o.kind desc
            loop
                -- what others were granted by hand is granted again
                v_grants := v_grants || coalesce(
                    (
                        select jsonb_agg(jsonb_build_object(
                            'kind', v_object.kind,
                            'identity', v_object.identity,
                            'statement', format(
                                'grant %s on %s %s to %I%s', a.privilege_type,
                                case v_object.kind when 'view' then 'table' else v_object.kind end, v_object.identity,
                                pg_get_userbyid(a.grantee), case when a.is_grantable then ' with grant option' end
                            )
                        ))
                        from aclexplode(v_object.acl) as a
                        where a.grantee <> 0 and pg_get_userbyid(a.grantee) !~ '^crm_(owner|runner|operator|monitor|app)$'
                    ),
                    '[]'
                );
                execute format('drop %s %s', v_object.kind, v_object.identity);
            end loop;
        exception
            when dependent_objects_still_exist then
                get stacked diagnostics v_detail = pg_exception_detail;
                if v_all then
                    raise exception using
                        errcode = 'dependent_objects_still_exist',
                        message = format(
                            '%s %s has to be dropped and made anew, and others depend on it: %s',
                            v_object.kind, v_object.identity, replace(v_detail, E'\n', ', ')
                        ),
                        hint = 'Drop what depends on it, install again, and make it anew.';
                end if;
        end;
    end loop;

    for v_grant in
        select g.value ->> 'statement'
        from jsonb_array_elements(v_grants) as g
        inner join expiration.loadable_objects() as c
            on c.kind = g.value ->> 'kind' and c.identity = g.value ->> 'identity'
    loop
        execute v_grant;
    end loop;
end
$load$;

-- Roles and schemas. Run before every migration; changes nothing that is already right.
-- Needs: superuser, or CREATEROLE together with CREATE on this database.
do $bootstrap$
declare
    v_role record;
begin
    for v_role in
        select *
        from (values
            ('crm_owner', 'Owns every object of the expiration engine; nobody logs in as it.'),
            ('crm_runner', 'Runs the expiration jobs: pg_cron, pyrunner, or a DBA by hand.'),
            ('crm_operator', 'Runs the jobs, pauses, resumes and stops them, changes settings, retries failed items.'),
            ('crm_monitor', 'Reads runs, batches, failed items and status; changes nothing.'),
            ('crm_app', 'The CRM itself: managers'' commands and the readers of leads and bookings.'),
            ('crm_chessboard', 'The consumer chessboard: frees property objects, in schema chessboard alone.'),
            ('crm_notifications', 'The consumer notifications: files and sends notices, in schema notifications alone.')
        ) as wanted (name, purpose)
    loop
        if not exists (select from pg_catalog.pg_roles r where r.rolname = v_role.name) then
            begin
                execute pg_catalog.format('create role %I nologin', v_role.name);
                execute pg_catalog.format('comment on role %I is %L', v_role.name, v_role.purpose);
            exception
                -- roles belong to the cluster: another database may be installed at this very moment
                when duplicate_object or unique_violation then
                    raise notice 'role % was made by somebody else meanwhile', v_role.name;
            end;
        end if;
    end loop;

    -- what a monitor sees a runner sees, what a runner does an operator does
    for v_role in
        select *
        from (values ('crm_monitor', 'crm_runner'), ('crm_runner', 'crm_operator')) as part (name, member)
    loop
        if not pg_catalog.pg_has_role(v_role.member, v_role.name, 'usage') then
            begin
                execute pg_catalog.format('grant %I to %I', v_role.name, v_role.member);
            exception
                when unique_violation then
                    raise notice '% was granted by somebody else meanwhile', v_role.name;
            end;
        end if;
    end loop;

    -- whoever installs acts as the owner; a superuser needs no membership for it
    if not (select r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user) then
        begin
            if pg_catalog.current_setting('server_version_num')::int >= 160000 then
                execute pg_catalog.format('grant crm_owner to %I with inherit true, set true', current_user);
            elsif not pg_catalog.pg_has_role(current_user, 'crm_owner', 'member') then
                execute pg_catalog.format('grant crm_owner to %I', current_user);
            end if;
        exception
            when insufficient_privilege then
                if not pg_catalog.pg_has_role(current_user, 'crm_owner', 'member') then
                    raise exception using
                        errcode = 'insufficient_privilege',
                        message = pg_catalog.format('%s may not act as crm_owner', current_user),
                        hint = pg_catalog.format('As a superuser: grant crm_owner to %I', current_user);
                end if;
        end;
    end if;

    -- the engine asks pg_stat_activity whether the backend of a run is still at work
    if not pg_catalog.pg_has_role('crm_owner', 'pg_read_all_stats', 'member') then
        begin
            grant pg_read_all_stats to crm_owner;
        exception
            when insufficient_privilege then
                raise warning using
                    message = 'crm_owner may not read other sessions'' state; abandoned runs are found by their silence only',
                    hint = 'As a superuser: grant pg_read_all_stats to crm_owner';
            when unique_violation then
                raise notice 'pg_read_all_stats was granted by somebody else meanwhile';
        end;
    end if;
end
$bootstrap$;

create schema if not exists crm authorization crm_owner;
create schema if not exists outbox authorization crm_owner;
create schema if not exists expiration authorization crm_owner;
create schema if not exists chessboard authorization crm_owner;
create schema if not exists notifications authorization crm_owner;

do $comments$
declare
    v_schema record;
begin
    for v_schema in
        select *
        from (values
            ('crm', 'The domain: leads, bookings and what hangs on them; their transitions, batches and commands.'),
            ('outbox', 'Integration events: append only, partitioned by day, read from the log by Debezium.'),
            ('expiration', 'The engine: settings, runs, batches and failed items of the jobs; run protocol and views.'),
            ('chessboard', 'The consumer chessboard: which property objects of expired bookings are for sale again.'),
            ('notifications', 'The consumer notifications: notices to agents.')
        ) as ours (name, purpose)
    loop
        -- a schema that was there before us keeps its owner and its comment
        if exists (
            select
            from pg_catalog.pg_namespace n
            where
                n.nspname = v_schema.name
                and n.nspowner = 'crm_owner'::pg_catalog.regrole
                and pg_catalog.obj_description(n.oid, 'pg_namespace') is null
        ) then
            execute pg_catalog.format('comment on schema %I is %L', v_schema.name, v_schema.purpose);
        end if;
    end loop;
end
$comments$;

-- a schema that a team has already stays theirs; the owner of the engine works in it
do $schemas$
declare
    v_schema name;
begin
    for v_schema in
        select n.nspname
        from pg_catalog.pg_namespace as n
        where
            n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')
            and not pg_catalog.has_schema_privilege('crm_owner', n.oid, 'usage, create')
    loop
        execute pg_catalog.format('grant usage, create on schema %I to crm_owner', v_schema);
        execute pg_catalog.format('grant usage on schema %I to crm_monitor, crm_runner, crm_app', v_schema);
    end loop;
end
$schemas$;

-- nothing that the owner makes can be executed by everybody
alter default privileges for role crm_owner revoke execute on functions from public;

-- pyrunner 0.4.0: expiration of leads and bookings inside PostgreSQL, the whole installation.
--
--   psql -X -d DATABASE -f THIS_FILE
--
-- As a superuser, or as a role with CREATEROLE and with CREATE on the database. One transaction: after an error
-- nothing has changed. An installation of an earlier version is upgraded. Where others hold a lock for more than two
-- seconds it gives up instead of keeping them waiting: run it again.
\set ON_ERROR_STOP on
\set QUIET on
\encoding UTF8
begin isolation level read committed read write;

-- Settings of one transaction of an installation, whatever the role's and the database's own are.
set local client_min_messages = warning;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
-- nobody may queue behind us for long
set local lock_timeout = '2s';
set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = on;
set local standard_conforming_strings = on;
set local datestyle = 'ISO, DMY';
set local intervalstyle = 'postgres';
set local timezone = 'UTC';
do $settings$
begin
    if pg_catalog.current_setting('server_version_num')::int >= 170000 then
        perform pg_catalog.set_config('transaction_timeout', '0', true);
    end if;
end
$settings$;

do $version$
begin
    if pg_catalog.current_setting('server_version_num')::int < 150000 then
        raise exception using
            errcode = 'feature_not_supported',
            message = pg_catalog.format(
                'PostgreSQL 15 or newer is needed, and this server is %s',
                pg_catalog.current_setting('server_version')
            );
    end if;
    -- one installation of a database at a time
    set local lock_timeout = 0;
    perform pg_catalog.pg_advisory_xact_lock(1886942837, 1);
    perform pg_catalog.pg_advisory_xact_lock(1886942837, 2);
end
$version$;
set local lock_timeout = '2s';

-- 1. Roles and schemas

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

-- 2. The record of the installation

set local role crm_owner;

-- The record of the installation. The first four tables are yoyo's, as yoyo 9 makes them; `yoyo list` reads them.
create table if not exists expiration.yoyo_lock (
    locked integer default 1,
    ctime timestamp,
    pid integer not null,
    primary key (locked)
);
comment on table expiration.yoyo_lock is 'yoyo''s lock: a row while migrations are being applied.';

create table if not exists expiration._yoyo_migration (
    migration_hash varchar(64),
    migration_id varchar(255),
    applied_at_utc timestamp,
    primary key (migration_hash)
);
comment on table expiration._yoyo_migration is 'yoyo''s record of the migrations that have been applied.';

create table if not exists expiration._yoyo_log (
    id varchar(36),
    migration_hash varchar(64),
    migration_id varchar(255),
    operation varchar(10),
    username varchar(255),
    hostname varchar(255),
    comment varchar(255),
    created_at_utc timestamp,
    primary key (id)
);
comment on table expiration._yoyo_log is 'yoyo''s log: which migration was applied when, by whom, from where.';

create table if not exists expiration._yoyo_version (
    version integer not null,
    installed_at_utc timestamp,
    primary key (version)
);
comment on table expiration._yoyo_version is 'Version of the layout of yoyo''s own tables.';
insert into expiration._yoyo_version (version, installed_at_utc)
select 2, clock_timestamp() at time zone 'UTC'
where not exists (select from expiration._yoyo_version);

create table if not exists expiration.installation (
    version text not null,
    installed_at timestamptz not null,
    installed_by text not null,
    last_migration text not null,
    checksum text not null,
    constraint installation_pkey primary key (version)
);
comment on table expiration.installation is 'Versions that have been installed completely; the one installed last is in force.';
comment on column expiration.installation.version is 'Version of pyrunner.';
comment on column expiration.installation.installed_at is 'When it was last installed.';
comment on column expiration.installation.installed_by is 'The role that installed it.';
comment on column expiration.installation.last_migration is 'The last migration of that version.';
comment on column expiration.installation.checksum is 'SHA-256 of the functions, views and grants.';

create table if not exists expiration.migration_checksum (
    migration_id text not null,
    checksum text not null,
    constraint migration_checksum_pkey primary key (migration_id)
);
comment on table expiration.migration_checksum is 'What the applied migrations said, to notice that a file was edited afterwards.';
comment on column expiration.migration_checksum.migration_id is 'The migration, named as by yoyo.';
comment on column expiration.migration_checksum.checksum is 'SHA-256 of the file.';

create table if not exists expiration.installed_file (
    file text not null,
    part integer not null,
    position integer not null,
    kind text not null,
    source text not null,
    checksum text not null,
    loaded_checksum text,
    loaded_after text,
    constraint installed_file_pkey primary key (file, part),
    constraint installed_file_kind_is_known check (kind in ('routine', 'view', 'trigger'))
);
comment on table expiration.installed_file is 'The files that functions, views and triggers were loaded from.';
comment on column expiration.installed_file.file is 'Path below sql/functions.';
comment on column expiration.installed_file.part is '2 for the triggers at the end of a file, else 1.';
comment on column expiration.installed_file.position is 'Place in the order of loading.';
comment on column expiration.installed_file.kind is 'routine, view or trigger.';
comment on column expiration.installed_file.source is 'The text.';
comment on column expiration.installed_file.checksum is 'SHA-256 of the text.';
comment on column expiration.installed_file.loaded_checksum is 'Checksum of the text that the objects were made from.';
comment on column expiration.installed_file.loaded_after is 'The last migration at that time.';

create table if not exists expiration.installed_object (
    kind text not null,
    identity text not null,
    file text not null,
    part integer not null,
    position integer not null,
    fingerprint text not null,
    constraint installed_object_pkey primary key (kind, identity)
);
comment on table expiration.installed_object is 'Functions, procedures, views and triggers that the installation made; nothing else is ever dropped by it.';
comment on column expiration.installed_object.kind is 'function, procedure, view or trigger.';
comment on column expiration.installed_object.identity is 'Name, as in a DROP statement.';
comment on column expiration.installed_object.file is 'The file that made it.';
comment on column expiration.installed_object.part is 'The part of the file.';
comment on column expiration.installed_object.position is 'Place in the order of making; dropped in reverse.';
comment on column expiration.installed_object.fingerprint is 'MD5 of its definition, to notice that it was changed by hand.';

create or replace function expiration.loadable_objects()
returns table (class oid, object oid, kind text, identity text, stamp text)
language sql stable parallel safe
as $function$
    select
        c.class, c.object, i.type, pg_catalog.replace(i.identity, 'pg_catalog.', ''),
        pg_catalog.format('%s %s %s %s', c.class, c.object, c.xmin, c.ctid)
    from (
        select 'pg_catalog.pg_proc'::pg_catalog.regclass::oid, p.oid, p.pronamespace, p.xmin, p.ctid
        from pg_catalog.pg_proc as p
        union all
        -- replacing a view leaves its row in pg_class as it is
        select 'pg_catalog.pg_class'::pg_catalog.regclass, v.oid, v.relnamespace, r.xmin, r.ctid
        from pg_catalog.pg_class as v
        inner join pg_catalog.pg_rewrite as r on v.oid = r.ev_class
        where v.relkind = 'v' and r.rulename = '_RETURN'
        union all
        select 'pg_catalog.pg_trigger'::pg_catalog.regclass, t.oid, c.relnamespace, t.xmin, t.ctid
        from pg_catalog.pg_trigger as t
        inner join pg_catalog.pg_class as c on t.tgrelid = c.oid
        where not t.tgisinternal and t.tgparentid = 0
    ) as c (class, object, namespace, xmin, ctid)
    inner join pg_catalog.pg_namespace as n on c.namespace = n.oid
    cross join lateral pg_catalog.pg_identify_object(c.class, c.object, 0) as i
    where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')
$function$;
comment on function expiration.loadable_objects() is
'Functions, procedures, views and triggers in our schemas, whoever made them. stamp changes whenever the object is replaced.';

create or replace function expiration.fingerprint(class oid, object oid) returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $function$
    select md5(concat_ws(
        '|',
        case fingerprint.class
            when 'pg_proc'::regclass then (
                select pg_get_functiondef(p.oid) from pg_proc as p where p.oid = fingerprint.object and p.prokind <> 'a'
            )
            when 'pg_class'::regclass then (
                select concat_ws('|', pg_get_viewdef(c.oid), c.reloptions) from pg_class as c where c.oid = fingerprint.object
            )
            when 'pg_trigger'::regclass then (
                select concat_ws('|', pg_get_triggerdef(t.oid), t.tgenabled) from pg_trigger as t where t.oid = fingerprint.object
            )
        end,
        (
            select d.description
            from pg_description as d
            where d.classoid = fingerprint.class and d.objoid = fingerprint.object and d.objsubid = 0
        )
    ))
$function$;
comment on function expiration.fingerprint(oid, oid) is
'MD5 of an object''s definition and comment; class is the catalog that holds it, as in pg_depend.';

-- with the lock held, yoyo's own is one that a killed process left
delete from expiration.yoyo_lock;

do $check$
declare
    v_known constant jsonb := '{
    "0001.crm": "a62f9404b735818b46969780af926b45f9e62f87b4317e92359a2b39f6bb3816",
    "0002.outbox": "2298d32455045aa08dd0fbdd4d2554bb7b8bfbcaa8c498f804a13eac5760ce26",
    "0003.expiration": "750feca4ef56cfe702c5a60a50d6b3a50435daef62bc4b54a304c6c77a0bfea7",
    "0004.claim": "d00ab5f2103056937ffaf7bac9c476a7b8346404f90a742cf5828994f7c81ab7",
    "0005.delivery": "b651abe058549708a537ba063d1c87fb9785a05f0a18223f2afb3cf2d1b249f2",
    "0006.figures": "7a7914616ed785b5c588995bcf2d5f57925d20ecd78448dbb2adb89eed8e978e",
    "0007.consumers": "bd82059d162e1d19673b6701c1de99a9009bffa5d48a620e1841198de3114bd5",
    "0008.gap": "574c7c60e25118c49d869a866ec13d0b2e4098c645eac6ed7791076bcf6fa07b"
}';
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
                'the database is newer than this script: it has migration %s, which pyrunner 0.4.0 does not know', v_name
            ),
            hint = v_hint;
    end if;

    select i.version into v_name
    from expiration.installation as i
    order by i.installed_at desc
    limit 1;
    if array(select n[1]::integer from regexp_matches(split_part(v_name, '+', 1), '\d+', 'g') as n) > array[0, 4, 0] then
        raise exception using
            message = format('the database is newer than this script: it has version %s, and this is 0.4.0', v_name),
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

-- 3. Tables, types and indexes; migrations that the database has are passed over

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '1b6026e19477b6e0ccdd0fd7b06f1af0b1a41cb6b5e0c57ec10c48882a2f5ee9'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- The domain: leads, bookings, deals, fixations, the deal's timeline, the audit log.
-- A table that is there already is its team's own and stays as it is: `pyrunner doctor` says what the engine misses in it.

do $table$
begin
    if to_regclass('crm.leads') is null then
        create table crm.leads (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            executor_agent_user_id uuid not null,
            primary_investor_user_id uuid,
            status text not null default 'Active',
            expires_at timestamptz,
            expired_at timestamptz,
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            version integer not null default 1,
            constraint leads_pkey primary key (id),
            constraint leads_status_is_known check (status in ('Active', 'Expired', 'Archived')),
            constraint leads_active_has_deadline check (status <> 'Active' or expires_at is not null),
            constraint leads_active_is_not_expired check (status <> 'Active' or expired_at is null),
            constraint leads_times_are_finite check (isfinite(expires_at) and isfinite(expired_at)),
            constraint leads_version_is_positive check (version >= 1)
        ) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

        comment on table crm.leads is 'Leads of all tenants. An Active lead expires once expires_at has passed; its agent can extend it again.';
        comment on column crm.leads.id is 'The lead.';
        comment on column crm.leads.tenant_id is 'The tenant (developer) it belongs to.';
        comment on column crm.leads.executor_agent_user_id is 'The agent at work on it, who is told to extend it.';
        comment on column crm.leads.primary_investor_user_id is 'The investor, where one is known.';
        comment on column crm.leads.status is 'Active, Expired or Archived.';
        comment on column crm.leads.expires_at is 'Deadline; an Active lead has one.';
        comment on column crm.leads.expired_at is 'The cut-off of the cycle that expired it; cleared when it is extended.';
        comment on column crm.leads.created_at is 'When the row was made.';
        comment on column crm.leads.updated_at is 'When it was last changed.';
        comment on column crm.leads.version is 'Optimistic lock: from 1, one more with every change.';

        create index ix_leads_expires_at on crm.leads (expires_at, id) where status = 'Active';
        comment on index crm.ix_leads_expires_at is 'Due leads, oldest deadline first: the claim of lead-expiration.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.bookings') is null then
        create table crm.bookings (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            deal_id uuid not null,
            property_object_id uuid not null,
            status text not null default 'Reserved',
            reserve_expires_at timestamptz,
            booking_expires_at timestamptz,
            expired_at timestamptz,
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            version integer not null default 1,
            constraint bookings_pkey primary key (id),
            constraint bookings_status_is_known check (
                status in ('Reserved', 'AwaitingPayment', 'Booked', 'ReserveExpired', 'BookingExpired', 'Cancelled')
            ),
            constraint bookings_reserve_has_deadline check (
                status not in ('Reserved', 'AwaitingPayment') or reserve_expires_at is not null
            ),
            constraint bookings_booked_has_deadline check (status <> 'Booked' or booking_expires_at is not null),
            constraint bookings_active_is_not_expired check (
                status not in ('Reserved', 'AwaitingPayment', 'Booked') or expired_at is null
            ),
            constraint bookings_times_are_finite check (
                isfinite(reserve_expires_at) and isfinite(booking_expires_at) and isfinite(expired_at)
            ),
            constraint bookings_version_is_positive check (version >= 1)
        ) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

        comment on table crm.bookings is 'Bookings of property objects. A reserve and a booking each have a deadline; both expire into a terminal state.';
        comment on column crm.bookings.id is 'The booking.';
        comment on column crm.bookings.tenant_id is 'The tenant (developer) it belongs to.';
        comment on column crm.bookings.deal_id is 'The deal it was made for.';
        comment on column crm.bookings.property_object_id is 'The property object that it keeps from sale.';
        comment on column crm.bookings.status is 'Reserved, AwaitingPayment, Booked; terminal: ReserveExpired, BookingExpired, Cancelled.';
        comment on column crm.bookings.reserve_expires_at is 'Deadline of the reserve (Reserved, AwaitingPayment).';
        comment on column crm.bookings.booking_expires_at is 'Deadline of the booking (Booked).';
        comment on column crm.bookings.expired_at is 'The cut-off of the cycle that expired it.';
        comment on column crm.bookings.created_at is 'When the row was made.';
        comment on column crm.bookings.updated_at is 'When it was last changed.';
        comment on column crm.bookings.version is 'Optimistic lock: from 1, one more with every change.';

        create index ix_bookings_reserve_expires_at on crm.bookings (reserve_expires_at, id)
        where status in ('Reserved', 'AwaitingPayment');
        comment on index crm.ix_bookings_reserve_expires_at is 'Due reserves, oldest deadline first: the claim of phase Reserve.';

        create index ix_bookings_booking_expires_at on crm.bookings (booking_expires_at, id) where status = 'Booked';
        comment on index crm.ix_bookings_booking_expires_at is 'Due bookings, oldest deadline first: the claim of phase Booking.';

        create unique index ux_bookings_property_object_id on crm.bookings (property_object_id)
        where status in ('Reserved', 'AwaitingPayment', 'Booked');
        comment on index crm.ux_bookings_property_object_id is 'At most one active booking keeps a property object.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.deals') is null then
        create table crm.deals (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            lead_id uuid not null,
            status text not null default 'Active',
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            constraint deals_pkey primary key (id)
        );
        -- a team's own leads need not let anybody refer to them
        if has_table_privilege('crm.leads', 'references') then
            alter table crm.deals add constraint deals_lead_id_fkey foreign key (lead_id) references crm.leads (id);
        end if;
        comment on table crm.deals is 'Deals of leads. The expiration of a lead leaves its deals as they are (INV-LEAD-4).';
        comment on column crm.deals.id is 'The deal.';
        comment on column crm.deals.tenant_id is 'The tenant it belongs to.';
        comment on column crm.deals.lead_id is 'The lead it grew from.';
        comment on column crm.deals.status is 'State of the deal; the engine neither reads nor writes it.';
        comment on column crm.deals.created_at is 'When the row was made.';
        comment on column crm.deals.updated_at is 'When it was last changed.';
        create index ix_deals_lead_id on crm.deals (lead_id);
        comment on index crm.ix_deals_lead_id is 'Deals of a lead.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.fixations') is null then
        create table crm.fixations (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            lead_id uuid not null,
            status text not null default 'Active',
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now(),
            constraint fixations_pkey primary key (id)
        );
        -- a team's own leads need not let anybody refer to them
        if has_table_privilege('crm.leads', 'references') then
            alter table crm.fixations add constraint fixations_lead_id_fkey foreign key (lead_id) references crm.leads (id);
        end if;
        comment on table crm.fixations is 'Fixations of clients to agents. The expiration of a lead leaves them as they are (INV-LEAD-4).';
        comment on column crm.fixations.id is 'The fixation.';
        comment on column crm.fixations.tenant_id is 'The tenant it belongs to.';
        comment on column crm.fixations.lead_id is 'The lead it fixes.';
        comment on column crm.fixations.status is 'State of the fixation; the engine neither reads nor writes it.';
        comment on column crm.fixations.created_at is 'When the row was made.';
        comment on column crm.fixations.updated_at is 'When it was last changed.';
        create index ix_fixations_lead_id on crm.fixations (lead_id);
        comment on index crm.ix_fixations_lead_id is 'Fixations of a lead.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.deal_timeline') is null then
        create table crm.deal_timeline (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            deal_id uuid not null,
            booking_id uuid not null,
            kind text not null,
            phase text,
            occurred_at timestamptz not null default now(),
            correlation_id uuid,
            constraint deal_timeline_pkey primary key (id)
        );
        comment on table crm.deal_timeline is 'Cards on a deal''s timeline; one a change of its booking, written in the transaction of the change.';
        comment on column crm.deal_timeline.id is 'The card.';
        comment on column crm.deal_timeline.tenant_id is 'The tenant it belongs to.';
        comment on column crm.deal_timeline.deal_id is 'The deal whose timeline it stands on.';
        comment on column crm.deal_timeline.booking_id is 'The booking that changed.';
        comment on column crm.deal_timeline.kind is 'The domain event: BookingExpired, BookingConfirmed, BookingExtended, BookingCancelled, PropertyReserved.';
        comment on column crm.deal_timeline.phase is 'Reserve or Booking where the event has one.';
        comment on column crm.deal_timeline.occurred_at is 'When it happened; for an expiration the cut-off of its cycle.';
        comment on column crm.deal_timeline.correlation_id is 'The run that did it, or the caller''s own id.';
        create index ix_deal_timeline_deal_id on crm.deal_timeline (deal_id);
        comment on index crm.ix_deal_timeline_deal_id is 'The timeline of a deal.';
    end if;
end
$table$;

do $table$
begin
    if to_regclass('crm.audit_log') is null then
        create table crm.audit_log (
            id uuid not null default gen_random_uuid(),
            tenant_id uuid not null,
            entity_type text not null,
            entity_id uuid not null,
            action text not null,
            actor text not null,
            from_status text,
            to_status text,
            correlation_id uuid,
            occurred_at timestamptz not null default now(),
            constraint audit_log_pkey primary key (id)
        );
        comment on table crm.audit_log is 'One row a transition, written in its transaction.';
        comment on column crm.audit_log.id is 'The audit row.';
        comment on column crm.audit_log.tenant_id is 'The tenant of the entity.';
        comment on column crm.audit_log.entity_type is 'Lead or Booking.';
        comment on column crm.audit_log.entity_id is 'The lead or booking.';
        comment on column crm.audit_log.action is 'Expire, Confirm, Extend, Cancel or Reserve.';
        comment on column crm.audit_log.actor is 'system for the jobs, otherwise who gave the command.';
        comment on column crm.audit_log.from_status is 'Status before; null for a new entity.';
        comment on column crm.audit_log.to_status is 'Status after.';
        comment on column crm.audit_log.correlation_id is 'The run that did it, or the caller''s own id.';
        comment on column crm.audit_log.occurred_at is 'When it happened; for an expiration the cut-off of its cycle.';
        create index ix_audit_log_entity_id on crm.audit_log (entity_id);
        comment on index crm.ix_audit_log_entity_id is 'The history of an entity.';
    end if;
end
$table$;

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '1b6026e19477b6e0ccdd0fd7b06f1af0b1a41cb6b5e0c57ec10c48882a2f5ee9', '0001.crm', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('1b6026e19477b6e0ccdd0fd7b06f1af0b1a41cb6b5e0c57ec10c48882a2f5ee9', '0001.crm', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0001.crm', 'a62f9404b735818b46969780af926b45f9e62f87b4317e92359a2b39f6bb3816');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = 'b86064f70e0bd014294d801691259df31cd32936a623bf5712d95f818db54503'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- The transactional outbox: append only, a partition a day, dropped whole when it has been delivered.
-- depends: 0001.crm

create table outbox.event (
    seq bigint generated always as identity,
    id uuid not null default gen_random_uuid(),
    created_at timestamptz not null default now(),
    aggregate_type text not null,
    aggregate_id uuid not null,
    tenant_id uuid not null,
    event_type text not null,
    contract_version integer not null default 1,
    topic text not null,
    payload jsonb not null,
    correlation_id uuid,
    traceparent text,
    occurred_at timestamptz not null default now(),
    lsn pg_lsn not null default pg_current_wal_insert_lsn(),
    constraint event_pkey primary key (created_at, seq),
    constraint event_is_routable check (topic <> '' and event_type <> '' and aggregate_type <> ''),
    constraint event_contract_version_is_positive check (contract_version >= 1),
    constraint event_payload_is_object check (jsonb_typeof(payload) = 'object')
) partition by range (created_at);

comment on table outbox.event is 'Integration events, one row each, read from the log by Debezium. Append only: UPDATE is refused, partitions go whole.';
comment on column outbox.event.seq is 'Order of insertion; gaps are normal, and it is not the order of commit.';
comment on column outbox.event.id is 'Event id: what consumers tell repeats by. A replay appends the same id again.';
comment on column outbox.event.created_at is 'Start of the transaction that appended it; chooses the partition.';
comment on column outbox.event.aggregate_type is 'Lead or Booking.';
comment on column outbox.event.aggregate_id is 'The lead or booking; the key in Kafka.';
comment on column outbox.event.tenant_id is 'The tenant of the aggregate.';
comment on column outbox.event.event_type is 'Name of the event, such as LeadExpiredEvent.';
comment on column outbox.event.contract_version is 'Version of the payload''s contract.';
comment on column outbox.event.topic is 'Kafka topic.';
comment on column outbox.event.payload is 'The event as JSON: camelCase names, times in UTC by ISO 8601, no personal data.';
comment on column outbox.event.correlation_id is 'The run that caused it.';
comment on column outbox.event.traceparent is 'W3C trace context: the trace is the run, the parent span its batch.';
comment on column outbox.event.occurred_at is 'When it happened in the domain: the cut-off of the cycle.';
comment on column outbox.event.lsn is 'Position in the log at insertion: beyond a slot''s confirmed_flush_lsn it is not published yet.';

create index ix_event_lsn on outbox.event using brin (lsn) with (pages_per_range = 16);
comment on index outbox.ix_event_lsn is 'Unpublished events: those beyond a slot''s confirmed position.';

create table outbox.event_default partition of outbox.event default;
comment on table outbox.event_default is 'Catches events for which upkeep made no partition; should be empty.';

create table outbox.settings (
    only_row boolean not null default true,
    partitions_ahead integer not null default 7,
    retention interval not null default interval '7 days',
    constraint settings_pkey primary key (only_row),
    constraint settings_has_one_row check (only_row),
    constraint settings_partitions_ahead_is_sane check (partitions_ahead between 1 and 366),
    constraint settings_retention_is_positive check (retention > interval '0')
);
comment on table outbox.settings is 'Settings of the outbox: one row.';
comment on column outbox.settings.only_row is 'Keeps the table to one row.';
comment on column outbox.settings.partitions_ahead is 'How many days of partitions upkeep keeps ready beyond today.';
comment on column outbox.settings.retention is 'How long delivered partitions are kept.';
insert into outbox.settings default values;

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), 'b86064f70e0bd014294d801691259df31cd32936a623bf5712d95f818db54503', '0002.outbox', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('b86064f70e0bd014294d801691259df31cd32936a623bf5712d95f818db54503', '0002.outbox', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0002.outbox', '2298d32455045aa08dd0fbdd4d2554bb7b8bfbcaa8c498f804a13eac5760ce26');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '97c24adca208ff5e729d84e47dc59b6137fe25e8298746453e5aef59bed2f107'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- The engine: settings, runs, batches, failed items, and the totals that outlive purged history.
-- depends: 0002.outbox

create table expiration.job (
    name text not null,
    period interval not null,
    batch_size integer not null,
    max_batches_per_cycle integer not null,
    max_duration interval not null,
    retry_failures_per_cycle integer not null default 100,
    max_transient_retries integer not null default 3,
    stale_after interval not null default interval '10 minutes',
    history_retention interval not null default interval '30 days',
    paused_at timestamptz,
    paused_by text,
    paused_reason text,
    updated_at timestamptz not null default now(),
    updated_by text not null default session_user,
    constraint job_pkey primary key (name),
    constraint job_period_is_positive check (period >= interval '1 second' and period <= interval '1 day'),
    constraint job_batch_size_is_positive check (batch_size between 1 and 100000),
    constraint job_max_batches_is_positive check (max_batches_per_cycle > 0),
    constraint job_max_duration_is_positive check (max_duration > interval '0'),
    constraint job_retry_failures_is_not_negative check (retry_failures_per_cycle >= 0),
    constraint job_transient_retries_is_sane check (max_transient_retries between 0 and 100),
    constraint job_stale_after_is_sane check (stale_after >= interval '10 seconds'),
    constraint job_history_retention_is_sane check (history_retention >= interval '1 hour')
);
comment on table expiration.job is 'Settings of the jobs, one row each: the control plane. Change them by expiration.set_job, pause and resume.';
comment on column expiration.job.name is 'lead-expiration or booking-expiration.';
comment on column expiration.job.period is 'Time between two cycles.';
comment on column expiration.job.batch_size is 'Rows a batch, so a transaction.';
comment on column expiration.job.max_batches_per_cycle is 'Full batches a cycle and phase; what is left waits for the next cycle.';
comment on column expiration.job.max_duration is 'A cycle that has worked this long starts no further batch.';
comment on column expiration.job.retry_failures_per_cycle is 'A cycle stops retrying failed items once so many failed again.';
comment on column expiration.job.max_transient_retries is 'How often in a cycle a batch is tried again after a deadlock, a lock timeout or a serialization failure.';
comment on column expiration.job.stale_after is 'A run that gave no sign of life for so long counts as abandoned where its backend cannot be asked.';
comment on column expiration.job.history_retention is 'How long runs and batches are kept; totals stay exact.';
comment on column expiration.job.paused_at is 'Since when it is paused; null when it is not.';
comment on column expiration.job.paused_by is 'Who paused it.';
comment on column expiration.job.paused_reason is 'Why.';
comment on column expiration.job.updated_at is 'When a setting was last changed.';
comment on column expiration.job.updated_by is 'By whom.';

insert into expiration.job (name, period, batch_size, max_batches_per_cycle, max_duration)
values
    ('lead-expiration', interval '1 hour', 500, 200, interval '55 minutes'),
    ('booking-expiration', interval '1 minute', 200, 1, interval '30 seconds');

create table expiration.run (
    id uuid not null default gen_random_uuid(),
    job text not null,
    driver text not null,
    instance text not null default '',
    status text not null default 'running',
    reason text,
    as_of timestamptz not null,
    started_at timestamptz not null default clock_timestamp(),
    finished_at timestamptz,
    expired bigint not null default 0,
    skipped_locked bigint not null default 0,
    failed bigint not null default 0,
    batches integer not null default 0,
    due_before bigint,
    batch_size integer not null,
    max_batches_per_cycle integer not null,
    max_duration interval not null,
    retries integer not null default 0,
    sqlstate text,
    error text,
    stop_requested_at timestamptz,
    stop_requested_by text,
    started_by text not null default session_user,
    backend_pid integer not null default pg_backend_pid(),
    backend_start timestamptz,
    statement_start timestamptz,
    constraint run_pkey primary key (id),
    constraint run_job_fkey foreign key (job) references expiration.job (name),
    constraint run_status_is_known check (
        status in ('running', 'completed', 'capped', 'stopped', 'failed', 'abandoned', 'skipped')
    ),
    constraint run_finished_has_time check ((status = 'running') = (finished_at is null)),
    constraint run_failed_has_sqlstate check (status <> 'failed' or sqlstate is not null)
);
comment on table expiration.run is 'One row a cycle, whoever drove it.';
comment on column expiration.run.id is 'The run: job run id, correlation id and trace id in one.';
comment on column expiration.run.job is 'The job.';
comment on column expiration.run.driver is 'pg_cron, pyrunner, psql (the procedure called by hand) or sql (a batch called alone).';
comment on column expiration.run.instance is 'Which of several such drivers; at most one run of a job, driver and instance works at a time.';
comment on column expiration.run.status is 'running, completed, capped, stopped, failed, abandoned or skipped.';
comment on column expiration.run.reason is 'Why it ended: drained, locked, capped, out of time, stop requested, paused, overlap, error, backend gone.';
comment on column expiration.run.as_of is 'The cut-off and the timestamp of every transition of the cycle.';
comment on column expiration.run.started_at is 'When it started, by the clock.';
comment on column expiration.run.finished_at is 'When it ended, by the clock.';
comment on column expiration.run.expired is 'Items expired.';
comment on column expiration.run.skipped_locked is 'Due items passed over because another transaction held them.';
comment on column expiration.run.failed is 'Items that failed alone.';
comment on column expiration.run.batches is 'Batches that claimed at least one item.';
comment on column expiration.run.due_before is 'Due items before the cycle, poison among them.';
comment on column expiration.run.batch_size is 'Batch size in force.';
comment on column expiration.run.max_batches_per_cycle is 'Cap in force.';
comment on column expiration.run.max_duration is 'Longest duration in force.';
comment on column expiration.run.retries is 'Batches tried again after a transient fault.';
comment on column expiration.run.sqlstate is 'SQLSTATE that failed it.';
comment on column expiration.run.error is 'Message that failed it.';
comment on column expiration.run.stop_requested_at is 'When somebody asked it to stop.';
comment on column expiration.run.stop_requested_by is 'Who.';
comment on column expiration.run.started_by is 'Login that started it.';
comment on column expiration.run.backend_pid is 'Backend that started it.';
comment on column expiration.run.backend_start is 'Start of that backend; null where a pooler may change the backend between calls.';
comment on column expiration.run.statement_start is 'Start of the CALL that is the whole run; null for drivers that call batch by batch.';
create index ix_run_job_started_at on expiration.run (job, started_at desc);
comment on index expiration.ix_run_job_started_at is 'History of a job, newest first.';
create index ix_run_running on expiration.run (job) where status = 'running';
comment on index expiration.ix_run_running is 'The few runs at work.';
create index ix_run_job_success on expiration.run (job, finished_at desc)
where status in ('completed', 'capped') and driver <> 'sql';
comment on index expiration.ix_run_job_success is 'The last successful cycle of a job.';

create table expiration.batch (
    run_id uuid not null,
    number integer not null,
    phase text not null,
    step text not null,
    started_at timestamptz not null,
    finished_at timestamptz not null default clock_timestamp(),
    claimed integer not null,
    expired integer not null,
    failed integer not null,
    skipped_locked integer not null,
    drained boolean not null,
    capped boolean not null default false,
    oldest_deadline timestamptz,
    last_deadline timestamptz,
    last_id uuid,
    phase_expired bigint not null,
    retry_failures integer not null default 0,
    failures jsonb,
    constraint batch_pkey primary key (run_id, number),
    constraint batch_run_id_fkey foreign key (run_id) references expiration.run (id) on delete cascade,
    constraint batch_step_is_known check (step in ('claim', 'retry'))
);
comment on table expiration.batch is 'One row a batch, appended in the batch''s own transaction; nobody ever updates it.';
comment on column expiration.batch.run_id is 'The run.';
comment on column expiration.batch.number is 'From 1.';
comment on column expiration.batch.phase is 'Lead, Reserve or Booking.';
comment on column expiration.batch.step is 'claim (due items in deadline order) or retry (items that failed before).';
comment on column expiration.batch.started_at is 'When it started, by the clock.';
comment on column expiration.batch.finished_at is 'When its work was done, just before COMMIT.';
comment on column expiration.batch.claimed is 'Items claimed.';
comment on column expiration.batch.expired is 'Items expired, each with one event.';
comment on column expiration.batch.failed is 'Items that failed alone.';
comment on column expiration.batch.skipped_locked is 'Due items in the batch''s range that another transaction held.';
comment on column expiration.batch.drained is 'Nothing of this step is left behind it.';
comment on column expiration.batch.capped is 'The cycle''s cap was reached here while due items were left.';
comment on column expiration.batch.oldest_deadline is 'Oldest deadline claimed.';
comment on column expiration.batch.last_deadline is 'Cursor: deadline of the last item claimed.';
comment on column expiration.batch.last_id is 'Cursor: id of the last item claimed.';
comment on column expiration.batch.phase_expired is 'Items expired so far in this run and phase.';
comment on column expiration.batch.retry_failures is 'Retried items that failed again so far in this run and phase.';
comment on column expiration.batch.failures is 'The failed items: array of {id, sqlstate, message}.';

create table expiration.failed_item (
    job text not null,
    phase text not null,
    item_id uuid not null,
    first_failed_at timestamptz not null,
    last_failed_at timestamptz not null,
    attempts integer not null default 1,
    sqlstate text not null,
    message text not null,
    run_id uuid not null,
    row_xmin xid not null,
    -- the item first: a look-up of items must not be able to walk all of a job, whatever the statistics say
    constraint failed_item_pkey primary key (item_id, job, phase)
);
comment on table expiration.failed_item is 'Poison: items that failed alone. A verdict on one version of the row: whoever changes the row frees it for the next cycle.';
comment on column expiration.failed_item.job is 'The job.';
comment on column expiration.failed_item.phase is 'Lead, Reserve or Booking.';
comment on column expiration.failed_item.item_id is 'The lead or booking.';
comment on column expiration.failed_item.first_failed_at is 'When it first failed.';
comment on column expiration.failed_item.last_failed_at is 'When it last failed.';
comment on column expiration.failed_item.attempts is 'How often it was tried.';
comment on column expiration.failed_item.sqlstate is 'SQLSTATE of the last failure.';
comment on column expiration.failed_item.message is 'Message of the last failure.';
comment on column expiration.failed_item.run_id is 'Run of the last failure.';
comment on column expiration.failed_item.row_xmin is 'Version (xmin) of the row that failed; a row with another one is claimed as any other.';
-- this column alone, for the same reason
create index ix_failed_item_last_failed_at on expiration.failed_item (last_failed_at);
comment on index expiration.ix_failed_item_last_failed_at is 'Failed items, longest waiting first.';

create table expiration.purged_batch_total (
    job text not null,
    phase text not null,
    batches bigint not null,
    expired bigint not null,
    failed bigint not null,
    skipped_locked bigint not null,
    constraint purged_batch_total_pkey primary key (job, phase)
);
comment on table expiration.purged_batch_total is 'What the purged batches had counted.';
comment on column expiration.purged_batch_total.job is 'The job.';
comment on column expiration.purged_batch_total.phase is 'Lead, Reserve or Booking.';
comment on column expiration.purged_batch_total.batches is 'Batches that claimed at least one item.';
comment on column expiration.purged_batch_total.expired is 'Items expired.';
comment on column expiration.purged_batch_total.failed is 'Failures of single items.';
comment on column expiration.purged_batch_total.skipped_locked is 'Due items passed over because another transaction held them.';

create table expiration.purged_run_total (
    job text not null,
    status text not null,
    runs bigint not null,
    seconds double precision not null,
    constraint purged_run_total_pkey primary key (job, status)
);
comment on table expiration.purged_run_total is 'What the purged runs had counted.';
comment on column expiration.purged_run_total.job is 'The job.';
comment on column expiration.purged_run_total.status is 'How the runs ended.';
comment on column expiration.purged_run_total.runs is 'Number of runs.';
comment on column expiration.purged_run_total.seconds is 'Their durations, summed.';

create type expiration.claim as (
    ids uuid[],
    deadlines timestamptz[],
    is_full boolean
);
comment on type expiration.claim is 'Items locked for a batch, in deadline order, and whether the batch is full, so that more may be due behind it.';

create type expiration.batch_result as (
    claimed integer,
    expired integer,
    failed integer,
    skipped_locked integer,
    drained boolean,
    oldest_deadline timestamptz,
    last_deadline timestamptz,
    last_id uuid,
    expired_ids uuid[],
    failures jsonb
);
comment on type expiration.batch_result is 'What a batch did. last_deadline and last_id are the cursor for the next; failures is an array of {id, sqlstate, message} or null.';

create type expiration.batch_report as (
    state text,
    reason text,
    number integer,
    phase text,
    step text,
    claimed integer,
    expired integer,
    failed integer,
    skipped_locked integer,
    elapsed_ms double precision,
    expired_ids uuid[],
    failures jsonb
);
comment on type expiration.batch_report is 'What run_batch says: state more or done; with done the reason; otherwise what the batch did, elapsed_ms in milliseconds.';

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '97c24adca208ff5e729d84e47dc59b6137fe25e8298746453e5aef59bed2f107', '0003.expiration', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('97c24adca208ff5e729d84e47dc59b6137fe25e8298746453e5aef59bed2f107', '0003.expiration', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0003.expiration', '750feca4ef56cfe702c5a60a50d6b3a50435daef62bc4b54a304c6c77a0bfea7');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '480e67ff836cb3006594e0be402a8ef9ef8abe31fe69c40d850cd932cb861208'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- A claim carries where its rows lie, and bookings their states: the transition goes straight to them.
-- depends: 0003.expiration

alter type expiration.claim add attribute row_ids tid[], add attribute statuses text[];
comment on type expiration.claim is 'Items locked for a batch, in deadline order: their deadlines, where the locked rows lie (ctid), the states of bookings; and whether the batch is full, so that more may be due behind it.';

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '480e67ff836cb3006594e0be402a8ef9ef8abe31fe69c40d850cd932cb861208', '0004.claim', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('480e67ff836cb3006594e0be402a8ef9ef8abe31fe69c40d850cd932cb861208', '0004.claim', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0004.claim', 'd00ab5f2103056937ffaf7bac9c476a7b8346404f90a742cf5828994f7c81ab7');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '4408baeea1caeaaf09fffcc9a995371d7537a21717ec3848e30b575a658a9a4f'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- From the outbox to Kafka and on to the consumers: slots that must be there, retention, replay, and the consumers' own tables.
-- depends: 0004.claim

alter table outbox.event add column replay_id uuid;
comment on column outbox.event.replay_id is 'The replay that appended the event once more; null at its first publication.';

create table outbox.slot (
    name text not null,
    publication text not null,
    connector text not null,
    created_at timestamptz not null default now(),
    created_by text not null default session_user,
    constraint slot_pkey primary key (name)
);
comment on table outbox.slot is 'Replication slots that read the outbox and are expected to be there: as long as one is missing or lost, no partition is dropped.';
comment on column outbox.slot.name is 'The slot, as in pg_replication_slots.';
comment on column outbox.slot.publication is 'The publication that it reads.';
comment on column outbox.slot.connector is 'The connector that reads from it.';
comment on column outbox.slot.created_at is 'When it was registered.';
comment on column outbox.slot.created_by is 'Who registered it.';

create table outbox.sealed_partition (
    partition text not null,
    sealed_at timestamptz not null default now(),
    lsn pg_lsn not null,
    constraint sealed_partition_pkey primary key (partition)
);
comment on table outbox.sealed_partition is 'Partitions past their retention to which nobody was writing: once every slot has confirmed the position of the seal, all their events are delivered.';
comment on column outbox.sealed_partition.partition is 'The partition, a table of schema outbox.';
comment on column outbox.sealed_partition.sealed_at is 'When it was sealed.';
comment on column outbox.sealed_partition.lsn is 'Position in the log then; every transaction that had written to the partition had committed before it.';

create table outbox.replay_log (
    id uuid not null default gen_random_uuid(),
    requested_at timestamptz not null default now(),
    requested_by text not null default session_user,
    reason text not null,
    event_ids uuid[],
    aggregate_id uuid,
    topic text,
    since timestamptz,
    until timestamptz,
    events bigint not null,
    constraint replay_log_pkey primary key (id),
    constraint replay_log_has_a_reason check (reason <> ''),
    constraint replay_log_events_is_positive check (events > 0)
);
comment on table outbox.replay_log is 'Who had which events published once more, when and why.';
comment on column outbox.replay_log.id is 'The replay: outbox.event.replay_id, and the header replayed in Kafka.';
comment on column outbox.replay_log.requested_at is 'When.';
comment on column outbox.replay_log.requested_by is 'By whom.';
comment on column outbox.replay_log.reason is 'Why, in the words of whoever asked.';
comment on column outbox.replay_log.event_ids is 'The events asked for by their ids.';
comment on column outbox.replay_log.aggregate_id is 'The lead or booking whose events were asked for.';
comment on column outbox.replay_log.topic is 'The topic whose events were asked for.';
comment on column outbox.replay_log.since is 'Events appended from then on.';
comment on column outbox.replay_log.until is 'Events appended before then.';
comment on column outbox.replay_log.events is 'How many events it appended.';

-- What the property chessboard and the notifications keep: each writes in its own schema alone.
create table chessboard.inbox (
    event_id uuid not null,
    topic text not null,
    received_at timestamptz not null default now(),
    constraint inbox_pkey primary key (event_id)
);
comment on table chessboard.inbox is 'Events that have had their effect; one that comes again has none.';
comment on column chessboard.inbox.event_id is 'The event.';
comment on column chessboard.inbox.topic is 'The topic that it came by.';
comment on column chessboard.inbox.received_at is 'When it had its effect.';

create table chessboard.release (
    booking_id uuid not null,
    property_object_id uuid not null,
    tenant_id uuid not null,
    phase text not null,
    event_id uuid,
    expired_at timestamptz not null,
    released_at timestamptz not null default now(),
    constraint release_pkey primary key (booking_id)
);
comment on table chessboard.release is 'Expired bookings whose property object the chessboard has freed for sale. An object with an expired booking that is not here is not for sale yet.';
comment on column chessboard.release.booking_id is 'The booking that had kept the object.';
comment on column chessboard.release.property_object_id is 'The property object.';
comment on column chessboard.release.tenant_id is 'The tenant of both.';
comment on column chessboard.release.phase is 'Reserve or Booking.';
comment on column chessboard.release.event_id is 'The event that freed it; null for what had expired before there was a chessboard.';
comment on column chessboard.release.expired_at is 'When the booking expired.';
comment on column chessboard.release.released_at is 'When the object was freed.';
create index ix_release_property_object_id on chessboard.release (property_object_id);
comment on index chessboard.ix_release_property_object_id is 'The releases of a property object.';

create table notifications.inbox (
    event_id uuid not null,
    topic text not null,
    received_at timestamptz not null default now(),
    constraint inbox_pkey primary key (event_id)
);
comment on table notifications.inbox is 'Events that have had their effect; one that comes again has none.';
comment on column notifications.inbox.event_id is 'The event.';
comment on column notifications.inbox.topic is 'The topic that it came by.';
comment on column notifications.inbox.received_at is 'When it had its effect.';

create table notifications.notice (
    event_id uuid not null,
    tenant_id uuid not null,
    lead_id uuid not null,
    agent_user_id uuid not null,
    kind text not null default 'ExtendLead',
    expired_at timestamptz not null,
    created_at timestamptz not null default now(),
    sent_at timestamptz,
    attempts integer not null default 0,
    last_attempt_at timestamptz,
    last_error text,
    constraint notice_pkey primary key (event_id),
    constraint notice_attempts_is_not_negative check (attempts >= 0)
);
comment on table notifications.notice is 'Notices to agents: this lead of yours has expired, extend it.';
comment on column notifications.notice.event_id is 'The event that it stems from; the idempotency key of its sending.';
comment on column notifications.notice.tenant_id is 'The tenant.';
comment on column notifications.notice.lead_id is 'The lead that expired.';
comment on column notifications.notice.agent_user_id is 'The agent to be told.';
comment on column notifications.notice.kind is 'ExtendLead.';
comment on column notifications.notice.expired_at is 'When the lead expired.';
comment on column notifications.notice.created_at is 'When the notice was filed.';
comment on column notifications.notice.sent_at is 'When it was sent; null as long as it was not.';
comment on column notifications.notice.attempts is 'How often its sending was tried in vain.';
comment on column notifications.notice.last_attempt_at is 'When it was last tried.';
comment on column notifications.notice.last_error is 'What the last try failed with.';
create index ix_notice_unsent on notifications.notice (created_at, event_id) where sent_at is null;
comment on index notifications.ix_notice_unsent is 'Notices to be sent, oldest first.';

do $parked$
declare
    v_schema text;
begin
    foreach v_schema in array array['chessboard', 'notifications'] loop
        execute format($ddl$
            create table %1$I.parked (
                id bigint generated always as identity,
                topic text not null,
                partition integer not null,
                kafka_offset bigint not null,
                event_id uuid,
                message_key text,
                headers jsonb not null,
                value bytea,
                reason text not null,
                parked_at timestamptz not null default now(),
                constraint parked_pkey primary key (id),
                constraint parked_once unique (topic, partition, kafka_offset)
            );
            comment on table %1$I.parked is 'Messages that could not be understood, put aside so that those behind them go on.';
            comment on column %1$I.parked.id is 'Number.';
            comment on column %1$I.parked.topic is 'Kafka topic.';
            comment on column %1$I.parked.partition is 'Its partition.';
            comment on column %1$I.parked.kafka_offset is 'Offset within the partition.';
            comment on column %1$I.parked.event_id is 'The event, where the message told.';
            comment on column %1$I.parked.message_key is 'Key of the message.';
            comment on column %1$I.parked.headers is 'Headers of the message.';
            comment on column %1$I.parked.value is 'The message as it came.';
            comment on column %1$I.parked.reason is 'What was wrong with it.';
            comment on column %1$I.parked.parked_at is 'When it was put aside.'
        $ddl$, v_schema);
    end loop;
end
$parked$;

-- whoever reserves a property object asks for its expired bookings; a team's own table may have an index for it already
do $index$
begin
    if not exists (
        select
        from pg_index as i
        inner join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where
            i.indrelid = 'crm.bookings'::regclass and a.attname = 'property_object_id'
            and (i.indpred is null or pg_get_expr(i.indpred, i.indrelid) ~ 'ReserveExpired')
    ) and (select c.relowner = 'crm_owner'::regrole from pg_class as c where c.oid = 'crm.bookings'::regclass) then
        create index ix_bookings_expired_property_object_id on crm.bookings (property_object_id)
        where status in ('ReserveExpired', 'BookingExpired');
        comment on index crm.ix_bookings_expired_property_object_id is 'Expired bookings of a property object, which the chessboard frees.';
    end if;
end
$index$;

-- what expired before there was a chessboard is for sale
insert into chessboard.release (booking_id, property_object_id, tenant_id, phase, expired_at)
select
    b.id, b.property_object_id, b.tenant_id,
    case b.status when 'BookingExpired' then 'Booking' else 'Reserve' end,
    coalesce(b.expired_at, b.updated_at)
from crm.bookings as b
where b.status in ('ReserveExpired', 'BookingExpired');

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '4408baeea1caeaaf09fffcc9a995371d7537a21717ec3848e30b575a658a9a4f', '0005.delivery', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('4408baeea1caeaaf09fffcc9a995371d7537a21717ec3848e30b575a658a9a4f', '0005.delivery', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0005.delivery', 'b651abe058549708a537ba063d1c87fb9785a05f0a18223f2afb3cf2d1b249f2');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '3d60062a2fdb3bad71d0cb9c33a678c2ac141ebb2b41cc7e217a6b132a44a95b'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- Figures that cost the same at any length of history: what is over is tallied once, and only what is not yet is summed.
-- depends: 0005.delivery

alter table expiration.job add column created_at timestamptz not null default now();
comment on column expiration.job.created_at is 'When it came into being; a job that has never succeeded is measured from then on.';

alter type expiration.batch_result add attribute lateness integer[], add attribute lateness_seconds double precision;
comment on type expiration.batch_result is 'What a batch did. last_deadline and last_id are the cursor for the next; failures is an array of {id, sqlstate, message} or null; lateness counts the expired items by bucket (expiration.lateness_bounds), null when there is none.';

-- what there is counts as tallied, since its sums are taken below, at once; what comes does not
create sequence expiration.tally_number_seq;
comment on sequence expiration.tally_number_seq is 'Numbers of tallied runs.';
alter table expiration.run add column tally_number bigint default 0;
alter table expiration.run alter column tally_number set default null;
comment on column expiration.run.tally_number is 'Place in the order in which runs were tallied, which is an order of commits; null until then, 0 for runs from before there was a tally.';
alter table expiration.batch
add column lateness integer[],
add column lateness_seconds double precision,
add column tallied boolean not null default true;
alter table expiration.batch alter column tallied set default false;
comment on column expiration.batch.lateness is 'Items expired, by bucket of lateness (as_of - deadline): see expiration.lateness_bounds; null when none expired.';
comment on column expiration.batch.lateness_seconds is 'Lateness of the items expired, summed; infinite deadlines left out.';
comment on column expiration.batch.tallied is 'Its counts are in expiration.batch_tally.';
update expiration.run set tally_number = null where status = 'running';
update expiration.batch as b
set tallied = false
from expiration.run as r
where b.run_id = r.id and r.status = 'running';

-- null in what there is: its events are looked for by the clock
alter table expiration.batch add column transaction_start timestamptz;
alter table expiration.batch alter column transaction_start set default now();
comment on column expiration.batch.transaction_start is 'Start of its transaction: outbox.event.created_at of its events. Null in batches from before 0.3.0.';

create index ix_run_tally_number on expiration.run (tally_number);
comment on index expiration.ix_run_tally_number is 'Runs in the order of their tally, and the few that wait for it.';
create index ix_batch_not_tallied on expiration.batch (run_id) where not tallied;
comment on index expiration.ix_batch_not_tallied is 'The few batches that wait to be tallied.';
create index ix_run_job_worked on expiration.run (job, started_at desc)
where driver <> 'sql' and status not in ('skipped', 'running');
comment on index expiration.ix_run_job_worked is 'The last cycle of a job that did something, however many were skipped since.';

alter table expiration.purged_batch_total rename to batch_tally;
alter table expiration.batch_tally rename constraint purged_batch_total_pkey to batch_tally_pkey;
-- sums are exact: one in floating point can move back when its parts are added in another order
alter table expiration.batch_tally add column lateness_seconds numeric not null default 0;
comment on table expiration.batch_tally is 'Counts of the batches of runs that are over, kept when history is purged.';
comment on column expiration.batch_tally.lateness_seconds is 'Lateness of the items expired, summed; infinite deadlines left out.';
alter table expiration.purged_run_total rename to run_tally;
alter table expiration.run_tally rename constraint purged_run_total_pkey to run_tally_pkey;
alter table expiration.run_tally add column retries bigint not null default 0;
comment on table expiration.run_tally is 'Counts of the runs that are over, kept when history is purged.';
comment on column expiration.run_tally.retries is 'Batches tried again after a transient fault.';

create table expiration.lateness_tally (
    job text not null,
    phase text not null,
    bucket integer not null,
    items bigint not null,
    constraint lateness_tally_pkey primary key (job, phase, bucket)
);
comment on table expiration.lateness_tally is 'Items expired by the batches of runs that are over, by lateness.';
comment on column expiration.lateness_tally.job is 'The job.';
comment on column expiration.lateness_tally.phase is 'Lead, Reserve or Booking.';
comment on column expiration.lateness_tally.bucket is 'From 1: see expiration.lateness_bounds; the last one has no bound.';
comment on column expiration.lateness_tally.items is 'Items in this bucket alone.';

create table expiration.duration_tally (
    job text not null,
    bucket integer not null,
    runs bigint not null,
    seconds numeric not null,
    constraint duration_tally_pkey primary key (job, bucket)
);
comment on table expiration.duration_tally is 'Cycles that are over, by duration: those of drivers, neither skipped nor abandoned.';
comment on column expiration.duration_tally.job is 'The job.';
comment on column expiration.duration_tally.bucket is 'From 1: see expiration.duration_bounds; the last one has no bound.';
comment on column expiration.duration_tally.runs is 'Cycles in this bucket alone.';
comment on column expiration.duration_tally.seconds is 'Their durations, summed; one that a clock set back made negative counts as none.';

create table expiration.trace_position (
    name text not null,
    tally_number bigint not null,
    updated_at timestamptz not null default clock_timestamp(),
    constraint trace_position_pkey primary key (name)
);
comment on table expiration.trace_position is 'How far the runs have been sent as traces, one row a destination.';
comment on column expiration.trace_position.name is 'The destination.';
comment on column expiration.trace_position.tally_number is 'expiration.run.tally_number of the last run sent.';
comment on column expiration.trace_position.updated_at is 'When it was last moved on.';

insert into expiration.batch_tally as t (job, phase, batches, expired, failed, skipped_locked)
select
    r.job, b.phase, count(*) filter (where b.claimed > 0), sum(b.expired), sum(b.failed), sum(b.skipped_locked)
from expiration.batch as b
inner join expiration.run as r on b.run_id = r.id
where b.tallied
group by r.job, b.phase
on conflict on constraint batch_tally_pkey do update
set
    batches = t.batches + excluded.batches,
    expired = t.expired + excluded.expired,
    failed = t.failed + excluded.failed,
    skipped_locked = t.skipped_locked + excluded.skipped_locked;

insert into expiration.run_tally as t (job, status, runs, seconds, retries)
select r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision, sum(r.retries)
from expiration.run as r
where r.tally_number is not null
group by r.job, r.status
on conflict on constraint run_tally_pkey do update
set runs = t.runs + excluded.runs, seconds = t.seconds + excluded.seconds, retries = excluded.retries;

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '3d60062a2fdb3bad71d0cb9c33a678c2ac141ebb2b41cc7e217a6b132a44a95b', '0006.figures', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('3d60062a2fdb3bad71d0cb9c33a678c2ac141ebb2b41cc7e217a6b132a44a95b', '0006.figures', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0006.figures', '7a7914616ed785b5c588995bcf2d5f57925d20ecd78448dbb2adb89eed8e978e');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '2ff59c452fa534c0e213f7eb712900115efcb3e4c8565f24f17005d958f82a19'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- What consumers keep: messages of a topic that was made anew are told apart, and ids of events go in the end.
-- depends: 0006.figures

do $consumers$
declare
    v_schema text;
begin
    foreach v_schema in array array['chessboard', 'notifications'] loop
        -- a topic that was made anew counts its offsets from 0 again
        execute format($ddl$
            alter table %1$I.parked add column digest text not null generated always as (md5(coalesce(value, '\x'))) stored;
            alter table %1$I.parked
                drop constraint parked_once,
                add constraint parked_once unique (topic, partition, kafka_offset, digest);
            comment on column %1$I.parked.digest is 'MD5 of the message: with topic, partition and offset it makes the message known again.';
            create index ix_inbox_received_at on %1$I.inbox using brin (received_at) with (pages_per_range = 32);
            comment on index %1$I.ix_inbox_received_at is 'Ids that may go.'
        $ddl$, v_schema);
    end loop;
end
$consumers$;

alter table outbox.settings
add column inbox_retention interval not null default interval '90 days',
add constraint settings_inbox_retention_is_sane check (inbox_retention >= interval '30 days');
comment on column outbox.settings.inbox_retention is 'How long consumers keep the ids of events that had their effect; longer than Kafka and the outbox keep the events.';

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '2ff59c452fa534c0e213f7eb712900115efcb3e4c8565f24f17005d958f82a19', '0007.consumers', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('2ff59c452fa534c0e213f7eb712900115efcb3e4c8565f24f17005d958f82a19', '0007.consumers', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0007.consumers', 'bd82059d162e1d19673b6701c1de99a9009bffa5d48a620e1841198de3114bd5');
\endif

select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = '52ac8443ddaed7ec3afb1658b9d2e69db8dc5e9d4a698a8f4f1946bf35d16684'
) as pyrunner_is_pending \gset
\if :pyrunner_is_pending
set local search_path = expiration, pg_temp;

-- A slot that was made while the outbox had events already: until these are compared with Kafka, no partition is dropped.
-- depends: 0007.consumers

alter table outbox.slot
add column gap_since timestamptz,
add column delivered_lsn pg_lsn;
comment on column outbox.slot.gap_since is 'Since when older events may not have been delivered: the slot was made when they were there already, and reads none of them. Null once outbox.close_gap was called; until then no partition is dropped.';
comment on column outbox.slot.delivered_lsn is 'Up to where the slot had confirmed everything when upkeep last looked: known even when the slot is gone. Not moved while there may be a gap.';

insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), '52ac8443ddaed7ec3afb1658b9d2e69db8dc5e9d4a698a8f4f1946bf35d16684', '0008.gap', 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ('52ac8443ddaed7ec3afb1658b9d2e69db8dc5e9d4a698a8f4f1946bf35d16684', '0008.gap', clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ('0008.gap', '574c7c60e25118c49d869a866ec13d0b2e4098c645eac6ed7791076bcf6fa07b');
\endif

-- 4. Functions, views and triggers

set local search_path = pg_catalog, pg_temp;

-- position 0 marks a file that is gone
update expiration.installed_file set position = 0;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('chessboard/dismiss_parked.sql', 1, 1, 'routine',
    'debc9dc54d0dfb334ca2a3f402ec5b7076baa801d7195ff4d0ff2d9739df7fb0',
$source$create or replace function chessboard.dismiss_parked(id bigint) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    delete from chessboard.parked as p where p.id = dismiss_parked.id;
    return found;
end
$function$;

comment on function chessboard.dismiss_parked(bigint) is
'Takes a message off the list of those put aside, once somebody has seen to it: its cause is mended and the event was replayed, or it needs none. Returns whether it was there. Coming again, it is put aside again.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('chessboard/free_property.sql', 1, 2, 'routine',
    'f66e07fb1b419de4037ca3fcc2078dc02337dc01dd42e39ce1e051e005dd84ee',
$source$create or replace function chessboard.free_property(
    event_id uuid,
    booking_id uuid,
    property_object_id uuid,
    tenant_id uuid,
    phase text,
    expired_at timestamptz,
    topic text default 'pin.crm.booking-expired.v1'
) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into chessboard.inbox as i (event_id, topic)
    values (free_property.event_id, free_property.topic)
    on conflict on constraint inbox_pkey do nothing;
    if not found then
        return false;
    end if;
    insert into chessboard.release as r (booking_id, property_object_id, tenant_id, phase, event_id, expired_at)
    values (
        free_property.booking_id, free_property.property_object_id, free_property.tenant_id, free_property.phase,
        free_property.event_id, free_property.expired_at
    )
    on conflict on constraint release_pkey do nothing;
    return true;
end
$function$;

comment on function chessboard.free_property(uuid, uuid, uuid, uuid, text, timestamptz, text) is
'What the chessboard does about a BookingExpiredEvent: the property object that the booking kept is for sale again. Returns false where the event has had its effect before. The same booking by another event changes nothing more.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('chessboard/park.sql', 1, 3, 'routine',
    '60b127e9be04eac11935afc7f7bcd7fb50f784eacac6b623e0c4edd1cb3c8ee1',
$source$create or replace function chessboard.park(
    topic text,
    partition integer,
    kafka_offset bigint,
    event_id uuid,
    message_key text,
    headers jsonb,
    value bytea,
    reason text
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into chessboard.parked (topic, partition, kafka_offset, event_id, message_key, headers, value, reason)
    values (
        park.topic, park.partition, park.kafka_offset, park.event_id, park.message_key, coalesce(park.headers, '{}'),
        park.value, park.reason
    )
    on conflict on constraint parked_once do nothing;
    return found;
end
$function$;

comment on function chessboard.park(text, integer, bigint, uuid, text, jsonb, bytea, text) is
'Puts aside a message that cannot be understood, with the reason; once, however often it is tried.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('chessboard/parked_total.sql', 1, 4, 'view',
    '201ad2700983e384a5edb7c799cdca6de42a61f96fd79ecd3540ab0596353d93',
$source$create or replace view chessboard.parked_total as
select p.topic, count(*) as messages, max(p.parked_at) as last_parked_at
from chessboard.parked as p
group by p.topic;

comment on view chessboard.parked_total is
'Messages put aside, by topic.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/record_command.sql', 1, 5, 'routine',
    '91d8d81bbc6768a2c2135e9c458b56bf82ddceb8920adddfa61f7c47e3a65f0f',
$source$create or replace function crm.record_command(
    booking crm.bookings,
    action text,
    kind text,
    from_status text,
    actor text,
    correlation_id uuid
) returns crm.bookings
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
    insert into crm.audit_log (
        tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
    )
    values (
        (booking).tenant_id, 'Booking', (booking).id, action, actor, from_status, (booking).status, correlation_id,
        (booking).updated_at
    );

    insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, occurred_at, correlation_id)
    values (
        (booking).tenant_id, (booking).deal_id, (booking).id, kind, (booking).updated_at, correlation_id
    );

    select (booking).*;
end;

comment on function crm.record_command(crm.bookings, text, text, text, text, uuid) is
'Audit row and timeline card of a manager''s command on a booking; returns the booking.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/claim_bookings.sql', 1, 6, 'routine',
    'd75b00e9a9bd84afd3d80fc9fe3c5987e8db47720d1b4b6d4c2e51b23b513e58',
$source$create or replace function crm.claim_bookings(
    phase text,
    as_of timestamptz,
    batch_size integer,
    after_deadline timestamptz,
    after_id uuid
) returns expiration.claim
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_none_failed boolean;
    v_claim expiration.claim;
begin
    -- @plpgsql_check_options: performance_warnings = off
    -- (it takes a function that locks rows for one that could be stable)
    v_none_failed := not exists (
        select from expiration.failed_item as f where f.job = 'booking-expiration' and f.phase = claim_bookings.phase
    );
    -- two statements, since each phase has its own partial index; the marker is a scalar subquery, since a join
    -- could cost the ordered index scan
    if claim_bookings.phase = 'Reserve' then
        select
            array_agg(c.id),
            array_agg(c.deadline),
            array_agg(c.ctid),
            array_agg(c.status)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select b.id, b.reserve_expires_at as deadline, b.ctid, b.status
            from crm.bookings as b
            where
                b.status in ('Reserved', 'AwaitingPayment')
                and b.reserve_expires_at < claim_bookings.as_of
                and (b.reserve_expires_at, b.id) > (claim_bookings.after_deadline, claim_bookings.after_id)
                and (v_none_failed or (
                    select true
                    from expiration.failed_item as f
                    where
                        f.job = 'booking-expiration'
                        and f.phase = 'Reserve'
                        and f.item_id = b.id
                        and f.row_xmin = b.xmin
                ) is null)
            order by b.reserve_expires_at, b.id
            limit claim_bookings.batch_size
            for no key update skip locked
        ) as c;
    else
        select
            array_agg(c.id),
            array_agg(c.deadline),
            array_agg(c.ctid),
            array_agg(c.status)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select b.id, b.booking_expires_at as deadline, b.ctid, b.status
            from crm.bookings as b
            where
                b.status = 'Booked'
                and b.booking_expires_at < claim_bookings.as_of
                and (b.booking_expires_at, b.id) > (claim_bookings.after_deadline, claim_bookings.after_id)
                and (v_none_failed or (
                    select true
                    from expiration.failed_item as f
                    where
                        f.job = 'booking-expiration'
                        and f.phase = 'Booking'
                        and f.item_id = b.id
                        and f.row_xmin = b.xmin
                ) is null)
            order by b.booking_expires_at, b.id
            limit claim_bookings.batch_size
            for no key update skip locked
        ) as c;
    end if;
    v_claim.is_full := coalesce(cardinality(v_claim.ids), 0) >= claim_bookings.batch_size;
    return v_claim;
end
$function$;

comment on function crm.claim_bookings(text, timestamptz, integer, timestamptz, uuid) is
'Locks the next due bookings of a phase beyond the cursor, oldest deadline first, passing over those that others hold and those that failed.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/claim_leads.sql', 1, 7, 'routine',
    '3f725baaffbf6ab0d578bdef50e8efdb9736aa405c6c91b9dcdb8f910068caab',
$source$create or replace function crm.claim_leads(
    as_of timestamptz,
    batch_size integer,
    after_deadline timestamptz,
    after_id uuid
) returns expiration.claim
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_none_failed boolean;
    v_claim expiration.claim;
begin
    -- @plpgsql_check_options: performance_warnings = off
    -- (it takes a function that locks rows for one that could be stable)
    v_none_failed := not exists (
        select from expiration.failed_item as f where f.job = 'lead-expiration' and f.phase = 'Lead'
    );
    -- the marker is a scalar subquery: a join could cost the ordered index scan
    select
        array_agg(c.id),
        array_agg(c.expires_at),
        array_agg(c.ctid)
    into v_claim.ids, v_claim.deadlines, v_claim.row_ids
    from (
        select l.id, l.expires_at, l.ctid
        from crm.leads as l
        where
            l.status = 'Active'
            and l.expires_at < claim_leads.as_of
            and (l.expires_at, l.id) > (claim_leads.after_deadline, claim_leads.after_id)
            and (v_none_failed or (
                select true
                from expiration.failed_item as f
                where
                    f.job = 'lead-expiration'
                    and f.phase = 'Lead'
                    and f.item_id = l.id
                    and f.row_xmin = l.xmin
            ) is null)
        order by l.expires_at, l.id
        limit claim_leads.batch_size
        for no key update skip locked
    ) as c;
    v_claim.is_full := coalesce(cardinality(v_claim.ids), 0) >= claim_leads.batch_size;
    return v_claim;
end
$function$;

comment on function crm.claim_leads(timestamptz, integer, timestamptz, uuid) is
'Locks the next due leads beyond the cursor, oldest deadline first, passing over those that others hold and those that failed.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/effective_bookings.sql', 1, 8, 'view',
    '23a4973ed033ed84536e21522a991078c6785e487694fa403e90dd2fcc19dce1',
$source$create or replace view crm.effective_bookings as
select
    b.id,
    b.tenant_id,
    b.deal_id,
    b.property_object_id,
    b.status,
    b.reserve_expires_at,
    b.booking_expires_at,
    b.expired_at,
    b.created_at,
    b.updated_at,
    b.version,
    case
        when b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now() then 'ReserveExpired'
        when b.status = 'Booked' and b.booking_expires_at < now() then 'BookingExpired'
        else b.status
    end as effective_status,
    (b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now())
    or (b.status = 'Booked' and b.booking_expires_at < now()) as is_due
from crm.bookings as b;

comment on view crm.effective_bookings is
'Bookings as readers should see them: effective_status is the expired one as soon as the deadline has passed, whether or not the job has reached the row (is_due).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/effective_leads.sql', 1, 9, 'view',
    'c2f421fe253e97214ac3bab937c6e46f24649155edc7a7a3d293fd2d12cb7904',
$source$create or replace view crm.effective_leads as
select
    l.id,
    l.tenant_id,
    l.executor_agent_user_id,
    l.primary_investor_user_id,
    l.status,
    l.expires_at,
    l.expired_at,
    l.created_at,
    l.updated_at,
    l.version,
    case when l.status = 'Active' and l.expires_at < now() then 'Expired' else l.status end as effective_status,
    l.status = 'Active' and l.expires_at < now() as is_due
from crm.leads as l;

comment on view crm.effective_leads is
'Leads as readers should see them: effective_status is Expired as soon as the deadline has passed, whether or not the job has reached the row (is_due).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/traceparent.sql', 1, 10, 'routine',
    '3c8e5303d781aa292ed1a80f2febb928df80799e7ffb8dbef54a68dafb5070ec',
$source$create or replace function outbox.traceparent(run_id uuid, batch_number integer) returns text
language sql immutable strict parallel safe
return '00-' || replace(run_id::text, '-', '')
|| '-' || substr(md5(run_id::text || ':' || batch_number::text), 1, 16)
|| '-01';

comment on function outbox.traceparent(uuid, integer) is
'W3C trace context of a batch: trace id = run id, parent span id derived from run and batch number, sampled.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/utc.sql', 1, 11, 'routine',
    '9c868402bec2cfe28b8c9913a8a5c4a91a722afd4205b84a2c2558c06b4c9d93',
$source$create or replace function outbox.utc(instant timestamptz) returns text
language sql stable strict parallel safe
return to_char(instant at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

comment on function outbox.utc(timestamptz) is
'An instant as events carry it: ISO 8601 in UTC, microseconds, Z.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/check_batch.sql', 1, 12, 'routine',
    '594554a90a97405033a6a7c4be886419fe454a4491bf3265e1a82cb11a0fd1fe',
$source$create or replace function expiration.check_batch(
    function_name text,
    as_of timestamptz,
    batch_size integer,
    batch_number integer,
    after_deadline timestamptz,
    after_id uuid
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_null constant text := case
        when as_of is null then 'as_of'
        when batch_size is null then 'batch_size'
        when batch_number is null then 'batch_number'
        when after_deadline is null then 'after_deadline'
        when after_id is null then 'after_id'
    end;
begin
    if v_null is not null then
        perform expiration.raise_error('null_argument', v_null, function_name);
    end if;
    if batch_size <= 0 then
        perform expiration.raise_error('invalid_setting', 'BatchSize', 'greater than 0', batch_size::text);
    end if;
    if as_of > clock_timestamp() then
        perform expiration.raise_error('future_as_of', as_of::text, clock_timestamp()::text);
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform expiration.raise_error('wrong_isolation', current_setting('transaction_isolation'));
    end if;
end
$function$;

comment on function expiration.check_batch(text, timestamptz, integer, integer, timestamptz, uuid) is
'Refuses a batch with bad arguments (XP001, XP002, XP005) or in a transaction that is not read committed (XP008).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/record_lone_batch.sql', 1, 13, 'routine',
    'ec1bd6249fa9b76df1f5c3225337a700ce5c7b0ba2800cd588b6b51564700cdf',
$source$create or replace function expiration.record_lone_batch(
    run_id uuid,
    job text,
    phase text,
    as_of timestamptz,
    batch_size integer,
    started_at timestamptz,
    result expiration.batch_result
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into expiration.run (
        id, job, driver, status, reason, as_of, started_at, finished_at, expired, skipped_locked, failed, batches,
        batch_size, max_batches_per_cycle, max_duration
    )
    select
        record_lone_batch.run_id, j.name, 'sql',
        case when result.drained then 'completed' else 'capped' end,
        case when not result.drained then 'capped' when result.skipped_locked > 0 then 'locked' else 'drained' end,
        record_lone_batch.as_of, record_lone_batch.started_at, clock_timestamp(),
        result.expired, result.skipped_locked, result.failed, (result.claimed > 0)::integer,
        record_lone_batch.batch_size, 1, j.max_duration
    from expiration.job as j
    where j.name = record_lone_batch.job;

    insert into expiration.batch (
        run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, capped,
        oldest_deadline, last_deadline, last_id, phase_expired, failures, lateness, lateness_seconds
    )
    values (
        record_lone_batch.run_id, 1, record_lone_batch.phase, 'claim', record_lone_batch.started_at,
        result.claimed, result.expired, result.failed, result.skipped_locked, result.drained, not result.drained,
        result.oldest_deadline, result.last_deadline, result.last_id, result.expired, result.failures,
        result.lateness, result.lateness_seconds
    );
end
$function$;

comment on function expiration.record_lone_batch(uuid, text, text, timestamptz, integer, timestamptz, expiration.batch_result) is
'Books a batch that somebody called outside of any run as a run of its own (driver sql), so that the totals stay exact.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/close_run.sql', 1, 14, 'routine',
    'a24b3d6599e80047d14d3578bc4071e66a2d20399c00983bfe8fc166d5150322',
$source$create or replace function expiration.close_run(
    run_id uuid,
    status text,
    reason text,
    finished_at timestamptz,
    sqlstate text default null,
    error text default null
) returns expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_run expiration.run;
begin
    update expiration.run as r
    set
        status = close_run.status,
        reason = close_run.reason,
        finished_at = close_run.finished_at,
        sqlstate = close_run.sqlstate,
        error = close_run.error,
        expired = t.expired,
        failed = t.failed,
        skipped_locked = t.skipped_locked,
        batches = t.batches
    from (
        select
            coalesce(sum(b.expired), 0) as expired,
            coalesce(sum(b.failed), 0) as failed,
            coalesce(sum(b.skipped_locked), 0) as skipped_locked,
            count(*) filter (where b.claimed > 0) as batches
        from expiration.batch as b
        where b.run_id = close_run.run_id
    ) as t
    where r.id = close_run.run_id and r.status = 'running'
    returning r.* into v_run;
    return v_run;
end
$function$;

comment on function expiration.close_run(uuid, text, text, timestamptz, text, text) is
'Ends a run that is still running, its counts summed from its batches. Returns the run, or null when it was over already.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/phases.sql', 1, 15, 'routine',
    '364ff15f528f876150fafa0a02265d5efe3a88c6bb07b14065d40c258662c6bb',
$source$create or replace function expiration.phases(job text)
returns table (phase text, ordinal integer)
language sql immutable parallel safe
begin atomic
    select p.phase, p.ordinal
    from (values
        ('lead-expiration', 'Lead', 1),
        ('booking-expiration', 'Reserve', 1),
        ('booking-expiration', 'Booking', 2)
    ) as p (job, phase, ordinal)
    where p.job = phases.job
    order by p.ordinal;
end;

comment on function expiration.phases(text) is
'The phases of a job in the order in which a cycle goes through them.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/check_job.sql', 1, 16, 'routine',
    'f231235a039a6f65f8ee6f742571bea189f19ded8b8840beaa0c848b279a518f',
$source$create or replace function expiration.check_job(job text, function_name text) returns void
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if job is null then
        perform expiration.raise_error('null_argument', 'job', function_name);
    elsif not exists (select from expiration.job as j where j.name = check_job.job) then
        perform expiration.raise_error('unknown_job', job);
    end if;
end
$function$;

comment on function expiration.check_job(text, text) is
'Refuses a job that is null (XP005) or unknown (XP003).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/due_item.sql', 1, 17, 'view',
    '59f1fa4ce2b67e2ab979205ced081fca14d3a293785b015bce9d7b4315033daf',
$source$create or replace view expiration.due_item as
select
    'lead-expiration'::text as job,
    'Lead'::text as phase,
    l.id as item_id,
    l.tenant_id,
    l.expires_at as deadline,
    l.xmin as row_xmin
from crm.leads as l
where l.status = 'Active'
union all
select
    'booking-expiration'::text,
    'Reserve'::text,
    b.id,
    b.tenant_id,
    b.reserve_expires_at,
    b.xmin
from crm.bookings as b
where b.status in ('Reserved', 'AwaitingPayment')
union all
select
    'booking-expiration'::text,
    'Booking'::text,
    b.id,
    b.tenant_id,
    b.booking_expires_at,
    b.xmin
from crm.bookings as b
where b.status = 'Booked';

comment on view expiration.due_item is
'Items that can expire, with their deadlines, by job and phase. Due are those with deadline < as_of; the indexes of the claims serve it.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/lateness_bounds.sql', 1, 18, 'routine',
    '34353175cc4c368667690ce8f58b7b4e4c51898f838f1409818a5c6b1dd01799',
$source$create or replace function expiration.lateness_bounds() returns double precision[]
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return array[5, 15, 30, 60, 90, 120, 300, 600, 1800, 3600, 3900, 7200, 14400, 43200, 86400]::double precision[];

comment on function expiration.lateness_bounds() is
'Upper bounds of the buckets of lateness, in seconds, 90 s and 3900 s (1 h 5 min) among them, which are the objectives of bookings and leads. What was counted keeps the bounds it was counted by, so changing them takes a migration.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/cron_job.sql', 1, 19, 'routine',
    '2c6b94b79c372060c8852b902fae98270ca9f8cb44bccd218820a45d0e7590bd',
$source$create or replace function expiration.cron_job()
returns table (jobid bigint, jobname text, schedule text, command text, username text, active boolean)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
begin
    -- not by to_regclass, which raises for those who may not look into the schema
    if not exists (
        select
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where n.nspname = 'cron' and c.relname = 'job' and has_schema_privilege(n.oid, 'usage')
    ) then
        return;
    end if;
    -- @plpgsql_check_options: performance_warnings = off
    -- (dynamic, since the table is there only beside pg_cron)
    return query execute $sql$
        select c.jobid, c.jobname::text, c.schedule, c.command, c.username, c.active
        from cron.job as c
        where c.database = current_database() and c.command ~* '^\s*call\s+expiration\.'
        order by c.jobname, c.jobid
    $sql$;
end
$function$;

comment on function expiration.cron_job() is
'Our entries in pg_cron for this database, as far as the caller may see them (pg_cron hides those of other users); empty where pg_cron is not installed here.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/current_driver.sql', 1, 20, 'routine',
    '2db30ab0e910adcf7dcc1c85ba72998101d91fa18303d1af52e5a6ce0141c886',
$source$create or replace function expiration.current_driver() returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (
    select case
        when a.backend_type = 'pg_cron' or a.application_name like 'pg_cron%' then 'pg_cron'
        else 'psql'
    end
    from pg_stat_activity as a
    where a.pid = pg_backend_pid()
);

comment on function expiration.current_driver() is
'Who calls: pg_cron in either of its modes, or somebody by hand (psql).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/due_figures.sql', 1, 21, 'view',
    '8af94ec357a32de88a9041c05a6bd59c53b5afcdabca5af08d32b3c1dad182d4',
$source$create or replace view expiration.due_figures as
select
    d.job,
    d.phase,
    d.due,
    d.oldest_at as oldest_due_at,
    case
        when d.oldest_at is not null
            then greatest(extract(epoch from clock_timestamp() - d.oldest_at)::double precision, 0)
    end as oldest_due_seconds
from (
    select
        'lead-expiration' as job,
        'Lead' as phase,
        (
            select count(*)
            from (
                select from crm.leads as l
                where l.status = 'Active' and l.expires_at < now()
                limit 1000
            ) as c
        ) as due,
        (
            select l.expires_at
            from crm.leads as l
            where l.status = 'Active' and l.expires_at < now() and l.expires_at > '-infinity'
            order by l.expires_at
            limit 1
        ) as oldest_at
    union all
    select
        'booking-expiration',
        'Reserve',
        (
            select count(*)
            from (
                select from crm.bookings as b
                where b.status in ('Reserved', 'AwaitingPayment') and b.reserve_expires_at < now()
                limit 1000
            ) as c
        ),
        (
            select b.reserve_expires_at
            from crm.bookings as b
            where
                b.status in ('Reserved', 'AwaitingPayment')
                and b.reserve_expires_at < now()
                and b.reserve_expires_at > '-infinity'
            order by b.reserve_expires_at
            limit 1
        )
    union all
    select
        'booking-expiration',
        'Booking',
        (
            select count(*)
            from (
                select from crm.bookings as b
                where b.status = 'Booked' and b.booking_expires_at < now()
                limit 1000
            ) as c
        ),
        (
            select b.booking_expires_at
            from crm.bookings as b
            where b.status = 'Booked' and b.booking_expires_at < now() and b.booking_expires_at > '-infinity'
            order by b.booking_expires_at
            limit 1
        )
) as d;

comment on view expiration.due_figures is
'What is due at this moment, by job and phase, failed items among it: due counts up to 1000 and stops there, so that it costs the same in any backlog; oldest_due_seconds is the age of the oldest finite deadline passed, null when there is none. The exact count before a cycle is expiration.run.due_before.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/duration_bounds.sql', 1, 22, 'routine',
    '336ec0fb6bab598b7d53f06a2b0d2cdf7f1136b66fd26c878b759b52070c998a',
$source$create or replace function expiration.duration_bounds() returns double precision[]
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return array[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3300]::double precision[];

comment on function expiration.duration_bounds() is
'Upper bounds of the buckets of a cycle''s duration, in seconds, 30 s among them, the objective of bookings. What was counted keeps the bounds it was counted by, so changing them takes a migration.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/close_gap.sql', 1, 23, 'routine',
    'bf478ea183db4d1f69a157309eccdc6c41ae350802b459b20099b6e0c30cf266',
$source$create or replace function outbox.close_gap(name text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update outbox.slot as s set gap_since = null where s.name = close_gap.name and s.gap_since is not null;
    return found;
end
$function$;

comment on function outbox.close_gap(text) is
'Notes that the events from before a slot was made have been compared with Kafka and sent where they were missing, or are given up: retention goes on. Returns whether there was a gap. pyrunner cdc recover does both.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/forget_slot.sql', 1, 24, 'routine',
    '9441007bdc040a7e825032c916ff799340da840d1ddb6fb6d3ad0fc9b3943f0b',
$source$create or replace function outbox.forget_slot(name text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    delete from outbox.slot as s where s.name = forget_slot.name;
    return found;
end
$function$;

comment on function outbox.forget_slot(text) is
'Notes that a slot reads the outbox no longer, so that retention does not wait for it. Returns whether it was known. Drops no slot.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/is_item_sqlstate.sql', 1, 25, 'routine',
    '65f0388a05314a2801bee55452a288b95e9f0a7b553c7163a26ecd7b0c00f44a',
$source$create or replace function expiration.is_item_sqlstate(fault_sqlstate text) returns boolean
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
return
    -- data exceptions, integrity violations, RAISE without a code
    left(fault_sqlstate, 2) in ('22', '23')
    or fault_sqlstate = 'P0001'
    -- RAISE with a code of one's own: PostgreSQL's begin with a digit, but for these; XP0 is the engine's
    or (fault_sqlstate collate "C" >= 'A' and left(fault_sqlstate, 2) not in ('F0', 'HV', 'P0', 'XX') and left(fault_sqlstate, 3) <> 'XP0');

comment on function expiration.is_item_sqlstate(text) is
'The allow-list: SQLSTATEs by which a row''s own values or the domain''s guards refuse a transition. Any other is a fault of the system, and no item is ever blamed for it.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/split.sql', 1, 26, 'routine',
    '05271fa327416d9b635c00668abfb27074af0104d83e140b90b650cba9f34327',
$source$create or replace function expiration.split(low integer, high integer, suspect integer) returns integer[]
language sql immutable parallel safe
begin atomic
    select case
        when low = high then array[low, high]
        when suspect between low and high then
            case when suspect < high then array[suspect + 1, high] else array[]::integer[] end
            || array[suspect, suspect]
            || case when low < suspect then array[low, suspect - 1] else array[]::integer[] end
        else array[(low + high) / 2 + 1, high, low, (low + high) / 2]
    end;
end;

comment on function expiration.split(integer, integer, integer) is
'Parts of a range of positions, as a stack of pairs whose first part lies on top: the suspect apart from those on its two sides; halves where there is none.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/run_result.sql', 1, 27, 'routine',
    '45592ab777a4c9df5d4008d4bbb8dd9c62f2d82e235fe1662da6d4dd6daa4d99',
$source$create or replace function expiration.run_result(run expiration.run) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
return case
    when (run).job = 'lead-expiration' then jsonb_build_object(
        'ExpiredCount', (run).expired,
        'BatchesProcessed', (run).batches,
        'Elapsed', ((run).finished_at - (run).started_at)::text,
        'CappedByMaxBatches', (run).reason is not distinct from 'capped'
    )
    else (
        select jsonb_build_object(
            'ReserveExpiredCount', coalesce(sum(b.expired) filter (where b.phase = 'Reserve'), 0),
            'BookingExpiredCount', coalesce(sum(b.expired) filter (where b.phase = 'Booking'), 0),
            'SkippedLockedCount', coalesce(sum(b.skipped_locked), 0),
            'DurationMs', round(extract(epoch from (run).finished_at - (run).started_at) * 1000, 3)
        )
        from expiration.batch as b
        where b.run_id = (run).id
    )
end;

comment on function expiration.run_result(expiration.run) is
'The result of a cycle as the documents name it (L13, B11): ExpiredCount, BatchesProcessed, Elapsed, CappedByMaxBatches; or ReserveExpiredCount, BookingExpiredCount, SkippedLockedCount, DurationMs.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/last_sign_of_life.sql', 1, 28, 'routine',
    '355edf89884f10846c3d2488f5059f77364b2f80c891eab2b16da77ee4639bf2',
$source$create or replace function expiration.last_sign_of_life(run_id uuid) returns timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (
    select greatest(r.started_at, (
        select b.finished_at
        from expiration.batch as b
        where b.run_id = r.id
        order by b.number desc
        limit 1
    ))
    from expiration.run as r
    where r.id = last_sign_of_life.run_id
);

comment on function expiration.last_sign_of_life(uuid) is
'When a run last wrote anything: its last batch, or its start.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/last_cycle.sql', 1, 29, 'view',
    'e132f86f77f8c787f72ccaf6b45706a8b5354d7f6454e43a3177e30a414b5f78',
$source$create or replace view expiration.last_cycle as
select
    j.name as job,
    c.id as run_id,
    c.status,
    c.reason,
    c.started_at,
    c.due_before,
    c.expired,
    c.failed,
    c.sqlstate,
    c.error,
    s.finished_at as last_success_at
from expiration.job as j
left join lateral (
    select r.*
    from expiration.run as r
    where r.job = j.name and r.driver <> 'sql' and r.status not in ('skipped', 'running')
    order by r.started_at desc
    limit 1
) as c on true
left join lateral (
    select r.finished_at
    from expiration.run as r
    where r.job = j.name and r.status in ('completed', 'capped') and r.driver <> 'sql'
    order by r.finished_at desc
    limit 1
) as s on true;

comment on view expiration.last_cycle is
'The last cycle of each job that did something, skipped ones and bare batches left out, and the end of its last success; one row a job, nulls where there was none.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/purge_cron_history.sql', 1, 30, 'routine',
    '86f43698032738f4b7e39b5c315c346820802292ba54a07c7bce941135722bb9',
$source$create or replace function expiration.purge_cron_history(retention interval default interval '7 days') returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_deleted bigint := bigint '0';
begin
    if exists (
        select
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname = 'cron'
            and c.relname = 'job_run_details'
            and has_schema_privilege(n.oid, 'usage')
            and has_table_privilege(c.oid, 'delete')
    ) then
        execute $sql$
            delete from cron.job_run_details
            where database = current_database() and end_time < now() - $1 and command ~* '^\s*call\s+expiration\.'
        $sql$ using purge_cron_history.retention;
        get diagnostics v_deleted = row_count;
    end if;
    return v_deleted;
end
$function$;

comment on function expiration.purge_cron_history(interval) is
'Deletes old entries of our jobs from pg_cron''s own history, which grows without bound; as far as the caller may, in the database where pg_cron lives.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/run_total.sql', 1, 31, 'view',
    '0be8d071bd68acb84759cb1cc0af9a356ef4a98d1ca95a097528575c66200b9a',
$source$create or replace view expiration.run_total as
select
    t.job,
    t.status,
    sum(t.runs)::bigint as runs,
    sum(t.seconds) as seconds,
    sum(t.retries)::bigint as retries
from (
    select g.job, g.status, g.runs, g.seconds, g.retries
    from expiration.run_tally as g
    union all
    select
        r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision,
        sum(r.retries)
    from expiration.run as r
    where r.tally_number is null and r.finished_at is not null
    group by r.job, r.status
) as t
group by t.job, t.status;

comment on view expiration.run_total is
'Counts and summed durations (seconds) of all finished runs ever, purged ones too, by job and status: they only grow. retries counts batches tried again after a transient fault.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/schema_version.sql', 1, 32, 'routine',
    '9bcb8b7f613a4cbbee88a4e527b62e875056ac97e9222bbb6cfc0b9dcd10c8ae',
$source$create or replace function expiration.schema_version() returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return '0.4.0';

comment on function expiration.schema_version() is
'Version of the functions and views installed; the runner refuses to work with another one.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/dismiss_parked.sql', 1, 33, 'routine',
    '529646e3867d0c8079d1e15a941393bb0ec7cd3f99abf19b7196cd6883823b3d',
$source$create or replace function notifications.dismiss_parked(id bigint) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    delete from notifications.parked as p where p.id = dismiss_parked.id;
    return found;
end
$function$;

comment on function notifications.dismiss_parked(bigint) is
'Takes a message off the list of those put aside, once somebody has seen to it: its cause is mended and the event was replayed, or it needs none. Returns whether it was there. Coming again, it is put aside again.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/file_notice.sql', 1, 34, 'routine',
    'c966b016cec340f17006a9b37bc4a65cf828294a5c0a943c7de578bbe9df7d55',
$source$create or replace function notifications.file_notice(
    event_id uuid,
    lead_id uuid,
    tenant_id uuid,
    agent_user_id uuid,
    expired_at timestamptz,
    topic text default 'pin.crm.lead-expired.v1'
) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into notifications.inbox as i (event_id, topic)
    values (file_notice.event_id, file_notice.topic)
    on conflict on constraint inbox_pkey do nothing;
    if not found then
        return false;
    end if;
    insert into notifications.notice (event_id, tenant_id, lead_id, agent_user_id, expired_at)
    values (
        file_notice.event_id, file_notice.tenant_id, file_notice.lead_id, file_notice.agent_user_id,
        file_notice.expired_at
    )
    on conflict on constraint notice_pkey do nothing;
    return true;
end
$function$;

comment on function notifications.file_notice(uuid, uuid, uuid, uuid, timestamptz, text) is
'What the notifications do about a LeadExpiredEvent: a notice to the agent, to extend the lead. Returns false where the event has had its effect before.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/mark_failed.sql', 1, 35, 'routine',
    'b1065e2d51e0a5cebd0e79c6ef97bf83738f8b102afe7d99b3064c3b5ac2fb9f',
$source$create or replace function notifications.mark_failed(event_id uuid, error text) returns void
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update notifications.notice as n
    set attempts = n.attempts + 1, last_attempt_at = clock_timestamp(), last_error = left(mark_failed.error, 1000)
    where n.event_id = mark_failed.event_id and n.sent_at is null;
end
$function$;

comment on function notifications.mark_failed(uuid, text) is
'A notice could not be sent; take_unsent gives it again after a while.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/mark_sent.sql', 1, 36, 'routine',
    'bd98ae98948417db092ec82b62ccf59d32a4e4e49e39881f59eae1b231534dcd',
$source$create or replace function notifications.mark_sent(event_id uuid) returns void
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update notifications.notice as n
    set sent_at = clock_timestamp(), last_error = null
    where n.event_id = mark_sent.event_id and n.sent_at is null;
end
$function$;

comment on function notifications.mark_sent(uuid) is
'A notice was sent.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/park.sql', 1, 37, 'routine',
    'fd5dc49c91e80262670439f89c2e6a91e4549b50eed90df0710c7beb5a6065fa',
$source$create or replace function notifications.park(
    topic text,
    partition integer,
    kafka_offset bigint,
    event_id uuid,
    message_key text,
    headers jsonb,
    value bytea,
    reason text
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    insert into notifications.parked (topic, partition, kafka_offset, event_id, message_key, headers, value, reason)
    values (
        park.topic, park.partition, park.kafka_offset, park.event_id, park.message_key, coalesce(park.headers, '{}'),
        park.value, park.reason
    )
    on conflict on constraint parked_once do nothing;
    return found;
end
$function$;

comment on function notifications.park(text, integer, bigint, uuid, text, jsonb, bytea, text) is
'Puts aside a message that cannot be understood, with the reason; once, however often it is tried.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/parked_total.sql', 1, 38, 'view',
    '2f905d2b0d9682bc7df740b67844f5c11e72c4524c8ca40cfc3a5651251e9d5c',
$source$create or replace view notifications.parked_total as
select p.topic, count(*) as messages, max(p.parked_at) as last_parked_at
from notifications.parked as p
group by p.topic;

comment on view notifications.parked_total is
'Messages put aside, by topic.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('notifications/take_unsent.sql', 1, 39, 'routine',
    'd290e821d8074e9abe97d27eaba8c903c549928e9adb4c34540eaa9ff56363e1',
$source$create or replace function notifications.take_unsent(max_notices integer default 1) returns setof notifications.notice
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    return query
    select n.*
    from notifications.notice as n
    where
        n.sent_at is null
        and (
            n.last_attempt_at is null
            or n.last_attempt_at + least(interval '1 second' * 2 ^ least(n.attempts - 1, 20), interval '5 minutes')
            <= clock_timestamp()
        )
    order by n.created_at, n.event_id
    limit take_unsent.max_notices
    for no key update skip locked;
end
$function$;

comment on function notifications.take_unsent(integer) is
'Locks notices to be sent, oldest first, passing over those that others are sending and those that failed a moment ago (1 s, 2 s, 4 s ... at most 5 min). Send them, call mark_sent or mark_failed, then commit.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/is_publication_right.sql', 1, 40, 'routine',
    '01f2ef0c0a469c1b82126687185a218bd89edf2d1ed57435de70f763e63cad70',
$source$create or replace function outbox.is_publication_right(name text) returns boolean
language sql stable strict
begin atomic
    select
        p.pubinsert and not p.pubupdate and not p.pubdelete and not p.pubtruncate and p.pubviaroot and not p.puballtables
        and (select array_agg(r.prrelid) from pg_publication_rel as r where r.prpubid = p.oid) = array['outbox.event'::regclass::oid]
        and not exists (select from pg_publication_namespace as n where n.pnpubid = p.oid)
        -- neither columns nor rows left out
        and not exists (
            select from pg_publication_rel as r where r.prpubid = p.oid and (r.prattrs is not null or r.prqual is not null)
        )
    from pg_publication as p
    where p.pubname = is_publication_right.name;
end;

comment on function outbox.is_publication_right(text) is
'Whether a publication publishes INSERTs into outbox.event, as of the root, and nothing else; null where there is none of that name.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/slot_state.sql', 1, 41, 'view',
    'ac46b7a0b8277ab12b439af6a7c04e29e1d68ee681dd5faa07ad0b6858120255',
$source$create or replace view outbox.slot_state as
select
    s.name,
    s.publication,
    s.connector,
    case
        when r.slot_name is null then 'missing'
        when r.wal_status = 'lost' then 'lost'
        when r.active then 'active'
        else 'inactive'
    end as state,
    r.plugin::text as plugin,
    r.active,
    r.wal_status,
    r.restart_lsn,
    r.confirmed_flush_lsn,
    pg_catalog.pg_wal_lsn_diff(w.lsn, r.restart_lsn)::bigint as retained_bytes,
    pg_catalog.pg_wal_lsn_diff(w.lsn, r.confirmed_flush_lsn)::bigint as lag_bytes,
    r.safe_wal_size,
    s.gap_since
from outbox.slot as s
left join pg_catalog.pg_replication_slots as r
    on s.name = r.slot_name and r.slot_type = 'logical' and r.database = pg_catalog.current_database()
cross join lateral (
    select
        case
            when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
            else pg_catalog.pg_current_wal_lsn()
        end as lsn
) as w;

comment on view outbox.slot_state is
'Slots of the outbox, each as it is now: state missing, lost, inactive or active; WAL held back for it (retained_bytes), not yet confirmed (lag_bytes), left before it is lost (safe_wal_size); gap_since as in outbox.slot. Reads no event.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/partition_start.sql', 1, 42, 'routine',
    '86a2e8a7169441ea7e070c39abb90e4565ab96370bb2c67cb22c94d489cd0e4c',
$source$create or replace function outbox.partition_start(partition oid) returns timestamptz
language sql stable strict
set search_path = pg_catalog, pg_temp
-- the bound is written and read back here: by the caller's own settings it need not be the same time
set timezone = 'UTC'
set datestyle = 'ISO'
return (
    select substring(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\)')::timestamptz
    from pg_class as c
    where c.oid = partition
);

comment on function outbox.partition_start(oid) is
'From when on a partition of the outbox takes events; null for the default one.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/replay.sql', 1, 43, 'routine',
    '386f86252cbd0d555be9f115ad031c3a5adf4f289017ef10bb85bbd86ac9b985',
$source$create or replace function outbox.replay(
    reason text,
    event_ids uuid[] default null,
    aggregate_id uuid default null,
    topic text default null,
    since timestamptz default null,
    until timestamptz default null,
    max_events integer default 1000
) returns outbox.replay_log
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_id constant uuid := gen_random_uuid();
    v_events bigint;
    v_record outbox.replay_log;
begin
    if reason is null or max_events is null then
        perform expiration.raise_error(
            'null_argument', case when reason is null then 'reason' else 'max_events' end, 'outbox.replay'
        );
    elsif reason = '' or max_events < 1 then
        perform expiration.raise_error(
            'invalid_argument', case when reason = '' then 'reason' else 'max_events' end, 'outbox.replay',
            case when reason = '' then 'what somebody can read later' else 'greater than 0' end,
            case when reason = '' then 'empty' else max_events::text end
        );
    end if;

    insert into outbox.event (
        id, aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload, correlation_id,
        traceparent, occurred_at, replay_id
    )
    select
        p.id, p.aggregate_type, p.aggregate_id, p.tenant_id, p.event_type, p.contract_version, p.topic, p.payload,
        p.correlation_id, p.traceparent, p.occurred_at, v_id
    from outbox.preview_replay(event_ids, aggregate_id, topic, since, until) as p
    order by p.seq
    -- one more tells that there are too many
    limit max_events::bigint + 1;
    get diagnostics v_events = row_count;
    if v_events > max_events then
        perform expiration.raise_error('too_many_events', max_events::text);
    elsif v_events = 0 then
        perform expiration.raise_error('no_such_event');
    end if;

    insert into outbox.replay_log (id, reason, event_ids, aggregate_id, topic, since, until, events)
    values (
        v_id, replay.reason, replay.event_ids, replay.aggregate_id, replay.topic, replay.since, replay.until, v_events
    )
    returning * into v_record;
    return v_record;
end
$function$;

comment on function outbox.replay(text, uuid[], uuid, text, timestamptz, timestamptz, integer) is
'Publishes events once more: appends them again with their ids, so that consumers that have had them do nothing, and with replay_id, which Kafka carries as the header replayed. All that outbox.preview_replay shows, or nothing: XP017 beyond max_events. On record in outbox.replay_log.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/batch_item.sql', 1, 44, 'routine',
    '157f9c283c126c6a22dfb8eb0cb5c630e582bc7d1a86c7060abef5d2dc6868a5',
$source$create or replace function expiration.batch_item(
    run_id uuid,
    batch_number integer,
    max_items integer default 2147483647
) returns table (item_id uuid, tenant_id uuid, deal_id uuid, sqlstate text)
language sql stable strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
-- as text: a body that PostgreSQL keeps parsed would keep columns of the outbox from being dropped
as $function$
    with batch as materialized (
        select b.*, outbox.traceparent(b.run_id, b.number) as traceparent
        from expiration.batch as b
        where b.run_id = batch_item.run_id and b.number = batch_item.batch_number
    ),

    failed as (
        -- one that failed has no event: its tenant stands in its own row, as long as that is there
        select
            f.id as item_id,
            coalesce(l.tenant_id, k.tenant_id) as tenant_id,
            k.deal_id,
            f.sqlstate,
            0 as part,
            f.place
        from batch as b
        cross join lateral rows from (
            jsonb_to_recordset(b.failures) as (id uuid, sqlstate text)
        ) with ordinality as f (id, sqlstate, place)
        left join crm.leads as l on b.phase = 'Lead' and f.id = l.id
        left join crm.bookings as k on b.phase <> 'Lead' and f.id = k.id
        order by f.place
        limit batch_item.max_items
    ),

    expired as (
        select
            e.aggregate_id,
            e.tenant_id,
            (e.payload ->> 'dealId')::uuid,
            null::text,
            1,
            e.seq
        from batch as b
        inner join outbox.event as e on
            e.created_at between coalesce(b.transaction_start, b.started_at - interval '1 minute')
            and coalesce(b.transaction_start, b.finished_at)
            and b.traceparent = e.traceparent
            and e.replay_id is null
        order by e.seq
        limit batch_item.max_items
    )

    select i.item_id, i.tenant_id, i.deal_id, i.sqlstate
    from (
        select * from failed
        union all
        select * from expired
    ) as i
    order by i.part, i.place
    limit batch_item.max_items;
$function$;

comment on function expiration.batch_item(uuid, integer, integer) is
'The items of a batch, at most max_items: first those that failed alone (sqlstate), then those that expired, in their order. Expired ones are read from the outbox as long as it keeps them; deal_id is a booking''s.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/expire_bookings.sql', 1, 45, 'routine',
    '61ece38dbc23ba692d3365e6f24e3ecfc59b674bd047170df90adbac50c19b36',
$source$create or replace function crm.expire_bookings(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer default 1,
    rehearsal boolean default false
) returns uuid[]
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_from constant text[] := case expire_bookings.phase
        when 'Reserve' then array['Reserved', 'AwaitingPayment']
        else array['Booked']
    end;
    v_to constant text := expire_bookings.phase || 'Expired';
    v_expired_at text;
    v_traceparent text;
    v_expired uuid[];
begin
    if expire_bookings.rehearsal then
        -- a statement of its own: an insert fires the triggers of its statement even when it inserts no row
        with expired as (
            update crm.bookings as b
            set
                status = v_to,
                expired_at = expire_bookings.as_of,
                updated_at = expire_bookings.as_of,
                version = b.version + 1
            from crm.bookings as before
            where b.id = any((expire_bookings.claim).ids) and before.id = b.id and before.status = any(v_from)
            returning b.id, b.tenant_id, b.deal_id, before.status as from_status
        ),

        timeline as (
            insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
            select
                e.tenant_id, e.deal_id, e.id, 'BookingExpired', expire_bookings.phase, expire_bookings.as_of,
                expire_bookings.run_id
            from expired as e
        )

        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, v_to, expire_bookings.run_id,
            expire_bookings.as_of
        from expired as e;
        return array[]::uuid[];
    end if;

    -- the same for the whole batch, so made once and not a row
    v_expired_at := outbox.utc(expire_bookings.as_of);
    v_traceparent := outbox.traceparent(expire_bookings.run_id, expire_bookings.batch_number);
    with expired as (
        update crm.bookings as b
        set
            status = v_to,
            expired_at = expire_bookings.as_of,
            updated_at = expire_bookings.as_of,
            version = b.version + 1
        from
            unnest(
                (expire_bookings.claim).ids, (expire_bookings.claim).row_ids, (expire_bookings.claim).statuses
            ) as claimed (id, row_id, status)
        where
            -- where the claim has locked it; the id, since in a partitioned table the same place is there many times
            b.ctid = claimed.row_id
            and b.id = claimed.id
            and b.status = claimed.status
            and b.status = any(v_from)
            and case when b.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end
            < expire_bookings.as_of
        returning
            b.id,
            b.tenant_id,
            b.deal_id,
            b.property_object_id,
            claimed.status as from_status,
            case when claimed.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end as deadline
    ),

    events as (
        insert into outbox.event (
            aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            'Booking',
            e.id,
            e.tenant_id,
            'BookingExpiredEvent',
            1,
            'pin.crm.booking-expired.v1',
            jsonb_build_object(
                'bookingId', e.id,
                'tenantId', e.tenant_id,
                'dealId', e.deal_id,
                'propertyObjectId', e.property_object_id,
                'phase', expire_bookings.phase,
                'expiredAt', v_expired_at
            ),
            expire_bookings.run_id,
            v_traceparent,
            expire_bookings.as_of
        from expired as e
        order by e.deadline, e.id
    ),

    timeline as (
        insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
        select
            e.tenant_id, e.deal_id, e.id, 'BookingExpired', expire_bookings.phase, expire_bookings.as_of,
            expire_bookings.run_id
        from expired as e
    ),

    audit as (
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, v_to, expire_bookings.run_id,
            expire_bookings.as_of
        from expired as e
    )

    select coalesce(array_agg(e.id), array[]::uuid[]) into v_expired from expired as e;
    return v_expired;
end
$function$;

comment on function crm.expire_bookings(text, expiration.claim, timestamptz, uuid, integer, boolean) is
'Expire(as_of) for the bookings of a claim of a phase, which this transaction has locked: those still active and past that phase''s deadline become ReserveExpired or BookingExpired, each with its event, timeline card and audit row; the others are left alone (INV-BKG-5, INV-BKG-8). Returns the ids that expired. rehearsal leaves the outbox out, to learn whether the fault is its or the row''s, and is for a subtransaction that is rolled back.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/expire_leads.sql', 1, 46, 'routine',
    '730cad7c0521fd9e5fe255ef190c6cb016ba278a3cd08cb89cf6ebbfb0d5702f',
$source$create or replace function crm.expire_leads(
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer default 1,
    rehearsal boolean default false
) returns uuid[]
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_expired_at text;
    v_traceparent text;
    v_expired uuid[];
begin
    if expire_leads.rehearsal then
        -- a statement of its own: an insert fires the triggers of its statement even when it inserts no row
        with expired as (
            update crm.leads as l
            set
                status = 'Expired',
                expired_at = expire_leads.as_of,
                updated_at = expire_leads.as_of,
                version = l.version + 1
            where l.id = any((expire_leads.claim).ids) and case when l.status = 'Active' then true end
            returning l.id, l.tenant_id
        )

        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', expire_leads.run_id, expire_leads.as_of
        from expired as e;
        return array[]::uuid[];
    end if;

    -- the same for the whole batch, so made once and not a row
    v_expired_at := outbox.utc(expire_leads.as_of);
    v_traceparent := outbox.traceparent(expire_leads.run_id, expire_leads.batch_number);
    with expired as (
        update crm.leads as l
        set
            status = 'Expired',
            expired_at = expire_leads.as_of,
            updated_at = expire_leads.as_of,
            version = l.version + 1
        from unnest((expire_leads.claim).ids, (expire_leads.claim).row_ids) as claimed (id, row_id)
        where
            -- where the claim has locked it; the id, since in a partitioned table the same place is there many times
            l.ctid = claimed.row_id
            and l.id = claimed.id
            -- as a case, lest a plan made on stale statistics walks the index of the deadlines
            and case when l.status = 'Active' then l.expires_at < expire_leads.as_of end
        returning l.id, l.tenant_id, l.executor_agent_user_id, l.primary_investor_user_id, l.expires_at
    ),

    events as (
        insert into outbox.event (
            aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            'Lead',
            e.id,
            e.tenant_id,
            'LeadExpiredEvent',
            1,
            'pin.crm.lead-expired.v1',
            jsonb_build_object(
                'leadId', e.id,
                'tenantId', e.tenant_id,
                'agentUserId', e.executor_agent_user_id,
                'investorUserId', e.primary_investor_user_id,
                'expiredAt', v_expired_at
            ),
            expire_leads.run_id,
            v_traceparent,
            expire_leads.as_of
        from expired as e
        order by e.expires_at, e.id
    ),

    audit as (
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', expire_leads.run_id, expire_leads.as_of
        from expired as e
    )

    select coalesce(array_agg(e.id), '{}') into v_expired from expired as e;
    return v_expired;
end
$function$;

comment on function crm.expire_leads(expiration.claim, timestamptz, uuid, integer, boolean) is
'Expire(as_of) for the leads of a claim, which this transaction has locked: those still Active and past their deadline become Expired, with one event and one audit row each; the others are left alone (INV-LEAD-4). Returns the ids that expired. rehearsal leaves the outbox out, to learn whether the fault is its or the row''s, and is for a subtransaction that is rolled back.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/batch_failed.sql', 1, 47, 'routine',
    'a1d484b77ab03190f0420238dd74fa7191f1e6d48ea25000ab24e2a041a434ba',
$source$create or replace function expiration.batch_failed(run_id uuid, sqlstate text, error text)
returns table (retry boolean, delay interval)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_run expiration.run;
    v_max integer;
begin
    select r.* into v_run from expiration.run as r where r.id = batch_failed.run_id;
    if not found then
        perform expiration.raise_error('unknown_run', coalesce(batch_failed.run_id::text, 'null'));
    elsif batch_failed.sqlstate is null then
        perform expiration.raise_error('null_argument', 'sqlstate', 'expiration.batch_failed');
    end if;
    select j.max_transient_retries into strict v_max from expiration.job as j where j.name = v_run.job;

    -- serialization failure, deadlock, lock timeout: the next try may find the way free
    if batch_failed.sqlstate in ('40001', '40P01', '55P03') and v_run.status = 'running' and v_run.retries < v_max then
        update expiration.run as r set retries = r.retries + 1 where r.id = v_run.id;
        retry := true;
        delay := make_interval(secs => 0.05 * 2 ^ v_run.retries * (0.5 + random()));
    else
        perform expiration.close_run(v_run.id, 'failed', 'error', clock_timestamp(), batch_failed.sqlstate, batch_failed.error);
        retry := false;
        delay := interval '0';
    end if;
    return next;
end
$function$;

comment on function expiration.batch_failed(uuid, text, text) is
'What to do after a batch that raised and was rolled back: retry after delay (deadlock, lock timeout, serialization failure; at most job.max_transient_retries times a run), or not: then the run has been ended as failed.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/finish_run.sql', 1, 48, 'routine',
    '20e3e7d1c303a0ee67108ba89e700d940d93f0d589636c32d99cc1319097ddb7',
$source$create or replace function expiration.finish_run(run_id uuid, reason text) returns expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_status constant text := case finish_run.reason
        when 'drained' then 'completed'
        when 'locked' then 'completed'
        when 'capped' then 'capped'
        when 'out of time' then 'capped'
        when 'stop requested' then 'stopped'
        when 'paused' then 'stopped'
    end;
    v_run expiration.run;
begin
    if v_status is null then
        perform expiration.raise_error(
            'invalid_argument', 'reason', 'expiration.finish_run',
            'drained, locked, capped, out of time, stop requested or paused', coalesce(finish_run.reason, 'null')
        );
    end if;
    v_run := expiration.close_run(run_id, v_status, reason, clock_timestamp());
    if v_run.id is null then
        select r.* into v_run from expiration.run as r where r.id = finish_run.run_id;
        if not found then
            perform expiration.raise_error('unknown_run', coalesce(finish_run.run_id::text, 'null'));
        end if;
    end if;
    return v_run;
end
$function$;

comment on function expiration.finish_run(uuid, text) is
'Ends a run with the reason that run_batch gave, and returns it with its counts. A run that was over already is returned as it is.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/batch_total.sql', 1, 49, 'view',
    'd995b95cdfde9960c74e1a1967cafcc0eef5dc012ab48ed3f76f7cb2b715167f',
$source$create or replace view expiration.batch_total as
select
    j.name as job,
    p.phase,
    coalesce(t.batches, 0) + coalesce(b.batches, 0) as batches,
    coalesce(t.expired, 0) + coalesce(b.expired, 0) as expired,
    coalesce(t.failed, 0) + coalesce(b.failed, 0) as failed,
    coalesce(t.skipped_locked, 0) + coalesce(b.skipped_locked, 0) as skipped_locked,
    (coalesce(t.lateness_seconds, 0) + coalesce(b.lateness_seconds, 0))::double precision as lateness_seconds
from expiration.job as j
cross join lateral expiration.phases(j.name) as p
left join expiration.batch_tally as t on j.name = t.job and p.phase = t.phase
left join (
    select
        h.phase,
        count(*) filter (where h.claimed > 0) as batches,
        sum(h.expired) as expired,
        sum(h.failed) as failed,
        sum(h.skipped_locked) as skipped_locked,
        sum(h.lateness_seconds::numeric) as lateness_seconds
    from expiration.batch as h
    where not h.tallied
    group by h.phase
) as b on p.phase = b.phase;

comment on view expiration.batch_total is
'Counts of all batches ever, purged ones too, by job and phase: they only grow. lateness_seconds sums as_of - deadline of the items expired.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/pause.sql', 1, 50, 'routine',
    'edc40bf5b78fbaf7af9a22320550a074e4b4f47eb0ceca57db1e1ab5bc4f6e84',
$source$create or replace function expiration.pause(job text, reason text default null) returns expiration.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.pause');
    update expiration.job as j
    set
        paused_at = coalesce(j.paused_at, clock_timestamp()),
        paused_by = coalesce(j.paused_by, session_user),
        paused_reason = coalesce(pause.reason, j.paused_reason)
    where j.name = pause.job
    returning j.* into v_job;
    return v_job;
end
$function$;

comment on function expiration.pause(text, text) is
'Pauses a job, whoever drives it: no run starts, and a run at work ends after the batch in hand. Until resume.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/resume.sql', 1, 51, 'routine',
    '23a1c4f72ff47458f029b91a1cceacf06fc90cba6f6478bb793ddc7f48234c53',
$source$create or replace function expiration.resume(job text) returns expiration.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.resume');
    update expiration.job as j
    set paused_at = null, paused_by = null, paused_reason = null
    where j.name = resume.job
    returning j.* into v_job;
    return v_job;
end
$function$;

comment on function expiration.resume(text) is
'Ends a pause: the next tick of any driver runs the job again.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/set_job.sql', 1, 52, 'routine',
    'e6b4a886cfffdd1a3119dc692a114a8433f6dc462d510f018f5a1bd19eaa678f',
$source$create or replace function expiration.set_job(
    job text,
    period interval default null,
    batch_size integer default null,
    max_batches_per_cycle integer default null,
    max_duration interval default null,
    retry_failures_per_cycle integer default null,
    max_transient_retries integer default null,
    stale_after interval default null,
    history_retention interval default null
) returns expiration.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_bad record;
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.set_job');
    select c.* into v_bad
    from (values
        ('Period', 'from 1 second to 1 day', period between interval '1 second' and interval '1 day', period::text),
        ('BatchSize', 'from 1 to 100000', batch_size between 1 and 100000, batch_size::text),
        ('MaxBatchesPerCycle', 'greater than 0', max_batches_per_cycle > 0, max_batches_per_cycle::text),
        ('MaxDuration', 'greater than 0', max_duration > interval '0', max_duration::text),
        ('RetryFailuresPerCycle', '0 or greater', retry_failures_per_cycle >= 0, retry_failures_per_cycle::text),
        ('MaxTransientRetries', 'from 0 to 100', max_transient_retries between 0 and 100, max_transient_retries::text),
        ('StaleAfter', 'at least 10 seconds', stale_after >= interval '10 seconds', stale_after::text),
        ('HistoryRetention', 'at least 1 hour', history_retention >= interval '1 hour', history_retention::text)
    ) as c (setting, wanted, is_right, given)
    where not c.is_right
    limit 1;
    if found then
        perform expiration.raise_error('invalid_setting', v_bad.setting, v_bad.wanted, v_bad.given);
    end if;

    update expiration.job as j
    set
        period = coalesce(set_job.period, j.period),
        batch_size = coalesce(set_job.batch_size, j.batch_size),
        max_batches_per_cycle = coalesce(set_job.max_batches_per_cycle, j.max_batches_per_cycle),
        max_duration = coalesce(set_job.max_duration, j.max_duration),
        retry_failures_per_cycle = coalesce(set_job.retry_failures_per_cycle, j.retry_failures_per_cycle),
        max_transient_retries = coalesce(set_job.max_transient_retries, j.max_transient_retries),
        stale_after = coalesce(set_job.stale_after, j.stale_after),
        history_retention = coalesce(set_job.history_retention, j.history_retention),
        updated_at = clock_timestamp(),
        updated_by = session_user
    where j.name = set_job.job
    returning j.* into v_job;
    return v_job;
end
$function$;

comment on function expiration.set_job(text, interval, integer, integer, interval, integer, integer, interval, interval) is
'Changes settings of a job; what is left null stays. Runs at work keep theirs. After a change of the period install the cron jobs again.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/stop.sql', 1, 53, 'routine',
    '30a3ae967deafcbf65fb97f2ae6f50bc148f3e26fd731de9738b0081b179dd63',
$source$create or replace function expiration.stop(job text) returns setof expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    perform expiration.check_job(job, 'expiration.stop');
    return query
    update expiration.run as r
    set
        stop_requested_at = coalesce(r.stop_requested_at, clock_timestamp()),
        stop_requested_by = coalesce(r.stop_requested_by, session_user)
    where r.job = stop.job and r.status = 'running'
    returning r.*;
end
$function$;

comment on function expiration.stop(text) is
'Asks the runs of a job that are at work to stop: each ends after the batch in hand. The next tick runs again; pause keeps it from doing so. Returns the runs asked.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/claim_failed.sql', 1, 54, 'routine',
    'c989dd565e9d59eb3183592c1fc6f163dba24c7bcb3ed22a5c2284b1441e0b01',
$source$create or replace function expiration.claim_failed(
    job text,
    phase text,
    as_of timestamptz,
    failed_before timestamptz,
    batch_size integer
) returns expiration.claim
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_waiting uuid[];
    v_due uuid[];
    v_resolved bigint;
    v_claim expiration.claim;
begin
    select array_agg(w.item_id) into v_waiting
    from (
        select f.item_id
        from expiration.failed_item as f
        where f.job = claim_failed.job and f.phase = claim_failed.phase and f.last_failed_at < failed_before
        order by f.last_failed_at, f.item_id
        limit claim_failed.batch_size
    ) as w;
    if v_waiting is null then
        v_claim.is_full := false;
        return v_claim;
    end if;

    -- cancelled, extended, confirmed or deleted meanwhile: no longer failed
    select coalesce(array_agg(d.item_id), '{}') into v_due
    from expiration.due_item as d
    where
        d.job = claim_failed.job
        and d.phase = claim_failed.phase
        and d.item_id = any(v_waiting)
        and d.deadline < claim_failed.as_of;
    delete from expiration.failed_item as f
    -- an array is made once, where a join could lock again and again
    where f.ctid = any(array(
        select g.ctid
        from expiration.failed_item as g
        where
            g.job = claim_failed.job
            and g.phase = claim_failed.phase
            and g.item_id = any(v_waiting)
            and g.item_id <> all(v_due)
        for update skip locked
    ));
    get diagnostics v_resolved = row_count;

    if claim_failed.phase = 'Lead' then
        select
            array_agg(c.id order by c.deadline, c.id),
            array_agg(c.deadline order by c.deadline, c.id),
            array_agg(c.ctid order by c.deadline, c.id)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids
        from (
            select l.id, l.expires_at as deadline, l.ctid
            from crm.leads as l
            where l.id = any(v_due) and l.status = 'Active' and l.expires_at < claim_failed.as_of
            for no key update skip locked
        ) as c;
    else
        select
            array_agg(c.id order by c.deadline, c.id),
            array_agg(c.deadline order by c.deadline, c.id),
            array_agg(c.ctid order by c.deadline, c.id),
            array_agg(c.status order by c.deadline, c.id)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select
                b.id,
                case when b.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end as deadline,
                b.ctid,
                b.status
            from crm.bookings as b
            where
                b.id = any(v_due)
                and (b.status = 'Booked') = (claim_failed.phase = 'Booking')
                and b.status in ('Reserved', 'AwaitingPayment', 'Booked')
            for no key update skip locked
        ) as c;
    end if;
    -- where all that wait are held by others, trying on would go round in circles
    v_claim.is_full := cardinality(v_waiting) >= claim_failed.batch_size and (v_claim.ids is not null or v_resolved > 0);
    return v_claim;
end
$function$;

comment on function expiration.claim_failed(text, text, timestamptz, timestamptz, integer) is
'Locks failed items for another try, longest waiting first: those that last failed before failed_before and are still due. Items that are due no longer leave the list.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/count_due.sql', 1, 55, 'routine',
    '87dd3a604d2697e160ad7df9852ea3e1c8a568424bda4af1c3beeb63b85f3db7',
$source$create or replace function expiration.count_due(
    job text,
    phase text,
    as_of timestamptz,
    after_deadline timestamptz default '-infinity',
    after_id uuid default '00000000-0000-0000-0000-000000000000',
    upto_deadline timestamptz default null,
    upto_id uuid default null
) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_count bigint;
begin
    -- a scalar subquery keeps its plan whatever the statistics say; an anti join may not
    select count(*) into v_count
    from expiration.due_item as d
    where
        d.job = count_due.job
        and d.phase = count_due.phase
        and d.deadline < count_due.as_of
        and (d.deadline, d.item_id) > (count_due.after_deadline, count_due.after_id)
        and (d.deadline, d.item_id) <= (
            coalesce(count_due.upto_deadline, 'infinity'),
            coalesce(count_due.upto_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        )
        and (
            select true
            from expiration.failed_item as f
            where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
        ) is null;
    return v_count;
end
$function$;

comment on function expiration.count_due(text, text, timestamptz, timestamptz, uuid, timestamptz, uuid) is
'How many items of a phase are due before as_of, failed ones apart, beyond the cursor (after_...] and up to another.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/failed.sql', 1, 56, 'view',
    '89ce527cef254e1875afbfbcafbb19e6dca39206cd668425c592ca720bbbb2cd',
$source$create or replace view expiration.failed as
select
    f.job,
    f.phase,
    f.item_id,
    d.tenant_id,
    d.deadline,
    f.first_failed_at,
    f.last_failed_at,
    f.attempts,
    f.sqlstate,
    f.message,
    f.run_id,
    case
        when d.item_id is null then 'no longer due'
        when d.row_xmin <> f.row_xmin then 'freed for the next cycle'
        else 'waiting'
    end as state
from expiration.failed_item as f
left join expiration.due_item as d
    on f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and d.deadline < now();

comment on view expiration.failed is
'Failed items with their deadlines, and what becomes of each: waiting (retried a bounded number a cycle), freed for the next cycle (the row was changed, or retry_failed was called), no longer due.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/has_due.sql', 1, 57, 'routine',
    '1ddac269b67d65cfb1807b18ee4bcbffa00db8a1224f7d3c572c38bcc3b80a9f',
$source$create or replace function expiration.has_due(
    job text,
    phase text,
    as_of timestamptz,
    after_deadline timestamptz,
    after_id uuid
) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
begin
    return exists (
        select
        from expiration.due_item as d
        where
            d.job = has_due.job
            and d.phase = has_due.phase
            and d.deadline < has_due.as_of
            and (d.deadline, d.item_id) > (has_due.after_deadline, has_due.after_id)
            and (
                select true
                from expiration.failed_item as f
                where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
            ) is null
    );
end
$function$;

comment on function expiration.has_due(text, text, timestamptz, timestamptz, uuid) is
'Whether anything is due beyond the cursor, failed items apart.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/count_lateness.sql', 1, 58, 'routine',
    '2acea0ad05145b2941b5d49730ea9a35489a55639a9cdef6e12b298294384022',
$source$create or replace function expiration.count_lateness(
    deadlines timestamptz[],
    as_of timestamptz,
    out items integer[],
    out seconds double precision
)
language plpgsql stable strict security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_bound double precision;
    v_within integer;
    v_less integer := 0;
begin
    -- deadlines are sorted, so width_bucket tells how many lie before a time without looking at each
    foreach v_bound in array expiration.lateness_bounds() loop
        v_within := cardinality(deadlines)
            - width_bucket(as_of - make_interval(secs => v_bound) - interval '1 microsecond', deadlines);
        items := items || (v_within - v_less);
        v_less := v_within;
    end loop;
    items := items || (cardinality(deadlines) - v_less);
    select coalesce(sum(date_part('epoch', as_of - d.deadline)), 0)
    into count_lateness.seconds
    from unnest(deadlines) as d (deadline)
    where isfinite(d.deadline);
end
$function$;

comment on function expiration.count_lateness(timestamptz[], timestamptz) is
'How late items with these deadlines, oldest first, are at as_of: their number by bucket (expiration.lateness_bounds, and one beyond), and the sum in seconds, infinite deadlines left out.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/lateness_histogram.sql', 1, 59, 'view',
    'a099c977cf290c61e618f434cb756f057ea3e6c5d30cab8f0173a83d89bc2ccf',
$source$create or replace view expiration.lateness_histogram as
select
    p.job,
    p.phase,
    coalesce((expiration.lateness_bounds())[b.bucket], 'Infinity') as le,
    sum(coalesce(t.items, 0) + coalesce(w.items, 0)) over (partition by p.job, p.phase order by b.bucket)::bigint as items
from (
    select j.name as job, h.phase
    from expiration.job as j
    cross join lateral expiration.phases(j.name) as h
) as p
cross join generate_series(1, cardinality(expiration.lateness_bounds()) + 1) as b (bucket)
left join expiration.lateness_tally as t on p.job = t.job and p.phase = t.phase and b.bucket = t.bucket
left join (
    select h.phase, l.bucket, sum(l.items) as items
    from expiration.batch as h
    cross join lateral unnest(h.lateness) with ordinality as l (items, bucket)
    where not h.tallied
    group by h.phase, l.bucket
) as w on p.phase = w.phase and b.bucket = w.bucket;

comment on view expiration.lateness_histogram is
'Items ever expired no later than le seconds after their deadline (as_of - deadline), by job and phase, counted up to the last bound, Infinity: they only grow. What expired before version 0.3.0 was not counted.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/duration_bucket.sql', 1, 60, 'routine',
    '264d012dbb6696a0a0eb9f0517e230f17dcd613c0fa4f8c3996c8d2c3031cfaa',
$source$create or replace function expiration.duration_bucket(duration interval) returns integer
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
return (
    select count(*)::integer + 1
    from unnest(expiration.duration_bounds()) as b (bound)
    where b.bound < extract(epoch from duration)
);

comment on function expiration.duration_bucket(interval) is
'The bucket of a duration, from 1: the first of expiration.duration_bounds that it does not exceed, or the one beyond.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/open_gap.sql', 1, 61, 'routine',
    '25ddadc0f5848f9a618ffce832e0eeeaec57f6b5e847febbfd9b50ed018e2fd9',
$source$create or replace function outbox.open_gap(name text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    update outbox.slot as s set gap_since = now() where s.name = open_gap.name and s.gap_since is null;
    return found;
end
$function$;

comment on function outbox.open_gap(text) is
'Notes that a slot is about to be made anew: events from before may not have been delivered, so no partition is dropped until outbox.close_gap. Returns whether that is news.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/register_slot.sql', 1, 62, 'routine',
    '01abc2286b9621bad1f3656fb226f9a2845e5728a33ec5cdf22b6c069bacb8ba',
$source$create or replace function outbox.register_slot(name text, publication text, connector text) returns boolean
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_confirmed pg_lsn;
begin
    select r.confirmed_flush_lsn into v_confirmed
    from pg_replication_slots as r
    where r.slot_name = register_slot.name;
    insert into outbox.slot as s (name, publication, connector, gap_since)
    values (
        register_slot.name, register_slot.publication, register_slot.connector,
        case when exists (select from outbox.event as e where e.lsn < v_confirmed) then now() end
    )
    on conflict on constraint slot_pkey do update
    set publication = excluded.publication, connector = excluded.connector
    where (s.publication, s.connector) is distinct from (excluded.publication, excluded.connector);
    return found;
end
$function$;

comment on function outbox.register_slot(text, text, text) is
'Notes that a slot reads the outbox: from now on no partition is dropped before it has confirmed it, nor while it is missing or lost, nor, where events lie before it, until these have been compared with Kafka (outbox.close_gap). Returns whether anything changed. Makes no slot.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/history.sql', 1, 63, 'view',
    'b3a17134b2bad8da323a61c7d77653f14221a0c91528efb0fa1c7d145aa8e1ac',
$source$create or replace view expiration.history as
select
    r.id,
    r.job,
    r.driver,
    r.instance,
    r.status,
    r.reason,
    r.as_of,
    r.started_at,
    r.finished_at,
    coalesce(r.finished_at, clock_timestamp()) - r.started_at as duration,
    r.due_before,
    r.expired,
    r.failed,
    r.skipped_locked,
    r.batches,
    r.retries,
    r.sqlstate,
    r.error,
    r.started_by,
    expiration.run_result(r) as result
from expiration.run as r;

comment on view expiration.history is
'Runs with their durations and their results as the documents name them. Newest first: order by started_at desc.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/log_event.sql', 1, 64, 'view',
    'd7c5666e3edb2f88b3a9863501821d86c1789041e0aa5f163a74f9605477ee6a',
$source$create or replace view expiration.log_event as
select
    r.id as run_id,
    r.job,
    r.driver,
    r.started_at as at,
    0 as ordinal,
    'info'::text as level,
    case when r.job = 'lead-expiration' then 'job.started' else 'cycle started' end as event,
    case
        when r.job = 'lead-expiration' then jsonb_build_object('jobRunId', r.id, 'Now', r.as_of)
        else jsonb_build_object('runId', r.id, 'AsOf', r.as_of)
    end as fields
from expiration.run as r
where r.status <> 'skipped' and r.driver <> 'sql'
union all
select
    r.id,
    r.job,
    r.driver,
    b.finished_at,
    b.number * 2,
    'info',
    case when r.job = 'lead-expiration' then 'batch.processed' else 'batch selected' end,
    case
        when r.job = 'lead-expiration' then jsonb_build_object(
            'jobRunId', r.id,
            'size', b.expired,
            'elapsedMs', round(extract(epoch from b.finished_at - b.started_at) * 1000, 3)
        )
        else jsonb_build_object('runId', r.id, 'phase', b.phase, 'count', b.claimed, 'expired', b.expired)
    end
    || jsonb_build_object('batch', b.number, 'step', b.step, 'failed', b.failed, 'skippedLocked', b.skipped_locked)
from expiration.batch as b
inner join expiration.run as r on b.run_id = r.id
union all
select
    r.id,
    r.job,
    r.driver,
    b.finished_at,
    b.number * 2 + 1,
    'error',
    case when r.job = 'lead-expiration' then 'item.failed' else 'item failed' end,
    case
        when r.job = 'lead-expiration'
            then jsonb_build_object('jobRunId', r.id, 'LeadId', f.id, 'error', f.message, 'sqlstate', f.sqlstate)
        else jsonb_build_object(
            'runId', r.id, 'BookingId', f.id, 'phase', b.phase, 'exception', f.message, 'sqlstate', f.sqlstate
        )
    end
from expiration.batch as b
inner join expiration.run as r on b.run_id = r.id
cross join lateral jsonb_to_recordset(b.failures) as f (id uuid, sqlstate text, message text)
where b.failures is not null
union all
select
    r.id,
    r.job,
    r.driver,
    r.finished_at,
    2147483647,
    case
        when r.status in ('failed', 'abandoned') then 'error'
        when r.status in ('capped', 'skipped', 'stopped') then 'warning'
        else 'info'
    end,
    case when r.job = 'lead-expiration' then 'job.' else 'cycle ' end
    || case when r.status in ('failed', 'abandoned', 'skipped') then r.status else 'completed' end,
    case
        when r.status in ('failed', 'abandoned', 'skipped') then jsonb_build_object('error', r.error, 'sqlstate', r.sqlstate)
        when r.job = 'lead-expiration' then jsonb_build_object(
            'ExpiredCount', r.expired,
            'BatchesProcessed', r.batches,
            'cappedByMaxBatches', r.reason = 'capped',
            'elapsedMs', round(extract(epoch from r.finished_at - r.started_at) * 1000, 3)
        )
        else (expiration.run_result(r) - 'SkippedLockedCount') || jsonb_build_object('SkippedLocked', r.skipped_locked)
    end
    || jsonb_build_object(
        case when r.job = 'lead-expiration' then 'jobRunId' else 'runId' end, r.id,
        'status', r.status,
        'reason', r.reason,
        'failed', r.failed
    )
from expiration.run as r
where r.finished_at is not null and r.driver <> 'sql';

comment on view expiration.log_event is
'The documents'' log events (L15, B12) of every run, whoever drove it: order by at, ordinal. What the runner prints and pg_cron''s runs leave behind is the same.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/is_alive.sql', 1, 65, 'routine',
    '8144c4ba0f2882646240e8bad5ade2df3200dcb90192b199c359a8a0b6e67de3',
$source$create or replace function expiration.is_alive(run expiration.run) returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
return case
    -- the same backend is at it: a CALL until its statement ends, a driver that goes batch by batch while it is connected
    when (run).backend_start is not null and exists (
        select
        from pg_stat_activity as a
        where a.pid = (run).backend_pid and a.backend_start is not null
    ) then exists (
        select
        from pg_stat_activity as a
        where
            a.pid = (run).backend_pid
            and a.backend_start = (run).backend_start
            and case
                when (run).statement_start is not null and a.query_start is not null
                    then a.state <> 'idle' and a.query_start = (run).statement_start
                -- idle between two batches, or track_activities is off
                when a.state is null or a.state in ('idle', 'disabled') then expiration.last_sign_of_life((run).id) > clock_timestamp() - (
                    select j.stale_after from expiration.job as j where j.name = (run).job
                )
                else true
            end
    )
    -- gone for certain, unless we may not see other sessions or a pooler stands between
    when (run).backend_start is not null and not exists (
        select
        from pg_stat_activity as a
        where a.pid = (run).backend_pid
    ) then false
    else expiration.last_sign_of_life((run).id) > clock_timestamp() - (
        select j.stale_after from expiration.job as j where j.name = (run).job
    )
end;

comment on function expiration.is_alive(expiration.run) is
'Whether the driver of a run is still at work: by its backend where that can be seen, otherwise by its last sign of life (job.stale_after).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/slot_status.sql', 1, 66, 'view',
    '494b22fa9abb6bdce137f09d78991b89c3e850693a6ccfcf36982ac161b462f2',
$source$create or replace view outbox.slot_status as
select
    s.name,
    s.publication,
    s.connector,
    s.state,
    s.plugin,
    s.active,
    s.wal_status,
    s.restart_lsn,
    s.confirmed_flush_lsn,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    b.events as backlog_events,
    b.oldest_at as oldest_backlog_at,
    extract(epoch from clock_timestamp() - b.oldest_at)::double precision as backlog_seconds,
    s.gap_since
from outbox.slot_state as s
left join lateral (
    select
        count(*) as events,
        min(e.created_at) as oldest_at
    from outbox.event as e
    where e.lsn >= s.confirmed_flush_lsn
) as b on s.confirmed_flush_lsn is not null;

comment on view outbox.slot_status is
'outbox.slot_state with the events beyond each slot''s confirmed position, all counted. An event whose transaction was open for long may be confirmed later than its position says.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/partition.sql', 1, 67, 'view',
    'f067c3b8fccb425bc7664b2417c3f254a008ff676bc8daeb30095661d39e5a9a',
$source$create or replace view outbox.partition as
select
    c.relname::text as name,
    p.is_default,
    p.from_time,
    p.from_time + interval '1 day' as to_time,
    greatest(c.reltuples, 0)::bigint as estimated_events,
    pg_catalog.pg_total_relation_size(c.oid) as bytes
from pg_catalog.pg_inherits as i
inner join pg_catalog.pg_class as c on i.inhrelid = c.oid
cross join lateral (
    select
        pg_catalog.pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' as is_default,
        outbox.partition_start(c.oid) as from_time
) as p
where i.inhparent = 'outbox.event'::pg_catalog.regclass;

comment on view outbox.partition is
'Partitions of the outbox: the day each covers, its size, its events by the planner''s estimate.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/preview_replay.sql', 1, 68, 'routine',
    '8c7321933ad2676c95671c6471367eaba98c5eedbd796f3cfdc67192f98e29d0',
$source$create or replace function outbox.preview_replay(
    event_ids uuid[] default null,
    aggregate_id uuid default null,
    topic text default null,
    since timestamptz default null,
    until timestamptz default null
) returns setof outbox.event
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if num_nonnulls(event_ids, aggregate_id, topic, since, until) = 0 then
        perform expiration.raise_error('nothing_chosen');
    end if;
    return query
    select o.*
    from (
        -- as it was first appended, however often it was replayed
        select distinct on (e.id) e.*
        from outbox.event as e
        where
            (preview_replay.event_ids is null or e.id = any(preview_replay.event_ids))
            and (preview_replay.aggregate_id is null or e.aggregate_id = preview_replay.aggregate_id)
            and (preview_replay.topic is null or e.topic = preview_replay.topic)
            and (preview_replay.since is null or e.created_at >= preview_replay.since)
            and (preview_replay.until is null or e.created_at < preview_replay.until)
        order by e.id, e.seq
    ) as o
    order by o.seq;
end
$function$;

comment on function outbox.preview_replay(uuid[], uuid, text, timestamptz, timestamptz) is
'The events that outbox.replay would append once more, each once, in the order in which they were first appended; everything given must hold. Only what the outbox still has: see outbox.settings.retention.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/log_item.sql', 1, 69, 'routine',
    'c90f4cf62d3ce7a4fe254ef970ef72ac6368df3766556f1be80af474196e4e22',
$source$create or replace function expiration.log_item(run_id uuid)
returns table (at timestamptz, event text, fields jsonb)
language sql stable strict security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select
        coalesce(b.transaction_start, b.started_at),
        case when b.phase = 'Lead' then 'lead.expired' else 'booking expired' end,
        case
            when b.phase = 'Lead' then jsonb_build_object('LeadId', i.item_id, 'TenantId', i.tenant_id)
            else jsonb_build_object(
                'BookingId', i.item_id, 'DealId', i.deal_id, 'Phase', b.phase, 'TenantId', i.tenant_id
            )
        end
    from expiration.batch as b
    cross join lateral expiration.batch_item(b.run_id, b.number)
        with ordinality as i (item_id, tenant_id, deal_id, sqlstate, place)
    where b.run_id = log_item.run_id and i.sqlstate is null
    order by b.number, i.place;
end;

comment on function expiration.log_item(uuid) is
'The debug events of a run, lead.expired or booking expired, one an item, in order; read from the outbox as long as it keeps them.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/expire_items.sql', 1, 70, 'routine',
    '9aad4220b7d5dfda43c4a7c6a7b26025c2a30f43f75088b3c9dbc066c5e2605d',
$source$create or replace function expiration.expire_items(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer,
    rehearsal boolean default false
) returns uuid[]
language plpgsql volatile strict security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if expire_items.phase = 'Lead' then
        return crm.expire_leads(claim, as_of, run_id, batch_number, rehearsal);
    end if;
    return crm.expire_bookings(phase, claim, as_of, run_id, batch_number, rehearsal);
end
$function$;

comment on function expiration.expire_items(text, expiration.claim, timestamptz, uuid, integer, boolean) is
'The transition of a phase: crm.expire_leads or crm.expire_bookings.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/cron_uninstall.sql', 1, 71, 'routine',
    'e789fa8c0bed1f5576b9a8186e78d2d0e8f0f0047a61e3c2ea5625ebeff642de',
$source$create or replace function expiration.cron_uninstall()
returns table (jobname text, schedule text, command text, action text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
    v_present record;
begin
    for v_present in select c.* from expiration.cron_job() as c loop
        execute 'select cron.unschedule($1)' using v_present.jobid;
        jobname := v_present.jobname;
        schedule := v_present.schedule;
        command := v_present.command;
        action := 'unscheduled';
        return next;
    end loop;
end
$function$;

comment on function expiration.cron_uninstall() is
'Takes our entries out of pg_cron. A run at work goes on to its end; expiration.stop ends it after the batch in hand.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/claim_items.sql', 1, 72, 'routine',
    '323d2c8a1a942be603f348b181141f93901379c91058703d599207ca76b2b5ea',
$source$create or replace function expiration.claim_items(
    job text,
    phase text,
    step text,
    as_of timestamptz,
    batch_size integer,
    after_deadline timestamptz,
    after_id uuid,
    failed_before timestamptz
) returns expiration.claim
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if step = 'retry' then
        return expiration.claim_failed(job, phase, as_of, failed_before, batch_size);
    elsif phase = 'Lead' then
        return crm.claim_leads(as_of, batch_size, after_deadline, after_id);
    end if;
    return crm.claim_bookings(phase, as_of, batch_size, after_deadline, after_id);
end
$function$;

comment on function expiration.claim_items(text, text, text, timestamptz, integer, timestamptz, uuid, timestamptz) is
'The claim of a step of a phase: crm.claim_leads or crm.claim_bookings beyond the cursor, or with step retry expiration.claim_failed, of those that last failed before failed_before.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/duration_histogram.sql', 1, 73, 'view',
    '9aab3e4358c54726015695505d5cbc2191bd8ec8e78e4c11f87815397f10fba8',
$source$create or replace view expiration.duration_histogram as
select
    j.name as job,
    coalesce((expiration.duration_bounds())[b.bucket], 'Infinity') as le,
    sum(coalesce(t.runs, 0) + coalesce(w.runs, 0)) over (partition by j.name order by b.bucket)::bigint as runs,
    sum(coalesce(t.seconds, 0) + coalesce(w.seconds, 0)) over (
        partition by j.name order by b.bucket
    )::double precision as seconds
from expiration.job as j
cross join generate_series(1, cardinality(expiration.duration_bounds()) + 1) as b (bucket)
left join expiration.duration_tally as t on j.name = t.job and b.bucket = t.bucket
left join (
    select
        r.job,
        expiration.duration_bucket(r.finished_at - r.started_at) as bucket,
        count(*) as runs,
        sum(greatest(extract(epoch from r.finished_at - r.started_at), 0)) as seconds
    from expiration.run as r
    where
        r.tally_number is null
        and r.driver <> 'sql'
        and r.status in ('completed', 'capped', 'stopped', 'failed')
    group by 1, 2
) as w on j.name = w.job and b.bucket = w.bucket;

comment on view expiration.duration_histogram is
'Cycles ever that took no longer than le seconds, by job, counted up to the last bound, Infinity, with their durations summed likewise (seconds): they only grow. Neither skipped nor abandoned ones; what ran before version 0.3.0 was not counted.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/tally_runs.sql', 1, 74, 'routine',
    '6bcf5a25cc70d721d693a488a9bfc0436059b0d59ae67e53ddab23e3275c098a',
$source$create or replace function expiration.tally_runs(max_runs integer default 1000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_runs bigint := bigint '0';
begin
    if tally_runs.max_runs is null or tally_runs.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.tally_runs', 'greater than 0',
            coalesce(tally_runs.max_runs::text, 'null')
        );
    end if;
    -- the tally has a row a phase, and its numbers are in the order of commits: one at a time, and nobody waits
    if not pg_try_advisory_xact_lock(hashtext('expiration.tally_runs')) then
        return v_runs;
    end if;
    with waiting as materialized (
        select r.id
        from expiration.run as r
        where r.tally_number is null and r.status <> 'running'
        order by r.finished_at
        limit tally_runs.max_runs
    ),

    runs as (
        update expiration.run as r
        set tally_number = nextval('expiration.tally_number_seq')
        from waiting as w
        where r.id = w.id
        returning r.job, r.driver, r.status, r.started_at, r.finished_at, r.retries
    ),

    batches as (
        update expiration.batch as b
        set tallied = true
        from expiration.run as r
        where
            b.run_id = r.id
            and not b.tallied
            -- a run that was taken for abandoned may have had a batch in hand
            and (r.tally_number is not null or r.id in (select w.id from waiting as w))
        returning
            r.job, b.phase, b.claimed, b.expired, b.failed, b.skipped_locked, b.lateness, b.lateness_seconds
    ),

    batch_sums as (
        insert into expiration.batch_tally as t (
            job, phase, batches, expired, failed, skipped_locked, lateness_seconds
        )
        select
            b.job, b.phase, count(*) filter (where b.claimed > 0), sum(b.expired), sum(b.failed),
            sum(b.skipped_locked), coalesce(sum(b.lateness_seconds::numeric), 0)
        from batches as b
        group by b.job, b.phase
        on conflict on constraint batch_tally_pkey do update
        set
            batches = t.batches + excluded.batches,
            expired = t.expired + excluded.expired,
            failed = t.failed + excluded.failed,
            skipped_locked = t.skipped_locked + excluded.skipped_locked,
            lateness_seconds = t.lateness_seconds + excluded.lateness_seconds
    ),

    lateness_sums as (
        insert into expiration.lateness_tally as t (job, phase, bucket, items)
        select b.job, b.phase, l.bucket, sum(l.items)
        from batches as b
        cross join lateral unnest(b.lateness) with ordinality as l (items, bucket)
        where l.items > 0
        group by b.job, b.phase, l.bucket
        on conflict on constraint lateness_tally_pkey do update set items = t.items + excluded.items
    ),

    run_sums as (
        insert into expiration.run_tally as t (job, status, runs, seconds, retries)
        select
            r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision,
            sum(r.retries)
        from runs as r
        group by r.job, r.status
        on conflict on constraint run_tally_pkey do update
        set
            runs = t.runs + excluded.runs,
            seconds = t.seconds + excluded.seconds,
            retries = t.retries + excluded.retries
    ),

    duration_sums as (
        insert into expiration.duration_tally as t (job, bucket, runs, seconds)
        select
            r.job, expiration.duration_bucket(r.finished_at - r.started_at), count(*),
            sum(greatest(extract(epoch from r.finished_at - r.started_at), 0))
        from runs as r
        where r.driver <> 'sql' and r.status in ('completed', 'capped', 'stopped', 'failed')
        group by 1, 2
        on conflict on constraint duration_tally_pkey do update
        set runs = t.runs + excluded.runs, seconds = t.seconds + excluded.seconds
    )

    select count(*) into v_runs from runs as r;
    return v_runs;
end
$function$;

comment on function expiration.tally_runs(integer) is
'Adds runs that are over, at most max_runs, and their batches to the tallies, all in one statement, so that the totals never move by it. Returns how many. Every start of a run does it, and upkeep; of two at once the second does nothing.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/job_figures.sql', 1, 75, 'view',
    'fd336bee4c4cab5a33bd8cba48dcde080a77898268ef97a2c48cc520296beda4',
$source$create or replace view expiration.job_figures as
select
    j.name as job,
    extract(epoch from j.period)::double precision as period_seconds,
    extract(epoch from j.max_duration)::double precision as max_duration_seconds,
    j.paused_at is not null as paused,
    (
        select count(*)
        from expiration.run as r
        where r.status = 'running' and r.job = j.name and expiration.is_alive(r)
    ) as running,
    last_run.run_id as last_run_id,
    last_run.status as last_run_status,
    last_run.reason as last_run_reason,
    last_run.started_at as last_run_at,
    last_run.sqlstate as last_run_sqlstate,
    last_run.last_success_at as last_success_at,
    greatest(
        extract(epoch from clock_timestamp() - coalesce(last_run.last_success_at, j.created_at))::double precision, 0
    ) as seconds_since_last_success,
    coalesce(backlog.due_before, 0) as backlog,
    coalesce(last_run.expired, 0) as last_run_expired,
    coalesce(last_run.failed, 0) as last_run_failed,
    failed.items as failed_items,
    failed.oldest_at as oldest_failed_at
from expiration.job as j
inner join expiration.last_cycle as last_run on j.name = last_run.job
cross join lateral (
    select
        count(*) as items,
        min(f.first_failed_at) as oldest_at
    from (
        select i.first_failed_at
        from expiration.failed_item as i
        where i.job = j.name
        limit 10000
    ) as f
) as failed
left join lateral (
    -- the cycle at work, where there is one
    select b.due_before
    from (
        select r.due_before, r.started_at
        from expiration.run as r
        where r.job = j.name and r.status = 'running'
        union all
        select last_run.due_before, last_run.started_at
    ) as b
    where b.due_before is not null
    order by b.started_at desc
    limit 1
) as backlog on true;

comment on view expiration.job_figures is
'One row a job, at the same cost at any length of history: its settings and state, its last cycle (skipped ones and bare batches left out), the seconds since its last success (since the job came into being when there was none), backlog (what was due before the latest cycle, exactly), failed items (up to 10000).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/reap_runs.sql', 1, 76, 'routine',
    'e83c4c51714ed7ab1595ef04852300708d9e77d7c457bbf47cbae33c511ce562',
$source$create or replace function expiration.reap_runs(job text default null) returns setof expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_run expiration.run;
begin
    for v_run in
        select r.*
        from expiration.run as r
        where r.status = 'running' and (reap_runs.job is null or r.job = reap_runs.job)
    loop
        -- the run may have begun after this transaction first looked at who is at work
        perform pg_stat_clear_snapshot();
        continue when expiration.is_alive(v_run);
        -- whoever reaps or ends it at this moment needs no help; a run at work is never locked
        perform r.id from expiration.run as r where r.id = v_run.id and r.status = 'running' for no key update skip locked;
        continue when not found;
        return next expiration.close_run(
            v_run.id, 'abandoned', 'backend gone', expiration.last_sign_of_life(v_run.id), null,
            format('its driver %s (backend %s) is gone', v_run.driver, v_run.backend_pid)
        );
    end loop;
end
$function$;

comment on function expiration.reap_runs(text) is
'Marks runs whose driver is gone as abandoned, of one job or of all, and returns them. What they had committed stays.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/status.sql', 1, 77, 'view',
    '99524d2b049b36102f4c9f5954dffae538a866b3d57b81f7aa003d78c94c82ef',
$source$create or replace view expiration.status as
select
    j.name as job,
    j.period,
    j.paused_at is not null as paused,
    coalesce(running.runs, 0) as running,
    running.since as running_since,
    last_run.started_at as last_run_at,
    last_run.status as last_run_status,
    last_run.reason as last_run_reason,
    last_run.last_success_at as last_success_at,
    extract(epoch from clock_timestamp() - last_run.last_success_at)::double precision as seconds_since_last_success,
    due.items as due,
    due.oldest as oldest_due_at,
    case when isfinite(due.oldest) then clock_timestamp() - due.oldest end as oldest_due_age,
    failed.items as failed_items,
    case
        when j.paused_at is not null
            then format('paused by %s since %s%s', j.paused_by, j.paused_at, ': ' || j.paused_reason)
        when running.runs > 0 then null
        when last_run.run_id is null then 'it has never run: no driver has called it'
        when last_run.status = 'failed' then format('the last run failed with %s: %s', last_run.sqlstate, last_run.error)
        when last_run.failed > 0 and last_run.expired = 0
            then format('the last run expired nothing, and %s items failed: see expiration.failed', last_run.failed)
        when last_run.started_at < clock_timestamp() - 2 * j.period - interval '1 minute'
            then format('no driver has called it since %s: are pg_cron or pyrunner worker at work?', last_run.started_at)
    end as why_not
from expiration.job as j
left join lateral (
    select
        count(*) as runs,
        min(r.started_at) as since
    from expiration.run as r
    where r.job = j.name and r.status = 'running' and expiration.is_alive(r)
) as running on true
inner join expiration.last_cycle as last_run on j.name = last_run.job
left join lateral (
    select
        count(*) as items,
        min(d.deadline) as oldest
    from expiration.due_item as d
    where d.job = j.name and d.deadline < now()
) as due on true
left join lateral (
    select count(*) as items
    from expiration.failed_item as f
    where f.job = j.name
) as failed on true;

comment on view expiration.status is
'One row a job: its last runs, what is due and since when (failed items among it), and why it does not run when it does not.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/slot_figures.sql', 1, 78, 'view',
    '3ed1f0bb6eb23e2b25fa1655999f3db2b06321c7e764d56864eee61cc17d4dab',
$source$create or replace view outbox.slot_figures as
select
    s.name,
    s.connector,
    s.state,
    s.wal_status,
    pg_catalog.pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0')::bigint as confirmed_bytes,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    b.events as backlog_events,
    case
        when b.events is not null
            then greatest(extract(epoch from clock_timestamp() - b.oldest_at)::double precision, 0)
    end as backlog_seconds
from outbox.slot_state as s
left join lateral (
    select
        count(*) as events,
        min(c.created_at) as oldest_at
    from (
        select e.created_at
        from outbox.event as e
        where e.lsn >= s.confirmed_flush_lsn
        limit 10000
    ) as c
) as b on s.confirmed_flush_lsn is not null;

comment on view outbox.slot_figures is
'As outbox.slot_status, at a bounded cost: backlog_events counts up to 10000 and stops there. confirmed_bytes only grows, and stands still when nothing is confirmed any more, the connector''s heartbeat included.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/partition_figures.sql', 1, 79, 'view',
    '579a6acb359e1b0c1556c82e3b446e1594d3867a43c985f5cf01c10bc5170c00',
$source$create or replace view outbox.partition_figures as
select
    count(*) filter (where not p.is_default) as partitions,
    count(*) filter (where not p.is_default and p.from_time > now()) as partitions_ahead,
    min(p.from_time) as oldest_from,
    coalesce(sum(p.bytes), 0)::bigint as bytes,
    (
        select count(*)
        from (
            select from outbox.event_default as d
            limit 1000
        ) as c
    ) as default_events
from outbox.partition as p;

comment on view outbox.partition_figures is
'The outbox''s partitions in one row: how many are made ahead of today, the oldest day kept, bytes on disk, events in the default partition (up to 1000), where none should be.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/is_item_fault.sql', 1, 80, 'routine',
    'ecce3beb7709e75de122661b69e6d0f1185f6403c9abb8247e55680a140d07ed',
$source$create or replace function expiration.is_item_fault(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    schema_name text
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_sqlstate text;
begin
    -- the outbox's and the engine's own tables are never the row's fault
    if schema_name in ('outbox', 'expiration') then
        return false;
    end if;
    begin
        perform expiration.expire_items(phase, claim, as_of, run_id, 0, rehearsal => true);
        perform expiration.raise_error('rehearsal_passed', (claim).ids[1]::text);
        return null;
    exception
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate;
            if v_sqlstate = 'XP015' then
                -- without the outbox all goes well
                return false;
            elsif expiration.is_item_sqlstate(v_sqlstate) then
                return true;
            end if;
            raise;
    end;
end
$function$;

comment on function expiration.is_item_fault(text, expiration.claim, timestamptz, uuid, text) is
'Whether a failure may be blamed on the one item of the claim: its transition without the outbox must fail too, by a SQLSTATE of the allow-list (is_item_sqlstate). Everything else is the system''s fault and raises or returns false.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/start_run.sql', 1, 81, 'routine',
    '1af7f9419bc0bd9534b82a576205f513f63c53976a8d0e32a15af1130044e1db',
$source$create or replace function expiration.start_run(
    job text,
    driver text default 'psql',
    instance text default null,
    as_of timestamptz default null,
    batch_size integer default null,
    max_batches_per_cycle integer default null,
    max_duration interval default null,
    whole_statement boolean default false,
    pooled boolean default false
) returns expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_as_of constant timestamptz := coalesce(start_run.as_of, now());
    v_instance constant text := coalesce(
        start_run.instance, case when start_run.driver = 'psql' then pg_backend_pid()::text else '' end
    );
    v_job expiration.job;
    v_run expiration.run;
    v_other expiration.run;
    v_is_first boolean;
    v_due_before bigint;
    v_status text := 'running';
    v_reason text;
    v_explanation text;
    v_sqlstate text;
    v_message text;
begin
    if start_run.job is null or start_run.driver is null or whole_statement is null or pooled is null then
        perform expiration.raise_error(
            'null_argument',
            case
                when start_run.job is null then 'job'
                when start_run.driver is null then 'driver'
                when whole_statement is null then 'whole_statement'
                else 'pooled'
            end,
            'expiration.start_run'
        );
    end if;
    select j.* into v_job from expiration.job as j where j.name = start_run.job;
    if not found then
        perform expiration.raise_error('unknown_job', start_run.job);
    end if;
    if start_run.driver = 'sql' then
        perform expiration.raise_error(
            'invalid_argument', 'driver', 'expiration.start_run', 'the driver''s name, other than sql', start_run.driver
        );
    end if;
    v_job.batch_size := coalesce(start_run.batch_size, v_job.batch_size);
    v_job.max_batches_per_cycle := coalesce(start_run.max_batches_per_cycle, v_job.max_batches_per_cycle);
    v_job.max_duration := coalesce(start_run.max_duration, v_job.max_duration);
    if v_job.batch_size <= 0 then
        perform expiration.raise_error('invalid_setting', 'BatchSize', 'greater than 0', v_job.batch_size::text);
    end if;
    if v_job.max_batches_per_cycle <= 0 then
        perform expiration.raise_error(
            'invalid_setting', 'MaxBatchesPerCycle', 'greater than 0', v_job.max_batches_per_cycle::text
        );
    end if;
    if v_job.max_duration <= interval '0' then
        perform expiration.raise_error('invalid_setting', 'MaxDuration', 'greater than 0', v_job.max_duration::text);
    end if;
    if v_as_of > clock_timestamp() then
        perform expiration.raise_error('future_as_of', v_as_of::text, clock_timestamp()::text);
    end if;

    -- of two starts of one driver at once the second is an overlap, however long the first has to wait for a table
    v_is_first := pg_try_advisory_xact_lock(hashtext('expiration.start_run'), hashtext(
        start_run.job || '/' || start_run.driver || '/' || v_instance
    ));
    -- one session does one run at a time: what this one left behind is over
    if not start_run.pooled then
        perform expiration.close_run(
            r.id, 'abandoned', 'backend gone', expiration.last_sign_of_life(r.id), null,
            format('its session (backend %s) went on to another run', r.backend_pid)
        )
        from expiration.run as r
        where
            r.status = 'running'
            and r.job = start_run.job
            and r.backend_pid = pg_backend_pid()
            and r.backend_start = (select a.backend_start from pg_stat_activity as a where a.pid = pg_backend_pid());
    end if;
    perform expiration.reap_runs(start_run.job);
    begin
        perform expiration.tally_runs();
    exception
        -- expiring goes before counting; upkeep does the same, and fails with it
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate, v_message = message_text;
            raise warning 'runs were not tallied: % (%)', v_message, v_sqlstate;
    end;

    select r.* into v_other
    from expiration.run as r
    where r.status = 'running' and r.job = start_run.job and r.driver = start_run.driver and r.instance = v_instance
    limit 1;
    -- pg_cron keeps the ticks, at full minutes, that an overlong run covers, and runs them when it has ended
    if v_other.id is null and start_run.driver = 'pg_cron' and v_job.period >= interval '1 minute' then
        select r.* into v_other
        from expiration.run as r
        where
            r.job = start_run.job
            and r.driver = start_run.driver
            and r.instance = v_instance
            and r.status <> 'skipped'
            and r.started_at < date_trunc('minute', clock_timestamp())
            and r.finished_at >= date_trunc('minute', clock_timestamp())
        order by r.started_at desc
        limit 1;
    end if;
    if v_job.paused_at is not null then
        v_status := 'skipped';
        v_reason := 'paused';
        v_explanation := format(
            'paused by %s since %s%s; resume by: select expiration.resume(%L)',
            v_job.paused_by, v_job.paused_at, ': ' || v_job.paused_reason, v_job.name
        );
    elsif not v_is_first then
        v_status := 'skipped';
        v_reason := 'overlap';
        v_explanation := format('another run of %s by %s is being started at this moment', v_job.name, start_run.driver);
    elsif v_other.id is not null then
        v_status := 'skipped';
        v_reason := 'overlap';
        v_explanation := format(
            'the run of %s that %s started at %s %s (%s)',
            v_job.name, v_other.driver, v_other.started_at,
            case v_other.status when 'running' then 'still works' else 'was at work at this tick' end, v_other.id
        );
    end if;

    -- apart, so that a start that is skipped needs no lock of the items' tables
    if v_status = 'running' then
        select count(*) into v_due_before
        from expiration.due_item as d
        where d.job = start_run.job and d.deadline < v_as_of;
    end if;
    insert into expiration.run (
        job, driver, instance, status, reason, as_of, finished_at, due_before,
        batch_size, max_batches_per_cycle, max_duration, error, backend_start, statement_start
    )
    values (
        start_run.job,
        start_run.driver,
        v_instance,
        v_status,
        v_reason,
        v_as_of,
        case when v_status = 'skipped' then clock_timestamp() end,
        v_due_before,
        v_job.batch_size,
        v_job.max_batches_per_cycle,
        v_job.max_duration,
        v_explanation,
        case when not start_run.pooled then (
            select a.backend_start from pg_stat_activity as a where a.pid = pg_backend_pid()
        ) end,
        case when start_run.whole_statement then statement_timestamp() end
    )
    returning * into v_run;
    return v_run;
end
$function$;

comment on function expiration.start_run(text, text, text, timestamptz, integer, integer, interval, boolean, boolean) is
'Starts a cycle: reads the clock once (as_of, which may be set back for a rehearsal and never ahead), checks the settings, marks abandoned runs, and returns the run. Its status is skipped, and nothing is to be done, when the job is paused or the previous run of the same driver and instance still works. Arguments left null come from expiration.job. whole_statement: the calling statement is the whole run. pooled: the backend may change between calls.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/expire_in_parts.sql', 1, 82, 'routine',
    '7b7c445e394cb19b477de0552f26e6f508858b73cc5d7c68880ba72784094011',
$source$create or replace function expiration.expire_in_parts(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer,
    suspect integer default null
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    -- PostgreSQL remembers 64 open subtransactions a backend; beyond, everybody's visibility checks get slow
    v_max_subtransactions constant integer := 50;
    v_ids constant uuid[] := (expire_in_parts.claim).ids;
    v_count constant integer := coalesce(cardinality(v_ids), 0);
    v_processed integer := v_count;
    v_todo integer[];
    v_part expiration.claim;
    v_low integer;
    v_high integer;
    v_target constant regclass := case phase when 'Lead' then regclass 'crm.leads' else regclass 'crm.bookings' end;
    v_updates bigint;
    v_guess boolean := true;
    v_suspect integer := suspect;
    v_subtransactions integer := 0;
    v_expired uuid[];
    v_failed boolean;
    v_sqlstate text;
    v_message text;
    v_detail text;
    v_hint text;
    v_schema text;
    v_table text;
    v_constraint text;
    v_result expiration.batch_result;
begin
    v_result.expired_ids := '{}';
    v_result.failures := '[]';

    -- what fails is split until the bad rows stand alone, in deadline order: where the statement stopped, as far as that
    -- can be guessed, otherwise in halves
    v_todo := expiration.split(1, v_count, v_suspect);
    while v_count > 0 and cardinality(v_todo) > 0 loop
        v_high := v_todo[cardinality(v_todo)];
        v_low := v_todo[cardinality(v_todo) - 1];
        v_todo := v_todo[:cardinality(v_todo) - 2];
        if v_subtransactions >= v_max_subtransactions then
            v_processed := v_low - 1;
            exit;
        end if;

        v_part := expire_in_parts.claim;
        v_part.ids := v_part.ids[v_low:v_high];
        v_part.row_ids := v_part.row_ids[v_low:v_high];
        v_part.statuses := v_part.statuses[v_low:v_high];
        v_failed := false;
        v_updates := pg_stat_get_xact_tuples_updated(v_target);
        begin
            v_expired := expiration.expire_items(phase, v_part, as_of, run_id, batch_number);
        exception
            when others then
                get stacked diagnostics
                    v_sqlstate = returned_sqlstate,
                    v_message = message_text,
                    v_detail = pg_exception_detail,
                    v_hint = pg_exception_hint,
                    v_schema = schema_name,
                    v_table = table_name,
                    v_constraint = constraint_name;
                if not expiration.is_item_sqlstate(v_sqlstate) then
                    raise;
                end if;
                v_failed := true;
        end;

        if not v_failed then
            v_subtransactions := v_subtransactions + 1;
            v_result.expired_ids := v_result.expired_ids || v_expired;
            if v_suspect = v_low and v_low = v_high then
                v_guess := false;
            end if;
        elsif v_low < v_high and v_schema not in ('outbox', 'expiration') then
            -- rows are changed in the order of the claim, and those changed before a failure are counted
            v_suspect := v_low + (pg_stat_get_xact_tuples_updated(v_target) - v_updates)::integer;
            v_todo := v_todo || expiration.split(v_low, v_high, case when v_guess then v_suspect end);
        elsif expiration.is_item_fault(phase, v_part, as_of, run_id, v_schema) then
            v_result.failures := v_result.failures || jsonb_build_object(
                'id', v_ids[v_low], 'sqlstate', v_sqlstate, 'message', v_message
            );
        else
            raise exception using
                errcode = v_sqlstate,
                message = v_message,
                detail = coalesce(nullif(v_detail, ''), 'This is no item''s fault, so the whole batch is rolled back.'),
                hint = coalesce(nullif(v_hint, ''), 'No item was marked; mend what the message names.'),
                schema = v_schema,
                table = v_table,
                constraint = v_constraint;
        end if;
    end loop;

    v_result.claimed := v_processed;
    return v_result;
end
$function$;

comment on function expiration.expire_in_parts(text, expiration.claim, timestamptz, uuid, integer, integer) is
'Expires the items of a claim in parts, ever smaller ones where that fails on a row''s own data, so that only the bad rows are left: claimed (how many were got through, in the claim''s order), expired_ids and failures. suspect: the position in the claim where an attempt at the whole failed; null where that is not known. A fault of the system is raised as it came.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/expire_batch.sql', 1, 83, 'routine',
    '1aa82bf548f79b11221b391ee0004a97b33251a7962d8dec5fdd38fe9b924b2d',
$source$create or replace function expiration.expire_batch(
    job text,
    phase text,
    step text,
    as_of timestamptz,
    batch_size integer,
    run_id uuid,
    batch_number integer,
    after_deadline timestamptz default null,
    after_id uuid default null,
    failed_before timestamptz default null
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_target constant regclass := case phase when 'Lead' then regclass 'crm.leads' else regclass 'crm.bookings' end;
    v_updates constant bigint := pg_stat_get_xact_tuples_updated(v_target);
    v_claim expiration.claim;
    v_again expiration.claim;
    v_failed boolean := false;
    v_sqlstate text;
    v_expired_deadlines timestamptz[];
    v_result expiration.batch_result;
begin
    -- locked in the subtransaction that changes them: with another one's lock on it, each row would need a MultiXact
    begin
        v_claim := expiration.claim_items(job, phase, step, as_of, batch_size, after_deadline, after_id, failed_before);
        v_result.claimed := coalesce(cardinality(v_claim.ids), 0);
        v_result.expired_ids := '{}';
        if v_result.claimed > 0 then
            v_result.expired_ids := expiration.expire_items(phase, v_claim, as_of, run_id, batch_number);
        end if;
    exception
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate;
            if not expiration.is_item_sqlstate(v_sqlstate) then
                raise;
            end if;
            v_failed := true;
    end;
    if v_failed then
        -- the rollback freed the rows, and others may have taken some: only of the same ones is it known where it failed
        v_again := expiration.claim_items(job, phase, step, as_of, batch_size, after_deadline, after_id, failed_before);
        v_result := expiration.expire_in_parts(
            phase, v_again, as_of, run_id, batch_number,
            case
                when v_again.ids = v_claim.ids
                    then 1 + (pg_stat_get_xact_tuples_updated(v_target) - v_updates)::integer
            end
        );
        v_claim := v_again;
    end if;

    v_result.expired := cardinality(v_result.expired_ids);
    v_result.failed := coalesce(jsonb_array_length(v_result.failures), 0);
    v_result.skipped_locked := 0;
    v_result.drained := v_result.claimed = coalesce(cardinality(v_claim.ids), 0) and not coalesce(v_claim.is_full, false);
    if v_result.claimed > 0 then
        v_result.oldest_deadline := v_claim.deadlines[1];
        v_result.last_deadline := v_claim.deadlines[v_result.claimed];
        v_result.last_id := v_claim.ids[v_result.claimed];
    end if;
    if v_result.expired = cardinality(v_claim.ids) then
        v_expired_deadlines := v_claim.deadlines;
    elsif v_result.expired > 0 then
        v_expired_deadlines := array(
            select c.deadline
            from unnest(v_claim.ids, v_claim.deadlines) as c (id, deadline)
            where c.id = any(v_result.expired_ids)
            order by c.deadline
        );
    end if;
    if v_expired_deadlines is not null then
        select l.items, l.seconds
        into v_result.lateness, v_result.lateness_seconds
        from expiration.count_lateness(v_expired_deadlines, as_of) as l;
    end if;

    if v_result.failed > 0 then
        insert into expiration.failed_item as f (
            job, phase, item_id, first_failed_at, last_failed_at, sqlstate, message, run_id, row_xmin
        )
        select
            expire_batch.job, expire_batch.phase, x.id, clock_timestamp(), clock_timestamp(),
            x.sqlstate, x.message, expire_batch.run_id,
            (
                -- a scalar subquery: a join would read every due row
                select d.row_xmin
                from expiration.due_item as d
                where d.job = expire_batch.job and d.phase = expire_batch.phase and d.item_id = x.id
            )
        from jsonb_to_recordset(v_result.failures) as x (id uuid, sqlstate text, message text)
        on conflict on constraint failed_item_pkey do update
        set
            last_failed_at = excluded.last_failed_at,
            attempts = f.attempts + 1,
            sqlstate = excluded.sqlstate,
            message = excluded.message,
            run_id = excluded.run_id,
            row_xmin = excluded.row_xmin;
    else
        v_result.failures := null;
    end if;
    if v_result.expired > 0 and exists (select from expiration.failed_item) then
        delete from expiration.failed_item as f
        where
            f.job = expire_batch.job
            and f.phase = expire_batch.phase
            and f.item_id = any(v_result.expired_ids);
    end if;
    return v_result;
end
$function$;

comment on function expiration.expire_batch(text, text, text, timestamptz, integer, uuid, integer, timestamptz, uuid, timestamptz) is
'Claims a step of a phase (claim: beyond the cursor; retry: those that last failed before failed_before) and expires it: all in one statement; where that fails on a row''s own data, in parts, and the bad rows go to the list of failed items. A fault of the system is raised as it came, and nothing is marked.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/expire_bookings_batch.sql', 1, 84, 'routine',
    '27ba48931a42a91bf04547bab6309660813a8bf2553990fed4f6bf1b7be3af63',
$source$create or replace function crm.expire_bookings_batch(
    phase text,
    as_of timestamptz default now(),
    batch_size integer default 200,
    run_id uuid default null,
    batch_number integer default 1,
    after_deadline timestamptz default '-infinity',
    after_id uuid default '00000000-0000-0000-0000-000000000000'
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_started_at constant timestamptz := clock_timestamp();
    v_run_id constant uuid := coalesce(expire_bookings_batch.run_id, gen_random_uuid());
    v_result expiration.batch_result;
begin
    if phase is null then
        perform expiration.raise_error('null_argument', 'phase', 'crm.expire_bookings_batch');
    elsif phase not in ('Reserve', 'Booking') then
        perform expiration.raise_error('unknown_phase', phase);
    end if;
    perform expiration.check_batch('crm.expire_bookings_batch', as_of, batch_size, batch_number, after_deadline, after_id);
    v_result := expiration.expire_batch(
        'booking-expiration', phase, 'claim', as_of, batch_size, v_run_id, batch_number, after_deadline, after_id
    );
    -- what is still due in the batch's range was held by somebody else
    v_result.skipped_locked := expiration.count_due(
        'booking-expiration', phase, as_of, after_deadline, after_id,
        case when not v_result.drained then v_result.last_deadline end,
        case when not v_result.drained then v_result.last_id end
    )::integer;
    if not exists (select from expiration.run as r where r.id = v_run_id) then
        perform expiration.record_lone_batch(
            v_run_id, 'booking-expiration', phase, as_of, batch_size, v_started_at, v_result
        );
    end if;
    return v_result;
end
$function$;

comment on function crm.expire_bookings_batch(text, timestamptz, integer, uuid, integer, timestamptz, uuid) is
'Expires up to batch_size bookings of a phase (Reserve or Booking) whose deadline lies before as_of, oldest first, in the caller''s transaction: state, version, event, timeline card and audit row together. Passes over bookings that others hold. Without the run_id of a run it books one of its own. A constraint that is deferred speaks up at the caller''s COMMIT only, unless the caller has set it immediate. after_deadline and after_id continue behind an earlier batch (its last_deadline, last_id). Needs read committed.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/expire_leads_batch.sql', 1, 85, 'routine',
    'e620a4bbd03966167c3021d5c9ec0013f3708a3687e9ca68f8b8cddbd0fc8ef1',
$source$create or replace function crm.expire_leads_batch(
    as_of timestamptz default now(),
    batch_size integer default 500,
    run_id uuid default null,
    batch_number integer default 1,
    after_deadline timestamptz default '-infinity',
    after_id uuid default '00000000-0000-0000-0000-000000000000'
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_started_at constant timestamptz := clock_timestamp();
    v_run_id constant uuid := coalesce(expire_leads_batch.run_id, gen_random_uuid());
    v_result expiration.batch_result;
begin
    perform expiration.check_batch('crm.expire_leads_batch', as_of, batch_size, batch_number, after_deadline, after_id);
    v_result := expiration.expire_batch(
        'lead-expiration', 'Lead', 'claim', as_of, batch_size, v_run_id, batch_number, after_deadline, after_id
    );
    -- what is still due in the batch's range was held by somebody else
    v_result.skipped_locked := expiration.count_due(
        'lead-expiration', 'Lead', as_of, after_deadline, after_id,
        case when not v_result.drained then v_result.last_deadline end,
        case when not v_result.drained then v_result.last_id end
    )::integer;
    if not exists (select from expiration.run as r where r.id = v_run_id) then
        perform expiration.record_lone_batch(
            v_run_id, 'lead-expiration', 'Lead', as_of, batch_size, v_started_at, v_result
        );
    end if;
    return v_result;
end
$function$;

comment on function crm.expire_leads_batch(timestamptz, integer, uuid, integer, timestamptz, uuid) is
'Expires up to batch_size leads whose deadline lies before as_of, oldest first, in the caller''s transaction: state, version, event and audit row together. Passes over leads that others hold. Without the run_id of a run it books one of its own. A constraint that is deferred speaks up at the caller''s COMMIT only, unless the caller has set it immediate. after_deadline and after_id continue behind an earlier batch (its last_deadline, last_id). Needs read committed.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/run_batch.sql', 1, 86, 'routine',
    '8529d659f03e02879ffe3d0c6ff41d2c88fdb1296da5a301bc399cdae4d600e3',
$source$create or replace function expiration.run_batch(run_id uuid) returns expiration.batch_report
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_started_at constant timestamptz := clock_timestamp();
    v_beginning constant uuid := uuid '00000000-0000-0000-0000-000000000000';
    v_run expiration.run;
    v_job expiration.job;
    v_number integer;
    v_phase record;
    v_step text;
    v_last expiration.batch;
    v_budget bigint;
    v_left bigint;
    v_size integer;
    v_result expiration.batch_result;
    v_capped boolean;
    v_report expiration.batch_report;
begin
    select r.* into v_run from expiration.run as r where r.id = run_batch.run_id;
    if not found then
        perform expiration.raise_error('unknown_run', coalesce(run_batch.run_id::text, 'null'));
    elsif v_run.status <> 'running' then
        perform expiration.raise_error('run_is_over', run_batch.run_id::text, v_run.status);
    end if;
    select j.* into strict v_job from expiration.job as j where j.name = v_run.job;

    v_report.state := 'done';
    v_report.reason := case
        when v_run.stop_requested_at is not null then 'stop requested'
        when v_job.paused_at is not null then 'paused'
        when v_started_at - v_run.started_at > v_run.max_duration then 'out of time'
    end;
    if v_report.reason is not null then
        return v_report;
    end if;

    -- a deferred constraint speaks up while the bad row can still be told from the good ones
    set constraints all immediate;

    select coalesce(max(b.number), 0) + 1 into v_number from expiration.batch as b where b.run_id = v_run.id;
    v_budget := v_run.batch_size::bigint * v_run.max_batches_per_cycle;

    -- healthy items of every phase first, then those that failed before
    foreach v_step in array array['claim', 'retry'] loop
        for v_phase in select p.phase from expiration.phases(v_run.job) as p order by p.ordinal loop
            -- where this step of the phase stands, and what the phase has expired so far
            select b.* into v_last
            from expiration.batch as b
            where b.run_id = v_run.id and b.phase = v_phase.phase
            order by b.number desc
            limit 1;
            v_last.phase_expired := coalesce(v_last.phase_expired, 0);
            v_left := v_budget - v_last.phase_expired;

            if v_step = 'claim' then
                continue when v_left <= 0 or v_last.step = 'retry' or v_last.drained;
                v_size := least(v_run.batch_size, v_left)::integer;
                if v_run.job = 'lead-expiration' then
                    v_result := crm.expire_leads_batch(
                        v_run.as_of, v_size, v_run.id, v_number,
                        coalesce(v_last.last_deadline, '-infinity'), coalesce(v_last.last_id, v_beginning)
                    );
                else
                    v_result := crm.expire_bookings_batch(
                        v_phase.phase, v_run.as_of, v_size, v_run.id, v_number,
                        coalesce(v_last.last_deadline, '-infinity'), coalesce(v_last.last_id, v_beginning)
                    );
                end if;
                v_capped := not v_result.drained
                    and v_last.phase_expired + v_result.expired >= v_budget
                    and expiration.has_due(
                        v_run.job, v_phase.phase, v_run.as_of, v_result.last_deadline, v_result.last_id
                    );
            else
                if v_last.step is distinct from 'retry' then
                    v_last.retry_failures := 0;
                    v_last.drained := false;
                end if;
                -- within the cap; a backlog that uses it up by itself does not keep them waiting for good
                continue when v_left <= 0 and v_last.step = 'retry' and v_last.expired > 0;
                v_size := least(
                    v_run.batch_size,
                    v_job.retry_failures_per_cycle - v_last.retry_failures,
                    nullif(greatest(v_left, 0), 0)
                )::integer;
                continue when v_last.drained or v_size <= 0;
                v_result := expiration.expire_batch(
                    v_run.job, v_phase.phase, 'retry', v_run.as_of, v_size, v_run.id, v_number,
                    failed_before => v_run.started_at
                );
                v_last.retry_failures := v_last.retry_failures + v_result.failed;
                -- nothing came of it, not even a failure (a trigger that suppresses the change): once a cycle will do
                v_result.drained := v_result.drained
                    or v_result.claimed > 0 and v_result.expired = 0 and v_result.failed = 0;
                v_capped := false;
            end if;
            if v_result.claimed = 0 and v_result.skipped_locked = 0 and v_result.drained then
                -- the batch before was full and the last, as is known only now: not looked for again
                update expiration.batch as b
                set drained = true
                where b.run_id = v_run.id and b.number = v_last.number and v_last.step = v_step;
                continue;
            end if;

            insert into expiration.batch (
                run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, capped,
                oldest_deadline, last_deadline, last_id, phase_expired, retry_failures, failures, lateness, lateness_seconds
            )
            values (
                v_run.id, v_number, v_phase.phase, v_step, v_started_at, v_result.claimed, v_result.expired,
                v_result.failed, v_result.skipped_locked, v_result.drained, v_capped, v_result.oldest_deadline,
                v_result.last_deadline, v_result.last_id, v_last.phase_expired + v_result.expired,
                coalesce(v_last.retry_failures, 0), v_result.failures, v_result.lateness, v_result.lateness_seconds
            );
            v_report.state := 'more';
            v_report.number := v_number;
            v_report.phase := v_phase.phase;
            v_report.step := v_step;
            v_report.claimed := v_result.claimed;
            v_report.expired := v_result.expired;
            v_report.failed := v_result.failed;
            v_report.skipped_locked := v_result.skipped_locked;
            v_report.elapsed_ms := (extract(epoch from clock_timestamp() - v_started_at) * 1000)::double precision;
            v_report.expired_ids := v_result.expired_ids;
            v_report.failures := v_result.failures;
            return v_report;
        end loop;
    end loop;

    select
        case
            when bool_or(b.capped) then 'capped'
            when sum(b.skipped_locked) > 0 then 'locked'
            else 'drained'
        end
    into v_report.reason
    from expiration.batch as b
    where b.run_id = v_run.id;
    return v_report;
end
$function$;

comment on function expiration.run_batch(uuid) is
'Does one batch of a run in the caller''s transaction. state more: commit and call again. state done: call finish_run with the reason: drained, locked (only items that others hold are left), capped, out of time, stop requested or paused.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/run_job.sql', 1, 87, 'routine',
    '0b0570432f64a477b677d419ed1104eac3fdac814cc06dd5d7dc629c73362764',
$source$create or replace procedure expiration.run_job(job pg_catalog.text, as_of pg_catalog.timestamptz default null)
language plpgsql
as $procedure$
-- A procedure that commits can neither be SECURITY DEFINER nor pin its search_path: every name is qualified, and what
-- needs rights or a safe path stands in the functions that it calls.
declare
    v_run expiration.run;
    v_report expiration.batch_report;
    v_retry pg_catalog.bool;
    v_delay pg_catalog.interval := pg_catalog.interval '0';
    v_sqlstate pg_catalog.text;
    v_message pg_catalog.text;
    v_hint pg_catalog.text;
begin
    commit;
    set transaction isolation level read committed;
    v_run := expiration.start_run(
        job => run_job.job, driver => expiration.current_driver(), as_of => run_job.as_of, whole_statement => true
    );
    -- between a COMMIT and SET TRANSACTION nothing may be evaluated: planning an expression takes a snapshot
    if v_run.status operator(pg_catalog.=) 'skipped' then
        commit;
        raise notice '% skipped: %', run_job.job, v_run.error;
        return;
    end if;
    commit;

    loop
        set transaction isolation level read committed;
        v_sqlstate := null;
        begin
            perform pg_catalog.pg_sleep_for(v_delay);
            v_delay := pg_catalog.interval '0';
            v_report := expiration.run_batch(v_run.id);
        exception
            -- nothing is hidden: whatever it is goes on record, and is raised again
            when query_canceled or assert_failure or others then
                get stacked diagnostics
                    v_sqlstate = returned_sqlstate, v_message = message_text, v_hint = pg_exception_hint;
        end;
        if v_sqlstate is null then
            exit when v_report.state operator(pg_catalog.=) 'done';
            commit;
        else
            select f.retry, f.delay into v_retry, v_delay
            from expiration.batch_failed(v_run.id, v_sqlstate, v_message) as f;
            if not v_retry then
                commit;
                raise exception using
                    errcode = v_sqlstate,
                    message = v_message,
                    detail = pg_catalog.format(
                        'Run %s of %s failed; what it had committed stays, and the next one takes the rest.',
                        v_run.id, run_job.job
                    ),
                    hint = case
                        when v_hint operator(pg_catalog.<>) '' then v_hint
                        else 'Mend what the message names; see also: select * from expiration.status.'
                    end;
            end if;
            commit;
        end if;
    end loop;

    v_run := expiration.finish_run(v_run.id, v_report.reason);
    commit;
    raise notice '%: % expired, % failed, % skipped as locked, % batches: %',
        run_job.job, v_run.expired, v_run.failed, v_run.skipped_locked, v_run.batches, v_run.reason;
end
$procedure$;

comment on procedure expiration.run_job(text, timestamptz) is
'One whole cycle of a job, a COMMIT after every batch: what pg_cron runs and what a DBA types. Not inside a transaction block. A failure is on record in expiration.run and raised again.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/errors.sql', 1, 88, 'routine',
    '4fa9fe32b70f6157f54381f0bb4763187824bdbc142b1435be5ee07b5e4b2fcd',
$source$create or replace function expiration.errors()
returns table (sqlstate text, name text, message text, hint text)
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $function$
    values
    -- settings and arguments
    ('XP001', 'invalid_setting', '%s must be %s, and is %s',
        'See select * from expiration.job; change it by expiration.set_job.'),
    ('XP002', 'future_as_of', 'as_of is %s, which is later than the database''s clock (%s): nothing may expire early',
        'Leave as_of out, or give a time that has passed.'),
    ('XP003', 'unknown_job', 'there is no job %s',
        'The jobs are lead-expiration and booking-expiration.'),
    ('XP004', 'unknown_phase', 'there is no phase %s of bookings',
        'The phases are Reserve and Booking.'),
    ('XP005', 'null_argument', '%s of %s may not be null',
        'Give a value, or leave the argument out where it has a default.'),
    ('XP006', 'unknown_run', 'there is no run %s',
        'See select * from expiration.history; finished runs are purged after job.history_retention.'),
    ('XP007', 'run_is_over', 'run %s is over (%s): it can do no further batch',
        'Start another one: call expiration.run_job(...).'),
    ('XP008', 'wrong_isolation', 'the transaction is %s, and expiring needs read committed',
        'begin isolation level read committed; or call expiration.run_job, which sees to it by itself.'),
    ('XP009', 'invalid_deadline', 'the deadline of %s may not be %s: %s',
        'Give a finite time that lies ahead.'),
    ('XP010', 'append_only', '%s of %s is refused: the outbox is append only',
        'Append a new event instead; delivered partitions are dropped whole.'),
    ('XP011', 'cron_missing', 'pg_cron is not installed in database %s%s',
        'In the database named by cron.database_name: create extension pg_cron; it must stand in shared_preload_libraries.'),
    ('XP012', 'inexpressible_period', 'pg_cron cannot run %s every %s; the nearest periods it can are %s',
        'Change it by expiration.set_job(job => ..., period => ...), or let pyrunner worker drive the job.'),
    ('XP013', 'no_such_failed_item', 'item %s of job %s is not on the list of failed items',
        'See select * from expiration.failed_item.'),
    ('XP014', 'invalid_argument', '%s of %s must be %s, and is %s',
        'See the comment of the function: \df+ in psql.'),
    ('XP015', 'rehearsal_passed', 'item %s can be changed',
        'Internal: it ends a rehearsal and never reaches a caller.'),
    ('XP016', 'slot_lost', 'replication slot %s of the outbox is %s: no partition is dropped, since the outbox may be the only copy',
        'pyrunner cdc recover makes it anew and sends what was not delivered; where nobody reads it any more: outbox.forget_slot.'),
    ('XP017', 'too_many_events', 'more than %s events match, so none is replayed',
        'Narrow it down (see outbox.preview_replay), or give a larger max_events.'),
    ('XP018', 'nothing_chosen', 'nothing says which events',
        'Give event_ids, aggregate_id, topic, since or until.'),
    ('XP019', 'no_such_event', 'no event of the outbox matches, so none is replayed',
        'See outbox.preview_replay; what was dropped after outbox.settings.retention is gone.'),
    ('XP020', 'publication_differs', 'publication %s publishes something else than INSERTs into outbox.event through its root',
        'Drop it, or give another name.'),
    ('XP021', 'slot_gap', 'replication slot %s of the outbox was made or registered when events were there already, and nobody has compared these with Kafka: no partition is dropped',
        'pyrunner cdc recover compares, and sends what was not delivered; to give that up: outbox.close_gap.'),
    -- the domain's guards
    ('XP101', 'lead_not_found', 'there is no lead %s',
        'Look its id up in crm.leads.'),
    ('XP102', 'booking_not_found', 'there is no booking %s',
        'Look its id up in crm.bookings.'),
    ('XP103', 'version_conflict', 'CRM_VERSION_CONFLICT: %s %s has version %s, and not the expected %s',
        'Somebody changed it meanwhile: read it again and decide anew.'),
    ('XP104', 'invalid_transition', 'CRM_INVALID_TRANSITION: %s %s is %s, so it cannot be changed by %s',
        'Terminal states never change; see the comments of the commands.'),
    ('XP105', 'property_not_available', 'CRM_PROPERTY_OBJECT_NOT_AVAILABLE: property object %s is kept by another booking',
        'It becomes free once that booking has ended and, where it expired, the chessboard has taken note of that (chessboard.release).')
$function$;

comment on function expiration.errors() is
'Every SQLSTATE of our own, with its message (a format() template) and hint. Class XP: 0xx the engine, 1xx guards of the domain.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/raise_error.sql', 1, 89, 'routine',
    '743c226138d3daccf7bada15a674f6177b136fce0265538931c743da658c671b',
$source$create or replace function expiration.raise_error(name text, variadic args text[] default '{}') returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_error record;
begin
    select e.* into strict v_error from expiration.errors() as e where e.name = raise_error.name;
    raise exception using
        errcode = v_error.sqlstate,
        message = format(v_error.message, variadic args),
        hint = format(v_error.hint, variadic args);
end
$function$;

comment on function expiration.raise_error(text, text[]) is
'Raises one of expiration.errors() by its name; args fill its message, and its hint.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/check_command.sql', 1, 90, 'routine',
    '81490a059634ba0c61696ffcbbb2ce4b2f383712d4fb4fda40fc8505d5b9727e',
$source$create or replace function crm.check_command(function_name text, variadic arguments text[]) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
begin
    -- names and values alternate
    for v_index in 1..cardinality(arguments) by 2 loop
        if arguments[v_index + 1] is null then
            perform expiration.raise_error('null_argument', arguments[v_index], function_name);
        end if;
    end loop;
end
$function$;

comment on function crm.check_command(text, text[]) is
'Refuses a command one of whose arguments is null (XP005); arguments: name, value, name, value ...';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/check_deadline.sql', 1, 91, 'routine',
    '61d17a4ece04e31df3a746ec98c69bbfddffc950ea8787256ff4c46124055b14',
$source$create or replace function crm.check_deadline(entity text, id uuid, deadline timestamptz, present timestamptz default null)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_fault constant text := case
        when not isfinite(deadline) then 'it must be finite'
        when deadline <= clock_timestamp() then 'it has passed'
        when deadline <= present then format('it is not later than the present one, %s', present)
    end;
begin
    if v_fault is not null then
        perform expiration.raise_error('invalid_deadline', format('%s %s', entity, id), deadline::text, v_fault);
    end if;
end
$function$;

comment on function crm.check_deadline(text, uuid, timestamptz, timestamptz) is
'Refuses a deadline that is infinite, has passed, or is not later than the present one (XP009).';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/lock_booking.sql', 1, 92, 'routine',
    'f34fbfb10715af9ca1ab4824cabb03a33f02961e7268f23ae66983b1948afd76',
$source$create or replace function crm.lock_booking(booking_id uuid, expected_version integer) returns crm.bookings
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_booking crm.bookings;
begin
    select b.* into v_booking from crm.bookings as b where b.id = lock_booking.booking_id for no key update;
    if not found then
        perform expiration.raise_error('booking_not_found', booking_id::text);
    elsif v_booking.version <> expected_version then
        perform expiration.raise_error(
            'version_conflict', 'booking', booking_id::text, v_booking.version::text, expected_version::text
        );
    end if;
    return v_booking;
end
$function$;

comment on function crm.lock_booking(uuid, integer) is
'Locks a booking for a command; refuses one that is not there (XP102) or has another version (XP103). The jobs pass over it until the transaction ends.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/cron_schedule.sql', 1, 93, 'routine',
    '3141142bf2dfa7056c3283349016d30a44aa1092315c2b75778ee9937ce6cc5c',
$source$create or replace function expiration.cron_schedule(job text, period interval, seconds_allowed boolean default false)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_seconds constant numeric := extract(epoch from period);
    v_possible record;
    v_nearest text;
begin
    if job is null or period is null or seconds_allowed is null then
        perform expiration.raise_error(
            'null_argument',
            case when job is null then 'job' when period is null then 'period' else 'seconds_allowed' end,
            'expiration.cron_schedule'
        );
    end if;
    -- every expressible period: seconds where pg_cron knows them, divisors of the hour and of the day
    for v_possible in
        select s.seconds, s.schedule
        from (
            select n::numeric as seconds, n || ' seconds' as schedule from generate_series(1, 59) as n where seconds_allowed
            union all
            select n * 60, case n when 1 then '* * * * *' else '*/' || n || ' * * * *' end
            from generate_series(1, 30) as n
            where 60 % n = 0
            union all
            select n * 3600, case n when 1 then '0 * * * *' else '0 */' || n || ' * * *' end
            from generate_series(1, 12) as n
            where 24 % n = 0
            union all
            select 86400, '0 0 * * *'
        ) as s
        where s.seconds = v_seconds
    loop
        return v_possible.schedule;
    end loop;

    select string_agg(justify_interval(make_interval(secs => n.seconds::double precision))::text, ' and ' order by n.seconds)
    into v_nearest
    from (
        select max(p.seconds) filter (where p.seconds < v_seconds) as below, min(p.seconds) filter (where p.seconds > v_seconds) as above
        from (
            select n::numeric as seconds from generate_series(1, 59) as n where seconds_allowed
            union all
            select n * 60 from generate_series(1, 30) as n where 60 % n = 0
            union all
            select n * 3600 from generate_series(1, 24) as n where 24 % n = 0
        ) as p
    ) as b
    cross join lateral (values (b.below), (b.above)) as n (seconds)
    where n.seconds is not null;
    perform expiration.raise_error('inexpressible_period', job, period::text, v_nearest);
    return null;
end
$function$;

comment on function expiration.cron_schedule(text, interval, boolean) is
'A period as a schedule of pg_cron (GMT). Refuses one that it cannot express, naming the nearest (XP012); seconds_allowed from pg_cron 1.5.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/mark_traced.sql', 1, 94, 'routine',
    'ea4f8e479fa678da705814d96f74878c65ac9564e76fbc4f08e14823d2cd4499',
$source$create or replace function expiration.mark_traced(name text, tally_number bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if mark_traced.name is null or mark_traced.tally_number is null then
        perform expiration.raise_error(
            'null_argument', case when mark_traced.name is null then 'name' else 'tally_number' end, 'expiration.mark_traced'
        );
    end if;
    update expiration.trace_position as p
    set tally_number = mark_traced.tally_number, updated_at = clock_timestamp()
    where p.name = mark_traced.name and p.tally_number < mark_traced.tally_number;
end
$function$;

comment on function expiration.mark_traced(text, bigint) is
'Moves a destination on past the run with this tally_number; never back.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/preview.sql', 1, 95, 'routine',
    'e0bd4895ea4f00dff044771e5692a1e14afd9521ca20d0ab00200bca1242cf4e',
$source$create or replace function expiration.preview(
    job text,
    as_of timestamptz default now(),
    cycles integer default 1
) returns table (
    phase text,
    step text,
    item_id uuid,
    tenant_id uuid,
    deadline timestamptz,
    cycle integer,
    batch integer,
    expected_at timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
    v_job expiration.job;
    v_budget bigint;
    v_next timestamptz;
begin
    perform expiration.check_job(job, 'expiration.preview');
    if preview.as_of is null or preview.cycles is null then
        perform expiration.raise_error(
            'null_argument', case when preview.as_of is null then 'as_of' else 'cycles' end, 'expiration.preview'
        );
    elsif preview.cycles < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'cycles', 'expiration.preview', 'greater than 0', preview.cycles::text
        );
    end if;
    select j.* into strict v_job from expiration.job as j where j.name = preview.job;
    v_budget := v_job.batch_size::bigint * v_job.max_batches_per_cycle;
    select greatest(max(r.started_at) + v_job.period, now()) into v_next
    from expiration.run as r
    where r.job = preview.job and r.driver <> 'sql';

    return query
    with waiting as (
        select p.ordinal, d.*, case when f.item_id is null then 'claim' else 'retry' end as step, f.last_failed_at
        from expiration.phases(preview.job) as p
        inner join expiration.due_item as d on d.job = preview.job and d.phase = p.phase
        left join expiration.failed_item as f
            on f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
        where d.deadline < preview.as_of
    ),

    numbered as (
        select
            w.*,
            row_number() over (
                partition by w.ordinal, w.step
                order by w.last_failed_at, case when w.step = 'claim' then w.deadline end, w.item_id
            ) - 1 as position,
            count(*) filter (where w.step = 'claim') over (partition by w.ordinal) as claims
        from waiting as w
    ),

    planned as (
        select
            n.*,
            c.cycle,
            case
                when n.step = 'claim' then (n.position % v_budget) / v_job.batch_size
                else
                    -- behind the claims of that cycle
                    (greatest(least(n.claims - c.cycle * v_budget, v_budget), 0) + v_job.batch_size - 1) / v_job.batch_size
                    + n.position % nullif(v_job.retry_failures_per_cycle, 0) / v_job.batch_size
            end as batch
        from numbered as n
        cross join lateral (
            select
                case
                    when n.step = 'claim' then n.position / v_budget
                    -- all fail again, for all we know
                    else n.position / nullif(v_job.retry_failures_per_cycle, 0)
                end as cycle
        ) as c
    )

    select
        p.phase,
        p.step,
        p.item_id,
        p.tenant_id,
        p.deadline,
        p.cycle::integer + 1,
        p.batch::integer + 1,
        coalesce(v_next, now()) + p.cycle * v_job.period
    from planned as p
    where p.cycle < preview.cycles
    order by p.cycle, p.step, p.ordinal, p.position;
end
$function$;

comment on function expiration.preview(text, timestamptz, integer) is
'What the next cycles would take, in their order, changing nothing: with the cycle (1 = the next), the batch of its phase, and when that cycle is expected. step retry: failed before, tried again after the healthy ones, retry_failures_per_cycle of them a cycle as long as they fail. as_of may lie ahead, to see what will be due then.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/purge_history.sql', 1, 96, 'routine',
    '1b355c1da55d6349aead83f1903ac2b5eccbd870e381e251aa8f6716982bda6b',
$source$create or replace function expiration.purge_history(max_runs integer default 10000)
returns table (runs bigint, batches bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if purge_history.max_runs is null or purge_history.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.purge_history', 'greater than 0',
            coalesce(purge_history.max_runs::text, 'null')
        );
    end if;
    runs := 0;
    batches := 0;
    -- two at once would wait for each other's rows
    if pg_try_advisory_xact_lock(hashtext('expiration.purge_history')) then
        with doomed as materialized (
            select r.id
            from expiration.job as j
            cross join lateral (
                select h.id
                from expiration.run as h
                where
                    h.job = j.name
                    and h.status <> 'running'
                    and h.started_at < now() - j.history_retention
                    and h.finished_at < now() - j.history_retention
                    -- what they have counted stays in the tallies
                    and h.tally_number is not null
                    and not exists (select from expiration.batch as b where b.run_id = h.id and not b.tallied)
                    -- the last success stays, however old: the dead man's switch counts from it
                    and h.id is distinct from (
                        select s.id
                        from expiration.run as s
                        where s.job = j.name and s.status in ('completed', 'capped') and s.driver <> 'sql'
                        order by s.finished_at desc
                        limit 1
                    )
                order by h.started_at
                limit purge_history.max_runs
            ) as r
        ),

        gone_batches as (
            delete from expiration.batch as b
            using doomed as d
            where b.run_id = d.id
            returning b.run_id
        ),

        gone_runs as (
            delete from expiration.run as r
            using doomed as d
            where r.id = d.id
            returning r.id
        )

        select (select count(*) from gone_runs), (select count(*) from gone_batches)
        into purge_history.runs, purge_history.batches;
    end if;
    return next;
end
$function$;

comment on function expiration.purge_history(integer) is
'Deletes finished runs older than job.history_retention with their batches, at most max_runs a job, once they are in the tallies (expiration.tally_runs), so that batch_total and run_total never move. Returns what it deleted.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/retry_failed.sql', 1, 97, 'routine',
    'c40262079eef2191430852505bf5af15f1f56fa143679acd261984fc0e24d7a1',
$source$create or replace function expiration.retry_failed(job text, item_id uuid default null) returns setof expiration.failed_item
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    perform expiration.check_job(job, 'expiration.retry_failed');
    -- no row has version 0, so the claim takes the item as any other; its record of failures stays until it expires
    return query
    update expiration.failed_item as f
    set row_xmin = '0'
    -- an array is made once, where a join could lock again and again
    where f.ctid = any(array(
        select g.ctid
        from expiration.failed_item as g
        where
            g.job = retry_failed.job
            and (retry_failed.item_id is null or g.item_id = retry_failed.item_id)
        for no key update skip locked
    ))
    returning f.*;
    if not found and retry_failed.item_id is not null then
        perform expiration.raise_error('no_such_failed_item', retry_failed.item_id::text, job);
    end if;
end
$function$;

comment on function expiration.retry_failed(text, uuid) is
'Frees failed items of a job, one or all, so that the next cycle takes them in deadline order; returns those freed. Not needed for rows that somebody changed: they are freed by that.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/create_publication.sql', 1, 98, 'routine',
    '1ca1b15ebd397d29fe0003d74e3ebbea2e212e45eb853fa3dddf0213806722ad',
$source$create or replace function outbox.create_publication(name text default 'crm_outbox') returns boolean
language plpgsql volatile strict
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_is_right constant boolean := outbox.is_publication_right(create_publication.name);
begin
    if v_is_right then
        return false;
    elsif not v_is_right then
        perform expiration.raise_error('publication_differs', create_publication.name);
    end if;
    execute format(
        'create publication %I for table outbox.event with (publish = %L, publish_via_partition_root = true)',
        create_publication.name, 'insert'
    );
    execute format('comment on publication %I is %L', create_publication.name, 'New events of the outbox, for Debezium.');
    return true;
end
$function$;

comment on function outbox.create_publication(text) is
'Makes the publication that Debezium reads: INSERTs into outbox.event, as of the root whatever the partition. Returns whether it was made; false where it is there already; XP020 where one of that name publishes something else. Runs as the caller: a superuser, or a member of crm_owner with CREATE on the database.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/drop_partitions.sql', 1, 99, 'routine',
    '22feb215211c10787fbd472fad1e0c6892ec91244efc617e3af4916ecef41622',
$source$create or replace function outbox.drop_partitions()
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
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/make_partitions.sql', 1, 100, 'routine',
    'e6dbebfd9ffd36da4f85113d3ccec3e78d522f3ab74e2d40fdd0e48b955c0a82',
$source$create or replace function outbox.make_partitions(days_ahead integer default null)
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
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/purge_inboxes.sql', 1, 101, 'routine',
    'ad841db4bdaac75cbf6f017bd2ff5f007cea44938f127483dd906c35f74f8811',
$source$create or replace function outbox.purge_inboxes(max_ids integer default 10000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_oldest timestamptz;
    v_chessboard bigint;
    v_notifications bigint;
begin
    if purge_inboxes.max_ids is null or purge_inboxes.max_ids < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_ids', 'outbox.purge_inboxes', 'greater than 0',
            coalesce(purge_inboxes.max_ids::text, 'null')
        );
    end if;
    -- an event that the outbox still has may be replayed
    select now() - greatest(s.inbox_retention, s.retention + interval '30 days') into v_oldest
    from outbox.settings as s;
    delete from chessboard.inbox as i
    where i.ctid = any(array(
        select j.ctid from chessboard.inbox as j where j.received_at < v_oldest limit max_ids for update skip locked
    ));
    get diagnostics v_chessboard = row_count;
    delete from notifications.inbox as i
    where i.ctid = any(array(
        select j.ctid from notifications.inbox as j where j.received_at < v_oldest limit max_ids for update skip locked
    ));
    get diagnostics v_notifications = row_count;
    return v_chessboard + v_notifications;
end
$function$;

comment on function outbox.purge_inboxes(integer) is
'Deletes ids of events that the consumers had longer ago than outbox.settings.inbox_retention, at most max_ids each; returns how many. An event that comes again after that changes nothing more: its booking is released, its notice filed.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/refuse_update.sql', 1, 102, 'routine',
    '04508878c8585d6c495f53a3345fc0b08e724892f2c7eb72f8107f7e10fab8ec',
$source$create or replace function outbox.refuse_update() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    perform expiration.raise_error('append_only', tg_op, format('%I.%I', tg_table_schema, tg_table_name));
    return null;
end
$function$;

comment on function outbox.refuse_update() is
'Trigger: an event that has been appended never changes.';

$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('outbox/refuse_update.sql', 2, 103, 'trigger',
    '5a8ef09535628cd5f1475ecca4bea5cb0a406f26700efac96e1b513274b72073',
$source$create or replace trigger event_is_append_only
before update on outbox.event
for each row execute function outbox.refuse_update();

comment on trigger event_is_append_only on outbox.event is
'An event that has been appended never changes.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/extend_lead.sql', 1, 104, 'routine',
    '7e45e89005ddb702b6c78064b7fdf33b423548e1ac92450399e04e76870d95a1',
$source$create or replace function crm.extend_lead(
    lead_id uuid,
    expected_version integer,
    expires_at timestamptz,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.leads
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_before crm.leads;
    v_after crm.leads;
begin
    perform crm.check_command(
        'crm.extend_lead', 'lead_id', lead_id::text, 'expected_version', expected_version::text,
        'expires_at', expires_at::text, 'actor', actor
    );
    select l.* into v_before from crm.leads as l where l.id = extend_lead.lead_id for no key update;
    if not found then
        perform expiration.raise_error('lead_not_found', lead_id::text);
    elsif v_before.version <> expected_version then
        perform expiration.raise_error(
            'version_conflict', 'lead', lead_id::text, v_before.version::text, expected_version::text
        );
    elsif v_before.status not in ('Active', 'Expired') then
        perform expiration.raise_error('invalid_transition', 'lead', lead_id::text, v_before.status, 'extend');
    end if;
    perform crm.check_deadline('lead', lead_id, expires_at, v_before.expires_at);
    update crm.leads as l
    set
        status = 'Active',
        expires_at = extend_lead.expires_at,
        expired_at = null,
        updated_at = now(),
        version = l.version + 1
    where l.id = extend_lead.lead_id
    returning l.* into v_after;
    insert into crm.audit_log (
        tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
    )
    values (
        v_after.tenant_id, 'Lead', v_after.id, 'Extend', extend_lead.actor, v_before.status, v_after.status,
        extend_lead.correlation_id, v_after.updated_at
    );
    return v_after;
end
$function$;

comment on function crm.extend_lead(uuid, integer, timestamptz, text, uuid) is
'Agent''s command: moves the deadline of an Active lead, or makes an Expired one Active again (L23), if it still has the expected version (XP103). Returns it.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/reserve_property.sql', 1, 105, 'routine',
    '375d5b54faca88a2d2315f83b44c3316e9dd79f570510bd7f4b9f9934838a3f8',
$source$create or replace function crm.reserve_property(
    tenant_id uuid,
    deal_id uuid,
    property_object_id uuid,
    reserve_expires_at timestamptz,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.bookings
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_constraint text;
    v_booking crm.bookings;
begin
    perform crm.check_command(
        'crm.reserve_property', 'tenant_id', tenant_id::text, 'deal_id', deal_id::text,
        'property_object_id', property_object_id::text, 'reserve_expires_at', reserve_expires_at::text, 'actor', actor
    );
    perform crm.check_deadline('property object', property_object_id, reserve_expires_at);
    begin
        insert into crm.bookings (tenant_id, deal_id, property_object_id, status, reserve_expires_at)
        values (
            reserve_property.tenant_id, reserve_property.deal_id, reserve_property.property_object_id, 'Reserved',
            reserve_property.reserve_expires_at
        )
        returning * into v_booking;
    exception
        when unique_violation then
            get stacked diagnostics v_constraint = constraint_name;
            if v_constraint <> 'ux_bookings_property_object_id' then
                raise;
            end if;
            perform expiration.raise_error('property_not_available', property_object_id::text);
    end;
    -- after the insert, whose wait for an expiration that was being written this statement sees the end of
    if exists (
        select
        from crm.bookings as b
        where
            b.property_object_id = reserve_property.property_object_id
            and b.status in ('ReserveExpired', 'BookingExpired')
            and not exists (select from chessboard.release as r where r.booking_id = b.id)
    ) then
        perform expiration.raise_error('property_not_available', property_object_id::text);
    end if;
    return crm.record_command(v_booking, 'Reserve', 'PropertyReserved', null, actor, correlation_id);
end
$function$;

comment on function crm.reserve_property(uuid, uuid, uuid, timestamptz, text, uuid) is
'Manager''s command: reserves a property object for a deal until reserve_expires_at and returns the booking. Refused with CRM_PROPERTY_OBJECT_NOT_AVAILABLE (XP105) while another active booking keeps it, and after the expiration of one until the chessboard has freed it; waits for one that is being written.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/cancel_booking.sql', 1, 106, 'routine',
    '2edf33e12c06fe5531c695b815d99fa3b4d4a11dd8fec68071f94ca9fdeedb27',
$source$create or replace function crm.cancel_booking(
    booking_id uuid,
    expected_version integer,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.bookings
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.cancel_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment', 'Booked') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'cancel');
    end if;
    update crm.bookings as b
    set status = 'Cancelled', updated_at = now(), version = b.version + 1
    where b.id = cancel_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Cancel', 'BookingCancelled', v_before.status, actor, correlation_id);
end
$function$;

comment on function crm.cancel_booking(uuid, integer, text, uuid) is
'Manager''s command: an active booking becomes Cancelled, if it still has the expected version (XP103). Returns it.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/confirm_booking.sql', 1, 107, 'routine',
    'fc581cb9bc6fa04c6531bfe9b33282375fdb491ade6401847b25c802517c439b',
$source$create or replace function crm.confirm_booking(
    booking_id uuid,
    expected_version integer,
    booking_expires_at timestamptz,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.bookings
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.confirm_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text,
        'booking_expires_at', booking_expires_at::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'confirm');
    end if;
    perform crm.check_deadline('booking', booking_id, booking_expires_at);
    update crm.bookings as b
    set
        status = 'Booked',
        booking_expires_at = confirm_booking.booking_expires_at,
        updated_at = now(),
        version = b.version + 1
    where b.id = confirm_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Confirm', 'BookingConfirmed', v_before.status, actor, correlation_id);
end
$function$;

comment on function crm.confirm_booking(uuid, integer, timestamptz, text, uuid) is
'Manager''s command: Reserved or AwaitingPayment becomes Booked until booking_expires_at, if the booking still has the expected version (XP103). Returns it.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('crm/extend_booking.sql', 1, 108, 'routine',
    '5309fbe121fad6bb078f36fe1311543f20f5c0352c9444f3e82cc47435b9128b',
$source$create or replace function crm.extend_booking(
    booking_id uuid,
    expected_version integer,
    expires_at timestamptz,
    actor text default session_user,
    correlation_id uuid default null
) returns crm.bookings
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.extend_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text,
        'expires_at', expires_at::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment', 'Booked') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'extend');
    end if;
    perform crm.check_deadline(
        'booking', booking_id, expires_at,
        case when v_before.status = 'Booked' then v_before.booking_expires_at else v_before.reserve_expires_at end
    );
    update crm.bookings as b
    set
        reserve_expires_at = case when b.status = 'Booked' then b.reserve_expires_at else extend_booking.expires_at end,
        booking_expires_at = case when b.status = 'Booked' then extend_booking.expires_at else b.booking_expires_at end,
        updated_at = now(),
        version = b.version + 1
    where b.id = extend_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Extend', 'BookingExtended', v_before.status, actor, correlation_id);
end
$function$;

comment on function crm.extend_booking(uuid, integer, timestamptz, text, uuid) is
'Manager''s command: moves the deadline of an active booking (of the reserve, or once Booked of the booking) to expires_at, if it still has the expected version (XP103). Returns it.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/take_traces.sql', 1, 109, 'routine',
    '2c4b726925ef355e15c6fbc96a19cb7375094411ff9b59ec7b12758c14d58eed',
$source$create or replace function expiration.take_traces(name text, max_runs integer default 100) returns setof expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
declare
    v_position bigint;
begin
    if take_traces.name is null then
        perform expiration.raise_error('null_argument', 'name', 'expiration.take_traces');
    elsif take_traces.max_runs is null or take_traces.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.take_traces', 'greater than 0',
            coalesce(take_traces.max_runs::text, 'null')
        );
    end if;
    perform expiration.tally_runs();
    -- a new destination starts with what ends from now on
    insert into expiration.trace_position (name, tally_number)
    select take_traces.name, coalesce(max(r.tally_number), 0)
    from expiration.run as r
    on conflict on constraint trace_position_pkey do nothing;
    select p.tally_number into v_position
    from expiration.trace_position as p
    where p.name = take_traces.name
    for update skip locked;
    if found then
        return query
        select r.*
        from expiration.run as r
        where r.tally_number > v_position
        order by r.tally_number
        limit take_traces.max_runs;
    end if;
end
$function$;

comment on function expiration.take_traces(text, integer) is
'Runs that are over and were not yet sent to the destination, in order, none when another session is at it. Send them and call expiration.mark_traced with the last tally_number in the same transaction: each is then taken by one exporter. The first call for a destination begins with the runs that end from then on.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/run_upkeep.sql', 1, 110, 'routine',
    '44c8e52d04a81f82703cf7a308b69aba6efd553a48cb58ae93d6cd558a3c5df4',
$source$create or replace procedure expiration.run_upkeep()
language plpgsql
as $procedure$
declare
    v_step pg_catalog.text;
    v_runs pg_catalog.int8;
    v_sqlstate pg_catalog.text;
    v_message pg_catalog.text;
    v_first_sqlstate pg_catalog.text;
    v_first_message pg_catalog.text;
begin
    commit;
    -- one step that fails does not keep the others from being done; the first failure is raised at the end
    foreach v_step in array array[
        'make partitions', 'drop partitions', 'reap runs', 'tally runs', 'purge history', 'purge inboxes',
        'purge history of pg_cron'
    ] loop
        loop
            v_runs := 0;
            v_sqlstate := null;
            begin
                -- no CASE: it would compare by whatever = the caller's search_path finds
                if v_step operator(pg_catalog.=) 'make partitions' then
                    perform outbox.make_partitions();
                elsif v_step operator(pg_catalog.=) 'drop partitions' then
                    perform outbox.drop_partitions();
                elsif v_step operator(pg_catalog.=) 'reap runs' then
                    perform expiration.reap_runs();
                elsif v_step operator(pg_catalog.=) 'tally runs' then
                    v_runs := expiration.tally_runs();
                elsif v_step operator(pg_catalog.=) 'purge history' then
                    v_runs := (select p.runs from expiration.purge_history() as p);
                elsif v_step operator(pg_catalog.=) 'purge inboxes' then
                    v_runs := outbox.purge_inboxes();
                else
                    perform expiration.purge_cron_history();
                end if;
            exception
                when query_canceled or assert_failure or others then
                    get stacked diagnostics v_sqlstate = returned_sqlstate, v_message = message_text;
            end;
            commit;
            if v_sqlstate is not null then
                raise warning '%: % (%)', v_step, v_message, v_sqlstate;
                v_first_message := coalesce(v_first_message, pg_catalog.format('%s: %s', v_step, v_message));
                v_first_sqlstate := coalesce(v_first_sqlstate, v_sqlstate);
            end if;
            exit when v_runs operator(pg_catalog.=) 0;
        end loop;
    end loop;
    if v_first_sqlstate is not null then
        raise exception using
            errcode = v_first_sqlstate,
            message = v_first_message,
            hint = 'The other steps of upkeep were done; call it again when the cause is gone.';
    end if;
end
$procedure$;

comment on procedure expiration.run_upkeep() is
'Keeps house, once an hour say: partitions of the outbox made ahead and, once delivered and past their retention, dropped; abandoned runs marked, what is over tallied, old history purged, ours and pg_cron''s. Not inside a transaction block.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/cron_plan.sql', 1, 111, 'routine',
    'd05c9d347d5c5984a5887ed22781bdb85f822c6ec078a947b83e07e96e0a5a2c',
$source$create or replace function expiration.cron_plan(seconds_allowed boolean default false)
returns table (jobname text, schedule text, command text)
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
    select
        j.name,
        expiration.cron_schedule(j.name, j.period, cron_plan.seconds_allowed),
        format('CALL expiration.run_job(%L)', j.name)
    from expiration.job as j
    union all
    select 'expiration-upkeep', '7 * * * *', 'CALL expiration.run_upkeep()'
    order by 1;
end;

comment on function expiration.cron_plan(boolean) is
'The entries that pg_cron needs: one a job and one for upkeep, each command exactly one CALL.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

insert into expiration.installed_file (file, part, position, kind, checksum, source)
values ('expiration/cron_install.sql', 1, 112, 'routine',
    '628eb6729edad05d37c7aff2080262ad155544d8760c5066a35cb52d52aea268',
$source$create or replace function expiration.cron_install()
returns table (jobname text, schedule text, command text, action text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
    v_version text;
    v_wanted record;
    v_present record;
begin
    select e.extversion into v_version from pg_extension as e where e.extname = 'pg_cron';
    if not found then
        perform expiration.raise_error(
            'cron_missing',
            current_database(),
            coalesce(
                -- only some may read that setting
                case when pg_has_role('pg_read_all_settings', 'usage') then
                    ' (it lives in database ' || nullif(current_setting('cron.database_name', true), '')
                    || '; from there, schedule by cron.schedule_in_database)'
                end,
                ''
            )
        );
    end if;

    for v_wanted in
        select p.*
        from expiration.cron_plan(
            string_to_array(substring(v_version, '^\d+\.\d+'), '.')::integer[] >= array[1, 5]
        ) as p
    loop
        jobname := v_wanted.jobname;
        schedule := v_wanted.schedule;
        command := v_wanted.command;
        select c.* into v_present from expiration.cron_job() as c where c.command = v_wanted.command order by c.jobid limit 1;
        if not found then
            execute 'select cron.schedule($1, $2, $3)' using v_wanted.jobname, v_wanted.schedule, v_wanted.command;
            action := 'scheduled';
        elsif v_present.schedule = v_wanted.schedule and v_present.active then
            action := case
                when v_present.username = current_user then 'kept'
                else format('kept: it belongs to %s', v_present.username)
            end;
        else
            -- alter_job is for superusers only; one's own entry is made anew, which also makes it active
            if v_present.username = current_user then
                execute 'select cron.unschedule($1)' using v_present.jobid;
                execute 'select cron.schedule($1, $2, $3)' using v_wanted.jobname, v_wanted.schedule, v_wanted.command;
            else
                execute 'select cron.alter_job(job_id := $1, schedule := $2, active := true)'
                using v_present.jobid, v_wanted.schedule;
            end if;
            action := format('changed from %s', v_present.schedule);
        end if;
        return next;
    end loop;
end
$function$;

comment on function expiration.cron_install() is
'Schedules both jobs and upkeep by pg_cron, under the caller''s login. Idempotent: what is there is kept or brought to the job''s period. For the database in which pg_cron lives; elsewhere it says what to do.';
$source$)
on conflict (file, part) do update set position = excluded.position, kind = excluded.kind, checksum = excluded.checksum, source = excluded.source;

delete from expiration.installed_file where position = 0;

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

-- 5. Privileges

-- Who may do what. Loaded last, as the owner; monitor is a part of runner, runner of operator (bootstrap.sql).

-- PUBLIC gets nothing of ours; what a team has in a schema of the same name stays as it is
do $public$
declare
    v_object record;
begin
    for v_object in
        select 'schema' as kind, n.oid::regnamespace::text as name
        from pg_namespace as n
        where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and n.nspowner = 'crm_owner'::regrole
        union all
        select 'routine', p.oid::regprocedure::text
        from pg_proc as p
        inner join pg_namespace as n on p.pronamespace = n.oid
        where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and p.proowner = 'crm_owner'::regrole
        union all
        select 'table', c.oid::regclass::text
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')
            and c.relowner = 'crm_owner'::regrole
            and c.relkind in ('r', 'p', 'v', 'S')
    loop
        execute format('revoke all on %s %s from public', v_object.kind, v_object.name);
    end loop;
end
$public$;

-- monitor: sees runs, batches, failed items, settings, the outbox's partitions; no domain data but ids
grant usage on schema expiration, outbox, chessboard, notifications to crm_monitor;
grant select on
    expiration.job, expiration.run, expiration.batch, expiration.failed_item, expiration.batch_tally,
    expiration.run_tally, expiration.lateness_tally, expiration.duration_tally, expiration.trace_position,
    expiration.status, expiration.history, expiration.failed, expiration.log_event, expiration.batch_total,
    expiration.run_total, expiration.lateness_histogram, expiration.duration_histogram, expiration.job_figures,
    expiration.due_figures, outbox.partition, outbox.partition_figures, outbox.settings, outbox.slot,
    outbox.slot_state, outbox.slot_status, outbox.slot_figures, outbox.replay_log, chessboard.parked_total,
    notifications.parked_total
to crm_monitor;
grant execute on function
    expiration.schema_version(), expiration.errors(), expiration.phases(text),
    expiration.raise_error(text, text[]), expiration.check_job(text, text),
    expiration.is_alive(expiration.run), expiration.last_sign_of_life(uuid), expiration.run_result(expiration.run),
    expiration.log_item(uuid), expiration.batch_item(uuid, integer, integer), expiration.cron_job(),
    expiration.lateness_bounds(), expiration.duration_bounds(), expiration.duration_bucket(interval),
    expiration.preview(text, timestamptz, integer),
    outbox.partition_start(oid), outbox.is_publication_right(text), outbox.traceparent(uuid, integer)
to crm_monitor;

-- runner: the run protocol, the batches, upkeep, its own entries in pg_cron
grant execute on function
    expiration.current_driver(),
    expiration.start_run(text, text, text, timestamptz, integer, integer, interval, boolean, boolean),
    expiration.run_batch(uuid),
    expiration.finish_run(uuid, text),
    expiration.batch_failed(uuid, text, text),
    expiration.reap_runs(text),
    expiration.tally_runs(integer),
    expiration.take_traces(text, integer),
    expiration.mark_traced(text, bigint),
    expiration.purge_history(integer),
    expiration.purge_cron_history(interval),
    expiration.cron_schedule(text, interval, boolean),
    expiration.cron_plan(boolean),
    expiration.cron_install(),
    expiration.cron_uninstall(),
    outbox.make_partitions(integer),
    outbox.drop_partitions(),
    outbox.purge_inboxes(integer),
    crm.expire_leads_batch(timestamptz, integer, uuid, integer, timestamptz, uuid),
    crm.expire_bookings_batch(text, timestamptz, integer, uuid, integer, timestamptz, uuid)
to crm_runner;
grant execute on procedure expiration.run_job(text, timestamptz), expiration.run_upkeep() to crm_runner;

-- operator: the control plane
grant execute on function
    expiration.pause(text, text),
    expiration.resume(text),
    expiration.stop(text),
    expiration.retry_failed(text, uuid),
    expiration.set_job(text, interval, integer, integer, interval, integer, integer, interval, interval),
    outbox.preview_replay(uuid[], uuid, text, timestamptz, timestamptz),
    outbox.replay(text, uuid[], uuid, text, timestamptz, timestamptz, integer),
    outbox.register_slot(text, text, text),
    outbox.forget_slot(text),
    outbox.open_gap(text),
    outbox.close_gap(text)
to crm_operator;
grant execute on function chessboard.dismiss_parked(bigint), notifications.dismiss_parked(bigint) to crm_operator;
-- cdc verify and recover compare the outbox with Kafka; what an event says is none of their business
grant select (id, seq, created_at, topic, correlation_id, lsn, replay_id) on outbox.event to crm_operator;

-- app: the CRM's own work; the jobs' tables are none of its business
grant select on crm.effective_leads, crm.effective_bookings to crm_app;
do $app$
declare
    v_grant record;
begin
    -- a table, or the schema, that belongs to a team has the team's grants
    for v_grant in
        select g.privilege, c.oid::regclass::text as name
        from (values
            ('select', 'leads'), ('select', 'bookings'), ('select', 'deals'), ('select', 'fixations'),
            ('select', 'deal_timeline'), ('select', 'audit_log'),
            ('insert', 'leads'), ('insert', 'deals'), ('insert', 'fixations')
        ) as g (privilege, name)
        inner join pg_class as c on c.relname = g.name and c.relnamespace = 'crm'::regnamespace
        where c.relowner = 'crm_owner'::regrole
    loop
        execute format('grant %s on %s to crm_app', v_grant.privilege, v_grant.name);
    end loop;
    if (select n.nspowner = 'crm_owner'::regrole from pg_namespace as n where n.nspname = 'crm') then
        grant usage on schema crm to crm_runner, crm_app;
    end if;
end
$app$;
grant execute on function
    crm.confirm_booking(uuid, integer, timestamptz, text, uuid),
    crm.extend_booking(uuid, integer, timestamptz, text, uuid),
    crm.cancel_booking(uuid, integer, text, uuid),
    crm.reserve_property(uuid, uuid, uuid, timestamptz, text, uuid),
    crm.extend_lead(uuid, integer, timestamptz, text, uuid)
to crm_app;

-- consumers: each its own schema's functions and what they have put aside
grant usage on schema chessboard to crm_chessboard;
grant select on chessboard.release, chessboard.parked, chessboard.parked_total to crm_chessboard;
grant execute on function
    chessboard.free_property(uuid, uuid, uuid, uuid, text, timestamptz, text),
    chessboard.park(text, integer, bigint, uuid, text, jsonb, bytea, text)
to crm_chessboard;
grant usage on schema notifications to crm_notifications;
grant select on notifications.notice, notifications.parked, notifications.parked_total to crm_notifications;
grant execute on function
    notifications.file_notice(uuid, uuid, uuid, uuid, timestamptz, text),
    notifications.park(text, integer, bigint, uuid, text, jsonb, bytea, text),
    notifications.take_unsent(integer),
    notifications.mark_sent(uuid),
    notifications.mark_failed(uuid, text)
to crm_notifications;
-- behind the consumers', so that an upgrade leaves them in the same order
grant select on chessboard.parked, notifications.parked to crm_operator;

-- ready at once: today's partition and those of the days ahead; upkeep makes the next ones
do $partitions$
begin
    perform outbox.make_partitions();
end
$partitions$;

-- Every command reads what is installed, and whether somebody changed it.
grant select on table expiration.installation, expiration.migration_checksum, expiration.installed_object to crm_monitor;
grant execute on function expiration.loadable_objects(), expiration.fingerprint(oid, oid) to crm_monitor;

-- 6. Done

insert into expiration.installation (version, installed_at, installed_by, last_migration, checksum)
values ('0.4.0', clock_timestamp(), session_user, '0008.gap', 'ad391f5d07ed864daa05e35285c50373f27f6f87c3442843c13d8841a0581ffe')
on conflict (version) do update set
    installed_at = excluded.installed_at, installed_by = excluded.installed_by,
    last_migration = excluded.last_migration, checksum = excluded.checksum;

commit;
\echo pyrunner 0.4.0 is installed.

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

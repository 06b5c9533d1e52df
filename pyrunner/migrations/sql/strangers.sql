-- What keeps the schemas named in the parameter from being dropped: objects in them that belong to others than
-- crm_owner, and objects elsewhere that depend on what is in them.
with ours as (
    select n.oid from pg_namespace as n where n.nspname = any (%(schemas)s)
),
inside as (
    select 'pg_class'::regclass::oid as class, c.oid as object, c.relowner as owner
    from pg_class as c
    where c.relnamespace in (select o.oid from ours as o) and c.relkind not in ('i', 'I')
    union all
    select 'pg_proc'::regclass, p.oid, p.proowner
    from pg_proc as p
    where p.pronamespace in (select o.oid from ours as o)
    union all
    select 'pg_type'::regclass, t.oid, t.typowner
    from pg_type as t
    where t.typnamespace in (select o.oid from ours as o)
),
dependent as (
    select
        d.classid as class,
        d.objid as object,
        coalesce(
            (select p.pronamespace from pg_proc as p where d.classid = 'pg_proc'::regclass and p.oid = d.objid),
            (select t.typnamespace from pg_type as t where d.classid = 'pg_type'::regclass and t.oid = d.objid),
            (
                select c.relnamespace
                from pg_class as c
                where c.oid = case d.classid
                    when 'pg_class'::regclass then d.objid
                    when 'pg_rewrite'::regclass then (select r.ev_class from pg_rewrite as r where r.oid = d.objid)
                    when 'pg_constraint'::regclass then (select k.conrelid from pg_constraint as k where k.oid = d.objid)
                    when 'pg_attrdef'::regclass then (select a.adrelid from pg_attrdef as a where a.oid = d.objid)
                    when 'pg_trigger'::regclass then (select t.tgrelid from pg_trigger as t where t.oid = d.objid)
                    when 'pg_policy'::regclass then (select p.polrelid from pg_policy as p where p.oid = d.objid)
                end
            )
        ) as namespace
    from pg_depend as d
    inner join inside as i on d.refclassid = i.class and d.refobjid = i.object
    where d.deptype <> 'i' or d.classid = 'pg_rewrite'::regclass
)
select pg_describe_object(i.class, i.object, 0) || ' of ' || pg_get_userbyid(i.owner)
from inside as i
where pg_get_userbyid(i.owner) <> 'crm_owner' and i.class <> 'pg_type'::regclass
union
select pg_describe_object(d.class, d.object, 0)
from dependent as d
where d.namespace not in (select o.oid from ours as o)
order by 1;

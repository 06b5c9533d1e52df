create or replace function outbox.is_publication_right(name text) returns boolean
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

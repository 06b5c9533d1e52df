-- A publication, and whether it publishes INSERTs into outbox.event through its root and nothing else: no row where there is none.
select
    p.pubinsert and not p.pubupdate and not p.pubdelete and not p.pubtruncate and p.pubviaroot and not p.puballtables
    and (select array_agg(r.prrelid) from pg_publication_rel as r where r.prpubid = p.oid) = array['outbox.event'::regclass::oid]
    and not exists (select from pg_publication_namespace as n where n.pnpubid = p.oid)
    and not exists (
        select from pg_publication_rel as r where r.prpubid = p.oid and (r.prattrs is not null or r.prqual is not null)
    ) as is_right
from pg_publication as p
where p.pubname = %(publication)s

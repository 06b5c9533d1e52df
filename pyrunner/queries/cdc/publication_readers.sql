-- Other slots of the outbox that read a publication.
select s.name from outbox.slot as s where s.publication = %(publication)s and s.name <> %(slot)s order by s.name

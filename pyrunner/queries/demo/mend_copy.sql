-- The copy is mended too: the change was no transition's.
update lead_before
set version = 1
where id = %(id)s

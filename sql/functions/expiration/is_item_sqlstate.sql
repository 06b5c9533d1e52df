create or replace function expiration.is_item_sqlstate(fault_sqlstate text) returns boolean
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

create or replace function expiration.is_item_fault(
    phase text,
    item_id uuid,
    as_of timestamptz,
    run_id uuid,
    fault_sqlstate text,
    schema_name text
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    -- the outbox's and the engine's own tables are never the row's fault
    if schema_name in ('outbox', 'expiration') then
        return false;
    end if;
    begin
        perform expiration.expire_items(phase, array[item_id], as_of, run_id, 0, rehearsal => true);
        perform expiration.raise_error('rehearsal_passed', item_id::text);
        return false;
    exception
        when sqlstate 'XP015' then
            -- changing the row alone goes well: what fails is a record about it, its own values at fault only
            -- where a table of the domain refused them
            return left(fault_sqlstate, 2) = '23' and schema_name <> '';
        when data_exception or integrity_constraint_violation or raise_exception then
            return true;
    end;
end
$function$;

comment on function expiration.is_item_fault(text, uuid, timestamptz, uuid, text, text) is
'Whether a failure may be blamed on the row: changing it and nothing else must fail too, by a data exception, an integrity violation or a guard''s exception; or a table of the domain refused a record about it. Everything else is the system''s fault and raises or returns false.';

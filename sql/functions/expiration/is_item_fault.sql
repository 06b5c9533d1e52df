create or replace function expiration.is_item_fault(
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

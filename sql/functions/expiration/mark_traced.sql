create or replace function expiration.mark_traced(name text, tally_number bigint) returns void
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

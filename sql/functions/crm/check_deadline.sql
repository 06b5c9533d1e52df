create or replace function crm.check_deadline(entity text, id uuid, deadline timestamptz, present timestamptz default null)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_fault constant text := case
        when not isfinite(deadline) then 'it must be finite'
        when deadline <= clock_timestamp() then 'it has passed'
        when deadline <= present then format('it is not later than the present one, %s', present)
    end;
begin
    if v_fault is not null then
        perform expiration.raise_error('invalid_deadline', format('%s %s', entity, id), deadline::text, v_fault);
    end if;
end
$function$;

comment on function crm.check_deadline(text, uuid, timestamptz, timestamptz) is
'Refuses a deadline that is infinite, has passed, or is not later than the present one (XP009).';

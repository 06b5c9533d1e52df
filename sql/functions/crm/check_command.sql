create or replace function crm.check_command(function_name text, variadic arguments text[]) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
begin
    -- names and values alternate
    for v_index in 1..cardinality(arguments) by 2 loop
        if arguments[v_index + 1] is null then
            perform expiration.raise_error('null_argument', arguments[v_index], function_name);
        end if;
    end loop;
end
$function$;

comment on function crm.check_command(text, text[]) is
'Refuses a command one of whose arguments is null (XP005); arguments: name, value, name, value ...';

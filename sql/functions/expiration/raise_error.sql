create or replace function expiration.raise_error(name text, variadic args text[] default '{}') returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_error record;
begin
    select e.* into strict v_error from expiration.errors() as e where e.name = raise_error.name;
    raise exception using
        errcode = v_error.sqlstate,
        message = format(v_error.message, variadic args),
        hint = format(v_error.hint, variadic args);
end
$function$;

comment on function expiration.raise_error(text, text[]) is
'Raises one of expiration.errors() by its name; args fill its message, and its hint.';

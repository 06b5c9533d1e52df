create or replace function expiration.check_batch(
    function_name text,
    as_of timestamptz,
    batch_size integer,
    batch_number integer,
    after_deadline timestamptz,
    after_id uuid
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_null constant text := case
        when as_of is null then 'as_of'
        when batch_size is null then 'batch_size'
        when batch_number is null then 'batch_number'
        when after_deadline is null then 'after_deadline'
        when after_id is null then 'after_id'
    end;
begin
    if v_null is not null then
        perform expiration.raise_error('null_argument', v_null, function_name);
    end if;
    if batch_size <= 0 then
        perform expiration.raise_error('invalid_setting', 'BatchSize', 'greater than 0', batch_size::text);
    end if;
    if as_of > clock_timestamp() then
        perform expiration.raise_error('future_as_of', as_of::text, clock_timestamp()::text);
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform expiration.raise_error('wrong_isolation', current_setting('transaction_isolation'));
    end if;
end
$function$;

comment on function expiration.check_batch(text, timestamptz, integer, integer, timestamptz, uuid) is
'Refuses a batch with bad arguments (XP001, XP002, XP005) or in a transaction that is not read committed (XP008).';

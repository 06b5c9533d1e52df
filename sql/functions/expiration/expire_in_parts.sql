create or replace function expiration.expire_in_parts(
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer,
    suspect integer default null
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    -- PostgreSQL remembers 64 open subtransactions a backend; beyond, everybody's visibility checks get slow
    v_max_subtransactions constant integer := 50;
    v_ids constant uuid[] := (expire_in_parts.claim).ids;
    v_count constant integer := coalesce(cardinality(v_ids), 0);
    v_processed integer := v_count;
    v_todo integer[];
    v_part expiration.claim;
    v_low integer;
    v_high integer;
    v_target constant regclass := case phase when 'Lead' then regclass 'crm.leads' else regclass 'crm.bookings' end;
    v_updates bigint;
    v_guess boolean := true;
    v_suspect integer := suspect;
    v_subtransactions integer := 0;
    v_expired uuid[];
    v_failed boolean;
    v_sqlstate text;
    v_message text;
    v_detail text;
    v_hint text;
    v_schema text;
    v_table text;
    v_constraint text;
    v_result expiration.batch_result;
begin
    v_result.expired_ids := '{}';
    v_result.failures := '[]';

    -- what fails is split until the bad rows stand alone, in deadline order: where the statement stopped, as far as that
    -- can be guessed, otherwise in halves
    v_todo := expiration.split(1, v_count, v_suspect);
    while v_count > 0 and cardinality(v_todo) > 0 loop
        v_high := v_todo[cardinality(v_todo)];
        v_low := v_todo[cardinality(v_todo) - 1];
        v_todo := v_todo[:cardinality(v_todo) - 2];
        if v_subtransactions >= v_max_subtransactions then
            v_processed := v_low - 1;
            exit;
        end if;

        v_part := expire_in_parts.claim;
        v_part.ids := v_part.ids[v_low:v_high];
        v_part.row_ids := v_part.row_ids[v_low:v_high];
        v_part.statuses := v_part.statuses[v_low:v_high];
        v_failed := false;
        v_updates := pg_stat_get_xact_tuples_updated(v_target);
        begin
            v_expired := expiration.expire_items(phase, v_part, as_of, run_id, batch_number);
        exception
            when others then
                get stacked diagnostics
                    v_sqlstate = returned_sqlstate,
                    v_message = message_text,
                    v_detail = pg_exception_detail,
                    v_hint = pg_exception_hint,
                    v_schema = schema_name,
                    v_table = table_name,
                    v_constraint = constraint_name;
                if not expiration.is_item_sqlstate(v_sqlstate) then
                    raise;
                end if;
                v_failed := true;
        end;

        if not v_failed then
            v_subtransactions := v_subtransactions + 1;
            v_result.expired_ids := v_result.expired_ids || v_expired;
            if v_suspect = v_low and v_low = v_high then
                v_guess := false;
            end if;
        elsif v_low < v_high and v_schema not in ('outbox', 'expiration') then
            -- rows are changed in the order of the claim, and those changed before a failure are counted
            v_suspect := v_low + (pg_stat_get_xact_tuples_updated(v_target) - v_updates)::integer;
            v_todo := v_todo || expiration.split(v_low, v_high, case when v_guess then v_suspect end);
        elsif expiration.is_item_fault(phase, v_part, as_of, run_id, v_schema) then
            v_result.failures := v_result.failures || jsonb_build_object(
                'id', v_ids[v_low], 'sqlstate', v_sqlstate, 'message', v_message
            );
        else
            raise exception using
                errcode = v_sqlstate,
                message = v_message,
                detail = coalesce(nullif(v_detail, ''), 'This is no item''s fault, so the whole batch is rolled back.'),
                hint = coalesce(nullif(v_hint, ''), 'No item was marked; mend what the message names.'),
                schema = v_schema,
                table = v_table,
                constraint = v_constraint;
        end if;
    end loop;

    v_result.claimed := v_processed;
    return v_result;
end
$function$;

comment on function expiration.expire_in_parts(text, expiration.claim, timestamptz, uuid, integer, integer) is
'Expires the items of a claim in parts, ever smaller ones where that fails on a row''s own data, so that only the bad rows are left: claimed (how many were got through, in the claim''s order), expired_ids and failures. suspect: the position in the claim where an attempt at the whole failed; null where that is not known. A fault of the system is raised as it came.';

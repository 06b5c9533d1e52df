create or replace function expiration.expire_claimed(
    job text,
    phase text,
    claim expiration.claim,
    as_of timestamptz,
    run_id uuid,
    batch_number integer
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    -- PostgreSQL remembers 64 open subtransactions a backend; beyond, everybody's visibility checks get slow
    v_max_subtransactions constant integer := 50;
    v_ids constant uuid[] := (expire_claimed.claim).ids;
    v_count constant integer := coalesce(cardinality(v_ids), 0);
    v_processed integer := v_count;
    v_todo integer[] := array[1, v_count];
    v_low integer;
    v_high integer;
    v_middle integer;
    v_target constant regclass := case phase when 'Lead' then regclass 'crm.leads' else regclass 'crm.bookings' end;
    v_updates bigint;
    v_guess boolean := true;
    v_suspect integer;
    v_subtransactions integer := 0;
    v_expired uuid[];
    v_failures jsonb := jsonb '[]';
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

    -- the whole claim first; what fails is split until the bad rows stand alone, in deadline order: where the statement
    -- stopped, as far as that can be guessed, otherwise in halves
    while v_count > 0 and cardinality(v_todo) > 0 loop
        v_high := v_todo[cardinality(v_todo)];
        v_low := v_todo[cardinality(v_todo) - 1];
        v_todo := v_todo[:cardinality(v_todo) - 2];
        if v_subtransactions >= v_max_subtransactions then
            v_processed := v_low - 1;
            exit;
        end if;

        v_failed := false;
        v_updates := pg_stat_get_xact_tuples_updated(v_target);
        begin
            v_expired := expiration.expire_items(phase, v_ids[v_low:v_high], as_of, run_id, batch_number);
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
            if v_guess and v_suspect between v_low and v_high then
                if v_suspect < v_high then
                    v_todo := v_todo || array[v_suspect + 1, v_high];
                end if;
                v_todo := v_todo || array[v_suspect, v_suspect];
                if v_low < v_suspect then
                    v_todo := v_todo || array[v_low, v_suspect - 1];
                end if;
            else
                v_suspect := null;
                v_middle := (v_low + v_high) / 2;
                v_todo := v_todo || array[v_middle + 1, v_high, v_low, v_middle];
            end if;
        elsif expiration.is_item_fault(phase, v_ids[v_low], as_of, run_id, v_schema) then
            v_failures := v_failures || jsonb_build_object(
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
    v_result.expired := cardinality(v_result.expired_ids);
    v_result.failed := jsonb_array_length(v_failures);
    v_result.skipped_locked := 0;
    v_result.drained := v_processed = v_count and not coalesce((expire_claimed.claim).is_full, false);
    if v_processed > 0 then
        v_result.oldest_deadline := (expire_claimed.claim).deadlines[1];
        v_result.last_deadline := (expire_claimed.claim).deadlines[v_processed];
        v_result.last_id := v_ids[v_processed];
    end if;

    if v_result.failed > 0 then
        v_result.failures := v_failures;
        insert into expiration.failed_item as f (
            job, phase, item_id, first_failed_at, last_failed_at, sqlstate, message, run_id, row_xmin
        )
        select
            expire_claimed.job, expire_claimed.phase, x.id, clock_timestamp(), clock_timestamp(),
            x.sqlstate, x.message, expire_claimed.run_id,
            (
                -- a scalar subquery: a join would read every due row
                select d.row_xmin
                from expiration.due_item as d
                where d.job = expire_claimed.job and d.phase = expire_claimed.phase and d.item_id = x.id
            )
        from jsonb_to_recordset(v_failures) as x (id uuid, sqlstate text, message text)
        on conflict on constraint failed_item_pkey do update
        set
            last_failed_at = excluded.last_failed_at,
            attempts = f.attempts + 1,
            sqlstate = excluded.sqlstate,
            message = excluded.message,
            run_id = excluded.run_id,
            row_xmin = excluded.row_xmin;
    end if;
    if v_result.expired > 0 and exists (select from expiration.failed_item) then
        delete from expiration.failed_item as f
        where
            f.job = expire_claimed.job
            and f.phase = expire_claimed.phase
            and f.item_id = any(v_result.expired_ids);
    end if;
    return v_result;
end
$function$;

comment on function expiration.expire_claimed(text, text, expiration.claim, timestamptz, uuid, integer) is
'Expires the items of a claim: all in one statement, in ever smaller parts where that fails on a row''s own data, so that only the bad rows are left, on the list of failed items. A fault of the system is raised as it came, and nothing is marked.';

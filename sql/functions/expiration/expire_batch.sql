create or replace function expiration.expire_batch(
    job text,
    phase text,
    step text,
    as_of timestamptz,
    batch_size integer,
    run_id uuid,
    batch_number integer,
    after_deadline timestamptz default null,
    after_id uuid default null,
    failed_before timestamptz default null
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $function$
declare
    v_target constant regclass := case phase when 'Lead' then regclass 'crm.leads' else regclass 'crm.bookings' end;
    v_updates constant bigint := pg_stat_get_xact_tuples_updated(v_target);
    v_claim expiration.claim;
    v_again expiration.claim;
    v_failed boolean := false;
    v_sqlstate text;
    v_expired_deadlines timestamptz[];
    v_result expiration.batch_result;
begin
    -- locked in the subtransaction that changes them: with another one's lock on it, each row would need a MultiXact
    begin
        v_claim := expiration.claim_items(job, phase, step, as_of, batch_size, after_deadline, after_id, failed_before);
        v_result.claimed := coalesce(cardinality(v_claim.ids), 0);
        v_result.expired_ids := '{}';
        if v_result.claimed > 0 then
            v_result.expired_ids := expiration.expire_items(phase, v_claim, as_of, run_id, batch_number);
        end if;
    exception
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate;
            if not expiration.is_item_sqlstate(v_sqlstate) then
                raise;
            end if;
            v_failed := true;
    end;
    if v_failed then
        -- the rollback freed the rows, and others may have taken some: only of the same ones is it known where it failed
        v_again := expiration.claim_items(job, phase, step, as_of, batch_size, after_deadline, after_id, failed_before);
        v_result := expiration.expire_in_parts(
            phase, v_again, as_of, run_id, batch_number,
            case
                when v_again.ids = v_claim.ids
                    then 1 + (pg_stat_get_xact_tuples_updated(v_target) - v_updates)::integer
            end
        );
        v_claim := v_again;
    end if;

    v_result.expired := cardinality(v_result.expired_ids);
    v_result.failed := coalesce(jsonb_array_length(v_result.failures), 0);
    v_result.skipped_locked := 0;
    v_result.drained := v_result.claimed = coalesce(cardinality(v_claim.ids), 0) and not coalesce(v_claim.is_full, false);
    if v_result.claimed > 0 then
        v_result.oldest_deadline := v_claim.deadlines[1];
        v_result.last_deadline := v_claim.deadlines[v_result.claimed];
        v_result.last_id := v_claim.ids[v_result.claimed];
    end if;
    if v_result.expired = cardinality(v_claim.ids) then
        v_expired_deadlines := v_claim.deadlines;
    elsif v_result.expired > 0 then
        v_expired_deadlines := array(
            select c.deadline
            from unnest(v_claim.ids, v_claim.deadlines) as c (id, deadline)
            where c.id = any(v_result.expired_ids)
            order by c.deadline
        );
    end if;
    if v_expired_deadlines is not null then
        select l.items, l.seconds
        into v_result.lateness, v_result.lateness_seconds
        from expiration.count_lateness(v_expired_deadlines, as_of) as l;
    end if;

    if v_result.failed > 0 then
        insert into expiration.failed_item as f (
            job, phase, item_id, first_failed_at, last_failed_at, sqlstate, message, run_id, row_xmin
        )
        select
            expire_batch.job, expire_batch.phase, x.id, clock_timestamp(), clock_timestamp(),
            x.sqlstate, x.message, expire_batch.run_id,
            (
                -- a scalar subquery: a join would read every due row
                select d.row_xmin
                from expiration.due_item as d
                where d.job = expire_batch.job and d.phase = expire_batch.phase and d.item_id = x.id
            )
        from jsonb_to_recordset(v_result.failures) as x (id uuid, sqlstate text, message text)
        on conflict on constraint failed_item_pkey do update
        set
            last_failed_at = excluded.last_failed_at,
            attempts = f.attempts + 1,
            sqlstate = excluded.sqlstate,
            message = excluded.message,
            run_id = excluded.run_id,
            row_xmin = excluded.row_xmin;
    else
        v_result.failures := null;
    end if;
    if v_result.expired > 0 and exists (select from expiration.failed_item) then
        delete from expiration.failed_item as f
        where
            f.job = expire_batch.job
            and f.phase = expire_batch.phase
            and f.item_id = any(v_result.expired_ids);
    end if;
    return v_result;
end
$function$;

comment on function expiration.expire_batch(text, text, text, timestamptz, integer, uuid, integer, timestamptz, uuid, timestamptz) is
'Claims a step of a phase (claim: beyond the cursor; retry: those that last failed before failed_before) and expires it: all in one statement; where that fails on a row''s own data, in parts, and the bad rows go to the list of failed items. A fault of the system is raised as it came, and nothing is marked.';

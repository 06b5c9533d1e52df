create or replace function crm.expire_leads_batch(
    as_of timestamptz default now(),
    batch_size integer default 500,
    run_id uuid default null,
    batch_number integer default 1,
    after_deadline timestamptz default '-infinity',
    after_id uuid default '00000000-0000-0000-0000-000000000000'
) returns expiration.batch_result
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    v_started_at constant timestamptz := clock_timestamp();
    v_run_id constant uuid := coalesce(expire_leads_batch.run_id, gen_random_uuid());
    v_result expiration.batch_result;
begin
    perform expiration.check_batch('crm.expire_leads_batch', as_of, batch_size, batch_number, after_deadline, after_id);
    v_result := expiration.expire_batch(
        'lead-expiration', 'Lead', 'claim', as_of, batch_size, v_run_id, batch_number, after_deadline, after_id
    );
    -- what is still due in the batch's range was held by somebody else
    v_result.skipped_locked := expiration.count_due(
        'lead-expiration', 'Lead', as_of, after_deadline, after_id,
        case when not v_result.drained then v_result.last_deadline end,
        case when not v_result.drained then v_result.last_id end
    )::integer;
    if not exists (select from expiration.run as r where r.id = v_run_id) then
        perform expiration.record_lone_batch(
            v_run_id, 'lead-expiration', 'Lead', as_of, batch_size, v_started_at, v_result
        );
    end if;
    return v_result;
end
$function$;

comment on function crm.expire_leads_batch(timestamptz, integer, uuid, integer, timestamptz, uuid) is
'Expires up to batch_size leads whose deadline lies before as_of, oldest first, in the caller''s transaction: state, version, event and audit row together. Passes over leads that others hold. Without the run_id of a run it books one of its own. A constraint that is deferred speaks up at the caller''s COMMIT only, unless the caller has set it immediate. after_deadline and after_id continue behind an earlier batch (its last_deadline, last_id). Needs read committed.';

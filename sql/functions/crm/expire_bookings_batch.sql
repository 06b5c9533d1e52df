create or replace function crm.expire_bookings_batch(
    phase text,
    as_of timestamptz default now(),
    batch_size integer default 200,
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
    v_run_id constant uuid := coalesce(expire_bookings_batch.run_id, gen_random_uuid());
    v_result expiration.batch_result;
begin
    if phase is null then
        perform expiration.raise_error('null_argument', 'phase', 'crm.expire_bookings_batch');
    elsif phase not in ('Reserve', 'Booking') then
        perform expiration.raise_error('unknown_phase', phase);
    end if;
    perform expiration.check_batch('crm.expire_bookings_batch', as_of, batch_size, batch_number, after_deadline, after_id);
    v_result := expiration.expire_batch(
        'booking-expiration', phase, 'claim', as_of, batch_size, v_run_id, batch_number, after_deadline, after_id
    );
    -- what is still due in the batch's range was held by somebody else
    v_result.skipped_locked := expiration.count_due(
        'booking-expiration', phase, as_of, after_deadline, after_id,
        case when not v_result.drained then v_result.last_deadline end,
        case when not v_result.drained then v_result.last_id end
    )::integer;
    if not exists (select from expiration.run as r where r.id = v_run_id) then
        perform expiration.record_lone_batch(
            v_run_id, 'booking-expiration', phase, as_of, batch_size, v_started_at, v_result
        );
    end if;
    return v_result;
end
$function$;

comment on function crm.expire_bookings_batch(text, timestamptz, integer, uuid, integer, timestamptz, uuid) is
'Expires up to batch_size bookings of a phase (Reserve or Booking) whose deadline lies before as_of, oldest first, in the caller''s transaction: state, version, event, timeline card and audit row together. Passes over bookings that others hold. Without the run_id of a run it books one of its own. A constraint that is deferred speaks up at the caller''s COMMIT only, unless the caller has set it immediate. after_deadline and after_id continue behind an earlier batch (its last_deadline, last_id). Needs read committed.';

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA chessboard;
ALTER SCHEMA chessboard OWNER TO crm_owner;
COMMENT ON SCHEMA chessboard IS 'The consumer chessboard: which property objects of expired bookings are for sale again.';
CREATE SCHEMA crm;
ALTER SCHEMA crm OWNER TO crm_owner;
COMMENT ON SCHEMA crm IS 'The domain: leads, bookings and what hangs on them; their transitions, batches and commands.';
CREATE SCHEMA expiration;
ALTER SCHEMA expiration OWNER TO crm_owner;
COMMENT ON SCHEMA expiration IS 'The engine: settings, runs, batches and failed items of the jobs; run protocol and views.';
CREATE SCHEMA notifications;
ALTER SCHEMA notifications OWNER TO crm_owner;
COMMENT ON SCHEMA notifications IS 'The consumer notifications: notices to agents.';
CREATE SCHEMA outbox;
ALTER SCHEMA outbox OWNER TO crm_owner;
COMMENT ON SCHEMA outbox IS 'Integration events: append only, partitioned by day, read from the log by Debezium.';
CREATE TYPE expiration.batch_report AS (
	state text,
	reason text,
	number integer,
	phase text,
	step text,
	claimed integer,
	expired integer,
	failed integer,
	skipped_locked integer,
	elapsed_ms double precision,
	expired_ids uuid[],
	failures jsonb
);
ALTER TYPE expiration.batch_report OWNER TO crm_owner;
COMMENT ON TYPE expiration.batch_report IS 'What run_batch says: state more or done; with done the reason; otherwise what the batch did, elapsed_ms in milliseconds.';
CREATE TYPE expiration.batch_result AS (
	claimed integer,
	expired integer,
	failed integer,
	skipped_locked integer,
	drained boolean,
	oldest_deadline timestamp with time zone,
	last_deadline timestamp with time zone,
	last_id uuid,
	expired_ids uuid[],
	failures jsonb,
	lateness integer[],
	lateness_seconds double precision
);
ALTER TYPE expiration.batch_result OWNER TO crm_owner;
COMMENT ON TYPE expiration.batch_result IS 'What a batch did. last_deadline and last_id are the cursor for the next; failures is an array of {id, sqlstate, message} or null; lateness counts the expired items by bucket (expiration.lateness_bounds), null when there is none.';
CREATE TYPE expiration.claim AS (
	ids uuid[],
	deadlines timestamp with time zone[],
	is_full boolean,
	row_ids tid[],
	statuses text[]
);
ALTER TYPE expiration.claim OWNER TO crm_owner;
COMMENT ON TYPE expiration.claim IS 'Items locked for a batch, in deadline order: their deadlines, where the locked rows lie (ctid), the states of bookings; and whether the batch is full, so that more may be due behind it.';
CREATE FUNCTION chessboard.dismiss_parked(id bigint) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    delete from chessboard.parked as p where p.id = dismiss_parked.id;
    return found;
end
$$;
ALTER FUNCTION chessboard.dismiss_parked(id bigint) OWNER TO crm_owner;
COMMENT ON FUNCTION chessboard.dismiss_parked(id bigint) IS 'Takes a message off the list of those put aside, once somebody has seen to it: its cause is mended and the event was replayed, or it needs none. Returns whether it was there. Coming again, it is put aside again.';
CREATE FUNCTION chessboard.free_property(event_id uuid, booking_id uuid, property_object_id uuid, tenant_id uuid, phase text, expired_at timestamp with time zone, topic text DEFAULT 'pin.crm.booking-expired.v1'::text) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into chessboard.inbox as i (event_id, topic)
    values (free_property.event_id, free_property.topic)
    on conflict on constraint inbox_pkey do nothing;
    if not found then
        return false;
    end if;
    insert into chessboard.release as r (booking_id, property_object_id, tenant_id, phase, event_id, expired_at)
    values (
        free_property.booking_id, free_property.property_object_id, free_property.tenant_id, free_property.phase,
        free_property.event_id, free_property.expired_at
    )
    on conflict on constraint release_pkey do nothing;
    return true;
end
$$;
ALTER FUNCTION chessboard.free_property(event_id uuid, booking_id uuid, property_object_id uuid, tenant_id uuid, phase text, expired_at timestamp with time zone, topic text) OWNER TO crm_owner;
COMMENT ON FUNCTION chessboard.free_property(event_id uuid, booking_id uuid, property_object_id uuid, tenant_id uuid, phase text, expired_at timestamp with time zone, topic text) IS 'What the chessboard does about a BookingExpiredEvent: the property object that the booking kept is for sale again. Returns false where the event has had its effect before. The same booking by another event changes nothing more.';
CREATE FUNCTION chessboard.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into chessboard.parked (topic, partition, kafka_offset, event_id, message_key, headers, value, reason)
    values (
        park.topic, park.partition, park.kafka_offset, park.event_id, park.message_key, coalesce(park.headers, '{}'),
        park.value, park.reason
    )
    on conflict on constraint parked_once do nothing;
    return found;
end
$$;
ALTER FUNCTION chessboard.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) OWNER TO crm_owner;
COMMENT ON FUNCTION chessboard.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) IS 'Puts aside a message that cannot be understood, with the reason; once, however often it is tried.';
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE crm.bookings (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    deal_id uuid NOT NULL,
    property_object_id uuid NOT NULL,
    status text DEFAULT 'Reserved'::text NOT NULL,
    reserve_expires_at timestamp with time zone,
    booking_expires_at timestamp with time zone,
    expired_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    CONSTRAINT bookings_active_is_not_expired CHECK (((status <> ALL (ARRAY['Reserved'::text, 'AwaitingPayment'::text, 'Booked'::text])) OR (expired_at IS NULL))),
    CONSTRAINT bookings_booked_has_deadline CHECK (((status <> 'Booked'::text) OR (booking_expires_at IS NOT NULL))),
    CONSTRAINT bookings_reserve_has_deadline CHECK (((status <> ALL (ARRAY['Reserved'::text, 'AwaitingPayment'::text])) OR (reserve_expires_at IS NOT NULL))),
    CONSTRAINT bookings_status_is_known CHECK ((status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text, 'Booked'::text, 'ReserveExpired'::text, 'BookingExpired'::text, 'Cancelled'::text]))),
    CONSTRAINT bookings_times_are_finite CHECK ((isfinite(reserve_expires_at) AND isfinite(booking_expires_at) AND isfinite(expired_at))),
    CONSTRAINT bookings_version_is_positive CHECK ((version >= 1))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
ALTER TABLE crm.bookings OWNER TO crm_owner;
COMMENT ON TABLE crm.bookings IS 'Bookings of property objects. A reserve and a booking each have a deadline; both expire into a terminal state.';
COMMENT ON COLUMN crm.bookings.id IS 'The booking.';
COMMENT ON COLUMN crm.bookings.tenant_id IS 'The tenant (developer) it belongs to.';
COMMENT ON COLUMN crm.bookings.deal_id IS 'The deal it was made for.';
COMMENT ON COLUMN crm.bookings.property_object_id IS 'The property object that it keeps from sale.';
COMMENT ON COLUMN crm.bookings.status IS 'Reserved, AwaitingPayment, Booked; terminal: ReserveExpired, BookingExpired, Cancelled.';
COMMENT ON COLUMN crm.bookings.reserve_expires_at IS 'Deadline of the reserve (Reserved, AwaitingPayment).';
COMMENT ON COLUMN crm.bookings.booking_expires_at IS 'Deadline of the booking (Booked).';
COMMENT ON COLUMN crm.bookings.expired_at IS 'The cut-off of the cycle that expired it.';
COMMENT ON COLUMN crm.bookings.created_at IS 'When the row was made.';
COMMENT ON COLUMN crm.bookings.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN crm.bookings.version IS 'Optimistic lock: from 1, one more with every change.';
CREATE FUNCTION crm.cancel_booking(booking_id uuid, expected_version integer, actor text DEFAULT SESSION_USER, correlation_id uuid DEFAULT NULL::uuid) RETURNS crm.bookings
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.cancel_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment', 'Booked') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'cancel');
    end if;
    update crm.bookings as b
    set status = 'Cancelled', updated_at = now(), version = b.version + 1
    where b.id = cancel_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Cancel', 'BookingCancelled', v_before.status, actor, correlation_id);
end
$$;
ALTER FUNCTION crm.cancel_booking(booking_id uuid, expected_version integer, actor text, correlation_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.cancel_booking(booking_id uuid, expected_version integer, actor text, correlation_id uuid) IS 'Manager''s command: an active booking becomes Cancelled, if it still has the expected version (XP103). Returns it.';
CREATE FUNCTION crm.check_command(function_name text, VARIADIC arguments text[]) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- names and values alternate
    for v_index in 1..cardinality(arguments) by 2 loop
        if arguments[v_index + 1] is null then
            perform expiration.raise_error('null_argument', arguments[v_index], function_name);
        end if;
    end loop;
end
$$;
ALTER FUNCTION crm.check_command(function_name text, VARIADIC arguments text[]) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.check_command(function_name text, VARIADIC arguments text[]) IS 'Refuses a command one of whose arguments is null (XP005); arguments: name, value, name, value ...';
CREATE FUNCTION crm.check_deadline(entity text, id uuid, deadline timestamp with time zone, present timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
ALTER FUNCTION crm.check_deadline(entity text, id uuid, deadline timestamp with time zone, present timestamp with time zone) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.check_deadline(entity text, id uuid, deadline timestamp with time zone, present timestamp with time zone) IS 'Refuses a deadline that is infinite, has passed, or is not later than the present one (XP009).';
CREATE FUNCTION crm.claim_bookings(phase text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) RETURNS expiration.claim
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_none_failed boolean;
    v_claim expiration.claim;
begin
    -- @plpgsql_check_options: performance_warnings = off
    -- (it takes a function that locks rows for one that could be stable)
    v_none_failed := not exists (
        select from expiration.failed_item as f where f.job = 'booking-expiration' and f.phase = claim_bookings.phase
    );
    -- two statements, since each phase has its own partial index; the marker is a scalar subquery, since a join
    -- could cost the ordered index scan
    if claim_bookings.phase = 'Reserve' then
        select
            array_agg(c.id),
            array_agg(c.deadline),
            array_agg(c.ctid),
            array_agg(c.status)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select b.id, b.reserve_expires_at as deadline, b.ctid, b.status
            from crm.bookings as b
            where
                b.status in ('Reserved', 'AwaitingPayment')
                and b.reserve_expires_at < claim_bookings.as_of
                and (b.reserve_expires_at, b.id) > (claim_bookings.after_deadline, claim_bookings.after_id)
                and (v_none_failed or (
                    select true
                    from expiration.failed_item as f
                    where
                        f.job = 'booking-expiration'
                        and f.phase = 'Reserve'
                        and f.item_id = b.id
                        and f.row_xmin = b.xmin
                ) is null)
            order by b.reserve_expires_at, b.id
            limit claim_bookings.batch_size
            for no key update skip locked
        ) as c;
    else
        select
            array_agg(c.id),
            array_agg(c.deadline),
            array_agg(c.ctid),
            array_agg(c.status)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select b.id, b.booking_expires_at as deadline, b.ctid, b.status
            from crm.bookings as b
            where
                b.status = 'Booked'
                and b.booking_expires_at < claim_bookings.as_of
                and (b.booking_expires_at, b.id) > (claim_bookings.after_deadline, claim_bookings.after_id)
                and (v_none_failed or (
                    select true
                    from expiration.failed_item as f
                    where
                        f.job = 'booking-expiration'
                        and f.phase = 'Booking'
                        and f.item_id = b.id
                        and f.row_xmin = b.xmin
                ) is null)
            order by b.booking_expires_at, b.id
            limit claim_bookings.batch_size
            for no key update skip locked
        ) as c;
    end if;
    v_claim.is_full := coalesce(cardinality(v_claim.ids), 0) >= claim_bookings.batch_size;
    return v_claim;
end
$$;
ALTER FUNCTION crm.claim_bookings(phase text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.claim_bookings(phase text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) IS 'Locks the next due bookings of a phase beyond the cursor, oldest deadline first, passing over those that others hold and those that failed.';
CREATE FUNCTION crm.claim_leads(as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) RETURNS expiration.claim
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_none_failed boolean;
    v_claim expiration.claim;
begin
    -- @plpgsql_check_options: performance_warnings = off
    -- (it takes a function that locks rows for one that could be stable)
    v_none_failed := not exists (
        select from expiration.failed_item as f where f.job = 'lead-expiration' and f.phase = 'Lead'
    );
    -- the marker is a scalar subquery: a join could cost the ordered index scan
    select
        array_agg(c.id),
        array_agg(c.expires_at),
        array_agg(c.ctid)
    into v_claim.ids, v_claim.deadlines, v_claim.row_ids
    from (
        select l.id, l.expires_at, l.ctid
        from crm.leads as l
        where
            l.status = 'Active'
            and l.expires_at < claim_leads.as_of
            and (l.expires_at, l.id) > (claim_leads.after_deadline, claim_leads.after_id)
            and (v_none_failed or (
                select true
                from expiration.failed_item as f
                where
                    f.job = 'lead-expiration'
                    and f.phase = 'Lead'
                    and f.item_id = l.id
                    and f.row_xmin = l.xmin
            ) is null)
        order by l.expires_at, l.id
        limit claim_leads.batch_size
        for no key update skip locked
    ) as c;
    v_claim.is_full := coalesce(cardinality(v_claim.ids), 0) >= claim_leads.batch_size;
    return v_claim;
end
$$;
ALTER FUNCTION crm.claim_leads(as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.claim_leads(as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) IS 'Locks the next due leads beyond the cursor, oldest deadline first, passing over those that others hold and those that failed.';
CREATE FUNCTION crm.confirm_booking(booking_id uuid, expected_version integer, booking_expires_at timestamp with time zone, actor text DEFAULT SESSION_USER, correlation_id uuid DEFAULT NULL::uuid) RETURNS crm.bookings
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.confirm_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text,
        'booking_expires_at', booking_expires_at::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'confirm');
    end if;
    perform crm.check_deadline('booking', booking_id, booking_expires_at);
    update crm.bookings as b
    set
        status = 'Booked',
        booking_expires_at = confirm_booking.booking_expires_at,
        updated_at = now(),
        version = b.version + 1
    where b.id = confirm_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Confirm', 'BookingConfirmed', v_before.status, actor, correlation_id);
end
$$;
ALTER FUNCTION crm.confirm_booking(booking_id uuid, expected_version integer, booking_expires_at timestamp with time zone, actor text, correlation_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.confirm_booking(booking_id uuid, expected_version integer, booking_expires_at timestamp with time zone, actor text, correlation_id uuid) IS 'Manager''s command: Reserved or AwaitingPayment becomes Booked until booking_expires_at, if the booking still has the expected version (XP103). Returns it.';
CREATE FUNCTION crm.expire_bookings(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer DEFAULT 1, rehearsal boolean DEFAULT false) RETURNS uuid[]
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_from constant text[] := case expire_bookings.phase
        when 'Reserve' then array['Reserved', 'AwaitingPayment']
        else array['Booked']
    end;
    v_to constant text := expire_bookings.phase || 'Expired';
    v_expired_at text;
    v_traceparent text;
    v_expired uuid[];
begin
    if expire_bookings.rehearsal then
        -- a statement of its own: an insert fires the triggers of its statement even when it inserts no row
        with expired as (
            update crm.bookings as b
            set
                status = v_to,
                expired_at = expire_bookings.as_of,
                updated_at = expire_bookings.as_of,
                version = b.version + 1
            from crm.bookings as before
            where b.id = any((expire_bookings.claim).ids) and before.id = b.id and before.status = any(v_from)
            returning b.id, b.tenant_id, b.deal_id, before.status as from_status
        ),
        timeline as (
            insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
            select
                e.tenant_id, e.deal_id, e.id, 'BookingExpired', expire_bookings.phase, expire_bookings.as_of,
                expire_bookings.run_id
            from expired as e
        )
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, v_to, expire_bookings.run_id,
            expire_bookings.as_of
        from expired as e;
        return array[]::uuid[];
    end if;
    -- the same for the whole batch, so made once and not a row
    v_expired_at := outbox.utc(expire_bookings.as_of);
    v_traceparent := outbox.traceparent(expire_bookings.run_id, expire_bookings.batch_number);
    with expired as (
        update crm.bookings as b
        set
            status = v_to,
            expired_at = expire_bookings.as_of,
            updated_at = expire_bookings.as_of,
            version = b.version + 1
        from
            unnest(
                (expire_bookings.claim).ids, (expire_bookings.claim).row_ids, (expire_bookings.claim).statuses
            ) as claimed (id, row_id, status)
        where
            -- where the claim has locked it; the id, since in a partitioned table the same place is there many times
            b.ctid = claimed.row_id
            and b.id = claimed.id
            and b.status = claimed.status
            and b.status = any(v_from)
            and case when b.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end
            < expire_bookings.as_of
        returning
            b.id,
            b.tenant_id,
            b.deal_id,
            b.property_object_id,
            claimed.status as from_status,
            case when claimed.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end as deadline
    ),
    events as (
        insert into outbox.event (
            aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            'Booking',
            e.id,
            e.tenant_id,
            'BookingExpiredEvent',
            1,
            'pin.crm.booking-expired.v1',
            jsonb_build_object(
                'bookingId', e.id,
                'tenantId', e.tenant_id,
                'dealId', e.deal_id,
                'propertyObjectId', e.property_object_id,
                'phase', expire_bookings.phase,
                'expiredAt', v_expired_at
            ),
            expire_bookings.run_id,
            v_traceparent,
            expire_bookings.as_of
        from expired as e
        order by e.deadline, e.id
    ),
    timeline as (
        insert into crm.deal_timeline (tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id)
        select
            e.tenant_id, e.deal_id, e.id, 'BookingExpired', expire_bookings.phase, expire_bookings.as_of,
            expire_bookings.run_id
        from expired as e
    ),
    audit as (
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Booking', e.id, 'Expire', 'system', e.from_status, v_to, expire_bookings.run_id,
            expire_bookings.as_of
        from expired as e
    )
    select coalesce(array_agg(e.id), array[]::uuid[]) into v_expired from expired as e;
    return v_expired;
end
$$;
ALTER FUNCTION crm.expire_bookings(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.expire_bookings(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) IS 'Expire(as_of) for the bookings of a claim of a phase, which this transaction has locked: those still active and past that phase''s deadline become ReserveExpired or BookingExpired, each with its event, timeline card and audit row; the others are left alone (INV-BKG-5, INV-BKG-8). Returns the ids that expired. rehearsal leaves the outbox out, to learn whether the fault is its or the row''s, and is for a subtransaction that is rolled back.';
CREATE FUNCTION crm.expire_bookings_batch(phase text, as_of timestamp with time zone DEFAULT now(), batch_size integer DEFAULT 200, run_id uuid DEFAULT NULL::uuid, batch_number integer DEFAULT 1, after_deadline timestamp with time zone DEFAULT '-infinity'::timestamp with time zone, after_id uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid) RETURNS expiration.batch_result
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
ALTER FUNCTION crm.expire_bookings_batch(phase text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.expire_bookings_batch(phase text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) IS 'Expires up to batch_size bookings of a phase (Reserve or Booking) whose deadline lies before as_of, oldest first, in the caller''s transaction: state, version, event, timeline card and audit row together. Passes over bookings that others hold. Without the run_id of a run it books one of its own. A constraint that is deferred speaks up at the caller''s COMMIT only, unless the caller has set it immediate. after_deadline and after_id continue behind an earlier batch (its last_deadline, last_id). Needs read committed.';
CREATE FUNCTION crm.expire_leads(claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer DEFAULT 1, rehearsal boolean DEFAULT false) RETURNS uuid[]
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_expired_at text;
    v_traceparent text;
    v_expired uuid[];
begin
    if expire_leads.rehearsal then
        -- a statement of its own: an insert fires the triggers of its statement even when it inserts no row
        with expired as (
            update crm.leads as l
            set
                status = 'Expired',
                expired_at = expire_leads.as_of,
                updated_at = expire_leads.as_of,
                version = l.version + 1
            where l.id = any((expire_leads.claim).ids) and case when l.status = 'Active' then true end
            returning l.id, l.tenant_id
        )
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', expire_leads.run_id, expire_leads.as_of
        from expired as e;
        return array[]::uuid[];
    end if;
    -- the same for the whole batch, so made once and not a row
    v_expired_at := outbox.utc(expire_leads.as_of);
    v_traceparent := outbox.traceparent(expire_leads.run_id, expire_leads.batch_number);
    with expired as (
        update crm.leads as l
        set
            status = 'Expired',
            expired_at = expire_leads.as_of,
            updated_at = expire_leads.as_of,
            version = l.version + 1
        from unnest((expire_leads.claim).ids, (expire_leads.claim).row_ids) as claimed (id, row_id)
        where
            -- where the claim has locked it; the id, since in a partitioned table the same place is there many times
            l.ctid = claimed.row_id
            and l.id = claimed.id
            -- as a case, lest a plan made on stale statistics walks the index of the deadlines
            and case when l.status = 'Active' then l.expires_at < expire_leads.as_of end
        returning l.id, l.tenant_id, l.executor_agent_user_id, l.primary_investor_user_id, l.expires_at
    ),
    events as (
        insert into outbox.event (
            aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload,
            correlation_id, traceparent, occurred_at
        )
        select
            'Lead',
            e.id,
            e.tenant_id,
            'LeadExpiredEvent',
            1,
            'pin.crm.lead-expired.v1',
            jsonb_build_object(
                'leadId', e.id,
                'tenantId', e.tenant_id,
                'agentUserId', e.executor_agent_user_id,
                'investorUserId', e.primary_investor_user_id,
                'expiredAt', v_expired_at
            ),
            expire_leads.run_id,
            v_traceparent,
            expire_leads.as_of
        from expired as e
        order by e.expires_at, e.id
    ),
    audit as (
        insert into crm.audit_log (
            tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
        )
        select
            e.tenant_id, 'Lead', e.id, 'Expire', 'system', 'Active', 'Expired', expire_leads.run_id, expire_leads.as_of
        from expired as e
    )
    select coalesce(array_agg(e.id), '{}') into v_expired from expired as e;
    return v_expired;
end
$$;
ALTER FUNCTION crm.expire_leads(claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.expire_leads(claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) IS 'Expire(as_of) for the leads of a claim, which this transaction has locked: those still Active and past their deadline become Expired, with one event and one audit row each; the others are left alone (INV-LEAD-4). Returns the ids that expired. rehearsal leaves the outbox out, to learn whether the fault is its or the row''s, and is for a subtransaction that is rolled back.';
CREATE FUNCTION crm.expire_leads_batch(as_of timestamp with time zone DEFAULT now(), batch_size integer DEFAULT 500, run_id uuid DEFAULT NULL::uuid, batch_number integer DEFAULT 1, after_deadline timestamp with time zone DEFAULT '-infinity'::timestamp with time zone, after_id uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid) RETURNS expiration.batch_result
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
ALTER FUNCTION crm.expire_leads_batch(as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.expire_leads_batch(as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) IS 'Expires up to batch_size leads whose deadline lies before as_of, oldest first, in the caller''s transaction: state, version, event and audit row together. Passes over leads that others hold. Without the run_id of a run it books one of its own. A constraint that is deferred speaks up at the caller''s COMMIT only, unless the caller has set it immediate. after_deadline and after_id continue behind an earlier batch (its last_deadline, last_id). Needs read committed.';
CREATE FUNCTION crm.extend_booking(booking_id uuid, expected_version integer, expires_at timestamp with time zone, actor text DEFAULT SESSION_USER, correlation_id uuid DEFAULT NULL::uuid) RETURNS crm.bookings
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before crm.bookings;
    v_after crm.bookings;
begin
    perform crm.check_command(
        'crm.extend_booking', 'booking_id', booking_id::text, 'expected_version', expected_version::text,
        'expires_at', expires_at::text, 'actor', actor
    );
    v_before := crm.lock_booking(booking_id, expected_version);
    if v_before.status not in ('Reserved', 'AwaitingPayment', 'Booked') then
        perform expiration.raise_error('invalid_transition', 'booking', booking_id::text, v_before.status, 'extend');
    end if;
    perform crm.check_deadline(
        'booking', booking_id, expires_at,
        case when v_before.status = 'Booked' then v_before.booking_expires_at else v_before.reserve_expires_at end
    );
    update crm.bookings as b
    set
        reserve_expires_at = case when b.status = 'Booked' then b.reserve_expires_at else extend_booking.expires_at end,
        booking_expires_at = case when b.status = 'Booked' then extend_booking.expires_at else b.booking_expires_at end,
        updated_at = now(),
        version = b.version + 1
    where b.id = extend_booking.booking_id
    returning b.* into v_after;
    return crm.record_command(v_after, 'Extend', 'BookingExtended', v_before.status, actor, correlation_id);
end
$$;
ALTER FUNCTION crm.extend_booking(booking_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.extend_booking(booking_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) IS 'Manager''s command: moves the deadline of an active booking (of the reserve, or once Booked of the booking) to expires_at, if it still has the expected version (XP103). Returns it.';
CREATE TABLE crm.leads (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    executor_agent_user_id uuid NOT NULL,
    primary_investor_user_id uuid,
    status text DEFAULT 'Active'::text NOT NULL,
    expires_at timestamp with time zone,
    expired_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    CONSTRAINT leads_active_has_deadline CHECK (((status <> 'Active'::text) OR (expires_at IS NOT NULL))),
    CONSTRAINT leads_active_is_not_expired CHECK (((status <> 'Active'::text) OR (expired_at IS NULL))),
    CONSTRAINT leads_status_is_known CHECK ((status = ANY (ARRAY['Active'::text, 'Expired'::text, 'Archived'::text]))),
    CONSTRAINT leads_times_are_finite CHECK ((isfinite(expires_at) AND isfinite(expired_at))),
    CONSTRAINT leads_version_is_positive CHECK ((version >= 1))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
ALTER TABLE crm.leads OWNER TO crm_owner;
COMMENT ON TABLE crm.leads IS 'Leads of all tenants. An Active lead expires once expires_at has passed; its agent can extend it again.';
COMMENT ON COLUMN crm.leads.id IS 'The lead.';
COMMENT ON COLUMN crm.leads.tenant_id IS 'The tenant (developer) it belongs to.';
COMMENT ON COLUMN crm.leads.executor_agent_user_id IS 'The agent at work on it, who is told to extend it.';
COMMENT ON COLUMN crm.leads.primary_investor_user_id IS 'The investor, where one is known.';
COMMENT ON COLUMN crm.leads.status IS 'Active, Expired or Archived.';
COMMENT ON COLUMN crm.leads.expires_at IS 'Deadline; an Active lead has one.';
COMMENT ON COLUMN crm.leads.expired_at IS 'The cut-off of the cycle that expired it; cleared when it is extended.';
COMMENT ON COLUMN crm.leads.created_at IS 'When the row was made.';
COMMENT ON COLUMN crm.leads.updated_at IS 'When it was last changed.';
COMMENT ON COLUMN crm.leads.version IS 'Optimistic lock: from 1, one more with every change.';
CREATE FUNCTION crm.extend_lead(lead_id uuid, expected_version integer, expires_at timestamp with time zone, actor text DEFAULT SESSION_USER, correlation_id uuid DEFAULT NULL::uuid) RETURNS crm.leads
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before crm.leads;
    v_after crm.leads;
begin
    perform crm.check_command(
        'crm.extend_lead', 'lead_id', lead_id::text, 'expected_version', expected_version::text,
        'expires_at', expires_at::text, 'actor', actor
    );
    select l.* into v_before from crm.leads as l where l.id = extend_lead.lead_id for no key update;
    if not found then
        perform expiration.raise_error('lead_not_found', lead_id::text);
    elsif v_before.version <> expected_version then
        perform expiration.raise_error(
            'version_conflict', 'lead', lead_id::text, v_before.version::text, expected_version::text
        );
    elsif v_before.status not in ('Active', 'Expired') then
        perform expiration.raise_error('invalid_transition', 'lead', lead_id::text, v_before.status, 'extend');
    end if;
    perform crm.check_deadline('lead', lead_id, expires_at, v_before.expires_at);
    update crm.leads as l
    set
        status = 'Active',
        expires_at = extend_lead.expires_at,
        expired_at = null,
        updated_at = now(),
        version = l.version + 1
    where l.id = extend_lead.lead_id
    returning l.* into v_after;
    insert into crm.audit_log (
        tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at
    )
    values (
        v_after.tenant_id, 'Lead', v_after.id, 'Extend', extend_lead.actor, v_before.status, v_after.status,
        extend_lead.correlation_id, v_after.updated_at
    );
    return v_after;
end
$$;
ALTER FUNCTION crm.extend_lead(lead_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.extend_lead(lead_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) IS 'Agent''s command: moves the deadline of an Active lead, or makes an Expired one Active again (L23), if it still has the expected version (XP103). Returns it.';
CREATE FUNCTION crm.lock_booking(booking_id uuid, expected_version integer) RETURNS crm.bookings
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_booking crm.bookings;
begin
    select b.* into v_booking from crm.bookings as b where b.id = lock_booking.booking_id for no key update;
    if not found then
        perform expiration.raise_error('booking_not_found', booking_id::text);
    elsif v_booking.version <> expected_version then
        perform expiration.raise_error(
            'version_conflict', 'booking', booking_id::text, v_booking.version::text, expected_version::text
        );
    end if;
    return v_booking;
end
$$;
ALTER FUNCTION crm.lock_booking(booking_id uuid, expected_version integer) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.lock_booking(booking_id uuid, expected_version integer) IS 'Locks a booking for a command; refuses one that is not there (XP102) or has another version (XP103). The jobs pass over it until the transaction ends.';
CREATE TABLE crm.audit_log (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    entity_type text NOT NULL,
    entity_id uuid NOT NULL,
    action text NOT NULL,
    actor text NOT NULL,
    from_status text,
    to_status text,
    correlation_id uuid,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE crm.audit_log OWNER TO crm_owner;
COMMENT ON TABLE crm.audit_log IS 'One row a transition, written in its transaction.';
COMMENT ON COLUMN crm.audit_log.id IS 'The audit row.';
COMMENT ON COLUMN crm.audit_log.tenant_id IS 'The tenant of the entity.';
COMMENT ON COLUMN crm.audit_log.entity_type IS 'Lead or Booking.';
COMMENT ON COLUMN crm.audit_log.entity_id IS 'The lead or booking.';
COMMENT ON COLUMN crm.audit_log.action IS 'Expire, Confirm, Extend, Cancel or Reserve.';
COMMENT ON COLUMN crm.audit_log.actor IS 'system for the jobs, otherwise who gave the command.';
COMMENT ON COLUMN crm.audit_log.from_status IS 'Status before; null for a new entity.';
COMMENT ON COLUMN crm.audit_log.to_status IS 'Status after.';
COMMENT ON COLUMN crm.audit_log.correlation_id IS 'The run that did it, or the caller''s own id.';
COMMENT ON COLUMN crm.audit_log.occurred_at IS 'When it happened; for an expiration the cut-off of its cycle.';
CREATE TABLE crm.deal_timeline (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    deal_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    kind text NOT NULL,
    phase text,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    correlation_id uuid
);
ALTER TABLE crm.deal_timeline OWNER TO crm_owner;
COMMENT ON TABLE crm.deal_timeline IS 'Cards on a deal''s timeline; one a change of its booking, written in the transaction of the change.';
COMMENT ON COLUMN crm.deal_timeline.id IS 'The card.';
COMMENT ON COLUMN crm.deal_timeline.tenant_id IS 'The tenant it belongs to.';
COMMENT ON COLUMN crm.deal_timeline.deal_id IS 'The deal whose timeline it stands on.';
COMMENT ON COLUMN crm.deal_timeline.booking_id IS 'The booking that changed.';
COMMENT ON COLUMN crm.deal_timeline.kind IS 'The domain event: BookingExpired, BookingConfirmed, BookingExtended, BookingCancelled, PropertyReserved.';
COMMENT ON COLUMN crm.deal_timeline.phase IS 'Reserve or Booking where the event has one.';
COMMENT ON COLUMN crm.deal_timeline.occurred_at IS 'When it happened; for an expiration the cut-off of its cycle.';
COMMENT ON COLUMN crm.deal_timeline.correlation_id IS 'The run that did it, or the caller''s own id.';
CREATE FUNCTION crm.record_command(booking crm.bookings, action text, kind text, from_status text, actor text, correlation_id uuid) RETURNS crm.bookings
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    BEGIN ATOMIC
 INSERT INTO crm.audit_log (tenant_id, entity_type, entity_id, action, actor, from_status, to_status, correlation_id, occurred_at)
   VALUES ((record_command.booking).tenant_id, 'Booking'::text, (record_command.booking).id, record_command.action, record_command.actor, record_command.from_status, (record_command.booking).status, record_command.correlation_id, (record_command.booking).updated_at);
 INSERT INTO crm.deal_timeline (tenant_id, deal_id, booking_id, kind, occurred_at, correlation_id)
   VALUES ((record_command.booking).tenant_id, (record_command.booking).deal_id, (record_command.booking).id, record_command.kind, (record_command.booking).updated_at, record_command.correlation_id);
 SELECT (booking).id AS id,
     (booking).tenant_id AS tenant_id,
     (booking).deal_id AS deal_id,
     (booking).property_object_id AS property_object_id,
     (booking).status AS status,
     (booking).reserve_expires_at AS reserve_expires_at,
     (booking).booking_expires_at AS booking_expires_at,
     (booking).expired_at AS expired_at,
     (booking).created_at AS created_at,
     (booking).updated_at AS updated_at,
     (booking).version AS version;
END;
ALTER FUNCTION crm.record_command(booking crm.bookings, action text, kind text, from_status text, actor text, correlation_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.record_command(booking crm.bookings, action text, kind text, from_status text, actor text, correlation_id uuid) IS 'Audit row and timeline card of a manager''s command on a booking; returns the booking.';
CREATE FUNCTION crm.reserve_property(tenant_id uuid, deal_id uuid, property_object_id uuid, reserve_expires_at timestamp with time zone, actor text DEFAULT SESSION_USER, correlation_id uuid DEFAULT NULL::uuid) RETURNS crm.bookings
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_constraint text;
    v_booking crm.bookings;
begin
    perform crm.check_command(
        'crm.reserve_property', 'tenant_id', tenant_id::text, 'deal_id', deal_id::text,
        'property_object_id', property_object_id::text, 'reserve_expires_at', reserve_expires_at::text, 'actor', actor
    );
    perform crm.check_deadline('property object', property_object_id, reserve_expires_at);
    begin
        insert into crm.bookings (tenant_id, deal_id, property_object_id, status, reserve_expires_at)
        values (
            reserve_property.tenant_id, reserve_property.deal_id, reserve_property.property_object_id, 'Reserved',
            reserve_property.reserve_expires_at
        )
        returning * into v_booking;
    exception
        when unique_violation then
            get stacked diagnostics v_constraint = constraint_name;
            if v_constraint <> 'ux_bookings_property_object_id' then
                raise;
            end if;
            perform expiration.raise_error('property_not_available', property_object_id::text);
    end;
    -- after the insert, whose wait for an expiration that was being written this statement sees the end of
    if exists (
        select
        from crm.bookings as b
        where
            b.property_object_id = reserve_property.property_object_id
            and b.status in ('ReserveExpired', 'BookingExpired')
            and not exists (select from chessboard.release as r where r.booking_id = b.id)
    ) then
        perform expiration.raise_error('property_not_available', property_object_id::text);
    end if;
    return crm.record_command(v_booking, 'Reserve', 'PropertyReserved', null, actor, correlation_id);
end
$$;
ALTER FUNCTION crm.reserve_property(tenant_id uuid, deal_id uuid, property_object_id uuid, reserve_expires_at timestamp with time zone, actor text, correlation_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION crm.reserve_property(tenant_id uuid, deal_id uuid, property_object_id uuid, reserve_expires_at timestamp with time zone, actor text, correlation_id uuid) IS 'Manager''s command: reserves a property object for a deal until reserve_expires_at and returns the booking. Refused with CRM_PROPERTY_OBJECT_NOT_AVAILABLE (XP105) while another active booking keeps it, and after the expiration of one until the chessboard has freed it; waits for one that is being written.';
CREATE FUNCTION expiration.batch_failed(run_id uuid, sqlstate text, error text) RETURNS TABLE(retry boolean, delay interval)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_run expiration.run;
    v_max integer;
begin
    select r.* into v_run from expiration.run as r where r.id = batch_failed.run_id;
    if not found then
        perform expiration.raise_error('unknown_run', coalesce(batch_failed.run_id::text, 'null'));
    elsif batch_failed.sqlstate is null then
        perform expiration.raise_error('null_argument', 'sqlstate', 'expiration.batch_failed');
    end if;
    select j.max_transient_retries into strict v_max from expiration.job as j where j.name = v_run.job;
    -- serialization failure, deadlock, lock timeout: the next try may find the way free
    if batch_failed.sqlstate in ('40001', '40P01', '55P03') and v_run.status = 'running' and v_run.retries < v_max then
        update expiration.run as r set retries = r.retries + 1 where r.id = v_run.id;
        retry := true;
        delay := make_interval(secs => 0.05 * 2 ^ v_run.retries * (0.5 + random()));
    else
        perform expiration.close_run(v_run.id, 'failed', 'error', clock_timestamp(), batch_failed.sqlstate, batch_failed.error);
        retry := false;
        delay := interval '0';
    end if;
    return next;
end
$$;
ALTER FUNCTION expiration.batch_failed(run_id uuid, sqlstate text, error text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.batch_failed(run_id uuid, sqlstate text, error text) IS 'What to do after a batch that raised and was rolled back: retry after delay (deadlock, lock timeout, serialization failure; at most job.max_transient_retries times a run), or not: then the run has been ended as failed.';
CREATE FUNCTION expiration.batch_item(run_id uuid, batch_number integer, max_items integer DEFAULT 2147483647) RETURNS TABLE(item_id uuid, tenant_id uuid, deal_id uuid, sqlstate text)
    LANGUAGE sql STABLE STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
    with batch as materialized (
        select b.*, outbox.traceparent(b.run_id, b.number) as traceparent
        from expiration.batch as b
        where b.run_id = batch_item.run_id and b.number = batch_item.batch_number
    ),
    failed as (
        -- one that failed has no event: its tenant stands in its own row, as long as that is there
        select
            f.id as item_id,
            coalesce(l.tenant_id, k.tenant_id) as tenant_id,
            k.deal_id,
            f.sqlstate,
            0 as part,
            f.place
        from batch as b
        cross join lateral rows from (
            jsonb_to_recordset(b.failures) as (id uuid, sqlstate text)
        ) with ordinality as f (id, sqlstate, place)
        left join crm.leads as l on b.phase = 'Lead' and f.id = l.id
        left join crm.bookings as k on b.phase <> 'Lead' and f.id = k.id
        order by f.place
        limit batch_item.max_items
    ),
    expired as (
        select
            e.aggregate_id,
            e.tenant_id,
            (e.payload ->> 'dealId')::uuid,
            null::text,
            1,
            e.seq
        from batch as b
        inner join outbox.event as e on
            e.created_at between coalesce(b.transaction_start, b.started_at - interval '1 minute')
            and coalesce(b.transaction_start, b.finished_at)
            and b.traceparent = e.traceparent
            and e.replay_id is null
        order by e.seq
        limit batch_item.max_items
    )
    select i.item_id, i.tenant_id, i.deal_id, i.sqlstate
    from (
        select * from failed
        union all
        select * from expired
    ) as i
    order by i.part, i.place
    limit batch_item.max_items;
$$;
ALTER FUNCTION expiration.batch_item(run_id uuid, batch_number integer, max_items integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.batch_item(run_id uuid, batch_number integer, max_items integer) IS 'The items of a batch, at most max_items: first those that failed alone (sqlstate), then those that expired, in their order. Expired ones are read from the outbox as long as it keeps them; deal_id is a booking''s.';
CREATE FUNCTION expiration.check_batch(function_name text, as_of timestamp with time zone, batch_size integer, batch_number integer, after_deadline timestamp with time zone, after_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
ALTER FUNCTION expiration.check_batch(function_name text, as_of timestamp with time zone, batch_size integer, batch_number integer, after_deadline timestamp with time zone, after_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.check_batch(function_name text, as_of timestamp with time zone, batch_size integer, batch_number integer, after_deadline timestamp with time zone, after_id uuid) IS 'Refuses a batch with bad arguments (XP001, XP002, XP005) or in a transaction that is not read committed (XP008).';
CREATE FUNCTION expiration.check_job(job text, function_name text) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if job is null then
        perform expiration.raise_error('null_argument', 'job', function_name);
    elsif not exists (select from expiration.job as j where j.name = check_job.job) then
        perform expiration.raise_error('unknown_job', job);
    end if;
end
$$;
ALTER FUNCTION expiration.check_job(job text, function_name text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.check_job(job text, function_name text) IS 'Refuses a job that is null (XP005) or unknown (XP003).';
CREATE FUNCTION expiration.claim_failed(job text, phase text, as_of timestamp with time zone, failed_before timestamp with time zone, batch_size integer) RETURNS expiration.claim
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_waiting uuid[];
    v_due uuid[];
    v_resolved bigint;
    v_claim expiration.claim;
begin
    select array_agg(w.item_id) into v_waiting
    from (
        select f.item_id
        from expiration.failed_item as f
        where f.job = claim_failed.job and f.phase = claim_failed.phase and f.last_failed_at < failed_before
        order by f.last_failed_at, f.item_id
        limit claim_failed.batch_size
    ) as w;
    if v_waiting is null then
        v_claim.is_full := false;
        return v_claim;
    end if;
    -- cancelled, extended, confirmed or deleted meanwhile: no longer failed
    select coalesce(array_agg(d.item_id), '{}') into v_due
    from expiration.due_item as d
    where
        d.job = claim_failed.job
        and d.phase = claim_failed.phase
        and d.item_id = any(v_waiting)
        and d.deadline < claim_failed.as_of;
    delete from expiration.failed_item as f
    -- an array is made once, where a join could lock again and again
    where f.ctid = any(array(
        select g.ctid
        from expiration.failed_item as g
        where
            g.job = claim_failed.job
            and g.phase = claim_failed.phase
            and g.item_id = any(v_waiting)
            and g.item_id <> all(v_due)
        for update skip locked
    ));
    get diagnostics v_resolved = row_count;
    if claim_failed.phase = 'Lead' then
        select
            array_agg(c.id order by c.deadline, c.id),
            array_agg(c.deadline order by c.deadline, c.id),
            array_agg(c.ctid order by c.deadline, c.id)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids
        from (
            select l.id, l.expires_at as deadline, l.ctid
            from crm.leads as l
            where l.id = any(v_due) and l.status = 'Active' and l.expires_at < claim_failed.as_of
            for no key update skip locked
        ) as c;
    else
        select
            array_agg(c.id order by c.deadline, c.id),
            array_agg(c.deadline order by c.deadline, c.id),
            array_agg(c.ctid order by c.deadline, c.id),
            array_agg(c.status order by c.deadline, c.id)
        into v_claim.ids, v_claim.deadlines, v_claim.row_ids, v_claim.statuses
        from (
            select
                b.id,
                case when b.status = 'Booked' then b.booking_expires_at else b.reserve_expires_at end as deadline,
                b.ctid,
                b.status
            from crm.bookings as b
            where
                b.id = any(v_due)
                and (b.status = 'Booked') = (claim_failed.phase = 'Booking')
                and b.status in ('Reserved', 'AwaitingPayment', 'Booked')
            for no key update skip locked
        ) as c;
    end if;
    -- where all that wait are held by others, trying on would go round in circles
    v_claim.is_full := cardinality(v_waiting) >= claim_failed.batch_size and (v_claim.ids is not null or v_resolved > 0);
    return v_claim;
end
$$;
ALTER FUNCTION expiration.claim_failed(job text, phase text, as_of timestamp with time zone, failed_before timestamp with time zone, batch_size integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.claim_failed(job text, phase text, as_of timestamp with time zone, failed_before timestamp with time zone, batch_size integer) IS 'Locks failed items for another try, longest waiting first: those that last failed before failed_before and are still due. Items that are due no longer leave the list.';
CREATE FUNCTION expiration.claim_items(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) RETURNS expiration.claim
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if step = 'retry' then
        return expiration.claim_failed(job, phase, as_of, failed_before, batch_size);
    elsif phase = 'Lead' then
        return crm.claim_leads(as_of, batch_size, after_deadline, after_id);
    end if;
    return crm.claim_bookings(phase, as_of, batch_size, after_deadline, after_id);
end
$$;
ALTER FUNCTION expiration.claim_items(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.claim_items(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) IS 'The claim of a step of a phase: crm.claim_leads or crm.claim_bookings beyond the cursor, or with step retry expiration.claim_failed, of those that last failed before failed_before.';
CREATE TABLE expiration.run (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    job text NOT NULL,
    driver text NOT NULL,
    instance text DEFAULT ''::text NOT NULL,
    status text DEFAULT 'running'::text NOT NULL,
    reason text,
    as_of timestamp with time zone NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    expired bigint DEFAULT 0 NOT NULL,
    skipped_locked bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    batches integer DEFAULT 0 NOT NULL,
    due_before bigint,
    batch_size integer NOT NULL,
    max_batches_per_cycle integer NOT NULL,
    max_duration interval NOT NULL,
    retries integer DEFAULT 0 NOT NULL,
    sqlstate text,
    error text,
    stop_requested_at timestamp with time zone,
    stop_requested_by text,
    started_by text DEFAULT SESSION_USER NOT NULL,
    backend_pid integer DEFAULT pg_backend_pid() NOT NULL,
    backend_start timestamp with time zone,
    statement_start timestamp with time zone,
    tally_number bigint,
    CONSTRAINT run_failed_has_sqlstate CHECK (((status <> 'failed'::text) OR (sqlstate IS NOT NULL))),
    CONSTRAINT run_finished_has_time CHECK (((status = 'running'::text) = (finished_at IS NULL))),
    CONSTRAINT run_status_is_known CHECK ((status = ANY (ARRAY['running'::text, 'completed'::text, 'capped'::text, 'stopped'::text, 'failed'::text, 'abandoned'::text, 'skipped'::text])))
);
ALTER TABLE expiration.run OWNER TO crm_owner;
COMMENT ON TABLE expiration.run IS 'One row a cycle, whoever drove it.';
COMMENT ON COLUMN expiration.run.id IS 'The run: job run id, correlation id and trace id in one.';
COMMENT ON COLUMN expiration.run.job IS 'The job.';
COMMENT ON COLUMN expiration.run.driver IS 'pg_cron, pyrunner, psql (the procedure called by hand) or sql (a batch called alone).';
COMMENT ON COLUMN expiration.run.instance IS 'Which of several such drivers; at most one run of a job, driver and instance works at a time.';
COMMENT ON COLUMN expiration.run.status IS 'running, completed, capped, stopped, failed, abandoned or skipped.';
COMMENT ON COLUMN expiration.run.reason IS 'Why it ended: drained, locked, capped, out of time, stop requested, paused, overlap, error, backend gone.';
COMMENT ON COLUMN expiration.run.as_of IS 'The cut-off and the timestamp of every transition of the cycle.';
COMMENT ON COLUMN expiration.run.started_at IS 'When it started, by the clock.';
COMMENT ON COLUMN expiration.run.finished_at IS 'When it ended, by the clock.';
COMMENT ON COLUMN expiration.run.expired IS 'Items expired.';
COMMENT ON COLUMN expiration.run.skipped_locked IS 'Due items passed over because another transaction held them.';
COMMENT ON COLUMN expiration.run.failed IS 'Items that failed alone.';
COMMENT ON COLUMN expiration.run.batches IS 'Batches that claimed at least one item.';
COMMENT ON COLUMN expiration.run.due_before IS 'Due items before the cycle, poison among them.';
COMMENT ON COLUMN expiration.run.batch_size IS 'Batch size in force.';
COMMENT ON COLUMN expiration.run.max_batches_per_cycle IS 'Cap in force.';
COMMENT ON COLUMN expiration.run.max_duration IS 'Longest duration in force.';
COMMENT ON COLUMN expiration.run.retries IS 'Batches tried again after a transient fault.';
COMMENT ON COLUMN expiration.run.sqlstate IS 'SQLSTATE that failed it.';
COMMENT ON COLUMN expiration.run.error IS 'Message that failed it.';
COMMENT ON COLUMN expiration.run.stop_requested_at IS 'When somebody asked it to stop.';
COMMENT ON COLUMN expiration.run.stop_requested_by IS 'Who.';
COMMENT ON COLUMN expiration.run.started_by IS 'Login that started it.';
COMMENT ON COLUMN expiration.run.backend_pid IS 'Backend that started it.';
COMMENT ON COLUMN expiration.run.backend_start IS 'Start of that backend; null where a pooler may change the backend between calls.';
COMMENT ON COLUMN expiration.run.statement_start IS 'Start of the CALL that is the whole run; null for drivers that call batch by batch.';
COMMENT ON COLUMN expiration.run.tally_number IS 'Place in the order in which runs were tallied, which is an order of commits; null until then, 0 for runs from before there was a tally.';
CREATE FUNCTION expiration.close_run(run_id uuid, status text, reason text, finished_at timestamp with time zone, sqlstate text DEFAULT NULL::text, error text DEFAULT NULL::text) RETURNS expiration.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_run expiration.run;
begin
    update expiration.run as r
    set
        status = close_run.status,
        reason = close_run.reason,
        finished_at = close_run.finished_at,
        sqlstate = close_run.sqlstate,
        error = close_run.error,
        expired = t.expired,
        failed = t.failed,
        skipped_locked = t.skipped_locked,
        batches = t.batches
    from (
        select
            coalesce(sum(b.expired), 0) as expired,
            coalesce(sum(b.failed), 0) as failed,
            coalesce(sum(b.skipped_locked), 0) as skipped_locked,
            count(*) filter (where b.claimed > 0) as batches
        from expiration.batch as b
        where b.run_id = close_run.run_id
    ) as t
    where r.id = close_run.run_id and r.status = 'running'
    returning r.* into v_run;
    return v_run;
end
$$;
ALTER FUNCTION expiration.close_run(run_id uuid, status text, reason text, finished_at timestamp with time zone, sqlstate text, error text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.close_run(run_id uuid, status text, reason text, finished_at timestamp with time zone, sqlstate text, error text) IS 'Ends a run that is still running, its counts summed from its batches. Returns the run, or null when it was over already.';
CREATE FUNCTION expiration.count_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone DEFAULT '-infinity'::timestamp with time zone, after_id uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid, upto_deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, upto_id uuid DEFAULT NULL::uuid) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_count bigint;
begin
    -- a scalar subquery keeps its plan whatever the statistics say; an anti join may not
    select count(*) into v_count
    from expiration.due_item as d
    where
        d.job = count_due.job
        and d.phase = count_due.phase
        and d.deadline < count_due.as_of
        and (d.deadline, d.item_id) > (count_due.after_deadline, count_due.after_id)
        and (d.deadline, d.item_id) <= (
            coalesce(count_due.upto_deadline, 'infinity'),
            coalesce(count_due.upto_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        )
        and (
            select true
            from expiration.failed_item as f
            where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
        ) is null;
    return v_count;
end
$$;
ALTER FUNCTION expiration.count_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid, upto_deadline timestamp with time zone, upto_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.count_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid, upto_deadline timestamp with time zone, upto_id uuid) IS 'How many items of a phase are due before as_of, failed ones apart, beyond the cursor (after_...] and up to another.';
CREATE FUNCTION expiration.count_lateness(deadlines timestamp with time zone[], as_of timestamp with time zone, OUT items integer[], OUT seconds double precision) RETURNS record
    LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bound double precision;
    v_within integer;
    v_less integer := 0;
begin
    -- deadlines are sorted, so width_bucket tells how many lie before a time without looking at each
    foreach v_bound in array expiration.lateness_bounds() loop
        v_within := cardinality(deadlines)
            - width_bucket(as_of - make_interval(secs => v_bound) - interval '1 microsecond', deadlines);
        items := items || (v_within - v_less);
        v_less := v_within;
    end loop;
    items := items || (cardinality(deadlines) - v_less);
    select coalesce(sum(date_part('epoch', as_of - d.deadline)), 0)
    into count_lateness.seconds
    from unnest(deadlines) as d (deadline)
    where isfinite(d.deadline);
end
$$;
ALTER FUNCTION expiration.count_lateness(deadlines timestamp with time zone[], as_of timestamp with time zone, OUT items integer[], OUT seconds double precision) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.count_lateness(deadlines timestamp with time zone[], as_of timestamp with time zone, OUT items integer[], OUT seconds double precision) IS 'How late items with these deadlines, oldest first, are at as_of: their number by bucket (expiration.lateness_bounds, and one beyond), and the sum in seconds, infinite deadlines left out.';
CREATE FUNCTION expiration.cron_install() RETURNS TABLE(jobname text, schedule text, command text, action text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    v_version text;
    v_wanted record;
    v_present record;
begin
    select e.extversion into v_version from pg_extension as e where e.extname = 'pg_cron';
    if not found then
        perform expiration.raise_error(
            'cron_missing',
            current_database(),
            coalesce(
                -- only some may read that setting
                case when pg_has_role('pg_read_all_settings', 'usage') then
                    ' (it lives in database ' || nullif(current_setting('cron.database_name', true), '')
                    || '; from there, schedule by cron.schedule_in_database)'
                end,
                ''
            )
        );
    end if;
    for v_wanted in
        select p.*
        from expiration.cron_plan(
            string_to_array(substring(v_version, '^\d+\.\d+'), '.')::integer[] >= array[1, 5]
        ) as p
    loop
        jobname := v_wanted.jobname;
        schedule := v_wanted.schedule;
        command := v_wanted.command;
        select c.* into v_present from expiration.cron_job() as c where c.command = v_wanted.command order by c.jobid limit 1;
        if not found then
            execute 'select cron.schedule($1, $2, $3)' using v_wanted.jobname, v_wanted.schedule, v_wanted.command;
            action := 'scheduled';
        elsif v_present.schedule = v_wanted.schedule and v_present.active then
            action := case
                when v_present.username = current_user then 'kept'
                else format('kept: it belongs to %s', v_present.username)
            end;
        else
            -- alter_job is for superusers only; one's own entry is made anew, which also makes it active
            if v_present.username = current_user then
                execute 'select cron.unschedule($1)' using v_present.jobid;
                execute 'select cron.schedule($1, $2, $3)' using v_wanted.jobname, v_wanted.schedule, v_wanted.command;
            else
                execute 'select cron.alter_job(job_id := $1, schedule := $2, active := true)'
                using v_present.jobid, v_wanted.schedule;
            end if;
            action := format('changed from %s', v_present.schedule);
        end if;
        return next;
    end loop;
end
$_$;
ALTER FUNCTION expiration.cron_install() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.cron_install() IS 'Schedules both jobs and upkeep by pg_cron, under the caller''s login. Idempotent: what is there is kept or brought to the job''s period. For the database in which pg_cron lives; elsewhere it says what to do.';
CREATE FUNCTION expiration.cron_job() RETURNS TABLE(jobid bigint, jobname text, schedule text, command text, username text, active boolean)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
begin
    -- not by to_regclass, which raises for those who may not look into the schema
    if not exists (
        select
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where n.nspname = 'cron' and c.relname = 'job' and has_schema_privilege(n.oid, 'usage')
    ) then
        return;
    end if;
    -- @plpgsql_check_options: performance_warnings = off
    -- (dynamic, since the table is there only beside pg_cron)
    return query execute $sql$
        select c.jobid, c.jobname::text, c.schedule, c.command, c.username, c.active
        from cron.job as c
        where c.database = current_database() and c.command ~* '^\s*call\s+expiration\.'
        order by c.jobname, c.jobid
    $sql$;
end
$_$;
ALTER FUNCTION expiration.cron_job() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.cron_job() IS 'Our entries in pg_cron for this database, as far as the caller may see them (pg_cron hides those of other users); empty where pg_cron is not installed here.';
CREATE FUNCTION expiration.cron_schedule(job text, period interval, seconds_allowed boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_seconds constant numeric := extract(epoch from period);
    v_possible record;
    v_nearest text;
begin
    if job is null or period is null or seconds_allowed is null then
        perform expiration.raise_error(
            'null_argument',
            case when job is null then 'job' when period is null then 'period' else 'seconds_allowed' end,
            'expiration.cron_schedule'
        );
    end if;
    -- every expressible period: seconds where pg_cron knows them, divisors of the hour and of the day
    for v_possible in
        select s.seconds, s.schedule
        from (
            select n::numeric as seconds, n || ' seconds' as schedule from generate_series(1, 59) as n where seconds_allowed
            union all
            select n * 60, case n when 1 then '* * * * *' else '*/' || n || ' * * * *' end
            from generate_series(1, 30) as n
            where 60 % n = 0
            union all
            select n * 3600, case n when 1 then '0 * * * *' else '0 */' || n || ' * * *' end
            from generate_series(1, 12) as n
            where 24 % n = 0
            union all
            select 86400, '0 0 * * *'
        ) as s
        where s.seconds = v_seconds
    loop
        return v_possible.schedule;
    end loop;
    select string_agg(justify_interval(make_interval(secs => n.seconds::double precision))::text, ' and ' order by n.seconds)
    into v_nearest
    from (
        select max(p.seconds) filter (where p.seconds < v_seconds) as below, min(p.seconds) filter (where p.seconds > v_seconds) as above
        from (
            select n::numeric as seconds from generate_series(1, 59) as n where seconds_allowed
            union all
            select n * 60 from generate_series(1, 30) as n where 60 % n = 0
            union all
            select n * 3600 from generate_series(1, 24) as n where 24 % n = 0
        ) as p
    ) as b
    cross join lateral (values (b.below), (b.above)) as n (seconds)
    where n.seconds is not null;
    perform expiration.raise_error('inexpressible_period', job, period::text, v_nearest);
    return null;
end
$$;
ALTER FUNCTION expiration.cron_schedule(job text, period interval, seconds_allowed boolean) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.cron_schedule(job text, period interval, seconds_allowed boolean) IS 'A period as a schedule of pg_cron (GMT). Refuses one that it cannot express, naming the nearest (XP012); seconds_allowed from pg_cron 1.5.';
CREATE TABLE expiration.job (
    name text NOT NULL,
    period interval NOT NULL,
    batch_size integer NOT NULL,
    max_batches_per_cycle integer NOT NULL,
    max_duration interval NOT NULL,
    retry_failures_per_cycle integer DEFAULT 100 NOT NULL,
    max_transient_retries integer DEFAULT 3 NOT NULL,
    stale_after interval DEFAULT '00:10:00'::interval NOT NULL,
    history_retention interval DEFAULT '30 days'::interval NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    paused_reason text,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_by text DEFAULT SESSION_USER NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT job_batch_size_is_positive CHECK (((batch_size >= 1) AND (batch_size <= 100000))),
    CONSTRAINT job_history_retention_is_sane CHECK ((history_retention >= '01:00:00'::interval)),
    CONSTRAINT job_max_batches_is_positive CHECK ((max_batches_per_cycle > 0)),
    CONSTRAINT job_max_duration_is_positive CHECK ((max_duration > '00:00:00'::interval)),
    CONSTRAINT job_period_is_positive CHECK (((period >= '00:00:01'::interval) AND (period <= '1 day'::interval))),
    CONSTRAINT job_retry_failures_is_not_negative CHECK ((retry_failures_per_cycle >= 0)),
    CONSTRAINT job_stale_after_is_sane CHECK ((stale_after >= '00:00:10'::interval)),
    CONSTRAINT job_transient_retries_is_sane CHECK (((max_transient_retries >= 0) AND (max_transient_retries <= 100)))
);
ALTER TABLE expiration.job OWNER TO crm_owner;
COMMENT ON TABLE expiration.job IS 'Settings of the jobs, one row each: the control plane. Change them by expiration.set_job, pause and resume.';
COMMENT ON COLUMN expiration.job.name IS 'lead-expiration or booking-expiration.';
COMMENT ON COLUMN expiration.job.period IS 'Time between two cycles.';
COMMENT ON COLUMN expiration.job.batch_size IS 'Rows a batch, so a transaction.';
COMMENT ON COLUMN expiration.job.max_batches_per_cycle IS 'Full batches a cycle and phase; what is left waits for the next cycle.';
COMMENT ON COLUMN expiration.job.max_duration IS 'A cycle that has worked this long starts no further batch.';
COMMENT ON COLUMN expiration.job.retry_failures_per_cycle IS 'A cycle stops retrying failed items once so many failed again.';
COMMENT ON COLUMN expiration.job.max_transient_retries IS 'How often in a cycle a batch is tried again after a deadlock, a lock timeout or a serialization failure.';
COMMENT ON COLUMN expiration.job.stale_after IS 'A run that gave no sign of life for so long counts as abandoned where its backend cannot be asked.';
COMMENT ON COLUMN expiration.job.history_retention IS 'How long runs and batches are kept; totals stay exact.';
COMMENT ON COLUMN expiration.job.paused_at IS 'Since when it is paused; null when it is not.';
COMMENT ON COLUMN expiration.job.paused_by IS 'Who paused it.';
COMMENT ON COLUMN expiration.job.paused_reason IS 'Why.';
COMMENT ON COLUMN expiration.job.updated_at IS 'When a setting was last changed.';
COMMENT ON COLUMN expiration.job.updated_by IS 'By whom.';
COMMENT ON COLUMN expiration.job.created_at IS 'When it came into being; a job that has never succeeded is measured from then on.';
CREATE FUNCTION expiration.cron_plan(seconds_allowed boolean DEFAULT false) RETURNS TABLE(jobname text, schedule text, command text)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    BEGIN ATOMIC
 SELECT j.name,
     expiration.cron_schedule(j.name, j.period, cron_plan.seconds_allowed) AS cron_schedule,
     format('CALL expiration.run_job(%L)'::text, j.name) AS format
    FROM expiration.job j
 UNION ALL
  SELECT 'expiration-upkeep'::text,
     '7 * * * *'::text,
     'CALL expiration.run_upkeep()'::text
  ORDER BY 1;
END;
ALTER FUNCTION expiration.cron_plan(seconds_allowed boolean) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.cron_plan(seconds_allowed boolean) IS 'The entries that pg_cron needs: one a job and one for upkeep, each command exactly one CALL.';
CREATE FUNCTION expiration.cron_uninstall() RETURNS TABLE(jobname text, schedule text, command text, action text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    v_present record;
begin
    for v_present in select c.* from expiration.cron_job() as c loop
        execute 'select cron.unschedule($1)' using v_present.jobid;
        jobname := v_present.jobname;
        schedule := v_present.schedule;
        command := v_present.command;
        action := 'unscheduled';
        return next;
    end loop;
end
$_$;
ALTER FUNCTION expiration.cron_uninstall() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.cron_uninstall() IS 'Takes our entries out of pg_cron. A run at work goes on to its end; expiration.stop ends it after the batch in hand.';
CREATE FUNCTION expiration.current_driver() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT CASE WHEN ((a.backend_type = 'pg_cron'::text) OR (a.application_name ~~ 'pg_cron%'::text)) THEN 'pg_cron'::text ELSE 'psql'::text END AS "case" FROM pg_stat_activity a WHERE (a.pid = pg_backend_pid()));
ALTER FUNCTION expiration.current_driver() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.current_driver() IS 'Who calls: pg_cron in either of its modes, or somebody by hand (psql).';
CREATE FUNCTION expiration.duration_bounds() RETURNS double precision[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN ARRAY[(0.01)::double precision, (0.025)::double precision, (0.05)::double precision, (0.1)::double precision, (0.25)::double precision, (0.5)::double precision, (1)::double precision, (2.5)::double precision, (5)::double precision, (10)::double precision, (30)::double precision, (60)::double precision, (300)::double precision, (900)::double precision, (1800)::double precision, (3300)::double precision];
ALTER FUNCTION expiration.duration_bounds() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.duration_bounds() IS 'Upper bounds of the buckets of a cycle''s duration, in seconds, 30 s among them, the objective of bookings. What was counted keeps the bounds it was counted by, so changing them takes a migration.';
CREATE FUNCTION expiration.duration_bucket(duration interval) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT ((count(*))::integer + 1) FROM unnest(expiration.duration_bounds()) b(bound) WHERE (b.bound < (EXTRACT(epoch FROM duration_bucket.duration))::double precision));
ALTER FUNCTION expiration.duration_bucket(duration interval) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.duration_bucket(duration interval) IS 'The bucket of a duration, from 1: the first of expiration.duration_bounds that it does not exceed, or the one beyond.';
CREATE FUNCTION expiration.errors() RETURNS TABLE(sqlstate text, name text, message text, hint text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    values
    -- settings and arguments
    ('XP001', 'invalid_setting', '%s must be %s, and is %s',
        'See select * from expiration.job; change it by expiration.set_job.'),
    ('XP002', 'future_as_of', 'as_of is %s, which is later than the database''s clock (%s): nothing may expire early',
        'Leave as_of out, or give a time that has passed.'),
    ('XP003', 'unknown_job', 'there is no job %s',
        'The jobs are lead-expiration and booking-expiration.'),
    ('XP004', 'unknown_phase', 'there is no phase %s of bookings',
        'The phases are Reserve and Booking.'),
    ('XP005', 'null_argument', '%s of %s may not be null',
        'Give a value, or leave the argument out where it has a default.'),
    ('XP006', 'unknown_run', 'there is no run %s',
        'See select * from expiration.history; finished runs are purged after job.history_retention.'),
    ('XP007', 'run_is_over', 'run %s is over (%s): it can do no further batch',
        'Start another one: call expiration.run_job(...).'),
    ('XP008', 'wrong_isolation', 'the transaction is %s, and expiring needs read committed',
        'begin isolation level read committed; or call expiration.run_job, which sees to it by itself.'),
    ('XP009', 'invalid_deadline', 'the deadline of %s may not be %s: %s',
        'Give a finite time that lies ahead.'),
    ('XP010', 'append_only', '%s of %s is refused: the outbox is append only',
        'Append a new event instead; delivered partitions are dropped whole.'),
    ('XP011', 'cron_missing', 'pg_cron is not installed in database %s%s',
        'In the database named by cron.database_name: create extension pg_cron; it must stand in shared_preload_libraries.'),
    ('XP012', 'inexpressible_period', 'pg_cron cannot run %s every %s; the nearest periods it can are %s',
        'Change it by expiration.set_job(job => ..., period => ...), or let pyrunner worker drive the job.'),
    ('XP013', 'no_such_failed_item', 'item %s of job %s is not on the list of failed items',
        'See select * from expiration.failed_item.'),
    ('XP014', 'invalid_argument', '%s of %s must be %s, and is %s',
        'See the comment of the function: \df+ in psql.'),
    ('XP015', 'rehearsal_passed', 'item %s can be changed',
        'Internal: it ends a rehearsal and never reaches a caller.'),
    ('XP016', 'slot_lost', 'replication slot %s of the outbox is %s: no partition is dropped, since the outbox may be the only copy',
        'pyrunner cdc recover makes it anew and sends what was not delivered; where nobody reads it any more: outbox.forget_slot.'),
    ('XP017', 'too_many_events', 'more than %s events match, so none is replayed',
        'Narrow it down (see outbox.preview_replay), or give a larger max_events.'),
    ('XP018', 'nothing_chosen', 'nothing says which events',
        'Give event_ids, aggregate_id, topic, since or until.'),
    ('XP019', 'no_such_event', 'no event of the outbox matches, so none is replayed',
        'See outbox.preview_replay; what was dropped after outbox.settings.retention is gone.'),
    ('XP020', 'publication_differs', 'publication %s publishes something else than INSERTs into outbox.event through its root',
        'Drop it, or give another name.'),
    ('XP021', 'slot_gap', 'replication slot %s of the outbox was made or registered when events were there already, and nobody has compared these with Kafka: no partition is dropped',
        'pyrunner cdc recover compares, and sends what was not delivered; to give that up: outbox.close_gap.'),
    -- the domain's guards
    ('XP101', 'lead_not_found', 'there is no lead %s',
        'Look its id up in crm.leads.'),
    ('XP102', 'booking_not_found', 'there is no booking %s',
        'Look its id up in crm.bookings.'),
    ('XP103', 'version_conflict', 'CRM_VERSION_CONFLICT: %s %s has version %s, and not the expected %s',
        'Somebody changed it meanwhile: read it again and decide anew.'),
    ('XP104', 'invalid_transition', 'CRM_INVALID_TRANSITION: %s %s is %s, so it cannot be changed by %s',
        'Terminal states never change; see the comments of the commands.'),
    ('XP105', 'property_not_available', 'CRM_PROPERTY_OBJECT_NOT_AVAILABLE: property object %s is kept by another booking',
        'It becomes free once that booking has ended and, where it expired, the chessboard has taken note of that (chessboard.release).')
$$;
ALTER FUNCTION expiration.errors() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.errors() IS 'Every SQLSTATE of our own, with its message (a format() template) and hint. Class XP: 0xx the engine, 1xx guards of the domain.';
CREATE FUNCTION expiration.expire_batch(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, after_id uuid DEFAULT NULL::uuid, failed_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS expiration.batch_result
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
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
$$;
ALTER FUNCTION expiration.expire_batch(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.expire_batch(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) IS 'Claims a step of a phase (claim: beyond the cursor; retry: those that last failed before failed_before) and expires it: all in one statement; where that fails on a row''s own data, in parts, and the bad rows go to the list of failed items. A fault of the system is raised as it came, and nothing is marked.';
CREATE FUNCTION expiration.expire_in_parts(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, suspect integer DEFAULT NULL::integer) RETURNS expiration.batch_result
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
ALTER FUNCTION expiration.expire_in_parts(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, suspect integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.expire_in_parts(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, suspect integer) IS 'Expires the items of a claim in parts, ever smaller ones where that fails on a row''s own data, so that only the bad rows are left: claimed (how many were got through, in the claim''s order), expired_ids and failures. suspect: the position in the claim where an attempt at the whole failed; null where that is not known. A fault of the system is raised as it came.';
CREATE FUNCTION expiration.expire_items(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean DEFAULT false) RETURNS uuid[]
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if expire_items.phase = 'Lead' then
        return crm.expire_leads(claim, as_of, run_id, batch_number, rehearsal);
    end if;
    return crm.expire_bookings(phase, claim, as_of, run_id, batch_number, rehearsal);
end
$$;
ALTER FUNCTION expiration.expire_items(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.expire_items(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) IS 'The transition of a phase: crm.expire_leads or crm.expire_bookings.';
CREATE FUNCTION expiration.fingerprint(class oid, object oid) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select md5(concat_ws(
        '|',
        case fingerprint.class
            when 'pg_proc'::regclass then (
                select pg_get_functiondef(p.oid) from pg_proc as p where p.oid = fingerprint.object and p.prokind <> 'a'
            )
            when 'pg_class'::regclass then (
                select concat_ws('|', pg_get_viewdef(c.oid), c.reloptions) from pg_class as c where c.oid = fingerprint.object
            )
            when 'pg_trigger'::regclass then (
                select concat_ws('|', pg_get_triggerdef(t.oid), t.tgenabled) from pg_trigger as t where t.oid = fingerprint.object
            )
        end,
        (
            select d.description
            from pg_description as d
            where d.classoid = fingerprint.class and d.objoid = fingerprint.object and d.objsubid = 0
        )
    ))
$$;
ALTER FUNCTION expiration.fingerprint(class oid, object oid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.fingerprint(class oid, object oid) IS 'MD5 of an object''s definition and comment; class is the catalog that holds it, as in pg_depend.';
CREATE FUNCTION expiration.finish_run(run_id uuid, reason text) RETURNS expiration.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_status constant text := case finish_run.reason
        when 'drained' then 'completed'
        when 'locked' then 'completed'
        when 'capped' then 'capped'
        when 'out of time' then 'capped'
        when 'stop requested' then 'stopped'
        when 'paused' then 'stopped'
    end;
    v_run expiration.run;
begin
    if v_status is null then
        perform expiration.raise_error(
            'invalid_argument', 'reason', 'expiration.finish_run',
            'drained, locked, capped, out of time, stop requested or paused', coalesce(finish_run.reason, 'null')
        );
    end if;
    v_run := expiration.close_run(run_id, v_status, reason, clock_timestamp());
    if v_run.id is null then
        select r.* into v_run from expiration.run as r where r.id = finish_run.run_id;
        if not found then
            perform expiration.raise_error('unknown_run', coalesce(finish_run.run_id::text, 'null'));
        end if;
    end if;
    return v_run;
end
$$;
ALTER FUNCTION expiration.finish_run(run_id uuid, reason text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.finish_run(run_id uuid, reason text) IS 'Ends a run with the reason that run_batch gave, and returns it with its counts. A run that was over already is returned as it is.';
CREATE FUNCTION expiration.has_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid) RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
    return exists (
        select
        from expiration.due_item as d
        where
            d.job = has_due.job
            and d.phase = has_due.phase
            and d.deadline < has_due.as_of
            and (d.deadline, d.item_id) > (has_due.after_deadline, has_due.after_id)
            and (
                select true
                from expiration.failed_item as f
                where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
            ) is null
    );
end
$$;
ALTER FUNCTION expiration.has_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.has_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid) IS 'Whether anything is due beyond the cursor, failed items apart.';
CREATE TABLE expiration.batch (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    phase text NOT NULL,
    step text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    claimed integer NOT NULL,
    expired integer NOT NULL,
    failed integer NOT NULL,
    skipped_locked integer NOT NULL,
    drained boolean NOT NULL,
    capped boolean DEFAULT false NOT NULL,
    oldest_deadline timestamp with time zone,
    last_deadline timestamp with time zone,
    last_id uuid,
    phase_expired bigint NOT NULL,
    retry_failures integer DEFAULT 0 NOT NULL,
    failures jsonb,
    lateness integer[],
    lateness_seconds double precision,
    tallied boolean DEFAULT false NOT NULL,
    transaction_start timestamp with time zone DEFAULT now(),
    CONSTRAINT batch_step_is_known CHECK ((step = ANY (ARRAY['claim'::text, 'retry'::text])))
);
ALTER TABLE expiration.batch OWNER TO crm_owner;
COMMENT ON TABLE expiration.batch IS 'One row a batch, appended in the batch''s own transaction; nobody ever updates it.';
COMMENT ON COLUMN expiration.batch.run_id IS 'The run.';
COMMENT ON COLUMN expiration.batch.number IS 'From 1.';
COMMENT ON COLUMN expiration.batch.phase IS 'Lead, Reserve or Booking.';
COMMENT ON COLUMN expiration.batch.step IS 'claim (due items in deadline order) or retry (items that failed before).';
COMMENT ON COLUMN expiration.batch.started_at IS 'When it started, by the clock.';
COMMENT ON COLUMN expiration.batch.finished_at IS 'When its work was done, just before COMMIT.';
COMMENT ON COLUMN expiration.batch.claimed IS 'Items claimed.';
COMMENT ON COLUMN expiration.batch.expired IS 'Items expired, each with one event.';
COMMENT ON COLUMN expiration.batch.failed IS 'Items that failed alone.';
COMMENT ON COLUMN expiration.batch.skipped_locked IS 'Due items in the batch''s range that another transaction held.';
COMMENT ON COLUMN expiration.batch.drained IS 'Nothing of this step is left behind it.';
COMMENT ON COLUMN expiration.batch.capped IS 'The cycle''s cap was reached here while due items were left.';
COMMENT ON COLUMN expiration.batch.oldest_deadline IS 'Oldest deadline claimed.';
COMMENT ON COLUMN expiration.batch.last_deadline IS 'Cursor: deadline of the last item claimed.';
COMMENT ON COLUMN expiration.batch.last_id IS 'Cursor: id of the last item claimed.';
COMMENT ON COLUMN expiration.batch.phase_expired IS 'Items expired so far in this run and phase.';
COMMENT ON COLUMN expiration.batch.retry_failures IS 'Retried items that failed again so far in this run and phase.';
COMMENT ON COLUMN expiration.batch.failures IS 'The failed items: array of {id, sqlstate, message}.';
COMMENT ON COLUMN expiration.batch.lateness IS 'Items expired, by bucket of lateness (as_of - deadline): see expiration.lateness_bounds; null when none expired.';
COMMENT ON COLUMN expiration.batch.lateness_seconds IS 'Lateness of the items expired, summed; infinite deadlines left out.';
COMMENT ON COLUMN expiration.batch.tallied IS 'Its counts are in expiration.batch_tally.';
COMMENT ON COLUMN expiration.batch.transaction_start IS 'Start of its transaction: outbox.event.created_at of its events. Null in batches from before 0.3.0.';
CREATE FUNCTION expiration.last_sign_of_life(run_id uuid) RETURNS timestamp with time zone
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT GREATEST(r.started_at, (SELECT b.finished_at FROM expiration.batch b WHERE (b.run_id = r.id) ORDER BY b.number DESC LIMIT 1)) AS "greatest" FROM expiration.run r WHERE (r.id = last_sign_of_life.run_id));
ALTER FUNCTION expiration.last_sign_of_life(run_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.last_sign_of_life(run_id uuid) IS 'When a run last wrote anything: its last batch, or its start.';
CREATE FUNCTION expiration.is_alive(run expiration.run) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN CASE WHEN (((run).backend_start IS NOT NULL) AND (EXISTS (SELECT FROM pg_stat_activity a WHERE ((a.pid = (is_alive.run).backend_pid) AND (a.backend_start IS NOT NULL))))) THEN (EXISTS (SELECT FROM pg_stat_activity a WHERE ((a.pid = (is_alive.run).backend_pid) AND (a.backend_start = (is_alive.run).backend_start) AND CASE WHEN (((is_alive.run).statement_start IS NOT NULL) AND (a.query_start IS NOT NULL)) THEN ((a.state <> 'idle'::text) AND (a.query_start = (is_alive.run).statement_start)) WHEN ((a.state IS NULL) OR (a.state = ANY (ARRAY['idle'::text, 'disabled'::text]))) THEN (expiration.last_sign_of_life((is_alive.run).id) > (clock_timestamp() - (SELECT j.stale_after FROM expiration.job j WHERE (j.name = (is_alive.run).job)))) ELSE true END))) WHEN (((run).backend_start IS NOT NULL) AND (NOT (EXISTS (SELECT FROM pg_stat_activity a WHERE (a.pid = (is_alive.run).backend_pid))))) THEN false ELSE (expiration.last_sign_of_life((run).id) > (clock_timestamp() - (SELECT j.stale_after FROM expiration.job j WHERE (j.name = (is_alive.run).job)))) END;
ALTER FUNCTION expiration.is_alive(run expiration.run) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.is_alive(run expiration.run) IS 'Whether the driver of a run is still at work: by its backend where that can be seen, otherwise by its last sign of life (job.stale_after).';
CREATE FUNCTION expiration.is_item_fault(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, schema_name text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_sqlstate text;
begin
    -- the outbox's and the engine's own tables are never the row's fault
    if schema_name in ('outbox', 'expiration') then
        return false;
    end if;
    begin
        perform expiration.expire_items(phase, claim, as_of, run_id, 0, rehearsal => true);
        perform expiration.raise_error('rehearsal_passed', (claim).ids[1]::text);
        return null;
    exception
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate;
            if v_sqlstate = 'XP015' then
                -- without the outbox all goes well
                return false;
            elsif expiration.is_item_sqlstate(v_sqlstate) then
                return true;
            end if;
            raise;
    end;
end
$$;
ALTER FUNCTION expiration.is_item_fault(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, schema_name text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.is_item_fault(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, schema_name text) IS 'Whether a failure may be blamed on the one item of the claim: its transition without the outbox must fail too, by a SQLSTATE of the allow-list (is_item_sqlstate). Everything else is the system''s fault and raises or returns false.';
CREATE FUNCTION expiration.is_item_sqlstate(fault_sqlstate text) RETURNS boolean
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (("left"(fault_sqlstate, 2) = ANY (ARRAY['22'::text, '23'::text])) OR (fault_sqlstate = 'P0001'::text) OR (((fault_sqlstate COLLATE "C") >= 'A'::text) AND ("left"(fault_sqlstate, 2) <> ALL (ARRAY['F0'::text, 'HV'::text, 'P0'::text, 'XX'::text])) AND ("left"(fault_sqlstate, 3) <> 'XP0'::text)));
ALTER FUNCTION expiration.is_item_sqlstate(fault_sqlstate text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.is_item_sqlstate(fault_sqlstate text) IS 'The allow-list: SQLSTATEs by which a row''s own values or the domain''s guards refuse a transition. Any other is a fault of the system, and no item is ever blamed for it.';
CREATE FUNCTION expiration.lateness_bounds() RETURNS double precision[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN ARRAY[(5)::double precision, (15)::double precision, (30)::double precision, (60)::double precision, (90)::double precision, (120)::double precision, (300)::double precision, (600)::double precision, (1800)::double precision, (3600)::double precision, (3900)::double precision, (7200)::double precision, (14400)::double precision, (43200)::double precision, (86400)::double precision];
ALTER FUNCTION expiration.lateness_bounds() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.lateness_bounds() IS 'Upper bounds of the buckets of lateness, in seconds, 90 s and 3900 s (1 h 5 min) among them, which are the objectives of bookings and leads. What was counted keeps the bounds it was counted by, so changing them takes a migration.';
CREATE FUNCTION expiration.loadable_objects() RETURNS TABLE(class oid, object oid, kind text, identity text, stamp text)
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    select
        c.class, c.object, i.type, pg_catalog.replace(i.identity, 'pg_catalog.', ''),
        pg_catalog.format('%s %s %s %s', c.class, c.object, c.xmin, c.ctid)
    from (
        select 'pg_catalog.pg_proc'::pg_catalog.regclass::oid, p.oid, p.pronamespace, p.xmin, p.ctid
        from pg_catalog.pg_proc as p
        union all
        -- replacing a view leaves its row in pg_class as it is
        select 'pg_catalog.pg_class'::pg_catalog.regclass, v.oid, v.relnamespace, r.xmin, r.ctid
        from pg_catalog.pg_class as v
        inner join pg_catalog.pg_rewrite as r on v.oid = r.ev_class
        where v.relkind = 'v' and r.rulename = '_RETURN'
        union all
        select 'pg_catalog.pg_trigger'::pg_catalog.regclass, t.oid, c.relnamespace, t.xmin, t.ctid
        from pg_catalog.pg_trigger as t
        inner join pg_catalog.pg_class as c on t.tgrelid = c.oid
        where not t.tgisinternal and t.tgparentid = 0
    ) as c (class, object, namespace, xmin, ctid)
    inner join pg_catalog.pg_namespace as n on c.namespace = n.oid
    cross join lateral pg_catalog.pg_identify_object(c.class, c.object, 0) as i
    where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')
$$;
ALTER FUNCTION expiration.loadable_objects() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.loadable_objects() IS 'Functions, procedures, views and triggers in our schemas, whoever made them. stamp changes whenever the object is replaced.';
CREATE FUNCTION expiration.log_item(run_id uuid) RETURNS TABLE(at timestamp with time zone, event text, fields jsonb)
    LANGUAGE sql STABLE STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    BEGIN ATOMIC
 SELECT COALESCE(b.transaction_start, b.started_at) AS "coalesce",
         CASE
             WHEN (b.phase = 'Lead'::text) THEN 'lead.expired'::text
             ELSE 'booking expired'::text
         END AS "case",
         CASE
             WHEN (b.phase = 'Lead'::text) THEN jsonb_build_object('LeadId', i.item_id, 'TenantId', i.tenant_id)
             ELSE jsonb_build_object('BookingId', i.item_id, 'DealId', i.deal_id, 'Phase', b.phase, 'TenantId', i.tenant_id)
         END AS jsonb_build_object
    FROM (expiration.batch b
      CROSS JOIN LATERAL expiration.batch_item(b.run_id, b.number) WITH ORDINALITY i(item_id, tenant_id, deal_id, sqlstate, place))
   WHERE ((b.run_id = log_item.run_id) AND (i.sqlstate IS NULL))
   ORDER BY b.number, i.place;
END;
ALTER FUNCTION expiration.log_item(run_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.log_item(run_id uuid) IS 'The debug events of a run, lead.expired or booking expired, one an item, in order; read from the outbox as long as it keeps them.';
CREATE FUNCTION expiration.mark_traced(name text, tally_number bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
ALTER FUNCTION expiration.mark_traced(name text, tally_number bigint) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.mark_traced(name text, tally_number bigint) IS 'Moves a destination on past the run with this tally_number; never back.';
CREATE FUNCTION expiration.pause(job text, reason text DEFAULT NULL::text) RETURNS expiration.job
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.pause');
    update expiration.job as j
    set
        paused_at = coalesce(j.paused_at, clock_timestamp()),
        paused_by = coalesce(j.paused_by, session_user),
        paused_reason = coalesce(pause.reason, j.paused_reason)
    where j.name = pause.job
    returning j.* into v_job;
    return v_job;
end
$$;
ALTER FUNCTION expiration.pause(job text, reason text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.pause(job text, reason text) IS 'Pauses a job, whoever drives it: no run starts, and a run at work ends after the batch in hand. Until resume.';
CREATE FUNCTION expiration.phases(job text) RETURNS TABLE(phase text, ordinal integer)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT p.phase,
     p.ordinal
    FROM ( VALUES ('lead-expiration'::text,'Lead'::text,1), ('booking-expiration'::text,'Reserve'::text,1), ('booking-expiration'::text,'Booking'::text,2)) p(job, phase, ordinal)
   WHERE (p.job = phases.job)
   ORDER BY p.ordinal;
END;
ALTER FUNCTION expiration.phases(job text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.phases(job text) IS 'The phases of a job in the order in which a cycle goes through them.';
CREATE FUNCTION expiration.preview(job text, as_of timestamp with time zone DEFAULT now(), cycles integer DEFAULT 1) RETURNS TABLE(phase text, step text, item_id uuid, tenant_id uuid, deadline timestamp with time zone, cycle integer, batch integer, expected_at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_job expiration.job;
    v_budget bigint;
    v_next timestamptz;
begin
    perform expiration.check_job(job, 'expiration.preview');
    if preview.as_of is null or preview.cycles is null then
        perform expiration.raise_error(
            'null_argument', case when preview.as_of is null then 'as_of' else 'cycles' end, 'expiration.preview'
        );
    elsif preview.cycles < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'cycles', 'expiration.preview', 'greater than 0', preview.cycles::text
        );
    end if;
    select j.* into strict v_job from expiration.job as j where j.name = preview.job;
    v_budget := v_job.batch_size::bigint * v_job.max_batches_per_cycle;
    select greatest(max(r.started_at) + v_job.period, now()) into v_next
    from expiration.run as r
    where r.job = preview.job and r.driver <> 'sql';
    return query
    with waiting as (
        select p.ordinal, d.*, case when f.item_id is null then 'claim' else 'retry' end as step, f.last_failed_at
        from expiration.phases(preview.job) as p
        inner join expiration.due_item as d on d.job = preview.job and d.phase = p.phase
        left join expiration.failed_item as f
            on f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and f.row_xmin = d.row_xmin
        where d.deadline < preview.as_of
    ),
    numbered as (
        select
            w.*,
            row_number() over (
                partition by w.ordinal, w.step
                order by w.last_failed_at, case when w.step = 'claim' then w.deadline end, w.item_id
            ) - 1 as position,
            count(*) filter (where w.step = 'claim') over (partition by w.ordinal) as claims
        from waiting as w
    ),
    planned as (
        select
            n.*,
            c.cycle,
            case
                when n.step = 'claim' then (n.position % v_budget) / v_job.batch_size
                else
                    -- behind the claims of that cycle
                    (greatest(least(n.claims - c.cycle * v_budget, v_budget), 0) + v_job.batch_size - 1) / v_job.batch_size
                    + n.position % nullif(v_job.retry_failures_per_cycle, 0) / v_job.batch_size
            end as batch
        from numbered as n
        cross join lateral (
            select
                case
                    when n.step = 'claim' then n.position / v_budget
                    -- all fail again, for all we know
                    else n.position / nullif(v_job.retry_failures_per_cycle, 0)
                end as cycle
        ) as c
    )
    select
        p.phase,
        p.step,
        p.item_id,
        p.tenant_id,
        p.deadline,
        p.cycle::integer + 1,
        p.batch::integer + 1,
        coalesce(v_next, now()) + p.cycle * v_job.period
    from planned as p
    where p.cycle < preview.cycles
    order by p.cycle, p.step, p.ordinal, p.position;
end
$$;
ALTER FUNCTION expiration.preview(job text, as_of timestamp with time zone, cycles integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.preview(job text, as_of timestamp with time zone, cycles integer) IS 'What the next cycles would take, in their order, changing nothing: with the cycle (1 = the next), the batch of its phase, and when that cycle is expected. step retry: failed before, tried again after the healthy ones, retry_failures_per_cycle of them a cycle as long as they fail. as_of may lie ahead, to see what will be due then.';
CREATE FUNCTION expiration.purge_cron_history(retention interval DEFAULT '7 days'::interval) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    v_deleted bigint := bigint '0';
begin
    if exists (
        select
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname = 'cron'
            and c.relname = 'job_run_details'
            and has_schema_privilege(n.oid, 'usage')
            and has_table_privilege(c.oid, 'delete')
    ) then
        execute $sql$
            delete from cron.job_run_details
            where database = current_database() and end_time < now() - $1 and command ~* '^\s*call\s+expiration\.'
        $sql$ using purge_cron_history.retention;
        get diagnostics v_deleted = row_count;
    end if;
    return v_deleted;
end
$_$;
ALTER FUNCTION expiration.purge_cron_history(retention interval) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.purge_cron_history(retention interval) IS 'Deletes old entries of our jobs from pg_cron''s own history, which grows without bound; as far as the caller may, in the database where pg_cron lives.';
CREATE FUNCTION expiration.purge_history(max_runs integer DEFAULT 10000) RETURNS TABLE(runs bigint, batches bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if purge_history.max_runs is null or purge_history.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.purge_history', 'greater than 0',
            coalesce(purge_history.max_runs::text, 'null')
        );
    end if;
    runs := 0;
    batches := 0;
    -- two at once would wait for each other's rows
    if pg_try_advisory_xact_lock(hashtext('expiration.purge_history')) then
        with doomed as materialized (
            select r.id
            from expiration.job as j
            cross join lateral (
                select h.id
                from expiration.run as h
                where
                    h.job = j.name
                    and h.status <> 'running'
                    and h.started_at < now() - j.history_retention
                    and h.finished_at < now() - j.history_retention
                    -- what they have counted stays in the tallies
                    and h.tally_number is not null
                    and not exists (select from expiration.batch as b where b.run_id = h.id and not b.tallied)
                    -- the last success stays, however old: the dead man's switch counts from it
                    and h.id is distinct from (
                        select s.id
                        from expiration.run as s
                        where s.job = j.name and s.status in ('completed', 'capped') and s.driver <> 'sql'
                        order by s.finished_at desc
                        limit 1
                    )
                order by h.started_at
                limit purge_history.max_runs
            ) as r
        ),
        gone_batches as (
            delete from expiration.batch as b
            using doomed as d
            where b.run_id = d.id
            returning b.run_id
        ),
        gone_runs as (
            delete from expiration.run as r
            using doomed as d
            where r.id = d.id
            returning r.id
        )
        select (select count(*) from gone_runs), (select count(*) from gone_batches)
        into purge_history.runs, purge_history.batches;
    end if;
    return next;
end
$$;
ALTER FUNCTION expiration.purge_history(max_runs integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.purge_history(max_runs integer) IS 'Deletes finished runs older than job.history_retention with their batches, at most max_runs a job, once they are in the tallies (expiration.tally_runs), so that batch_total and run_total never move. Returns what it deleted.';
CREATE FUNCTION expiration.raise_error(name text, VARIADIC args text[] DEFAULT '{}'::text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_error record;
begin
    select e.* into strict v_error from expiration.errors() as e where e.name = raise_error.name;
    raise exception using
        errcode = v_error.sqlstate,
        message = format(v_error.message, variadic args),
        hint = format(v_error.hint, variadic args);
end
$$;
ALTER FUNCTION expiration.raise_error(name text, VARIADIC args text[]) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.raise_error(name text, VARIADIC args text[]) IS 'Raises one of expiration.errors() by its name; args fill its message, and its hint.';
CREATE FUNCTION expiration.reap_runs(job text DEFAULT NULL::text) RETURNS SETOF expiration.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_run expiration.run;
begin
    for v_run in
        select r.*
        from expiration.run as r
        where r.status = 'running' and (reap_runs.job is null or r.job = reap_runs.job)
    loop
        -- the run may have begun after this transaction first looked at who is at work
        perform pg_stat_clear_snapshot();
        continue when expiration.is_alive(v_run);
        -- whoever reaps or ends it at this moment needs no help; a run at work is never locked
        perform r.id from expiration.run as r where r.id = v_run.id and r.status = 'running' for no key update skip locked;
        continue when not found;
        return next expiration.close_run(
            v_run.id, 'abandoned', 'backend gone', expiration.last_sign_of_life(v_run.id), null,
            format('its driver %s (backend %s) is gone', v_run.driver, v_run.backend_pid)
        );
    end loop;
end
$$;
ALTER FUNCTION expiration.reap_runs(job text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.reap_runs(job text) IS 'Marks runs whose driver is gone as abandoned, of one job or of all, and returns them. What they had committed stays.';
CREATE FUNCTION expiration.record_lone_batch(run_id uuid, job text, phase text, as_of timestamp with time zone, batch_size integer, started_at timestamp with time zone, result expiration.batch_result) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into expiration.run (
        id, job, driver, status, reason, as_of, started_at, finished_at, expired, skipped_locked, failed, batches,
        batch_size, max_batches_per_cycle, max_duration
    )
    select
        record_lone_batch.run_id, j.name, 'sql',
        case when result.drained then 'completed' else 'capped' end,
        case when not result.drained then 'capped' when result.skipped_locked > 0 then 'locked' else 'drained' end,
        record_lone_batch.as_of, record_lone_batch.started_at, clock_timestamp(),
        result.expired, result.skipped_locked, result.failed, (result.claimed > 0)::integer,
        record_lone_batch.batch_size, 1, j.max_duration
    from expiration.job as j
    where j.name = record_lone_batch.job;
    insert into expiration.batch (
        run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, capped,
        oldest_deadline, last_deadline, last_id, phase_expired, failures, lateness, lateness_seconds
    )
    values (
        record_lone_batch.run_id, 1, record_lone_batch.phase, 'claim', record_lone_batch.started_at,
        result.claimed, result.expired, result.failed, result.skipped_locked, result.drained, not result.drained,
        result.oldest_deadline, result.last_deadline, result.last_id, result.expired, result.failures,
        result.lateness, result.lateness_seconds
    );
end
$$;
ALTER FUNCTION expiration.record_lone_batch(run_id uuid, job text, phase text, as_of timestamp with time zone, batch_size integer, started_at timestamp with time zone, result expiration.batch_result) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.record_lone_batch(run_id uuid, job text, phase text, as_of timestamp with time zone, batch_size integer, started_at timestamp with time zone, result expiration.batch_result) IS 'Books a batch that somebody called outside of any run as a run of its own (driver sql), so that the totals stay exact.';
CREATE FUNCTION expiration.resume(job text) RETURNS expiration.job
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.resume');
    update expiration.job as j
    set paused_at = null, paused_by = null, paused_reason = null
    where j.name = resume.job
    returning j.* into v_job;
    return v_job;
end
$$;
ALTER FUNCTION expiration.resume(job text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.resume(job text) IS 'Ends a pause: the next tick of any driver runs the job again.';
CREATE TABLE expiration.failed_item (
    job text NOT NULL,
    phase text NOT NULL,
    item_id uuid NOT NULL,
    first_failed_at timestamp with time zone NOT NULL,
    last_failed_at timestamp with time zone NOT NULL,
    attempts integer DEFAULT 1 NOT NULL,
    sqlstate text NOT NULL,
    message text NOT NULL,
    run_id uuid NOT NULL,
    row_xmin xid NOT NULL
);
ALTER TABLE expiration.failed_item OWNER TO crm_owner;
COMMENT ON TABLE expiration.failed_item IS 'Poison: items that failed alone. A verdict on one version of the row: whoever changes the row frees it for the next cycle.';
COMMENT ON COLUMN expiration.failed_item.job IS 'The job.';
COMMENT ON COLUMN expiration.failed_item.phase IS 'Lead, Reserve or Booking.';
COMMENT ON COLUMN expiration.failed_item.item_id IS 'The lead or booking.';
COMMENT ON COLUMN expiration.failed_item.first_failed_at IS 'When it first failed.';
COMMENT ON COLUMN expiration.failed_item.last_failed_at IS 'When it last failed.';
COMMENT ON COLUMN expiration.failed_item.attempts IS 'How often it was tried.';
COMMENT ON COLUMN expiration.failed_item.sqlstate IS 'SQLSTATE of the last failure.';
COMMENT ON COLUMN expiration.failed_item.message IS 'Message of the last failure.';
COMMENT ON COLUMN expiration.failed_item.run_id IS 'Run of the last failure.';
COMMENT ON COLUMN expiration.failed_item.row_xmin IS 'Version (xmin) of the row that failed; a row with another one is claimed as any other.';
CREATE FUNCTION expiration.retry_failed(job text, item_id uuid DEFAULT NULL::uuid) RETURNS SETOF expiration.failed_item
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform expiration.check_job(job, 'expiration.retry_failed');
    -- no row has version 0, so the claim takes the item as any other; its record of failures stays until it expires
    return query
    update expiration.failed_item as f
    set row_xmin = '0'
    -- an array is made once, where a join could lock again and again
    where f.ctid = any(array(
        select g.ctid
        from expiration.failed_item as g
        where
            g.job = retry_failed.job
            and (retry_failed.item_id is null or g.item_id = retry_failed.item_id)
        for no key update skip locked
    ))
    returning f.*;
    if not found and retry_failed.item_id is not null then
        perform expiration.raise_error('no_such_failed_item', retry_failed.item_id::text, job);
    end if;
end
$$;
ALTER FUNCTION expiration.retry_failed(job text, item_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.retry_failed(job text, item_id uuid) IS 'Frees failed items of a job, one or all, so that the next cycle takes them in deadline order; returns those freed. Not needed for rows that somebody changed: they are freed by that.';
CREATE FUNCTION expiration.run_batch(run_id uuid) RETURNS expiration.batch_report
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_started_at constant timestamptz := clock_timestamp();
    v_beginning constant uuid := uuid '00000000-0000-0000-0000-000000000000';
    v_run expiration.run;
    v_job expiration.job;
    v_number integer;
    v_phase record;
    v_step text;
    v_last expiration.batch;
    v_budget bigint;
    v_left bigint;
    v_size integer;
    v_result expiration.batch_result;
    v_capped boolean;
    v_report expiration.batch_report;
begin
    select r.* into v_run from expiration.run as r where r.id = run_batch.run_id;
    if not found then
        perform expiration.raise_error('unknown_run', coalesce(run_batch.run_id::text, 'null'));
    elsif v_run.status <> 'running' then
        perform expiration.raise_error('run_is_over', run_batch.run_id::text, v_run.status);
    end if;
    select j.* into strict v_job from expiration.job as j where j.name = v_run.job;
    v_report.state := 'done';
    v_report.reason := case
        when v_run.stop_requested_at is not null then 'stop requested'
        when v_job.paused_at is not null then 'paused'
        when v_started_at - v_run.started_at > v_run.max_duration then 'out of time'
    end;
    if v_report.reason is not null then
        return v_report;
    end if;
    -- a deferred constraint speaks up while the bad row can still be told from the good ones
    set constraints all immediate;
    select coalesce(max(b.number), 0) + 1 into v_number from expiration.batch as b where b.run_id = v_run.id;
    v_budget := v_run.batch_size::bigint * v_run.max_batches_per_cycle;
    -- healthy items of every phase first, then those that failed before
    foreach v_step in array array['claim', 'retry'] loop
        for v_phase in select p.phase from expiration.phases(v_run.job) as p order by p.ordinal loop
            -- where this step of the phase stands, and what the phase has expired so far
            select b.* into v_last
            from expiration.batch as b
            where b.run_id = v_run.id and b.phase = v_phase.phase
            order by b.number desc
            limit 1;
            v_last.phase_expired := coalesce(v_last.phase_expired, 0);
            v_left := v_budget - v_last.phase_expired;
            if v_step = 'claim' then
                continue when v_left <= 0 or v_last.step = 'retry' or v_last.drained;
                v_size := least(v_run.batch_size, v_left)::integer;
                if v_run.job = 'lead-expiration' then
                    v_result := crm.expire_leads_batch(
                        v_run.as_of, v_size, v_run.id, v_number,
                        coalesce(v_last.last_deadline, '-infinity'), coalesce(v_last.last_id, v_beginning)
                    );
                else
                    v_result := crm.expire_bookings_batch(
                        v_phase.phase, v_run.as_of, v_size, v_run.id, v_number,
                        coalesce(v_last.last_deadline, '-infinity'), coalesce(v_last.last_id, v_beginning)
                    );
                end if;
                v_capped := not v_result.drained
                    and v_last.phase_expired + v_result.expired >= v_budget
                    and expiration.has_due(
                        v_run.job, v_phase.phase, v_run.as_of, v_result.last_deadline, v_result.last_id
                    );
            else
                if v_last.step is distinct from 'retry' then
                    v_last.retry_failures := 0;
                    v_last.drained := false;
                end if;
                -- within the cap; a backlog that uses it up by itself does not keep them waiting for good
                continue when v_left <= 0 and v_last.step = 'retry' and v_last.expired > 0;
                v_size := least(
                    v_run.batch_size,
                    v_job.retry_failures_per_cycle - v_last.retry_failures,
                    nullif(greatest(v_left, 0), 0)
                )::integer;
                continue when v_last.drained or v_size <= 0;
                v_result := expiration.expire_batch(
                    v_run.job, v_phase.phase, 'retry', v_run.as_of, v_size, v_run.id, v_number,
                    failed_before => v_run.started_at
                );
                v_last.retry_failures := v_last.retry_failures + v_result.failed;
                -- nothing came of it, not even a failure (a trigger that suppresses the change): once a cycle will do
                v_result.drained := v_result.drained
                    or v_result.claimed > 0 and v_result.expired = 0 and v_result.failed = 0;
                v_capped := false;
            end if;
            if v_result.claimed = 0 and v_result.skipped_locked = 0 and v_result.drained then
                -- the batch before was full and the last, as is known only now: not looked for again
                update expiration.batch as b
                set drained = true
                where b.run_id = v_run.id and b.number = v_last.number and v_last.step = v_step;
                continue;
            end if;
            insert into expiration.batch (
                run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, capped,
                oldest_deadline, last_deadline, last_id, phase_expired, retry_failures, failures, lateness, lateness_seconds
            )
            values (
                v_run.id, v_number, v_phase.phase, v_step, v_started_at, v_result.claimed, v_result.expired,
                v_result.failed, v_result.skipped_locked, v_result.drained, v_capped, v_result.oldest_deadline,
                v_result.last_deadline, v_result.last_id, v_last.phase_expired + v_result.expired,
                coalesce(v_last.retry_failures, 0), v_result.failures, v_result.lateness, v_result.lateness_seconds
            );
            v_report.state := 'more';
            v_report.number := v_number;
            v_report.phase := v_phase.phase;
            v_report.step := v_step;
            v_report.claimed := v_result.claimed;
            v_report.expired := v_result.expired;
            v_report.failed := v_result.failed;
            v_report.skipped_locked := v_result.skipped_locked;
            v_report.elapsed_ms := (extract(epoch from clock_timestamp() - v_started_at) * 1000)::double precision;
            v_report.expired_ids := v_result.expired_ids;
            v_report.failures := v_result.failures;
            return v_report;
        end loop;
    end loop;
    select
        case
            when bool_or(b.capped) then 'capped'
            when sum(b.skipped_locked) > 0 then 'locked'
            else 'drained'
        end
    into v_report.reason
    from expiration.batch as b
    where b.run_id = v_run.id;
    return v_report;
end
$$;
ALTER FUNCTION expiration.run_batch(run_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.run_batch(run_id uuid) IS 'Does one batch of a run in the caller''s transaction. state more: commit and call again. state done: call finish_run with the reason: drained, locked (only items that others hold are left), capped, out of time, stop requested or paused.';
CREATE PROCEDURE expiration.run_job(IN job text, IN as_of timestamp with time zone DEFAULT NULL::timestamp with time zone)
    LANGUAGE plpgsql
    AS $$
declare
    v_run expiration.run;
    v_report expiration.batch_report;
    v_retry pg_catalog.bool;
    v_delay pg_catalog.interval := pg_catalog.interval '0';
    v_sqlstate pg_catalog.text;
    v_message pg_catalog.text;
    v_hint pg_catalog.text;
begin
    commit;
    set transaction isolation level read committed;
    v_run := expiration.start_run(
        job => run_job.job, driver => expiration.current_driver(), as_of => run_job.as_of, whole_statement => true
    );
    -- between a COMMIT and SET TRANSACTION nothing may be evaluated: planning an expression takes a snapshot
    if v_run.status operator(pg_catalog.=) 'skipped' then
        commit;
        raise notice '% skipped: %', run_job.job, v_run.error;
        return;
    end if;
    commit;
    loop
        set transaction isolation level read committed;
        v_sqlstate := null;
        begin
            perform pg_catalog.pg_sleep_for(v_delay);
            v_delay := pg_catalog.interval '0';
            v_report := expiration.run_batch(v_run.id);
        exception
            -- nothing is hidden: whatever it is goes on record, and is raised again
            when query_canceled or assert_failure or others then
                get stacked diagnostics
                    v_sqlstate = returned_sqlstate, v_message = message_text, v_hint = pg_exception_hint;
        end;
        if v_sqlstate is null then
            exit when v_report.state operator(pg_catalog.=) 'done';
            commit;
        else
            select f.retry, f.delay into v_retry, v_delay
            from expiration.batch_failed(v_run.id, v_sqlstate, v_message) as f;
            if not v_retry then
                commit;
                raise exception using
                    errcode = v_sqlstate,
                    message = v_message,
                    detail = pg_catalog.format(
                        'Run %s of %s failed; what it had committed stays, and the next one takes the rest.',
                        v_run.id, run_job.job
                    ),
                    hint = case
                        when v_hint operator(pg_catalog.<>) '' then v_hint
                        else 'Mend what the message names; see also: select * from expiration.status.'
                    end;
            end if;
            commit;
        end if;
    end loop;
    v_run := expiration.finish_run(v_run.id, v_report.reason);
    commit;
    raise notice '%: % expired, % failed, % skipped as locked, % batches: %',
        run_job.job, v_run.expired, v_run.failed, v_run.skipped_locked, v_run.batches, v_run.reason;
end
$$;
ALTER PROCEDURE expiration.run_job(IN job text, IN as_of timestamp with time zone) OWNER TO crm_owner;
COMMENT ON PROCEDURE expiration.run_job(IN job text, IN as_of timestamp with time zone) IS 'One whole cycle of a job, a COMMIT after every batch: what pg_cron runs and what a DBA types. Not inside a transaction block. A failure is on record in expiration.run and raised again.';
CREATE FUNCTION expiration.run_result(run expiration.run) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN CASE WHEN ((run).job = 'lead-expiration'::text) THEN jsonb_build_object('ExpiredCount', (run).expired, 'BatchesProcessed', (run).batches, 'Elapsed', (((run).finished_at - (run).started_at))::text, 'CappedByMaxBatches', (NOT ((run).reason IS DISTINCT FROM 'capped'::text))) ELSE (SELECT jsonb_build_object('ReserveExpiredCount', COALESCE(sum(b.expired) FILTER (WHERE (b.phase = 'Reserve'::text)), (0)::bigint), 'BookingExpiredCount', COALESCE(sum(b.expired) FILTER (WHERE (b.phase = 'Booking'::text)), (0)::bigint), 'SkippedLockedCount', COALESCE(sum(b.skipped_locked), (0)::bigint), 'DurationMs', round((EXTRACT(epoch FROM ((run_result.run).finished_at - (run_result.run).started_at)) * (1000)::numeric), 3)) AS jsonb_build_object FROM expiration.batch b WHERE (b.run_id = (run_result.run).id)) END;
ALTER FUNCTION expiration.run_result(run expiration.run) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.run_result(run expiration.run) IS 'The result of a cycle as the documents name it (L13, B11): ExpiredCount, BatchesProcessed, Elapsed, CappedByMaxBatches; or ReserveExpiredCount, BookingExpiredCount, SkippedLockedCount, DurationMs.';
CREATE PROCEDURE expiration.run_upkeep()
    LANGUAGE plpgsql
    AS $$
declare
    v_step pg_catalog.text;
    v_runs pg_catalog.int8;
    v_sqlstate pg_catalog.text;
    v_message pg_catalog.text;
    v_first_sqlstate pg_catalog.text;
    v_first_message pg_catalog.text;
begin
    commit;
    -- one step that fails does not keep the others from being done; the first failure is raised at the end
    foreach v_step in array array[
        'make partitions', 'drop partitions', 'reap runs', 'tally runs', 'purge history', 'purge inboxes',
        'purge history of pg_cron'
    ] loop
        loop
            v_runs := 0;
            v_sqlstate := null;
            begin
                -- no CASE: it would compare by whatever = the caller's search_path finds
                if v_step operator(pg_catalog.=) 'make partitions' then
                    perform outbox.make_partitions();
                elsif v_step operator(pg_catalog.=) 'drop partitions' then
                    perform outbox.drop_partitions();
                elsif v_step operator(pg_catalog.=) 'reap runs' then
                    perform expiration.reap_runs();
                elsif v_step operator(pg_catalog.=) 'tally runs' then
                    v_runs := expiration.tally_runs();
                elsif v_step operator(pg_catalog.=) 'purge history' then
                    v_runs := (select p.runs from expiration.purge_history() as p);
                elsif v_step operator(pg_catalog.=) 'purge inboxes' then
                    v_runs := outbox.purge_inboxes();
                else
                    perform expiration.purge_cron_history();
                end if;
            exception
                when query_canceled or assert_failure or others then
                    get stacked diagnostics v_sqlstate = returned_sqlstate, v_message = message_text;
            end;
            commit;
            if v_sqlstate is not null then
                raise warning '%: % (%)', v_step, v_message, v_sqlstate;
                v_first_message := coalesce(v_first_message, pg_catalog.format('%s: %s', v_step, v_message));
                v_first_sqlstate := coalesce(v_first_sqlstate, v_sqlstate);
            end if;
            exit when v_runs operator(pg_catalog.=) 0;
        end loop;
    end loop;
    if v_first_sqlstate is not null then
        raise exception using
            errcode = v_first_sqlstate,
            message = v_first_message,
            hint = 'The other steps of upkeep were done; call it again when the cause is gone.';
    end if;
end
$$;
ALTER PROCEDURE expiration.run_upkeep() OWNER TO crm_owner;
COMMENT ON PROCEDURE expiration.run_upkeep() IS 'Keeps house, once an hour say: partitions of the outbox made ahead and, once delivered and past their retention, dropped; abandoned runs marked, what is over tallied, old history purged, ours and pg_cron''s. Not inside a transaction block.';
CREATE FUNCTION expiration.schema_version() RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN '0.4.0'::text;
ALTER FUNCTION expiration.schema_version() OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.schema_version() IS 'Version of the functions and views installed; the runner refuses to work with another one.';
CREATE FUNCTION expiration.set_job(job text, period interval DEFAULT NULL::interval, batch_size integer DEFAULT NULL::integer, max_batches_per_cycle integer DEFAULT NULL::integer, max_duration interval DEFAULT NULL::interval, retry_failures_per_cycle integer DEFAULT NULL::integer, max_transient_retries integer DEFAULT NULL::integer, stale_after interval DEFAULT NULL::interval, history_retention interval DEFAULT NULL::interval) RETURNS expiration.job
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bad record;
    v_job expiration.job;
begin
    perform expiration.check_job(job, 'expiration.set_job');
    select c.* into v_bad
    from (values
        ('Period', 'from 1 second to 1 day', period between interval '1 second' and interval '1 day', period::text),
        ('BatchSize', 'from 1 to 100000', batch_size between 1 and 100000, batch_size::text),
        ('MaxBatchesPerCycle', 'greater than 0', max_batches_per_cycle > 0, max_batches_per_cycle::text),
        ('MaxDuration', 'greater than 0', max_duration > interval '0', max_duration::text),
        ('RetryFailuresPerCycle', '0 or greater', retry_failures_per_cycle >= 0, retry_failures_per_cycle::text),
        ('MaxTransientRetries', 'from 0 to 100', max_transient_retries between 0 and 100, max_transient_retries::text),
        ('StaleAfter', 'at least 10 seconds', stale_after >= interval '10 seconds', stale_after::text),
        ('HistoryRetention', 'at least 1 hour', history_retention >= interval '1 hour', history_retention::text)
    ) as c (setting, wanted, is_right, given)
    where not c.is_right
    limit 1;
    if found then
        perform expiration.raise_error('invalid_setting', v_bad.setting, v_bad.wanted, v_bad.given);
    end if;
    update expiration.job as j
    set
        period = coalesce(set_job.period, j.period),
        batch_size = coalesce(set_job.batch_size, j.batch_size),
        max_batches_per_cycle = coalesce(set_job.max_batches_per_cycle, j.max_batches_per_cycle),
        max_duration = coalesce(set_job.max_duration, j.max_duration),
        retry_failures_per_cycle = coalesce(set_job.retry_failures_per_cycle, j.retry_failures_per_cycle),
        max_transient_retries = coalesce(set_job.max_transient_retries, j.max_transient_retries),
        stale_after = coalesce(set_job.stale_after, j.stale_after),
        history_retention = coalesce(set_job.history_retention, j.history_retention),
        updated_at = clock_timestamp(),
        updated_by = session_user
    where j.name = set_job.job
    returning j.* into v_job;
    return v_job;
end
$$;
ALTER FUNCTION expiration.set_job(job text, period interval, batch_size integer, max_batches_per_cycle integer, max_duration interval, retry_failures_per_cycle integer, max_transient_retries integer, stale_after interval, history_retention interval) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.set_job(job text, period interval, batch_size integer, max_batches_per_cycle integer, max_duration interval, retry_failures_per_cycle integer, max_transient_retries integer, stale_after interval, history_retention interval) IS 'Changes settings of a job; what is left null stays. Runs at work keep theirs. After a change of the period install the cron jobs again.';
CREATE FUNCTION expiration.split(low integer, high integer, suspect integer) RETURNS integer[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT
         CASE
             WHEN (low = high) THEN ARRAY[low, high]
             WHEN ((suspect >= low) AND (suspect <= high)) THEN ((
             CASE
                 WHEN (suspect < high) THEN ARRAY[(suspect + 1), high]
                 ELSE ARRAY[]::integer[]
             END || ARRAY[suspect, suspect]) ||
             CASE
                 WHEN (low < suspect) THEN ARRAY[low, (suspect - 1)]
                 ELSE ARRAY[]::integer[]
             END)
             ELSE ARRAY[(((low + high) / 2) + 1), high, low, ((low + high) / 2)]
         END AS "array";
END;
ALTER FUNCTION expiration.split(low integer, high integer, suspect integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.split(low integer, high integer, suspect integer) IS 'Parts of a range of positions, as a stack of pairs whose first part lies on top: the suspect apart from those on its two sides; halves where there is none.';
CREATE FUNCTION expiration.start_run(job text, driver text DEFAULT 'psql'::text, instance text DEFAULT NULL::text, as_of timestamp with time zone DEFAULT NULL::timestamp with time zone, batch_size integer DEFAULT NULL::integer, max_batches_per_cycle integer DEFAULT NULL::integer, max_duration interval DEFAULT NULL::interval, whole_statement boolean DEFAULT false, pooled boolean DEFAULT false) RETURNS expiration.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_as_of constant timestamptz := coalesce(start_run.as_of, now());
    v_instance constant text := coalesce(
        start_run.instance, case when start_run.driver = 'psql' then pg_backend_pid()::text else '' end
    );
    v_job expiration.job;
    v_run expiration.run;
    v_other expiration.run;
    v_is_first boolean;
    v_due_before bigint;
    v_status text := 'running';
    v_reason text;
    v_explanation text;
    v_sqlstate text;
    v_message text;
begin
    if start_run.job is null or start_run.driver is null or whole_statement is null or pooled is null then
        perform expiration.raise_error(
            'null_argument',
            case
                when start_run.job is null then 'job'
                when start_run.driver is null then 'driver'
                when whole_statement is null then 'whole_statement'
                else 'pooled'
            end,
            'expiration.start_run'
        );
    end if;
    select j.* into v_job from expiration.job as j where j.name = start_run.job;
    if not found then
        perform expiration.raise_error('unknown_job', start_run.job);
    end if;
    if start_run.driver = 'sql' then
        perform expiration.raise_error(
            'invalid_argument', 'driver', 'expiration.start_run', 'the driver''s name, other than sql', start_run.driver
        );
    end if;
    v_job.batch_size := coalesce(start_run.batch_size, v_job.batch_size);
    v_job.max_batches_per_cycle := coalesce(start_run.max_batches_per_cycle, v_job.max_batches_per_cycle);
    v_job.max_duration := coalesce(start_run.max_duration, v_job.max_duration);
    if v_job.batch_size <= 0 then
        perform expiration.raise_error('invalid_setting', 'BatchSize', 'greater than 0', v_job.batch_size::text);
    end if;
    if v_job.max_batches_per_cycle <= 0 then
        perform expiration.raise_error(
            'invalid_setting', 'MaxBatchesPerCycle', 'greater than 0', v_job.max_batches_per_cycle::text
        );
    end if;
    if v_job.max_duration <= interval '0' then
        perform expiration.raise_error('invalid_setting', 'MaxDuration', 'greater than 0', v_job.max_duration::text);
    end if;
    if v_as_of > clock_timestamp() then
        perform expiration.raise_error('future_as_of', v_as_of::text, clock_timestamp()::text);
    end if;
    -- of two starts of one driver at once the second is an overlap, however long the first has to wait for a table
    v_is_first := pg_try_advisory_xact_lock(hashtext('expiration.start_run'), hashtext(
        start_run.job || '/' || start_run.driver || '/' || v_instance
    ));
    -- one session does one run at a time: what this one left behind is over
    if not start_run.pooled then
        perform expiration.close_run(
            r.id, 'abandoned', 'backend gone', expiration.last_sign_of_life(r.id), null,
            format('its session (backend %s) went on to another run', r.backend_pid)
        )
        from expiration.run as r
        where
            r.status = 'running'
            and r.job = start_run.job
            and r.backend_pid = pg_backend_pid()
            and r.backend_start = (select a.backend_start from pg_stat_activity as a where a.pid = pg_backend_pid());
    end if;
    perform expiration.reap_runs(start_run.job);
    begin
        perform expiration.tally_runs();
    exception
        -- expiring goes before counting; upkeep does the same, and fails with it
        when others then
            get stacked diagnostics v_sqlstate = returned_sqlstate, v_message = message_text;
            raise warning 'runs were not tallied: % (%)', v_message, v_sqlstate;
    end;
    select r.* into v_other
    from expiration.run as r
    where r.status = 'running' and r.job = start_run.job and r.driver = start_run.driver and r.instance = v_instance
    limit 1;
    -- pg_cron keeps the ticks, at full minutes, that an overlong run covers, and runs them when it has ended
    if v_other.id is null and start_run.driver = 'pg_cron' and v_job.period >= interval '1 minute' then
        select r.* into v_other
        from expiration.run as r
        where
            r.job = start_run.job
            and r.driver = start_run.driver
            and r.instance = v_instance
            and r.status <> 'skipped'
            and r.started_at < date_trunc('minute', clock_timestamp())
            and r.finished_at >= date_trunc('minute', clock_timestamp())
        order by r.started_at desc
        limit 1;
    end if;
    if v_job.paused_at is not null then
        v_status := 'skipped';
        v_reason := 'paused';
        v_explanation := format(
            'paused by %s since %s%s; resume by: select expiration.resume(%L)',
            v_job.paused_by, v_job.paused_at, ': ' || v_job.paused_reason, v_job.name
        );
    elsif not v_is_first then
        v_status := 'skipped';
        v_reason := 'overlap';
        v_explanation := format('another run of %s by %s is being started at this moment', v_job.name, start_run.driver);
    elsif v_other.id is not null then
        v_status := 'skipped';
        v_reason := 'overlap';
        v_explanation := format(
            'the run of %s that %s started at %s %s (%s)',
            v_job.name, v_other.driver, v_other.started_at,
            case v_other.status when 'running' then 'still works' else 'was at work at this tick' end, v_other.id
        );
    end if;
    -- apart, so that a start that is skipped needs no lock of the items' tables
    if v_status = 'running' then
        select count(*) into v_due_before
        from expiration.due_item as d
        where d.job = start_run.job and d.deadline < v_as_of;
    end if;
    insert into expiration.run (
        job, driver, instance, status, reason, as_of, finished_at, due_before,
        batch_size, max_batches_per_cycle, max_duration, error, backend_start, statement_start
    )
    values (
        start_run.job,
        start_run.driver,
        v_instance,
        v_status,
        v_reason,
        v_as_of,
        case when v_status = 'skipped' then clock_timestamp() end,
        v_due_before,
        v_job.batch_size,
        v_job.max_batches_per_cycle,
        v_job.max_duration,
        v_explanation,
        case when not start_run.pooled then (
            select a.backend_start from pg_stat_activity as a where a.pid = pg_backend_pid()
        ) end,
        case when start_run.whole_statement then statement_timestamp() end
    )
    returning * into v_run;
    return v_run;
end
$$;
ALTER FUNCTION expiration.start_run(job text, driver text, instance text, as_of timestamp with time zone, batch_size integer, max_batches_per_cycle integer, max_duration interval, whole_statement boolean, pooled boolean) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.start_run(job text, driver text, instance text, as_of timestamp with time zone, batch_size integer, max_batches_per_cycle integer, max_duration interval, whole_statement boolean, pooled boolean) IS 'Starts a cycle: reads the clock once (as_of, which may be set back for a rehearsal and never ahead), checks the settings, marks abandoned runs, and returns the run. Its status is skipped, and nothing is to be done, when the job is paused or the previous run of the same driver and instance still works. Arguments left null come from expiration.job. whole_statement: the calling statement is the whole run. pooled: the backend may change between calls.';
CREATE FUNCTION expiration.stop(job text) RETURNS SETOF expiration.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform expiration.check_job(job, 'expiration.stop');
    return query
    update expiration.run as r
    set
        stop_requested_at = coalesce(r.stop_requested_at, clock_timestamp()),
        stop_requested_by = coalesce(r.stop_requested_by, session_user)
    where r.job = stop.job and r.status = 'running'
    returning r.*;
end
$$;
ALTER FUNCTION expiration.stop(job text) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.stop(job text) IS 'Asks the runs of a job that are at work to stop: each ends after the batch in hand. The next tick runs again; pause keeps it from doing so. Returns the runs asked.';
CREATE FUNCTION expiration.take_traces(name text, max_runs integer DEFAULT 100) RETURNS SETOF expiration.run
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_position bigint;
begin
    if take_traces.name is null then
        perform expiration.raise_error('null_argument', 'name', 'expiration.take_traces');
    elsif take_traces.max_runs is null or take_traces.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.take_traces', 'greater than 0',
            coalesce(take_traces.max_runs::text, 'null')
        );
    end if;
    perform expiration.tally_runs();
    -- a new destination starts with what ends from now on
    insert into expiration.trace_position (name, tally_number)
    select take_traces.name, coalesce(max(r.tally_number), 0)
    from expiration.run as r
    on conflict on constraint trace_position_pkey do nothing;
    select p.tally_number into v_position
    from expiration.trace_position as p
    where p.name = take_traces.name
    for update skip locked;
    if found then
        return query
        select r.*
        from expiration.run as r
        where r.tally_number > v_position
        order by r.tally_number
        limit take_traces.max_runs;
    end if;
end
$$;
ALTER FUNCTION expiration.take_traces(name text, max_runs integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.take_traces(name text, max_runs integer) IS 'Runs that are over and were not yet sent to the destination, in order, none when another session is at it. Send them and call expiration.mark_traced with the last tally_number in the same transaction: each is then taken by one exporter. The first call for a destination begins with the runs that end from then on.';
CREATE FUNCTION expiration.tally_runs(max_runs integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_runs bigint := bigint '0';
begin
    if tally_runs.max_runs is null or tally_runs.max_runs < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_runs', 'expiration.tally_runs', 'greater than 0',
            coalesce(tally_runs.max_runs::text, 'null')
        );
    end if;
    -- the tally has a row a phase, and its numbers are in the order of commits: one at a time, and nobody waits
    if not pg_try_advisory_xact_lock(hashtext('expiration.tally_runs')) then
        return v_runs;
    end if;
    with waiting as materialized (
        select r.id
        from expiration.run as r
        where r.tally_number is null and r.status <> 'running'
        order by r.finished_at
        limit tally_runs.max_runs
    ),
    runs as (
        update expiration.run as r
        set tally_number = nextval('expiration.tally_number_seq')
        from waiting as w
        where r.id = w.id
        returning r.job, r.driver, r.status, r.started_at, r.finished_at, r.retries
    ),
    batches as (
        update expiration.batch as b
        set tallied = true
        from expiration.run as r
        where
            b.run_id = r.id
            and not b.tallied
            -- a run that was taken for abandoned may have had a batch in hand
            and (r.tally_number is not null or r.id in (select w.id from waiting as w))
        returning
            r.job, b.phase, b.claimed, b.expired, b.failed, b.skipped_locked, b.lateness, b.lateness_seconds
    ),
    batch_sums as (
        insert into expiration.batch_tally as t (
            job, phase, batches, expired, failed, skipped_locked, lateness_seconds
        )
        select
            b.job, b.phase, count(*) filter (where b.claimed > 0), sum(b.expired), sum(b.failed),
            sum(b.skipped_locked), coalesce(sum(b.lateness_seconds::numeric), 0)
        from batches as b
        group by b.job, b.phase
        on conflict on constraint batch_tally_pkey do update
        set
            batches = t.batches + excluded.batches,
            expired = t.expired + excluded.expired,
            failed = t.failed + excluded.failed,
            skipped_locked = t.skipped_locked + excluded.skipped_locked,
            lateness_seconds = t.lateness_seconds + excluded.lateness_seconds
    ),
    lateness_sums as (
        insert into expiration.lateness_tally as t (job, phase, bucket, items)
        select b.job, b.phase, l.bucket, sum(l.items)
        from batches as b
        cross join lateral unnest(b.lateness) with ordinality as l (items, bucket)
        where l.items > 0
        group by b.job, b.phase, l.bucket
        on conflict on constraint lateness_tally_pkey do update set items = t.items + excluded.items
    ),
    run_sums as (
        insert into expiration.run_tally as t (job, status, runs, seconds, retries)
        select
            r.job, r.status, count(*), sum(extract(epoch from r.finished_at - r.started_at))::double precision,
            sum(r.retries)
        from runs as r
        group by r.job, r.status
        on conflict on constraint run_tally_pkey do update
        set
            runs = t.runs + excluded.runs,
            seconds = t.seconds + excluded.seconds,
            retries = t.retries + excluded.retries
    ),
    duration_sums as (
        insert into expiration.duration_tally as t (job, bucket, runs, seconds)
        select
            r.job, expiration.duration_bucket(r.finished_at - r.started_at), count(*),
            sum(greatest(extract(epoch from r.finished_at - r.started_at), 0))
        from runs as r
        where r.driver <> 'sql' and r.status in ('completed', 'capped', 'stopped', 'failed')
        group by 1, 2
        on conflict on constraint duration_tally_pkey do update
        set runs = t.runs + excluded.runs, seconds = t.seconds + excluded.seconds
    )
    select count(*) into v_runs from runs as r;
    return v_runs;
end
$$;
ALTER FUNCTION expiration.tally_runs(max_runs integer) OWNER TO crm_owner;
COMMENT ON FUNCTION expiration.tally_runs(max_runs integer) IS 'Adds runs that are over, at most max_runs, and their batches to the tallies, all in one statement, so that the totals never move by it. Returns how many. Every start of a run does it, and upkeep; of two at once the second does nothing.';
CREATE FUNCTION notifications.dismiss_parked(id bigint) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    delete from notifications.parked as p where p.id = dismiss_parked.id;
    return found;
end
$$;
ALTER FUNCTION notifications.dismiss_parked(id bigint) OWNER TO crm_owner;
COMMENT ON FUNCTION notifications.dismiss_parked(id bigint) IS 'Takes a message off the list of those put aside, once somebody has seen to it: its cause is mended and the event was replayed, or it needs none. Returns whether it was there. Coming again, it is put aside again.';
CREATE FUNCTION notifications.file_notice(event_id uuid, lead_id uuid, tenant_id uuid, agent_user_id uuid, expired_at timestamp with time zone, topic text DEFAULT 'pin.crm.lead-expired.v1'::text) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into notifications.inbox as i (event_id, topic)
    values (file_notice.event_id, file_notice.topic)
    on conflict on constraint inbox_pkey do nothing;
    if not found then
        return false;
    end if;
    insert into notifications.notice (event_id, tenant_id, lead_id, agent_user_id, expired_at)
    values (
        file_notice.event_id, file_notice.tenant_id, file_notice.lead_id, file_notice.agent_user_id,
        file_notice.expired_at
    )
    on conflict on constraint notice_pkey do nothing;
    return true;
end
$$;
ALTER FUNCTION notifications.file_notice(event_id uuid, lead_id uuid, tenant_id uuid, agent_user_id uuid, expired_at timestamp with time zone, topic text) OWNER TO crm_owner;
COMMENT ON FUNCTION notifications.file_notice(event_id uuid, lead_id uuid, tenant_id uuid, agent_user_id uuid, expired_at timestamp with time zone, topic text) IS 'What the notifications do about a LeadExpiredEvent: a notice to the agent, to extend the lead. Returns false where the event has had its effect before.';
CREATE FUNCTION notifications.mark_failed(event_id uuid, error text) RETURNS void
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update notifications.notice as n
    set attempts = n.attempts + 1, last_attempt_at = clock_timestamp(), last_error = left(mark_failed.error, 1000)
    where n.event_id = mark_failed.event_id and n.sent_at is null;
end
$$;
ALTER FUNCTION notifications.mark_failed(event_id uuid, error text) OWNER TO crm_owner;
COMMENT ON FUNCTION notifications.mark_failed(event_id uuid, error text) IS 'A notice could not be sent; take_unsent gives it again after a while.';
CREATE FUNCTION notifications.mark_sent(event_id uuid) RETURNS void
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update notifications.notice as n
    set sent_at = clock_timestamp(), last_error = null
    where n.event_id = mark_sent.event_id and n.sent_at is null;
end
$$;
ALTER FUNCTION notifications.mark_sent(event_id uuid) OWNER TO crm_owner;
COMMENT ON FUNCTION notifications.mark_sent(event_id uuid) IS 'A notice was sent.';
CREATE FUNCTION notifications.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into notifications.parked (topic, partition, kafka_offset, event_id, message_key, headers, value, reason)
    values (
        park.topic, park.partition, park.kafka_offset, park.event_id, park.message_key, coalesce(park.headers, '{}'),
        park.value, park.reason
    )
    on conflict on constraint parked_once do nothing;
    return found;
end
$$;
ALTER FUNCTION notifications.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) OWNER TO crm_owner;
COMMENT ON FUNCTION notifications.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) IS 'Puts aside a message that cannot be understood, with the reason; once, however often it is tried.';
CREATE TABLE notifications.notice (
    event_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    lead_id uuid NOT NULL,
    agent_user_id uuid NOT NULL,
    kind text DEFAULT 'ExtendLead'::text NOT NULL,
    expired_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    sent_at timestamp with time zone,
    attempts integer DEFAULT 0 NOT NULL,
    last_attempt_at timestamp with time zone,
    last_error text,
    CONSTRAINT notice_attempts_is_not_negative CHECK ((attempts >= 0))
);
ALTER TABLE notifications.notice OWNER TO crm_owner;
COMMENT ON TABLE notifications.notice IS 'Notices to agents: this lead of yours has expired, extend it.';
COMMENT ON COLUMN notifications.notice.event_id IS 'The event that it stems from; the idempotency key of its sending.';
COMMENT ON COLUMN notifications.notice.tenant_id IS 'The tenant.';
COMMENT ON COLUMN notifications.notice.lead_id IS 'The lead that expired.';
COMMENT ON COLUMN notifications.notice.agent_user_id IS 'The agent to be told.';
COMMENT ON COLUMN notifications.notice.kind IS 'ExtendLead.';
COMMENT ON COLUMN notifications.notice.expired_at IS 'When the lead expired.';
COMMENT ON COLUMN notifications.notice.created_at IS 'When the notice was filed.';
COMMENT ON COLUMN notifications.notice.sent_at IS 'When it was sent; null as long as it was not.';
COMMENT ON COLUMN notifications.notice.attempts IS 'How often its sending was tried in vain.';
COMMENT ON COLUMN notifications.notice.last_attempt_at IS 'When it was last tried.';
COMMENT ON COLUMN notifications.notice.last_error IS 'What the last try failed with.';
CREATE FUNCTION notifications.take_unsent(max_notices integer DEFAULT 1) RETURNS SETOF notifications.notice
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    select n.*
    from notifications.notice as n
    where
        n.sent_at is null
        and (
            n.last_attempt_at is null
            or n.last_attempt_at + least(interval '1 second' * 2 ^ least(n.attempts - 1, 20), interval '5 minutes')
            <= clock_timestamp()
        )
    order by n.created_at, n.event_id
    limit take_unsent.max_notices
    for no key update skip locked;
end
$$;
ALTER FUNCTION notifications.take_unsent(max_notices integer) OWNER TO crm_owner;
COMMENT ON FUNCTION notifications.take_unsent(max_notices integer) IS 'Locks notices to be sent, oldest first, passing over those that others are sending and those that failed a moment ago (1 s, 2 s, 4 s ... at most 5 min). Send them, call mark_sent or mark_failed, then commit.';
CREATE FUNCTION outbox.close_gap(name text) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update outbox.slot as s set gap_since = null where s.name = close_gap.name and s.gap_since is not null;
    return found;
end
$$;
ALTER FUNCTION outbox.close_gap(name text) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.close_gap(name text) IS 'Notes that the events from before a slot was made have been compared with Kafka and sent where they were missing, or are given up: retention goes on. Returns whether there was a gap. pyrunner cdc recover does both.';
CREATE FUNCTION outbox.create_publication(name text DEFAULT 'crm_outbox'::text) RETURNS boolean
    LANGUAGE plpgsql STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_is_right constant boolean := outbox.is_publication_right(create_publication.name);
begin
    if v_is_right then
        return false;
    elsif not v_is_right then
        perform expiration.raise_error('publication_differs', create_publication.name);
    end if;
    execute format(
        'create publication %I for table outbox.event with (publish = %L, publish_via_partition_root = true)',
        create_publication.name, 'insert'
    );
    execute format('comment on publication %I is %L', create_publication.name, 'New events of the outbox, for Debezium.');
    return true;
end
$$;
ALTER FUNCTION outbox.create_publication(name text) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.create_publication(name text) IS 'Makes the publication that Debezium reads: INSERTs into outbox.event, as of the root whatever the partition. Returns whether it was made; false where it is there already; XP020 where one of that name publishes something else. Runs as the caller: a superuser, or a member of crm_owner with CREATE on the database.';
CREATE FUNCTION outbox.drop_partitions() RETURNS TABLE(partition text, estimated_events bigint, bytes bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '2s'
    AS $_$
declare
    v_slot record;
    v_confirmed pg_lsn;
    v_partition record;
    v_sealed pg_lsn;
    v_is_late boolean;
begin
    -- two of us at once would only get in each other's way
    if not pg_try_advisory_xact_lock(hashtext('outbox.drop_partitions')) then
        return;
    end if;
    for v_slot in select s.name, s.state, s.confirmed_flush_lsn, s.gap_since from outbox.slot_state as s order by s.name loop
        if v_slot.state in ('missing', 'lost') then
            perform expiration.raise_error('slot_lost', v_slot.name, v_slot.state);
        end if;
        -- its position says nothing about what was appended before it was made
        if v_slot.gap_since is not null then
            perform expiration.raise_error('slot_gap', v_slot.name);
        end if;
        update outbox.slot as s
        set delivered_lsn = v_slot.confirmed_flush_lsn
        where s.name = v_slot.name and s.delivered_lsn is distinct from v_slot.confirmed_flush_lsn;
        v_confirmed := least(v_confirmed, v_slot.confirmed_flush_lsn);
    end loop;
    -- no slot has ever read the outbox, so it is the only copy
    if v_confirmed is null then
        return;
    end if;
    for v_partition in
        select p.name, p.estimated_events, p.bytes
        from outbox.partition as p
        where not p.is_default and p.to_time < now() - (select s.retention from outbox.settings as s)
        order by p.from_time
    loop
        select s.lsn into v_sealed from outbox.sealed_partition as s where s.partition = v_partition.name;
        if not found then
            begin
                -- whoever has written to it holds a lock until its transaction ends
                execute format('lock table outbox.%I in share mode nowait', v_partition.name);
            exception
                when lock_not_available then
                    continue;
            end;
            insert into outbox.sealed_partition (partition, lsn) values (v_partition.name, pg_current_wal_insert_lsn());
        elsif v_confirmed >= v_sealed then
            lock table outbox.event in access exclusive mode;
            execute format('select exists (select from outbox.%I as e where e.lsn >= $1)', v_partition.name)
            into v_is_late using v_sealed;
            delete from outbox.sealed_partition as s where s.partition = v_partition.name;
            -- somebody gave a created_at of his own: seal it again
            continue when v_is_late;
            execute format('drop table outbox.%I', v_partition.name);
            partition := v_partition.name;
            estimated_events := v_partition.estimated_events;
            bytes := v_partition.bytes;
            return next;
        end if;
    end loop;
end
$_$;
ALTER FUNCTION outbox.drop_partitions() OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.drop_partitions() IS 'Drops partitions that are past outbox.settings.retention and that every slot of outbox.slot has confirmed; returns them. In two calls: the first seals a partition to which nobody writes, a later one drops it once the seal is confirmed. Raises XP016 while a registered slot is missing or lost: the outbox is then the only copy; XP021 while a slot may have left out what is older than it. Does nothing where no slot is registered. Waits at most 2 s for a lock.';
CREATE FUNCTION outbox.forget_slot(name text) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    delete from outbox.slot as s where s.name = forget_slot.name;
    return found;
end
$$;
ALTER FUNCTION outbox.forget_slot(name text) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.forget_slot(name text) IS 'Notes that a slot reads the outbox no longer, so that retention does not wait for it. Returns whether it was known. Drops no slot.';
CREATE TABLE outbox.event (
    seq bigint NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    event_type text NOT NULL,
    contract_version integer DEFAULT 1 NOT NULL,
    topic text NOT NULL,
    payload jsonb NOT NULL,
    correlation_id uuid,
    traceparent text,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    lsn pg_lsn DEFAULT pg_current_wal_insert_lsn() NOT NULL,
    replay_id uuid,
    CONSTRAINT event_contract_version_is_positive CHECK ((contract_version >= 1)),
    CONSTRAINT event_is_routable CHECK (((topic <> ''::text) AND (event_type <> ''::text) AND (aggregate_type <> ''::text))),
    CONSTRAINT event_payload_is_object CHECK ((jsonb_typeof(payload) = 'object'::text))
)
PARTITION BY RANGE (created_at);
ALTER TABLE outbox.event OWNER TO crm_owner;
COMMENT ON TABLE outbox.event IS 'Integration events, one row each, read from the log by Debezium. Append only: UPDATE is refused, partitions go whole.';
COMMENT ON COLUMN outbox.event.seq IS 'Order of insertion; gaps are normal, and it is not the order of commit.';
COMMENT ON COLUMN outbox.event.id IS 'Event id: what consumers tell repeats by. A replay appends the same id again.';
COMMENT ON COLUMN outbox.event.created_at IS 'Start of the transaction that appended it; chooses the partition.';
COMMENT ON COLUMN outbox.event.aggregate_type IS 'Lead or Booking.';
COMMENT ON COLUMN outbox.event.aggregate_id IS 'The lead or booking; the key in Kafka.';
COMMENT ON COLUMN outbox.event.tenant_id IS 'The tenant of the aggregate.';
COMMENT ON COLUMN outbox.event.event_type IS 'Name of the event, such as LeadExpiredEvent.';
COMMENT ON COLUMN outbox.event.contract_version IS 'Version of the payload''s contract.';
COMMENT ON COLUMN outbox.event.topic IS 'Kafka topic.';
COMMENT ON COLUMN outbox.event.payload IS 'The event as JSON: camelCase names, times in UTC by ISO 8601, no personal data.';
COMMENT ON COLUMN outbox.event.correlation_id IS 'The run that caused it.';
COMMENT ON COLUMN outbox.event.traceparent IS 'W3C trace context: the trace is the run, the parent span its batch.';
COMMENT ON COLUMN outbox.event.occurred_at IS 'When it happened in the domain: the cut-off of the cycle.';
COMMENT ON COLUMN outbox.event.lsn IS 'Position in the log at insertion: beyond a slot''s confirmed_flush_lsn it is not published yet.';
COMMENT ON COLUMN outbox.event.replay_id IS 'The replay that appended the event once more; null at its first publication.';
CREATE FUNCTION outbox.is_publication_right(name text) RETURNS boolean
    LANGUAGE sql STABLE STRICT
    BEGIN ATOMIC
 SELECT (p.pubinsert AND (NOT p.pubupdate) AND (NOT p.pubdelete) AND (NOT p.pubtruncate) AND p.pubviaroot AND (NOT p.puballtables) AND (( SELECT array_agg(r.prrelid) AS array_agg
            FROM pg_publication_rel r
           WHERE (r.prpubid = p.oid)) = ARRAY[('outbox.event'::regclass)::oid]) AND (NOT (EXISTS ( SELECT
            FROM pg_publication_namespace n
           WHERE (n.pnpubid = p.oid)))) AND (NOT (EXISTS ( SELECT
            FROM pg_publication_rel r
           WHERE ((r.prpubid = p.oid) AND ((r.prattrs IS NOT NULL) OR (r.prqual IS NOT NULL)))))))
    FROM pg_publication p
   WHERE (p.pubname = is_publication_right.name);
END;
ALTER FUNCTION outbox.is_publication_right(name text) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.is_publication_right(name text) IS 'Whether a publication publishes INSERTs into outbox.event, as of the root, and nothing else; null where there is none of that name.';
CREATE FUNCTION outbox.make_partitions(days_ahead integer DEFAULT NULL::integer) RETURNS TABLE(partition text, events_moved bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '2s'
    AS $$
declare
    v_ahead constant integer := coalesce(
        make_partitions.days_ahead, (select s.partitions_ahead from outbox.settings as s)
    );
    v_day date;
    v_moved bigint;
begin
    if v_ahead < 0 or v_ahead > 366 then
        perform expiration.raise_error(
            'invalid_argument', 'days_ahead', 'outbox.make_partitions', 'between 0 and 366', v_ahead::text
        );
    end if;
    -- two of us at once would only get in each other's way
    if not pg_try_advisory_xact_lock(hashtext('outbox.make_partitions')) then
        return;
    end if;
    for v_day in
        select d.day
        from (
            select (now() at time zone 'UTC')::date + n as day
            from generate_series(0, v_ahead) as n
            union
            -- events that fell into the default partition are brought home
            select (e.created_at at time zone 'UTC')::date
            from outbox.event_default as e
        ) as d (day)
        order by d.day
    loop
        partition := 'event_' || to_char(v_day, 'YYYYMMDD');
        continue when to_regclass(format('outbox.%I', partition)) is not null;
        -- made apart and attached: the root is then locked but weakly
        execute format('create table outbox.%I (like outbox.event including defaults including constraints)', partition);
        execute format(
            'comment on table outbox.%I is %L', partition, format('Events appended on %s (UTC).', v_day)
        );
        execute format(
            'alter table outbox.%I add constraint in_range check (created_at >= %L and created_at < %L)',
            partition, v_day::timestamptz, (v_day + 1)::timestamptz
        );
        -- an insert under way into the default partition must not find itself shut out of it
        if v_day <= (now() at time zone 'UTC')::date then
            lock table outbox.event in share row exclusive mode;
        end if;
        lock table outbox.event_default in access exclusive mode;
        execute format(
            'insert into outbox.%I select e.* from outbox.event_default as e where e.created_at >= %L and e.created_at < %L',
            partition, v_day::timestamptz, (v_day + 1)::timestamptz
        );
        get diagnostics v_moved = row_count;
        delete from outbox.event_default as e
        where e.created_at >= v_day::timestamptz and e.created_at < (v_day + 1)::timestamptz;
        execute format(
            'alter table outbox.event attach partition outbox.%I for values from (%L) to (%L)',
            partition, v_day::timestamptz, (v_day + 1)::timestamptz
        );
        execute format('alter table outbox.%I drop constraint in_range', partition);
        events_moved := v_moved;
        return next;
    end loop;
end
$$;
ALTER FUNCTION outbox.make_partitions(days_ahead integer) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.make_partitions(days_ahead integer) IS 'Makes the outbox''s partitions for today and days_ahead further days (default: outbox.settings), and moves home what fell into the default partition. Returns what it made. Waits at most 2 s for a lock.';
CREATE FUNCTION outbox.open_gap(name text) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update outbox.slot as s set gap_since = now() where s.name = open_gap.name and s.gap_since is null;
    return found;
end
$$;
ALTER FUNCTION outbox.open_gap(name text) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.open_gap(name text) IS 'Notes that a slot is about to be made anew: events from before may not have been delivered, so no partition is dropped until outbox.close_gap. Returns whether that is news.';
CREATE FUNCTION outbox.partition_start(partition oid) RETURNS timestamp with time zone
    LANGUAGE sql STABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET "DateStyle" TO 'ISO'
    RETURN (SELECT ("substring"(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\)'::text))::timestamp with time zone AS "substring" FROM pg_class c WHERE (c.oid = partition_start.partition));
ALTER FUNCTION outbox.partition_start(partition oid) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.partition_start(partition oid) IS 'From when on a partition of the outbox takes events; null for the default one.';
CREATE FUNCTION outbox.preview_replay(event_ids uuid[] DEFAULT NULL::uuid[], aggregate_id uuid DEFAULT NULL::uuid, topic text DEFAULT NULL::text, since timestamp with time zone DEFAULT NULL::timestamp with time zone, until timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF outbox.event
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if num_nonnulls(event_ids, aggregate_id, topic, since, until) = 0 then
        perform expiration.raise_error('nothing_chosen');
    end if;
    return query
    select o.*
    from (
        -- as it was first appended, however often it was replayed
        select distinct on (e.id) e.*
        from outbox.event as e
        where
            (preview_replay.event_ids is null or e.id = any(preview_replay.event_ids))
            and (preview_replay.aggregate_id is null or e.aggregate_id = preview_replay.aggregate_id)
            and (preview_replay.topic is null or e.topic = preview_replay.topic)
            and (preview_replay.since is null or e.created_at >= preview_replay.since)
            and (preview_replay.until is null or e.created_at < preview_replay.until)
        order by e.id, e.seq
    ) as o
    order by o.seq;
end
$$;
ALTER FUNCTION outbox.preview_replay(event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.preview_replay(event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone) IS 'The events that outbox.replay would append once more, each once, in the order in which they were first appended; everything given must hold. Only what the outbox still has: see outbox.settings.retention.';
CREATE FUNCTION outbox.purge_inboxes(max_ids integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_oldest timestamptz;
    v_chessboard bigint;
    v_notifications bigint;
begin
    if purge_inboxes.max_ids is null or purge_inboxes.max_ids < 1 then
        perform expiration.raise_error(
            'invalid_argument', 'max_ids', 'outbox.purge_inboxes', 'greater than 0',
            coalesce(purge_inboxes.max_ids::text, 'null')
        );
    end if;
    -- an event that the outbox still has may be replayed
    select now() - greatest(s.inbox_retention, s.retention + interval '30 days') into v_oldest
    from outbox.settings as s;
    delete from chessboard.inbox as i
    where i.ctid = any(array(
        select j.ctid from chessboard.inbox as j where j.received_at < v_oldest limit max_ids for update skip locked
    ));
    get diagnostics v_chessboard = row_count;
    delete from notifications.inbox as i
    where i.ctid = any(array(
        select j.ctid from notifications.inbox as j where j.received_at < v_oldest limit max_ids for update skip locked
    ));
    get diagnostics v_notifications = row_count;
    return v_chessboard + v_notifications;
end
$$;
ALTER FUNCTION outbox.purge_inboxes(max_ids integer) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.purge_inboxes(max_ids integer) IS 'Deletes ids of events that the consumers had longer ago than outbox.settings.inbox_retention, at most max_ids each; returns how many. An event that comes again after that changes nothing more: its booking is released, its notice filed.';
CREATE FUNCTION outbox.refuse_update() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform expiration.raise_error('append_only', tg_op, format('%I.%I', tg_table_schema, tg_table_name));
    return null;
end
$$;
ALTER FUNCTION outbox.refuse_update() OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.refuse_update() IS 'Trigger: an event that has been appended never changes.';
CREATE FUNCTION outbox.register_slot(name text, publication text, connector text) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_confirmed pg_lsn;
begin
    select r.confirmed_flush_lsn into v_confirmed
    from pg_replication_slots as r
    where r.slot_name = register_slot.name;
    insert into outbox.slot as s (name, publication, connector, gap_since)
    values (
        register_slot.name, register_slot.publication, register_slot.connector,
        case when exists (select from outbox.event as e where e.lsn < v_confirmed) then now() end
    )
    on conflict on constraint slot_pkey do update
    set publication = excluded.publication, connector = excluded.connector
    where (s.publication, s.connector) is distinct from (excluded.publication, excluded.connector);
    return found;
end
$$;
ALTER FUNCTION outbox.register_slot(name text, publication text, connector text) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.register_slot(name text, publication text, connector text) IS 'Notes that a slot reads the outbox: from now on no partition is dropped before it has confirmed it, nor while it is missing or lost, nor, where events lie before it, until these have been compared with Kafka (outbox.close_gap). Returns whether anything changed. Makes no slot.';
CREATE TABLE outbox.replay_log (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    requested_at timestamp with time zone DEFAULT now() NOT NULL,
    requested_by text DEFAULT SESSION_USER NOT NULL,
    reason text NOT NULL,
    event_ids uuid[],
    aggregate_id uuid,
    topic text,
    since timestamp with time zone,
    until timestamp with time zone,
    events bigint NOT NULL,
    CONSTRAINT replay_log_events_is_positive CHECK ((events > 0)),
    CONSTRAINT replay_log_has_a_reason CHECK ((reason <> ''::text))
);
ALTER TABLE outbox.replay_log OWNER TO crm_owner;
COMMENT ON TABLE outbox.replay_log IS 'Who had which events published once more, when and why.';
COMMENT ON COLUMN outbox.replay_log.id IS 'The replay: outbox.event.replay_id, and the header replayed in Kafka.';
COMMENT ON COLUMN outbox.replay_log.requested_at IS 'When.';
COMMENT ON COLUMN outbox.replay_log.requested_by IS 'By whom.';
COMMENT ON COLUMN outbox.replay_log.reason IS 'Why, in the words of whoever asked.';
COMMENT ON COLUMN outbox.replay_log.event_ids IS 'The events asked for by their ids.';
COMMENT ON COLUMN outbox.replay_log.aggregate_id IS 'The lead or booking whose events were asked for.';
COMMENT ON COLUMN outbox.replay_log.topic IS 'The topic whose events were asked for.';
COMMENT ON COLUMN outbox.replay_log.since IS 'Events appended from then on.';
COMMENT ON COLUMN outbox.replay_log.until IS 'Events appended before then.';
COMMENT ON COLUMN outbox.replay_log.events IS 'How many events it appended.';
CREATE FUNCTION outbox.replay(reason text, event_ids uuid[] DEFAULT NULL::uuid[], aggregate_id uuid DEFAULT NULL::uuid, topic text DEFAULT NULL::text, since timestamp with time zone DEFAULT NULL::timestamp with time zone, until timestamp with time zone DEFAULT NULL::timestamp with time zone, max_events integer DEFAULT 1000) RETURNS outbox.replay_log
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_id constant uuid := gen_random_uuid();
    v_events bigint;
    v_record outbox.replay_log;
begin
    if reason is null or max_events is null then
        perform expiration.raise_error(
            'null_argument', case when reason is null then 'reason' else 'max_events' end, 'outbox.replay'
        );
    elsif reason = '' or max_events < 1 then
        perform expiration.raise_error(
            'invalid_argument', case when reason = '' then 'reason' else 'max_events' end, 'outbox.replay',
            case when reason = '' then 'what somebody can read later' else 'greater than 0' end,
            case when reason = '' then 'empty' else max_events::text end
        );
    end if;
    insert into outbox.event (
        id, aggregate_type, aggregate_id, tenant_id, event_type, contract_version, topic, payload, correlation_id,
        traceparent, occurred_at, replay_id
    )
    select
        p.id, p.aggregate_type, p.aggregate_id, p.tenant_id, p.event_type, p.contract_version, p.topic, p.payload,
        p.correlation_id, p.traceparent, p.occurred_at, v_id
    from outbox.preview_replay(event_ids, aggregate_id, topic, since, until) as p
    order by p.seq
    -- one more tells that there are too many
    limit max_events::bigint + 1;
    get diagnostics v_events = row_count;
    if v_events > max_events then
        perform expiration.raise_error('too_many_events', max_events::text);
    elsif v_events = 0 then
        perform expiration.raise_error('no_such_event');
    end if;
    insert into outbox.replay_log (id, reason, event_ids, aggregate_id, topic, since, until, events)
    values (
        v_id, replay.reason, replay.event_ids, replay.aggregate_id, replay.topic, replay.since, replay.until, v_events
    )
    returning * into v_record;
    return v_record;
end
$$;
ALTER FUNCTION outbox.replay(reason text, event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone, max_events integer) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.replay(reason text, event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone, max_events integer) IS 'Publishes events once more: appends them again with their ids, so that consumers that have had them do nothing, and with replay_id, which Kafka carries as the header replayed. All that outbox.preview_replay shows, or nothing: XP017 beyond max_events. On record in outbox.replay_log.';
CREATE FUNCTION outbox.traceparent(run_id uuid, batch_number integer) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (((('00-'::text || replace((run_id)::text, '-'::text, ''::text)) || '-'::text) || substr(md5((((run_id)::text || ':'::text) || (batch_number)::text)), 1, 16)) || '-01'::text);
ALTER FUNCTION outbox.traceparent(run_id uuid, batch_number integer) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.traceparent(run_id uuid, batch_number integer) IS 'W3C trace context of a batch: trace id = run id, parent span id derived from run and batch number, sampled.';
CREATE FUNCTION outbox.utc(instant timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    RETURN to_char((instant AT TIME ZONE 'UTC'::text), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'::text);
ALTER FUNCTION outbox.utc(instant timestamp with time zone) OWNER TO crm_owner;
COMMENT ON FUNCTION outbox.utc(instant timestamp with time zone) IS 'An instant as events carry it: ISO 8601 in UTC, microseconds, Z.';
CREATE TABLE chessboard.inbox (
    event_id uuid NOT NULL,
    topic text NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE chessboard.inbox OWNER TO crm_owner;
COMMENT ON TABLE chessboard.inbox IS 'Events that have had their effect; one that comes again has none.';
COMMENT ON COLUMN chessboard.inbox.event_id IS 'The event.';
COMMENT ON COLUMN chessboard.inbox.topic IS 'The topic that it came by.';
COMMENT ON COLUMN chessboard.inbox.received_at IS 'When it had its effect.';
CREATE TABLE chessboard.parked (
    id bigint NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    kafka_offset bigint NOT NULL,
    event_id uuid,
    message_key text,
    headers jsonb NOT NULL,
    value bytea,
    reason text NOT NULL,
    parked_at timestamp with time zone DEFAULT now() NOT NULL,
    digest text GENERATED ALWAYS AS (md5(COALESCE(value, '\x'::bytea))) STORED NOT NULL
);
ALTER TABLE chessboard.parked OWNER TO crm_owner;
COMMENT ON TABLE chessboard.parked IS 'Messages that could not be understood, put aside so that those behind them go on.';
COMMENT ON COLUMN chessboard.parked.id IS 'Number.';
COMMENT ON COLUMN chessboard.parked.topic IS 'Kafka topic.';
COMMENT ON COLUMN chessboard.parked.partition IS 'Its partition.';
COMMENT ON COLUMN chessboard.parked.kafka_offset IS 'Offset within the partition.';
COMMENT ON COLUMN chessboard.parked.event_id IS 'The event, where the message told.';
COMMENT ON COLUMN chessboard.parked.message_key IS 'Key of the message.';
COMMENT ON COLUMN chessboard.parked.headers IS 'Headers of the message.';
COMMENT ON COLUMN chessboard.parked.value IS 'The message as it came.';
COMMENT ON COLUMN chessboard.parked.reason IS 'What was wrong with it.';
COMMENT ON COLUMN chessboard.parked.parked_at IS 'When it was put aside.';
COMMENT ON COLUMN chessboard.parked.digest IS 'MD5 of the message: with topic, partition and offset it makes the message known again.';
ALTER TABLE chessboard.parked ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME chessboard.parked_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW chessboard.parked_total AS
 SELECT p.topic,
    count(*) AS messages,
    max(p.parked_at) AS last_parked_at
   FROM chessboard.parked p
  GROUP BY p.topic;
ALTER TABLE chessboard.parked_total OWNER TO crm_owner;
COMMENT ON VIEW chessboard.parked_total IS 'Messages put aside, by topic.';
CREATE TABLE chessboard.release (
    booking_id uuid NOT NULL,
    property_object_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    phase text NOT NULL,
    event_id uuid,
    expired_at timestamp with time zone NOT NULL,
    released_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE chessboard.release OWNER TO crm_owner;
COMMENT ON TABLE chessboard.release IS 'Expired bookings whose property object the chessboard has freed for sale. An object with an expired booking that is not here is not for sale yet.';
COMMENT ON COLUMN chessboard.release.booking_id IS 'The booking that had kept the object.';
COMMENT ON COLUMN chessboard.release.property_object_id IS 'The property object.';
COMMENT ON COLUMN chessboard.release.tenant_id IS 'The tenant of both.';
COMMENT ON COLUMN chessboard.release.phase IS 'Reserve or Booking.';
COMMENT ON COLUMN chessboard.release.event_id IS 'The event that freed it; null for what had expired before there was a chessboard.';
COMMENT ON COLUMN chessboard.release.expired_at IS 'When the booking expired.';
COMMENT ON COLUMN chessboard.release.released_at IS 'When the object was freed.';
CREATE TABLE crm.deals (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    lead_id uuid NOT NULL,
    status text DEFAULT 'Active'::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE crm.deals OWNER TO crm_owner;
COMMENT ON TABLE crm.deals IS 'Deals of leads. The expiration of a lead leaves its deals as they are (INV-LEAD-4).';
COMMENT ON COLUMN crm.deals.id IS 'The deal.';
COMMENT ON COLUMN crm.deals.tenant_id IS 'The tenant it belongs to.';
COMMENT ON COLUMN crm.deals.lead_id IS 'The lead it grew from.';
COMMENT ON COLUMN crm.deals.status IS 'State of the deal; the engine neither reads nor writes it.';
COMMENT ON COLUMN crm.deals.created_at IS 'When the row was made.';
COMMENT ON COLUMN crm.deals.updated_at IS 'When it was last changed.';
CREATE VIEW crm.effective_bookings AS
 SELECT b.id,
    b.tenant_id,
    b.deal_id,
    b.property_object_id,
    b.status,
    b.reserve_expires_at,
    b.booking_expires_at,
    b.expired_at,
    b.created_at,
    b.updated_at,
    b.version,
        CASE
            WHEN ((b.status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text])) AND (b.reserve_expires_at < now())) THEN 'ReserveExpired'::text
            WHEN ((b.status = 'Booked'::text) AND (b.booking_expires_at < now())) THEN 'BookingExpired'::text
            ELSE b.status
        END AS effective_status,
    (((b.status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text])) AND (b.reserve_expires_at < now())) OR ((b.status = 'Booked'::text) AND (b.booking_expires_at < now()))) AS is_due
   FROM crm.bookings b;
ALTER TABLE crm.effective_bookings OWNER TO crm_owner;
COMMENT ON VIEW crm.effective_bookings IS 'Bookings as readers should see them: effective_status is the expired one as soon as the deadline has passed, whether or not the job has reached the row (is_due).';
CREATE VIEW crm.effective_leads AS
 SELECT l.id,
    l.tenant_id,
    l.executor_agent_user_id,
    l.primary_investor_user_id,
    l.status,
    l.expires_at,
    l.expired_at,
    l.created_at,
    l.updated_at,
    l.version,
        CASE
            WHEN ((l.status = 'Active'::text) AND (l.expires_at < now())) THEN 'Expired'::text
            ELSE l.status
        END AS effective_status,
    ((l.status = 'Active'::text) AND (l.expires_at < now())) AS is_due
   FROM crm.leads l;
ALTER TABLE crm.effective_leads OWNER TO crm_owner;
COMMENT ON VIEW crm.effective_leads IS 'Leads as readers should see them: effective_status is Expired as soon as the deadline has passed, whether or not the job has reached the row (is_due).';
CREATE TABLE crm.fixations (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    lead_id uuid NOT NULL,
    status text DEFAULT 'Active'::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE crm.fixations OWNER TO crm_owner;
COMMENT ON TABLE crm.fixations IS 'Fixations of clients to agents. The expiration of a lead leaves them as they are (INV-LEAD-4).';
COMMENT ON COLUMN crm.fixations.id IS 'The fixation.';
COMMENT ON COLUMN crm.fixations.tenant_id IS 'The tenant it belongs to.';
COMMENT ON COLUMN crm.fixations.lead_id IS 'The lead it fixes.';
COMMENT ON COLUMN crm.fixations.status IS 'State of the fixation; the engine neither reads nor writes it.';
COMMENT ON COLUMN crm.fixations.created_at IS 'When the row was made.';
COMMENT ON COLUMN crm.fixations.updated_at IS 'When it was last changed.';
CREATE TABLE expiration._yoyo_log (
    id character varying(36) NOT NULL,
    migration_hash character varying(64),
    migration_id character varying(255),
    operation character varying(10),
    username character varying(255),
    hostname character varying(255),
    comment character varying(255),
    created_at_utc timestamp without time zone
);
ALTER TABLE expiration._yoyo_log OWNER TO crm_owner;
COMMENT ON TABLE expiration._yoyo_log IS 'yoyo''s log: which migration was applied when, by whom, from where.';
CREATE TABLE expiration._yoyo_migration (
    migration_hash character varying(64) NOT NULL,
    migration_id character varying(255),
    applied_at_utc timestamp without time zone
);
ALTER TABLE expiration._yoyo_migration OWNER TO crm_owner;
COMMENT ON TABLE expiration._yoyo_migration IS 'yoyo''s record of the migrations that have been applied.';
CREATE TABLE expiration._yoyo_version (
    version integer NOT NULL,
    installed_at_utc timestamp without time zone
);
ALTER TABLE expiration._yoyo_version OWNER TO crm_owner;
COMMENT ON TABLE expiration._yoyo_version IS 'Version of the layout of yoyo''s own tables.';
CREATE TABLE expiration.batch_tally (
    job text NOT NULL,
    phase text NOT NULL,
    batches bigint NOT NULL,
    expired bigint NOT NULL,
    failed bigint NOT NULL,
    skipped_locked bigint NOT NULL,
    lateness_seconds numeric DEFAULT 0 NOT NULL
);
ALTER TABLE expiration.batch_tally OWNER TO crm_owner;
COMMENT ON TABLE expiration.batch_tally IS 'Counts of the batches of runs that are over, kept when history is purged.';
COMMENT ON COLUMN expiration.batch_tally.job IS 'The job.';
COMMENT ON COLUMN expiration.batch_tally.phase IS 'Lead, Reserve or Booking.';
COMMENT ON COLUMN expiration.batch_tally.batches IS 'Batches that claimed at least one item.';
COMMENT ON COLUMN expiration.batch_tally.expired IS 'Items expired.';
COMMENT ON COLUMN expiration.batch_tally.failed IS 'Failures of single items.';
COMMENT ON COLUMN expiration.batch_tally.skipped_locked IS 'Due items passed over because another transaction held them.';
COMMENT ON COLUMN expiration.batch_tally.lateness_seconds IS 'Lateness of the items expired, summed; infinite deadlines left out.';
CREATE VIEW expiration.batch_total AS
 SELECT j.name AS job,
    p.phase,
    (COALESCE(t.batches, (0)::bigint) + COALESCE(b.batches, (0)::bigint)) AS batches,
    (COALESCE(t.expired, (0)::bigint) + COALESCE(b.expired, (0)::bigint)) AS expired,
    (COALESCE(t.failed, (0)::bigint) + COALESCE(b.failed, (0)::bigint)) AS failed,
    (COALESCE(t.skipped_locked, (0)::bigint) + COALESCE(b.skipped_locked, (0)::bigint)) AS skipped_locked,
    ((COALESCE(t.lateness_seconds, (0)::numeric) + COALESCE(b.lateness_seconds, (0)::numeric)))::double precision AS lateness_seconds
   FROM (((expiration.job j
     CROSS JOIN LATERAL expiration.phases(j.name) p(phase, ordinal))
     LEFT JOIN expiration.batch_tally t ON (((j.name = t.job) AND (p.phase = t.phase))))
     LEFT JOIN ( SELECT h.phase,
            count(*) FILTER (WHERE (h.claimed > 0)) AS batches,
            sum(h.expired) AS expired,
            sum(h.failed) AS failed,
            sum(h.skipped_locked) AS skipped_locked,
            sum((h.lateness_seconds)::numeric) AS lateness_seconds
           FROM expiration.batch h
          WHERE (NOT h.tallied)
          GROUP BY h.phase) b ON ((p.phase = b.phase)));
ALTER TABLE expiration.batch_total OWNER TO crm_owner;
COMMENT ON VIEW expiration.batch_total IS 'Counts of all batches ever, purged ones too, by job and phase: they only grow. lateness_seconds sums as_of - deadline of the items expired.';
CREATE VIEW expiration.due_figures AS
 SELECT d.job,
    d.phase,
    d.due,
    d.oldest_at AS oldest_due_at,
        CASE
            WHEN (d.oldest_at IS NOT NULL) THEN GREATEST((EXTRACT(epoch FROM (clock_timestamp() - d.oldest_at)))::double precision, (0)::double precision)
            ELSE NULL::double precision
        END AS oldest_due_seconds
   FROM ( SELECT 'lead-expiration'::text AS job,
            'Lead'::text AS phase,
            ( SELECT count(*) AS count
                   FROM ( SELECT
                           FROM crm.leads l
                          WHERE ((l.status = 'Active'::text) AND (l.expires_at < now()))
                         LIMIT 1000) c) AS due,
            ( SELECT l.expires_at
                   FROM crm.leads l
                  WHERE ((l.status = 'Active'::text) AND (l.expires_at < now()) AND (l.expires_at > '-infinity'::timestamp with time zone))
                  ORDER BY l.expires_at
                 LIMIT 1) AS oldest_at
        UNION ALL
         SELECT 'booking-expiration'::text,
            'Reserve'::text,
            ( SELECT count(*) AS count
                   FROM ( SELECT
                           FROM crm.bookings b
                          WHERE ((b.status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text])) AND (b.reserve_expires_at < now()))
                         LIMIT 1000) c) AS count,
            ( SELECT b.reserve_expires_at
                   FROM crm.bookings b
                  WHERE ((b.status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text])) AND (b.reserve_expires_at < now()) AND (b.reserve_expires_at > '-infinity'::timestamp with time zone))
                  ORDER BY b.reserve_expires_at
                 LIMIT 1) AS reserve_expires_at
        UNION ALL
         SELECT 'booking-expiration'::text,
            'Booking'::text,
            ( SELECT count(*) AS count
                   FROM ( SELECT
                           FROM crm.bookings b
                          WHERE ((b.status = 'Booked'::text) AND (b.booking_expires_at < now()))
                         LIMIT 1000) c) AS count,
            ( SELECT b.booking_expires_at
                   FROM crm.bookings b
                  WHERE ((b.status = 'Booked'::text) AND (b.booking_expires_at < now()) AND (b.booking_expires_at > '-infinity'::timestamp with time zone))
                  ORDER BY b.booking_expires_at
                 LIMIT 1) AS booking_expires_at) d;
ALTER TABLE expiration.due_figures OWNER TO crm_owner;
COMMENT ON VIEW expiration.due_figures IS 'What is due at this moment, by job and phase, failed items among it: due counts up to 1000 and stops there, so that it costs the same in any backlog; oldest_due_seconds is the age of the oldest finite deadline passed, null when there is none. The exact count before a cycle is expiration.run.due_before.';
CREATE VIEW expiration.due_item AS
 SELECT 'lead-expiration'::text AS job,
    'Lead'::text AS phase,
    l.id AS item_id,
    l.tenant_id,
    l.expires_at AS deadline,
    l.xmin AS row_xmin
   FROM crm.leads l
  WHERE (l.status = 'Active'::text)
UNION ALL
 SELECT 'booking-expiration'::text AS job,
    'Reserve'::text AS phase,
    b.id AS item_id,
    b.tenant_id,
    b.reserve_expires_at AS deadline,
    b.xmin AS row_xmin
   FROM crm.bookings b
  WHERE (b.status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text]))
UNION ALL
 SELECT 'booking-expiration'::text AS job,
    'Booking'::text AS phase,
    b.id AS item_id,
    b.tenant_id,
    b.booking_expires_at AS deadline,
    b.xmin AS row_xmin
   FROM crm.bookings b
  WHERE (b.status = 'Booked'::text);
ALTER TABLE expiration.due_item OWNER TO crm_owner;
COMMENT ON VIEW expiration.due_item IS 'Items that can expire, with their deadlines, by job and phase. Due are those with deadline < as_of; the indexes of the claims serve it.';
CREATE TABLE expiration.duration_tally (
    job text NOT NULL,
    bucket integer NOT NULL,
    runs bigint NOT NULL,
    seconds numeric NOT NULL
);
ALTER TABLE expiration.duration_tally OWNER TO crm_owner;
COMMENT ON TABLE expiration.duration_tally IS 'Cycles that are over, by duration: those of drivers, neither skipped nor abandoned.';
COMMENT ON COLUMN expiration.duration_tally.job IS 'The job.';
COMMENT ON COLUMN expiration.duration_tally.bucket IS 'From 1: see expiration.duration_bounds; the last one has no bound.';
COMMENT ON COLUMN expiration.duration_tally.runs IS 'Cycles in this bucket alone.';
COMMENT ON COLUMN expiration.duration_tally.seconds IS 'Their durations, summed; one that a clock set back made negative counts as none.';
CREATE VIEW expiration.duration_histogram AS
 SELECT j.name AS job,
    COALESCE((expiration.duration_bounds())[b.bucket], 'Infinity'::double precision) AS le,
    (sum((COALESCE(t.runs, (0)::bigint) + COALESCE(w.runs, (0)::bigint))) OVER (PARTITION BY j.name ORDER BY b.bucket))::bigint AS runs,
    (sum((COALESCE(t.seconds, (0)::numeric) + COALESCE(w.seconds, (0)::numeric))) OVER (PARTITION BY j.name ORDER BY b.bucket))::double precision AS seconds
   FROM (((expiration.job j
     CROSS JOIN generate_series(1, (cardinality(expiration.duration_bounds()) + 1)) b(bucket))
     LEFT JOIN expiration.duration_tally t ON (((j.name = t.job) AND (b.bucket = t.bucket))))
     LEFT JOIN ( SELECT r.job,
            expiration.duration_bucket((r.finished_at - r.started_at)) AS bucket,
            count(*) AS runs,
            sum(GREATEST(EXTRACT(epoch FROM (r.finished_at - r.started_at)), (0)::numeric)) AS seconds
           FROM expiration.run r
          WHERE ((r.tally_number IS NULL) AND (r.driver <> 'sql'::text) AND (r.status = ANY (ARRAY['completed'::text, 'capped'::text, 'stopped'::text, 'failed'::text])))
          GROUP BY r.job, (expiration.duration_bucket((r.finished_at - r.started_at)))) w ON (((j.name = w.job) AND (b.bucket = w.bucket))));
ALTER TABLE expiration.duration_histogram OWNER TO crm_owner;
COMMENT ON VIEW expiration.duration_histogram IS 'Cycles ever that took no longer than le seconds, by job, counted up to the last bound, Infinity, with their durations summed likewise (seconds): they only grow. Neither skipped nor abandoned ones; what ran before version 0.3.0 was not counted.';
CREATE VIEW expiration.failed AS
 SELECT f.job,
    f.phase,
    f.item_id,
    d.tenant_id,
    d.deadline,
    f.first_failed_at,
    f.last_failed_at,
    f.attempts,
    f.sqlstate,
    f.message,
    f.run_id,
        CASE
            WHEN (d.item_id IS NULL) THEN 'no longer due'::text
            WHEN (d.row_xmin <> f.row_xmin) THEN 'freed for the next cycle'::text
            ELSE 'waiting'::text
        END AS state
   FROM (expiration.failed_item f
     LEFT JOIN expiration.due_item d ON (((f.job = d.job) AND (f.phase = d.phase) AND (f.item_id = d.item_id) AND (d.deadline < now()))));
ALTER TABLE expiration.failed OWNER TO crm_owner;
COMMENT ON VIEW expiration.failed IS 'Failed items with their deadlines, and what becomes of each: waiting (retried a bounded number a cycle), freed for the next cycle (the row was changed, or retry_failed was called), no longer due.';
CREATE VIEW expiration.history AS
 SELECT r.id,
    r.job,
    r.driver,
    r.instance,
    r.status,
    r.reason,
    r.as_of,
    r.started_at,
    r.finished_at,
    (COALESCE(r.finished_at, clock_timestamp()) - r.started_at) AS duration,
    r.due_before,
    r.expired,
    r.failed,
    r.skipped_locked,
    r.batches,
    r.retries,
    r.sqlstate,
    r.error,
    r.started_by,
    expiration.run_result(r.*) AS result
   FROM expiration.run r;
ALTER TABLE expiration.history OWNER TO crm_owner;
COMMENT ON VIEW expiration.history IS 'Runs with their durations and their results as the documents name them. Newest first: order by started_at desc.';
CREATE TABLE expiration.installation (
    version text NOT NULL,
    installed_at timestamp with time zone NOT NULL,
    installed_by text NOT NULL,
    last_migration text NOT NULL,
    checksum text NOT NULL
);
ALTER TABLE expiration.installation OWNER TO crm_owner;
COMMENT ON TABLE expiration.installation IS 'Versions that have been installed completely; the one installed last is in force.';
COMMENT ON COLUMN expiration.installation.version IS 'Version of pyrunner.';
COMMENT ON COLUMN expiration.installation.installed_at IS 'When it was last installed.';
COMMENT ON COLUMN expiration.installation.installed_by IS 'The role that installed it.';
COMMENT ON COLUMN expiration.installation.last_migration IS 'The last migration of that version.';
COMMENT ON COLUMN expiration.installation.checksum IS 'SHA-256 of the functions, views and grants.';
CREATE TABLE expiration.installed_file (
    file text NOT NULL,
    part integer NOT NULL,
    "position" integer NOT NULL,
    kind text NOT NULL,
    source text NOT NULL,
    checksum text NOT NULL,
    loaded_checksum text,
    loaded_after text,
    CONSTRAINT installed_file_kind_is_known CHECK ((kind = ANY (ARRAY['routine'::text, 'view'::text, 'trigger'::text])))
);
ALTER TABLE expiration.installed_file OWNER TO crm_owner;
COMMENT ON TABLE expiration.installed_file IS 'The files that functions, views and triggers were loaded from.';
COMMENT ON COLUMN expiration.installed_file.file IS 'Path below sql/functions.';
COMMENT ON COLUMN expiration.installed_file.part IS '2 for the triggers at the end of a file, else 1.';
COMMENT ON COLUMN expiration.installed_file."position" IS 'Place in the order of loading.';
COMMENT ON COLUMN expiration.installed_file.kind IS 'routine, view or trigger.';
COMMENT ON COLUMN expiration.installed_file.source IS 'The text.';
COMMENT ON COLUMN expiration.installed_file.checksum IS 'SHA-256 of the text.';
COMMENT ON COLUMN expiration.installed_file.loaded_checksum IS 'Checksum of the text that the objects were made from.';
COMMENT ON COLUMN expiration.installed_file.loaded_after IS 'The last migration at that time.';
CREATE TABLE expiration.installed_object (
    kind text NOT NULL,
    identity text NOT NULL,
    file text NOT NULL,
    part integer NOT NULL,
    "position" integer NOT NULL,
    fingerprint text NOT NULL
);
ALTER TABLE expiration.installed_object OWNER TO crm_owner;
COMMENT ON TABLE expiration.installed_object IS 'Functions, procedures, views and triggers that the installation made; nothing else is ever dropped by it.';
COMMENT ON COLUMN expiration.installed_object.kind IS 'function, procedure, view or trigger.';
COMMENT ON COLUMN expiration.installed_object.identity IS 'Name, as in a DROP statement.';
COMMENT ON COLUMN expiration.installed_object.file IS 'The file that made it.';
COMMENT ON COLUMN expiration.installed_object.part IS 'The part of the file.';
COMMENT ON COLUMN expiration.installed_object."position" IS 'Place in the order of making; dropped in reverse.';
COMMENT ON COLUMN expiration.installed_object.fingerprint IS 'MD5 of its definition, to notice that it was changed by hand.';
CREATE VIEW expiration.last_cycle AS
 SELECT j.name AS job,
    c.id AS run_id,
    c.status,
    c.reason,
    c.started_at,
    c.due_before,
    c.expired,
    c.failed,
    c.sqlstate,
    c.error,
    s.finished_at AS last_success_at
   FROM ((expiration.job j
     LEFT JOIN LATERAL ( SELECT r.id,
            r.job,
            r.driver,
            r.instance,
            r.status,
            r.reason,
            r.as_of,
            r.started_at,
            r.finished_at,
            r.expired,
            r.skipped_locked,
            r.failed,
            r.batches,
            r.due_before,
            r.batch_size,
            r.max_batches_per_cycle,
            r.max_duration,
            r.retries,
            r.sqlstate,
            r.error,
            r.stop_requested_at,
            r.stop_requested_by,
            r.started_by,
            r.backend_pid,
            r.backend_start,
            r.statement_start,
            r.tally_number
           FROM expiration.run r
          WHERE ((r.job = j.name) AND (r.driver <> 'sql'::text) AND (r.status <> ALL (ARRAY['skipped'::text, 'running'::text])))
          ORDER BY r.started_at DESC
         LIMIT 1) c ON (true))
     LEFT JOIN LATERAL ( SELECT r.finished_at
           FROM expiration.run r
          WHERE ((r.job = j.name) AND (r.status = ANY (ARRAY['completed'::text, 'capped'::text])) AND (r.driver <> 'sql'::text))
          ORDER BY r.finished_at DESC
         LIMIT 1) s ON (true));
ALTER TABLE expiration.last_cycle OWNER TO crm_owner;
COMMENT ON VIEW expiration.last_cycle IS 'The last cycle of each job that did something, skipped ones and bare batches left out, and the end of its last success; one row a job, nulls where there was none.';
CREATE VIEW expiration.job_figures AS
 SELECT j.name AS job,
    (EXTRACT(epoch FROM j.period))::double precision AS period_seconds,
    (EXTRACT(epoch FROM j.max_duration))::double precision AS max_duration_seconds,
    (j.paused_at IS NOT NULL) AS paused,
    ( SELECT count(*) AS count
           FROM expiration.run r
          WHERE ((r.status = 'running'::text) AND (r.job = j.name) AND expiration.is_alive(r.*))) AS running,
    last_run.run_id AS last_run_id,
    last_run.status AS last_run_status,
    last_run.reason AS last_run_reason,
    last_run.started_at AS last_run_at,
    last_run.sqlstate AS last_run_sqlstate,
    last_run.last_success_at,
    GREATEST((EXTRACT(epoch FROM (clock_timestamp() - COALESCE(last_run.last_success_at, j.created_at))))::double precision, (0)::double precision) AS seconds_since_last_success,
    COALESCE(backlog.due_before, (0)::bigint) AS backlog,
    COALESCE(last_run.expired, (0)::bigint) AS last_run_expired,
    COALESCE(last_run.failed, (0)::bigint) AS last_run_failed,
    failed.items AS failed_items,
    failed.oldest_at AS oldest_failed_at
   FROM (((expiration.job j
     JOIN expiration.last_cycle last_run ON ((j.name = last_run.job)))
     CROSS JOIN LATERAL ( SELECT count(*) AS items,
            min(f.first_failed_at) AS oldest_at
           FROM ( SELECT i.first_failed_at
                   FROM expiration.failed_item i
                  WHERE (i.job = j.name)
                 LIMIT 10000) f) failed)
     LEFT JOIN LATERAL ( SELECT b.due_before
           FROM ( SELECT r.due_before,
                    r.started_at
                   FROM expiration.run r
                  WHERE ((r.job = j.name) AND (r.status = 'running'::text))
                UNION ALL
                 SELECT last_run.due_before,
                    last_run.started_at) b
          WHERE (b.due_before IS NOT NULL)
          ORDER BY b.started_at DESC
         LIMIT 1) backlog ON (true));
ALTER TABLE expiration.job_figures OWNER TO crm_owner;
COMMENT ON VIEW expiration.job_figures IS 'One row a job, at the same cost at any length of history: its settings and state, its last cycle (skipped ones and bare batches left out), the seconds since its last success (since the job came into being when there was none), backlog (what was due before the latest cycle, exactly), failed items (up to 10000).';
CREATE TABLE expiration.lateness_tally (
    job text NOT NULL,
    phase text NOT NULL,
    bucket integer NOT NULL,
    items bigint NOT NULL
);
ALTER TABLE expiration.lateness_tally OWNER TO crm_owner;
COMMENT ON TABLE expiration.lateness_tally IS 'Items expired by the batches of runs that are over, by lateness.';
COMMENT ON COLUMN expiration.lateness_tally.job IS 'The job.';
COMMENT ON COLUMN expiration.lateness_tally.phase IS 'Lead, Reserve or Booking.';
COMMENT ON COLUMN expiration.lateness_tally.bucket IS 'From 1: see expiration.lateness_bounds; the last one has no bound.';
COMMENT ON COLUMN expiration.lateness_tally.items IS 'Items in this bucket alone.';
CREATE VIEW expiration.lateness_histogram AS
 SELECT p.job,
    p.phase,
    COALESCE((expiration.lateness_bounds())[b.bucket], 'Infinity'::double precision) AS le,
    (sum((COALESCE(t.items, (0)::bigint) + COALESCE(w.items, (0)::bigint))) OVER (PARTITION BY p.job, p.phase ORDER BY b.bucket))::bigint AS items
   FROM (((( SELECT j.name AS job,
            h.phase
           FROM (expiration.job j
             CROSS JOIN LATERAL expiration.phases(j.name) h(phase, ordinal))) p
     CROSS JOIN generate_series(1, (cardinality(expiration.lateness_bounds()) + 1)) b(bucket))
     LEFT JOIN expiration.lateness_tally t ON (((p.job = t.job) AND (p.phase = t.phase) AND (b.bucket = t.bucket))))
     LEFT JOIN ( SELECT h.phase,
            l.bucket,
            sum(l.items) AS items
           FROM (expiration.batch h
             CROSS JOIN LATERAL unnest(h.lateness) WITH ORDINALITY l(items, bucket))
          WHERE (NOT h.tallied)
          GROUP BY h.phase, l.bucket) w ON (((p.phase = w.phase) AND (b.bucket = w.bucket))));
ALTER TABLE expiration.lateness_histogram OWNER TO crm_owner;
COMMENT ON VIEW expiration.lateness_histogram IS 'Items ever expired no later than le seconds after their deadline (as_of - deadline), by job and phase, counted up to the last bound, Infinity: they only grow. What expired before version 0.3.0 was not counted.';
CREATE VIEW expiration.log_event AS
 SELECT r.id AS run_id,
    r.job,
    r.driver,
    r.started_at AS at,
    0 AS ordinal,
    'info'::text AS level,
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN 'job.started'::text
            ELSE 'cycle started'::text
        END AS event,
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN jsonb_build_object('jobRunId', r.id, 'Now', r.as_of)
            ELSE jsonb_build_object('runId', r.id, 'AsOf', r.as_of)
        END AS fields
   FROM expiration.run r
  WHERE ((r.status <> 'skipped'::text) AND (r.driver <> 'sql'::text))
UNION ALL
 SELECT r.id AS run_id,
    r.job,
    r.driver,
    b.finished_at AS at,
    (b.number * 2) AS ordinal,
    'info'::text AS level,
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN 'batch.processed'::text
            ELSE 'batch selected'::text
        END AS event,
    (
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN jsonb_build_object('jobRunId', r.id, 'size', b.expired, 'elapsedMs', round((EXTRACT(epoch FROM (b.finished_at - b.started_at)) * (1000)::numeric), 3))
            ELSE jsonb_build_object('runId', r.id, 'phase', b.phase, 'count', b.claimed, 'expired', b.expired)
        END || jsonb_build_object('batch', b.number, 'step', b.step, 'failed', b.failed, 'skippedLocked', b.skipped_locked)) AS fields
   FROM (expiration.batch b
     JOIN expiration.run r ON ((b.run_id = r.id)))
UNION ALL
 SELECT r.id AS run_id,
    r.job,
    r.driver,
    b.finished_at AS at,
    ((b.number * 2) + 1) AS ordinal,
    'error'::text AS level,
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN 'item.failed'::text
            ELSE 'item failed'::text
        END AS event,
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN jsonb_build_object('jobRunId', r.id, 'LeadId', f.id, 'error', f.message, 'sqlstate', f.sqlstate)
            ELSE jsonb_build_object('runId', r.id, 'BookingId', f.id, 'phase', b.phase, 'exception', f.message, 'sqlstate', f.sqlstate)
        END AS fields
   FROM ((expiration.batch b
     JOIN expiration.run r ON ((b.run_id = r.id)))
     CROSS JOIN LATERAL jsonb_to_recordset(b.failures) f(id uuid, sqlstate text, message text))
  WHERE (b.failures IS NOT NULL)
UNION ALL
 SELECT r.id AS run_id,
    r.job,
    r.driver,
    r.finished_at AS at,
    2147483647 AS ordinal,
        CASE
            WHEN (r.status = ANY (ARRAY['failed'::text, 'abandoned'::text])) THEN 'error'::text
            WHEN (r.status = ANY (ARRAY['capped'::text, 'skipped'::text, 'stopped'::text])) THEN 'warning'::text
            ELSE 'info'::text
        END AS level,
    (
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN 'job.'::text
            ELSE 'cycle '::text
        END ||
        CASE
            WHEN (r.status = ANY (ARRAY['failed'::text, 'abandoned'::text, 'skipped'::text])) THEN r.status
            ELSE 'completed'::text
        END) AS event,
    (
        CASE
            WHEN (r.status = ANY (ARRAY['failed'::text, 'abandoned'::text, 'skipped'::text])) THEN jsonb_build_object('error', r.error, 'sqlstate', r.sqlstate)
            WHEN (r.job = 'lead-expiration'::text) THEN jsonb_build_object('ExpiredCount', r.expired, 'BatchesProcessed', r.batches, 'cappedByMaxBatches', (r.reason = 'capped'::text), 'elapsedMs', round((EXTRACT(epoch FROM (r.finished_at - r.started_at)) * (1000)::numeric), 3))
            ELSE ((expiration.run_result(r.*) - 'SkippedLockedCount'::text) || jsonb_build_object('SkippedLocked', r.skipped_locked))
        END || jsonb_build_object(
        CASE
            WHEN (r.job = 'lead-expiration'::text) THEN 'jobRunId'::text
            ELSE 'runId'::text
        END, r.id, 'status', r.status, 'reason', r.reason, 'failed', r.failed)) AS fields
   FROM expiration.run r
  WHERE ((r.finished_at IS NOT NULL) AND (r.driver <> 'sql'::text));
ALTER TABLE expiration.log_event OWNER TO crm_owner;
COMMENT ON VIEW expiration.log_event IS 'The documents'' log events (L15, B12) of every run, whoever drove it: order by at, ordinal. What the runner prints and pg_cron''s runs leave behind is the same.';
CREATE TABLE expiration.migration_checksum (
    migration_id text NOT NULL,
    checksum text NOT NULL
);
ALTER TABLE expiration.migration_checksum OWNER TO crm_owner;
COMMENT ON TABLE expiration.migration_checksum IS 'What the applied migrations said, to notice that a file was edited afterwards.';
COMMENT ON COLUMN expiration.migration_checksum.migration_id IS 'The migration, named as by yoyo.';
COMMENT ON COLUMN expiration.migration_checksum.checksum IS 'SHA-256 of the file.';
CREATE TABLE expiration.run_tally (
    job text NOT NULL,
    status text NOT NULL,
    runs bigint NOT NULL,
    seconds double precision NOT NULL,
    retries bigint DEFAULT 0 NOT NULL
);
ALTER TABLE expiration.run_tally OWNER TO crm_owner;
COMMENT ON TABLE expiration.run_tally IS 'Counts of the runs that are over, kept when history is purged.';
COMMENT ON COLUMN expiration.run_tally.job IS 'The job.';
COMMENT ON COLUMN expiration.run_tally.status IS 'How the runs ended.';
COMMENT ON COLUMN expiration.run_tally.runs IS 'Number of runs.';
COMMENT ON COLUMN expiration.run_tally.seconds IS 'Their durations, summed.';
COMMENT ON COLUMN expiration.run_tally.retries IS 'Batches tried again after a transient fault.';
CREATE VIEW expiration.run_total AS
 SELECT t.job,
    t.status,
    (sum(t.runs))::bigint AS runs,
    sum(t.seconds) AS seconds,
    (sum(t.retries))::bigint AS retries
   FROM ( SELECT g.job,
            g.status,
            g.runs,
            g.seconds,
            g.retries
           FROM expiration.run_tally g
        UNION ALL
         SELECT r.job,
            r.status,
            count(*) AS count,
            (sum(EXTRACT(epoch FROM (r.finished_at - r.started_at))))::double precision AS sum,
            sum(r.retries) AS sum
           FROM expiration.run r
          WHERE ((r.tally_number IS NULL) AND (r.finished_at IS NOT NULL))
          GROUP BY r.job, r.status) t
  GROUP BY t.job, t.status;
ALTER TABLE expiration.run_total OWNER TO crm_owner;
COMMENT ON VIEW expiration.run_total IS 'Counts and summed durations (seconds) of all finished runs ever, purged ones too, by job and status: they only grow. retries counts batches tried again after a transient fault.';
CREATE VIEW expiration.status AS
 SELECT j.name AS job,
    j.period,
    (j.paused_at IS NOT NULL) AS paused,
    COALESCE(running.runs, (0)::bigint) AS running,
    running.since AS running_since,
    last_run.started_at AS last_run_at,
    last_run.status AS last_run_status,
    last_run.reason AS last_run_reason,
    last_run.last_success_at,
    (EXTRACT(epoch FROM (clock_timestamp() - last_run.last_success_at)))::double precision AS seconds_since_last_success,
    due.items AS due,
    due.oldest AS oldest_due_at,
        CASE
            WHEN isfinite(due.oldest) THEN (clock_timestamp() - due.oldest)
            ELSE NULL::interval
        END AS oldest_due_age,
    failed.items AS failed_items,
        CASE
            WHEN (j.paused_at IS NOT NULL) THEN format('paused by %s since %s%s'::text, j.paused_by, j.paused_at, (': '::text || j.paused_reason))
            WHEN (running.runs > 0) THEN NULL::text
            WHEN (last_run.run_id IS NULL) THEN 'it has never run: no driver has called it'::text
            WHEN (last_run.status = 'failed'::text) THEN format('the last run failed with %s: %s'::text, last_run.sqlstate, last_run.error)
            WHEN ((last_run.failed > 0) AND (last_run.expired = 0)) THEN format('the last run expired nothing, and %s items failed: see expiration.failed'::text, last_run.failed)
            WHEN (last_run.started_at < ((clock_timestamp() - ((2)::double precision * j.period)) - '00:01:00'::interval)) THEN format('no driver has called it since %s: are pg_cron or pyrunner worker at work?'::text, last_run.started_at)
            ELSE NULL::text
        END AS why_not
   FROM ((((expiration.job j
     LEFT JOIN LATERAL ( SELECT count(*) AS runs,
            min(r.started_at) AS since
           FROM expiration.run r
          WHERE ((r.job = j.name) AND (r.status = 'running'::text) AND expiration.is_alive(r.*))) running ON (true))
     JOIN expiration.last_cycle last_run ON ((j.name = last_run.job)))
     LEFT JOIN LATERAL ( SELECT count(*) AS items,
            min(d.deadline) AS oldest
           FROM expiration.due_item d
          WHERE ((d.job = j.name) AND (d.deadline < now()))) due ON (true))
     LEFT JOIN LATERAL ( SELECT count(*) AS items
           FROM expiration.failed_item f
          WHERE (f.job = j.name)) failed ON (true));
ALTER TABLE expiration.status OWNER TO crm_owner;
COMMENT ON VIEW expiration.status IS 'One row a job: its last runs, what is due and since when (failed items among it), and why it does not run when it does not.';
CREATE SEQUENCE expiration.tally_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER TABLE expiration.tally_number_seq OWNER TO crm_owner;
COMMENT ON SEQUENCE expiration.tally_number_seq IS 'Numbers of tallied runs.';
CREATE TABLE expiration.trace_position (
    name text NOT NULL,
    tally_number bigint NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE expiration.trace_position OWNER TO crm_owner;
COMMENT ON TABLE expiration.trace_position IS 'How far the runs have been sent as traces, one row a destination.';
COMMENT ON COLUMN expiration.trace_position.name IS 'The destination.';
COMMENT ON COLUMN expiration.trace_position.tally_number IS 'expiration.run.tally_number of the last run sent.';
COMMENT ON COLUMN expiration.trace_position.updated_at IS 'When it was last moved on.';
CREATE TABLE expiration.yoyo_lock (
    locked integer DEFAULT 1 NOT NULL,
    ctime timestamp without time zone,
    pid integer NOT NULL
);
ALTER TABLE expiration.yoyo_lock OWNER TO crm_owner;
COMMENT ON TABLE expiration.yoyo_lock IS 'yoyo''s lock: a row while migrations are being applied.';
CREATE TABLE notifications.inbox (
    event_id uuid NOT NULL,
    topic text NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE notifications.inbox OWNER TO crm_owner;
COMMENT ON TABLE notifications.inbox IS 'Events that have had their effect; one that comes again has none.';
COMMENT ON COLUMN notifications.inbox.event_id IS 'The event.';
COMMENT ON COLUMN notifications.inbox.topic IS 'The topic that it came by.';
COMMENT ON COLUMN notifications.inbox.received_at IS 'When it had its effect.';
CREATE TABLE notifications.parked (
    id bigint NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    kafka_offset bigint NOT NULL,
    event_id uuid,
    message_key text,
    headers jsonb NOT NULL,
    value bytea,
    reason text NOT NULL,
    parked_at timestamp with time zone DEFAULT now() NOT NULL,
    digest text GENERATED ALWAYS AS (md5(COALESCE(value, '\x'::bytea))) STORED NOT NULL
);
ALTER TABLE notifications.parked OWNER TO crm_owner;
COMMENT ON TABLE notifications.parked IS 'Messages that could not be understood, put aside so that those behind them go on.';
COMMENT ON COLUMN notifications.parked.id IS 'Number.';
COMMENT ON COLUMN notifications.parked.topic IS 'Kafka topic.';
COMMENT ON COLUMN notifications.parked.partition IS 'Its partition.';
COMMENT ON COLUMN notifications.parked.kafka_offset IS 'Offset within the partition.';
COMMENT ON COLUMN notifications.parked.event_id IS 'The event, where the message told.';
COMMENT ON COLUMN notifications.parked.message_key IS 'Key of the message.';
COMMENT ON COLUMN notifications.parked.headers IS 'Headers of the message.';
COMMENT ON COLUMN notifications.parked.value IS 'The message as it came.';
COMMENT ON COLUMN notifications.parked.reason IS 'What was wrong with it.';
COMMENT ON COLUMN notifications.parked.parked_at IS 'When it was put aside.';
COMMENT ON COLUMN notifications.parked.digest IS 'MD5 of the message: with topic, partition and offset it makes the message known again.';
ALTER TABLE notifications.parked ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME notifications.parked_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW notifications.parked_total AS
 SELECT p.topic,
    count(*) AS messages,
    max(p.parked_at) AS last_parked_at
   FROM notifications.parked p
  GROUP BY p.topic;
ALTER TABLE notifications.parked_total OWNER TO crm_owner;
COMMENT ON VIEW notifications.parked_total IS 'Messages put aside, by topic.';
CREATE TABLE outbox.event_default (
    seq bigint NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    event_type text NOT NULL,
    contract_version integer DEFAULT 1 NOT NULL,
    topic text NOT NULL,
    payload jsonb NOT NULL,
    correlation_id uuid,
    traceparent text,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    lsn pg_lsn DEFAULT pg_current_wal_insert_lsn() NOT NULL,
    replay_id uuid,
    CONSTRAINT event_contract_version_is_positive CHECK ((contract_version >= 1)),
    CONSTRAINT event_is_routable CHECK (((topic <> ''::text) AND (event_type <> ''::text) AND (aggregate_type <> ''::text))),
    CONSTRAINT event_payload_is_object CHECK ((jsonb_typeof(payload) = 'object'::text))
);
ALTER TABLE outbox.event_default OWNER TO crm_owner;
COMMENT ON TABLE outbox.event_default IS 'Catches events for which upkeep made no partition; should be empty.';
ALTER TABLE outbox.event ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outbox.event_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW outbox.partition AS
 SELECT (c.relname)::text AS name,
    p.is_default,
    p.from_time,
    (p.from_time + '1 day'::interval) AS to_time,
    (GREATEST(c.reltuples, (0)::real))::bigint AS estimated_events,
    pg_total_relation_size((c.oid)::regclass) AS bytes
   FROM ((pg_inherits i
     JOIN pg_class c ON ((i.inhrelid = c.oid)))
     CROSS JOIN LATERAL ( SELECT (pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT'::text) AS is_default,
            outbox.partition_start(c.oid) AS from_time) p)
  WHERE (i.inhparent = ('outbox.event'::regclass)::oid);
ALTER TABLE outbox.partition OWNER TO crm_owner;
COMMENT ON VIEW outbox.partition IS 'Partitions of the outbox: the day each covers, its size, its events by the planner''s estimate.';
CREATE VIEW outbox.partition_figures AS
 SELECT count(*) FILTER (WHERE (NOT p.is_default)) AS partitions,
    count(*) FILTER (WHERE ((NOT p.is_default) AND (p.from_time > now()))) AS partitions_ahead,
    min(p.from_time) AS oldest_from,
    (COALESCE(sum(p.bytes), (0)::numeric))::bigint AS bytes,
    ( SELECT count(*) AS count
           FROM ( SELECT
                   FROM outbox.event_default d
                 LIMIT 1000) c) AS default_events
   FROM outbox.partition p;
ALTER TABLE outbox.partition_figures OWNER TO crm_owner;
COMMENT ON VIEW outbox.partition_figures IS 'The outbox''s partitions in one row: how many are made ahead of today, the oldest day kept, bytes on disk, events in the default partition (up to 1000), where none should be.';
CREATE TABLE outbox.sealed_partition (
    partition text NOT NULL,
    sealed_at timestamp with time zone DEFAULT now() NOT NULL,
    lsn pg_lsn NOT NULL
);
ALTER TABLE outbox.sealed_partition OWNER TO crm_owner;
COMMENT ON TABLE outbox.sealed_partition IS 'Partitions past their retention to which nobody was writing: once every slot has confirmed the position of the seal, all their events are delivered.';
COMMENT ON COLUMN outbox.sealed_partition.partition IS 'The partition, a table of schema outbox.';
COMMENT ON COLUMN outbox.sealed_partition.sealed_at IS 'When it was sealed.';
COMMENT ON COLUMN outbox.sealed_partition.lsn IS 'Position in the log then; every transaction that had written to the partition had committed before it.';
CREATE TABLE outbox.settings (
    only_row boolean DEFAULT true NOT NULL,
    partitions_ahead integer DEFAULT 7 NOT NULL,
    retention interval DEFAULT '7 days'::interval NOT NULL,
    inbox_retention interval DEFAULT '90 days'::interval NOT NULL,
    CONSTRAINT settings_has_one_row CHECK (only_row),
    CONSTRAINT settings_inbox_retention_is_sane CHECK ((inbox_retention >= '30 days'::interval)),
    CONSTRAINT settings_partitions_ahead_is_sane CHECK (((partitions_ahead >= 1) AND (partitions_ahead <= 366))),
    CONSTRAINT settings_retention_is_positive CHECK ((retention > '00:00:00'::interval))
);
ALTER TABLE outbox.settings OWNER TO crm_owner;
COMMENT ON TABLE outbox.settings IS 'Settings of the outbox: one row.';
COMMENT ON COLUMN outbox.settings.only_row IS 'Keeps the table to one row.';
COMMENT ON COLUMN outbox.settings.partitions_ahead IS 'How many days of partitions upkeep keeps ready beyond today.';
COMMENT ON COLUMN outbox.settings.retention IS 'How long delivered partitions are kept.';
COMMENT ON COLUMN outbox.settings.inbox_retention IS 'How long consumers keep the ids of events that had their effect; longer than Kafka and the outbox keep the events.';
CREATE TABLE outbox.slot (
    name text NOT NULL,
    publication text NOT NULL,
    connector text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    created_by text DEFAULT SESSION_USER NOT NULL,
    gap_since timestamp with time zone,
    delivered_lsn pg_lsn
);
ALTER TABLE outbox.slot OWNER TO crm_owner;
COMMENT ON TABLE outbox.slot IS 'Replication slots that read the outbox and are expected to be there: as long as one is missing or lost, no partition is dropped.';
COMMENT ON COLUMN outbox.slot.name IS 'The slot, as in pg_replication_slots.';
COMMENT ON COLUMN outbox.slot.publication IS 'The publication that it reads.';
COMMENT ON COLUMN outbox.slot.connector IS 'The connector that reads from it.';
COMMENT ON COLUMN outbox.slot.created_at IS 'When it was registered.';
COMMENT ON COLUMN outbox.slot.created_by IS 'Who registered it.';
COMMENT ON COLUMN outbox.slot.gap_since IS 'Since when older events may not have been delivered: the slot was made when they were there already, and reads none of them. Null once outbox.close_gap was called; until then no partition is dropped.';
COMMENT ON COLUMN outbox.slot.delivered_lsn IS 'Up to where the slot had confirmed everything when upkeep last looked: known even when the slot is gone. Not moved while there may be a gap.';
CREATE VIEW outbox.slot_state AS
 SELECT s.name,
    s.publication,
    s.connector,
        CASE
            WHEN (r.slot_name IS NULL) THEN 'missing'::text
            WHEN (r.wal_status = 'lost'::text) THEN 'lost'::text
            WHEN r.active THEN 'active'::text
            ELSE 'inactive'::text
        END AS state,
    (r.plugin)::text AS plugin,
    r.active,
    r.wal_status,
    r.restart_lsn,
    r.confirmed_flush_lsn,
    (pg_wal_lsn_diff(w.lsn, r.restart_lsn))::bigint AS retained_bytes,
    (pg_wal_lsn_diff(w.lsn, r.confirmed_flush_lsn))::bigint AS lag_bytes,
    r.safe_wal_size,
    s.gap_since
   FROM ((outbox.slot s
     LEFT JOIN pg_replication_slots r ON (((s.name = r.slot_name) AND (r.slot_type = 'logical'::text) AND (r.database = current_database()))))
     CROSS JOIN LATERAL ( SELECT
                CASE
                    WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                    ELSE pg_current_wal_lsn()
                END AS lsn) w);
ALTER TABLE outbox.slot_state OWNER TO crm_owner;
COMMENT ON VIEW outbox.slot_state IS 'Slots of the outbox, each as it is now: state missing, lost, inactive or active; WAL held back for it (retained_bytes), not yet confirmed (lag_bytes), left before it is lost (safe_wal_size); gap_since as in outbox.slot. Reads no event.';
CREATE VIEW outbox.slot_figures AS
 SELECT s.name,
    s.connector,
    s.state,
    s.wal_status,
    (pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0'::pg_lsn))::bigint AS confirmed_bytes,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    b.events AS backlog_events,
        CASE
            WHEN (b.events IS NOT NULL) THEN GREATEST((EXTRACT(epoch FROM (clock_timestamp() - b.oldest_at)))::double precision, (0)::double precision)
            ELSE NULL::double precision
        END AS backlog_seconds
   FROM (outbox.slot_state s
     LEFT JOIN LATERAL ( SELECT count(*) AS events,
            min(c.created_at) AS oldest_at
           FROM ( SELECT e.created_at
                   FROM outbox.event e
                  WHERE (e.lsn >= s.confirmed_flush_lsn)
                 LIMIT 10000) c) b ON ((s.confirmed_flush_lsn IS NOT NULL)));
ALTER TABLE outbox.slot_figures OWNER TO crm_owner;
COMMENT ON VIEW outbox.slot_figures IS 'As outbox.slot_status, at a bounded cost: backlog_events counts up to 10000 and stops there. confirmed_bytes only grows, and stands still when nothing is confirmed any more, the connector''s heartbeat included.';
CREATE VIEW outbox.slot_status AS
 SELECT s.name,
    s.publication,
    s.connector,
    s.state,
    s.plugin,
    s.active,
    s.wal_status,
    s.restart_lsn,
    s.confirmed_flush_lsn,
    s.retained_bytes,
    s.lag_bytes,
    s.safe_wal_size,
    b.events AS backlog_events,
    b.oldest_at AS oldest_backlog_at,
    (EXTRACT(epoch FROM (clock_timestamp() - b.oldest_at)))::double precision AS backlog_seconds,
    s.gap_since
   FROM (outbox.slot_state s
     LEFT JOIN LATERAL ( SELECT count(*) AS events,
            min(e.created_at) AS oldest_at
           FROM outbox.event e
          WHERE (e.lsn >= s.confirmed_flush_lsn)) b ON ((s.confirmed_flush_lsn IS NOT NULL)));
ALTER TABLE outbox.slot_status OWNER TO crm_owner;
COMMENT ON VIEW outbox.slot_status IS 'outbox.slot_state with the events beyond each slot''s confirmed position, all counted. An event whose transaction was open for long may be confirmed later than its position says.';
ALTER TABLE ONLY outbox.event ATTACH PARTITION outbox.event_default DEFAULT;
ALTER TABLE ONLY chessboard.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY chessboard.parked
    ADD CONSTRAINT parked_once UNIQUE (topic, partition, kafka_offset, digest);
ALTER TABLE ONLY chessboard.parked
    ADD CONSTRAINT parked_pkey PRIMARY KEY (id);
ALTER TABLE ONLY chessboard.release
    ADD CONSTRAINT release_pkey PRIMARY KEY (booking_id);
ALTER TABLE ONLY crm.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (id);
ALTER TABLE ONLY crm.bookings
    ADD CONSTRAINT bookings_pkey PRIMARY KEY (id);
ALTER TABLE ONLY crm.deal_timeline
    ADD CONSTRAINT deal_timeline_pkey PRIMARY KEY (id);
ALTER TABLE ONLY crm.deals
    ADD CONSTRAINT deals_pkey PRIMARY KEY (id);
ALTER TABLE ONLY crm.fixations
    ADD CONSTRAINT fixations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY crm.leads
    ADD CONSTRAINT leads_pkey PRIMARY KEY (id);
ALTER TABLE ONLY expiration._yoyo_log
    ADD CONSTRAINT _yoyo_log_pkey PRIMARY KEY (id);
ALTER TABLE ONLY expiration._yoyo_migration
    ADD CONSTRAINT _yoyo_migration_pkey PRIMARY KEY (migration_hash);
ALTER TABLE ONLY expiration._yoyo_version
    ADD CONSTRAINT _yoyo_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY expiration.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (run_id, number);
ALTER TABLE ONLY expiration.batch_tally
    ADD CONSTRAINT batch_tally_pkey PRIMARY KEY (job, phase);
ALTER TABLE ONLY expiration.duration_tally
    ADD CONSTRAINT duration_tally_pkey PRIMARY KEY (job, bucket);
ALTER TABLE ONLY expiration.failed_item
    ADD CONSTRAINT failed_item_pkey PRIMARY KEY (item_id, job, phase);
ALTER TABLE ONLY expiration.installation
    ADD CONSTRAINT installation_pkey PRIMARY KEY (version);
ALTER TABLE ONLY expiration.installed_file
    ADD CONSTRAINT installed_file_pkey PRIMARY KEY (file, part);
ALTER TABLE ONLY expiration.installed_object
    ADD CONSTRAINT installed_object_pkey PRIMARY KEY (kind, identity);
ALTER TABLE ONLY expiration.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (name);
ALTER TABLE ONLY expiration.lateness_tally
    ADD CONSTRAINT lateness_tally_pkey PRIMARY KEY (job, phase, bucket);
ALTER TABLE ONLY expiration.migration_checksum
    ADD CONSTRAINT migration_checksum_pkey PRIMARY KEY (migration_id);
ALTER TABLE ONLY expiration.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (id);
ALTER TABLE ONLY expiration.run_tally
    ADD CONSTRAINT run_tally_pkey PRIMARY KEY (job, status);
ALTER TABLE ONLY expiration.trace_position
    ADD CONSTRAINT trace_position_pkey PRIMARY KEY (name);
ALTER TABLE ONLY expiration.yoyo_lock
    ADD CONSTRAINT yoyo_lock_pkey PRIMARY KEY (locked);
ALTER TABLE ONLY notifications.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY notifications.notice
    ADD CONSTRAINT notice_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY notifications.parked
    ADD CONSTRAINT parked_once UNIQUE (topic, partition, kafka_offset, digest);
ALTER TABLE ONLY notifications.parked
    ADD CONSTRAINT parked_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (created_at, seq);
ALTER TABLE ONLY outbox.event_default
    ADD CONSTRAINT event_default_pkey PRIMARY KEY (created_at, seq);
ALTER TABLE ONLY outbox.replay_log
    ADD CONSTRAINT replay_log_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.sealed_partition
    ADD CONSTRAINT sealed_partition_pkey PRIMARY KEY (partition);
ALTER TABLE ONLY outbox.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY outbox.slot
    ADD CONSTRAINT slot_pkey PRIMARY KEY (name);
CREATE INDEX ix_inbox_received_at ON chessboard.inbox USING brin (received_at) WITH (pages_per_range='32');
COMMENT ON INDEX chessboard.ix_inbox_received_at IS 'Ids that may go.';
CREATE INDEX ix_release_property_object_id ON chessboard.release USING btree (property_object_id);
COMMENT ON INDEX chessboard.ix_release_property_object_id IS 'The releases of a property object.';
CREATE INDEX ix_audit_log_entity_id ON crm.audit_log USING btree (entity_id);
COMMENT ON INDEX crm.ix_audit_log_entity_id IS 'The history of an entity.';
CREATE INDEX ix_bookings_booking_expires_at ON crm.bookings USING btree (booking_expires_at, id) WHERE (status = 'Booked'::text);
COMMENT ON INDEX crm.ix_bookings_booking_expires_at IS 'Due bookings, oldest deadline first: the claim of phase Booking.';
CREATE INDEX ix_bookings_expired_property_object_id ON crm.bookings USING btree (property_object_id) WHERE (status = ANY (ARRAY['ReserveExpired'::text, 'BookingExpired'::text]));
COMMENT ON INDEX crm.ix_bookings_expired_property_object_id IS 'Expired bookings of a property object, which the chessboard frees.';
CREATE INDEX ix_bookings_reserve_expires_at ON crm.bookings USING btree (reserve_expires_at, id) WHERE (status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text]));
COMMENT ON INDEX crm.ix_bookings_reserve_expires_at IS 'Due reserves, oldest deadline first: the claim of phase Reserve.';
CREATE INDEX ix_deal_timeline_deal_id ON crm.deal_timeline USING btree (deal_id);
COMMENT ON INDEX crm.ix_deal_timeline_deal_id IS 'The timeline of a deal.';
CREATE INDEX ix_deals_lead_id ON crm.deals USING btree (lead_id);
COMMENT ON INDEX crm.ix_deals_lead_id IS 'Deals of a lead.';
CREATE INDEX ix_fixations_lead_id ON crm.fixations USING btree (lead_id);
COMMENT ON INDEX crm.ix_fixations_lead_id IS 'Fixations of a lead.';
CREATE INDEX ix_leads_expires_at ON crm.leads USING btree (expires_at, id) WHERE (status = 'Active'::text);
COMMENT ON INDEX crm.ix_leads_expires_at IS 'Due leads, oldest deadline first: the claim of lead-expiration.';
CREATE UNIQUE INDEX ux_bookings_property_object_id ON crm.bookings USING btree (property_object_id) WHERE (status = ANY (ARRAY['Reserved'::text, 'AwaitingPayment'::text, 'Booked'::text]));
COMMENT ON INDEX crm.ux_bookings_property_object_id IS 'At most one active booking keeps a property object.';
CREATE INDEX ix_batch_not_tallied ON expiration.batch USING btree (run_id) WHERE (NOT tallied);
COMMENT ON INDEX expiration.ix_batch_not_tallied IS 'The few batches that wait to be tallied.';
CREATE INDEX ix_failed_item_last_failed_at ON expiration.failed_item USING btree (last_failed_at);
COMMENT ON INDEX expiration.ix_failed_item_last_failed_at IS 'Failed items, longest waiting first.';
CREATE INDEX ix_run_job_started_at ON expiration.run USING btree (job, started_at DESC);
COMMENT ON INDEX expiration.ix_run_job_started_at IS 'History of a job, newest first.';
CREATE INDEX ix_run_job_success ON expiration.run USING btree (job, finished_at DESC) WHERE ((status = ANY (ARRAY['completed'::text, 'capped'::text])) AND (driver <> 'sql'::text));
COMMENT ON INDEX expiration.ix_run_job_success IS 'The last successful cycle of a job.';
CREATE INDEX ix_run_job_worked ON expiration.run USING btree (job, started_at DESC) WHERE ((driver <> 'sql'::text) AND (status <> ALL (ARRAY['skipped'::text, 'running'::text])));
COMMENT ON INDEX expiration.ix_run_job_worked IS 'The last cycle of a job that did something, however many were skipped since.';
CREATE INDEX ix_run_running ON expiration.run USING btree (job) WHERE (status = 'running'::text);
COMMENT ON INDEX expiration.ix_run_running IS 'The few runs at work.';
CREATE INDEX ix_run_tally_number ON expiration.run USING btree (tally_number);
COMMENT ON INDEX expiration.ix_run_tally_number IS 'Runs in the order of their tally, and the few that wait for it.';
CREATE INDEX ix_inbox_received_at ON notifications.inbox USING brin (received_at) WITH (pages_per_range='32');
COMMENT ON INDEX notifications.ix_inbox_received_at IS 'Ids that may go.';
CREATE INDEX ix_notice_unsent ON notifications.notice USING btree (created_at, event_id) WHERE (sent_at IS NULL);
COMMENT ON INDEX notifications.ix_notice_unsent IS 'Notices to be sent, oldest first.';
CREATE INDEX ix_event_lsn ON ONLY outbox.event USING brin (lsn) WITH (pages_per_range='16');
COMMENT ON INDEX outbox.ix_event_lsn IS 'Unpublished events: those beyond a slot''s confirmed position.';
CREATE INDEX event_default_lsn_idx ON outbox.event_default USING brin (lsn) WITH (pages_per_range='16');
ALTER INDEX outbox.ix_event_lsn ATTACH PARTITION outbox.event_default_lsn_idx;
ALTER INDEX outbox.event_pkey ATTACH PARTITION outbox.event_default_pkey;
CREATE TRIGGER event_is_append_only BEFORE UPDATE ON outbox.event FOR EACH ROW EXECUTE FUNCTION outbox.refuse_update();
COMMENT ON TRIGGER event_is_append_only ON outbox.event IS 'An event that has been appended never changes.';
ALTER TABLE ONLY crm.deals
    ADD CONSTRAINT deals_lead_id_fkey FOREIGN KEY (lead_id) REFERENCES crm.leads(id);
ALTER TABLE ONLY crm.fixations
    ADD CONSTRAINT fixations_lead_id_fkey FOREIGN KEY (lead_id) REFERENCES crm.leads(id);
ALTER TABLE ONLY expiration.batch
    ADD CONSTRAINT batch_run_id_fkey FOREIGN KEY (run_id) REFERENCES expiration.run(id) ON DELETE CASCADE;
ALTER TABLE ONLY expiration.run
    ADD CONSTRAINT run_job_fkey FOREIGN KEY (job) REFERENCES expiration.job(name);
GRANT USAGE ON SCHEMA chessboard TO crm_monitor;
GRANT USAGE ON SCHEMA chessboard TO crm_chessboard;
GRANT USAGE ON SCHEMA crm TO crm_runner;
GRANT USAGE ON SCHEMA crm TO crm_app;
GRANT USAGE ON SCHEMA expiration TO crm_monitor;
GRANT USAGE ON SCHEMA notifications TO crm_monitor;
GRANT USAGE ON SCHEMA notifications TO crm_notifications;
GRANT USAGE ON SCHEMA outbox TO crm_monitor;
REVOKE ALL ON FUNCTION chessboard.dismiss_parked(id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION chessboard.dismiss_parked(id bigint) TO crm_operator;
REVOKE ALL ON FUNCTION chessboard.free_property(event_id uuid, booking_id uuid, property_object_id uuid, tenant_id uuid, phase text, expired_at timestamp with time zone, topic text) FROM PUBLIC;
GRANT ALL ON FUNCTION chessboard.free_property(event_id uuid, booking_id uuid, property_object_id uuid, tenant_id uuid, phase text, expired_at timestamp with time zone, topic text) TO crm_chessboard;
REVOKE ALL ON FUNCTION chessboard.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION chessboard.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) TO crm_chessboard;
GRANT SELECT ON TABLE crm.bookings TO crm_app;
REVOKE ALL ON FUNCTION crm.cancel_booking(booking_id uuid, expected_version integer, actor text, correlation_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.cancel_booking(booking_id uuid, expected_version integer, actor text, correlation_id uuid) TO crm_app;
REVOKE ALL ON FUNCTION crm.check_command(function_name text, VARIADIC arguments text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.check_deadline(entity text, id uuid, deadline timestamp with time zone, present timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.claim_bookings(phase text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.claim_leads(as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.confirm_booking(booking_id uuid, expected_version integer, booking_expires_at timestamp with time zone, actor text, correlation_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.confirm_booking(booking_id uuid, expected_version integer, booking_expires_at timestamp with time zone, actor text, correlation_id uuid) TO crm_app;
REVOKE ALL ON FUNCTION crm.expire_bookings(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.expire_bookings_batch(phase text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.expire_bookings_batch(phase text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) TO crm_runner;
REVOKE ALL ON FUNCTION crm.expire_leads(claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.expire_leads_batch(as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.expire_leads_batch(as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid) TO crm_runner;
REVOKE ALL ON FUNCTION crm.extend_booking(booking_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.extend_booking(booking_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) TO crm_app;
GRANT SELECT,INSERT ON TABLE crm.leads TO crm_app;
REVOKE ALL ON FUNCTION crm.extend_lead(lead_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.extend_lead(lead_id uuid, expected_version integer, expires_at timestamp with time zone, actor text, correlation_id uuid) TO crm_app;
REVOKE ALL ON FUNCTION crm.lock_booking(booking_id uuid, expected_version integer) FROM PUBLIC;
GRANT SELECT ON TABLE crm.audit_log TO crm_app;
GRANT SELECT ON TABLE crm.deal_timeline TO crm_app;
REVOKE ALL ON FUNCTION crm.record_command(booking crm.bookings, action text, kind text, from_status text, actor text, correlation_id uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION crm.reserve_property(tenant_id uuid, deal_id uuid, property_object_id uuid, reserve_expires_at timestamp with time zone, actor text, correlation_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION crm.reserve_property(tenant_id uuid, deal_id uuid, property_object_id uuid, reserve_expires_at timestamp with time zone, actor text, correlation_id uuid) TO crm_app;
REVOKE ALL ON FUNCTION expiration.batch_failed(run_id uuid, sqlstate text, error text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.batch_failed(run_id uuid, sqlstate text, error text) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.batch_item(run_id uuid, batch_number integer, max_items integer) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.batch_item(run_id uuid, batch_number integer, max_items integer) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.check_batch(function_name text, as_of timestamp with time zone, batch_size integer, batch_number integer, after_deadline timestamp with time zone, after_id uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.check_job(job text, function_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.check_job(job text, function_name text) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.claim_failed(job text, phase text, as_of timestamp with time zone, failed_before timestamp with time zone, batch_size integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.claim_items(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) FROM PUBLIC;
GRANT SELECT ON TABLE expiration.run TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.close_run(run_id uuid, status text, reason text, finished_at timestamp with time zone, sqlstate text, error text) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.count_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid, upto_deadline timestamp with time zone, upto_id uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.count_lateness(deadlines timestamp with time zone[], as_of timestamp with time zone, OUT items integer[], OUT seconds double precision) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.cron_install() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.cron_install() TO crm_runner;
REVOKE ALL ON FUNCTION expiration.cron_job() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.cron_job() TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.cron_schedule(job text, period interval, seconds_allowed boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.cron_schedule(job text, period interval, seconds_allowed boolean) TO crm_runner;
GRANT SELECT ON TABLE expiration.job TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.cron_plan(seconds_allowed boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.cron_plan(seconds_allowed boolean) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.cron_uninstall() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.cron_uninstall() TO crm_runner;
REVOKE ALL ON FUNCTION expiration.current_driver() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.current_driver() TO crm_runner;
REVOKE ALL ON FUNCTION expiration.duration_bounds() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.duration_bounds() TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.duration_bucket(duration interval) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.duration_bucket(duration interval) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.errors() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.errors() TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.expire_batch(job text, phase text, step text, as_of timestamp with time zone, batch_size integer, run_id uuid, batch_number integer, after_deadline timestamp with time zone, after_id uuid, failed_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.expire_in_parts(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, suspect integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.expire_items(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, batch_number integer, rehearsal boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.fingerprint(class oid, object oid) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.fingerprint(class oid, object oid) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.finish_run(run_id uuid, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.finish_run(run_id uuid, reason text) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.has_due(job text, phase text, as_of timestamp with time zone, after_deadline timestamp with time zone, after_id uuid) FROM PUBLIC;
GRANT SELECT ON TABLE expiration.batch TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.last_sign_of_life(run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.last_sign_of_life(run_id uuid) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.is_alive(run expiration.run) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.is_alive(run expiration.run) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.is_item_fault(phase text, claim expiration.claim, as_of timestamp with time zone, run_id uuid, schema_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.is_item_sqlstate(fault_sqlstate text) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.lateness_bounds() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.lateness_bounds() TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.loadable_objects() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.loadable_objects() TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.log_item(run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.log_item(run_id uuid) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.mark_traced(name text, tally_number bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.mark_traced(name text, tally_number bigint) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.pause(job text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.pause(job text, reason text) TO crm_operator;
REVOKE ALL ON FUNCTION expiration.phases(job text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.phases(job text) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.preview(job text, as_of timestamp with time zone, cycles integer) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.preview(job text, as_of timestamp with time zone, cycles integer) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.purge_cron_history(retention interval) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.purge_cron_history(retention interval) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.purge_history(max_runs integer) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.purge_history(max_runs integer) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.raise_error(name text, VARIADIC args text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.raise_error(name text, VARIADIC args text[]) TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.reap_runs(job text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.reap_runs(job text) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.record_lone_batch(run_id uuid, job text, phase text, as_of timestamp with time zone, batch_size integer, started_at timestamp with time zone, result expiration.batch_result) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.resume(job text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.resume(job text) TO crm_operator;
GRANT SELECT ON TABLE expiration.failed_item TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.retry_failed(job text, item_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.retry_failed(job text, item_id uuid) TO crm_operator;
REVOKE ALL ON FUNCTION expiration.run_batch(run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.run_batch(run_id uuid) TO crm_runner;
REVOKE ALL ON PROCEDURE expiration.run_job(IN job text, IN as_of timestamp with time zone) FROM PUBLIC;
GRANT ALL ON PROCEDURE expiration.run_job(IN job text, IN as_of timestamp with time zone) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.run_result(run expiration.run) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.run_result(run expiration.run) TO crm_monitor;
REVOKE ALL ON PROCEDURE expiration.run_upkeep() FROM PUBLIC;
GRANT ALL ON PROCEDURE expiration.run_upkeep() TO crm_runner;
REVOKE ALL ON FUNCTION expiration.schema_version() FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.schema_version() TO crm_monitor;
REVOKE ALL ON FUNCTION expiration.set_job(job text, period interval, batch_size integer, max_batches_per_cycle integer, max_duration interval, retry_failures_per_cycle integer, max_transient_retries integer, stale_after interval, history_retention interval) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.set_job(job text, period interval, batch_size integer, max_batches_per_cycle integer, max_duration interval, retry_failures_per_cycle integer, max_transient_retries integer, stale_after interval, history_retention interval) TO crm_operator;
REVOKE ALL ON FUNCTION expiration.split(low integer, high integer, suspect integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION expiration.start_run(job text, driver text, instance text, as_of timestamp with time zone, batch_size integer, max_batches_per_cycle integer, max_duration interval, whole_statement boolean, pooled boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.start_run(job text, driver text, instance text, as_of timestamp with time zone, batch_size integer, max_batches_per_cycle integer, max_duration interval, whole_statement boolean, pooled boolean) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.stop(job text) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.stop(job text) TO crm_operator;
REVOKE ALL ON FUNCTION expiration.take_traces(name text, max_runs integer) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.take_traces(name text, max_runs integer) TO crm_runner;
REVOKE ALL ON FUNCTION expiration.tally_runs(max_runs integer) FROM PUBLIC;
GRANT ALL ON FUNCTION expiration.tally_runs(max_runs integer) TO crm_runner;
REVOKE ALL ON FUNCTION notifications.dismiss_parked(id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION notifications.dismiss_parked(id bigint) TO crm_operator;
REVOKE ALL ON FUNCTION notifications.file_notice(event_id uuid, lead_id uuid, tenant_id uuid, agent_user_id uuid, expired_at timestamp with time zone, topic text) FROM PUBLIC;
GRANT ALL ON FUNCTION notifications.file_notice(event_id uuid, lead_id uuid, tenant_id uuid, agent_user_id uuid, expired_at timestamp with time zone, topic text) TO crm_notifications;
REVOKE ALL ON FUNCTION notifications.mark_failed(event_id uuid, error text) FROM PUBLIC;
GRANT ALL ON FUNCTION notifications.mark_failed(event_id uuid, error text) TO crm_notifications;
REVOKE ALL ON FUNCTION notifications.mark_sent(event_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION notifications.mark_sent(event_id uuid) TO crm_notifications;
REVOKE ALL ON FUNCTION notifications.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION notifications.park(topic text, partition integer, kafka_offset bigint, event_id uuid, message_key text, headers jsonb, value bytea, reason text) TO crm_notifications;
GRANT SELECT ON TABLE notifications.notice TO crm_notifications;
REVOKE ALL ON FUNCTION notifications.take_unsent(max_notices integer) FROM PUBLIC;
GRANT ALL ON FUNCTION notifications.take_unsent(max_notices integer) TO crm_notifications;
REVOKE ALL ON FUNCTION outbox.close_gap(name text) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.close_gap(name text) TO crm_operator;
REVOKE ALL ON FUNCTION outbox.create_publication(name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox.drop_partitions() FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.drop_partitions() TO crm_runner;
REVOKE ALL ON FUNCTION outbox.forget_slot(name text) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.forget_slot(name text) TO crm_operator;
GRANT SELECT(seq) ON TABLE outbox.event TO crm_operator;
GRANT SELECT(id) ON TABLE outbox.event TO crm_operator;
GRANT SELECT(created_at) ON TABLE outbox.event TO crm_operator;
GRANT SELECT(topic) ON TABLE outbox.event TO crm_operator;
GRANT SELECT(correlation_id) ON TABLE outbox.event TO crm_operator;
GRANT SELECT(lsn) ON TABLE outbox.event TO crm_operator;
GRANT SELECT(replay_id) ON TABLE outbox.event TO crm_operator;
REVOKE ALL ON FUNCTION outbox.is_publication_right(name text) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.is_publication_right(name text) TO crm_monitor;
REVOKE ALL ON FUNCTION outbox.make_partitions(days_ahead integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.make_partitions(days_ahead integer) TO crm_runner;
REVOKE ALL ON FUNCTION outbox.open_gap(name text) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.open_gap(name text) TO crm_operator;
REVOKE ALL ON FUNCTION outbox.partition_start(partition oid) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.partition_start(partition oid) TO crm_monitor;
REVOKE ALL ON FUNCTION outbox.preview_replay(event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.preview_replay(event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone) TO crm_operator;
REVOKE ALL ON FUNCTION outbox.purge_inboxes(max_ids integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.purge_inboxes(max_ids integer) TO crm_runner;
REVOKE ALL ON FUNCTION outbox.refuse_update() FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox.register_slot(name text, publication text, connector text) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.register_slot(name text, publication text, connector text) TO crm_operator;
GRANT SELECT ON TABLE outbox.replay_log TO crm_monitor;
REVOKE ALL ON FUNCTION outbox.replay(reason text, event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone, max_events integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.replay(reason text, event_ids uuid[], aggregate_id uuid, topic text, since timestamp with time zone, until timestamp with time zone, max_events integer) TO crm_operator;
REVOKE ALL ON FUNCTION outbox.traceparent(run_id uuid, batch_number integer) FROM PUBLIC;
GRANT ALL ON FUNCTION outbox.traceparent(run_id uuid, batch_number integer) TO crm_monitor;
REVOKE ALL ON FUNCTION outbox.utc(instant timestamp with time zone) FROM PUBLIC;
GRANT SELECT ON TABLE chessboard.parked TO crm_chessboard;
GRANT SELECT ON TABLE chessboard.parked TO crm_operator;
GRANT SELECT ON TABLE chessboard.parked_total TO crm_monitor;
GRANT SELECT ON TABLE chessboard.parked_total TO crm_chessboard;
GRANT SELECT ON TABLE chessboard.release TO crm_chessboard;
GRANT SELECT,INSERT ON TABLE crm.deals TO crm_app;
GRANT SELECT ON TABLE crm.effective_bookings TO crm_app;
GRANT SELECT ON TABLE crm.effective_leads TO crm_app;
GRANT SELECT,INSERT ON TABLE crm.fixations TO crm_app;
GRANT SELECT ON TABLE expiration.batch_tally TO crm_monitor;
GRANT SELECT ON TABLE expiration.batch_total TO crm_monitor;
GRANT SELECT ON TABLE expiration.due_figures TO crm_monitor;
GRANT SELECT ON TABLE expiration.duration_tally TO crm_monitor;
GRANT SELECT ON TABLE expiration.duration_histogram TO crm_monitor;
GRANT SELECT ON TABLE expiration.failed TO crm_monitor;
GRANT SELECT ON TABLE expiration.history TO crm_monitor;
GRANT SELECT ON TABLE expiration.installation TO crm_monitor;
GRANT SELECT ON TABLE expiration.installed_object TO crm_monitor;
GRANT SELECT ON TABLE expiration.job_figures TO crm_monitor;
GRANT SELECT ON TABLE expiration.lateness_tally TO crm_monitor;
GRANT SELECT ON TABLE expiration.lateness_histogram TO crm_monitor;
GRANT SELECT ON TABLE expiration.log_event TO crm_monitor;
GRANT SELECT ON TABLE expiration.migration_checksum TO crm_monitor;
GRANT SELECT ON TABLE expiration.run_tally TO crm_monitor;
GRANT SELECT ON TABLE expiration.run_total TO crm_monitor;
GRANT SELECT ON TABLE expiration.status TO crm_monitor;
GRANT SELECT ON TABLE expiration.trace_position TO crm_monitor;
GRANT SELECT ON TABLE notifications.parked TO crm_notifications;
GRANT SELECT ON TABLE notifications.parked TO crm_operator;
GRANT SELECT ON TABLE notifications.parked_total TO crm_monitor;
GRANT SELECT ON TABLE notifications.parked_total TO crm_notifications;
GRANT SELECT ON TABLE outbox.partition TO crm_monitor;
GRANT SELECT ON TABLE outbox.partition_figures TO crm_monitor;
GRANT SELECT ON TABLE outbox.settings TO crm_monitor;
GRANT SELECT ON TABLE outbox.slot TO crm_monitor;
GRANT SELECT ON TABLE outbox.slot_state TO crm_monitor;
GRANT SELECT ON TABLE outbox.slot_figures TO crm_monitor;
GRANT SELECT ON TABLE outbox.slot_status TO crm_monitor;
ALTER DEFAULT PRIVILEGES FOR ROLE crm_owner REVOKE ALL ON FUNCTIONS  FROM PUBLIC;

-- How long a claim takes in the server when nothing is due, in microseconds, one call after the other.
create function bench.time_claims(phase text, batch_size integer, times integer)
returns table (microseconds double precision)
language plpgsql volatile
as $function$
declare
    v_first constant uuid := '00000000-0000-0000-0000-000000000000';
    v_from timestamptz;
    v_claim expiration.claim;
begin
    for i in 1..times loop
        v_from := clock_timestamp();
        if time_claims.phase = 'Lead' then
            v_claim := crm.claim_leads(now(), batch_size, '-infinity', v_first);
        else
            v_claim := crm.claim_bookings(time_claims.phase, now(), batch_size, '-infinity', v_first);
        end if;
        microseconds := extract(epoch from clock_timestamp() - v_from) * 1e6;
        if v_claim.ids is not null then
            raise exception 'something is due, so this is no idle claim';
        end if;
        return next;
    end loop;
end
$function$;

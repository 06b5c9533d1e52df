create or replace function expiration.claim_items(
    job text,
    phase text,
    step text,
    as_of timestamptz,
    batch_size integer,
    after_deadline timestamptz,
    after_id uuid,
    failed_before timestamptz
) returns expiration.claim
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if step = 'retry' then
        return expiration.claim_failed(job, phase, as_of, failed_before, batch_size);
    elsif phase = 'Lead' then
        return crm.claim_leads(as_of, batch_size, after_deadline, after_id);
    end if;
    return crm.claim_bookings(phase, as_of, batch_size, after_deadline, after_id);
end
$function$;

comment on function expiration.claim_items(text, text, text, timestamptz, integer, timestamptz, uuid, timestamptz) is
'The claim of a step of a phase: crm.claim_leads or crm.claim_bookings beyond the cursor, or with step retry expiration.claim_failed, of those that last failed before failed_before.';

create or replace function expiration.phases(job text)
returns table (phase text, ordinal integer)
language sql immutable parallel safe
begin atomic
    select p.phase, p.ordinal
    from (values
        ('lead-expiration', 'Lead', 1),
        ('booking-expiration', 'Reserve', 1),
        ('booking-expiration', 'Booking', 2)
    ) as p (job, phase, ordinal)
    where p.job = phases.job
    order by p.ordinal;
end;

comment on function expiration.phases(text) is
'The phases of a job in the order in which a cycle goes through them.';

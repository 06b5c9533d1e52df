-- Whether a destination has been sent to before.
select exists (
    select
    from expiration.trace_position as p
    where p.name = %(name)s
) as is_known

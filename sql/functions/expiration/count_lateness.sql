create or replace function expiration.count_lateness(
    deadlines timestamptz[],
    as_of timestamptz,
    out items integer[],
    out seconds double precision
)
language plpgsql stable strict security definer
set search_path = pg_catalog, pg_temp
as $function$
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
$function$;

comment on function expiration.count_lateness(timestamptz[], timestamptz) is
'How late items with these deadlines, oldest first, are at as_of: their number by bucket (expiration.lateness_bounds, and one beyond), and the sum in seconds, infinite deadlines left out.';

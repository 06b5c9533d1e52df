create or replace function expiration.take_traces(name text, max_runs integer default 100) returns setof expiration.run
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $function$
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
$function$;

comment on function expiration.take_traces(text, integer) is
'Runs that are over and were not yet sent to the destination, in order, none when another session is at it. Send them and call expiration.mark_traced with the last tally_number in the same transaction: each is then taken by one exporter. The first call for a destination begins with the runs that end from then on.';

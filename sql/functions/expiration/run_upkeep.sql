create or replace procedure expiration.run_upkeep()
language plpgsql
as $procedure$
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
$procedure$;

comment on procedure expiration.run_upkeep() is
'Keeps house, once an hour say: partitions of the outbox made ahead and, once delivered and past their retention, dropped; abandoned runs marked, what is over tallied, old history purged, ours and pg_cron''s. Not inside a transaction block.';

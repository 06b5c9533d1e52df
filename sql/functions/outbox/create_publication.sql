create or replace function outbox.create_publication(name text default 'crm_outbox') returns boolean
language plpgsql volatile strict
set search_path = pg_catalog, pg_temp
as $function$
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
$function$;

comment on function outbox.create_publication(text) is
'Makes the publication that Debezium reads: INSERTs into outbox.event, as of the root whatever the partition. Returns whether it was made; false where it is there already; XP020 where one of that name publishes something else. Runs as the caller: a superuser, or a member of crm_owner with CREATE on the database.';

create or replace function expiration.retry_failed(job text, item_id uuid default null) returns setof expiration.failed_item
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $function$
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
$function$;

comment on function expiration.retry_failed(text, uuid) is
'Frees failed items of a job, one or all, so that the next cycle takes them in deadline order; returns those freed. Not needed for rows that somebody changed: they are freed by that.';

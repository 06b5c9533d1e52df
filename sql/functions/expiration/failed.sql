create or replace view expiration.failed as
select
    f.job,
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
    case
        when d.item_id is null then 'no longer due'
        when d.row_xmin <> f.row_xmin then 'freed for the next cycle'
        else 'waiting'
    end as state
from expiration.failed_item as f
left join expiration.due_item as d
    on f.job = d.job and f.phase = d.phase and f.item_id = d.item_id and d.deadline < now();

comment on view expiration.failed is
'Failed items with their deadlines, and what becomes of each: waiting (retried a bounded number a cycle), freed for the next cycle (the row was changed, or retry_failed was called), no longer due.';

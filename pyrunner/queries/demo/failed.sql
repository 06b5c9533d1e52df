-- The failed items, oldest deadline first.
select
    f.job,
    f.phase,
    f.item_id,
    f.attempts,
    f.sqlstate,
    f.message,
    f.state
from expiration.failed as f
order by f.job desc, f.deadline, f.item_id

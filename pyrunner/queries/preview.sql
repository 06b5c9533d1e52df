-- What the next cycles would take, in their order; total counts it all.
select
    p.*,
    count(*) over () as total
from expiration.preview(
    %(job)s,
    as_of => coalesce(%(as_of)s::timestamptz, now()),
    cycles => %(cycles)s::integer
) as p
limit %(limit)s

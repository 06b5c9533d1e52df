create or replace view chessboard.parked_total as
select p.topic, count(*) as messages, max(p.parked_at) as last_parked_at
from chessboard.parked as p
group by p.topic;

comment on view chessboard.parked_total is
'Messages put aside, by topic.';

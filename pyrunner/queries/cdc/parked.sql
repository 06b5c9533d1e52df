-- Messages that the consumers have put aside.
select 'chessboard' as consumer, c.topic, c.messages, c.last_parked_at from chessboard.parked_total as c
union all
select 'notifications', n.topic, n.messages, n.last_parked_at from notifications.parked_total as n
order by consumer, topic

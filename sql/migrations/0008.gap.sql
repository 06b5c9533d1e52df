-- A slot that was made while the outbox had events already: until these are compared with Kafka, no partition is dropped.
-- depends: 0007.consumers

alter table outbox.slot
add column gap_since timestamptz,
add column delivered_lsn pg_lsn;
comment on column outbox.slot.gap_since is 'Since when older events may not have been delivered: the slot was made when they were there already, and reads none of them. Null once outbox.close_gap was called; until then no partition is dropped.';
comment on column outbox.slot.delivered_lsn is 'Up to where the slot had confirmed everything when upkeep last looked: known even when the slot is gone. Not moved while there may be a gap.';

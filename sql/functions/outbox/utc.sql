create or replace function outbox.utc(instant timestamptz) returns text
language sql stable strict parallel safe
return to_char(instant at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

comment on function outbox.utc(timestamptz) is
'An instant as events carry it: ISO 8601 in UTC, microseconds, Z.';

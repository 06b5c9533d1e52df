create or replace function outbox.traceparent(run_id uuid, batch_number integer) returns text
language sql immutable strict parallel safe
return '00-' || replace(run_id::text, '-', '')
|| '-' || substr(md5(run_id::text || ':' || batch_number::text), 1, 16)
|| '-01';

comment on function outbox.traceparent(uuid, integer) is
'W3C trace context of a batch: trace id = run id, parent span id derived from run and batch number, sampled.';

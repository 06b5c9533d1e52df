-- The events that Kafka holds, by their headers; in the session alone.
create temporary table arrived (id uuid not null, replay_id uuid, topic text not null, run_id uuid)

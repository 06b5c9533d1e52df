-- Adds to them.
copy pg_temp.arrived (id, replay_id, topic, run_id) from stdin

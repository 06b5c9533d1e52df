-- How many events each run has appended by its own books; in the session alone.
create temporary table expired (run_id uuid not null, events bigint not null, started_at timestamptz not null)

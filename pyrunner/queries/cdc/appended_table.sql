-- The outbox's events as they were at one moment, each id once; in the session alone.
create temporary table appended (
    id uuid not null,
    seq bigint not null,
    topic text not null,
    created_at timestamptz not null,
    run_id uuid
)

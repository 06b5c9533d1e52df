-- The outbox's events as they were at one moment, each id once; in the session alone.
create temporary table appended (
    id uuid not null,
    seq bigint not null,
    topic text not null,
    created_at timestamptz not null,
    lsn pg_lsn,
    run_id uuid
)

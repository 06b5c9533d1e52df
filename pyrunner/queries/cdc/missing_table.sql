-- Events of the outbox that Kafka does not hold; in the session alone.
create temporary table missing (
    id uuid not null,
    seq bigint not null,
    topic text not null,
    created_at timestamptz not null
)

"""Replication slots of the outbox, and a reader of one, without Kafka."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from tests.servers import Database


@contextlib.contextmanager
def slot(db: Database, *, name: str | None = None) -> Iterator[str]:
    """A logical slot that is registered as one of the outbox's; gone at the end, whoever reads it."""
    name = name or f"t_{uuid4().hex[:12]}"
    db.rows("select outbox.create_publication()")
    db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    db.rows("select outbox.register_slot(%s, 'crm_outbox', 'crm-outbox')", (name,))
    try:
        yield name
    finally:
        drop(db, name)


def drop(db: Database, name: str) -> None:
    """Drops a slot if it is there, whoever reads it."""
    db.rows("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (name,))
    db.wait_until(
        "select not exists (select from pg_replication_slots where slot_name = %s and active)", (name,)
    )
    db.rows(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (name,)
    )


@contextlib.contextmanager
def reading(db: Database, name: str) -> Iterator[Callable[[], None]]:
    """Somebody who reads a slot as Debezium does, by the replication protocol.

    It confirms nothing by itself, not even that it lives; the function that the block gets confirms
    everything up to now.
    """
    connection = psycopg.connect(
        db.dsn, autocommit=True, replication="database", options="-c wal_sender_timeout=0",
        application_name="a reader of the slot",
    )  # fmt: skip
    # it is in the midst of a copy, so there is nothing to commit
    with contextlib.closing(connection):
        begin = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names 'crm_outbox')"
        ).format(sql.Identifier(name))
        result = connection.pgconn.exec_(begin.as_bytes(connection))
        assert result.status == ExecStatus.COPY_BOTH, result.error_message

        def confirm() -> None:
            position = int(db.value("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"))
            # a standby's status: what was written, flushed, applied; the time; an answer is not wanted
            connection.pgconn.put_copy_data(struct.pack("!cQQQqB", b"r", position, position, position, 0, 0))
            while connection.pgconn.flush():
                pass
            db.wait_until(
                "select confirmed_flush_lsn >= '0/0'::pg_lsn + %s::numeric from pg_replication_slots"
                " where slot_name = %s",
                (position, name),
            )

        yield confirm

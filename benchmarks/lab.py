"""The server of the benchmark, its databases, and the state that every measurement starts from."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final, LiteralString, Self, cast

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from benchmarks.scale import Scale
from pyrunner.migrations import migrate
from pyrunner.postgres import Binaries, PrivateServer, find_binaries

__all__ = [
    "FOLDER",
    "SETTINGS",
    "BenchError",
    "Connection",
    "Lab",
    "alone",
    "install",
    "restore",
    "script",
    "seed",
]

Connection = psycopg.Connection[TupleRow]

FOLDER: Final = Path(__file__).parent.parent / ".cache" / "benchmarks"
_SQL: Final = Path(__file__).parent / "sql"

# Commits are as safe as in production, and the log is written as Debezium needs it. What would start by
# itself during one measurement and not during the other (autovacuum, a checkpoint) is done between them.
SETTINGS: Final[Mapping[str, str]] = {
    "shared_buffers": "512MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "logical",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "maintenance_work_mem": "512MB",
    "autovacuum": "off",
    "jit": "off",
}


class BenchError(Exception):
    """What was measured is not what was meant to be measured; the message says why."""


def script(name: str, **values: int) -> sql.Composed:
    """The statements in `sql/NAME.sql`, numbers put in for the names in braces."""
    text = cast(Any, (_SQL / f"{name}.sql").read_text("utf-8"))
    if not values:
        return sql.Composed([sql.SQL(text)])
    return sql.SQL(text).format(**{name: sql.Literal(value) for name, value in values.items()})


def install(connection: Connection, scale: Scale) -> None:
    """Loads the benchmark's own procedures into a database that has the engine, and lifts the jobs' caps.

    Args:
        connection: the superuser's, in autocommit mode.
        scale: gives the sizes of batches.
    """
    connection.execute("select from outbox.make_partitions()")
    for job, size in (("lead-expiration", scale.lead_batch), ("booking-expiration", scale.booking_batch)):
        connection.execute(
            "select from expiration.set_job(%s, batch_size => %s, max_batches_per_cycle => 1000000,"
            " max_duration => '1 day')",
            (job, size),
        )
    for name in ("data", "idle", "single_leads", "fingerprint", "time_claims"):
        connection.execute(script(name))
    connection.execute(script("lean_leads", batch_size=scale.lead_batch))
    connection.execute(script("lean_bookings", batch_size=scale.booking_batch))


def seed(connection: Connection, scale: Scale, as_of: datetime) -> None:
    """Makes the leads and bookings that `restore` puts back: the same ones in every database."""
    connection.execute(
        "call bench.seed_leads(%s, %s, %s, %s)", (scale.items, scale.overdue, scale.lead_batch, as_of)
    )
    connection.execute("call bench.seed_bookings(%s, %s, %s)", (scale.items, scale.overdue, as_of))


def restore(connection: Connection, *, poisoned: bool = False) -> None:
    """Puts the database into the state before a measurement: rows as seeded, hints set, statistics fresh.

    Args:
        connection: the superuser's, in autocommit mode.
        poisoned: one lead in every batch cannot expire.
    """
    connection.execute("call bench.restore(%s)", (poisoned,))
    connection.execute("vacuum (analyze)")


class Lab:
    """A private server with databases that are alike; gone, with all its files, at the end.

    Args:
        scale: how much to measure.
        major: the version of PostgreSQL; None is 15 where it is installed, else what is there.
        folder: where the server's files go.
        say: told what takes a while.
    """

    def __init__(
        self,
        scale: Scale,
        *,
        major: int | None = None,
        folder: Path = FOLDER,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scale = scale
        self.say = say
        self._folder = folder
        self._server = PrivateServer(_binaries(major), folder, SETTINGS)
        self._stack = contextlib.ExitStack()
        self._seeded: list[str] = []

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(alone(self._folder))
            self._stack.callback(self._server.destroy)
            # a run that was killed may have left its server
            self._server.destroy()
            self.say(f"starting PostgreSQL {self._server.binaries.version}")
            self._server.start()
            self._make("lab")
            migrate(self.dsn("lab"))
            with self.connect("lab") as connection:
                install(connection, self.scale)
                row = connection.execute("select date_trunc('second', now())").fetchone()
                assert row is not None
                self.as_of: datetime = row[0]
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.say("removing the server")
        self._stack.close()

    @property
    def version(self) -> str:
        """The server's version, "15.18"."""
        return self._server.binaries.version

    def dsn(self, name: str) -> str:
        """A connection string for the superuser."""
        return self._server.dsn(name)

    @contextlib.contextmanager
    def connect(self, name: str) -> Iterator[Connection]:
        """A new session in a database, as the superuser, in autocommit mode."""
        with contextlib.closing(psycopg.connect(self.dsn(name), autocommit=True)) as connection:
            yield connection

    def rows(self, name: str, query: LiteralString, parameters: Sequence[Any] = ()) -> list[TupleRow]:
        """The rows of a query, by a session of its own."""
        with self.connect(name) as connection:
            return connection.execute(query, parameters).fetchall()

    def databases(self, count: int) -> list[str]:
        """So many databases with the same overdue leads and bookings."""
        while len(self._seeded) < count:
            name = f"seeded_{len(self._seeded)}"
            self.say(f"making {self.scale.items:,} leads and bookings (database {len(self._seeded) + 1})")
            self._make(name, template="lab")
            with self.connect(name) as connection:
                seed(connection, self.scale, self.as_of)
            self._seeded.append(name)
        return self._seeded[:count]

    def idle_database(self, total: int) -> str:
        """A new database with so many leads and bookings, none of them due."""
        name = f"idle_{total}"
        self.say(f"making {total:,} leads and bookings of which none is due")
        self._make(name, template="lab")
        with self.connect(name) as connection:
            connection.execute("set synchronous_commit = off")
            connection.execute("call bench.fill_idle(%s)", (total,))
            connection.execute("vacuum (analyze)")
            connection.execute("checkpoint")
        return name

    def restore(self, names: Sequence[str], poisoned: Sequence[bool]) -> None:
        """Puts several databases back at the same time, and all pages onto the disk; see `restore`."""

        def one(name: str, is_poisoned: bool) -> None:
            with self.connect(name) as connection:
                restore(connection, poisoned=is_poisoned)

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(one, names, poisoned))
        with self.connect(names[0]) as connection:
            connection.execute("checkpoint")

    def drop(self, name: str) -> None:
        """Drops a database."""
        with self.connect("postgres") as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    def _make(self, name: str, template: str = "template0") -> None:
        with self.connect("postgres") as connection:
            connection.execute(
                sql.SQL("create database {} template {}").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )


def _binaries(major: int | None) -> Binaries:
    if major is not None:
        return find_binaries(major, prefer=("local", "embedded"))
    try:
        return find_binaries(15, prefer=("local",))
    except Exception:  # noqa: BLE001 - the figures then say which version they are of
        return find_binaries(prefer=("local", "embedded"))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One benchmark at a time in a folder; two would measure each other."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BenchError(f"another benchmark is at work in {folder}") from None
        yield

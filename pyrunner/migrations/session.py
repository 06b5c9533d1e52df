"""Connections of an installation: a lock, transactions that never queue for long, whom they wait for."""

import contextlib
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pyrunner.errors import BusyError, CannotConnectError, from_database, one_line

__all__ = [
    "LOCK_KEY",
    "PATIENCE",
    "Connection",
    "Say",
    "Session",
    "connect",
    "passes_by_itself",
    "resource",
    "run",
]

Connection = psycopg.Connection[Any]
Say = Callable[[str], None]
T = TypeVar("T")

PATIENCE: Final = 120.0
LOCK_KEY: Final = 1886942837
"""First half of the advisory locks' key; the second is 1 for an installation, 2 for its transactions."""

_AGAIN: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


def resource(name: str) -> str:
    """The text of an SQL file of this package."""
    return (files(__package__) / "sql" / name).read_text("utf-8")


def run(connection: Connection, text: str) -> None:
    """Executes SQL that stands in a file: as many statements as there are, without parameters."""
    connection.execute(text)


def connect(conninfo: str) -> Connection:
    """Connects as psql does, in autocommit mode.

    Raises:
        CannotConnectError: the string cannot be understood, or the server cannot be reached.
    """
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # psycopg repeats the string, and a password may stand in it
        raise CannotConnectError(
            "The connection string cannot be understood.",
            hint="Write host=... dbname=... user=..., or postgresql://user@host/dbname.",
        ) from None
    try:
        connection: Connection = psycopg.connect(
            conninfo,
            autocommit=True,
            # a pooler in transaction mode keeps no prepared statements for us
            prepare_threshold=None,
            fallback_application_name="pyrunner",
        )
    except psycopg.Error as error:
        reason = one_line(str(error).partition("Multiple connection attempts failed")[0] or str(error))
        raise CannotConnectError(
            f"The server cannot be reached: {reason}.", sqlstate=error.sqlstate
        ) from None
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    return connection


class Session:
    """Two connections: one holds the lock that makes installations wait for each other, the other works.

    The lock is an advisory one of a transaction, so it also holds where a pooler hands out connections by
    transaction, and goes when this process does, however it ends. What a killed process had sent off may
    still be at work in the server then: therefore each working transaction takes a second lock.

    Args:
        conninfo: as psql takes it.
        say: told, in words, what is waited for.
        patience: how many seconds a transaction may be put off by locks of others before it is given up.
    """

    def __init__(self, conninfo: str, say: Say, *, patience: float = PATIENCE) -> None:
        self._say = say
        self._patience = patience
        self._stack = contextlib.ExitStack()
        self._lock = self._stack.enter_context(contextlib.closing(connect(conninfo)))
        try:
            self.connection = self._stack.enter_context(contextlib.closing(connect(conninfo)))
        except BaseException:
            self._stack.close()
            raise
        self.connection.add_notice_handler(self._pass_on)

    def __enter__(self) -> Self:
        try:
            # left by closing the connection; the server ends the transaction
            self._lock.execute("begin isolation level read committed read only")
            self._lock.execute("set local statement_timeout = 0")
            self._lock.execute("set local lock_timeout = 0")
            self._lock.execute("set local idle_in_transaction_session_timeout = 0")
            if self._lock.info.server_version >= 170000:
                self._lock.execute("set local transaction_timeout = 0")
            row = self._lock.execute("select pg_try_advisory_xact_lock(%s, 1)", (LOCK_KEY,)).fetchone()
            if row is None or not row[0]:
                self._say("Another installation is at work in this database: waiting for its end.")
                self._lock.execute("select pg_advisory_xact_lock(%s, 1)", (LOCK_KEY,))
        except psycopg.Error as error:
            self._stack.close()
            raise from_database(error, doing="locking out other installations") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def transaction(self, doing: str, work: Callable[[Connection], T], *, as_owner: bool = True) -> T:
        """Calls `work` in a transaction with our settings, and again while others hold the locks it needs.

        Args:
            doing: what the work is, for messages: "applying 0002.outbox".
            work: given the working connection; may be called several times, each after a rollback.
            as_owner: as crm_owner instead of whoever is connected.

        Raises:
            BusyError: others held the locks for longer than our patience.
            PyrunnerError: what `work` raised, or the database.
        """
        deadline = time.monotonic() + self._patience
        watch = _Watch(self._lock, self._say, doing)
        pause = 0.05
        while True:
            try:
                with watch, self.connection.transaction():
                    run(self.connection, resource("settings.sql"))
                    watch.start(self.connection)
                    self.connection.execute("select pg_advisory_xact_lock(%s, 2)", (LOCK_KEY,))
                    if as_owner:
                        self.connection.execute("set local role crm_owner")
                    return work(self.connection)
            except psycopg.Error as caught:
                error = _first(caught)
                if not passes_by_itself(error):
                    raise from_database(error, doing=doing) from error
                if time.monotonic() > deadline:
                    raise BusyError(
                        f"Gave up {doing}: {watch.last or one_line(str(error))}.",
                        hint="Nothing of it was changed. Run it again when that session is done.",
                        sqlstate=error.sqlstate,
                    ) from error
            # lets those who queue behind us go first
            threading.Event().wait(pause)
            pause = min(2 * pause, 1.0)

    def _pass_on(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING" and diagnostic.message_primary:
            self._say(
                ". ".join(map(one_line, filter(None, (diagnostic.message_primary, diagnostic.message_hint))))
                + "."
            )


def _first(error: psycopg.Error) -> psycopg.Error:
    """The error that the server sent, where cleaning up after it on a lost connection has raised another."""
    while error.sqlstate is None and isinstance(error.__context__, psycopg.Error):
        error = error.__context__
    return error


def passes_by_itself(error: psycopg.Error) -> bool:
    """Whether the same may succeed in a moment: locks; two databases of a server that make the same roles."""
    return (
        isinstance(error, _AGAIN)
        or (isinstance(error, psycopg.errors.InternalError_) and "concurrently updated" in str(error))
        or (isinstance(error, psycopg.errors.UniqueViolation) and (error.diag.schema_name == "pg_catalog"))
    )


class _Watch:
    """Looks from another connection at whom the working one waits for, and says so once for each.

    Attributes:
        last: what it said last: "session 4711 (user alice) holds a lock on crm.leads".
    """

    def __init__(self, connection: Connection, say: Say, doing: str) -> None:
        self._connection = connection
        self._say = say
        self._doing = doing
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.last: str | None = None

    def __enter__(self) -> Self:
        self._over.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def start(self, working: Connection) -> None:
        """Begins to look; `working` is inside its transaction, and so keeps its backend, pooler or not."""
        row = working.execute("select pg_backend_pid()").fetchone()
        assert row is not None
        self._thread = threading.Thread(target=self._look, args=(row[0],), name="lock watch", daemon=True)
        self._thread.start()

    def _look(self, pid: int) -> None:
        query = resource("blockers.sql")
        while not self._over.wait(0.25):
            try:
                # a transaction sees pg_stat_activity as it was at first sight
                self._connection.execute("select pg_stat_clear_snapshot()")
                row = self._connection.execute(query, {"pid": pid}).fetchone()
            except psycopg.Error:
                return
            if row is None:
                continue
            blocker, user, application, state, what = row
            who = f"session {blocker}" if blocker else "a prepared transaction"
            details = ", ".join(filter(None, (user and f"user {user}", application, state)))
            seen = f"{who}{f' ({details})' if details else ''} holds {what}"
            if seen != self.last:
                self.last = seen
                self._say(f"Waiting while {self._doing}: {seen}.")

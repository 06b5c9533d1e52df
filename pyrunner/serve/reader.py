"""Readings of a database: one connection, one thread, one transaction each; nobody who asks waits for long.

Whoever asks while the same is being read gets that reading, so that a slow database piles up nothing.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

import psycopg
from psycopg.rows import DictRow
from psycopg.sql import SQL

from pyrunner.database import Connection, connect, explain, is_lost, is_pooled, query, rows, target_of
from pyrunner.errors import CannotConnectError, PyrunnerError, from_database
from pyrunner.migrations import require_installation

__all__ = ["PATIENCE", "Questions", "Reader", "Reading"]

# seconds that somebody who asks is kept waiting: less than the ten that Prometheus waits
PATIENCE: Final = 5.0
# seconds after which a reading leaves out what it has not come to yet
_LONGEST: Final = 3.0


@dataclass(frozen=True, eq=False)
class Questions:
    """Statements that are answered together, in one snapshot.

    Attributes:
        sections: the statements by name; one that fails leaves the others alone.
    """

    sections: Mapping[str, SQL]


@dataclass(frozen=True)
class Reading:
    """What a database said.

    Attributes:
        label: the database's name.
        seconds: how long it took.
        rows: the rows by section; a section that could not be read is not here.
        failures: why a section could not be read, by section.
        failures_ever: how often each section could not be read since this process began.
        error: why nothing could be read; then there is nothing else.
    """

    label: str
    seconds: float
    rows: Mapping[str, list[DictRow]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    failures_ever: Mapping[str, int] = field(default_factory=dict)
    error: PyrunnerError | None = None


@dataclass(frozen=True, eq=False)
class _Request:
    questions: Questions
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Reading]"


class Reader:
    """Reads a database over a connection that is kept as long as it is good.

    Args:
        dsn: a connection string.
        label: the name that its readings bear.
        name: of the connection, for application_name.
        tell: told of each reading, in the reader's thread.
    """

    def __init__(self, dsn: str, *, label: str, name: str, tell: Callable[[Reading], None]) -> None:
        self._dsn = dsn
        self._label = label
        self._name = name
        self._tell = tell
        self._requests: SimpleQueue[_Request] = SimpleQueue()
        self._under_way: dict[Questions, _Request] = {}
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        # held to close the connection, and to break it off from outside
        self._guard = threading.Lock()
        self._installed: str | None = None
        self._failures_ever: Counter[str] = Counter()

    async def read(self, questions: Questions) -> Reading:
        """The answers; an error in the reading when there is none within `PATIENCE` seconds."""
        request = self._under_way.get(questions)
        if request is None or request.answer.done():
            loop = asyncio.get_running_loop()
            request = _Request(questions, loop, loop.create_future())
            self._under_way[questions] = request
            self._requests.put(request)
            if self._thread is None:
                # no thread that the process would wait for at its end
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        try:
            return await asyncio.wait_for(asyncio.shield(request.answer), PATIENCE)
        except TimeoutError:
            self._break_off()
            error = CannotConnectError(
                f"{target_of(self._dsn)} has not answered for {PATIENCE:g} seconds.",
                hint="The network or the server is stuck, or the server is overloaded.",
            )
            return Reading(self._label, PATIENCE, error=error)

    # ------------------------------------------------------------ in the reader's thread

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            reading = self._read(request.questions)
            self._tell(reading)
            # the loop is gone when the process ends
            with contextlib.suppress(RuntimeError):
                request.loop.call_soon_threadsafe(_settle, request.answer, reading)

    def _read(self, questions: Questions) -> Reading:
        began = time.monotonic()
        try:
            try:
                found, failures = self._ask(questions)
            except CannotConnectError:
                if self._connection is None:
                    raise
                # it was idle, and many a thing ends idle connections
                self._close()
                found, failures = self._ask(questions)
        except PyrunnerError as error:
            self._close()
            return Reading(self._label, time.monotonic() - began, error=error)
        except Exception as error:  # noqa: BLE001 - an exporter goes on; the sentence says what to report
            self._close()
            fault = PyrunnerError(f"A fault of pyrunner itself: {error!r}.")
            return Reading(self._label, time.monotonic() - began, error=fault)
        self._failures_ever.update(failures.keys())
        return Reading(
            self._label, time.monotonic() - began, found, failures, dict(self._failures_ever)
        )  # fmt: skip

    def _ask(self, questions: Questions) -> tuple[dict[str, list[DictRow]], dict[str, str]]:
        began = time.monotonic()
        found: dict[str, list[DictRow]] = {}
        failures: dict[str, str] = {}
        is_new = self._connection is None
        connection = self._connection or self._connect()
        try:
            with connection.transaction():
                if is_new:
                    # planning is most of a scrape; a pooler in transaction mode keeps no prepared statements
                    connection.prepare_threshold = None if is_pooled(connection) else 0
                rows(connection, query("serve/settings"))
                self._check_installation(connection)
                for name, statement in questions.sections.items():
                    if time.monotonic() - began > _LONGEST:
                        failures[name] = "the database was too slow, and it was left out."
                        continue
                    try:
                        with connection.transaction():
                            found[name] = rows(connection, statement)
                    except psycopg.Error as error:
                        if is_lost(error, connection):
                            raise
                        failures[name] = from_database(error).message
        except psycopg.Error as error:
            explained = explain(error, connection, "crm_monitor")
            if is_new:
                self._close()
            raise explained from None
        return found, failures

    def _connect(self) -> Connection:
        connection = connect(self._dsn, name=self._name, read_only=True)
        # one snapshot for all sections
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._installed = None
        with self._guard:
            self._connection = connection
        return connection

    def _check_installation(self, connection: Connection) -> None:
        """Refuses another version than this program's; looks closely only when something has changed."""
        installed: str | None = None
        try:
            with connection.transaction():
                found = rows(connection, query("serve/installed"))
                installed = found[0]["installed"] if found else None
        except psycopg.Error as error:
            if is_lost(error, connection):
                raise
        if installed is None or installed != self._installed:
            self._installed = None
            require_installation(connection)
            self._installed = installed

    def _close(self) -> None:
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # ------------------------------------------------------------ from outside

    def _break_off(self) -> None:
        """Ends a connection that gives no answer; whoever waits in the thread is told that it is lost."""
        with self._guard, contextlib.suppress(OSError, psycopg.Error):
            if self._connection is not None:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                    end.shutdown(socket.SHUT_RDWR)


def _settle(answer: "asyncio.Future[Reading]", reading: Reading) -> None:
    if not answer.done():
        answer.set_result(reading)

"""One cycle of a job: start_run, run_batch until it is done, finish_run. All decisions are the database's."""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import psycopg
from psycopg.rows import DictRow, dict_row

from pyrunner.database import Connection, explain, is_lost, query, rows
from pyrunner.errors import PyrunnerError, one_line
from pyrunner.settings import Job, Overrides

__all__ = [
    "CycleFailedError",
    "Observer",
    "Run",
    "Stop",
    "instance_of_run",
    "instance_of_worker",
    "run_cycle",
]

_PATIENCE: Final = 5.0
# as the documents list them
_RESULT: Final = (
    "ExpiredCount", "ReserveExpiredCount", "BookingExpiredCount", "BatchesProcessed", "SkippedLockedCount",
    "Elapsed", "DurationMs", "CappedByMaxBatches",
)  # fmt: skip
# tells processes apart; their numbers repeat from container to container
_PROCESS: Final = secrets.token_hex(4)


class CycleFailedError(PyrunnerError):
    """A cycle failed; it is on record in expiration.run, and what it had committed stays."""


class Stop:
    """The wish to end: asked once, work ends after the batch in hand; asked again, its query is cancelled.

    Args:
        on_request: called when it is asked for the first time.
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        self._on_request = on_request
        self._asked = threading.Event()
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._working: set[psycopg.Connection[Any]] = set()

    @property
    def requested(self) -> bool:
        """Whether it was asked at least once."""
        return self._asked.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether it was asked again."""
        return self._cancelled.is_set()

    def request(self) -> None:
        """Asks. Not for a signal handler, which may have interrupted the holder of a lock."""
        if not self._asked.is_set():
            self._asked.set()
            self._on_request()
        elif not self._cancelled.is_set():
            self._cancelled.set()
            self._cancel()

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until it is asked; whether it was."""
        return self._asked.wait(seconds)

    @contextlib.contextmanager
    def may_cancel(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Within, a second request cancels what the connection is executing."""
        with self._lock:
            self._working.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._working.discard(connection)

    def _cancel(self) -> None:
        with self._lock:
            working = list(self._working)
        for connection in working:
            # it may have ended meanwhile, or its network is gone
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_PATIENCE)


class Observer(Protocol):
    """Told about a cycle while it goes on."""

    def wants(self, level: str) -> bool:
        """Whether events of that level are of interest."""

    def started(self, run: "Run") -> None:
        """The run was started; nothing is done yet."""

    def batch(self, report: Mapping[str, Any]) -> None:
        """A batch was committed; `report` is expiration.batch_report without ids."""

    def event(self, event: Mapping[str, Any]) -> None:
        """A row of expiration.log_event, committed."""


@dataclass(frozen=True)
class Run:
    """A row of expiration.run.

    Attributes:
        result: of a run that is over, as the documents name it.
    """

    id: UUID
    job: str
    status: str
    reason: str | None
    instance: str
    as_of: datetime
    started_at: datetime
    finished_at: datetime | None
    due_before: int | None
    expired: int
    failed: int
    skipped_locked: int
    batches: int
    error: str | None
    result: Mapping[str, Any]


def instance_of_worker(name: str | None, *, pooled: bool) -> str:
    """What tells a worker from the others: the host, and the name where one was given.

    A worker that is started again has the same: a run of its predecessor that still works is not overlapped,
    and one whose backend is gone is no obstacle. Behind a pooler the dead cannot be told from the living
    until job.stale_after has passed; there each process is an instance of its own.
    """
    if name is None and pooled:
        name = _PROCESS
    return _host(name)


def instance_of_run(name: str | None) -> str:
    """What tells one run from others: two typed at once both work, unless they were given the same name."""
    return _host(name or f"{os.getpid()}-{_PROCESS}")


def _host(name: str | None) -> str:
    return socket.gethostname() + (f"/{name}" if name else "")


def run_cycle(
    connection: Connection,
    job: Job,
    *,
    instance: str,
    pooled: bool,
    overrides: Overrides,
    stop: Stop,
    observer: Observer,
    as_of: datetime | None = None,
) -> Run:
    """Drives one cycle; a transaction each for its start, each batch and its end.

    Args:
        connection: not in a transaction, and not in autocommit mode.
        job: the job.
        instance: at most one run of a job and instance works at a time.
        pooled: the backend may change between transactions.
        overrides: what to take in place of the settings in the database.
        stop: looked at before every batch.
        observer: told what happens.
        as_of: the cut-off; None is the database's clock.

    Returns:
        The run, over: completed, capped, stopped, or skipped when it was not to start.

    Raises:
        CycleFailedError: a batch failed for good; the run is ended as failed.
        CannotConnectError: the connection was lost; the next start marks the run as abandoned.
        PyrunnerError: it could not be started.
    """
    cycle = _Cycle(connection, job, stop, observer)
    with stop.may_cancel(connection):
        run = cycle.start({**asdict(overrides), "instance": instance, "pooled": pooled, "as_of": as_of})
        return run if run.status == "skipped" else cycle.finish(run.id, cycle.batches(run.id))


class _Cycle:
    def __init__(self, connection: Connection, job: Job, stop: Stop, observer: Observer) -> None:
        self._connection = connection
        self._job = job
        self._stop = stop
        self._observer = observer
        self._ordinal = -1

    def start(self, arguments: dict[str, Any]) -> Run:
        try:
            (row,) = rows(self._connection, query("start_run"), {**arguments, "job": self._job.value})
            events = self._events(row["id"], _level(row))
            self._connection.commit()
        except psycopg.Error as error:
            raise explain(error, self._connection, "crm_runner") from None
        self._tell(events)
        run = _run(row)
        self._observer.started(run)
        return run

    def batches(self, run_id: UUID) -> str:
        """Batch after batch; returns the reason to finish with."""
        while not self._stop.requested:
            try:
                (report,) = rows(self._connection, query("run_batch"), {"run_id": run_id})
                level = "error" if report["failed"] else "info"
                events = self._events(run_id, level) if report["state"] == "more" else []
                self._connection.commit()
            except psycopg.Error as error:
                self._stop.wait(self._delay_after(run_id, error))
                continue
            if report["state"] == "done":
                return str(report["reason"])
            self._observer.batch(report)
            self._tell(events)
        return "stop requested"

    def finish(self, run_id: UUID, reason: str) -> Run:
        try:
            (row,) = rows(self._connection, query("finish_run"), {"run_id": run_id, "reason": reason})
            events = self._events(run_id, _level(row))
            self._connection.commit()
        except psycopg.Error as error:
            self._stop.wait(self._delay_after(run_id, error))
            return self.finish(run_id, reason)
        try:
            if self._observer.wants("debug"):
                self._tell_items(run_id)
        except psycopg.Error as error:
            raise explain(error, self._connection, "crm_monitor") from None
        finally:
            self._tell(events)
        return _run(row)

    def _delay_after(self, run_id: UUID, error: psycopg.Error) -> float:
        """Asks the database what becomes of a transaction that failed: seconds to wait, or it is over."""
        if is_lost(error, self._connection):
            raise explain(error, self._connection) from None
        shown = explain(error, self._connection)
        failure = CycleFailedError(
            f"{self._job} failed with {error.sqlstate}: {shown.message}",
            hint=shown.hint,
            sqlstate=error.sqlstate,
        )
        arguments = {
            "run_id": run_id,
            "sqlstate": error.sqlstate or "XX000",
            "error": one_line(error.diag.message_primary or str(error)),
        }
        try:
            self._connection.rollback()
            (answer,) = rows(self._connection, query("batch_failed"), arguments)
            events = [] if answer["retry"] else self._events(run_id, "error")
            self._connection.commit()
        except psycopg.Error:
            # it cannot be recorded either; once this connection is closed the run counts as abandoned
            raise failure from None
        if answer["retry"]:
            return float(answer["delay"].total_seconds())
        self._tell(events)
        raise failure from None

    def _events(self, run_id: UUID, level: str) -> list[DictRow]:
        """What the run has logged since the last call, if anybody wants to know."""
        if not self._observer.wants(level):
            return []
        return rows(self._connection, query("run_events"), {"run_id": run_id, "after": self._ordinal})

    def _tell(self, events: list[DictRow]) -> None:
        for event in events:
            self._ordinal = event["ordinal"]
            self._observer.event(event)

    def _tell_items(self, run_id: UUID) -> None:
        # they may be many: a cursor hands them over piece by piece
        with self._connection.cursor("pyrunner_items", row_factory=dict_row, binary=True) as cursor:
            cursor.execute(query("run_items"), {"run_id": run_id})
            for item in cursor:
                self._observer.event(item)
        self._connection.commit()


def _level(row: DictRow) -> str:
    return "info" if row["status"] in ("running", "completed") else "warning"


def _run(row: DictRow) -> Run:
    values = {name: row[name] for name in Run.__dataclass_fields__}
    # jsonb keeps no order of its own
    values["result"] = {name: row["result"][name] for name in _RESULT if name in row["result"]}
    return Run(**values)

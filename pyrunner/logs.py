"""Log lines: the documents' events, as JSON for programs and readable for people.

The events of runs come from the view expiration.log_event, so that pg_cron's runs and ours say the same.
"""

import contextlib
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog
from psycopg.rows import DictRow, dict_row
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from pyrunner.cycle import Run
from pyrunner.database import Connection, query, rows
from pyrunner.settings import Job, LogLevel
from pyrunner.times import format_instant

__all__ = ["Log", "LogObserver", "emit", "follow", "levels_from", "make_log", "read"]

Log = FilteringBoundLogger

_LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error")
# what a transaction wrote appears at its commit; a line is waited for this long
_LATEST: Final = timedelta(minutes=1)
_FETCH: Final = 1000


class _Lines:
    """Writes whole lines to standard error or output, whatever that is at the moment."""

    def __init__(self, *, to_stdout: bool) -> None:
        self._to_stdout = to_stdout
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        # work goes on when whoever collects its log is gone; output that nobody reads is not worth any
        with self._lock, contextlib.nullcontext() if self._to_stdout else contextlib.suppress(OSError):
            stream = sys.stdout if self._to_stdout else sys.stderr
            stream.write(line + "\n")
            stream.flush()

    debug = info = warning = error = msg


def make_log(level: LogLevel, *, human: bool, to_stdout: bool = False) -> Log:
    """A log that writes JSON lines, or lines for a person."""
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=True, pad_event_to=20, sort_keys=False)
        if human
        else structlog.processors.JSONRenderer(json.dumps, ensure_ascii=False, default=str)
    )
    log: Log = structlog.wrap_logger(
        _Lines(to_stdout=to_stdout),
        processors=[_in_order, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
    )
    return log


def _in_order(_logger: Any, method: str, event: EventDict) -> EventDict:
    when = event.pop("timestamp", None) or format_instant(datetime.now(UTC))
    return {"timestamp": when, "level": method, "event": event.pop("event"), **event}


def emit(log: Log, event: Mapping[str, Any], database: str) -> None:
    """Writes one event of a run, a row of expiration.log_event.

    Args:
        log: where to.
        event: with at, level, event, job, driver, run_id, fields.
        database: the name of the database that it comes from.
    """
    getattr(log, event["level"])(
        event["event"],
        timestamp=format_instant(event["at"]),
        job=event["job"],
        driver=event["driver"],
        database=database,
        correlationId=str(event["run_id"]),
        **event["fields"],
    )


def levels_from(level: LogLevel) -> list[str]:
    """That level and those above it."""
    return list(_LEVELS[_LEVELS.index(level) :])


def read(
    connection: Connection,
    *,
    since: datetime,
    level: LogLevel = "info",
    job: Job | None = None,
    run_id: UUID | None = None,
) -> Iterator[DictRow]:
    """Events of all runs since a time, in order; "debug" has the items too. Never holds all of them."""
    with connection.cursor("pyrunner_logs", row_factory=dict_row, binary=True) as cursor:
        cursor.itersize = _FETCH
        cursor.execute(query("logs"), _parameters(since, level, job, run_id))
        yield from cursor


def follow(
    connection: Connection,
    *,
    since: datetime,
    level: LogLevel = "info",
    job: Job | None = None,
    run_id: UUID | None = None,
    every: float = 1.0,
) -> Iterator[DictRow]:
    """As `read`, and goes on with what is logged from then on, without end."""
    printed: set[tuple[Any, ...]] = set()
    order: deque[tuple[datetime, tuple[Any, ...]]] = deque()
    start = since
    while True:
        found = rows(connection, query("logs"), _parameters(start, level, job, run_id))
        connection.commit()
        for event in found:
            key = (event["run_id"], event["ordinal"], event["event"], event["item"])
            if key not in printed:
                printed.add(key)
                order.append((event["at"], key))
                yield event
        if order:
            start = max(since, max(at for at, _ in order) - _LATEST)
            while order and order[0][0] < start:
                printed.discard(order.popleft()[1])
        time.sleep(every)


def _parameters(since: datetime, level: LogLevel, job: Job | None, run_id: UUID | None) -> dict[str, Any]:
    return {
        "since": since,
        "levels": levels_from(level),
        "items": level == "debug",
        "job": None if job is None else job.value,
        "run_id": run_id,
    }


class LogObserver:
    """Writes a cycle's events to a log."""

    def __init__(self, log: Log, level: LogLevel, database: str) -> None:
        self._log = log
        self._levels = levels_from(level)
        self._database = database

    def wants(self, level: str) -> bool:
        """Whether events of that level are of interest."""
        return level in self._levels

    def started(self, run: Run) -> None:
        """Nothing: the event says it."""

    def batch(self, report: Mapping[str, Any]) -> None:
        """Nothing: the event says it."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Writes the event."""
        emit(self._log, event, self._database)

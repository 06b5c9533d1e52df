"""Sends the runs that are over as traces, each once, whoever drove it and however many exporters there are.

Runs are taken, sent and marked as sent in one transaction: of two exporters the second finds nothing to do,
and when nobody takes the spans nothing is marked. Only a process that dies between the receiver's answer and
the commit leaves runs to be sent again; their spans have the same ids then.
"""

import contextlib
import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from psycopg.rows import dict_row

from pyrunner.backoff import Backoff
from pyrunner.cycle import Stop
from pyrunner.database import Connection, connect, explain, query, rows
from pyrunner.errors import MissingPrivilegeError, NotInstalledError, PyrunnerError
from pyrunner.logs import Log
from pyrunner.migrations import require_installation
from pyrunner.traces.otlp import Receiver, ReceiverError, resource_of
from pyrunner.traces.spans import Limits, spans_of

__all__ = ["SERVICE", "Exporter", "Sent"]

SERVICE: Final = "crm-expiration"

# runs a transaction
_RUNS: Final = 100
# spans and events a request, unless one span has more
_LARGEST: Final = 5_000
_FETCH: Final = 20
_LONGEST_DELAY: Final = 60.0


@dataclass(frozen=True)
class Sent:
    """What was sent.

    Attributes:
        is_new: nothing had ever been sent to this destination.
    """

    runs: int = 0
    spans: int = 0
    is_new: bool = False

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.runs + other.runs, self.spans + other.spans, self.is_new or other.is_new)


@dataclass(frozen=True)
class _Request:
    """Spans for one request.

    Attributes:
        runs: how many runs end in it.
        upto: tally_number of the last of them, None where none does.
        is_whole: the next request begins with another run.
    """

    spans: Sequence[ReadableSpan]
    runs: int
    upto: int | None
    is_whole: bool


class Exporter:
    """Sends runs of one database to one receiver.

    Args:
        dsn: the database.
        receiver: where to.
        name: the destination; for each one it is on record how far it has got.
        log: where to tell.
        stop: ends it after the run in hand.
    """

    def __init__(self, dsn: str, receiver: Receiver, *, name: str, log: Log, stop: Stop) -> None:
        self._dsn = dsn
        self._receiver = receiver
        self._name = name
        self._log = log
        self._stop = stop
        self._limits = Limits()
        self._connection: Connection | None = None
        self._resource: Resource | None = None

    def send_due(self) -> Sent:
        """Sends every run that is over and was not sent yet.

        Raises:
            ReceiverError: the receiver took nothing more; what it had taken before is marked.
            PyrunnerError: the database's fault; what was not committed is sent again.
        """
        sent = Sent()
        while not self._stop.requested:
            one, more = self._round()
            sent += one
            if not more:
                break
        return sent

    def follow(self, every: float) -> None:
        """Goes on until it is asked to stop; a receiver or a database that is away is tried again and again.

        Args:
            every: seconds between two looks.

        Raises:
            PyrunnerError: at the first look: nothing, or another version, is installed; no privilege.
        """
        self._log.info("traces started", receiver=self._receiver.shown, destination=self._name)
        trouble = Backoff(_LONGEST_DELAY, self._log)
        is_first = True
        while not self._stop.requested:
            began = time.monotonic()
            try:
                sent = self.send_due()
            except (NotInstalledError, MissingPrivilegeError) as error:
                if is_first:
                    raise
                delay = trouble.after("traces not possible", error)
            except PyrunnerError as error:
                away = isinstance(error, ReceiverError)
                delay = trouble.after("receiver unreachable" if away else "traces not possible", error)
            else:
                trouble.reset("traces possible again")
                if sent.runs:
                    self._log.debug("traces sent", runs=sent.runs, spans=sent.spans)
                delay = max(0.0, began + every - time.monotonic())
                is_first = False
            self._stop.wait(delay)
        self._log.info("traces stopped")

    def close(self) -> None:
        """Closes the connections to the database and to the receiver."""
        self._close()
        self._receiver.close()

    def _round(self) -> tuple[Sent, bool]:
        """One transaction: what was sent, and whether there may be more."""
        connection = self._ready()
        try:
            with self._stop.may_cancel(connection):
                return self._send(connection)
        except psycopg.Error as error:
            shown = explain(error, connection, "crm_runner")
            self._close()
            raise shown from None
        except BaseException:
            self._close()
            raise

    def _send(self, connection: Connection) -> tuple[Sent, bool]:
        # a lock is not waited for, and an exporter that stands still keeps nobody from sending
        idle = math.ceil(self._receiver.timeout) + 30
        connection.execute(
            "select set_config('lock_timeout', '10s', true),"
            " set_config('idle_in_transaction_session_timeout', %s, true)",
            (f"{idle}s",),
        )
        destination = {"name": self._name}
        is_new = not rows(connection, query("traces/position"), destination)[0]["is_known"]
        runs = rows(connection, query("traces/take"), {**destination, "max_runs": _RUNS})
        sent = Sent(is_new=is_new)
        try:
            with contextlib.closing(self._requests(connection, runs)) as requests:
                for request in requests:
                    self._receiver.send(request.spans)
                    if request.upto is not None:
                        connection.execute(
                            "select expiration.mark_traced(%s, %s)", (self._name, request.upto)
                        )
                    sent += Sent(request.runs, len(request.spans))
                    if self._stop.requested and request.is_whole:
                        break
        except ReceiverError:
            # what was taken before stays marked
            connection.commit()
            raise
        connection.commit()
        return sent, len(runs) == _RUNS

    def _requests(self, connection: Connection, runs: Sequence[Mapping[str, Any]]) -> Generator[_Request]:
        """The spans of runs in requests of a bearable size; never holds more than one of them."""
        if self._resource is None:
            database = {"db.system.name": "postgresql", "db.namespace": connection.info.dbname}
            self._resource = resource_of(SERVICE, **database)
        spans: list[ReadableSpan] = []
        weight = ended = 0
        upto: int | None = None
        for run in runs:
            is_whole = True
            batches = self._batches(connection, run)
            for span in spans_of(run, batches, self._resource, self._limits):
                size = 1 + len(span.events)
                if spans and weight + size > _LARGEST:
                    yield _Request(spans, ended, upto, is_whole)
                    spans, weight, ended, upto = [], 0, 0, None
                spans.append(span)
                weight += size
                is_whole = False
            ended += 1
            upto = run["tally_number"]
        if spans:
            yield _Request(spans, ended, upto, is_whole=True)

    def _batches(self, connection: Connection, run: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        parameters = {"run_id": run["id"], "max_items": self._limits.events}
        with connection.cursor("pyrunner_batches", row_factory=dict_row, binary=True) as cursor:
            cursor.itersize = _FETCH
            cursor.execute(query("traces/batches"), parameters)
            yield from cursor

    def _ready(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = connect(self._dsn, name="pyrunner traces")
            try:
                require_installation(connection)
                connection.commit()
            except psycopg.Error as error:
                raise explain(error, connection, "crm_runner") from None
            except PyrunnerError:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""The worker: the jobs of all databases on their periods, upkeep once an hour; it outlives what fails."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg

import pyrunner
from pyrunner.backoff import Backoff
from pyrunner.cycle import CycleFailedError, Stop, instance_of_worker, run_cycle
from pyrunner.database import Connection, connect, explain, is_pooled, query, rows, session, target_of
from pyrunner.errors import CannotConnectError, NotInstalledError, PyrunnerError
from pyrunner.logs import Log, LogObserver
from pyrunner.migrations import require_installation
from pyrunner.settings import Environment, Job, LogLevel, overrides_from

__all__ = ["UPKEEP_PERIOD", "Worker"]

UPKEEP_PERIOD: Final = timedelta(hours=1)
_LONGEST_DELAY: Final = 60.0
# for closing a connection; a thread that is still connecting need not be waited for
_GOODBYE: Final = 0.5


@dataclass(frozen=True)
class _Shared:
    environment: Environment
    instance: str | None
    level: LogLevel
    log: Log
    stop: Stop
    is_single: bool


class Worker:
    """Drives jobs until it is asked to stop.

    Args:
        dsns: the databases, as connection strings.
        jobs: the jobs, the same for each database.
        environment: settings that go before those of the databases.
        instance: a name beside the host's; see `instance_of_worker`.
        upkeep: whether to keep house as well.
        level: of `log`.
        log: where all events go.
        stop: ends it.
    """

    def __init__(
        self,
        dsns: Sequence[str],
        jobs: Sequence[Job],
        *,
        environment: Environment,
        instance: str | None,
        upkeep: bool,
        level: LogLevel,
        log: Log,
        stop: Stop,
    ) -> None:
        self._log = log
        self._stop = stop
        self._jobs = jobs
        self._targets = [target_of(dsn) for dsn in dsns]
        shared = _Shared(environment, instance, level, log, stop, is_single=len(dsns) == 1)
        self._loops: list[_Loop] = [_JobLoop(dsn, job, shared) for dsn in dsns for job in jobs]
        if upkeep:
            self._loops += [_UpkeepLoop(dsn, shared) for dsn in dsns]

    def run(self) -> None:
        """Works until `stop` is requested; returns when nothing is in hand any more."""
        self._log.info(
            "worker started",
            version=pyrunner.__version__,
            targets=self._targets,
            jobs=[job.value for job in self._jobs],
        )
        threads = [threading.Thread(target=loop.run, name=loop.name, daemon=True) for loop in self._loops]
        for thread in threads:
            thread.start()
        while not self._stop.wait(3600):
            pass
        self._log.info("worker stopping")
        for loop, thread in zip(self._loops, threads, strict=True):
            loop.wait_until_idle()
            thread.join(_GOODBYE)
        self._log.info("worker stopped")


class _Loop:
    """One thread: ticks on a period; after a failure that may pass soon, it comes back early."""

    def __init__(self, name: str, dsn: str, shared: _Shared) -> None:
        self.name = name
        self._dsn = dsn
        self._shared = shared
        self._log = shared.log.bind(job=name, target=target_of(dsn))
        self._stop = shared.stop
        self._period = timedelta(minutes=1)
        self._idle = threading.Event()
        self._idle.set()
        self._trouble = Backoff(_LONGEST_DELAY, self._log)
        self._is_away = False

    def run(self) -> None:
        """Ticks until it is asked to stop."""
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            began = time.monotonic()
            delay = self._guarded_tick()
            if delay is not None:
                due = time.monotonic() + delay
                continue
            due = began + self._period.total_seconds()
            if (late := time.monotonic() - due) >= 0:
                missed = int(late / self._period.total_seconds()) + 1
                due += missed * self._period.total_seconds()
                self._log.warning(
                    "tick skipped",
                    ticks=missed,
                    reason="the cycle took longer than its period",
                    elapsedMs=round((time.monotonic() - began) * 1000),
                )
        self._close()

    def wait_until_idle(self) -> None:
        """Waits until nothing is in hand. After a stop was requested nothing new is begun."""
        self._idle.wait()

    def _guarded_tick(self) -> float | None:
        """One tick, whatever happens: None, or the seconds after which to try again."""
        try:
            self._tick()
        except CycleFailedError:
            # the run's own event has said so, and the next tick takes what is left
            self._close()
            self._trouble.reset()
        except PyrunnerError as error:
            self._close()
            self._is_away = isinstance(error, CannotConnectError)
            self._trouble.longest = self._longest_delay()
            return self._trouble.after(f"{self.name} not possible", error)
        except Exception as error:  # noqa: BLE001 - a worker goes on; the line says what to report
            self._close()
            self._trouble.longest = self._longest_delay()
            delay = self._trouble.next()
            self._log.error("internal error", error=repr(error), retryInSeconds=round(delay, 1))
            return delay
        else:
            self._recovered()
        return None

    @contextlib.contextmanager
    def _in_hand(self) -> Iterator[bool]:
        self._idle.clear()
        try:
            yield not self._stop.requested
        finally:
            self._idle.set()

    def _longest_delay(self) -> float:
        """Not beyond the next tick."""
        return min(_LONGEST_DELAY, self._period.total_seconds())

    def _recovered(self) -> None:
        self._trouble.reset("database reachable" if self._is_away else f"{self.name} possible again")

    def _tick(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Gives up the connection, if there is one."""


class _JobLoop(_Loop):
    """A job of a database, over one connection that is kept as long as it is good."""

    def __init__(self, dsn: str, job: Job, shared: _Shared) -> None:
        super().__init__(job.value, dsn, shared)
        self._job = job
        self._connection: Connection | None = None
        self._installed: str | None = None
        self._pooled = False
        if given := shared.environment.jobs[job].get("period"):
            assert isinstance(given.value, timedelta)
            self._period = given.value

    def _tick(self) -> None:
        connection = self._ready()
        with self._in_hand() as go_on:
            if go_on:
                self._recovered()
                run_cycle(
                    connection,
                    self._job,
                    instance=instance_of_worker(self._shared.instance, pooled=self._pooled),
                    pooled=self._pooled,
                    overrides=overrides_from(self._shared.environment, self._job),
                    stop=self._stop,
                    observer=LogObserver(self._shared.log, self._shared.level, self._label(connection)),
                )

    def _ready(self) -> Connection:
        """A connection that has just answered; the period as it is set now."""
        if self._connection is not None:
            try:
                self._read_settings(self._connection)
            except CannotConnectError:
                # it was idle, and many a thing ends idle connections
                self._close()
            else:
                return self._connection
        self._connection = connect(self._dsn, name=f"pyrunner {self._job}")
        self._installed = None
        self._read_settings(self._connection)
        return self._connection

    def _label(self, connection: Connection) -> str:
        name, info = connection.info.dbname, connection.info
        return name if self._shared.is_single else f"{name} at {info.host}:{info.port}"

    def _read_settings(self, connection: Connection) -> None:
        try:
            if self._installed is None:
                require_installation(connection)
                self._pooled = is_pooled(connection)
            found = rows(connection, query("worker_settings"), {"job": self._job.value})
            connection.commit()
        except psycopg.Error as error:
            raise explain(error, connection, "crm_runner") from None
        if not found:
            raise NotInstalledError(
                f"There is no job {self._job} in expiration.job.", hint="Run `pyrunner migrate`."
            )
        if self._installed not in (None, found[0]["installed"]):
            require_installation(connection)
            connection.commit()
        self._installed = found[0]["installed"]
        if "period" not in self._shared.environment.jobs[self._job]:
            self._period = found[0]["period"]

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _UpkeepLoop(_Loop):
    """Upkeep of a database, over a connection of its own each time."""

    def __init__(self, dsn: str, shared: _Shared) -> None:
        super().__init__("upkeep", dsn, shared)
        self._period = UPKEEP_PERIOD

    def _tick(self) -> None:
        began = time.monotonic()
        with (
            session(self._dsn, "upkeep", "crm_runner", autocommit=True) as connection,
            self._stop.may_cancel(connection),
            self._in_hand() as go_on,
        ):
            if go_on:
                connection.add_notice_handler(self._pass_on)
                connection.execute("call expiration.run_upkeep()")
                self._log.info("upkeep completed", elapsedMs=round((time.monotonic() - began) * 1000))

    def _pass_on(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._log.warning("upkeep", error=notice.message_primary, sqlstate=notice.sqlstate)

"""The stack of the benchmark: PostgreSQL, broker, Connect, connector; and what they use of the machine."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, LiteralString, Self, cast

import httpx
import psutil
import psycopg
from psycopg.rows import TupleRow

from benchmarks.cdc.reader import Reader
from benchmarks.cdc.scale import Scale
from benchmarks.lab import BenchError, alone
from benchmarks.measure import cpu_seconds
from pyrunner.cdc import EVENT_TOPICS, PasswordFile, Setup, install
from pyrunner.migrations import migrate
from pyrunner.postgres import Binaries
from pyrunner.stack import Part, Stack, assemble
from pyrunner.stack.files import read

__all__ = ["FOLDER", "PROCESSES", "Connection", "Lab", "Usage", "until"]

Connection = psycopg.Connection[TupleRow]

FOLDER: Final = Path(__file__).parents[2] / ".cache" / "bench-cdc"
PROCESSES: Final = ("PostgreSQL", "walsender", "broker", "Connect")

_CONNECTOR: Final = "crm-outbox"
_SLOT: Final = "crm_outbox"
_SQL: Final = Path(__file__).parent / "sql"


def until(check: Callable[[], Any], what: str, timeout: float = 120) -> Any:
    """Calls `check` until it returns something true, and returns that.

    Raises:
        BenchError: it did not in time.
    """
    deadline = time.monotonic() + timeout
    while not (answer := check()):
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {timeout:g} s")
        time.sleep(0.005)
    return answer


class _Stack(Stack):
    """A stack whose worker can be given other settings than the committed ones."""

    def __init__(self, folder: Path, binaries: Binaries | None, cache: Path | None) -> None:
        super().__init__(folder, binaries=binaries, cache=cache)
        self.worker: Mapping[str, str] = {}

    def _write_properties(self, part: Part, home: Path) -> None:
        super()._write_properties(part, home)
        if part == "connect":
            # of two lines of a name Java takes the last
            with self._properties(part).open("a") as file:
                file.writelines(f"{name}={value}\n" for name, value in self.worker.items())


class Usage:
    """Watches what the processes use within its `with` block.

    Attributes:
        peak: the most memory that each used, in bytes; PostgreSQL's is that of all its processes, what they
            share counted once, and has the walsender in it.
        cpu: processor time, in s; of the walsender alone and of PostgreSQL without it.
        seconds: how long it was watched.
    """

    def __init__(self, lab: "Lab", every: float = 1.0) -> None:
        self._lab = lab
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage")
        self.peak: dict[str, int] = {}
        self.cpu: dict[str, float] = {}
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._before = self._lab.cpu()
        self._start = time.perf_counter()
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._stop.set()
        self._thread.join()
        self._look()
        after = self._lab.cpu()
        # a process that ended meanwhile has taken its figure with it
        self.cpu = {
            name: after[name] - spent
            for name, spent in self._before.items()
            if name in after and after[name] >= spent
        }

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self._look()

    def _look(self) -> None:
        for name, used in self._lab.memory().items():
            self.peak[name] = max(self.peak.get(name, 0), used)


class Lab:
    """A private stack with one database whose outbox goes to Kafka; gone, with all its files, at the end.

    Args:
        scale: how much to measure.
        folder: where the stack's files go.
        binaries: the PostgreSQL; by default what the stack itself takes.
        cache: where Kafka is assembled.
        say: told what takes a while.

    Attributes:
        whole: what has been used since the stack came up.
    """

    whole: "Usage"

    def __init__(
        self,
        scale: Scale,
        *,
        folder: Path = FOLDER,
        binaries: Binaries | None = None,
        cache: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scale = scale
        self.say = say
        self._folder = folder
        self._cache = cache
        self.stack = _Stack(folder, binaries, cache)
        self._exit = contextlib.ExitStack()
        self._config: dict[str, str] = {}

    def __enter__(self) -> Self:
        with self._exit:
            self._exit.enter_context(alone(self._folder))
            # a run that was killed may have left its stack
            self.stack.destroy()
            self._exit.callback(self.stack.destroy)
            self.stack.up(on_progress=self.say)
            self._rest = self._exit.enter_context(
                # a proxy of the environment has no business on loopback
                httpx.Client(base_url=self.stack.connect_url, timeout=120, trust_env=False)
            )
            self._make_database()
            self._observer = self._exit.enter_context(self.session())
            self._make_bench()
            self._connect()
            self.whole = self._exit.enter_context(Usage(self))
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.say("removing the stack")
        self._exit.close()

    # ------------------------------------------------------------ PostgreSQL

    @property
    def version(self) -> str:
        """The server's version, "15.18"."""
        return self.stack.postgres.binaries.version

    @property
    def software(self) -> dict[str, str]:
        """The versions of what takes part, by name."""
        home = assemble(self._cache)
        found = {"PostgreSQL": self.version}
        jars = (("Kafka", "kafka/connect-runtime-"), ("Debezium", "plugins/*/debezium-connector-postgres-"))
        for name, jar in jars:
            for path in home.glob(f"{jar}[0-9]*.jar"):
                found[name] = path.stem.rpartition("-")[2]
        return found

    @contextlib.contextmanager
    def session(self) -> Iterator[Connection]:
        """A new session in the database, as the superuser, in autocommit mode."""
        with contextlib.closing(psycopg.connect(self.stack.dsn(), autocommit=True)) as connection:
            yield connection

    def rows(self, query: LiteralString, parameters: Sequence[Any] = ()) -> list[TupleRow]:
        """The rows of a short statement, by a session that all threads share."""
        cursor = self._observer.execute(query, parameters)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: LiteralString, parameters: Sequence[Any] = ()) -> Any:
        """The first column of the first row."""
        return self.rows(query, parameters)[0][0]

    def last_event(self) -> int:
        """The number of the last event in the outbox, 0 for none."""
        return int(self.value("select coalesce(max(seq), 0) from outbox.event"))

    def ids_after(self, seq: int) -> list[bytes]:
        """The ids of the events that came into the outbox after that one."""
        with self.session() as connection, connection.cursor(binary=True) as cursor:
            return [
                row[0]
                for row in cursor.stream(
                    "select uuid_send(id) from outbox.event where seq > %s", (seq,), size=10_000
                )
            ]

    def empty(self) -> None:
        """Empties the outbox of what has been delivered."""
        self.wait_until_confirmed()
        self.rows("truncate outbox.event")

    def wait_until_confirmed(self) -> None:
        """Waits until the slot has confirmed everything that the log holds now."""
        lsn = self.value("select pg_current_wal_insert_lsn()::text")
        until(
            lambda: self.value(
                "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s",
                (lsn, _SLOT),
            ),
            "the slot has confirmed everything",
        )

    # ------------------------------------------------------------ connector

    def reader(self, *, prompt: bool = False, keep: bool = True) -> Reader:
        """A consumer of all events from now on."""
        return Reader(self.stack.bootstrap_servers, EVENT_TOPICS, prompt=prompt, keep=keep)

    def stop_connector(self) -> None:
        """Stops the connector's task; what is written meanwhile waits in the log."""
        self._call("PUT", f"/connectors/{_CONNECTOR}/stop")
        until(lambda: self._states() == ["STOPPED"], "the connector has stopped")
        until(lambda: self._walsender() is None, "the slot is free")

    def resume_connector(self) -> float:
        """Starts the task again; the moment at which it took the slot."""
        self._call("PUT", f"/connectors/{_CONNECTOR}/resume")
        with self.session() as connection:
            until(
                lambda: (
                    connection.execute(
                        "select active from pg_replication_slots where slot_name = %s", (_SLOT,)
                    ).fetchone()
                    == (True,)
                ),
                "the connector has taken the slot",
            )
            taken = time.perf_counter()
        # the state is told later than it is so
        until(lambda: self._states() == ["RUNNING", "RUNNING"], "connector and task run")
        return taken

    def configure(self, settings: Mapping[str, str | None], worker: Mapping[str, str] | None = None) -> None:
        """Gives the connector its committed settings but for these, and leaves it stopped.

        Args:
            settings: of the connector; None takes one away.
            worker: settings of Connect itself, which is started anew when they differ from those it has.
        """
        self.stop_connector()
        wanted = dict(worker or {})
        if wanted != self.stack.worker:
            self.stack.worker = wanted
            self.stack.stop("connect")
            self.stack.start_connect()
            until(lambda: self._states() == ["STOPPED"], "the connector is known again")
        changed = {**self._config, **settings}
        config = {name: value for name, value in changed.items() if value is not None}
        self._call("PUT", f"/connectors/{_CONNECTOR}/config", json=config)

    def setting(self, name: str) -> str:
        """The value of a setting in the committed files, "default" where it is left at that."""
        if name in self._config:
            return self._config[name]
        found = re.search(rf"^{re.escape(name)}=(.*)$", read("connect.properties"), re.MULTILINE)
        return found.group(1) if found else "default"

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        # while a worker rebalances it says 409
        deadline = time.monotonic() + 120
        while True:
            try:
                answer = self._rest.request(method, path, **arguments)
            except httpx.TransportError as error:
                raise BenchError(f"Connect does not answer: {error}") from None
            if answer.status_code != httpx.codes.CONFLICT or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if answer.is_error:
            raise BenchError(f"Connect refused {method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    def _states(self) -> list[str]:
        answer = self._rest.get(f"/connectors/{_CONNECTOR}/status")
        if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):
            return []
        status = answer.raise_for_status().json()
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        if "FAILED" in states:
            trace = next((task["trace"] for task in status["tasks"] if "trace" in task), "")
            raise BenchError(f"the connector failed: {trace.partition(chr(10))[0]}")
        return states

    # ------------------------------------------------------------ what is used

    def _walsender(self) -> int | None:
        found = self.rows("select active_pid from pg_replication_slots where slot_name = %s", (_SLOT,))
        pid: int | None = found[0][0] if found else None
        return pid

    def cpu(self) -> dict[str, float]:
        """Processor time of the broker, of Connect and of the walsender so far, in s."""
        pids = {
            "broker": self.stack.pid("broker"),
            "Connect": self.stack.pid("connect"),
            "walsender": self._walsender(),
        }
        spent = {name: cpu_seconds(pid) for name, pid in pids.items() if pid is not None}
        return {name: used for name, used in spent.items() if used is not None}

    def memory(self) -> dict[str, int]:
        """Memory of the processes at this moment, in bytes."""
        used = {}
        for name, part in (("broker", "broker"), ("Connect", "connect")):
            if (pid := self.stack.pid(cast(Part, part))) is not None:
                used[name] = _resident(pid)
        postmaster, walsender = self.stack.pid("postgres"), self._walsender()
        if postmaster is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(postmaster).children()
                used["PostgreSQL"] = sum(map(_proportional, [postmaster, *(child.pid for child in children)]))
        if walsender is not None:
            used["walsender"] = _proportional(walsender)
        return used

    def disk(self) -> dict[str, int]:
        """Bytes on disk: the database, the folder of the log, what the slot holds back, Kafka's topics."""
        row = self.rows(
            "select pg_database_size(current_database()),"
            " (select sum(size) from pg_ls_waldir())::bigint,"
            " (select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) from pg_replication_slots"
            " where slot_name = %s)::bigint",
            (_SLOT,),
        )[0]
        topics = sum(
            path.stat().st_size
            for topic in EVENT_TOPICS
            for path in (self.stack.folder / "broker" / "data").glob(f"{topic}-*/*.log")
        )
        return {"database": row[0], "log": row[1], "held back": row[2], "topics": topics}

    # ------------------------------------------------------------ making it

    def _make_database(self) -> None:
        with contextlib.closing(psycopg.connect(self.stack.dsn("postgres"), autocommit=True)) as connection:
            connection.execute("create database crm template template0 encoding 'UTF8'")
        migrate(self.stack.dsn())

    def _make_bench(self) -> None:
        self.rows("select from outbox.make_partitions()")
        self._observer.execute((_SQL / "events.sql").read_bytes())

    def _connect(self) -> None:
        self.say("setting up the way to Kafka")
        setup = Setup(
            dsn=self.stack.dsn(),
            connect_url=self.stack.connect_url,
            bootstrap_servers=self.stack.bootstrap_servers,
            connector=_CONNECTOR,
            slot=_SLOT,
        )
        install(setup, PasswordFile(self.stack.secrets / "debezium.properties"))
        self._config = self._call("GET", f"/connectors/{_CONNECTOR}/config")


def _resident(pid: int) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _proportional(pid: int) -> int:
    """What a process uses, and its part of what it shares with others; by RSS where that cannot be told."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s*(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        if found is not None:
            return int(found.group(1)) * 1024
    return _resident(pid)

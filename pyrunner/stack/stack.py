"""PostgreSQL, a Kafka broker and Kafka Connect in a folder of their own, for development and tests.

All three listen on 127.0.0.1 only, and go on when the process that started them ends. PostgreSQL asks for a
password that others cannot read. Broker and Connect ask for none: whoever can log in to the machine gets in.
"""

import base64
import contextlib
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import psycopg
from psycopg.sql import SQL, Identifier

from pyrunner.errors import PyrunnerError, UsageError
from pyrunner.migrations import migrate
from pyrunner.postgres import (
    Binaries,
    PrivateServer,
    ServerError,
    embedded_binaries,
    find_binaries,
    free_port,
    is_free_port,
    local_binaries,
)
from pyrunner.stack.assembly import assemble, find_java
from pyrunner.stack.files import debezium_root, escaped, filled_properties
from pyrunner.stack.processes import Daemon, wait_for

__all__ = ["DATABASE", "PARTS", "Part", "PartStatus", "Stack", "StackError"]

Part = Literal["postgres", "broker", "connect"]
Tell = Callable[[str], None]

PARTS: Final[tuple[Part, ...]] = ("postgres", "broker", "connect")
DATABASE: Final = "crm"

_OLDEST_SERVER: Final = 15
_SHOWN: Final[dict[Part, str]] = {"postgres": "PostgreSQL", "broker": "The broker", "connect": "Connect"}
# the ports of a part, the one that others know first
_PORTS: Final[dict[Part, tuple[str, ...]]] = {
    "postgres": ("postgres",),
    "broker": ("broker", "controller"),
    "connect": ("connect",),
}
_MARK: Final = "stack.json"
_POSTGRES: Final = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_NO_BINARIES: Final = Binaries(Path("/nonexistent"), "0", "none", Path("/nonexistent"))
_MAIN: Final[dict[Part, str]] = {
    "broker": "kafka.Kafka",
    "connect": "org.apache.kafka.connect.cli.ConnectDistributed",
}
_JVM: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    # one that is out of memory ends, and is seen, instead of limping on
    "-XX:+ExitOnOutOfMemoryError",
)
_HEAP: Final[dict[Part, tuple[str, str]]] = {
    "broker": ("-Xms256m", "-Xmx512m"),
    "connect": ("-Xms128m", "-Xmx512m"),
}
# relative to the working folder: a colon in that one's path would end the class path
_CLASSES: Final = ("-cp", "kafka/*")
# what separates lists or begins placeholders for Kafka, Connect or log4j
_FORBIDDEN: Final = re.compile(r"[,:$}%\x00-\x1f\x7f\ud800-\udfff]")
# these would lead a shell elsewhere, or ask more of the connection than our server gives
_MISLEADING: Final = (
    "PYRUNNER_DSN", "PGHOSTADDR", "PGSERVICE", "PGPASSWORD", "PGOPTIONS", "PGSSLMODE", "PGSSLNEGOTIATION",
    "PGCHANNELBINDING", "PGGSSENCMODE", "PGREQUIREAUTH", "PGREQUIREPEER", "PGTARGETSESSIONATTRS",
)  # fmt: skip


class StackError(PyrunnerError):
    """A part of the stack could not be started or stopped."""


@dataclass(frozen=True)
class PartStatus:
    """How a part is.

    Attributes:
        part: its name.
        state: `running`: it answers; `silent`: its process is there, and does not answer; `died`: it was
            started, and is gone without having been stopped; `stopped`.
        pid: its process, or None.
        address: host and port.
        log: its log file.
    """

    part: Part
    state: Literal["running", "silent", "died", "stopped"]
    pid: int | None
    address: str
    log: Path


def _ignore(_: str) -> None:
    """Nobody wants to know."""


class Stack:
    """A PostgreSQL with logical WAL, a broker, and a Connect that has the Debezium connector.

    Args:
        folder: holds data, logs, settings and secrets; made when missing. Everything in it is the stack's.
        binaries: the PostgreSQL to run; by default one of the data's version, with pg_cron if there is one.
        settings: more configuration parameters for PostgreSQL.
        jvm_options: more options for broker and Connect.
        cache: where Kafka is assembled; see `assemble`.

    The constructor touches nothing, so that the stack of another process can be asked about and stopped.

    Attributes:
        folder: absolute.
        postgres: the server.

    Raises:
        UsageError: the folder cannot be used.
        StackError: there is something in it that is no stack.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Binaries | None = None,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        cache: Path | None = None,
    ) -> None:
        self.folder = folder.expanduser().absolute()
        if found := _FORBIDDEN.search(str(self.folder)):
            raise UsageError(
                f"The path {str(self.folder)!r} cannot be a stack's: Kafka or Connect would misread "
                f"the {found.group()!r} in it.",
                hint="Name another --folder.",
            )
        self._binaries = binaries
        self._settings = dict(settings or {})
        self._jvm_options = tuple(jvm_options)
        self._cache = cache
        self._is_locked = False
        self._log_sizes: dict[Part, int] = {}
        self._state = self._read_state() or _new_state()
        self.postgres = self._make_postgres()
        self._daemons = {
            part: Daemon(self.folder / part / "process.json", [*_CLASSES, main, str(self._properties(part))])
            for part, main in _MAIN.items()
        }

    # ------------------------------------------------------------ where things are

    @property
    def bootstrap_servers(self) -> str:
        """Where Kafka's clients find the broker: "127.0.0.1:PORT"; settled by the first start."""
        return self._address("broker")

    @property
    def connect_url(self) -> str:
        """Connect's REST interface; settled by the first start."""
        return f"http://{self._address('connect')}"

    @property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster."""
        return str(self._state["cluster_id"])

    @property
    def secrets(self) -> Path:
        """The folder whose files connectors may name by ${file:PATH:key}; only its owner can enter it."""
        return self.folder / "secrets"

    @property
    def environment_file(self) -> Path:
        """A file that points a shell's psql and pyrunner at this stack."""
        return self.folder / "env"

    @property
    def is_made(self) -> bool:
        """Whether a stack has been here: what is in the folder is ours to stop and to remove."""
        return (self.folder / _MARK).is_file()

    def dsn(self, database: str = DATABASE) -> str:
        """A connection string for the superuser, with the password's file in place of the password."""
        return self.postgres.dsn(database)

    def log(self, part: Part) -> Path:
        """The log file of a part."""
        return self.postgres.log if part == "postgres" else self.folder / part / f"{part}.log"

    def pid(self, part: Part) -> int | None:
        """The process of a part, PostgreSQL's postmaster, or None when it does not run."""
        return self.postgres.pid if part == "postgres" else self._daemons[part].pid

    def status(self) -> list[PartStatus]:
        """How each part is.

        Raises:
            StackError: Kafka's clients are not installed.
        """
        return [self._status(part) for part in PARTS]

    def write_secret(self, name: str, **values: str) -> Path:
        """Writes a file of properties into `secrets`, at no moment readable by others; returns its path."""
        self._make_folder()
        path, new = self.secrets / name, self.secrets / f"{name}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{key}={escaped(value)}\n" for key, value in values.items())
        new.replace(path)
        return path

    # ------------------------------------------------------------ up and down

    def up(self, *, on_progress: Tell = _ignore, timeout: float = 180) -> Self:
        """Starts what does not run, and waits until all of it answers; what runs is left alone.

        Args:
            on_progress: is told what takes a while.
            timeout: seconds to wait for each part.

        Raises:
            PyrunnerError: something is missing, or a part did not start; the message says why.
        """
        with self._locked():
            _need_clients()
            if any(self.pid(part) is None for part in _MAIN):
                # before anything is started
                find_java()
                assemble(self._cache, on_progress=on_progress)
            for part in PARTS:
                self._start(part, timeout, on_progress)
            self._write_environment()
        return self

    def start_postgres(self, timeout: float = 180) -> None:
        """Starts PostgreSQL unless it runs, and waits until it takes connections."""
        with self._locked():
            self._start("postgres", timeout, _ignore)

    def start_broker(self, timeout: float = 180) -> None:
        """Starts the broker unless it runs, and waits until it answers a request for metadata."""
        with self._locked():
            self._start("broker", timeout, _ignore)

    def start_connect(self, timeout: float = 180) -> None:
        """Starts Connect unless it runs, and waits until it answers; without a broker it gives up."""
        with self._locked():
            self._start("connect", timeout, _ignore)

    def stop(self, part: Part, patience: float = 60) -> None:
        """Stops a part by SIGTERM (PostgreSQL by SIGINT), and by SIGKILL after `patience` seconds."""
        if part == "postgres":
            try:
                self.postgres.stop("fast", patience)
            except ServerError:
                self.postgres.kill()
            return
        try:
            self._daemons[part].stop(patience)
        except TimeoutError as error:
            raise StackError(f"{_SHOWN[part]} goes on: {error}.", hint="See the kernel's log.") from None

    def kill(self, part: Part) -> None:
        """Ends a part by SIGKILL, PostgreSQL with all its processes; does nothing when it does not run."""
        if part == "postgres":
            self.postgres.kill()
        else:
            self._daemons[part].kill()

    def down(self, *, on_progress: Tell = _ignore) -> list[Part]:
        """Stops Connect, broker and PostgreSQL, in that order, and nothing else; returns those that ran."""
        stopped: list[Part] = []
        if not self.is_made:
            return stopped
        with self._locked():
            for part in reversed(PARTS):
                if self.pid(part) is not None:
                    on_progress(f"{_SHOWN[part]} stops.")
                    stopped.append(part)
                self.stop(part)
        return stopped

    def destroy(self, *, on_progress: Tell = _ignore) -> list[Part]:
        """Stops everything and removes the stack's files; returns the parts that ran."""
        stopped = self.down(on_progress=on_progress)
        if not self.is_made:
            return stopped
        try:
            self.postgres.destroy()
            for name in (*_MAIN, "secrets", "tmp"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            # the mark goes last: until then another attempt can finish this one
            for name in ("env", "lock", _MARK):
                (self.folder / name).unlink(missing_ok=True)
            # whatever else is there is not ours
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        except OSError as error:
            raise self._unusable(error) from None
        self._adopt(_new_state())
        return stopped

    def install(self, database: str = DATABASE, *, on_progress: Tell = _ignore) -> None:
        """Makes a database when it is not there, and brings the engine in it up to date.

        pg_cron is installed, too, in the database that it works in; it schedules nothing by itself.
        """
        with contextlib.closing(psycopg.connect(self.dsn("postgres"), autocommit=True)) as connection:
            if not connection.execute("select from pg_database where datname = %s", (database,)).fetchall():
                statement = SQL("create database {} template template0 encoding 'UTF8'")
                connection.execute(statement.format(Identifier(database)))
        migrate(self.dsn(database), on_progress=on_progress)
        if database == DATABASE and self.postgres.binaries.has_library("pg_cron"):
            with contextlib.closing(psycopg.connect(self.dsn(database), autocommit=True)) as connection:
                connection.execute("create extension if not exists pg_cron")

    # ------------------------------------------------------------ inside: folder and state

    def _port(self, name: str) -> int:
        return int(self._state["ports"][name])

    def _address(self, part: Part) -> str:
        return f"127.0.0.1:{self._port(part)}"

    def _properties(self, part: Part) -> Path:
        return self.folder / part / f"{part}.properties"

    def _unusable(self, error: OSError) -> PyrunnerError:
        return UsageError(
            f"{self.folder} cannot be used: {error.strerror}: {error.filename}.",
            hint="Name another --folder.",
        )

    def _read_state(self) -> dict[str, Any] | None:
        path = self.folder / _MARK
        try:
            state: dict[str, Any] = json.loads(path.read_text())
            numbers = [state["ports"][name] for names in _PORTS.values() for name in names]
            if (
                all(isinstance(number, int) for number in numbers)
                and isinstance(state["cluster_id"], str)
                and isinstance(state["settled"], list)
                and isinstance(state["formatted"], bool)
            ):
                return state
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None
        except (ValueError, KeyError, TypeError):
            pass
        raise StackError(
            f"{path} does not say what stack is in that folder.",
            hint=f"End its processes if there are any (pgrep -f {shlex.quote(str(self.folder))}), "
            "and remove the folder.",
        )

    def _write_state(self) -> None:
        new = self.folder / f"{_MARK}.new"
        new.write_text(json.dumps(self._state, indent=2) + "\n")
        new.replace(self.folder / _MARK)

    def _adopt(self, state: dict[str, Any]) -> None:
        before, self._state = self._state, state
        if before["ports"]["postgres"] != state["ports"]["postgres"]:
            self.postgres = self._make_postgres()

    def _make_folder(self) -> None:
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                # whatever the umask: PostgreSQL's user passes through; what is secret has a mode of its own
                self.folder.chmod(0o755)
            if self.folder.stat().st_uid != os.geteuid():
                raise UsageError(
                    f"{self.folder} is another user's.",
                    hint="Go on as that user, or name another --folder.",
                )
            if not self.is_made:
                if any(self.folder.iterdir()):
                    raise UsageError(
                        f"{self.folder} is not empty, and no stack made it.", hint="Name another --folder."
                    )
                self._write_state()
            for name in (*_MAIN, "secrets", "tmp"):
                (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts and stops parts; within, the state is the one on disk."""
        if self._is_locked:
            yield
            return
        handle = self._lock()
        try:
            self._adopt(self._read_state() or self._state)
            self._is_locked = True
            yield
        finally:
            self._is_locked = False
            os.close(handle)

    def _lock(self) -> int:
        """A handle that holds the lock until it is closed."""
        path = self.folder / "lock"
        while True:
            self._make_folder()
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise self._unusable(error) from None
            fcntl.flock(handle, fcntl.LOCK_EX)
            # while we waited, somebody may have removed the stack, and the lock with it
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
            os.close(handle)

    # ------------------------------------------------------------ inside: starting

    def _start(self, part: Part, timeout: float, on_progress: Tell) -> None:
        """Starts a part unless it runs, and waits until it answers."""
        is_new = part not in self._state["settled"]
        for attempt in range(5):
            if self.pid(part) is None:
                on_progress(f"{_SHOWN[part]} starts.")
                self._secure_ports(part, is_new=is_new)
                self._launch(part)
            try:
                self._wait(part, timeout)
                break
            except (StackError, ServerError):
                # somebody may have taken a port between our look and the part's start
                taken = self.pid(part) is None and not all(map(is_free_port, map(self._port, _PORTS[part])))
                if not (is_new and taken and attempt < 4):
                    raise
        if is_new:
            self._state["settled"].append(part)
            self._write_state()

    def _secure_ports(self, part: Part, *, is_new: bool) -> None:
        """Sees to it that nobody has the part's ports; chooses others only as long as nobody knows them."""
        for name in _PORTS[part]:
            port = self._port(name)
            if is_free_port(port):
                continue
            if not is_new:
                raise StackError(
                    f"{_SHOWN[part]} of this stack has port {port}, and another process is using it.",
                    hint=f"End that one (`ss -ltnp 'sport = :{port}'` names it), "
                    "or make the stack anew: pyrunner stack down --remove",
                )
            ports: dict[str, int] = self._state["ports"]
            state = {**self._state, "ports": {**ports, name: _choose_port(ports.values())}}
            if part == "broker":
                # its storage knows the controller's port
                state["formatted"] = False
            self._adopt(state)
            self._write_state()

    def _launch(self, part: Part) -> None:
        """Starts the process of a part; PostgreSQL is started by waiting for it."""
        if part == "postgres":
            return
        java, home = find_java(), assemble(self._cache)
        if part == "broker":
            self._format(java, home)
        self._write_properties(part, home)
        # a rolled log begins anew, an old one is not to explain a new failure
        log = self.log(part)
        log.touch(mode=0o600)
        self._log_sizes[part] = log.stat().st_size
        command = self._java(java, part, *_HEAP[part], *_JVM, *self._jvm_options)
        try:
            self._daemons[part].start(
                [*command, _MAIN[part], str(self._properties(part))],
                output=self._output(part), folder=home, environment=_environment(),
            )  # fmt: skip
        except OSError as error:
            raise StackError(f"{java} cannot be run: {error.strerror}.", hint="Install Java again.") from None

    def _java(self, java: str, part: Part, *options: str) -> list[str]:
        """A command, to be followed by the main class and its arguments, the settings last."""
        return [
            java, *options,
            # nothing of ours in the machine's temporary folder
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-Dlog4j2.configurationFile={(debezium_root() / 'log4j2.yaml').absolute().as_uri()}",
            f"-Dpyrunner.log={self.log(part)}",
            *_CLASSES,
        ]  # fmt: skip

    def _output(self, part: Part) -> Path:
        """What a program writes before it has a log, or when it cannot have one."""
        return self.folder / part / "output.log"

    def _write_properties(self, part: Part, home: Path) -> None:
        values = {
            "broker": {
                "BROKER_PORT": str(self._port("broker")),
                "CONTROLLER_PORT": str(self._port("controller")),
                "DATA": str(self.folder / "broker" / "data"),
            },
            "connect": {
                "BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "GROUP": "connect-crm",
                "REPLICATION_FACTOR": "1",
                "REST_PORT": str(self._port("connect")),
                "PLUGINS": str(home / "plugins"),
                "SECRETS": str(self.secrets),
            },
        }
        self._properties(part).write_text(filled_properties(f"{part}.properties", values[part]), "ascii")

    def _format(self, java: str, home: Path) -> None:
        """Makes the broker's storage, unless that is done; one only begun has never held anything."""
        if self._state["formatted"]:
            return
        data = self.folder / "broker" / "data"
        shutil.rmtree(data, ignore_errors=True)
        self._write_properties("broker", home)
        done = subprocess.run(
            [
                *self._java(java, "broker", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                "kafka.tools.StorageTool", "format", "--cluster-id", self.cluster_id, "--standalone",
                "--config", str(self._properties("broker")),
            ],
            cwd=home, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False,
        )  # fmt: skip
        if done.returncode:
            raise StackError(
                f"The broker's storage in {data} could not be made: {_reason(done.stdout + done.stderr)}.",
                hint="Check the space and the permissions there.",
            )
        self._state["formatted"] = True
        self._write_state()

    def _wait(self, part: Part, timeout: float) -> None:
        if part == "postgres":
            if self.postgres.binaries is _NO_BINARIES:
                # says what is missing
                self._find_binaries(self.postgres)
            self.postgres.start(timeout)
            return
        answers = self._answers(part)
        if not wait_for(lambda: self.pid(part) is None or answers(), timeout, pause=0.1):
            raise StackError(
                f"{_SHOWN[part]} (process {self.pid(part)}) does not answer on {self._address(part)}, "
                f"and was given {timeout:g} s.",
                hint=f"Its log is {self.log(part)}. Begin anew by pyrunner stack down, and up.",
            )
        if self.pid(part) is None:
            raise StackError(
                f"{_SHOWN[part]} did not start: {_reason(self._said(part))}.",
                hint=f"Its log is {self.log(part)}.",
            )

    def _said(self, part: Part) -> str:
        """What a program has written since its start."""
        texts = []
        for path, start in ((self._output(part), 0), (self.log(part), self._log_sizes.get(part, 0))):
            with contextlib.suppress(OSError), path.open(errors="replace") as file:
                file.seek(start if path.stat().st_size >= start else 0)
                texts.append(file.read())
        return "\n".join(texts)

    # ------------------------------------------------------------ inside: PostgreSQL

    def _make_postgres(self) -> PrivateServer:
        server = PrivateServer(
            _NO_BINARIES,
            self.folder / "postgresql",
            port=self._port("postgres"),
            # pg_cron connects to itself; the socket's folder keeps others out
            trust_socket=True,
            initdb_options=["--no-sync"],
        )
        # one that is to be stopped needs none
        with contextlib.suppress(ServerError):
            self._find_binaries(server)
        return server

    def _find_binaries(self, server: PrivateServer) -> None:
        server.binaries = self._binaries or _binaries_for(server.data)
        server.settings = dict(_POSTGRES)
        if server.binaries.has_library("pg_cron"):
            server.settings |= {
                "shared_preload_libraries": "pg_cron",
                "cron.database_name": DATABASE,
                "cron.host": str(server.socket_dir),
            }
        server.settings |= self._settings

    # ------------------------------------------------------------ inside: asking

    def _status(self, part: Part) -> PartStatus:
        pid = self.pid(part)
        state: Literal["running", "silent", "died", "stopped"]
        if pid is not None:
            state = "running" if self._answers(part)() else "silent"
        elif part == "postgres":
            state = "died" if (self.postgres.data / "postmaster.pid").exists() else "stopped"
        else:
            state = "died" if self._daemons[part].has_died else "stopped"
        return PartStatus(part, state, pid, self._address(part), self.log(part))

    def _answers(self, part: Part) -> Callable[[], bool]:
        _need_clients()
        return {
            "postgres": self._postgres_answers,
            "broker": self._broker_answers,
            "connect": self._connect_answers,
        }[part]

    def _postgres_answers(self) -> bool:
        try:
            psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
        except psycopg.Error:
            return False
        return True

    def _broker_answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection(("127.0.0.1", self._port("broker")), timeout=2).close()
        except OSError:
            return False
        # its errors on standard error would be about what we are waiting for
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        try:
            found = AdminClient(settings | {"error_cb": _ignore}).list_topics(timeout=5)
        except KafkaException:
            return False
        # somebody else's broker is not ours
        return bool(found.brokers) and found.cluster_id == self.cluster_id

    def _connect_answers(self) -> bool:
        import httpx

        try:
            # a proxy of the environment has no business on loopback
            with httpx.Client(base_url=self.connect_url, timeout=5, trust_env=False) as client:
                about = client.get("/")
                is_ours = about.is_success and about.json().get("kafka_cluster_id") == self.cluster_id
                return is_ours and client.get("/connectors").is_success
        except (httpx.HTTPError, ValueError):
            return False

    # ------------------------------------------------------------ inside: for shells

    def _write_environment(self) -> None:
        variables = {
            **self.postgres.environment(DATABASE),
            "PYRUNNER_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "PYRUNNER_CONNECT_URL": self.connect_url,
            "PYRUNNER_CDC_PASSWORD_FILE": str(self.secrets / "debezium.properties"),
        }
        lines = [
            "# Made by `pyrunner stack up`: points this shell's psql and pyrunner at the stack.",
            f"unset {' '.join(_MISLEADING)}",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        ]
        try:
            self.environment_file.write_text("\n".join(lines) + "\n")
        except OSError as error:
            raise self._unusable(error) from None


# ------------------------------------------------------------ small things


def _new_state() -> dict[str, Any]:
    ports: dict[str, int] = {}
    for names in _PORTS.values():
        for name in names:
            ports[name] = _choose_port(ports.values())
    # one that begins with a dash would be taken for an option
    cluster_id = "-"
    while cluster_id.startswith("-"):
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    return {"cluster_id": cluster_id, "ports": ports, "settled": [], "formatted": False}


def _choose_port(taken: Collection[int]) -> int:
    """A free port from below those of outgoing connections, so that it stays free while a part is down."""
    lowest = 32768
    with contextlib.suppress(OSError, ValueError, IndexError):
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(200 if lowest > 12000 else 0):
        port = 10000 + secrets.randbelow(lowest - 10000)
        if port not in taken and is_free_port(port):
            return port
    return free_port()


def _binaries_for(data: Path) -> Binaries:
    """The PostgreSQL that made the data; for new ones a server of this machine, one with pg_cron first."""
    local = [binaries for binaries in local_binaries() if binaries.major >= _OLDEST_SERVER]
    local.sort(key=lambda binaries: not binaries.has_library("pg_cron"))
    embedded = embedded_binaries()
    found = [*local, *([] if embedded is None else [embedded])]
    with contextlib.suppress(OSError, ValueError):
        major = int((data / "PG_VERSION").read_text())
        found.sort(key=lambda binaries: binaries.major != major)
    return found[0] if found else find_binaries()


def _need_clients() -> None:
    try:
        import confluent_kafka
        import httpx
    except ImportError as error:
        raise StackError(
            f"The stack needs the Python package {error.name}, which is not installed.",
            hint="pip install 'pyrunner[cdc]'",
        ) from None
    del confluent_kafka, httpx


def _environment() -> dict[str, str]:
    """Our variables without what would give Kafka other settings; with them Java takes every file's name."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "CLASSPATH"))}
    return ours | {"LC_ALL": "C.UTF-8"}


def _reason(output: str) -> str:
    """The sentence that matters in what a Java program wrote: of its exceptions the last cause."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "Picked up J" not in line]
    for line in reversed(lines):
        if found := re.search(r"(?:^|[\s:])(?:[a-z]\w*\.)+(\w+(?:Exception|Error): .+)", line):
            return found.group(1).rstrip(". ")
    marked = [line for line in lines if re.search(r"\b(ERROR|FATAL|Error)\b", line)] or lines
    return marked[-1].rstrip(".") if marked else "it gave no reason"

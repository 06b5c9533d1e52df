"""The database's side: publication, role and slot."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import DictRow
from psycopg.sql import SQL, Composed, Identifier, Literal

from pyrunner.cdc.errors import NotAllowedError, UnfitError
from pyrunner.cdc.setup import PLUGIN, Setup
from pyrunner.database import Connection, connect, query, quoted, rows, session
from pyrunner.errors import BusyError, PyrunnerError, RefusedError
from pyrunner.output import span

__all__ = ["Slot", "Source", "open_source"]

_LOCK_PATIENCE: Final = SQL("set local lock_timeout = '10s'")


@dataclass(frozen=True)
class Slot:
    """A slot as it is.

    Attributes:
        is_there: in this database or another.
        is_fit: it is one that the connector can use here.
        kind: what it is, in words.
        is_lost: the log that it needs is gone.
        active: somebody reads from it.
        confirmed: up to where everything was delivered, in bytes of log; None where it has no such place.
        is_registered: the outbox expects it.
        connector: whose it is, by the registry.
        gap_since: since when what is older than it may not have been delivered; None where there is no doubt.
    """

    name: str
    is_there: bool
    is_fit: bool
    kind: str
    is_lost: bool
    active: bool
    active_pid: int | None
    confirmed: int | None
    confirmed_lsn: str | None
    is_registered: bool
    publication: str | None
    connector: str | None
    gap_since: datetime | None

    @property
    def is_usable(self) -> bool:
        """Whether the connector can go on from it."""
        return self.is_there and self.is_fit and not self.is_lost


@dataclass
class Prepared:
    """What became of publication and role.

    Attributes:
        undo: the statements that take it back.
    """

    made_publication: bool
    made_role: bool
    changed_role: bool = False
    undo: list[Composed] = field(default_factory=list)


class Source:
    """What stands in the database; each method leaves no transaction open.

    Attributes:
        connection: ours.
        database: its name.
    """

    def __init__(self, setup: Setup, connection: Connection) -> None:
        self.setup = setup
        self.connection = connection
        self.database: str = connection.info.dbname

    @property
    def host(self) -> str:
        """PostgreSQL's host as Connect sees it, unless told otherwise the one that we use."""
        if self.setup.database_host is not None:
            return self.setup.database_host
        host = self.connection.info.host
        return host if host and not host.startswith(("/", "@")) else "localhost"

    @property
    def port(self) -> int:
        """The same of its port."""
        return self.setup.database_port or self.connection.info.port

    def rows(self, name: str, parameters: Any = None) -> list[DictRow]:
        """The rows of queries/cdc/NAME.sql."""
        # without any parameters psycopg would leave the doubled signs of the percent as they are
        found = rows(self.connection, query(f"cdc/{name}"), {} if parameters is None else parameters)
        self._end()
        return found

    def _end(self) -> None:
        if not self.connection.autocommit:
            self.connection.rollback()

    def facts(self) -> DictRow:
        """What server and login are able to do."""
        (found,) = self.rows("server")
        return found

    def slot(self) -> Slot:
        """The slot."""
        (found,) = self.rows("slot", {"slot": self.setup.slot, "plugin": PLUGIN})
        return Slot(**{"name": self.setup.slot, **found})

    def publication(self) -> bool | None:
        """Whether the publication publishes what it should; None when it is not there."""
        (found,) = self.rows("publication", {"publication": self.setup.publication})
        is_right: bool | None = found["is_right"]
        return is_right

    def role(self) -> DictRow | None:
        """The connector's role; None when it is not there."""
        found = self.rows("role", {"role": self.setup.role})
        return found[0] if found else None

    # ------------------------------------------------------------ publication and role

    def prepare(self, password: str | None) -> Prepared:
        """Makes publication, role and grants where they are missing, in the transaction that it leaves open.

        Args:
            password: to give to the role; None leaves that of an existing one as it is.
        """
        setup = self.setup
        present = self.role()
        rows(self.connection, _LOCK_PATIENCE)
        publish = "select outbox.create_publication(%s) as made"
        (answer,) = rows(self.connection, publish, (setup.publication,))
        done = Prepared(made_publication=answer["made"], made_role=present is None)
        if done.made_publication:
            done.undo.append(SQL("drop publication if exists {}").format(Identifier(setup.publication)))
        role = Identifier(setup.role)
        if password is not None:
            verb, attributes = ("create", "login replication ") if present is None else ("alter", "")
            rows(
                self.connection,
                SQL("{} role {} {}password {}").format(
                    SQL(verb), role, SQL(attributes), Literal(self._verifier(password))
                ),
            )
            done.changed_role = True
        if present is None:
            comment = Literal("Debezium: reads the outbox from the log.")
            rows(self.connection, SQL("comment on role {} is {}").format(role, comment))
            done.undo.append(SQL("drop role if exists {}").format(role))
            (present,) = rows(self.connection, query("cdc/role"), {"role": setup.role})
        grants = (
            (present["may_use_schema"], SQL("usage on schema outbox")),
            (present["may_connect"], SQL("connect on database {}").format(Identifier(self.database))),
        )
        for is_granted, what in grants:
            if not is_granted:
                rows(self.connection, SQL("grant {} to {}").format(what, role))
                # what hangs on the role goes before it
                done.undo.insert(0, SQL("revoke {} from {}").format(what, role))
                done.changed_role = True
        return done

    def _verifier(self, password: str) -> str:
        # the password itself would stand in the log of a server that logs statements
        made = self.connection.pgconn.encrypt_password(
            password.encode(), self.setup.role.encode(), b"scram-sha-256"
        )
        return made.decode()

    def run(self, statements: list[Composed]) -> None:
        """Executes statements in one transaction."""
        for statement in statements:
            rows(self.connection, statement)
        self.connection.commit()

    # ------------------------------------------------------------ the slot

    def register(self) -> bool:
        """Notes that the outbox has this slot; whether that is new."""
        setup = self.setup
        (found,) = rows(
            self.connection,
            "select outbox.register_slot(%s, %s, %s) as changed",
            (setup.slot, setup.publication, setup.connector),
        )
        self.connection.commit()
        return bool(found["changed"])

    def forget(self) -> bool:
        """Notes that the outbox has this slot no longer; whether it was known."""
        return self._note("select outbox.forget_slot(%s) as changed")

    def open_gap(self) -> bool:
        """Notes that what is older than the slot may not have been delivered; whether that is new."""
        return self._note("select outbox.open_gap(%s) as changed")

    def close_gap(self) -> bool:
        """Notes that all of it was; whether that is new."""
        return self._note("select outbox.close_gap(%s) as changed")

    def _note(self, call: LiteralString) -> bool:
        (found,) = rows(self.connection, call, (self.setup.slot,))
        self.connection.commit()
        return bool(found["changed"])

    def check_slot(self, slot: Slot) -> None:
        """Refuses a slot of that name that is somebody else's.

        Raises:
            RefusedError: so it is.
        """
        if slot.is_there and not slot.is_fit:
            raise RefusedError(
                f"There is a replication slot {slot.name} of another kind: {slot.kind}.",
                hint="Name another one by --slot.",
            )

    def create_slot(self, *, patience: float, tell: Callable[[str], None]) -> None:
        """Makes the slot, and tells what that waits for: every transaction that is open now must end first.

        Args:
            patience: seconds after which it is given up.
            tell: is told in a sentence whenever it waits for somebody else.

        Raises:
            BusyError: it was given up; there is no slot.
        """
        work = None
        try:
            with (
                contextlib.closing(
                    connect(self.setup.dsn, name="pyrunner cdc slot", autocommit=True)
                ) as maker,
                _in_background(
                    maker,
                    SQL("select pg_create_logical_replication_slot({}, {})").format(
                        Literal(self.setup.slot), Literal(PLUGIN)
                    ),
                ) as work,
            ):
                self._wait_for_slot(work, maker.info.backend_pid, patience, tell)
        except BaseException:
            # made in the moment in which it was given up
            if work is not None and work.is_done:
                with contextlib.suppress(PyrunnerError, psycopg.Error):
                    self.drop_slot(patience=0)
            raise

    def _wait_for_slot(self, work: "_Work", pid: int, patience: float, tell: Callable[[str], None]) -> None:
        deadline = time.monotonic() + patience
        told = ""
        while not work.wait(0.1):
            blockers = self.rows("waits", {"pid": pid})
            if blockers and told != (whom := _whom(blockers[0])):
                told = whom
                tell(f"The slot waits for {whom}.")
            if time.monotonic() > deadline:
                raise BusyError(
                    f"Slot {self.setup.slot} could not be made within {patience:g} s: "
                    f"it waits for {told or 'open transactions'}.",
                    hint=_ending(blockers[0]) if blockers else "Try again when fewer transactions are open.",
                )

    def drop_slot(self, *, patience: float) -> bool:
        """Drops the slot once nobody reads from it any more; whether it was there.

        Raises:
            BusyError: somebody still reads from it.
        """
        deadline = time.monotonic() + patience
        while (slot := self.slot()).active:
            if time.monotonic() > deadline:
                raise BusyError(
                    f"Slot {slot.name} is still read by backend {slot.active_pid}.",
                    hint="It is not our connector, which has ended: end that reader, and try again.",
                )
            time.sleep(0.1)
        if slot.is_there:
            rows(self.connection, "select pg_drop_replication_slot(%s)", (slot.name,))
            self.connection.commit()
        return slot.is_there


class _Work:
    def __init__(self, connection: Connection, statement: Composed) -> None:
        self._connection = connection
        self._statement = statement
        self._error: BaseException | None = None
        # a thread whose join() was interrupted counts as ended, although it is not
        self._done = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            # a timeout of the role's is meant for others
            self._connection.execute("select set_config('statement_timeout', '0', false)")
            self._connection.execute("select set_config('lock_timeout', '0', false)")
            self._connection.execute(self._statement)
        except BaseException as error:  # noqa: BLE001 - handed on by wait()
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout: float) -> bool:
        if not self._done.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def is_done(self) -> bool:
        """Whether the statement has come to its end, and without an error."""
        return self._done.is_set() and self._error is None

    def cancel(self) -> None:
        if not self._done.is_set():
            self._connection.cancel_safe(timeout=10)
            self._done.wait(10)


@contextlib.contextmanager
def _in_background(connection: Connection, statement: Composed) -> Iterator[_Work]:
    """A statement at work; whoever leaves before its end cancels it."""
    work = _Work(connection, statement)
    try:
        yield work
    finally:
        work.cancel()


def _whom(row: DictRow) -> str:
    age = f", open for {span(row['age'])}" if row["age"] is not None else ""
    login = f" of {row['login']}" if row["login"] else ""
    if row["pid"] is None:
        name = f" {row['gid']!r}" if row["gid"] else ""
        return f"prepared transaction{name}{login}{age}"
    program = f" ({row['application_name']})" if row["application_name"] else ""
    state = f", {row['state']}" if row["state"] else ""
    return f"the transaction of backend {row['pid']}{login}{program}{state}{age}"


def _ending(row: DictRow) -> str:
    if row["pid"] is None:
        return "End it: commit prepared or rollback prepared, in its database."
    return f"Let it end, or end it: select pg_terminate_backend({row['pid']}); then try again."


@contextlib.contextmanager
def open_source(setup: Setup, command: str, *, autocommit: bool = False) -> Iterator[Source]:
    """The database of a set-up; errors of PostgreSQL leave it in words."""
    with session(setup.dsn, f"cdc {command}", "crm_operator", autocommit=autocommit) as connection:
        yield Source(setup, connection)


def check_server(source: Source, *, needs_slot: bool, needs_role: bool) -> Iterator[PyrunnerError]:
    """What of server and login stands in the way of an installation.

    Args:
        source: the database.
        needs_slot: the slot is still to be made.
        needs_role: the role is still to be made.
    """
    facts = source.facts()
    login = quoted(facts["login"])
    if facts["is_standby"]:
        yield UnfitError(
            "This server is a standby, and the outbox is written on the primary.",
            hint="Connect to the primary.",
        )
        return
    if facts["wal_level"] != "logical":
        yield UnfitError(
            f"The server's wal_level is {facts['wal_level']}, and Debezium needs logical.",
            hint="As a superuser: alter system set wal_level = 'logical'; then restart PostgreSQL.",
        )
    if needs_slot and facts["slots"] >= facts["max_slots"]:
        yield UnfitError(
            f"All {facts['max_slots']} replication slots of the server are taken.",
            hint="Drop one that nobody needs (select * from pg_replication_slots), or raise "
            "max_replication_slots "
            "and restart PostgreSQL.",
        )
    if needs_slot and facts["senders"] >= facts["max_senders"]:
        yield UnfitError(
            f"All {facts['max_senders']} WAL senders of the server are taken.",
            hint="Raise max_wal_senders, and restart PostgreSQL.",
        )
    if needs_slot and not facts["may_replicate"]:
        yield NotAllowedError(
            f"{facts['login']} may not make a replication slot.",
            hint=f"As a superuser: alter role {login} replication;",
        )
    if needs_role and not facts["may_create_role"]:
        yield NotAllowedError(
            f"{facts['login']} may not create the role {source.setup.role}.",
            hint=f"As a superuser: create role {quoted(source.setup.role)} login replication password '...'; "
            "then run this again with its --password-file.",
        )

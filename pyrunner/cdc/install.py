"""Setting up the way from outbox to Kafka: all is looked at first, and a failure leaves nothing behind."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import psycopg
from psycopg import sql
from psycopg.rows import DictRow
from psycopg.sql import Composed

from pyrunner.cdc.connector import find_position, position_of, remove, set_position, stop, wait_until_running
from pyrunner.cdc.errors import ConnectError, NotAllowedError, ObstaclesError, PasswordError, UnfitError
from pyrunner.cdc.kafka import Kafka
from pyrunner.cdc.rest import Connect
from pyrunner.cdc.secret import PasswordFile
from pyrunner.cdc.setup import CONNECTOR_CLASS, DEBEZIUM_CLASS, Setup, Topic
from pyrunner.cdc.source import Slot, Source, check_server, open_source
from pyrunner.database import explain, quoted, rows
from pyrunner.errors import PyrunnerError, RefusedError, UsageError

__all__ = [
    "RUNNING_PATIENCE",
    "Action",
    "Step",
    "check_connector",
    "check_topics",
    "install",
    "quiet",
    "require_ours",
]

Action = Literal["made", "kept", "changed", "removed", "absent"]
Tell = Callable[[str], None]
RUNNING_PATIENCE: Final = 60.0
# Connect's own, which differ from place to place and change nothing
_NOT_OURS: Final = frozenset({"name"})


@dataclass(frozen=True)
class Step:
    """What became of one thing.

    Attributes:
        what: publication, role, password file, slot, topic, connector, ...
        note: what else there is to say.
    """

    what: str
    name: str
    action: Action
    note: str = ""


def quiet(_sentence: str) -> None:
    """Tells nobody."""


def install(
    setup: Setup,
    password_file: PasswordFile,
    *,
    set_password: bool = False,
    patience: float = 120,
    tell: Tell = quiet,
) -> list[Step]:
    """Makes publication, role, slot, topics and connector where they are missing; waits until events flow.

    Args:
        setup: all names and places.
        password_file: where Connect reads the password; made, with a new password, where it is missing and
            the role is, too.
        set_password: give an existing role the password of the file, or a new one where there is no file.
        patience: seconds that the slot may wait for open transactions of others.
        tell: is told what is waited for.

    Returns:
        what was made, changed or kept.

    Raises:
        ObstaclesError: several things stand in the way; nothing was changed.
        PyrunnerError: one does, or a step failed; what this call had made was taken away again.
    """
    with (
        open_source(setup, "install") as source,
        Connect(setup.connect_url) as connect,
        contextlib.ExitStack() as undo,
    ):
        installation = _Installation(
            setup, source, connect, password_file, undo, tell, set_password=set_password
        )
        steps = installation.run(patience)
        undo.pop_all()
        return steps


def reinstall(
    setup: Setup,
    password_file: PasswordFile,
    *,
    set_password: bool = False,
    patience: float = 120,
    tell: Tell = quiet,
) -> list[Step]:
    """As `install`, with a slot made anew, from which the connector goes on; what lies before it is left.

    A failure takes back nothing: it can be repeated.
    """
    with (
        open_source(setup, "recover") as source,
        Connect(setup.connect_url) as connect,
        contextlib.ExitStack() as undo,
    ):
        installation = _Installation(
            setup, source, connect, password_file, undo, tell, set_password=set_password, anew=True
        )
        try:
            return installation.run(patience)
        finally:
            undo.pop_all()


class _Installation:
    def __init__(
        self,
        setup: Setup,
        source: Source,
        connect: Connect,
        password_file: PasswordFile,
        undo: contextlib.ExitStack,
        tell: Tell,
        *,
        set_password: bool = False,
        anew: bool = False,
    ) -> None:
        self.steps: list[Step] = []
        self._setup = setup
        self._source = source
        self._connect = connect
        self._kafka = Kafka(setup.bootstrap_servers, setup.kafka_settings)
        self._file = password_file
        self._set_password = set_password
        self._anew = anew
        self._undo = undo
        self._tell = tell
        # what check() finds
        self._slot: Slot
        self._role: DictRow | None = None
        self._password: str | None = None
        self._writes_file = False
        self._keeps_file = False
        self._present: dict[str, str] | None = None
        self._wanted: dict[str, str] = {}
        self._topics: dict[str, Topic] = {}
        self._had_offsets_topic = False
        self._cluster: str | None = None

    def run(self, patience: float) -> list[Step]:
        """Does all of it."""
        self.check()
        self.prepare()
        self.make_slot(patience)
        self.make_topics()
        self.make_connector()
        return self.steps

    def _did(self, what: str, name: str, action: Action, note: str = "") -> None:
        self.steps.append(Step(what, name, action, note))

    # ------------------------------------------------------------ looking

    def check(self) -> None:
        """Looks at everything; what stands in the way is raised, all of it at once."""
        obstacles: list[PyrunnerError] = []
        for look in (self._check_database, self._check_kafka, self._check_connect):
            try:
                obstacles += look()
            except PyrunnerError as error:
                obstacles.append(error)
        if not obstacles and not self._anew:
            obstacles += self._check_position()
        if not obstacles:
            # the last word has whoever does it: all rights, tried out
            obstacles += self._rehearse()
        if not obstacles and self._password is None:
            obstacles += self._check_configuration()
        if len(obstacles) == 1:
            raise obstacles[0]
        if obstacles:
            raise ObstaclesError(obstacles)

    def _check_database(self) -> Iterator[PyrunnerError]:
        source, setup = self._source, self._setup
        self._slot, self._role = source.slot(), source.role()
        yield from check_server(source, needs_slot=not self._slot.is_there, needs_role=self._role is None)
        if odd := set("?%+/") & set(source.database):
            yield UnfitError(
                f"The database's name, {source.database!r}, has {min(odd)!r} in it, which Debezium cannot "
                "put into its address.",
                hint="Rename it: alter database ... rename to ...;",
            )
        if source.publication() is False:
            yield UnfitError(
                f"Publication {setup.publication} publishes something else than INSERTs into outbox.event "
                "through its root.",
                hint=f"Drop it, or name another by --publication: drop publication "
                f"{quoted(setup.publication)};",
            )
        found: list[PyrunnerError] = []
        with _into(found):
            source.check_slot(self._slot)
        yield from found
        if self._role is not None:
            lacking = [
                name
                for name, right in (("LOGIN", "may_login"), ("REPLICATION", "may_replicate"))
                if not self._role[right]
            ]
            if lacking:
                yield NotAllowedError(
                    f"The role {setup.role} lacks {' and '.join(lacking)}.",
                    hint=f"As a superuser: alter role {quoted(setup.role)} {' '.join(lacking).lower()}; "
                    "or name another role by --role.",
                )
        yield from self._check_password()

    def _check_password(self) -> Iterator[PyrunnerError]:
        try:
            given = self._file.read()
            if given is None:
                self._file.check_place()
        except UsageError as error:
            yield error
            return
        if given is None and self._role is not None and not self._set_password:
            yield UsageError(
                f"The role {self._setup.role} exists, and {self._file.path} does not, so its password is not "
                f"known.",
                hint="Name the file with its password by --password-file, or give the role a new one by "
                "--set-password.",
            )
            return
        self._writes_file = given is None
        if self._role is None or self._set_password:
            self._password = given or self._file.new_password()

    def _check_kafka(self) -> Iterator[PyrunnerError]:
        setup = self._setup
        self._cluster = self._kafka.cluster_id()
        brokers = self._kafka.brokers()
        if setup.replication_factor > brokers:
            yield UnfitError(
                f"A replication factor of {setup.replication_factor} needs as many brokers, and there are "
                f"{brokers}.",
                hint="Give a lower --replication-factor, or start more brokers.",
            )
        keys = sorted({key for topic in setup.topics for key in topic.settings})
        self._topics = self._kafka.topics([topic.name for topic in setup.topics], keys)
        for difference in check_topics(setup, self._topics):
            yield UnfitError(
                f"{difference}.",
                hint="Bring the topic in line, or say what it should be like: --partitions, "
                "--replication-factor, "
                "--retention.",
            )
        self._had_offsets_topic = setup.offsets_topic in self._kafka.topics([setup.offsets_topic])

    def _check_connect(self) -> Iterator[PyrunnerError]:
        connect, setup = self._connect, self._setup
        cluster = connect.cluster_id()
        if self._cluster not in (None, cluster):
            yield UnfitError(
                f"Connect at {connect.shown} works on another Kafka (cluster {cluster}) than "
                f"{setup.bootstrap_servers} (cluster {self._cluster}).",
                hint="Name the same Kafka by --bootstrap-servers, or another Connect by --connect.",
            )
        if not connect.has_plugin():
            yield UnfitError(
                f"Connect at {connect.shown} has no {CONNECTOR_CLASS}.",
                hint="Put the jars of plugins/debezium-postgres, which mvn package makes in debezium/, in a "
                "folder of its plugin.path, on every worker, and restart them.",
            )
            return
        every = connect.connectors()
        self._present = every.pop(setup.connector, None)
        if self._present is not None:
            self._present = {key: value for key, value in self._present.items() if key not in _NOT_OURS}
        yield from check_connector(self._source, self._present, every)
        self._wanted = setup.configuration(
            host=self._source.host,
            port=self._source.port,
            database=self._source.database,
            password_file=self._file.seen_as,
        )

    def _check_position(self) -> Iterator[PyrunnerError]:
        """Refuses what would lose events, or fail at once: cases that `recover` is for."""
        slot, setup = self._slot, self._setup
        position = None
        if self._present is not None:
            position = find_position(self._connect, self._kafka, setup)
        hint = "pyrunner cdc recover makes the slot anew, finds what was not delivered and sends it."
        if slot.is_lost:
            yield RefusedError(f"Slot {slot.name} has lost its place in the log.", hint=hint)
        elif not slot.is_there and slot.is_registered:
            yield RefusedError(
                f"Slot {slot.name} of the outbox is gone: what was appended since then would be left out.",
                hint=hint,
            )
        elif not slot.is_there and self._present is not None:
            yield RefusedError(
                f"Connector {setup.connector} is there and its slot {slot.name} is not: a new one would "
                f"leave a gap.",
                hint=hint,
            )
        elif slot.confirmed is not None and position is not None and slot.confirmed > position:
            yield RefusedError(
                f"Slot {slot.name} is ahead of where connector {setup.connector} left off, so it was made "
                f"anew.",
                hint=hint,
            )

    def _rehearse(self) -> Iterator[PyrunnerError]:
        source = self._source
        try:
            source.prepare(self._password)
            rows(
                source.connection,
                "select outbox.register_slot(%s, %s, %s)",
                (self._setup.slot, self._setup.publication, self._setup.connector),
            )
        except psycopg.errors.InsufficientPrivilege as error:
            login = source.connection.info.user
            yield NotAllowedError(
                f"{login} may not do all of it: {error.diag.message_primary}.",
                hint="Install as a superuser, or as a member of crm_owner and crm_operator with REPLICATION, "
                "CREATEROLE "
                "and CREATE on the database.",
                sqlstate=error.sqlstate,
            )
        except psycopg.Error as error:
            yield explain(error, source.connection, "crm_operator")
        finally:
            source.connection.rollback()

    def _check_configuration(self) -> Iterator[PyrunnerError]:
        """Has Connect try the configuration out, on the database and with the password."""
        found: list[PyrunnerError] = []
        with _into(found):
            self._validate()
        yield from found

    def _validate(self) -> None:
        setup = self._setup
        try:
            wrong = self._connect.validate({"name": setup.connector, **self._wanted})
        except ConnectError as error:
            if str(self._file.seen_as) in error.message:
                raise self._unreadable(error.message) from None
            raise
        said = "; ".join(dict.fromkeys(wrong.values()))
        if not said:
            return
        if "password authentication failed" in said:
            raise PasswordError(
                f"PostgreSQL does not let {setup.role} in with the password of {self._file.path}.",
                hint="Put the right one into the file, or give the role that one by --set-password. "
                f"Connect must see the file as {self._file.seen_as}, within the worker's "
                "config.providers.file.param.allowed.paths.",
            )
        if "exactly-once" in said:
            raise UnfitError(
                f"Connect at {self._connect.shown} has no exactly-once support for sources.",
                hint="Set exactly.once.source.support=enabled on every worker (first preparing, in a running "
                "cluster), "
                "and restart them.",
            )
        if wrong.keys() & {"database.hostname", "database.port", "database.dbname", "database.user"}:
            raise UnfitError(
                f"Connect does not get to PostgreSQL at {self._source.host}:{self._source.port} as "
                f"{setup.role}: {said}.",
                hint="Say how Connect sees PostgreSQL, by --database-host and --database-port, and let it in "
                "by pg_hba.conf.",
            )
        first = next(iter(wrong))
        raise UnfitError(f"Connect refuses the configuration: {first}: {said}.")

    def _unreadable(self, message: str) -> UnfitError:
        return UnfitError(
            f"Connect cannot read the password's file {self._file.seen_as}: {message.removesuffix('.')}.",
            hint="Put it where every worker can read it, say its path there by --connect-password-file, and "
            "have that "
            "folder in config.providers.file.param.allowed.paths.",
        )

    # ------------------------------------------------------------ doing

    def prepare(self) -> None:
        """Publication, role, password."""
        source, setup = self._source, self._setup
        if self._password is not None and self._writes_file:
            self._file.write(self._password)
            self._undo.callback(self._undone, "the password's file", self._remove_file)
        done = source.prepare(self._password)
        source.connection.commit()
        # others may log in as this role, and nobody can give it its former password back
        self._keeps_file = self._role is not None and self._password is not None
        if done.undo:
            self._undo.callback(self._undone, "role and publication", lambda: self._run_anew(done.undo))
        self._did("publication", setup.publication, "made" if done.made_publication else "kept")
        self._did(
            "role", setup.role, "made" if done.made_role else "changed" if done.changed_role else "kept"
        )
        self._did("password file", str(self._file.path), "made" if self._writes_file else "kept")

    def _remove_file(self) -> None:
        if self._keeps_file:
            self._tell(f"Role {self._setup.role} has the password of {self._file.path}: both stay so.")
        else:
            self._file.path.unlink()

    def _run_anew(self, statements: list[Composed]) -> None:
        # the connection in use may be the one that broke
        with open_source(self._setup, "install") as source:
            source.run(statements)

    def _undone(self, what: str, do: Callable[[], object]) -> None:
        """Undoes one step; the error that made us undo it stays the one that is shown."""
        try:
            do()
        except (PyrunnerError, OSError, psycopg.Error) as error:
            self._tell(f"{what} of this attempt could not be taken away: {error}")

    def make_slot(self, patience: float) -> None:
        """The slot, before anything could read from it."""
        source, slot = self._source, self._slot
        if self._anew:
            if self._present is not None:
                self._tell("The connector stops.")
                stop(self._connect, self._setup.connector, patience=RUNNING_PATIENCE)
            # first: whoever is interrupted behind it finds it so
            source.open_gap()
            source.drop_slot(patience=RUNNING_PATIENCE)
        is_made = self._anew or not slot.is_there
        if is_made:
            source.create_slot(patience=patience, tell=self._tell)
            self._undo.callback(self._undone, "the slot", self._drop_slot)
        if source.register():
            self._undo.callback(self._undone, "the slot's registration", self._take_registration_back)
        note = (
            "older events: pyrunner cdc recover"
            if not self._anew and source.slot().gap_since is not None
            else ""
        )
        self._did("slot", slot.name, "made" if is_made else "kept", note)

    def _drop_slot(self) -> None:
        with open_source(self._setup, "install") as source:
            source.drop_slot(patience=30)

    def _take_registration_back(self) -> None:
        before = self._slot
        call = sql.SQL("select outbox.forget_slot({})").format(sql.Literal(before.name))
        if before.is_registered:
            call = sql.SQL("select outbox.register_slot({}, {}, {})").format(
                sql.Literal(before.name), sql.Literal(before.publication), sql.Literal(before.connector)
            )
        self._run_anew([call])

    def make_topics(self) -> None:
        """The topics, before anything could be sent to them."""
        for topic in self._setup.topics:
            if topic.name not in self._topics:
                self._kafka.create(topic)
                self._undo.callback(
                    self._undone, f"topic {topic.name}", partial(self._kafka.delete, topic.name)
                )
            self._did("topic", topic.name, "kept" if topic.name in self._topics else "made")

    def make_connector(self) -> None:
        """The connector, and the proof that it reads."""
        connect, name = self._connect, self._setup.connector
        note = ""
        if self._present is None:
            self._create_connector()
            action: Action = "made"
        elif self._present != self._wanted:
            self._validate()
            connect.configure(name, self._wanted)
            self._undo.callback(
                self._undone,
                "the connector's configuration",
                lambda: connect.configure(name, self._present or {}),
            )
            changed = sorted(
                key
                for key in self._wanted.keys() | self._present.keys()
                if self._wanted.get(key) != self._present.get(key)
            )
            action, note = "changed", ", ".join(changed)
        else:
            action = "kept"
            state = connect.state(name)
            if state is not None and state.failure is not None:
                connect.restart(name)
        if self._anew:
            set_position(connect, self._setup, self._source.slot().confirmed or 0)
            connect.resume(name)
            note = f"it goes on from {self._source.slot().confirmed_lsn}"
        state = connect.state(name)
        was_there = self._present is not None and not self._anew
        if was_there and state is not None and state.state in ("PAUSED", "STOPPED"):
            note = f"it is {state.state}; let it go on by: pyrunner cdc restart"
        else:
            self._tell(f"Connector {name} starts.")
            wait_until_running(connect, self._source, patience=RUNNING_PATIENCE)
        self._did("connector", name, action, note)

    def _create_connector(self) -> None:
        connect, setup = self._connect, self._setup
        self._validate()
        # offsets outlive their connector: look at them before it starts from them
        connect.create(setup.connector, self._wanted, "STOPPED")
        self._undo.callback(self._undone, "the connector", self._delete_connector)
        if self._anew:
            return
        position = position_of(connect.offsets(setup.connector))
        slot = self._source.slot()
        if position == 0 and slot.confirmed is not None:
            # its predecessor was uninstalled
            set_position(connect, setup, slot.confirmed)
        elif position is not None and (not self._slot.is_there or (slot.confirmed or 0) > position):
            raise RefusedError(
                f"Connect has offsets of an earlier connector {setup.connector}, and slot {slot.name} is "
                f"younger: "
                "there is a gap between them.",
                hint="pyrunner cdc recover finds what was not delivered and sends it; "
                "or name another connector by --name.",
            )
        connect.resume(setup.connector)

    def _delete_connector(self) -> None:
        remove(self._connect, self._setup, patience=30)
        if not self._had_offsets_topic:
            self._kafka.delete(self._setup.offsets_topic)


# ------------------------------------------------------------ what others look at as well


def check_topics(setup: Setup, present: dict[str, Topic]) -> Iterator[str]:
    """In which way topics that are there differ from what is wanted, a sentence without a stop each."""
    for wanted in setup.topics:
        topic = present.get(wanted.name)
        if topic is None:
            continue
        differences = [
            f"{what} {are} and not {should}"
            for what, are, should in (
                ("partitions", topic.partitions, wanted.partitions),
                ("replication factor", topic.replication_factor, wanted.replication_factor),
                *((key, topic.settings.get(key, "unset"), value) for key, value in wanted.settings.items()),
            )
            if are != should
        ]
        if differences:
            yield f"Topic {wanted.name} has other settings: {', '.join(differences)}"


def check_connector(
    source: Source, present: dict[str, str] | None, others: dict[str, dict[str, str]]
) -> Iterator[PyrunnerError]:
    """Refuses a connector of our name that does something else, and others that do what ours should."""
    setup = source.setup
    ours = {
        "database.dbname": source.database,
        "slot.name": setup.slot,
        "topic.prefix": setup.topic_prefix,
    }
    classes = (CONNECTOR_CLASS, DEBEZIUM_CLASS)
    if present is not None:
        if (kind := present.get("connector.class")) not in classes:
            yield RefusedError(
                f"There is a connector {setup.connector} with connector.class {kind}, and not"
                f" {CONNECTOR_CLASS}.",
                hint="Name another one by --name, or delete that one.",
            )
            return
        for key, value in ours.items():
            if present.get(key) != value:
                yield RefusedError(
                    f"There is a connector {setup.connector} with {key} {present.get(key)}, and not {value}.",
                    hint="Name another one by --name, or delete that one.",
                )
                return
    for name, configuration in others.items():
        if configuration.get("connector.class") not in classes:
            continue
        if configuration.get("topic.prefix") == setup.topic_prefix:
            yield RefusedError(
                f"Connector {name} has the topic prefix {setup.topic_prefix}, and no two may have the same.",
                hint="Name another one by --topic-prefix.",
            )
        here = (setup.slot, source.database, str(source.port))
        if tuple(configuration.get(key) for key in ("slot.name", "database.dbname", "database.port")) == here:
            yield RefusedError(
                f"Connector {name} reads slot {setup.slot} already.",
                hint="Name another slot by --slot, or that connector.",
            )


def require_ours(source: Source, connect: Connect) -> dict[str, str] | None:
    """The configuration of our connector; None where Connect has none of that name.

    Raises:
        RefusedError: the connector of that name is another database's.
    """
    name = source.setup.connector
    present = connect.configuration(name)
    if present is not None:
        for obstacle in check_connector(source, present, {}):
            raise obstacle
        if not source.slot().is_registered:
            raise RefusedError(
                f"There is a connector {name}, and this database knows nothing of it.",
                hint="It may be another database's: look at it, and name ours by --name; or: pyrunner cdc "
                "install",
            )
    return present


@contextlib.contextmanager
def _into(found: list[PyrunnerError]) -> Iterator[None]:
    """Collects an error instead of passing it on."""
    try:
        yield
    except PyrunnerError as error:
        found.append(error)

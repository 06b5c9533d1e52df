"""How the way from the outbox to Kafka is, end to end; each trouble with what to type against it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import DictRow

from pyrunner.cdc.connector import describe, position_of, reason_of, remedy_of
from pyrunner.cdc.errors import ConnectError
from pyrunner.cdc.install import check_topics
from pyrunner.cdc.kafka import Kafka
from pyrunner.cdc.rest import Connect, ConnectorState
from pyrunner.cdc.setup import Setup
from pyrunner.cdc.source import Slot, Source, open_source
from pyrunner.database import quoted
from pyrunner.doctor import Finding
from pyrunner.errors import PyrunnerError
from pyrunner.output import count, span

__all__ = ["Status", "examine"]

INSTALL: Final = "pyrunner cdc install"
RECOVER: Final = "pyrunner cdc recover"
RESTART: Final = "pyrunner cdc restart"
_PATIENCE: Final = 15.0
# a connector that has just started has had no time for a heartbeat
_HEARTBEATS_MISSED: Final = 4
_LEAST_SILENCE: Final = timedelta(seconds=30)
_MOST_EXAMPLES: Final = 5


@dataclass
class Status:
    """What was found.

    Attributes:
        connector: its state, None where Connect cannot be asked or does not know it.
        slot: a row of outbox.slot_status, None where there is none or it cannot be seen.
        publication: whether it is right; None where it is missing or cannot be seen.
        last_event_at: the youngest event in Kafka.
        last_heartbeat_at: Debezium's youngest heartbeat in Kafka.
        parked: messages that a consumer has put aside, by consumer and topic.
        findings: what is wrong, and what could not be seen; one that says "ok" a part where nothing is.
    """

    at: datetime
    connector: ConnectorState | None = None
    slot: DictRow | None = None
    publication: bool | None = None
    last_event_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    parked: list[DictRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def examine(setup: Setup, *, max_age: timedelta = timedelta(minutes=1)) -> Status:
    """Looks at connector, slot, publication, topics, heartbeats and consumers; changes nothing.

    A part that cannot be reached is a finding, and the others are looked at all the same.

    Args:
        setup: names and places.
        max_age: an event that waits longer for its delivery is a finding.
    """
    examination = _Examination(setup, max_age)
    examination.run()
    return examination.status


class _Examination:
    def __init__(self, setup: Setup, max_age: timedelta) -> None:
        self.status = Status(datetime.now(UTC))
        self._setup = setup
        self._max_age = max_age
        self._configuration: dict[str, str] | None = None
        self._position: int | None = None
        # since when the slot's reader is there, where that can be seen
        self._reads_since: datetime | None = None
        self._is_read = False
        self._is_set_up = True
        self._title = ""

    def run(self) -> None:
        """Looks at every part."""
        for title, look in (
            ("Connector", self._look_at_connect),
            ("Database", self._look_at_database),
            ("Kafka", self._look_at_kafka),
        ):
            self._title = title
            before = len(self.status.findings)
            try:
                look()
            except PyrunnerError as error:
                self._find("error", error.message.removesuffix("."), "it cannot be looked at", error.hint)
            if len(self.status.findings) == before:
                self._find("ok", "nothing wrong")

    def _find(self, severity: Any, what: str, why: str | None = None, remedy: str | None = None) -> None:
        self.status.findings.append(Finding(self._title, severity, what, why, remedy))

    # ------------------------------------------------------------ Connect

    def _connect(self) -> Connect:
        """For somebody who waits for the answer: with the broker away Connect itself takes 90 s for some."""
        return Connect(self._setup.connect_url, patience=10, timeout=_PATIENCE)

    def _look_at_connect(self) -> None:
        name = self._setup.connector
        with self._connect() as connect:
            state = self.status.connector = connect.state(name)
            self._configuration = connect.configuration(name)
            if state is None or self._configuration is None:
                self._find(
                    "error", f"Connect does not know connector {name}", "nothing is delivered", INSTALL
                )
                return
            try:
                self._position = position_of(connect.offsets(name))
            except ConnectError as error:
                self._find("error", error.message, "the connector cannot start again", error.hint)
        self._judge(state)
        self._compare(self._configuration)

    def _judge(self, state: ConnectorState) -> None:
        name = self._setup.connector
        if state.failure is not None:
            self._find(
                "error",
                f"connector {name} has failed: {reason_of(state.failure)}",
                "nothing is delivered",
                remedy_of(state.failure) or f"mend that, then: {RESTART}",
            )
        elif state.state in ("PAUSED", "STOPPED"):
            self._find("error", f"connector {name} is {state.state}", "nothing is delivered", RESTART)
        elif not state.tasks:
            self._find(
                "error",
                f"connector {name} says {state.state} and has no task",
                "it cannot begin: often its slot cannot be used",
                f"see to the slot, else: {RESTART}",
            )
        elif not state.is_running:
            self._find(
                "error",
                f"connector {name} is not running: {describe(state)}",
                "nothing is delivered",
                RESTART,
            )

    def _compare(self, configuration: dict[str, str]) -> None:
        wanted = self._setup.configuration(
            host=configuration.get("database.hostname", ""),
            port=int(configuration.get("database.port") or 5432),
            database=configuration.get("database.dbname", ""),
            password_file="-",  # noqa: S106 - a path
        )
        different = sorted(
            key
            for key in wanted.keys() | configuration.keys()
            if key not in ("name", "database.password") and wanted.get(key) != configuration.get(key)
        )
        if different:
            self._find(
                "warning",
                f"the connector's configuration differs from ours in {', '.join(different)}",
                "somebody changed it, or it was made by another version",
                INSTALL,
            )

    # ------------------------------------------------------------ PostgreSQL

    def _look_at_database(self) -> None:
        with open_source(self._setup, "status") as source:
            slot = source.slot()
            if self._configuration is None and not slot.is_there and not slot.is_registered:
                self._is_set_up = False
                self.status.findings.clear()
                self._find("error", "nothing is set up here", "no event gets to Kafka", INSTALL)
                return
            self._look_whose(source)
            for look in (
                lambda: self._look_at_slot(source, slot),
                lambda: self._look_at_publication(source),
                lambda: self._look_at_role(source),
                lambda: self._look_at_outbox(source, slot),
                lambda: self._look_at_parked(source),
            ):
                self._seen(source, look)

    def _seen(self, source: Source, look: Callable[[], None]) -> None:
        try:
            look()
        except psycopg.errors.InsufficientPrivilege as error:
            source.connection.rollback()
            login = quoted(source.connection.info.user)
            self._find(
                "unseen", str(error.diag.message_primary), "this cannot be looked at without it",
                f"grant crm_operator to {login};",
            )  # fmt: skip

    def _look_whose(self, source: Source) -> None:
        read = (self._configuration or {}).get("database.dbname", source.database)
        if read != source.database:
            self._find(
                "error",
                f"connector {self._setup.connector} reads database {read}, and this is {source.database}",
                "it delivers nothing from here",
                "name this database's connector by --name, or look at the other one by --dsn",
            )

    def _look_at_slot(self, source: Source, slot: Slot) -> None:
        name = slot.name
        found = source.rows("slot_status", {"slot": name})
        row = self.status.slot = found[0] if found else None
        if row is None:
            self._find("error", f"slot {name} is not registered", "retention does not wait for it", INSTALL)
        elif row["connector"] != self._setup.connector or row["publication"] != self._setup.publication:
            self._find(
                "warning",
                f"slot {name} is registered for connector {row['connector']} and publication "
                f"{row['publication']}",
                "they are other ones now",
                INSTALL,
            )
        if not slot.is_there:
            self._find(
                "error", f"slot {name} is gone", "events appended since then are in the outbox only",
                RECOVER if row else INSTALL,
            )  # fmt: skip
            return
        if not slot.is_fit:
            self._find(
                "error",
                f"slot {name} is of another kind: {slot.kind}",
                "Debezium cannot read it",
                f"{INSTALL} --slot with another name, or drop that slot and: {RECOVER}",
            )
            return
        if slot.is_lost:
            self._find(
                "error", f"slot {name} has lost its place in the log",
                "what it had not delivered is in the outbox only", RECOVER,
            )  # fmt: skip
            return
        if self._is_ahead(slot):
            self._find(
                "error", f"slot {name} was made anew: it is ahead of where the connector left off",
                "what lies between was not delivered", RECOVER,
            )  # fmt: skip
        if slot.gap_since is not None:
            self._find(
                "error",
                f"slot {name} was made or registered when events were there already, which nobody has "
                "compared with Kafka",
                "what was not delivered of them waits in the outbox, and no partition is dropped",
                RECOVER,
            )
        self._is_read = slot.active
        if not slot.active:
            self._find(
                "error", f"nobody reads slot {name}", "nothing is delivered, and the log fills the disk",
                f"see to the connector, else: {RESTART}",
            )  # fmt: skip
        if row is not None:
            self._look_at_lag(row)
        found = source.rows("reader", {"slot": name})
        self._reads_since = found[0]["since"] if found else None

    def _is_ahead(self, slot: Slot) -> bool:
        """Whether the slot has confirmed what its connector knows nothing of."""
        if self._position is None or slot.confirmed is None or slot.confirmed <= self._position:
            return False
        # one at work has gone on since it was asked; what the slot has confirmed it had noted before that
        try:
            with self._connect() as connect:
                self._position = position_of(connect.offsets(self._setup.connector))
        except PyrunnerError:
            # it answered a moment ago; now nothing can be said
            return False
        return self._position is not None and slot.confirmed > self._position

    def _look_at_lag(self, row: DictRow) -> None:
        if row["wal_status"] == "unreserved" or (
            row["safe_wal_size"] is not None and row["safe_wal_size"] < row["retained_bytes"]
        ):
            self._find(
                "error" if row["wal_status"] == "unreserved" else "warning",
                f"slot {row['name']} is about to lose its place in the log",
                f"it still needs {row['retained_bytes']:,} bytes, and max_slot_wal_keep_size leaves "
                f"{max(0, row['safe_wal_size']):,}",
                "let the connector catch up, or raise max_slot_wal_keep_size",
            )
        age = row["backlog_seconds"]
        if age is not None and age > self._max_age.total_seconds():
            self._find(
                "error",
                f"{count(row['backlog_events'], 'event')} not delivered, the oldest for "
                f"{span(timedelta(seconds=age))}",
                f"more than {span(self._max_age)}: the connector stands still, or cannot keep up",
                f"see to the connector; if it runs, its log says what it does; {RESTART}",
            )

    def _look_at_publication(self, source: Source) -> None:
        name = self._setup.publication
        is_right = self.status.publication = source.publication()
        if is_right is None:
            self._find(
                "error", f"publication {name} is missing",
                "the connector cannot read on, and what was appended without it cannot be read from the log "
                "either",
                f"{RECOVER} --new-slot",
            )  # fmt: skip
        elif not is_right:
            self._find(
                "error", f"publication {name} publishes something else",
                "events are left out, or others come along",
                f"drop publication {quoted(name)}; then: {RECOVER} --new-slot",
            )  # fmt: skip

    def _look_at_role(self, source: Source) -> None:
        name = self._setup.role
        role = source.role()
        if role is None:
            self._find("error", f"role {name} is missing", "the connector cannot log in", INSTALL)
            return
        for right, remedy in (
            ("may_login", f"alter role {quoted(name)} login;"),
            ("may_replicate", f"alter role {quoted(name)} replication;"),
            ("may_use_schema", INSTALL),
            ("may_connect", INSTALL),
        ):
            if not role[right]:
                self._find(
                    "error",
                    f"role {name} {right.replace('_', ' ').replace('may', 'may not')}",
                    "the connector needs it",
                    remedy,
                )

    def _look_at_outbox(self, source: Source, slot: Slot) -> None:
        for row in source.rows("emptied", {"slot": slot.name}):
            self._find(
                "warning",
                f"partition {row['partition']} has {row['events']:,} of {count(row['expired'], 'event')} "
                "that had been appended: it was truncated",
                "what was delivered is in Kafka only; what was not is in the log of the slot only",
                "keep the slot: no recover --new-slot, no uninstall; then: pyrunner cdc verify",
            )
        if slot.confirmed_lsn is None:
            return
        broken = source.rows("unsendable", {"confirmed": slot.confirmed_lsn, "limit": _MOST_EXAMPLES})
        for row in broken:
            self._find(
                "error",
                f"event {row['id']} (seq {row['seq']}) cannot be delivered: {row['why']}",
                "the connector fails at it, and what comes behind it waits",
                f"keep a copy; delete from outbox.event where seq = {row['seq']}; then: {RECOVER} --new-slot",
            )

    def _look_at_parked(self, source: Source) -> None:
        self.status.parked = source.rows("parked")
        for row in self.status.parked:
            self._find(
                "warning",
                f"consumer {row['consumer']} has put aside {count(row['messages'], 'message')} of "
                f"{row['topic']}",
                "it could not understand them, and they had no effect",
                f"select * from {row['consumer']}.parked; mend the cause, "
                f"pyrunner cdc replay --event ID, then: select {row['consumer']}.dismiss_parked(id);",
            )

    # ------------------------------------------------------------ Kafka

    def _look_at_kafka(self) -> None:
        setup = self._setup
        if not self._is_set_up:
            return
        kafka = Kafka(setup.bootstrap_servers, setup.kafka_settings)
        keys = sorted({key for topic in setup.topics for key in topic.settings})
        present = kafka.topics([topic.name for topic in setup.topics], keys)
        for name in [topic.name for topic in setup.topics if topic.name not in present]:
            self._find("error", f"topic {name} is missing", "events have nowhere to go", INSTALL)
        for difference in check_topics(setup, present):
            self._find(
                "warning", difference[0].lower() + difference[1:], "consumers may count on it",
                "bring the topic in line, or install with other --partitions, --replication-factor, "
                "--retention",
            )  # fmt: skip
        self.status.last_event_at = kafka.last_record_at(setup.event_topics)
        self.status.last_heartbeat_at = kafka.last_record_at([setup.heartbeat_topic])
        self._look_at_heartbeat()

    def _look_at_heartbeat(self) -> None:
        if self._configuration is None:
            return
        interval = timedelta(milliseconds=int(self._configuration.get("heartbeat.interval.ms") or 0))
        patience = max(_LEAST_SILENCE, _HEARTBEATS_MISSED * interval)
        last, now = self.status.last_heartbeat_at, datetime.now(UTC)
        if interval and self._is_read and self._reads_since and now - self._reads_since < patience:
            # it has just begun
            return
        if last is None or now - last > patience:
            when = "has never come" if last is None else f"is {span(now - last)} old"
            self._find(
                "error",
                f"the last heartbeat {when}" if last else "no heartbeat has ever come",
                "the connector does not get from the log to Kafka; without heartbeats an idle outbox holds "
                "the log back",
                INSTALL if not interval else f"see to the connector, else: {RESTART}",
            )

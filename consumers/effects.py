"""What a consumer does in PostgreSQL: a batch of messages is one transaction, an event has its effect once.

The id of an event goes into the consumer's inbox together with the effect; one that is there already has
none. A message that cannot be understood, or whose own values the database refuses, is parked with the
reason, and those behind it go on. Anything else is the system's fault, parks nothing and undoes the batch.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, LiteralString, TypeVar

import psycopg
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from consumers.contracts import Contracts, Event, Message, MisunderstoodError
from pyrunner.database import Connection, connect, explain, quoted
from pyrunner.errors import MissingPrivilegeError, PyrunnerError, one_line

__all__ = ["Database", "Done", "Effects", "Handler", "Outcome", "Service"]

T = TypeVar("T")

# what the message's own values are to blame for: data exceptions, integrity violations
_MESSAGES_FAULT: Final = (psycopg.DataError, psycopg.IntegrityError)


class Outcome(StrEnum):
    """What became of a message."""

    DONE = "done"
    SEEN = "seen"
    PARKED = "parked"


@dataclass(frozen=True)
class Handler:
    """What a consumer does about one version of an event.

    Attributes:
        event_type: as in the header event_type.
        version: of the contract.
        effect: an expression in SQL that says whether it had an effect; it may use id, topic, and of the
            payload what the contract requires: payload ->> 'bookingId'.
    """

    event_type: str
    version: int
    effect: LiteralString

    @property
    def kind(self) -> tuple[str, str]:
        """Event type and version, as in the headers."""
        return self.event_type, str(self.version)

    @property
    def properties(self) -> set[str]:
        """Of the payload, what the effect uses."""
        return set(re.findall(r"payload ->> '(\w+)'", self.effect))


@dataclass(frozen=True)
class Service:
    """A consumer.

    Attributes:
        name: also the schema that it writes in, and the default of its group.
        role: whose privileges it takes.
        done: the event in the log for an effect.
        handlers: for every event and version that it knows.
        contracts: which these are read by.

    Raises:
        ValueError: a handler has no contract, or uses what the contract does not promise.
    """

    name: LiteralString
    role: str
    done: str
    handlers: Sequence[Handler]
    contracts: Contracts = field(default_factory=Contracts)

    def __post_init__(self) -> None:
        for handler in self.handlers:
            contract = self.contracts.by_event.get(handler.kind)
            if contract is None:
                raise ValueError(
                    f"there is no contract for {handler.event_type} of version {handler.version}"
                )
            if unknown := handler.properties - contract.required:
                raise ValueError(f"{handler.event_type}: the contract does not require {', '.join(unknown)}")

    @property
    def topics(self) -> list[str]:
        """Where the events that it knows are published."""
        return sorted({self.contracts.by_event[handler.kind].topic for handler in self.handlers})


class Database:
    """A connection that is made when it is needed, and given up as soon as something goes wrong.

    Args:
        dsn: a connection string, as for psql.
        name: application_name.
        role: whose privileges the login needs.
        idle: seconds that the server lets a transaction of ours wait for us: what a process that stands still
            holds is taken from it, so that the others go on.
    """

    def __init__(self, dsn: str, name: str, role: str, *, idle: int) -> None:
        self._dsn = dsn
        self._name = name
        self._role = role
        # for a lock, for a statement, for us
        self._limits = ("10s", "30s", f"{idle}s")
        self._connection: Connection | None = None

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Does the work in one transaction.

        Raises:
            PyrunnerError: the database's fault, in words; nothing was done, or the commit's answer was lost.
        """
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = connect(self._dsn, name=self._name)
        try:
            answer = work(connection)
            connection.commit()
        except psycopg.Error as error:
            shown = explain(error, connection)
            if isinstance(shown, MissingPrivilegeError):
                hint = f"As a superuser: grant {self._role} to {quoted(connection.info.user)};"
                shown = MissingPrivilegeError(shown.message, hint=hint, sqlstate=shown.sqlstate)
            self.close()
            raise shown from None
        except BaseException:
            self.close()
            raise
        return answer

    def limit(self, connection: Connection) -> None:
        """Sets the limits of the transaction that is being done."""
        connection.execute(
            "select set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true),"
            " set_config('idle_in_transaction_session_timeout', %s, true)",
            self._limits,
        )

    def close(self) -> None:
        """Gives up the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True)
class _Read:
    """A message, and what it says or why nobody can tell."""

    message: Message
    event: Event | None
    reason: str | None = None


@dataclass(frozen=True)
class Done:
    """A message and what became of it.

    Attributes:
        event: what it said; None for one that was parked, now or before.
        reason: why it was parked.
    """

    message: Message
    event: Event | None
    outcome: Outcome
    reason: str | None


class Effects:
    """Has messages take effect.

    Args:
        service: what to do about which event.
        dsn: the database.
    """

    def __init__(self, service: Service, dsn: str) -> None:
        self._contracts = service.contracts
        self._handlers = {handler.kind: handler for handler in service.handlers}
        # a batch is written without a pause: who pauses was stopped, or its machine was
        self._database = Database(dsn, service.name, service.role, idle=10)
        self._park_one: LiteralString = (
            "select " + service.name + ".park(%(topic)s, %(partition)s, %(kafka_offset)s, %(event_id)s,"
            " %(message_key)s, %(headers)s, %(value)s, %(reason)s)"
        )

    def apply(self, messages: Sequence[Message]) -> list[Done]:
        """Has the messages take effect or be parked, all in one transaction.

        Raises:
            PyrunnerError: a fault of the system; nothing was done, or all was and the answer was lost.
        """
        # the same order everywhere, so that no two instances wait for each other in a circle
        ordered = sorted(messages, key=lambda message: (message.topic, message.partition, message.offset))
        read = [self._read(message) for message in ordered]

        def work(connection: Connection) -> list[Done]:
            self._database.limit(connection)
            try:
                return self._together(connection, read)
            except _MESSAGES_FAULT:
                connection.rollback()
            self._database.limit(connection)
            return [self._alone(connection, one) for one in read]

        return self._database.transaction(work)

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()

    def _read(self, message: Message) -> _Read:
        try:
            return _Read(message, self._contracts.understand(message, self._handlers))
        except MisunderstoodError as error:
            return _Read(message, None, str(error))

    def _together(self, connection: Connection, read: Sequence[_Read]) -> list[Done]:
        """One statement for all events of a kind; in a pipeline the server would not limit our silence."""
        done = [self._park(connection, one.message, one.reason) for one in read if one.event is None]
        for handler in self._handlers.values():
            some = [one for one in read if one.event is not None and one.event.kind == handler.kind]
            if some:
                done += self._have_effect(connection, handler, some)
        return done

    def _alone(self, connection: Connection, one: _Read) -> Done:
        """One message; parked where the database refuses its values."""
        if one.event is None:
            return self._park(connection, one.message, one.reason)
        try:
            with connection.transaction():
                return self._have_effect(connection, self._handlers[one.event.kind], [one])[0]
        except _MESSAGES_FAULT as error:
            text = one_line(error.diag.message_primary or str(error))
            return self._park(connection, one.message, f"{error.sqlstate}: {text}")

    def _have_effect(self, connection: Connection, handler: Handler, some: Sequence[_Read]) -> list[Done]:
        events = [
            {
                "id": str(one.event.id),
                "topic": one.event.topic,
                "payload": {name: one.event.payload[name] for name in handler.properties},
            }
            for one in some
            if one.event is not None
        ]
        statement: LiteralString = (
            "select "
            + handler.effect
            + " from jsonb_to_recordset(%s) as e (id uuid, topic text, payload jsonb)"
        )
        answers = connection.execute(statement, (Jsonb(events),)).fetchall()
        return [
            Done(one.message, one.event, Outcome.DONE if _is_true(answer) else Outcome.SEEN, None)
            for one, answer in zip(some, answers, strict=True)
        ]

    def _park(self, connection: Connection, message: Message, reason: str | None) -> Done:
        parameters = {
            "topic": message.topic,
            "partition": message.partition,
            "kafka_offset": message.offset,
            "event_id": message.event_id,
            "message_key": message.key,
            "headers": Jsonb(dict(message.headers)),
            "value": message.value,
            "reason": reason,
        }
        answer = connection.execute(self._park_one, parameters).fetchone()
        outcome = Outcome.PARKED if answer is not None and _is_true(answer) else Outcome.SEEN
        return Done(message, None, outcome, reason)


def _is_true(answer: TupleRow) -> bool:
    if answer[0] is None:
        raise PyrunnerError("The database does not say whether there was an effect.")
    return bool(answer[0])

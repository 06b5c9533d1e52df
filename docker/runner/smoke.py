"""Sees one lead and one booking through the whole system, and tells how long each step took.

An overdue lead and an overdue booking are inserted. The driver (pg_cron or the worker) takes the booking
within a minute; leads have a cycle an hour, so that one is called by hand, as a DBA would. Both events must
reach Kafka, once; the agent's notice must be filed, and the property object be free to be reserved again.

Connects as libpq's environment says, as a superuser. What it made stays: a lead and two bookings, all over.
Exit code 0: all of it was seen. 1: a step was not, and its line says which.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from pyrunner.cdc.setup import EVENT_TOPICS
from pyrunner.database import Connection, connect, rows
from pyrunner.errors import PyrunnerError

T = TypeVar("T")

# a period, a minute of pg_cron's, and a busy machine
PATIENCE: Final = 150.0


class NotSeenError(PyrunnerError):
    """A step did not come about in time."""


def say(text: str) -> None:
    """One line."""
    print(text, flush=True)  # noqa: T201


@contextlib.contextmanager
def step(what: str) -> Iterator[list[str]]:
    """Tells how long the block took; what it puts into the list is told as well."""
    notes: list[str] = []
    began = time.monotonic()
    try:
        yield notes
    except Exception:
        say(f"{time.monotonic() - began:8.2f} s  {what}: NOT SEEN")
        raise
    note = f" ({', '.join(notes)})" if notes else ""
    say(f"{time.monotonic() - began:8.2f} s  {what}{note}")


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """Looks until there is something.

    Raises:
        NotSeenError: there is nothing after the patience.
    """
    deadline = time.monotonic() + PATIENCE
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise NotSeenError(f"{what} was not seen within {PATIENCE:g} s.")
        time.sleep(0.05)
    return found


class Events:
    """Committed events of the topics, from now on."""

    def __init__(self, servers: str) -> None:
        self.seen: list[UUID] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"smoke-{uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        places = []
        for topic in EVENT_TOPICS:
            known = self._consumer.list_topics(topic, timeout=10).topics[topic]
            if known.error is not None:
                raise NotSeenError(f"Kafka has no topic {topic}; the system is not set up.")
            for number in known.partitions:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
                places.append(TopicPartition(topic, number, end))
        self._consumer.assign(places)

    def poll(self, patience: float = 0.2) -> None:
        """Takes what is there."""
        message = self._consumer.poll(patience)
        if message is None:
            return
        if message.error() is not None:
            raise KafkaException(message.error())
        headers: Any = message.headers() or []
        self.seen += [UUID(value.decode()) for name, value in headers if name == "id"]

    def close(self) -> None:
        """Leaves Kafka."""
        self._consumer.close()


class Smoke:
    """The way of a lead and a booking."""

    def __init__(self, connection: Connection, events: Events) -> None:
        self._connection = connection
        self._events = events

    def _row(self, statement: LiteralString, *parameters: Any) -> dict[str, Any] | None:
        found = rows(self._connection, statement, parameters)
        return dict(found[0]) if found else None

    def _must(self, statement: LiteralString, *parameters: Any) -> dict[str, Any]:
        found = self._row(statement, *parameters)
        assert found is not None
        return found

    def run(self) -> None:
        """All steps."""
        with step("an overdue lead and an overdue booking are inserted"):
            lead = self._must(
                "insert into crm.leads (tenant_id, executor_agent_user_id, status, expires_at)"
                " values (gen_random_uuid(), gen_random_uuid(), 'Active', now() - interval '1 day')"
                " returning id"
            )["id"]
            booking = self._must(
                "insert into crm.bookings"
                " (tenant_id, deal_id, property_object_id, status, reserve_expires_at)"
                " values (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Reserved',"
                " now() - interval '1 day') returning id, tenant_id, property_object_id"
            )
        with step("the lead expires, by a cycle called by hand"):
            wait_for(lambda: self._expire_lead(lead), "The lead's expiration")
        first = self._follow("LeadExpiredEvent", lead)
        with step("the agent's notice is filed"):
            wait_for(
                lambda: self._row("select 1 as found from notifications.notice where lead_id = %s", lead),
                "The notice",
            )
        with step("the booking expires") as notes:
            found = wait_for(
                lambda: self._row(
                    "select r.driver from outbox.event as e"
                    " join expiration.run as r on r.id = e.correlation_id"
                    " where e.aggregate_id = %s",
                    booking["id"],
                ),
                "The booking's expiration",
            )
            notes.append(f"by {found['driver']}")
        second = self._follow("BookingExpiredEvent", booking["id"])
        with step("the property object is free: reserved again, and cancelled"):
            wait_for(
                lambda: self._row(
                    "select 1 as found from chessboard.release where booking_id = %s", booking["id"]
                ),
                "The release of the property object",
            )
            again = self._must(
                "select id, version from crm.reserve_property"
                "(%s, gen_random_uuid(), %s, now() + interval '1 hour')",
                booking["tenant_id"],
                booking["property_object_id"],
            )
            self._must("select status from crm.cancel_booking(%s, %s)", again["id"], again["version"])
        with step("no event has come twice"):
            for _ in range(5):
                self._events.poll()
            if [self._events.seen.count(one) for one in (first, second)] != [1, 1]:
                raise NotSeenError("An event has come to Kafka more than once.")

    def _expire_lead(self, lead: UUID) -> bool | None:
        self._connection.execute("call expiration.run_job('lead-expiration')")
        if self._must("select status from crm.leads where id = %s", lead)["status"] == "Expired":
            return True
        # another cycle is at work, or the job is paused
        time.sleep(1)
        return None

    def _follow(self, event_type: str, aggregate: UUID) -> UUID:
        with step(f"its {event_type} is in Kafka"):
            event = self._must(
                "select id from outbox.event where aggregate_id = %s and event_type = %s",
                aggregate,
                event_type,
            )["id"]

            def arrived() -> bool | None:
                self._events.poll()
                return event in self._events.seen or None

            wait_for(arrived, f"The {event_type} in Kafka")
        return UUID(str(event))


def main() -> int:
    """Runs all steps."""
    began = time.monotonic()
    try:
        with contextlib.closing(connect("", name="smoke", autocommit=True)) as connection:
            events = Events(os.environ["PYRUNNER_BOOTSTRAP_SERVERS"])
            try:
                Smoke(connection, events).run()
            finally:
                events.close()
    except PyrunnerError as error:
        say("smoke: " + " ".join(filter(None, (error.message, error.hint))))
        return 1
    except (psycopg.Error, KafkaException) as error:
        say(f"smoke: {str(error).strip()} Is the system up? See: docker compose ps")
        return 1
    say(f"smoke: passed in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether every event of the outbox is in Kafka, and once; the two are compared id by id."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Message
from psycopg.rows import DictRow

from pyrunner.cdc.install import quiet
from pyrunner.cdc.kafka import Kafka, Span, instant_of
from pyrunner.cdc.setup import Setup
from pyrunner.cdc.source import Source, open_source
from pyrunner.database import query
from pyrunner.doctor import Finding
from pyrunner.output import count

__all__ = ["Comparison", "Verdict", "comparing", "findings_of", "verify"]

_EXAMPLES: Final = 10
# the clocks of PostgreSQL and Connect may differ so much
_SKEW: Final = timedelta(minutes=10)
_TOLD_EVERY: Final = 100_000
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to.

    Attributes:
        appended: events of the outbox, each id once, as of the comparison's begin.
        arrived: those of them that Kafka holds.
        missing: those that it does not hold.
        is_decided: the slot has confirmed all of them; otherwise the missing may still be on their way.
        unjudged: events from before what Kafka still keeps.
        doubtful: those of them that no slot vouches for: it is gone, or was made after events that nobody
            has compared.
        doubled: events that Kafka holds more than once, replays not counted.
        lost: events that runs appended by their own books, and that neither the outbox nor Kafka has.
        strangers: records in Kafka whose event the outbox does not have (any more).
        unreadable: records without an event id.
        missing_examples: the first of the missing.
        doubled_examples: some of the doubled.
        lost_of: the runs whose events are lost, with the number of each.
    """

    appended: int
    arrived: int
    missing: int
    is_decided: bool
    unjudged: int
    doubtful: int
    doubled: int
    lost: int
    strangers: int
    unreadable: int
    missing_examples: list[DictRow] = field(default_factory=list)
    doubled_examples: list[DictRow] = field(default_factory=list)
    lost_of: list[DictRow] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to send: no event is missing, and none in doubt."""
        return not (self.missing or self.doubtful)


class Comparison:
    """A comparison that can be looked at again; the events taken down at its begin are the ones compared.

    Ids lie in temporary tables of the session, so memory does not grow with them.
    """

    def __init__(
        self, setup: Setup, source: Source, kafka: Kafka, since: datetime | None, tell: Callable[[str], None]
    ) -> None:
        self._setup = setup
        self._source = source
        self._kafka = kafka
        self._since = since
        self._tell = tell
        self._read_to: dict[tuple[str, int], int] = {}
        self._horizons: dict[str, datetime] = {}
        self._unreadable = 0
        self._position = 0
        for name in ("expired_table", "appended_table", "arrived_table", "missing_table"):
            source.connection.execute(query(f"cdc/{name}"))
        source.connection.execute(query("cdc/expired"), {"since": since})
        source.connection.execute(query("cdc/appended"), {"since": since})
        self.mark()
        self._topics = {setup.namespace + row["topic"] for row in source.rows("appended_topics")}

    def mark(self) -> None:
        """What has been appended by now must have been confirmed before the next verdict is final."""
        self._position = self._places()["written"]

    def _places(self) -> DictRow:
        (found,) = self._source.rows("position", {"slot": self._setup.slot})
        return found

    def look(self, *, wait: float) -> Verdict:
        """Compares.

        Args:
            wait: seconds to wait for a slot that has not confirmed yet all that is compared.
        """
        self._read()
        missing = self._find_missing()
        # of a slot that cannot be used nothing is to be expected any more
        is_decided = missing == 0 or not self._source.slot().is_usable
        if not is_decided:
            is_decided = self._wait_for_slot(wait)
            self._read()
            missing = self._find_missing()
        return self._verdict(is_decided=is_decided or missing == 0)

    def _wait_for_slot(self, patience: float) -> bool:
        deadline = time.monotonic() + patience
        told = False
        while (self._places()["confirmed"] or 0) < self._position:
            if time.monotonic() > deadline:
                return False
            if not told:
                self._tell("The connector has not confirmed yet all that there is.")
                told = True
            time.sleep(0.2)
        return True

    def missing(self, size: int) -> Iterator[list[DictRow]]:
        """The missing events in the order in which they were appended, so many at a time."""
        after = 0
        while found := self._source.rows("missing_next", {"after": after, "limit": size}):
            yield found
            after = found[-1]["seq"]

    # ------------------------------------------------------------ Kafka

    def _read(self) -> None:
        spans = self._kafka.spans(self._topics.union(self._setup.event_topics))
        if not self._read_to:
            since = self._source.rows("compared_since")[0]["since"]
            starts = self._kafka.starts(spans, since and since - _SKEW)
            self._horizons = self._find_horizons(spans)
        else:
            starts = {
                (one.topic, one.partition): self._read_to.get((one.topic, one.partition), one.low)
                for one in spans
            }
        number = 0
        for batch in _batches(self._kafka.records(spans, starts)):
            with self._source.connection.cursor().copy(query("cdc/arrived")) as copy:
                for record in batch:
                    if (row := _row_of(record)) is None:
                        self._unreadable += 1
                    else:
                        copy.write_row(row)
            number += len(batch)
            if number % _TOLD_EVERY < len(batch):
                self._tell(f"{count(number, 'record')} of Kafka read.")
        for table in ("appended", "arrived"):
            self._source.connection.execute(f"analyze pg_temp.{table}")
        self._read_to = {(one.topic, one.partition): one.high for one in spans}

    def _find_horizons(self, spans: Sequence[Span]) -> dict[str, datetime]:
        """By topic, the time before which Kafka may have forgotten something by its own retention.

        What people have deleted of a topic is missing, as all of it is from a topic that was made anew.
        """
        trimmed = [span for span in spans if span.low > 0]
        topics = self._kafka.topics({span.topic for span in trimmed}, ("retention.ms", "retention.bytes"))
        found: dict[str, datetime] = {}
        for span in trimmed:
            settings = topics[span.topic].settings
            at = _forgotten_by_age(settings)
            if settings.get("retention.bytes", "-1") != "-1":
                # its first record tells, and one that is empty may have forgotten all
                first = next(self._kafka.records([span], {(span.topic, span.partition): span.low}), None)
                at = datetime.now(UTC) if first is None else max(at or _LONG_AGO, instant_of(first))
            if at is not None:
                found[span.topic] = max(found.get(span.topic, at), at)
        return found

    # ------------------------------------------------------------ judging

    def _judged(self) -> dict[str, Any]:
        prefix = len(self._setup.namespace)
        return {
            "topics": [topic[prefix:] for topic in self._horizons],
            "horizons": list(self._horizons.values()),
        }

    def _find_missing(self) -> int:
        found = self._source.connection.execute(query("cdc/missing"), self._judged())
        return found.rowcount

    def _verdict(self, *, is_decided: bool) -> Verdict:
        (numbers,) = self._source.rows("compared", {"slot": self._setup.slot})
        # Kafka's memory of the past, with the difference of the clocks
        horizon = max(self._horizons.values(), default=None)
        lost = self._source.rows("lost", {"horizon": horizon and horizon + _SKEW})
        return Verdict(
            appended=numbers["appended"],
            arrived=numbers["arrived"],
            missing=numbers["missing"],
            is_decided=is_decided,
            unjudged=numbers["unjudged"],
            doubtful=numbers["doubtful"],
            doubled=numbers["doubled"],
            lost=sum(row["events"] for row in lost),
            strangers=numbers["strangers"],
            unreadable=self._unreadable,
            missing_examples=self._source.rows("missing_next", {"after": 0, "limit": _EXAMPLES}),
            doubled_examples=self._source.rows("doubled", {"limit": _EXAMPLES}),
            lost_of=lost,
        )


def verify(
    setup: Setup, *, since: datetime | None = None, wait: float = 60, tell: Callable[[str], None] = quiet
) -> Verdict:
    """Compares outbox and Kafka.

    Args:
        setup: names and places.
        since: only events appended from then on; all that the outbox has by default.
        wait: seconds to wait for a slot that lags behind.
        tell: is told how far it is.

    Raises:
        PyrunnerError: a part cannot be reached.
    """
    with comparing(setup, "verify", since=since, tell=tell) as comparison:
        return comparison.look(wait=wait)


@contextlib.contextmanager
def comparing(
    setup: Setup, command: str, *, since: datetime | None = None, tell: Callable[[str], None] = quiet
) -> Iterator[Comparison]:
    """A comparison with a session of its own."""
    kafka = Kafka(setup.bootstrap_servers, setup.kafka_settings)
    kafka.cluster_id()
    with open_source(setup, command, autocommit=True) as source:
        yield Comparison(setup, source, kafka, since, tell)


def findings_of(verdict: Verdict) -> list[Finding]:
    """What is wrong, with what to do."""
    title = "Delivery"
    found = []
    if verdict.missing and not verdict.is_decided:
        found.append(
            Finding(
                title,
                "error",
                f"{count(verdict.missing, 'event')} not in Kafka, perhaps still on the way: the slot lags "
                f"behind",
                "nothing can be said before it has caught up",
                "pyrunner cdc status; then verify again",
            )
        )
    elif verdict.missing:
        found.append(
            Finding(
                title,
                "error",
                f"{count(verdict.missing, 'event')} of the outbox not in Kafka",
                "the slot is past them, or gone: they will not come by themselves",
                "pyrunner cdc recover",
            )
        )
    if verdict.lost:
        runs = ", ".join(str(row["run_id"]) for row in verdict.lost_of[:3])
        found.append(
            Finding(
                title,
                "error",
                f"{count(verdict.lost, 'event')} of {count(len(verdict.lost_of), 'run')} "
                f"({runs}{', ...' if len(verdict.lost_of) > 3 else ''}) "
                "neither in the outbox nor in Kafka",
                "the outbox was truncated, or rows were deleted from it, before they were delivered",
                "where the slot lags behind, wait and verify again; else they cannot be sent: their leads "
                "and bookings "
                "stand in crm.audit_log, by correlation_id",
            )
        )
    if verdict.doubtful:
        found.append(
            Finding(
                title,
                "error",
                f"{count(verdict.doubtful, 'event')} older than what Kafka keeps: nobody can tell "
                "whether they were delivered",
                "the slot that would vouch for them is gone, or was made after them",
                "pyrunner cdc recover where it is gone; then pyrunner cdc replay --until TIME (consumers "
                "know repeats), or leave them, and: select outbox.close_gap('SLOT');",
            )
        )
    if verdict.doubled:
        found.append(
            Finding(
                title,
                "error",
                f"{count(verdict.doubled, 'event')} more than once in Kafka without a replay",
                "Connect does not work exactly once; consumers that keep event ids are not affected",
                "see to exactly.once.source.support of the workers, and exactly.once.support of the "
                "connector",
            )
        )
    if verdict.unreadable:
        found.append(
            Finding(
                title,
                "warning",
                f"{count(verdict.unreadable, 'record')} without an event id in the topics of the events",
                "they are not the outbox's",
                "find out who else writes to these topics",
            )
        )
    return found


def _forgotten_by_age(settings: Mapping[str, str]) -> datetime | None:
    """Before when a topic forgets by age; None where it never does."""
    kept = int(settings.get("retention.ms", "-1"))
    return None if kept < 0 else datetime.now(UTC) - timedelta(milliseconds=kept) + _SKEW


def _row_of(record: Message) -> tuple[UUID, UUID | None, str, UUID | None] | None:
    """Event, replay, topic and run of a record; None where it has no event."""
    headers: dict[str, Any] = dict(record.headers() or [])
    event = _id_in(headers, "id")
    if event is None:
        return None
    return event, _id_in(headers, "replayed"), str(record.topic()), _id_in(headers, "correlation_id")


def _id_in(headers: dict[str, Any], name: str) -> UUID | None:
    try:
        return UUID(headers[name].decode())
    except (KeyError, AttributeError, ValueError):
        return None


def _batches(records: Iterator[Message], size: int = 10_000) -> Iterator[list[Message]]:
    batch: list[Message] = []
    for record in records:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch

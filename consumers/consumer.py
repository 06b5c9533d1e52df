"""The way of messages from Kafka to their effects, as every consumer of ours goes it.

Offsets are committed after the transaction that holds the effects: whatever dies, a message comes again
rather than never, and what comes again is known by its id. While the database is away, the batch in hand is
kept, the partitions stay where they are, and Kafka is asked for nothing more.
"""

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumers.contracts import Message
from consumers.effects import Done, Effects, Outcome, Service
from consumers.tracing import tracing_of
from pyrunner.backoff import Backoff
from pyrunner.errors import PyrunnerError, UsageError
from pyrunner.logs import Log

__all__ = ["OWNED", "Consumer", "Stop"]

Place = tuple[str, int]

_BATCH: Final = 500
_POLL: Final = 0.5
_LONGEST_DELAY: Final = 15.0
_GOODBYE: Final = 10.0
# by then a group has given a partition to each instance that gets one
_UNNEEDED: Final = 10.0

_GONE: Final = "If messages were deleted before they were read, publish their events again: outbox.replay."

# what our promises rest on
OWNED: Final[Mapping[str, str | bool]] = {
    # nothing of a transaction that was rolled back
    "isolation.level": "read_committed",
    # offsets follow effects
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # a new group, or one whose offsets are gone, takes everything; the inbox knows what was had
    "auto.offset.reset": "earliest",
}
_DEFAULTS: Final[Mapping[str, str | int]] = {
    # a rebalance stops only the partitions that move
    "partition.assignment.strategy": "cooperative-sticky",
    # a killed instance's partitions go to the others after 10 s, not 45: a property is free within a minute
    "session.timeout.ms": 10000,
    # topics and partitions that are made later are noticed after 10 s, not 5 min
    "topic.metadata.refresh.interval.ms": 10000,
    # a broker that is back is noticed after 2 s, not 10; as long as none answers, it tries 4 times a second
    "reconnect.backoff.ms": 500,
    "reconnect.backoff.max.ms": 2000,
}
# the cluster lets us not in, or not do something: that does not mend itself
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - so is it called there
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)


class Stop:
    """The wish to end. A plain attribute, so that a signal handler may set it."""

    def __init__(self) -> None:
        self.requested = False


class Consumer:
    """Consumes until it is asked to stop.

    Args:
        service: what to do about which event.
        dsn: the database.
        kafka: settings of the client library: bootstrap.servers and, where need be, how to log in.
        group: instances of one group share the partitions; by default the service's name.
        topics: in place of the contracts'.
        once: end when nothing is left to consume, and raise what goes wrong instead of trying again.
        log: where to tell.
        stop: looked at between two batches.
        on_effect: called after a transaction that had effects.

    Attributes:
        counts: how many messages became what.

    Raises:
        UsageError: the client library refuses a setting.
    """

    def __init__(
        self,
        service: Service,
        *,
        dsn: str,
        kafka: Mapping[str, Any],
        group: str | None = None,
        topics: Sequence[str] = (),
        once: bool = False,
        log: Log,
        stop: Stop,
        on_effect: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts: Counter[Outcome] = Counter()
        self._service = service
        self._group = group or service.name
        self._topics = list(topics) or service.topics
        self._once = once
        self._log = log
        self._stop = stop
        self._on_effect = on_effect
        self._effects = Effects(service, dsn)
        settings = {
            **_DEFAULTS,
            "client.id": f"{service.name}@{socket.gethostname()}-{os.getpid()}",
            **kafka,
            **OWNED,
            "group.id": self._group,
            "enable.partition.eof": once,
            "error_cb": self._on_error,
            "on_commit": self._on_commit,
        }
        try:
            self._kafka = confluent_kafka.Consumer(settings, logger=_client_log(log))
        except KafkaException as error:
            raise UsageError(f"Kafka's client refuses its settings: {error.args[0].str()}.") from None
        self._tracing = tracing_of(service, self._group, log)
        self._assigned: set[Place] = set()
        self._assigned_at: float | None = None
        self._paused: set[Place] = set()
        self._at_end: set[Place] = set()
        # received, and not in the database yet; after a turn it holds something only while that is away
        self._pending: list[Message] = []
        self._backoff = Backoff(_LONGEST_DELAY, log)
        self._not_before = 0.0
        # the next offset of a partition, as the database has it and as Kafka has confirmed it
        self._reached: dict[Place, int] = {}
        self._confirmed: dict[Place, int] = {}
        self._is_away = False
        self._last_error = ""

    def run(self) -> None:
        """Consumes.

        Raises:
            PyrunnerError: with `once`, what went wrong.
        """
        self._log.info("consumer started", group=self._group, topics=self._topics)
        self._kafka.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        try:
            while not self._stop.requested and not self._is_caught_up():
                self._receive()
                if self._pending and time.monotonic() >= self._not_before:
                    self._process()
        finally:
            self._leave()

    # ------------------------------------------------------------ a turn

    def _receive(self) -> None:
        """Waits a moment for messages. Within, the library tells of rebalances, commits and errors."""
        wait = _POLL
        if self._pending:
            # asked all the same, lest the group takes us for dead
            self._pause()
            wait = min(wait, max(0.0, self._not_before - time.monotonic()))
        first = self._kafka.poll(wait)
        if first is None:
            return
        more = [] if self._pending else self._kafka.consume(_BATCH - 1, 0)
        for one in (first, *more):
            if (error := one.error()) is not None:
                self._on_trouble(error, one)
                continue
            message = Message.of(one)
            # it may have gone to another instance since it was fetched
            if message.place in self._assigned:
                self._at_end.discard(message.place)
                self._pending.append(message)

    def _process(self) -> None:
        began, began_at = time.monotonic(), time.time_ns()
        try:
            done = self._effects.apply(self._pending)
        except PyrunnerError as error:
            if self._once:
                raise
            delay = self._backoff.after("batch not possible", error, messages=len(self._pending))
            self._not_before = time.monotonic() + delay
            return
        ended_at = time.time_ns()
        # in the order in which they came
        reached = {message.place: message.offset + 1 for message in self._pending}
        self._reached |= reached
        self._pending.clear()
        self._resume()
        self._backoff.reset("database reachable")
        self._commit(reached)
        outcomes = Counter(one.outcome for one in done)
        self.counts += outcomes
        for one in done:
            self._tell(one)
        elapsed = round((time.monotonic() - began) * 1000, 1)
        self._log.debug("batch consumed", **{str(key): n for key, n in outcomes.items()}, elapsedMs=elapsed)
        self._tracing.handled(done, began_at, ended_at)
        if outcomes[Outcome.DONE]:
            self._on_effect()

    def _tell(self, done: Done) -> None:
        message, event = done.message, done.event
        where = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        if event is not None:
            name = self._service.done if done.outcome is Outcome.DONE else "event seen before"
            self._log.debug(name, **_ids(message), **event.ids, **where)
        elif done.outcome is Outcome.PARKED:
            self._log.warning("message parked", **_ids(message), reason=_place_of(done.reason), **where)
        else:
            self._log.debug("message parked before", **_ids(message), reason=_place_of(done.reason), **where)

    def _is_caught_up(self) -> bool:
        if not self._once or self._pending or self._assigned_at is None:
            return False
        if not self._assigned:
            return time.monotonic() > self._assigned_at + _UNNEEDED
        return self._at_end >= self._assigned

    # ------------------------------------------------------------ offsets

    def _commit(self, places: Iterable[Place]) -> None:
        """Commits what the database has. Does not wait: what is lost comes again, and is known."""
        offsets = [
            TopicPartition(*place, self._reached[place])
            for place in places
            if place in self._reached and self._reached[place] != self._confirmed.get(place)
        ]
        if offsets:
            try:
                self._kafka.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self._log.warning("offsets not committed", error=error.args[0].str())

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        for one in offsets:
            if (wrong := one.error or error) is None:
                self._confirmed[one.topic, one.partition] = one.offset
                self._is_answering()
            else:
                where = {"topic": one.topic, "partition": one.partition}
                self._log.warning("offsets not committed", error=wrong.str(), **where)

    # ------------------------------------------------------------ rebalances, told between two batches

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._is_answering()
        places = _places(partitions)
        self._assigned |= places
        self._assigned_at = time.monotonic()
        self._log.info("partitions assigned", partitions=_shown(places), now=len(self._assigned))

    def _on_revoke(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        places = _places(partitions)
        self._commit(places)
        self._forget(places)
        self._log.info("partitions revoked", partitions=_shown(places), now=len(self._assigned))

    def _on_lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        places = _places(partitions)
        self._forget(places)
        self._log.warning("partitions lost", partitions=_shown(places), now=len(self._assigned))

    def _forget(self, places: set[Place]) -> None:
        self._assigned -= places
        self._paused -= places
        self._at_end -= places
        self._pending = [message for message in self._pending if message.place not in places]
        for place in places:
            self._reached.pop(place, None)
            self._confirmed.pop(place, None)

    def _pause(self) -> None:
        if places := self._assigned - self._paused:
            with suppress(KafkaException):
                self._kafka.pause([TopicPartition(*place) for place in places])
                self._paused |= places

    def _resume(self) -> None:
        if self._paused:
            with suppress(KafkaException):
                self._kafka.resume([TopicPartition(*place) for place in self._paused])
            self._paused.clear()

    # ------------------------------------------------------------ trouble, and the end

    def _on_error(self, error: KafkaError) -> None:
        """What the library tells about the cluster, while it goes on trying."""
        if error.code() in _REFUSED or error.fatal():
            self._log.error("kafka not possible", error=error.str())
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._last_error = error.str()
        elif not self._is_away:
            self._is_away = True
            self._log.error("kafka unreachable", error=self._last_error or error.str())

    def _on_trouble(self, error: KafkaError, about: confluent_kafka.Message) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            self._at_end.add((about.topic() or "", about.partition() or 0))
            self._is_answering()
        else:
            self._log.error("kafka not possible", error=error.str(), topic=about.topic())

    def _is_answering(self) -> None:
        if self._is_away:
            self._is_away = False
            self._log.info("kafka reachable")

    def _leave(self) -> None:
        """Leaves the group; the library revokes our partitions first, and sends what we commit then."""
        # it would wait for a cluster that is away for as long as that takes
        farewell = threading.Thread(target=self._kafka.close, daemon=True)
        farewell.start()
        farewell.join(_GOODBYE)
        if farewell.is_alive():
            self._log.warning("group not left", error="Kafka does not answer")
        self._effects.close()
        self._tracing.close()
        self._log.info("consumer stopped", **{str(outcome): self.counts[outcome] for outcome in Outcome})


def _ids(message: Message) -> dict[str, str | None]:
    ids = {"eventId": message.event_id, "correlationId": message.correlation_id}
    return {name: None if one is None else str(one) for name, one in ids.items()}


def _place_of(reason: str | None) -> str | None:
    """What a reason begins with: the rest may repeat what the message says, and is kept beside it."""
    return reason and reason.partition(": ")[0]


def _places(partitions: Iterable[TopicPartition]) -> set[Place]:
    return {(one.topic, one.partition) for one in partitions}


def _shown(places: Iterable[Place]) -> list[str]:
    return [f"{topic}/{partition}" for topic, partition in sorted(places)]


class _ToLog(logging.Handler):
    """The client library's own lines, among ours."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("OFFSET "):
            # the only one that tells of messages which are gone: the others repeat what we are told as errors
            self._log.warning("offsets reset", text=text, hint=_GONE)
        else:
            self._log.debug("kafka client", text=text)


def _client_log(log: Log) -> logging.Logger:
    logger = logging.Logger("kafka")  # noqa: LOG001 - for one client
    logger.addHandler(_ToLog(log))
    return logger

"""Kafka as its administrator and as a reader of everything in it."""

import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from pyrunner.cdc.errors import BrokerAwayError
from pyrunner.cdc.setup import Topic
from pyrunner.errors import PyrunnerError, UsageError, one_line

__all__ = ["Kafka", "Span", "instant_of"]

# librdkafka writes to standard error otherwise; what matters becomes an error of ours
_SILENT: Final = logging.getLogger("pyrunner.cdc.kafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
# committed records only show up behind the markers of their transactions, and aborted ones not at all
_LOOK_BACK: Final = 200


@dataclass(frozen=True)
class Span:
    """What a partition holds: offsets from `low` to below `high`, not each of them a record."""

    topic: str
    partition: int
    low: int
    high: int


class Kafka:
    """A Kafka cluster; every method raises BrokerAwayError when it cannot be reached.

    Args:
        bootstrap_servers: host:port, several separated by commas.
        settings: more of librdkafka's, such as security.protocol.
        timeout: seconds for one request.
    """

    def __init__(
        self, bootstrap_servers: str, settings: Mapping[str, str] | None = None, *, timeout: float = 10
    ) -> None:
        self.shown: Final = bootstrap_servers
        self._timeout = timeout
        self._trouble = ""
        self._settings: dict[str, Any] = {
            **(settings or {}),
            "bootstrap.servers": bootstrap_servers,
            "client.id": "pyrunner",
            "socket.connection.setup.timeout.ms": 5000,
            "error_cb": self._note,
        }
        try:
            self._admin = AdminClient(self._settings, logger=_SILENT)
        except (KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"The settings for Kafka cannot be used: {_text(error)}.") from None

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - that is its name
            self._trouble = error.str()

    # ------------------------------------------------------------ the cluster

    def cluster_id(self) -> str:
        """The id of the cluster."""
        return str(self._metadata().cluster_id)

    def brokers(self) -> int:
        """How many brokers are up."""
        return len(self._metadata().brokers)

    def _metadata(self) -> Any:
        try:
            return self._admin.list_topics(timeout=self._timeout)
        except KafkaException as error:
            self._admin.poll(0)
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        reason = one_line(self._trouble or _text(error))
        raise BrokerAwayError(
            f"Kafka at {self.shown} cannot be reached: {reason}.",
            hint="Start it, or name another by --bootstrap-servers or PYRUNNER_BOOTSTRAP_SERVERS.",
        ) from None

    # ------------------------------------------------------------ topics

    def topics(self, names: Iterable[str], settings: Sequence[str] = ()) -> dict[str, Topic]:
        """Those of the topics that exist, with these of their settings."""
        every = self._metadata().topics
        present = [name for name in dict.fromkeys(names) if name in every and every[name].error is None]
        found = self._settings_of(present) if settings else {}
        return {
            name: Topic(
                name,
                len(every[name].partitions),
                min((len(partition.replicas) for partition in every[name].partitions.values()), default=0),
                {key: found[name][key] for key in settings if key in found[name]} if settings else {},
            )
            for name in present
        }

    def _settings_of(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(asked, request_timeout=self._timeout)
        return {
            resource.name: {key: str(entry.value) for key, entry in self._result(answer).items()}
            for resource, answer in answers.items()
        }

    def create(self, topic: Topic) -> None:
        """Makes a topic, and waits until every partition has a leader.

        Raises:
            PyrunnerError: Kafka refused.
        """
        new = NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            config=dict(topic.settings),
        )
        (answer,) = self._admin.create_topics([new], request_timeout=self._timeout).values()
        self._result(answer)
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            made = self._metadata().topics.get(topic.name)
            leaders = [] if made is None else [one.leader for one in made.partitions.values()]
            if len(leaders) == topic.partitions and min(leaders) >= 0:
                return
            time.sleep(0.05)

    def delete(self, name: str) -> bool:
        """Removes a topic with all that it holds; whether it was there."""
        (answer,) = self._admin.delete_topics([name], request_timeout=self._timeout).values()
        try:
            self._result(answer, KafkaError.UNKNOWN_TOPIC_OR_PART)
        except _ToleratedError:
            return False
        deadline = time.monotonic() + self._timeout
        while name in self._metadata().topics and time.monotonic() < deadline:
            time.sleep(0.05)
        return True

    def _result(self, answer: "Future[Any]", tolerated: int | None = None) -> Any:
        try:
            return answer.result(self._timeout + 5)
        except FutureTimeoutError as error:
            self._fail(error)
        except KafkaException as error:
            found = error.args[0]
            if found.code() == tolerated:
                raise _ToleratedError from None
            if found.code() < 0:
                self._admin.poll(0)
                self._fail(error)
            raise PyrunnerError(f"Kafka refused: {one_line(found.str())}.") from None

    # ------------------------------------------------------------ records

    def spans(self, names: Iterable[str]) -> list[Span]:
        """The partitions of those topics that exist, as they are at this moment."""
        present = self.topics(names)
        with self._consumer() as consumer:
            return [
                Span(name, partition, *self._watermarks(consumer, name, partition))
                for name, topic in present.items()
                for partition in range(topic.partitions)
            ]

    def _watermarks(self, consumer: Consumer, name: str, partition: int) -> tuple[int, int]:
        try:
            found = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=self._timeout)
        except KafkaException as error:
            self._fail(error)
        if found is None:
            self._fail(KafkaException("it did not answer in time"))
        return found

    def starts(self, spans: Sequence[Span], since: datetime | None) -> dict[tuple[str, int], int]:
        """The offset in each partition from which on records may be as young as `since`."""
        if since is None:
            return {(span.topic, span.partition): span.low for span in spans}
        wanted = [
            TopicPartition(span.topic, span.partition, int(since.timestamp() * 1000))
            for span in spans
            if span.high > span.low
        ]
        with self._consumer() as consumer:
            try:
                found = consumer.offsets_for_times(wanted, timeout=self._timeout) if wanted else []
            except KafkaException as error:
                self._fail(error)
        offsets = {(one.topic, one.partition): one.offset for one in found}
        # a negative one stands for the end: no record is so young
        return {
            key: at if (at := offsets.get(key, -1)) >= 0 else span.high
            for span in spans
            for key in [(span.topic, span.partition)]
        }

    def records(
        self, spans: Sequence[Span], starts: Mapping[tuple[str, int], int], *, stalled: float = 60
    ) -> Iterator[Message]:
        """Every committed record from the offsets `starts` to below `high`, in order within a partition.

        Args:
            spans: where to end.
            starts: where to begin.
            stalled: seconds without any progress after which it is given up.
        """
        ends = {(span.topic, span.partition): span.high for span in spans}
        open_ones = {key for key, end in ends.items() if starts[key] < end}
        if not open_ones:
            return
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(*key, starts[key]) for key in sorted(open_ones)])
            heard = time.monotonic()
            while open_ones:
                for message in consumer.consume(2000, timeout=1):
                    heard = time.monotonic()
                    key = (str(message.topic()), int(message.partition() or 0))
                    error = message.error()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its name
                            open_ones.discard(key)
                        elif not error.retriable():
                            self._fail(KafkaException(error))
                        continue
                    if int(message.offset() or 0) >= ends[key]:
                        open_ones.discard(key)
                    elif key in open_ones:
                        yield message
                if time.monotonic() - heard > stalled:
                    self._fail(KafkaException("it sends nothing"))

    def last_record_at(self, names: Iterable[str]) -> datetime | None:
        """The time of the youngest committed record of these topics; None when there is none."""
        spans = self.spans(names)
        starts = {(span.topic, span.partition): max(span.low, span.high - _LOOK_BACK) for span in spans}
        return max((instant_of(record) for record in self.records(spans, starts)), default=None)

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                **self._settings,
                # it joins no group and commits nothing
                "group.id": f"pyrunner-{secrets.token_hex(8)}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": 16384,
            },
            logger=_SILENT,
        )
        try:
            yield consumer
        finally:
            consumer.close()


class _ToleratedError(Exception):
    pass


def instant_of(record: Message) -> datetime:
    """When the record was made, by its producer's clock."""
    return datetime.fromtimestamp(record.timestamp()[1] / 1000, UTC)


def _text(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return found.str() if isinstance(found, KafkaError) else str(found)

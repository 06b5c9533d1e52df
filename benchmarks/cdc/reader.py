"""A consumer that keeps what it receives and when."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from benchmarks.lab import BenchError

__all__ = ["Reader"]

_PATIENCE: Final = 300.0


class Reader:
    """Reads topics from where they end when the `with` block begins, as committed.

    Args:
        bootstrap: the broker.
        topics: all partitions of these.
        prompt: take every message as soon as it is there; otherwise many at a time, which costs less.
        keep: keep messages as they are, and look into them after the measurement; else just their ids.
    """

    def __init__(
        self, bootstrap: str, topics: Sequence[str], *, prompt: bool = False, keep: bool = True
    ) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._prompt = prompt
        self._keep = keep
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reader")
        self._messages: list[Message] = []
        self._ids: list[bytes] = []
        self.times: list[float] = []

    def __enter__(self) -> Self:
        # what is Kafka's, or an application's for that matter, stays as it is by default
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "benchmark",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            self._consumer.assign(self._ends())
        except BaseException:
            self._consumer.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _ends(self) -> list[TopicPartition]:
        ends = []
        for topic in self._topics:
            for number in self._consumer.list_topics(topic, timeout=30).topics[topic].partitions:
                place = TopicPartition(topic, number)
                found = self._consumer.get_watermark_offsets(place, timeout=30)
                if found is None:
                    raise BenchError(f"the end of {topic} [{number}] cannot be told")
                ends.append(TopicPartition(topic, number, found[1]))
        return ends

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._prompt:
                    message = self._consumer.poll(0.1)
                    found = [] if message is None else [message]
                else:
                    found = self._consumer.consume(1000, timeout=0.02)
                if found:
                    self._take(found, time.perf_counter())
        except BaseException as error:  # noqa: BLE001 - handed on by wait()
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take(self, found: list[Message], now: float) -> None:
        for message in found:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is called
                raise KafkaException(error)
        ids = [] if self._keep else [_id(message) for message in found]
        with self._changed:
            if self._keep:
                self._messages += found
            self._ids += ids
            self.times += [now] * len(found)
            self._changed.notify_all()

    def wait(self, count: int, timeout: float = _PATIENCE) -> None:
        """Waits for so many messages.

        Raises:
            BenchError: they did not come.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self.times) >= count or self._error is not None, timeout)
            if self._error is not None:
                raise BenchError(f"the consumer failed: {self._error}")
            if len(self.times) < count:
                raise BenchError(f"{len(self.times):,} of {count:,} events came within {timeout:g} s")

    @property
    def ids(self) -> list[bytes]:
        """The ids of the events, as they came."""
        return [_id(message) for message in self._messages] if self._keep else self._ids

    @property
    def keys(self) -> list[str]:
        """The keys of the messages, as they came."""
        return [_text(message.key()) for message in self._messages]

    @property
    def bytes_received(self) -> int:
        """Of keys, values and headers together, as Kafka carries them uncompressed."""
        return sum(
            len(message) + len(message.key() or b"")
            + sum(len(name) + len(value or b"") for name, value in _headers(message))
            for message in self._messages
        )  # fmt: skip

    def check(self, expected: list[bytes]) -> None:
        """Compares with the ids that were written.

        Raises:
            BenchError: an event is missing, came twice or was never written.
        """
        came, wanted = Counter(self.ids), Counter(expected)
        if came != wanted:
            missing, extra = (wanted - came).total(), (came - wanted).total()
            raise BenchError(
                f"not each event once: {missing:,} missing, {extra:,} too many, of {len(expected):,}"
            )


def _headers(message: Message) -> list[tuple[str, Any]]:
    found = message.headers() or []
    return list(found.items()) if isinstance(found, dict) else list(found)


def _id(message: Message) -> bytes:
    for name, value in _headers(message):
        if name == "id":
            return bytes.fromhex(_text(value).replace("-", ""))
    raise BenchError("a message without an id came")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()

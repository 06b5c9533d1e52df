"""A span for each message, below the batch that caused it: its header traceparent names that.

One thread makes them and another sends them, each out of a bounded queue (the latter's: OTEL_BSP_*); what
does not fit is dropped. What goes wrong with them is told once, and holds nothing up.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import pyrunner
from consumers.contracts import Message
from consumers.effects import Done, Outcome, Service
from pyrunner.logs import Log
from pyrunner.traces.otlp import Receiver, ReceiverError, resource_of

__all__ = ["Spans"]

# transactions whose spans are to be made
_WAITING: Final = 8
# for what is still in the queues at the end
_GOODBYE: Final = 5.0


class Spans:
    """Makes spans of what became of messages, and has them sent.

    Args:
        service: the consumer.
        group: the group that it is a member of.
        log: where it is told that spans are not sent, and that they are again.

    Raises:
        UsageError: the address or a variable of OTLP cannot be used.
        ValueError: another variable of OpenTelemetry's cannot.
    """

    def __init__(self, service: Service, group: str, log: Log) -> None:
        self._service = service
        self._group = group
        self._log = log
        self._context = TraceContextTextMapPropagator()
        self._provider = TracerProvider(resource=resource_of(f"crm-{service.name}"), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_ToReceiver(Receiver(log=log), log)))
        self._tracer = self._provider.get_tracer("consumers", pyrunner.__version__)
        self._waiting: queue.Queue[tuple[Sequence[Done], int, int] | None] = queue.Queue(_WAITING)
        self._left_out = 0
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def handled(self, done: Sequence[Done], began: int, ended: int) -> None:
        """A span a message, as long as its transaction was."""
        try:
            self._waiting.put_nowait((done, began, ended))
        except queue.Full:
            self._left_out += len(done)

    def close(self) -> None:
        """Sends what is left, for 5 s at most."""
        farewell = threading.Thread(target=self._finish, daemon=True)
        farewell.start()
        farewell.join(_GOODBYE)
        if self._left_out:
            self._log.info("messages not traced", messages=self._left_out)

    def _finish(self) -> None:
        self._waiting.put(None)
        self._thread.join()
        self._provider.shutdown()

    def _work(self) -> None:
        is_broken = False
        while (one := self._waiting.get()) is not None:
            messages, began, ended = one
            try:
                for done in () if is_broken else messages:
                    self._make(done, began, ended)
            except Exception as error:  # noqa: BLE001 - the messages have had their effects
                is_broken = True
                self._log.warning("traces not possible", error=repr(error))

    def _make(self, done: Done, began: int, ended: int) -> None:
        message = done.message
        header = message.headers.get("traceparent")
        span = self._tracer.start_span(
            f"process {message.topic}",
            # without a header that can be read it is a trace of its own
            context=self._context.extract({"traceparent": header} if isinstance(header, str) else {}),
            kind=SpanKind.CONSUMER,
            attributes=self._attributes(message) | {"outcome": self._outcome(done)},
            start_time=began,
        )
        if done.outcome is Outcome.PARKED:
            # the reason may repeat what the message says: it stands in the table of what was parked
            span.set_status(Status(StatusCode.ERROR, "parked"))
        span.end(max(began, ended))

    def _attributes(self, message: Message) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.partition),
            "messaging.kafka.offset": message.offset,
            "messaging.consumer.group.name": self._group,
        }
        if message.event_id is not None:
            attributes["messaging.message.id"] = str(message.event_id)
        if message.correlation_id is not None:
            attributes["correlationId"] = str(message.correlation_id)
        return attributes

    def _outcome(self, done: Done) -> str:
        """What it became: property freed or notice filed, duplicate, parked."""
        names = {Outcome.DONE: self._service.done, Outcome.SEEN: "duplicate", Outcome.PARKED: "parked"}
        return names[done.outcome]


class _ToReceiver(SpanExporter):
    """Sends in the processor's thread; tells when it begins to fail, and when that is over."""

    def __init__(self, receiver: Receiver, log: Log) -> None:
        self._receiver = receiver
        self._log = log
        self._is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends; what cannot be sent is gone."""
        try:
            self._receiver.send(spans)
        except ReceiverError as error:
            if not self._is_away:
                self._is_away = True
                self._log.warning("traces not sent", error=error.message)
            return SpanExportResult.FAILURE
        if self._is_away:
            self._is_away = False
            self._log.info("traces sent again")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Tries no further."""
        self._receiver.close()

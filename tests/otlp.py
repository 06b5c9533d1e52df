"""A receiver of OTLP over HTTP that speaks the protocol: protobuf in and out, compressed or not."""

import contextlib
import gzip
import socket
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from uuid import UUID

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.servers import wait_until

__all__ = ["Event", "Otlp", "Span", "Trouble"]

KINDS = {WireSpan.SPAN_KIND_INTERNAL: "internal", WireSpan.SPAN_KIND_CONSUMER: "consumer"}
STATUSES = {Status.STATUS_CODE_UNSET: "unset", Status.STATUS_CODE_ERROR: "error"}


@dataclass(frozen=True)
class Event:
    """An event of a span, as it came."""

    name: str
    at: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A span, as it came; ids in hexadecimal, times in ns since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: tuple[Event, ...]
    dropped_events: int
    status: str
    message: str
    resource: dict[str, Any]

    @property
    def run_id(self) -> UUID:
        """The run that its trace is."""
        return UUID(self.trace_id)

    @property
    def traceparent(self) -> str:
        """As W3C writes the context of what happens below it."""
        return f"00-{self.trace_id}-{self.span_id}-01"


@dataclass
class Trouble:
    """What a receiver answers in place of taking spans.

    Attributes:
        status: of HTTP.
        body, kind: what it says, and its Content-Type.
        headers: further ones.
    """

    status: int = 503
    body: bytes = b""
    kind: str = "application/x-protobuf"
    headers: tuple[tuple[str, str], ...] = ()


class Otlp:
    """A receiver on loopback; may be told to be in trouble, to hold its answers back, or to be away.

    Attributes:
        spans: all that it has taken, in the order in which they came.
        requests: how many requests have come, those that it did not take among them.
        headers: of the last request.
        trouble: what it answers, None as long as it takes spans.
        trouble_from: the number of the first request that it gives that answer to.
        rejects: how many spans it says it rejects of each request.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.requests = 0
        self.headers: dict[str, str] = {}
        self.trouble: Trouble | None = None
        self.trouble_from = 1
        self.rejects = 0
        self._answers = threading.Event()
        self._answers.set()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._connections: set[socket.socket] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """Its address, with what nobody should see."""
        return f"http://somebody:sesame@127.0.0.1:{self._port}"

    @property
    def shown(self) -> str:
        """Its address as it may be printed."""
        return f"http://127.0.0.1:{self._port}/v1/traces"

    def env(self, **others: str) -> dict[str, str]:
        """The environment of a command that sends to it."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "20",
            "NO_PROXY": "127.0.0.1",
            **others,
        }

    def of(self, run_id: UUID) -> list[Span]:
        """The spans of a run, the cycle's first, then by batch."""
        with self._lock:
            found = [span for span in self.spans if span.run_id == run_id]
        return sorted(found, key=lambda span: (bool(span.parent_id), span.attributes.get("batch", 0)))

    def wait_for(self, count: int) -> list[Span]:
        """Waits until it has taken so many spans."""
        wait_until(
            lambda: len(self.spans) >= count, what=lambda: f"{count} spans; there are {len(self.spans)}"
        )
        return self.spans

    @contextlib.contextmanager
    def holding(self) -> Iterator[threading.Event]:
        """Within, what has been taken is not answered; set the event to let the answers go."""
        self._answers.clear()
        try:
            yield self._answers
        finally:
            self._answers.set()

    def go(self) -> None:
        """Goes away: nobody listens there any more, and who was connected is not."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def come(self) -> Self:
        """Listens, at the same port as before."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.add(self.connection)

            def finish(self) -> None:
                outer._connections.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with contextlib.suppress(OSError):
                    outer._answer(self, body)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __enter__(self) -> Self:
        return self.come()

    def __exit__(self, *_: object) -> None:
        self._answers.set()
        self.go()

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        with self._lock:
            self.requests += 1
            self.headers = {name.lower(): value for name, value in handler.headers.items()}
            answer = self.trouble if self.requests >= self.trouble_from else None
            answer = answer or self._take(handler, body)
        self._answers.wait(120)
        handler.send_response(answer.status)
        for name, value in (("Content-Type", answer.kind), *answer.headers):
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer.body)))
        handler.end_headers()
        handler.wfile.write(answer.body)

    def _take(self, handler: BaseHTTPRequestHandler, body: bytes) -> Trouble:
        if handler.path != "/v1/traces":
            return Trouble(404)
        if handler.headers["Content-Type"] != "application/x-protobuf":
            return Trouble(415)
        coding = handler.headers.get("Content-Encoding")
        if coding is not None:
            body = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body)
        self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_spans = self.rejects
            answer.partial_success.error_message = "too old"
        return Trouble(200, answer.SerializeToString())


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for group in request.resource_spans:
        for scope in group.scope_spans:
            for one in scope.spans:
                assert (len(one.trace_id), len(one.span_id)) == (16, 8)
                yield Span(
                    one.trace_id.hex(),
                    one.span_id.hex(),
                    one.parent_span_id.hex(),
                    one.name,
                    KINDS[one.kind],
                    one.start_time_unix_nano,
                    one.end_time_unix_nano,
                    _values(one.attributes),
                    tuple(_event(event) for event in one.events),
                    one.dropped_events_count,
                    STATUSES[one.status.code],
                    one.status.message,
                    _values(group.resource.attributes),
                )


def _event(event: WireSpan.Event) -> Event:
    return Event(event.name, event.time_unix_nano, _values(event.attributes))


def _values(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    name = value.WhichOneof("value")
    assert name in ("string_value", "bool_value", "int_value"), name
    return getattr(value, name)

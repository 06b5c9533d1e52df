"""A receiver of traces by OTLP over HTTP, as the options and the standard OTEL_* variables describe it.

Encoding, headers, certificates, compression and the tries within a call are the OpenTelemetry SDK's. Ours is
what it tells to its own log alone: why nothing was taken; without a header, a password or a query.
"""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

import pyrunner
from pyrunner.errors import ExitCode, PyrunnerError, UsageError, one_line
from pyrunner.logs import Log

__all__ = ["Receiver", "ReceiverError", "resource_of"]

_DEFAULT: Final = "http://localhost:4318"
_PATH: Final = "/v1/traces"
_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
# more is a value in milliseconds, as other SDKs take it
_LONGEST: Final = 600.0

# the SDK's lines may show headers, and what they tell we tell
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
logging.getLogger("opentelemetry").propagate = False


class ReceiverError(PyrunnerError):
    """The receiver of traces cannot be reached, or took nothing."""

    exit_code = ExitCode.UNREACHABLE


class Receiver:
    """Where spans go.

    Args:
        endpoint: as OTEL_EXPORTER_OTLP_ENDPOINT, and in its place; None is what the environment says.
        log: where it is told that spans were rejected.

    Attributes:
        shown: the address, for a person.
        timeout: seconds that a call of `send` may take, its tries and their pauses included.

    Raises:
        UsageError: the address or a variable cannot be used.
    """

    def __init__(self, endpoint: str | None = None, *, log: Log) -> None:
        url = _address(endpoint)
        parts = urlsplit(url)
        self.shown: Final = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self.timeout: Final = _timeout()
        _check_environment()
        self._log = log
        self._session = _Session()
        self._exporter = OTLPSpanExporter(endpoint=url, session=self._session)

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Sends spans; none are a question whether anybody is there.

        Raises:
            ReceiverError: none of them was taken, or that is not known.
        """
        self._session.forget()
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS or self._session.problem is not None:
            raise ReceiverError(
                f"{self.shown} takes no traces: {self._session.problem or 'they cannot be sent'}.",
                hint="Nothing is lost: what was not taken is sent by the next try.",
            )
        if self._session.rejected:
            # they would be rejected again
            self._log.warning("spans rejected", receiver=self.shown, error=self._session.rejected)

    def close(self) -> None:
        """Closes its connections; a call of `send` in another thread tries no further."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _Session(requests.Session):
    """Keeps what became of the last request.

    Attributes:
        problem: why nothing was taken; None when it was.
        rejected: what the receiver said to spans that it will never take.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Nothing is known any more."""
        self.problem: str | None = None
        self.rejected = ""

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """As that of requests."""
        try:
            response = super().request(*arguments, **named)
        except Exception as error:
            # without time for another try the SDK gives a timeout of 0: the problem is that of the last one
            if not isinstance(error, ValueError) or self.problem is None:
                self.problem = _reason(error)
            raise
        self.problem = self._judge(response)
        return response

    def _judge(self, response: requests.Response) -> str | None:
        # the SDK takes a redirection for an answer
        if not 200 <= response.status_code < 300:
            return f"HTTP {response.status_code} {response.reason or ''}".rstrip()
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "application/x-protobuf" and response.content:
            try:
                answer = ExportTraceServiceResponse.FromString(response.content)
            except DecodeError:
                return "its answer is not OTLP's"
            if answer.partial_success.rejected_spans:
                said = one_line(answer.partial_success.error_message)[:300]
                self.rejected = f"{answer.partial_success.rejected_spans} spans: {said or 'no reason given'}"
        elif kind.startswith("text/") and response.content:
            return f"what answers there is no receiver of OTLP ({kind})"
        return None


def _address(given: str | None) -> str:
    """The full address; of the variables the one for traces is taken as it stands."""
    if given is not None:
        source, base, path = "--endpoint", given, _PATH
    elif traces := os.environ.get(f"{_PREFIX}TRACES_ENDPOINT"):
        source, base, path = f"{_PREFIX}TRACES_ENDPOINT", traces, ""
    else:
        source, base, path = f"{_PREFIX}ENDPOINT", os.environ.get(f"{_PREFIX}ENDPOINT") or _DEFAULT, _PATH
    base = base.strip()
    parts = _parts(base)
    if parts is None:
        # without the address, which may hold a secret
        raise UsageError(
            f"The address of the OTLP receiver in {source} cannot be used.",
            hint="Write http://HOST:4318 or https://HOST/PATH.",
        )
    if not path or parts.path.rstrip("/").endswith(path):
        return base
    return parts._replace(path=parts.path.rstrip("/") + path).geturl()


def _parts(url: str) -> SplitResult | None:
    """The parts of an address of HTTP; None where it is none."""
    try:
        parts = urlsplit(url)
        # a port that is no number is an error when it is read
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_one and not any(character.isspace() for character in url) else None


def _timeout() -> float:
    for name in (f"{_PREFIX}TRACES_TIMEOUT", f"{_PREFIX}TIMEOUT"):
        if given := os.environ.get(name):
            try:
                seconds = float(given)
            except ValueError:
                seconds = math.nan
            if not 0 < seconds <= _LONGEST:
                raise UsageError(
                    f"{name} is {given!r}, and must be seconds, greater than 0 and at most {_LONGEST:.0f}."
                )
            return seconds
    return 10.0


def _check_environment() -> None:
    """Refuses what the SDK would pass over, or would say in the middle of its work."""
    for name, value in _given("PROTOCOL"):
        if value.strip() != "http/protobuf":
            raise UsageError(
                f"{name} is {value!r}, and only http/protobuf is spoken here.",
                hint=f"Set {_PREFIX}TRACES_PROTOCOL=http/protobuf, and an address of OTLP over HTTP.",
            )
    for name, value in _given("COMPRESSION"):
        if value.strip().lower() not in ("none", "gzip", "deflate"):
            raise UsageError(f"{name} is {value!r}, and must be none, gzip or deflate.")
    for name, value in _given("HEADERS"):
        if any("=" not in part for part in value.split(",") if part.strip()):
            # without the value, which is a secret
            raise UsageError(f"{name} cannot be used.", hint="Write NAME=VALUE,NAME=VALUE.")
    for kind in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        for name, value in _given(kind):
            if not Path(value).is_file():
                raise UsageError(f"{name} names {value}, which is no file.")


def _given(kind: str) -> Iterator[tuple[str, str]]:
    """The variable in force, where one is: that for traces goes before that for everything."""
    for name in (f"{_PREFIX}TRACES_{kind}", f"{_PREFIX}{kind}"):
        if value := os.environ.get(name):
            yield name, value
            return


def _reason(error: BaseException) -> str:
    """What went wrong with a request. No text of the library's: that repeats addresses and headers."""
    found = list(_causes(error))
    if any(isinstance(one, requests.Timeout | TimeoutError) for one in found):
        return "it does not answer"
    said = [one.strerror for one in found if isinstance(one, OSError) and one.strerror]
    if said:
        return one_line(said[-1])
    if any(isinstance(one, ConnectionResetError) for one in found):
        return "it ended the connection"
    return type(found[-1]).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, the first cause last."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        waiting += [cause for cause in inner if isinstance(cause, BaseException)]


def resource_of(service: str, **attributes: str) -> Resource:
    """What all spans of a process have in common; the standard OTEL_* variables go before it."""
    own = {"service.name": service, "service.version": pyrunner.__version__, **attributes}
    return Resource.create(own).merge(OTELResourceDetector().detect())

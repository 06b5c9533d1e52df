"""Whether a consumer makes spans: where OTLP is configured, and the extra `trace` is installed."""

import os
from collections.abc import Sequence
from typing import Protocol

from consumers.effects import Done, Service
from pyrunner.errors import PyrunnerError
from pyrunner.logs import Log

__all__ = ["Tracing", "tracing_of"]


class Tracing(Protocol):
    """Told what became of messages."""

    def handled(self, done: Sequence[Done], began: int, ended: int) -> None:
        """Messages of one transaction, begun and committed then (ns since 1970). Never raises or waits."""

    def close(self) -> None:
        """Nothing more comes; takes a few seconds at most."""


class _Untraced:
    def handled(self, done: Sequence[Done], began: int, ended: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def tracing_of(service: Service, group: str, log: Log) -> Tracing:
    """Spans, where they are wanted and can be made: a setting that cannot be used is told, and no more.

    Args:
        service: the consumer.
        group: the group that it is a member of.
        log: where to tell.
    """
    if not _is_wanted():
        return _Untraced()
    try:
        from consumers.spans import Spans

        return Spans(service, group, log)
    except ModuleNotFoundError as error:
        log.debug("traces not possible", error=f"{error.name} is not installed")
    except (PyrunnerError, ValueError) as error:
        log.warning("traces not possible", error=str(error))
    return _Untraced()


def _is_wanted() -> bool:
    """As the standard variables say."""
    given = os.environ.get
    is_named = bool(given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or given("OTEL_EXPORTER_OTLP_ENDPOINT"))
    chosen = {name.strip() for name in (given("OTEL_TRACES_EXPORTER") or "otlp").split(",")}
    is_off = given("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return is_named and "otlp" in chosen and not is_off

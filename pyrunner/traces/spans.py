"""A run as spans: one for the cycle, one below it for each batch, with an event for each item.

Ids are the database's: the trace is the run, a batch's span is the parent that its rows of the outbox name
(outbox.traceparent), and the cycle's is made in the same way out of the number 0, which no batch has. So
whoever sends a run again sends the same spans.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

import pyrunner
from pyrunner.errors import one_line
from pyrunner.times import format_instant

__all__ = ["Limits", "spans_of"]

Attributes = dict[str, str | int | bool]

_SCOPE: Final = InstrumentationScope("pyrunner.traces", pyrunner.__version__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_EVENTS: Final = 10_000
_LONGEST_TEXT: Final = 1_000

# of the run and the batch, what is an attribute under the same name
_OF_RUN: Final = (
    "driver", "instance", "status", "reason", "expired", "failed", "skipped_locked", "batches", "due_before",
    "retries", "batch_size", "max_batches_per_cycle",
)  # fmt: skip
_OF_BATCH: Final = ("phase", "step", "claimed", "expired", "failed", "skipped_locked", "drained", "capped")


class Limits:
    """How much a span may hold, by OTEL_SPAN_EVENT_COUNT_LIMIT (128) and OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT.

    Attributes:
        events: at most so many events a span.
        text: at most so many characters a text.

    Raises:
        ValueError: a variable is no number.
    """

    def __init__(self) -> None:
        limits = SpanLimits()
        self.events: Final = _least(limits.max_events, _MOST_EVENTS)
        self.text: Final = _least(limits.max_span_attribute_length, _LONGEST_TEXT)


def _least(limit: int | None, ours: int) -> int:
    return ours if limit is None else min(limit, ours)


def spans_of(
    run: Mapping[str, Any], batches: Iterable[Mapping[str, Any]], resource: Resource, limits: Limits
) -> Iterator[ReadableSpan]:
    """The spans of a run: the cycle's first.

    Args:
        run: a row of traces/take.
        batches: its rows of traces/batches, with at most `limits.events` items each.
        resource: who sends them.
        limits: of texts and events.
    """
    cycle = _context(run["traceparent"])
    yield ReadableSpan(
        run["job"],
        context=cycle,
        resource=resource,
        attributes=_attributes_of_run(run),
        status=_status_of(run, limits),
        start_time=_nanoseconds(run["started_at"]),
        end_time=_nanoseconds(max(run["started_at"], run["finished_at"])),
        instrumentation_scope=_SCOPE,
    )
    for batch in batches:
        yield ReadableSpan(
            f"{batch['phase']} batch",
            context=_context(batch["traceparent"]),
            parent=cycle,
            resource=resource,
            attributes={
                **_ids(run),
                "batch": batch["number"],
                **_chosen(batch, _OF_BATCH),
                "items_left_out": _left_out(batch),
            },
            events=_events(batch),
            start_time=_nanoseconds(batch["started_at"]),
            end_time=_nanoseconds(max(batch["started_at"], batch["finished_at"])),
            instrumentation_scope=_SCOPE,
        )


def _attributes_of_run(run: Mapping[str, Any]) -> Attributes:
    attributes: Attributes = {
        **_ids(run),
        "job": run["job"],
        "as_of": format_instant(run["as_of"]),
        **_chosen(run, _OF_RUN),
    }
    if run["status"] in ("failed", "abandoned"):
        attributes["error.type"] = run["sqlstate"] or run["status"]
        if run["sqlstate"]:
            attributes["sqlstate"] = run["sqlstate"]
    return attributes


def _status_of(run: Mapping[str, Any], limits: Limits) -> Status:
    if run["status"] not in ("failed", "abandoned"):
        return Status(StatusCode.UNSET)
    said = f"{run['sqlstate']}: {run['error']}" if run["sqlstate"] else str(run["error"])
    return Status(StatusCode.ERROR, _short(said, limits))


def _events(batch: Mapping[str, Any]) -> BoundedList[Event]:
    """An event an item: that it expired, or how it failed; the tenant, and no word of what an item holds."""
    # an item is what the batch's commit made it
    at = _nanoseconds(max(batch["started_at"], batch["finished_at"]))
    events: BoundedList[Event] = BoundedList(None)
    events.extend([_event(batch["phase"], item, at) for item in batch["items"]])
    events.dropped = _left_out(batch)
    return events


def _event(phase: str, item: Mapping[str, Any], at: int) -> Event:
    is_lead = phase == "Lead"
    attributes: Attributes = {
        "LeadId" if is_lead else "BookingId": item["item_id"],
        **({"TenantId": item["tenant_id"]} if item["tenant_id"] else {}),
        **({"DealId": item["deal_id"]} if item["deal_id"] else {}),
        **({} if is_lead else {"Phase": phase}),
    }
    if item["sqlstate"] is not None:
        return Event("item.failed", {**attributes, "sqlstate": item["sqlstate"]}, at)
    return Event("lead.expired" if is_lead else "booking expired", attributes, at)


def _left_out(batch: Mapping[str, Any]) -> int:
    return max(0, int(batch["expired"] + batch["failed"] - len(batch["items"])))


def _ids(run: Mapping[str, Any]) -> Attributes:
    return {"jobRunId": str(run["id"]), "correlationId": str(run["id"])}


def _chosen(row: Mapping[str, Any], names: Iterable[str]) -> Attributes:
    return {name: row[name] for name in names if row[name] is not None}


def _short(text: str, limits: Limits) -> str:
    return one_line(text)[: limits.text]


def _context(traceparent: str) -> SpanContext:
    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(int(flags, 16)))


def _nanoseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1) * 1000

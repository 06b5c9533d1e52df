"""The connector's life: until it runs, and why it does not."""

import contextlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyrunner.cdc.errors import ConnectError
from pyrunner.cdc.kafka import Kafka
from pyrunner.cdc.rest import Connect, ConnectorState
from pyrunner.cdc.setup import Setup
from pyrunner.cdc.source import Source
from pyrunner.errors import one_line

__all__ = [
    "describe",
    "failure",
    "find_position",
    "position_of",
    "reason_of",
    "remedy_of",
    "remove",
    "set_position",
    "stop",
    "wait_until_running",
]

# a task that was FAILED before a change says so for a moment after it
_SETTLED: Final = 3.0
_REMEDIES: Final = (
    # what the trace says, what to type
    ("no longer available on the server", "pyrunner cdc recover"),
    (
        "password authentication failed",
        "put the right password into the connector's file, then: pyrunner cdc restart",
    ),
    # the broker was too slow, or a topic was away: nothing is wrong with the events
    ("producer transaction expired", "pyrunner cdc restart"),
    ("RecordTooLarge", "pyrunner cdc recover --new-slot, after the event has been taken out of the outbox"),
    ("InvalidTopic", "pyrunner cdc recover --new-slot, after the event has been taken out of the outbox"),
)


def wait_until_running(connect: Connect, source: Source, *, patience: float) -> None:
    """Waits until connector and task run, somebody reads from the slot and, where events wait, they get on.

    Args:
        connect: where.
        source: the database, whose set-up names connector and slot.
        patience: seconds.

    Raises:
        ConnectError: it failed, or did not come up in time.
    """
    name = source.setup.connector
    deadline = time.monotonic() + patience
    failed_since: float | None = None
    found = source.rows("slot_status", {"slot": source.setup.slot})
    waits = bool(found) and (found[0]["backlog_events"] or 0) > 0
    start = source.slot().confirmed
    while True:
        state, now = connect.state(name), time.monotonic()
        slot = source.slot()
        is_up = state is not None and state.is_running and slot.active
        # a task says RUNNING before it fails at what it reads first
        if is_up and (not waits or slot.confirmed != start or now > deadline):
            return
        if state is not None and state.failure is not None:
            failed_since = failed_since or now
            if now - failed_since > _SETTLED:
                raise failure(name, state.failure)
        else:
            failed_since = None
        if now > deadline:
            raise ConnectError(
                f"Connector {name} does not run after {patience:g} s: {describe(state)}.",
                hint="See the log of Kafka Connect, and: pyrunner cdc status",
            )
        time.sleep(0.1)


def failure(name: str, trace: str) -> ConnectError:
    """The error for a connector that has failed."""
    remedy = remedy_of(trace)
    return ConnectError(
        f"Connector {name} has failed: {reason_of(trace)}.",
        hint=f"{remedy[0].upper()}{remedy[1:]}"
        if remedy
        else "The whole trace stands in the log of Kafka Connect.",
    )


def describe(state: ConnectorState | None) -> str:
    """A connector's state in a few words."""
    if state is None:
        return "Connect does not know it"
    tasks = ", ".join(f"task {task.id} {task.state}" for task in state.tasks) or "no task"
    return f"{state.state}, {tasks}"


def reason_of(trace: str) -> str:
    """What a trace says: its first line, and the innermost cause where that is another."""
    lines = trace.splitlines() or [""]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = [_plain(lines[0]), *([_plain(causes[-1])] if causes else [])]
    return "; ".join(dict.fromkeys(said))


def _plain(line: str) -> str:
    """A line of a trace without the exception's package."""
    kind, colon, text = line.partition(": ")
    return one_line(f"{kind.rpartition('.')[2]}: {text}" if colon and " " not in kind else line)


def remedy_of(trace: str) -> str | None:
    """What to do about a failure that is known."""
    return next((remedy for mark, remedy in _REMEDIES if mark in trace), None)


# ------------------------------------------------------------ offsets


def find_position(connect: Connect, kafka: Kafka, setup: Setup) -> int | None:
    """How far the connector has come, in bytes of log; None where it has no offsets, 0 where we forgot them.

    Connect cannot tell where it cannot read the password; then the connector's own topic does.
    """
    try:
        return position_of(connect.offsets(setup.connector))
    except ConnectError:
        key = [setup.connector, setup.offset_partition]
        spans = kafka.spans([setup.offsets_topic])
        last: dict[str, Any] = {}
        for record in kafka.records(spans, kafka.starts(spans, None)):
            if json.loads(record.key() or b"null") == key:
                last = json.loads(record.value() or b"null") or {}
        return position_of([{"offset": last}])


def position_of(offsets: list[dict[str, Any]]) -> int | None:
    """How far the connector has come, in bytes of log; None where it has no offsets, 0 if we forgot them."""
    found = [
        int(value)
        for one in offsets
        for key, value in (one["offset"] or {}).items()
        if key in ("lsn", "lsn_proc", "lsn_commit") and value is not None
    ]
    return max(found, default=None)


def set_position(connect: Connect, setup: Setup, position: int) -> None:
    """Lets a stopped connector go on from there.

    Args:
        connect: where.
        setup: whose connector.
        position: of the slot, in bytes of log.
    """
    offset: Mapping[str, Any] = {
        "lsn": position,
        "lsn_proc": position,
        "lsn_commit": position,
        # after a COMMIT it would wait for the next one that it reads: an idle outbox would hold the log back
        "messageType": "MESSAGE",
        "ts_usec": int(datetime.now(UTC).timestamp() * 1_000_000),
    }
    connect.set_offsets(setup.connector, [{"partition": setup.offset_partition, "offset": offset}])


def remove(connect: Connect, setup: Setup, *, patience: float) -> None:
    """Stops and deletes a connector for good.

    Its offsets outlive it, in the workers' topic as well as in its own, and cannot be removed: with a topic
    of its own, Connect takes 90 s over that and fails. So they are set to 0, which no slot is behind: whoever
    makes a connector of this name by hand sees it fail instead of leaving a gap, and `install` knows it.
    Where Connect cannot read the password it neither tells nor takes offsets: what is left of them `install`
    judges by the slot.
    """
    stop(connect, setup.connector, patience=patience)
    with contextlib.suppress(ConnectError):
        if position_of(connect.offsets(setup.connector)):
            set_position(connect, setup, 0)
    connect.delete(setup.connector)


def stop(connect: Connect, name: str, *, patience: float) -> None:
    """Stops a connector, and waits until its tasks are gone.

    Raises:
        ConnectError: they are still there.
    """
    connect.stop(name)
    deadline = time.monotonic() + patience
    while (state := connect.state(name)) is None or state.state != "STOPPED" or state.tasks:
        if time.monotonic() > deadline:
            raise ConnectError(
                f"Connector {name} does not stop: {describe(state)}.", hint="See the log of Connect."
            )
        time.sleep(0.1)

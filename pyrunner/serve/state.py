"""A database for a person: what is wrong, worst first, each with what to do; and all that the page shows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from psycopg.rows import DictRow
from psycopg.sql import SQL

from pyrunner.database import query
from pyrunner.output import ago, count, span
from pyrunner.serve.reader import Questions, Reading
from pyrunner.settings import Job

__all__ = ["LOOK", "READY", "RUNBOOKS", "Finding", "State", "state_of"]

Severity = Literal["fault", "warning"]

# the answer is whether it can be read, and holds this version
READY: Final = Questions({})
LOOK: Final = Questions(
    {
        "clock": SQL("select clock_timestamp() as now, current_setting('server_version') as version"),
        "jobs": query("serve/jobs"),
        "due": SQL("select * from expiration.due_figures"),
        "running": query("serve/running"),
        "cycles": query("serve/cycles"),
        "failed": query("serve/failed"),
        "totals": SQL("select * from expiration.batch_total"),
        "slots": SQL("select * from outbox.slot_figures order by name"),
        "partitions": SQL("select * from outbox.partition_figures"),
        "parked": query("cdc/parked"),
    }
)
_SECTIONS: Final = {
    "clock": "the database's clock",
    "jobs": "the state of the jobs",
    "due": "what is due",
    "running": "the runs at work",
    "cycles": "the last cycles",
    "failed": "the failed items",
    "totals": "the totals",
    "slots": "the replication slots",
    "partitions": "the outbox's partitions",
    "parked": "the messages that consumers have put aside",
}
# pages of docs/runbooks
_OF_JOB: Final = {Job.LEAD: "lead-expiration-backlog", Job.BOOKING: "booking-expiration"}
_POISON: Final = {Job.LEAD: "lead-expiration-poison-item", Job.BOOKING: "booking-expiration"}
_GONE: Final = "job-not-running"
_SLOT_LOST: Final = "slot-lost"
_STUCK: Final = "outbox-stuck"
_BACKLOG: Final = "outbox-backlog"
RUNBOOKS: Final = frozenset({*_OF_JOB.values(), *_POISON.values(), _GONE, _SLOT_LOST, _STUCK, _BACKLOG})

# as the alerts have them
_LEAST_SILENCE: Final = 300.0
_MOST_BACKLOG: Final = 1000
_LEAST_AHEAD: Final = 3
_LEAST_LEFT: Final = 0.25
# what a cycle may take before its period counts as late
_GRACE: Final = 300.0
_UPKEEP: Final = "psql -c 'call expiration.run_upkeep()'"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        severity: a fault keeps items from expiring or events from being delivered; a warning will, or may.
        what: one sentence.
        command: to type, for the cause or the cure.
        runbook: the page of docs/runbooks that cures it.
    """

    severity: Severity
    what: str
    command: str | None = None
    runbook: str | None = None


@dataclass(frozen=True)
class State:
    """A database as the page shows it.

    Attributes:
        reading: by `LOOK`.
        now: the database's clock.
        findings: what is wrong, worst first.
    """

    reading: Reading
    now: datetime
    findings: Sequence[Finding]

    def rows(self, section: str, job: str | None = None) -> list[DictRow]:
        """The rows of a section, of one job; none where it could not be read."""
        found = self.reading.rows.get(section, [])
        return [row for row in found if job is None or row["job"] == job]

    def is_known(self, section: str) -> bool:
        """Whether a section could be read."""
        return section in self.reading.rows


def state_of(reading: Reading) -> State:
    """What a reading by `LOOK` says."""
    clock = reading.rows.get("clock")
    now: datetime = clock[0]["now"] if clock else datetime.now(UTC)
    findings = list(_judge(reading, now))
    findings.sort(key=lambda finding: finding.severity != "fault")
    return State(reading, now, findings)


def _judge(reading: Reading, now: datetime) -> Iterator[Finding]:
    if reading.error is not None:
        hint = f" {reading.error.hint}" if reading.error.hint else ""
        yield Finding("fault", f"{reading.error.message}{hint}", "pyrunner doctor", _GONE)
        return
    for section, why in reading.failures.items():
        yield Finding(
            "warning", f"{_SECTIONS[section].capitalize()} could not be read: {why}", "pyrunner doctor", _GONE
        )
    found = reading.rows
    for job in found.get("jobs", ()):
        due = [row for row in found.get("due", ()) if row["job"] == job["job"]]
        yield from _judge_job(job, due, now)
    for run in found.get("running", ()):
        yield from _judge_run(run, found.get("jobs", ()), now)
    for slot in found.get("slots", ()):
        yield from _judge_slot(slot)
    for row in found.get("partitions", ()):
        yield from _judge_partitions(row)
    for row in found.get("parked", ()):
        yield Finding(
            "warning",
            f"{row['consumer']} has put aside {count(row['messages'], 'message')} of {row['topic']}.",
            f"psql -c 'select * from {row['consumer']}.parked'",
            _BACKLOG,
        )


def _judge_job(job: Mapping[str, Any], due: Sequence[DictRow], now: datetime) -> Iterator[Finding]:
    name, runbook = job["job"], _OF_JOB[Job(job["job"])]
    silent, period = job["seconds_since_last_success"], job["period_seconds"]
    last = job["last_run_status"]
    if job["last_success_at"] is None:
        success = "it has never succeeded"
    else:
        success = f"its last success ended {ago(job['last_success_at'], now)}"
    items = sum(row["due"] for row in due)
    if job["paused"]:
        why = f": {job['paused_reason']}" if job["paused_reason"] else ""
        yield Finding(
            "warning",
            f"{name} is paused by {job['paused_by']} since {ago(job['paused_at'], now)}{why}.",
            f"pyrunner resume {name}",
        )
    elif last == "failed":
        yield Finding(
            "fault",
            f"The last cycle of {name} failed with {job['last_run_sqlstate']}: {job['last_run_error']};"
            f" {success}.",
            f"pyrunner history --job {name}",
            runbook,
        )
    elif silent > max(2 * period, _LEAST_SILENCE):
        yield Finding(
            "fault",
            f"{name} has had no successful cycle for {_span(silent)}; {success}.",
            f"pyrunner status; pyrunner logs --job {name} --since '1 d'",
            _GONE,
        )
    elif not job["failed_items"]:
        # a failed item stays due, and is the oldest in the end
        age = max((row["oldest_due_seconds"] or 0 for row in due), default=0)
        if age > period + min(job["max_duration_seconds"], _GRACE):
            yield Finding(
                "fault",
                f"{_number(items, 1000)} of {name} {'is' if items == 1 else 'are'} due,"
                f" the oldest for {_span(age)}.",
                f"pyrunner status; pyrunner history --job {name}",
                runbook,
            )
    if last == "abandoned":
        yield Finding(
            "warning",
            f"The last cycle of {name} was abandoned: whoever drove it is gone.",
            f"pyrunner history --job {name}",
            _GONE,
        )
    if job["failed_items"]:
        yield Finding(
            "warning",
            f"{_number(job['failed_items'], 10000)} of {name}"
            f" {'fails' if job['failed_items'] == 1 else 'fail'} alone, and will be tried again.",
            f"pyrunner failed list {name}",
            _POISON[Job(name)],
        )


def _judge_run(run: Mapping[str, Any], jobs: Sequence[DictRow], now: datetime) -> Iterator[Finding]:
    longest = next((job["max_duration"] for job in jobs if job["job"] == run["job"]), None)
    if longest is not None and now - run["started_at"] > 2 * longest + timedelta(minutes=1):
        yield Finding(
            "fault",
            f"A cycle of {run['job']} by {run['driver']} has been at work since"
            f" {ago(run['started_at'], now)}.",
            f"pyrunner stop {run['job']}",
            _OF_JOB[Job(run["job"])],
        )


def _judge_slot(slot: Mapping[str, Any]) -> Iterator[Finding]:
    name, left = slot["name"], slot["safe_wal_size"]
    if slot["state"] in ("lost", "missing"):
        yield Finding(
            "fault",
            f"Replication slot {name} is {slot['state']}: events are in the outbox only,"
            " and no partition is dropped.",
            "pyrunner cdc recover --dry-run",
            _SLOT_LOST,
        )
        return
    if slot["state"] == "inactive":
        yield Finding(
            "fault", f"Nobody reads replication slot {name}: events wait.", "pyrunner cdc status", _STUCK
        )
    if left is not None and left < _LEAST_LEFT * (left + (slot["retained_bytes"] or 0)):
        yield Finding(
            "fault",
            f"Replication slot {name} is lost after another {size(max(left, 0))} of log.",
            "pyrunner cdc status",
            _STUCK,
        )
    if (slot["backlog_events"] or 0) > _MOST_BACKLOG:
        yield Finding(
            "warning",
            f"{_number(slot['backlog_events'], 10000, 'event')} wait for {slot['connector']},"
            f" the oldest for {_span(slot['backlog_seconds'])}.",
            "pyrunner cdc status",
            _BACKLOG,
        )


def _judge_partitions(row: Mapping[str, Any]) -> Iterator[Finding]:
    if row["partitions_ahead"] < _LEAST_AHEAD:
        yield Finding(
            "warning",
            f"Of the outbox only {count(row['partitions_ahead'], 'partition')} ahead of today"
            f" {'is' if row['partitions_ahead'] == 1 else 'are'} made.",
            _UPKEEP,
            _GONE,
        )
    if row["default_events"]:
        events = _number(row["default_events"], 1000, "event")
        yield Finding(
            "warning", f"{events} in the outbox's default partition, where none should be.", _UPKEEP, _GONE
        )


def size(number: int) -> str:
    """Bytes as people read them: "1.5 MB"."""
    value = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def _span(seconds: float) -> str:
    return span(timedelta(seconds=seconds))


def _number(number: int, most: int, noun: str = "item") -> str:
    """A count that stops at `most`."""
    return f"{count(number, noun)} or more" if number >= most else count(number, noun)

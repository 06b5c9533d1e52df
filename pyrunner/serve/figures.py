"""The series that Prometheus scrapes, made from what the views of figures say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Any, Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from psycopg.rows import DictRow
from psycopg.sql import SQL

from pyrunner.database import query
from pyrunner.serve.reader import Questions, Reading
from pyrunner.settings import Job

__all__ = ["SCRAPE", "SERIES", "Figures", "Series"]

_STATUSES: Final = ("completed", "capped", "stopped", "failed", "abandoned", "skipped")
# of a last cycle: skipped ones are not cycles
_OUTCOMES: Final = (*(status for status in _STATUSES if status != "skipped"), "none")
_SLOT_STATES: Final = ("active", "inactive", "lost", "missing")
_OWN: Final = {Job.LEAD: "crm_lead_expiration", Job.BOOKING: "crm_booking_expiration"}
_ERRORS: Final = (
    "Errors by kind: item (an item failed alone), retry (a batch tried again after a transient fault), "
    "run (a cycle failed), abandoned (a run whose driver vanished)."
)
_TASK: Final = ("task",)
_PHASE: Final = ("task", "phase")
_SLOT: Final = ("slot",)


SCRAPE: Final = Questions(
    {
        "jobs": SQL("select * from expiration.job_figures"),
        "runs": SQL("select * from expiration.run_total"),
        "batches": SQL("select * from expiration.batch_total"),
        "durations": SQL("select * from expiration.duration_histogram order by job, le"),
        "lateness": SQL("select * from expiration.lateness_histogram order by job, phase, le"),
        "due": SQL("select * from expiration.due_figures"),
        "slots": SQL("select * from outbox.slot_figures"),
        "partitions": SQL("select * from outbox.partition_figures"),
        "parked": query("cdc/parked"),
    }
)


@dataclass(frozen=True)
class Series:
    """One series.

    Attributes:
        name: as Prometheus has it.
        kind: its type.
        labels: those beside `database`; none is for the process itself.
        meaning: for a person.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Sequence[str] | None
    meaning: str


_ALL: Final = (
    Series(
        "crm_lead_expiration_expired_total",
        "counter",
        (),
        "Leads expired, purged history included.",
    ),
    Series(
        "crm_lead_expiration_duration_seconds",
        "histogram",
        (),
        "Cycles of lead-expiration by their duration, neither skipped nor abandoned ones.",
    ),
    Series(
        "crm_lead_expiration_backlog",
        "gauge",
        (),
        "Leads that were due before the latest cycle.",
    ),
    Series(
        "crm_lead_expiration_errors_total",
        "counter",
        ("kind",),
        _ERRORS,
    ),
    Series(
        "crm_lead_expiration_lateness_seconds",
        "histogram",
        (),
        "Leads expired by their lateness: the cut-off that expired them minus their deadline.",
    ),
    Series(
        "crm_booking_expiration_cycle_duration_seconds",
        "histogram",
        (),
        "Cycles of booking-expiration by their duration, neither skipped nor abandoned ones.",
    ),
    Series(
        "crm_booking_expiration_items_total",
        "counter",
        ("phase",),
        "Bookings expired, purged history included.",
    ),
    Series(
        "crm_booking_expiration_backlog",
        "gauge",
        (),
        "Bookings that were due before the latest cycle.",
    ),
    Series(
        "crm_booking_expiration_skip_locked_total",
        "counter",
        (),
        "Due bookings passed over because another transaction held them.",
    ),
    Series(
        "crm_booking_expiration_errors_total",
        "counter",
        ("kind",),
        _ERRORS,
    ),
    Series(
        "crm_booking_expiration_lateness_seconds",
        "histogram",
        ("phase",),
        "Bookings expired by their lateness: the cut-off that expired them minus their deadline.",
    ),
    Series(
        "crm_expiration_runs_total",
        "counter",
        ("task", "status"),
        "Runs by how they ended, whoever drove them.",
    ),
    Series(
        "crm_expiration_batches_total",
        "counter",
        _PHASE,
        "Batches that claimed at least one item.",
    ),
    Series(
        "crm_expiration_due_items",
        "gauge",
        _PHASE,
        "Items due at this moment, failed ones among them, counted to 1000.",
    ),
    Series(
        "crm_expiration_oldest_due_seconds",
        "gauge",
        _PHASE,
        "Age of the oldest deadline that has passed; 0 when none has.",
    ),
    Series(
        "crm_expiration_failed_items",
        "gauge",
        _TASK,
        "Items that failed alone and wait, counted to 10000.",
    ),
    Series(
        "crm_expiration_running",
        "gauge",
        _TASK,
        "Runs at work.",
    ),
    Series(
        "crm_expiration_paused",
        "gauge",
        _TASK,
        "1 when somebody has paused the job.",
    ),
    Series(
        "crm_expiration_last_run_state",
        "gauge",
        ("task", "status"),
        "1 for the status of the last cycle, 0 for the others; none when there has been no cycle.",
    ),
    Series(
        "crm_expiration_seconds_since_last_success",
        "gauge",
        _TASK,
        "Since the last cycle that was completed or capped; since the installation when there was none.",
    ),
    Series(
        "crm_expiration_last_success_timestamp_seconds",
        "gauge",
        _TASK,
        "When the last successful cycle ended, as Unix time; 0 when there was none.",
    ),
    Series(
        "crm_expiration_period_seconds",
        "gauge",
        _TASK,
        "Time between two cycles, as set in the database.",
    ),
    Series(
        "crm_expiration_max_duration_seconds",
        "gauge",
        _TASK,
        "A cycle that has worked so long starts no further batch.",
    ),
    Series(
        "crm_outbox_slot_state",
        "gauge",
        ("slot", "state"),
        "1 for the state of a registered replication slot, 0 for the others.",
    ),
    Series(
        "crm_outbox_backlog_events",
        "gauge",
        _SLOT,
        "Events beyond the slot's confirmed position, counted to 10000.",
    ),
    Series(
        "crm_outbox_backlog_bytes",
        "gauge",
        _SLOT,
        "Log that the slot has not confirmed yet.",
    ),
    Series(
        "crm_outbox_backlog_seconds",
        "gauge",
        _SLOT,
        "Age of the oldest event beyond the slot's confirmed position; 0 when there is none.",
    ),
    Series(
        "crm_outbox_retained_bytes",
        "gauge",
        _SLOT,
        "Log that the server keeps for the slot.",
    ),
    Series(
        "crm_outbox_slot_left_bytes",
        "gauge",
        _SLOT,
        "Log that may still be written before the slot is lost; absent where max_slot_wal_keep_size sets "
        "no limit.",
    ),
    Series(
        "crm_outbox_slot_confirmed_bytes",
        "gauge",
        _SLOT,
        "The slot's confirmed position, in bytes from the log's beginning; it stands still when nothing "
        "is confirmed, heartbeats included.",
    ),
    Series(
        "crm_outbox_partitions_ahead",
        "gauge",
        (),
        "Partitions of the outbox made ahead of today.",
    ),
    Series(
        "crm_outbox_default_events",
        "gauge",
        (),
        "Events in the default partition, where none should be, counted to 1000.",
    ),
    Series(
        "crm_outbox_bytes",
        "gauge",
        (),
        "Size of the outbox on disk.",
    ),
    Series(
        "crm_consumer_parked_messages",
        "gauge",
        ("consumer", "topic"),
        "Messages that a consumer has put aside; absent where it never has.",
    ),
    Series(
        "crm_exporter_up",
        "gauge",
        (),
        "1 when the database could be read; with 0 its other series are absent.",
    ),
    Series(
        "crm_exporter_scrape_seconds",
        "gauge",
        (),
        "How long it took to read the database.",
    ),
    Series(
        "crm_exporter_scrape_errors_total",
        "counter",
        ("section",),
        "Readings in which a section of the series had to be left out: locked, too slow, not permitted.",
    ),
    Series(
        "crm_exporter_build_info",
        "gauge",
        None,
        "1, with the version of pyrunner.",
    ),
)
SERIES: Final[Mapping[str, Series]] = {series.name: series for series in _ALL}

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: Final[Mapping[str, type[_Family]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _bound(le: float) -> str:
    """A bound as prometheus_client writes it."""
    return "+Inf" if le == inf else repr(float(le))


class Figures(Collector):
    """One scrape.

    Args:
        readings: of each database, by `SCRAPE`.
        version: of this program.
    """

    def __init__(self, readings: Iterable[Reading], version: str) -> None:
        self._families: dict[str, _Family] = {}
        self._database = ""
        for reading in readings:
            self._take(reading)
        build_info = GaugeMetricFamily(
            "crm_exporter_build_info", SERIES["crm_exporter_build_info"].meaning, labels=["version"]
        )
        build_info.add_metric([version], 1)
        self._families["crm_exporter_build_info"] = build_info

    def collect(self) -> Iterator[Metric]:
        """The families in the order in which the documentation lists them."""
        return (self._families[name] for name in SERIES if name in self._families)

    # ------------------------------------------------------------ adding samples

    def _family(self, name: str) -> _Family:
        if name not in self._families:
            series = SERIES[name]
            self._families[name] = _FAMILIES[series.kind](
                name, series.meaning, labels=["database", *(series.labels or ())]
            )
        return self._families[name]

    def _add(self, name: str, value: Any, *labels: str) -> None:
        """One sample; none where the database has no value."""
        if value is not None:
            family = self._family(name)
            assert not isinstance(family, HistogramMetricFamily)
            family.add_metric([self._database, *labels], float(value))

    def _add_state(self, name: str, states: Sequence[str], state: str, *labels: str) -> None:
        for one in states:
            self._add(name, one == state, *labels, one)

    def _add_histogram(
        self, name: str, found: Sequence[DictRow], count: str, total: Any, *labels: str
    ) -> None:
        """Rows in the order of le, each counted up to it."""
        family = self._family(name)
        assert isinstance(family, HistogramMetricFamily)
        family.add_metric(
            [self._database, *labels],
            [(_bound(row["le"]), float(row[count])) for row in found],
            float(total),
        )

    # ------------------------------------------------------------ sections

    def _take(self, reading: Reading) -> None:
        self._database = reading.label
        self._add("crm_exporter_up", reading.error is None)
        if reading.error is not None:
            return
        self._add("crm_exporter_scrape_seconds", reading.seconds)
        for section in SCRAPE.sections:
            self._add("crm_exporter_scrape_errors_total", reading.failures_ever.get(section, 0), section)
        found = reading.rows
        for row in found.get("jobs", ()):
            self._take_job(row)
        if "runs" in found:
            self._take_runs(found["runs"])
        if "batches" in found:
            self._take_batches(found["batches"])
        for job, steps in groupby(found.get("durations", ()), key=lambda row: row["job"]):
            histogram = list(steps)
            name = "duration_seconds" if job == Job.LEAD else "cycle_duration_seconds"
            self._add_histogram(f"{_OWN[Job(job)]}_{name}", histogram, "runs", histogram[-1]["seconds"])
        if "batches" in found:
            self._take_lateness(found.get("lateness", ()), found["batches"])
        for row in found.get("due", ()):
            self._add("crm_expiration_due_items", row["due"], row["job"], row["phase"])
            self._add(
                "crm_expiration_oldest_due_seconds", row["oldest_due_seconds"] or 0, row["job"], row["phase"]
            )
        for row in found.get("slots", ()):
            self._take_slot(row)
        for row in found.get("partitions", ()):
            self._add("crm_outbox_partitions_ahead", row["partitions_ahead"])
            self._add("crm_outbox_default_events", row["default_events"])
            self._add("crm_outbox_bytes", row["bytes"])
        for row in found.get("parked", ()):
            self._add("crm_consumer_parked_messages", row["messages"], row["consumer"], row["topic"])

    def _take_job(self, row: DictRow) -> None:
        job, success = row["job"], row["last_success_at"]
        self._add(f"{_OWN[Job(job)]}_backlog", row["backlog"])
        self._add("crm_expiration_failed_items", row["failed_items"], job)
        self._add("crm_expiration_running", row["running"], job)
        self._add("crm_expiration_paused", row["paused"], job)
        self._add_state(
            "crm_expiration_last_run_state", _OUTCOMES, row["last_run_status"] or "none", job
        )  # fmt: skip
        self._add("crm_expiration_seconds_since_last_success", row["seconds_since_last_success"], job)
        self._add(
            "crm_expiration_last_success_timestamp_seconds",
            0 if success is None else success.timestamp(),
            job,
        )
        self._add("crm_expiration_period_seconds", row["period_seconds"], job)
        self._add("crm_expiration_max_duration_seconds", row["max_duration_seconds"], job)

    def _take_runs(self, found: Sequence[DictRow]) -> None:
        runs = {(row["job"], row["status"]): row["runs"] for row in found}
        for job, own in _OWN.items():
            for status in _STATUSES:
                self._add("crm_expiration_runs_total", runs.get((job, status), 0), job, status)
            retries = sum(row["retries"] for row in found if row["job"] == job)
            self._add(f"{own}_errors_total", retries, "retry")
            self._add(f"{own}_errors_total", runs.get((job, "failed"), 0), "run")
            self._add(f"{own}_errors_total", runs.get((job, "abandoned"), 0), "abandoned")

    def _take_batches(self, found: Sequence[DictRow]) -> None:
        for row in found:
            job, phase = row["job"], row["phase"]
            self._add("crm_expiration_batches_total", row["batches"], job, phase)
            if job == Job.LEAD:
                self._add("crm_lead_expiration_expired_total", row["expired"])
            else:
                self._add("crm_booking_expiration_items_total", row["expired"], phase)
        for job, own in _OWN.items():
            self._add(f"{own}_errors_total", sum(r["failed"] for r in found if r["job"] == job), "item")
        self._add(
            "crm_booking_expiration_skip_locked_total",
            sum(row["skipped_locked"] for row in found if row["job"] == Job.BOOKING),
        )

    def _take_lateness(self, found: Sequence[DictRow], batches: Sequence[DictRow]) -> None:
        totals = {(row["job"], row["phase"]): row["lateness_seconds"] for row in batches}
        for key, steps in groupby(found, key=lambda row: (row["job"], row["phase"])):
            job, phase = key
            name = f"{_OWN[Job(job)]}_lateness_seconds"
            labels = () if job == Job.LEAD else (phase,)
            self._add_histogram(name, list(steps), "items", totals[key], *labels)

    def _take_slot(self, row: DictRow) -> None:
        slot = row["name"]
        self._add_state("crm_outbox_slot_state", _SLOT_STATES, row["state"], slot)
        self._add("crm_outbox_backlog_events", row["backlog_events"], slot)
        self._add("crm_outbox_backlog_bytes", row["lag_bytes"], slot)
        self._add("crm_outbox_backlog_seconds", row["backlog_seconds"], slot)
        self._add("crm_outbox_retained_bytes", row["retained_bytes"], slot)
        self._add("crm_outbox_slot_left_bytes", row["safe_wal_size"], slot)
        self._add("crm_outbox_slot_confirmed_bytes", row["confirmed_bytes"], slot)

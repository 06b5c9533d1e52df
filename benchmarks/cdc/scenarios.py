"""What is measured on the way from the outbox to a consumer."""

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles
from typing import Any, Final, Literal
from uuid import UUID

from benchmarks.cdc.lab import PROCESSES, Lab, Usage, until
from benchmarks.choice import Scenario
from benchmarks.lab import BenchError
from benchmarks.measure import Ratio, ratios

__all__ = ["SCENARIOS", "SETTINGS", "Comparison", "Row", "Setting"]

Verdict = Literal["met", "missed", ""]

MB: Final = 1_000_000


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        scenario: the scenario's name.
        what: what is measured.
        target: in words; "" when there is none.
        shown: the figures.
        verdict: "" without a target.
        samples: all rounds.
    """

    scenario: str
    what: str
    target: str
    shown: str
    verdict: Verdict
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """A line of the table of settings.

    Attributes:
        setting: its name.
        ours: its value in the committed files.
        instead: what was tried.
        measured: what the figures are.
        with_ours: the figures with our value.
        with_instead: the figures with the other one.
        ratio: of ours to the other one, of the rate or of p99.
        samples: all rounds.
    """

    setting: str
    ours: str
    instead: str
    measured: str
    with_ours: str
    with_instead: str
    ratio: Ratio | None
    samples: list[dict[str, Any]] = field(default_factory=list)


def met(holds: bool) -> Verdict:
    return "met" if holds else "missed"


# --------------------------------------------------------------------------------------------------- latency


@dataclass(frozen=True)
class Latency:
    """From a commit's return to the consumer, in ms."""

    p50: float
    p95: float
    p99: float
    greatest: float
    events: int


def distribution(milliseconds: Sequence[float]) -> Latency:
    """The distribution of latencies, by interpolation between neighbours."""
    cuts = quantiles(milliseconds, n=100, method="inclusive")
    return Latency(cuts[49], cuts[94], cuts[98], max(milliseconds), len(milliseconds))


def measure_latency(lab: Lab, events: int) -> Latency:
    """Lets leads expire one at a time, each in a transaction of its own, at random moments of equal rate."""
    lab.rows("call bench.make_leads(%s)", (events,))
    before = lab.last_event()
    committed: dict[str, float] = {}
    chance = random.Random(events)
    slot = 1 / lab.scale.per_second
    with lab.reader(prompt=True) as reader, lab.session() as session:
        start = time.perf_counter() + slot
        for number in range(events):
            # not in step with anybody's poll interval
            at = start + (number + chance.random()) * slot
            time.sleep(max(0.0, at - time.perf_counter()))
            row = session.execute("select (crm.expire_leads_batch(batch_size => 1)).last_id::text").fetchone()
            assert row is not None
            committed[row[0]] = time.perf_counter()
        reader.wait(events)
        times, keys = reader.times[:], reader.keys
        reader.check(lab.ids_after(before))
    return distribution([1000 * (at - committed[key]) for at, key in zip(times, keys, strict=True)])


def latency(lab: Lab) -> list[Row]:
    """From the commit that expires a lead to the consumer that has its event, at 20 a second."""
    found = []
    for number in range(lab.scale.latency_rounds):
        lab.say(f"latency: round {number + 1} of {lab.scale.latency_rounds}")
        found.append(measure_latency(lab, lab.scale.latency_events))
    lab.empty()
    p50, p99 = (median(getattr(one, name) for one in found) for name in ("p50", "p99"))
    figures = ", ".join(
        f"{label} {_spread([getattr(one, name) for one in found], 1)}"
        for label, name in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("max", "greatest"))
    )
    events = sum(one.events for one in found)
    return [
        Row(
            "latency",
            f"commit to consumer at {lab.scale.per_second} events/s, exactly once",
            "p50 < 20 ms, p99 < 50 ms",
            f"{figures} ms; each of {events:,} events came once",
            met(p50 < 20 and p99 < 50),
            samples=[vars(one) for one in found],
        )
    ]


def _spread(values: Sequence[float], digits: int = 0) -> str:
    """The median, and the least and greatest where there are several."""
    middle = f"{median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}..{max(values):,.{digits}f})"


# ------------------------------------------------------------------------------------------------------ rate


@dataclass(frozen=True)
class Rate:
    """Events on their way.

    Attributes:
        seconds: from the first one's insertion (or the moment the slot was taken) to the last one's arrival.
        per_second: events a second.
        cpu: processor time of broker, Connect and walsender, in s per 100,000 events.
        event_bytes: mean size of a message, key and headers included.
    """

    seconds: float
    per_second: float
    cpu: Mapping[str, float]
    event_bytes: float


def measure_live(lab: Lab, events: int) -> Rate:
    """The connector runs while the events are appended."""
    before = lab.last_event()
    with lab.reader() as reader, lab.session() as session, Usage(lab) as usage:
        start = time.perf_counter()
        session.execute("call bench.append(%s, %s)", (events, lab.scale.batch))
        reader.wait(events)
    return _rate(lab, reader, before, start, usage.cpu, events)


def measure_backlog(lab: Lab, events: int) -> Rate:
    """The events are there already when the connector comes; timed from when it has the slot."""
    lab.stop_connector()
    before = lab.last_event()
    with lab.reader() as reader, lab.session() as session:
        session.execute("call bench.append(%s, %s)", (events, lab.scale.batch))
        cpu = lab.cpu()
        start = lab.resume_connector()
        reader.wait(events)
        after = lab.cpu()
    spent = {name: used - cpu.get(name, 0) for name, used in after.items()}
    return _rate(lab, reader, before, start, spent, events)


def _rate(lab: Lab, reader: Any, before: int, start: float, cpu: Mapping[str, float], events: int) -> Rate:
    reader.check(lab.ids_after(before))
    seconds = reader.times[-1] - start
    size = reader.bytes_received / events
    lab.empty()
    return Rate(
        seconds, events / seconds, {name: used * 100_000 / events for name, used in cpu.items()}, size
    )


def warm_up(lab: Lab) -> None:
    """Sends events until Java has compiled what it will."""
    lab.say(f"warming up: {lab.scale.warm_up:,} events")
    measure_live(lab, lab.scale.warm_up // 2)
    measure_backlog(lab, lab.scale.warm_up // 2)


def rate(lab: Lab) -> list[Row]:
    """How many events a second reach a consumer: while they are appended, and from a backlog."""
    ways: tuple[tuple[str, Callable[[Lab, int], Rate], str, float], ...] = (
        ("appended meanwhile by another session", measure_live, "at least 12,000/s, aim at 20,000/s", 12_000),
        ("from a backlog", measure_backlog, "at least 12,000/s, aim at 20,000/s", 12_000),
    )
    found: dict[str, list[Rate]] = {name: [] for name, *_ in ways}
    for number in range(lab.scale.rate_rounds):
        lab.say(f"rate: round {number + 1} of {lab.scale.rate_rounds}")
        for name, measure, *_ in ways if number % 2 == 0 else ways[::-1]:
            found[name].append(measure(lab, lab.scale.rate_events))
    return [
        Row(
            "rate",
            f"{lab.scale.rate_events:,} events, {lab.scale.batch} a transaction, {name}",
            target,
            f"{_spread([one.per_second for one in found[name]])} events/s; {_cpu(found[name])}; "
            f"{found[name][0].event_bytes:.0f} bytes a message; each event came once",
            met(median(one.per_second for one in found[name]) >= least),
            samples=[vars(one) for one in found[name]],
        )
        for name, _, target, least in ways
    ]


def _cpu(found: Sequence[Rate]) -> str:
    names = [name for name in ("Connect", "broker", "walsender") if all(name in one.cpu for one in found)]
    spent = ", ".join(f"{name} {median(one.cpu[name] for one in found):.1f}" for name in names)
    return f"CPU s per 100,000: {spent}" if spent else "CPU cannot be told"


# -------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """What would be otherwise.

    Attributes:
        name: the setting, as its file spells it, or what it is about.
        instead: what is tried, in words.
        measure: what it is expected to change.
        connector: settings of the connector; None takes one away.
        worker: settings of Connect.
    """

    name: str
    instead: str
    measure: Literal["rate", "latency"]
    connector: Mapping[str, str | None] = field(default_factory=dict)
    worker: Mapping[str, str] = field(default_factory=dict)


def _one(name: str, value: str, measure: Literal["rate", "latency"]) -> Setting:
    return Setting(name, value, measure, {name: value})


SETTINGS: Final = (
    Setting("max.batch.size", "8192", "rate", {"max.batch.size": "8192", "max.queue.size": "32768"}),
    Setting("message.key.columns", "the primary key", "rate", {"message.key.columns": None}),
    _one("producer.override.batch.size", "16384", "rate"),
    _one("producer.override.linger.ms", "0", "rate"),
    _one("producer.override.compression.type", "lz4", "rate"),
    _one("producer.override.compression.type", "zstd", "rate"),
    _one("poll.interval.ms", "500", "rate"),
    Setting(
        "exactly.once.source.support",
        "disabled",
        "rate",
        {"exactly.once.support": "requested"},
        {"exactly.once.source.support": "disabled"},
    ),
    _one("poll.interval.ms", "1", "latency"),
    _one("poll.interval.ms", "100", "latency"),
    _one("poll.interval.ms", "500", "latency"),
    _one("producer.override.linger.ms", "0", "latency"),
    _one("producer.override.compression.type", "lz4", "latency"),
    Setting(
        "fetch.max.wait.ms",
        "500",
        "latency",
        {"consumer.override.fetch.max.wait.ms": "500"},
        {"fetch.max.wait.ms": "500"},
    ),
    Setting(
        "exactly.once.source.support",
        "disabled",
        "latency",
        {"exactly.once.support": "requested"},
        {"exactly.once.source.support": "disabled"},
    ),
)


def settings(lab: Lab) -> list[Comparison]:
    """What single settings bring: as they are, and otherwise, in turn."""
    wanted = SETTINGS if lab.scale.every_setting else (SETTINGS[0], SETTINGS[-1])
    found = [_compare(lab, setting) for setting in wanted]
    lab.configure({})
    lab.resume_connector()
    return found


def _compare(lab: Lab, setting: Setting) -> Comparison:
    def once(instead: bool) -> Rate | Latency:
        lab.configure(setting.connector if instead else {}, setting.worker if instead else {})
        lab.resume_connector()
        if setting.worker:
            # the worker may have been started anew, and Java compiles what is used
            measure_live(lab, lab.scale.setting_rate_events)
        if setting.measure == "rate":
            return measure_live(lab, lab.scale.setting_rate_events)
        return measure_latency(lab, lab.scale.setting_latency_events)

    ours: list[Rate | Latency] = []
    theirs: list[Rate | Latency] = []
    for number in range(lab.scale.setting_rounds):
        lab.say(f"{setting.name} {setting.instead}: round {number + 1} of {lab.scale.setting_rounds}")
        for instead in (False, True) if number % 2 == 0 else (True, False):
            (theirs if instead else ours).append(once(instead))
    key = "per_second" if setting.measure == "rate" else "p99"
    return Comparison(
        setting.name,
        lab.setting(setting.name),
        setting.instead,
        "events/s" if setting.measure == "rate" else "p50, p99 in ms",
        _figures(ours),
        _figures(theirs),
        ratios([(getattr(a, key), getattr(b, key)) for a, b in zip(ours, theirs, strict=True)]),
        [{"ours": vars(a), "instead": vars(b)} for a, b in zip(ours, theirs, strict=True)],
    )


def _figures(found: Sequence[Rate | Latency]) -> str:
    rates = [one for one in found if isinstance(one, Rate)]
    if rates:
        return f"{_spread([one.per_second for one in rates])}; {_cpu(rates)}"
    latencies = [one for one in found if isinstance(one, Latency)]
    return ", ".join(_spread([getattr(one, name) for one in latencies], 1) for name in ("p50", "p99"))


# ----------------------------------------------------------------------------------------------------- freed


def freed(lab: Lab) -> list[Row]:
    """From the commit that expires a booking to the property object that the chessboard has freed."""
    lab.say(f"freed: {lab.scale.freed:,} bookings")
    lab.rows("call bench.make_bookings(%s)", (lab.scale.freed + 1,))
    taken = []
    with _chessboard(lab), lab.session() as session:
        # the first one comes when the consumer has its partitions
        for _ in range(lab.scale.freed + 1):
            row = session.execute(
                "select (crm.expire_bookings_batch(phase => 'Reserve', batch_size => 1)).last_id"
            ).fetchone()
            assert row is not None
            committed = time.perf_counter()
            until(partial(_is_freed, lab, row[0]), "the chessboard has freed the property object")
            taken.append(1000 * (time.perf_counter() - committed))
    found = distribution(taken[1:])
    lab.empty()
    return [
        Row(
            "freed",
            "commit of an expired booking to its property object freed by the chessboard",
            "< 1 min",
            f"p50 {found.p50:.1f}, p95 {found.p95:.1f}, p99 {found.p99:.1f}, max {found.greatest:.1f} ms; "
            f"{found.events:,} bookings, one after another",
            met(found.greatest < 60_000),
            [vars(found)],
        )
    ]


def _is_freed(lab: Lab, booking: UUID) -> bool:
    return bool(lab.value("select exists (select from chessboard.release where booking_id = %s)", (booking,)))


@contextlib.contextmanager
def _chessboard(lab: Lab) -> Iterator[None]:
    """The consumer, in a process of its own."""
    command = [
        sys.executable, "-m", "consumers.chessboard", "--dsn", lab.stack.dsn(),
        "--bootstrap-servers", lab.stack.bootstrap_servers,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
            process.terminate()
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
        if code:
            log.seek(0)
            raise BenchError(f"the chessboard ended with {code}: {log.read().strip().rpartition(chr(10))[2]}")


# --------------------------------------------------------------------------------------------------- dropped


def dropped(lab: Lab) -> list[Row]:
    """Events published, confirmed and dropped by the day: no dead tuple, and the disk as before."""
    events, days = lab.scale.dropped, lab.scale.dropped_days
    lab.say(f"dropped: {events:,} events in {days} partitions")
    lab.empty()
    lab.rows("call bench.make_past(%s)", (days,))
    lab.rows("update outbox.settings set retention = interval '1 second'")
    _settle(lab)
    before, first = lab.disk(), lab.last_event()
    with lab.reader(keep=False) as reader, lab.session() as session:
        start = time.perf_counter()
        session.execute("call bench.append(%s, %s, %s)", (events, lab.scale.batch, days))
        reader.wait(events, timeout=3600)
        seconds = reader.times[-1] - start
    reader.check(lab.ids_after(first))
    full = lab.disk()
    inserted, touched, dead = until(lambda: _tuples(lab, events), "the statistics are up to date")

    start = time.perf_counter()
    gone, calls = 0, 0
    while gone < days:
        # one call seals, a later one drops; a partition that autovacuum is at waits for the call after
        calls += 1
        if calls > 60:
            raise BenchError(f"after {calls} calls {gone} of {days} partitions were dropped")
        lab.wait_until_confirmed()
        gone += len(lab.rows("select * from outbox.drop_partitions()"))
    took = time.perf_counter() - start
    _settle(lab)
    after = lab.disk()
    taken, left = (one["database"] - before["database"] for one in (full, after))
    is_back = left < 0.01 * taken and after["held back"] < 2 * 16 * MB
    kafka = (full["topics"] - before["topics"]) / events
    sizes = {name: ", ".join(_mb(one[name]) for one in (before, full, after)) for name in after}
    return [
        Row(
            "dropped",
            f"{events:,} events published and dropped, {days} partitions",
            "no dead tuples, disk back",
            f"{dead:,} dead tuples, {touched:,} updates and deletes beside {inserted:,} inserts; MB before, "
            f"full, afterwards: database {sizes['database']}, folder of the log {sizes['log']}, held back "
            f"for the slot {sizes['held back']}; sealed, confirmed and dropped by {calls} calls "
            f"in {took:.1f} s; {events / seconds:,.0f} events/s, each came once; "
            f"Kafka keeps {kafka:.0f} bytes an event",
            met(dead == 0 and touched == 0 and is_back),
            [{"before": before, "full": full, "after": after, "seconds": seconds, "dropping": took}],
        )
    ]


def _settle(lab: Lab) -> None:
    """What was removed leaves the disk at a checkpoint; the slot lets go what it has confirmed."""
    lab.wait_until_confirmed()
    for _ in range(2):
        lab.rows("select pg_switch_wal()")
        lab.rows("checkpoint")
        lab.wait_until_confirmed()


def _tuples(lab: Lab, events: int) -> tuple[int, int, int] | None:
    """Inserted, updated or deleted, and dead tuples in the events' tables, once all inserts are counted."""
    row = lab.rows(
        "select coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint,"
        " coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables as s inner join outbox.partition as p"
        " on s.schemaname = 'outbox' and s.relname = p.name where p.to_time < now()"
    )[0]
    return None if row[0] < events else (row[0], row[1], row[2])


def _mb(size: float) -> str:
    return f"{size / MB:,.0f}"


# ---------------------------------------------------------------------------------------------------- memory


def memory(lab: Lab) -> list[Row]:
    """Memory of each process, idle and at most; processor time of an idle stack."""
    lab.say(f"memory: {lab.scale.idle_seconds:g} s of nothing")
    lab.empty()
    with Usage(lab) as idle:
        time.sleep(lab.scale.idle_seconds)
    rows = []
    for name in PROCESSES:
        # the two are sampled each at its own moments
        most = max(idle.peak[name], lab.whole.peak[name])
        shown = f"{_mb(idle.peak[name])} MB idle, {_mb(most)} MB at most"
        if name in idle.cpu:
            shown += f"; {100 * idle.cpu[name] / idle.seconds:.1f} % of a core idle"
        rows.append(
            Row(
                "memory", f"memory: {_SHOWN[name]}", "", shown, "",
                [{"idle": idle.peak[name], "most": most, "cpu": idle.cpu.get(name)}],
            )
        )  # fmt: skip
    return rows


_SHOWN: Final = {
    "PostgreSQL": "PostgreSQL, all processes",
    "walsender": "PostgreSQL's walsender alone",
    "broker": "broker",
    "Connect": "Connect with the connector",
}


# --------------------------------------------------------------------------------------------- the scenarios


SCENARIOS: Final[Sequence[Scenario[Lab, Row | Comparison]]] = (
    Scenario("latency", latency),
    Scenario("rate", rate),
    Scenario("freed", freed),
    Scenario("dropped", dropped),
    Scenario("memory", memory),
    Scenario("settings", settings),
)

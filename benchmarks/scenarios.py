"""What is measured: pairs of ways, side by side, round by round."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Final, Literal, LiteralString

from benchmarks.choice import Scenario
from benchmarks.lab import BenchError, Connection, Lab
from benchmarks.measure import Ratio, Sample, Watch, ratios, together
from benchmarks.memory import Nowhere
from pyrunner.cycle import Stop, run_cycle
from pyrunner.database import connect
from pyrunner.logs import LogObserver, make_log
from pyrunner.settings import Job, Overrides

__all__ = ["SCENARIOS", "Row"]

Pairs = list[tuple[Sample, Sample]]

FINGERPRINT: Final = "select what, rows, digest from bench.fingerprint(%s)"
LEADS: Final = "call expiration.run_job('lead-expiration', %s)"
BOOKINGS: Final = "call expiration.run_job('booking-expiration', %s)"


# ---------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        scenario: the scenario's name.
        what: what is compared with what, or measured.
        target: in words; "" when there is none.
        clock: ratio by the clock.
        cpu: ratio of the backends' processor time.
        shown: the figures themselves.
        verdict: "met by CPU time" where the clock, which others disturb, says no; "" without a target.
        samples: all rounds.
    """

    scenario: str
    what: str
    target: str
    clock: Ratio | None
    cpu: Ratio | None
    shown: str
    verdict: Literal["met", "missed", "met by CPU time", ""]
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """What a ratio must hold."""

    kind: Literal["at most", "at least"]
    value: float
    by_cpu: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"

    def verdict(self, clock: Ratio | None, cpu: Ratio | None) -> Literal["met", "missed", "met by CPU time"]:
        """By the clock, which users wait by; where it says no, CPU time may say that others took it."""
        if clock is not None and clock.meets(self.value, self.kind):
            return "met"
        if self.by_cpu and cpu is not None and cpu.meets(self.value, self.kind):
            return "met by CPU time"
        return "missed"


# ------------------------------------------------------------------------------------------------ two ways


@dataclass(frozen=True)
class Way:
    """One of two ways of doing the same.

    Attributes:
        name: for the report.
        call: the procedure to call with as_of, or a function that drives a cycle in a database.
        sessions: so many do it at once.
        poisoned: one lead in every batch cannot expire.
        beside: what goes on beside it in the database, opened before and closed after.
    """

    name: str
    call: LiteralString | Callable[[Lab, str], Sample]
    sessions: int = 1
    poisoned: bool = False
    beside: Callable[[Lab, str], contextlib.AbstractContextManager[None]] | None = None


def measure(lab: Lab, way: Way, database: str) -> Sample:
    """Goes the way once, in sessions of its own, and checks that it did what it should."""
    with contextlib.ExitStack() as stack:
        if way.beside is not None:
            stack.enter_context(way.beside(lab, database))
        if callable(way.call):
            sample = way.call(lab, database)
        else:
            call = way.call
            sessions = [stack.enter_context(lab.connect(database)) for _ in range(way.sessions)]
            sample = together(sessions, lambda session: _call(session, call, lab))
    poison = -(-lab.scale.overdue // lab.scale.lead_batch) if way.poisoned else 0
    expected = lab.scale.overdue - poison
    found = lab.rows(
        database,
        "select (select count(*) from outbox.event), (select count(*) from crm.audit_log),"
        " (select count(*) from crm.leads where expired_at = %s)"
        " + (select count(*) from crm.bookings where expired_at = %s)",
        (lab.as_of, lab.as_of),
    )[0]
    if found != (expected,) * 3:
        raise BenchError(
            f"{way.name}: {expected} items should have expired, and there are {found[0]} events, "
            f"{found[1]} audit rows and {found[2]} expired items"
        )
    return sample


def _call(session: Connection, call: LiteralString, lab: Lab) -> None:
    session.execute(call, (lab.as_of,))


def compare(
    lab: Lab, name: str, a: Way, b: Way, *, same: Literal["rows and batches", "rows", ""] = ""
) -> Pairs:
    """Measures both ways, round by round, each in a database that was put back just before.

    The two databases are alike and are put back together, so that a round's measurements follow each other
    closely; which way is first, and in which database, changes from round to round. The first round warms up.

    Args:
        lab: where.
        name: the scenario's, for the progress.
        a: one way.
        b: the other.
        same: what both must have written, compared after the first round.
    """
    pairs = []
    for number in range(lab.scale.rounds + 1):
        names = lab.databases(2)
        where = {a.name: names[number % 2], b.name: names[1 - number % 2]}
        lab.say(f"{name}: {_round(lab, number)}")
        poisoned = {where[way.name]: way.poisoned for way in (a, b)}
        lab.restore(names, [poisoned[name] for name in names])
        order = (a, b) if number // 2 % 2 == 0 else (b, a)
        samples = {way.name: measure(lab, way, where[way.name]) for way in order}
        if number == 0:
            if same:
                _must_be_same(lab, where, numbered=same == "rows and batches")
            continue
        pairs.append((samples[a.name], samples[b.name]))
    return pairs


def _round(lab: Lab, number: int) -> str:
    return f"round {number} of {lab.scale.rounds}" if number else "warming up"


def _must_be_same(lab: Lab, where: dict[str, str], *, numbered: bool) -> None:
    written = {way: lab.rows(database, FINGERPRINT, (numbered,)) for way, database in where.items()}
    (a, of_a), (b, of_b) = written.items()
    if of_a != of_b:
        different = sorted({row[0] for row in set(of_a) ^ set(of_b)})
        raise BenchError(f"{a} and {b} did not write the same: {', '.join(different)}")


def pair_row(
    scenario: str, what: str, a: Way, b: Way, pairs: Pairs, limit: Limit | None, *, rate: bool = False
) -> Row:
    """The line of a comparison; with `rate` the ratio is b's time to a's, so how many times faster a is."""
    clock = ratios([(y.seconds, x.seconds) if rate else (x.seconds, y.seconds) for x, y in pairs])
    cpu = ratios([(x.cpu, y.cpu) for x, y in pairs])
    return Row(
        scenario,
        what,
        "" if limit is None else str(limit),
        clock,
        cpu,
        f"{_figures(a.name, [x for x, _ in pairs])}; {_figures(b.name, [y for _, y in pairs])}",
        "" if limit is None else limit.verdict(clock, cpu),
        {a.name: [asdict(x) for x, _ in pairs], b.name: [asdict(y) for _, y in pairs]},
    )


def _figures(name: str, samples: Sequence[Sample]) -> str:
    clock = median(sample.seconds for sample in samples)
    spent = [sample.cpu for sample in samples if sample.cpu is not None]
    return f"{name} {clock:.2f} s" + (f" ({median(spent):.2f} CPU)" if spent else "")


# ------------------------------------------------------------------------------------------------ scenarios


ENGINE: Final = Way("engine", LEADS)


def lean(lab: Lab) -> list[Row]:
    """Leads: the engine beside the leanest loop."""
    other = Way("lean loop", "call bench.lean_leads(%s)")
    pairs = compare(lab, "lean", ENGINE, other, same="rows and batches")
    return [pair_row("lean", "leads: engine / leanest loop", ENGINE, other, pairs, Limit("at most", 1.15))]


def single(lab: Lab) -> list[Row]:
    """Leads: the engine beside one statement for everything."""
    other = Way("one statement", "call bench.single_leads(%s)")
    pairs = compare(lab, "single", ENGINE, other, same="rows")
    return [
        pair_row(
            "single", "leads: engine / one statement for all", ENGINE, other, pairs, Limit("at most", 1.6)
        )
    ]


@contextlib.contextmanager
def held_snapshot(lab: Lab, database: str) -> Iterator[None]:
    """Another session's transaction that has read and stays open."""
    with lab.connect(database) as connection:
        connection.execute("begin isolation level repeatable read")
        connection.execute("select count(*) from crm.leads")
        yield
        connection.execute("commit")


def snapshot(lab: Lab) -> list[Row]:
    """Leads: with another session's snapshot open all the time."""
    held = Way("snapshot held", LEADS, beside=held_snapshot)
    pairs = compare(lab, "snapshot", held, ENGINE, same="rows and batches")
    what = "leads: engine with a snapshot held / without"
    return [pair_row("snapshot", what, held, ENGINE, pairs, Limit("at most", 1.15))]


def poison(lab: Lab) -> list[Row]:
    """Leads: one in every batch cannot expire."""
    poisoned = Way("with poison", LEADS, poisoned=True)
    pairs = compare(lab, "poison", poisoned, ENGINE)
    what = "leads: engine with a poison row in every batch / without"
    return [pair_row("poison", what, poisoned, ENGINE, pairs, Limit("at most", 2))]


def two_runners(lab: Lab) -> list[Row]:
    """Leads: two sessions at once."""
    two = Way("two runners", LEADS, sessions=2)
    pairs = compare(lab, "two-runners", two, ENGINE)
    limit = Limit("at least", 1.5, by_cpu=False)
    return [
        pair_row("two-runners", "leads: rate of two runners / of one", two, ENGINE, pairs, limit, rate=True)
    ]


def drive_by_python(lab: Lab, database: str) -> Sample:
    """A cycle of leads as the worker drives it, its log lines written to nowhere."""
    with contextlib.closing(connect(lab.dsn(database))) as connection, contextlib.redirect_stderr(Nowhere()):
        watch = Watch([connection.info.backend_pid])
        observer = LogObserver(make_log("info", human=False), "info", database)
        with watch.running():
            run_cycle(
                connection, Job.LEAD, instance="benchmark", pooled=False, overrides=Overrides(), stop=Stop(),
                observer=observer, as_of=lab.as_of,
            )  # fmt: skip
    return watch.sample


def python(lab: Lab) -> list[Row]:
    """Leads: the Python runner beside the procedure."""
    runner = Way("pyrunner", drive_by_python)
    pairs = compare(lab, "python", runner, ENGINE, same="rows and batches")
    row = pair_row("python", "leads: driven by pyrunner / by CALL", runner, ENGINE, pairs, None)
    own = median(x.client_cpu for x, _ in pairs)
    return [replace(row, shown=f"{row.shown}; pyrunner's own CPU {own:.2f} s")]


def memory(lab: Lab) -> list[Row]:
    """Resident memory of a process that runs one cycle of very many batches."""
    (database,) = lab.databases(1)
    lab.say(f"memory of the runner over {lab.scale.memory_batches:,} batches")
    lab.restore([database], [False])
    size = lab.scale.overdue // lab.scale.memory_batches
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", lab.dsn(database), lab.as_of.isoformat(), str(size)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"the runner failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    resident: list[int] = json.loads(done.stdout)
    # the first batches fill caches
    settled = resident[len(resident) // 10 :]
    slope = _slope(settled)
    greatest = max(resident) / 1e6
    grown = slope * len(settled) / 1e6
    return [
        Row(
            "memory",
            f"resident memory of pyrunner over {len(resident):,} batches",
            "flat, below 100 MB",
            None,
            None,
            f"{greatest:.0f} MB at most; {slope:+.0f} bytes a batch ({grown:+.2f} MB in all)",
            "met" if greatest < 100 and grown < 1 else "missed",
            {"resident": [{"batch": n + 1, "bytes": value} for n, value in enumerate(resident)]},
        )
    ]


def _slope(values: Sequence[float]) -> float:
    """Of the straight line that fits best, a step."""
    count = len(values)
    x_mean, y_mean = (count - 1) / 2, sum(values) / count
    above = sum((x - x_mean) * (y - y_mean) for x, y in enumerate(values))
    below = sum((x - x_mean) ** 2 for x in range(count))
    return above / below if below else 0.0


def bookings(lab: Lab) -> list[Row]:
    """Bookings of both phases: the engine beside the leanest loop."""
    engine = Way("engine", BOOKINGS)
    other = Way("lean loop", "call bench.lean_bookings(%s)")
    pairs = compare(lab, "bookings", engine, other, same="rows and batches")
    return [
        pair_row("bookings", "bookings: engine / leanest loop", engine, other, pairs, Limit("at most", 1.15))
    ]


PHASES: Final = ("Lead", "Reserve", "Booking")
CYCLES: Final[tuple[tuple[str, LiteralString], ...]] = (("leads", LEADS), ("bookings", BOOKINGS))


@dataclass(frozen=True)
class Claims:
    """Claims in a row, in one session.

    Attributes:
        typical: the median, in microseconds.
        first: which makes the plan as well.
    """

    typical: float
    first: float


def idle(lab: Lab) -> list[Row]:
    """Claims and cycles that find nothing, in tables of several sizes."""
    sizes = lab.scale.idle
    names = {size: lab.idle_database(size) for size in sizes}
    claims: dict[tuple[str, int], list[Claims]] = {(phase, size): [] for phase in PHASES for size in sizes}
    cycles: dict[tuple[str, int], list[Sample]] = {(job, size): [] for job, _ in CYCLES for size in sizes}
    for number in range(lab.scale.rounds + 1):
        lab.say(f"idle: {_round(lab, number)}")
        for size in sizes if number % 2 == 0 else sizes[::-1]:
            for phase in PHASES:
                claims[phase, size].append(_idle_claims(lab, names[size], phase))
            for job, call in CYCLES:
                with lab.connect(names[size]) as connection:
                    sample = together([connection], _idle_cycles(call, lab.scale.idle_cycles))
                cycles[job, size].append(sample)
    for name in names.values():
        lab.drop(name)
    # the first round warms up
    return [
        *(_claim_row(phase, {size: claims[phase, size][1:] for size in sizes}) for phase in PHASES),
        *(
            _cycle_row(job, {size: cycles[job, size][1:] for size in sizes}, lab.scale.idle_cycles)
            for job, _ in CYCLES
        ),
    ]


def _idle_claims(lab: Lab, database: str, phase: str) -> Claims:
    size = lab.scale.lead_batch if phase == "Lead" else lab.scale.booking_batch
    found = lab.rows(
        database,
        "select microseconds from bench.time_claims(%s, %s, %s)",
        (phase, size, lab.scale.idle_claims),
    )
    return Claims(median(row[0] for row in found), found[0][0])


def _idle_cycles(call: LiteralString, times: int) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        for _ in range(times):
            connection.execute(call, (None,))

    return work


def _claim_row(phase: str, by_size: dict[int, list[Claims]]) -> Row:
    sizes = list(by_size)
    typical = {size: [one.typical for one in claims] for size, claims in by_size.items()}
    clock = ratios(list(zip(typical[sizes[-1]], typical[sizes[0]], strict=True)))
    slowest = max(median(times) for times in typical.values())
    first = median(one.first for one in by_size[sizes[-1]])
    return Row(
        "idle",
        f"idle claim in the server, phase {phase}: {sizes[-1]:,} rows / {sizes[0]:,}",
        "flat, at most 1 ms",
        clock,
        None,
        "; ".join(f"{size:,} rows {median(times) / 1000:.3f} ms" for size, times in typical.items())
        + f"; the first of a session, which is planned, {first / 1000:.1f} ms",
        "met" if slowest <= 1000 and clock is not None and clock.meets(1.5, "at most") else "missed",
        {str(size): [asdict(one) for one in claims] for size, claims in by_size.items()},
    )


def _cycle_row(job: str, by_size: dict[int, list[Sample]], times: int) -> Row:
    sizes = list(by_size)
    pairs = list(zip(by_size[sizes[-1]], by_size[sizes[0]], strict=True))
    clock = ratios([(x.seconds, y.seconds) for x, y in pairs])
    cpu = ratios([(x.cpu, y.cpu) for x, y in pairs])
    shown = {size: median(sample.seconds for sample in samples) / times for size, samples in by_size.items()}
    return Row(
        "idle",
        f"idle cycle of {job}: {sizes[-1]:,} rows / {sizes[0]:,}",
        "flat",
        clock,
        cpu,
        "; ".join(f"{size:,} rows {seconds * 1000:.1f} ms" for size, seconds in shown.items()),
        Limit("at most", 1.25).verdict(clock, cpu),
        {str(size): [asdict(sample) for sample in samples] for size, samples in by_size.items()},
    )


SCENARIOS: Final[Sequence[Scenario[Lab, Row]]] = (
    Scenario("lean", lean),
    Scenario("single", single),
    Scenario("snapshot", snapshot),
    Scenario("poison", poison),
    Scenario("two-runners", two_runners),
    Scenario("bookings", bookings),
    Scenario("python", python),
    Scenario("memory", memory),
    Scenario("idle", idle),
)

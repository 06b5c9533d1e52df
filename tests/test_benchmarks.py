"""The benchmark runs from end to end, and its loops do the engine's work. Nothing is timed."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString

import pytest

from benchmarks import lab
from benchmarks.measure import Ratio, ratios
from benchmarks.scale import TINY
from benchmarks.scenarios import BOOKINGS, FINGERPRINT, LEADS, SCENARIOS, Limit
from tests.servers import Connection, Database, Server, need

AS_OF = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
PROJECT = Path(__file__).parent.parent


@pytest.fixture
def bench(db: Database) -> Connection:
    """A session in a database with the benchmark's procedures and data."""
    connection = db.connect()
    lab.install(connection, TINY)
    lab.seed(connection, TINY, AS_OF)
    lab.restore(connection)
    return connection


def written(
    connection: Connection, call: LiteralString, *, numbered: bool = True
) -> dict[str, tuple[int, str]]:
    """What the call writes from the restored state: rows and digest, by table."""
    lab.restore(connection)
    connection.execute(call, (AS_OF,))
    found = connection.execute(FINGERPRINT, (numbered,)).fetchall()
    return {what: (rows, digest) for what, rows, digest in found}


def rows(found: dict[str, tuple[int, str]]) -> dict[str, int]:
    return {what: count for what, (count, _) in found.items()}


@pytest.mark.parametrize(
    ("numbered", "call", "other"),
    [
        pytest.param(True, LEADS, "call bench.lean_leads(%s)", id="lean_leads"),
        pytest.param(False, LEADS, "call bench.single_leads(%s)", id="single_leads"),
        pytest.param(True, BOOKINGS, "call bench.lean_bookings(%s)", id="lean_bookings"),
    ],
)
def test_a_loop_writes_the_rows_that_the_engine_writes(
    bench: Connection, numbered: bool, call: LiteralString, other: LiteralString
) -> None:
    engine = written(bench, call, numbered=numbered)
    assert rows(engine) == {
        "leads": TINY.items,
        "bookings": TINY.items,
        "outbox": TINY.overdue,
        "audit": TINY.overdue,
        "runs in the outbox": 1,
    } | ({"timeline": TINY.overdue} if call == BOOKINGS else {})
    assert written(bench, other, numbered=numbered) == engine


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("update crm.leads set version = version + 1 where expired_at = %s", "leads"),
        ("update crm.audit_log set actor = 'somebody' where occurred_at = %s", "audit"),
        (
            """
            delete from crm.audit_log
            where entity_id = (select max(id::text)::uuid from crm.leads where expired_at = %s)
            """,
            "audit",
        ),
        (
            """
            insert into outbox.event (
                aggregate_type, aggregate_id, tenant_id, event_type, topic, payload, correlation_id,
                traceparent, occurred_at
            )
            select
                aggregate_type, aggregate_id, tenant_id, event_type, topic, payload, correlation_id,
                traceparent, occurred_at
            from outbox.event
            where occurred_at = %s
            limit 1
            """,
            "outbox",
        ),
    ],
    ids=["another_version", "another_actor", "an_audit_row_less", "an_event_more"],
)
def test_a_loop_that_writes_anything_else_is_noticed(
    bench: Connection, change: LiteralString, told: str
) -> None:
    before = written(bench, LEADS)
    bench.execute(change, (AS_OF,))
    found = bench.execute(FINGERPRINT, (True,)).fetchall()
    after = {what: (count, digest) for what, count, digest in found}
    assert {what for what in before | after if before.get(what) != after.get(what)} == {told}


def test_every_batch_has_one_poison_lead(bench: Connection) -> None:
    lab.restore(bench, poisoned=True)
    bench.execute(LEADS, (AS_OF,))
    found = bench.execute("select claimed, failed from expiration.batch where step = 'claim'").fetchall()
    assert found == [(TINY.lead_batch, 1)] * (TINY.overdue // TINY.lead_batch)


def test_nothing_is_due_in_an_idle_database(bench: Connection) -> None:
    bench.execute("call bench.restore(false)")
    bench.execute("delete from crm.leads")
    bench.execute("delete from crm.bookings")
    before = definitions(bench)
    bench.execute("call bench.fill_idle(50)")
    # keys and indexes, left out for the load, are there again
    assert definitions(bench) == before
    for phase in ("Lead", "Reserve", "Booking"):
        assert len(bench.execute("select bench.time_claims(%s, 10, 3)", (phase,)).fetchall()) == 3
    counts = bench.execute(
        "select (select count(*) from crm.leads), (select count(*) from crm.bookings),"
        " (select count(*) from crm.leads where status = 'Active' and expires_at > now()) between 30 and 40"
    ).fetchall()
    assert counts == [(50, 50, True)]


def definitions(connection: Connection) -> list[Any]:
    """Constraints and indexes of leads and bookings, and the keys that refer to them."""
    return connection.execute(
        """
        select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
        from pg_constraint
        where
            'crm.leads'::regclass in (conrelid, confrelid)
            or 'crm.bookings'::regclass in (conrelid, confrelid)
        union all
        select tablename, indexname, indexdef
        from pg_indexes
        where tablename in ('leads', 'bookings')
        order by 1, 2, 3
        """
    ).fetchall()


@pytest.mark.slow
def test_it_runs_from_end_to_end(server: Server, tmp_path: Path) -> None:
    need(server.binaries, "the server is not ours, so there may be no binaries for the benchmark's own")
    tmp_path.chmod(0o711)
    figures, results = tmp_path / "figures.json", tmp_path / "results.md"
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks", "--tiny", "--pg", str(server.major),
            "--json", str(figures), "--results", str(results), "--folder", str(tmp_path / "bench"),
        ],
        cwd=PROJECT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "bench").exists()
    told = json.loads(figures.read_text())
    assert {row["scenario"] for row in told["rows"]} == {scenario.name for scenario in SCENARIOS}
    assert all(row["samples"] for row in told["rows"])
    for row in told["rows"]:
        assert row["what"] in results.read_text()
    assert "leads: engine / leanest loop" in done.stdout


@pytest.mark.parametrize("arguments", [["--only", "lean,nonsense"], ["--pg", "9"]])
def test_what_cannot_be_measured_is_said_in_a_sentence(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--tiny", "--folder", str(tmp_path / "bench"), *arguments],
        cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) <= 2
    assert done.stderr.startswith("bench: ")


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert ratios([(1, 2), (3, 2), (5, 2)]) == Ratio(1.5, 0.5, 2.5)
    assert ratios([(1, 2), (None, 2)]) is None
    assert ratios([(1, 0.0)]) is None


def test_the_clock_decides_and_cpu_time_explains() -> None:
    limit = Limit("at most", 1.15)
    assert limit.verdict(Ratio(1.154, 1, 2), Ratio(2, 2, 2)) == "met"
    assert limit.verdict(Ratio(1.16, 1, 2), Ratio(1.1, 1, 2)) == "met by CPU time"
    assert limit.verdict(Ratio(1.16, 1, 2), Ratio(1.2, 1, 2)) == "missed"
    assert Limit("at least", 1.5).verdict(Ratio(1.6, 1, 2), None) == "met"

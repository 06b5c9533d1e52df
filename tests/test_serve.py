"""`pyrunner serve`: what Prometheus scrapes is what SQL says, whatever happens to the database."""

import math
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString

import httpx
import psutil
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from psycopg import sql

from pyrunner.database import query
from pyrunner.serve.address import DEFAULT_ADDRESS, Address, parse_address
from pyrunner.serve.figures import SCRAPE, SERIES
from pyrunner.serve.state import LOOK, RUNBOOKS
from tests.commands import backend_of, pyrunner, started
from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    assert_consistent,
    drive,
    held,
    nothing_changes,
    run_job,
    start_run,
    update_items,
)
from tests.exporter import Exporter, Samples, serving, value, values
from tests.servers import PROJECT, Database, Server, need, wait_until
from tests.slots import slot
from tests.test_pooler import pooler

COUNTERS: Final = {name for name, series in SERIES.items() if series.kind == "counter"}
HISTOGRAMS: Final = {name for name, series in SERIES.items() if series.kind == "histogram"}
PAGES: Final = ("", "metrics", "healthz", "readyz")


def monitor(db: Database) -> str:
    return db.role_dsn("crm_monitor")


@pytest.fixture
def exporter(db: Database) -> Iterator[Exporter]:
    """Of the test's database, as the monitor's role."""
    with serving(monitor(db)) as one:
        yield one


def park(db: Database, consumer: str = "chessboard", topic: str = "pin.crm.booking-expired.v1") -> None:
    """A message put aside."""
    table = sql.Identifier(consumer, "parked")
    db.rows(
        sql.SQL(
            "insert into {} (topic, partition, kafka_offset, headers, reason)"
            " select %s, 0, count(*), '{{}}', 'it is no JSON' from {}"
        ).format(table, table),
        (topic,),
    )


def series_of(samples: Samples) -> set[str]:
    """Names of series as the documentation has them: a histogram is one."""
    names = {name for name, _ in samples}
    return {
        base if (base := re.sub(r"_(bucket|sum|count)$", "", name)) in HISTOGRAMS else name for name in names
    }


def is_counter(name: str) -> bool:
    return name in COUNTERS or re.sub(r"_(bucket|sum|count)$", "", name) in HISTOGRAMS


# ------------------------------------------------------------------------------------------- what there is


@pytest.mark.requirement("L16", "B12")
def test_the_documents_series_count_from_zero(exporter: Exporter) -> None:
    samples = exporter.scrape()
    for name, kind in {
        "crm_lead_expiration_expired_total": "counter",
        "crm_lead_expiration_duration_seconds": "histogram",
        "crm_lead_expiration_backlog": "gauge",
        "crm_lead_expiration_errors_total": "counter",
        "crm_booking_expiration_cycle_duration_seconds": "histogram",
        "crm_booking_expiration_items_total": "counter",
        "crm_booking_expiration_backlog": "gauge",
        "crm_booking_expiration_skip_locked_total": "counter",
        "crm_booking_expiration_errors_total": "counter",
    }.items():
        assert SERIES[name].kind == kind
        assert name in series_of(samples)
    assert all(number == 0 for (name, _), number in samples.items() if is_counter(name))
    assert {dict(labels)["phase"] for name, labels in samples if name.endswith("items_total")} == {
        "Reserve",
        "Booking",
    }
    for job in ("lead", "booking"):
        name = f"crm_{job}_expiration_errors_total"
        kinds = {dict(labels)["kind"] for one, labels in samples if one == name}
        assert kinds == {"item", "retry", "run", "abandoned"}
    for job in JOBS:
        assert value(samples, "crm_expiration_last_run_state", task=job, status="none") == 1
        assert sum(values(samples, "crm_expiration_last_run_state", task=job)) == 1
        assert value(samples, "crm_expiration_last_success_timestamp_seconds", task=job) == 0
        assert value(samples, "crm_expiration_seconds_since_last_success", task=job) >= 0
    assert value(samples, "crm_expiration_period_seconds", task=LEADS) == 3600
    assert value(samples, "crm_expiration_max_duration_seconds", task=BOOKINGS) == 30


def test_every_series_is_documented_and_every_documented_one_is_scraped(
    private_server: Callable[..., Server],
) -> None:
    page = (PROJECT / "docs" / "monitoring.md").read_text("utf-8")
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in re.findall(
            r"^\| `(crm_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE
        )
    }
    assert documented == {
        name: (series.kind, () if series.labels is None else tuple(series.labels), series.meaning)
        for name, series in SERIES.items()
    }
    server = private_server(max_slot_wal_keep_size="1GB")
    with server.database() as db, slot(db), serving(monitor(db)) as one:
        park(db)
        samples = one.scrape()
        assert series_of(samples) == set(documented)
        for name, labels in samples:
            base = name if name in SERIES else re.sub(r"_(bucket|sum|count)$", "", name)
            own = SERIES[base].labels
            wanted = {"version"} if own is None else {"database", *own}
            assert {key for key, _ in labels} - {"le"} == wanted, name


@pytest.mark.requirement("L16", "B12")
def test_promtool_accepts_both_formats(db: Database, exporter: Exporter) -> None:
    add_leads(db, 3)
    run_job(db, LEADS)
    text = exporter.get("metrics")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    opened = exporter.get("metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.text.endswith("# EOF\n")
    # this parser is strict about names, types and buckets
    parse: Callable[[str], Iterator[Metric]] = text_string_to_metric_families
    families = {family.name for family in parse(opened.text)}
    assert "crm_lead_expiration_expired" in families
    promtool = shutil.which("promtool")
    need(promtool, "promtool is not installed")
    assert promtool is not None
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text.text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --------------------------------------------------------------------------------------------- what it says


# the views, in the words of the series
EXPECTED: Final[LiteralString] = """
select 'crm_lead_expiration_expired_total', '{}'::jsonb, expired
from expiration.batch_total where phase = 'Lead'
union all
select 'crm_booking_expiration_items_total', jsonb_build_object('phase', phase), expired
from expiration.batch_total where phase <> 'Lead'
union all
select 'crm_booking_expiration_skip_locked_total', '{}', sum(skipped_locked)
from expiration.batch_total where job = 'booking-expiration'
union all
select 'crm_expiration_batches_total', jsonb_build_object('task', job, 'phase', phase), batches
from expiration.batch_total
union all
select 'crm_expiration_runs_total', jsonb_build_object('task', j.name, 'status', s.status),
    coalesce(t.runs, 0)
from expiration.job as j
cross join unnest(array['completed', 'capped', 'stopped', 'failed', 'abandoned', 'skipped']) as s (status)
left join expiration.run_total as t on j.name = t.job and s.status = t.status
union all
select 'crm_' || replace(j.name, '-', '_') || '_errors_total', jsonb_build_object('kind', k.kind),
    case k.kind when 'item' then i.items when 'retry' then r.retries when 'run' then r.failed
        else r.abandoned end
from expiration.job as j
cross join lateral (select sum(failed) as items from expiration.batch_total where job = j.name) as i
cross join lateral (
    select coalesce(sum(retries), 0) as retries,
        coalesce(sum(runs) filter (where status = 'failed'), 0) as failed,
        coalesce(sum(runs) filter (where status = 'abandoned'), 0) as abandoned
    from expiration.run_total where job = j.name
) as r
cross join unnest(array['item', 'retry', 'run', 'abandoned']) as k (kind)
union all
select case job when 'lead-expiration' then 'crm_lead_expiration_lateness_seconds_bucket'
    else 'crm_booking_expiration_lateness_seconds_bucket' end,
    jsonb_build_object('le', le)
        || case phase when 'Lead' then '{}' else jsonb_build_object('phase', phase) end,
    items
from expiration.lateness_histogram
union all
select case job when 'lead-expiration' then 'crm_lead_expiration_lateness_seconds_sum'
    else 'crm_booking_expiration_lateness_seconds_sum' end,
    case phase when 'Lead' then '{}' else jsonb_build_object('phase', phase) end, lateness_seconds
from expiration.batch_total
union all
select case job when 'lead-expiration' then 'crm_lead_expiration_lateness_seconds_count'
    else 'crm_booking_expiration_lateness_seconds_count' end,
    case phase when 'Lead' then '{}' else jsonb_build_object('phase', phase) end, expired
from expiration.batch_total
union all
select case job when 'lead-expiration' then 'crm_lead_expiration_duration_seconds_bucket'
    else 'crm_booking_expiration_cycle_duration_seconds_bucket' end, jsonb_build_object('le', le), runs
from expiration.duration_histogram
union all
select case job when 'lead-expiration' then 'crm_lead_expiration_duration_seconds_' || k.kind
    else 'crm_booking_expiration_cycle_duration_seconds_' || k.kind end, '{}',
    case k.kind when 'sum' then seconds else runs end
from expiration.duration_histogram cross join unnest(array['sum', 'count']) as k (kind)
where le = 'Infinity'
"""


def said_by_sql(db: Database) -> Samples:
    """All counters, from the views."""
    found: Samples = {}
    for name, labels, number in db.rows(EXPECTED):
        if "le" in labels:
            le = labels["le"]
            labels["le"] = "+Inf" if le == "Infinity" else str(float(le))
        key = (name, frozenset({"database": db.name, **labels}.items()))
        assert key not in found
        found[key] = float(number)
    return found


def counters_of(samples: Samples) -> Samples:
    return {
        key: number
        for key, number in samples.items()
        if is_counter(key[0]) and key[0] != "crm_exporter_scrape_errors_total"
    }


def purge(db: Database) -> None:
    """All that is over and tallied grows old and goes, the last success excepted."""
    db.rows("select expiration.tally_runs()")
    db.rows(
        "update expiration.run set started_at = started_at - interval '40 days',"
        " finished_at = finished_at - interval '40 days' where tally_number is not null"
    )
    db.rows("select * from expiration.purge_history()")


@pytest.mark.requirement("L16", "B12")
def test_a_scrape_says_what_sql_says_and_no_counter_ever_goes_back(db: Database, exporter: Exporter) -> None:
    over = threading.Event()

    def work(connection: Any, number: int) -> int:
        cycles = 0
        while not over.is_set():
            cycles += 1
            add_leads(connection, 7, due=f"{number + 1} hours {cycles} seconds")
            add_bookings(connection, 5, phase="Reserve", due=f"{cycles * 7} s")
            add_bookings(connection, 4, phase="Booking", due=f"{cycles * 3} s")
            if cycles % 5 == 1:
                add_poison(connection, "Lead")
                add_poison(connection, "Reserve")
            if number:
                run_job(connection, LEADS)
                run_job(connection, BOOKINGS)
            else:
                drive(connection, LEADS, instance="other")
                drive(connection, BOOKINGS, instance="other")
        return cycles

    runners = [db.background(partial(work, number=number)) for number in range(2)]
    before: Samples = {}
    purged = 0
    for number in range(60):
        now = counters_of(exporter.scrape())
        assert now.keys() >= before.keys()
        for key, earlier in before.items():
            assert now[key] >= earlier, f"{key} went back from {earlier} to {now[key]}"
        before = now
        if number % 5 == 4:
            runs = db.value("select count(*) from expiration.run")
            purge(db)
            purged += runs > db.value("select count(*) from expiration.run")
    over.set()
    assert all(runner.result() > 2 for runner in runners)
    assert purged > 2
    assert counters_of(exporter.scrape()) == said_by_sql(db)
    assert min(said_by_sql(db)[key] for key in before if key[0].endswith("expired_total")) > 100
    assert_consistent(db, ignore=PURGED)
    # it stays so when all is tallied and purged
    purge(db)
    assert counters_of(exporter.scrape()) == said_by_sql(db)
    assert value(exporter.scrape(), "crm_lead_expiration_errors_total", kind="item") > 0


# these count rows that a purge has removed
PURGED: Final = (
    "an event bears the id of its run and the trace of its batch",
    "the histograms count every item and every cycle",
)


@pytest.mark.requirement("L16", "B12")
def test_gauges_say_what_the_views_of_figures_say(db: Database, exporter: Exporter) -> None:
    add_leads(db, 12, due="2 hours")
    add_bookings(db, 3, due="90 s")
    add_poison(db, "Booking", 2)
    run_job(db, BOOKINGS)
    add_bookings(db, 4, due="5 minutes")
    db.rows("select expiration.pause(%s, 'INC-42')", (LEADS,))
    samples = exporter.scrape()
    assert value(samples, "crm_expiration_due_items", task=LEADS, phase="Lead") == 12
    assert 7200 <= value(samples, "crm_expiration_oldest_due_seconds", task=LEADS) < 7300
    assert value(samples, "crm_expiration_due_items", phase="Reserve") == 4
    assert 300 <= value(samples, "crm_expiration_oldest_due_seconds", phase="Reserve") < 400
    assert value(samples, "crm_expiration_failed_items", task=BOOKINGS) == 2
    assert value(samples, "crm_booking_expiration_errors_total", kind="item") == 2
    assert value(samples, "crm_booking_expiration_backlog") == 5
    assert value(samples, "crm_expiration_paused", task=LEADS) == 1
    assert value(samples, "crm_expiration_paused", task=BOOKINGS) == 0
    assert value(samples, "crm_expiration_last_run_state", task=BOOKINGS, status="completed") == 1
    success = db.value("select last_success_at from expiration.job_figures where job = %s", (BOOKINGS,))
    stamp = value(samples, "crm_expiration_last_success_timestamp_seconds", task=BOOKINGS)
    assert stamp == pytest.approx(success.timestamp(), abs=1e-3)
    at_work = db.connect("crm_runner")
    start_run(at_work, BOOKINGS)
    assert value(exporter.scrape(), "crm_expiration_running", task=BOOKINGS) == 1


@pytest.mark.requirement("L19", "B15")
def test_the_outbox_and_its_readers(db: Database, exporter: Exporter) -> None:
    with slot(db) as name:
        db.rows("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (name,))
        db.rows("insert into outbox.slot (name, publication, connector) values ('gone', 'p', 'c')")
        confirmed = value(exporter.scrape(), "crm_outbox_slot_confirmed_bytes", slot=name)
        add_leads(db, 5)
        run_job(db, LEADS)
        park(db)
        park(db)
        samples = exporter.scrape()
        assert value(samples, "crm_outbox_slot_state", slot=name, state="inactive") == 1
        assert value(samples, "crm_outbox_slot_state", slot="gone", state="missing") == 1
        assert sum(values(samples, "crm_outbox_slot_state")) == 2
        assert value(samples, "crm_outbox_backlog_events", slot=name) == 5
        assert value(samples, "crm_outbox_backlog_bytes", slot=name) > 0
        assert value(samples, "crm_outbox_backlog_seconds", slot=name) > 0
        assert value(samples, "crm_outbox_retained_bytes", slot=name) > 0
        assert value(samples, "crm_outbox_slot_confirmed_bytes", slot=name) == confirmed
        # there may be no limit, and a slot that is gone has no position
        is_limited = db.value("select current_setting('max_slot_wal_keep_size') <> '-1'")
        assert len(values(samples, "crm_outbox_slot_left_bytes")) == is_limited
        assert values(samples, "crm_outbox_backlog_events", slot="gone") == []
        assert value(samples, "crm_outbox_partitions_ahead") == 7
        assert value(samples, "crm_outbox_default_events") == 0
        assert value(samples, "crm_outbox_bytes") > 0
        assert value(samples, "crm_consumer_parked_messages", consumer="chessboard") == 2
        db.rows("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (name,))
        samples = exporter.scrape()
        assert value(samples, "crm_outbox_slot_confirmed_bytes", slot=name) > confirmed
        assert value(samples, "crm_outbox_backlog_events", slot=name) == 0
        assert value(samples, "crm_outbox_backlog_seconds", slot=name) == 0


def test_every_figure_is_finite_in_odd_states(db: Database, exporter: Exporter) -> None:
    db.rows("alter table crm.leads drop constraint leads_times_are_finite")
    ids = add_leads(db, 3, due="10 s")
    update_items(db, "Lead", ids[:1], "expires_at = '-infinity'")
    update_items(db, "Lead", ids[1:2], "expires_at = 'infinity'")
    # a driver that vanished, a clock that was set back, a pause
    with db.connect("crm_runner") as vanished:
        start_run(vanished, BOOKINGS)
    db.rows("update expiration.job set created_at = now() + interval '1 day'")
    run_job(db, LEADS)
    db.rows("update expiration.run set started_at = finished_at + interval '1 hour' where job = %s", (LEADS,))
    run_job(db, BOOKINGS)
    db.rows("select expiration.pause(job) from unnest(%s::text[]) as job", (list(JOBS),))
    for _ in range(2):
        samples = exporter.scrape()
        assert all(math.isfinite(number) and number >= 0 for number in samples.values())
        assert value(samples, "crm_exporter_up") == 1
        assert value(samples, "crm_lead_expiration_duration_seconds_count") == 1
        assert value(samples, "crm_lead_expiration_duration_seconds_sum") == 0
        assert value(samples, "crm_booking_expiration_errors_total", kind="abandoned") == 1
        assert exporter.get().status_code == 200
        db.rows("select expiration.tally_runs()")


def test_sums_do_not_go_back_by_a_rounding_when_they_are_tallied(db: Database) -> None:
    """Numbers in floating point have another sum when they are added in another order."""
    add_leads(db)
    run_job(db, LEADS)
    db.rows(
        "insert into expiration.run select (r).* from (select jsonb_populate_record(r, jsonb_build_object("
        "'id', gen_random_uuid(), 'finished_at', r.started_at + n * interval '0.100001 s')) as r"
        " from expiration.run as r cross join generate_series(1, 300) as n) as x"
    )
    db.rows(
        "insert into expiration.batch select (b).* from (select jsonb_populate_record(b, jsonb_build_object("
        "'number', n, 'lateness_seconds', n * 0.1)) as b"
        " from expiration.batch as b cross join generate_series(1000, 1300) as n) as x"
    )
    sums = (
        "select (select seconds from expiration.duration_histogram where job = %s and le = 'Infinity'),"
        " (select lateness_seconds from expiration.batch_total where phase = 'Lead')"
    )
    ((seconds, lateness),) = db.rows(sums, (LEADS,))
    assert seconds > 4000
    assert lateness > 30000
    while db.value("select expiration.tally_runs(7)"):
        assert db.rows(sums, (LEADS,)) == [(seconds, lateness)]


# ------------------------------------------------------------------------------------------------- its cost


def test_it_changes_nothing_and_locks_no_row(db: Database, exporter: Exporter) -> None:
    add_leads(db, 5)
    add_poison(db, "Lead")
    run_job(db, LEADS)
    with nothing_changes(db):
        for path in PAGES:
            assert exporter.get(path).status_code == 200
    for path in PAGES:
        for method in ("POST", "PUT", "DELETE"):
            assert httpx.request(method, exporter.url + path).status_code == 405


def blocks_read(db: Database, statement: Any) -> int:
    """Pages that a statement touches under the settings of a scrape."""
    with db.connect("crm_monitor", autocommit=False) as connection:
        connection.execute(query("serve/settings"))
        row = connection.execute(
            b"explain (analyze, buffers, format json) " + statement.as_string(connection).encode()
        ).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


HISTORY: Final[LiteralString] = """
with runs as (
    insert into expiration.run (
        job, driver, status, reason, as_of, started_at, finished_at, batch_size, max_batches_per_cycle,
        max_duration, tally_number, batches, due_before
    )
    select
        case n %% 60 when 0 then 'lead-expiration' else 'booking-expiration' end, 'pg_cron',
        case n %% 50 when 7 then 'failed' when 8 then 'skipped' else 'completed' end, 'drained', t.at, t.at,
        t.at + interval '20 ms', 200, 1, interval '30 s', n, 1, 0
    from generate_series(1, %s) as n
    cross join lateral (select now() - interval '1 hour' - n * interval '1 s' as at) as t
    returning id
)

insert into expiration.batch (
    run_id, number, phase, step, started_at, claimed, expired, failed, skipped_locked, drained, phase_expired,
    tallied
)
select id, 1, 'Reserve', 'claim', now(), 0, 0, 0, 0, true, 0, true from runs
"""


@pytest.mark.slow
def test_neither_a_scrape_nor_the_page_reads_more_at_a_longer_history(db: Database) -> None:
    db.rows("alter table expiration.run drop constraint run_failed_has_sqlstate")
    add_leads(db, 50)
    add_bookings(db, 50)
    for job in JOBS:
        run_job(db, job)
    sections = {f"scrape {name}": one for name, one in SCRAPE.sections.items()}
    sections |= {f"page {name}": one for name, one in LOOK.sections.items()}
    db.rows(HISTORY, (5000,))
    db.rows("vacuum analyze expiration.run, expiration.batch")
    few = {name: blocks_read(db, one) for name, one in sections.items()}
    db.rows(HISTORY, (60_000,))
    for statistics in ("stale", "fresh"):
        many = {name: blocks_read(db, one) for name, one in sections.items()}
        # an index is a level deeper here and there
        grown = {name: (few[name], many[name]) for name in sections if many[name] > few[name] * 1.5 + 20}
        assert not grown, f"with {statistics} statistics"
        db.rows("vacuum analyze expiration.run, expiration.batch")


@pytest.mark.slow
def test_every_version_of_postgresql_can_be_read(versioned_db: Database) -> None:
    db = versioned_db
    add_leads(db, 3)
    add_poison(db, "Booking")
    for job in JOBS:
        run_job(db, job)
    with slot(db), serving(monitor(db)) as one:
        samples = one.scrape()
        assert value(samples, "crm_lead_expiration_expired_total") == 3
        assert value(samples, "crm_booking_expiration_errors_total", kind="item") == 1
        assert sum(values(samples, "crm_exporter_scrape_errors_total")) == 0
        assert counters_of(samples) == said_by_sql(db)
        assert "could not be read" not in one.get().text


# --------------------------------------------------------------------------------------------------- faults


def test_a_locked_table_costs_its_own_series_only_and_is_not_waited_for(
    db: Database, exporter: Exporter
) -> None:
    whole = exporter.scrape()
    with db.connect(autocommit=False) as other:
        other.execute("lock table crm.leads in access exclusive mode")
        # it answers while the lock is held
        samples = exporter.scrape()
        assert series_of(whole) - series_of(samples) == {
            "crm_expiration_due_items",
            "crm_expiration_oldest_due_seconds",
        }
        assert value(samples, "crm_exporter_up") == 1
        assert value(samples, "crm_exporter_scrape_errors_total", section="due") == 1
        assert sum(values(samples, "crm_exporter_scrape_errors_total")) == 1
        page = exporter.get()
        assert page.status_code == 200
        assert "What is due could not be read" in page.text
        other.rollback()
    samples = exporter.scrape()
    assert series_of(samples) == series_of(whole)
    assert value(samples, "crm_exporter_scrape_errors_total", section="due") == 1
    (line,) = exporter.process.wait_for("section left out")
    assert "lock" in line["error"]


def test_a_section_that_takes_too_long_is_left_out(db: Database, exporter: Exporter) -> None:
    park(db)
    assert value(exporter.scrape(), "crm_consumer_parked_messages") == 1
    db.rows(
        "create or replace view chessboard.parked_total as"
        " select p.topic, count(*) as messages, max(p.parked_at) as last_parked_at"
        " from chessboard.parked as p cross join pg_sleep(600) group by p.topic"
    )
    samples = exporter.scrape()
    assert value(samples, "crm_exporter_up") == 1
    assert values(samples, "crm_consumer_parked_messages") == []
    assert value(samples, "crm_exporter_scrape_errors_total", section="parked") == 1
    assert sum(values(samples, "crm_exporter_scrape_errors_total")) == 1
    (line,) = exporter.process.wait_for("section left out")
    assert "statement timeout" in line["error"]


def test_rows_that_others_hold_are_read_all_the_same(db: Database, exporter: Exporter) -> None:
    ids = add_leads(db, 3)
    with held(db, "Lead", ids):
        samples = exporter.scrape()
    assert value(samples, "crm_expiration_due_items", phase="Lead") == 3
    assert sum(values(samples, "crm_exporter_scrape_errors_total")) == 0


def only_up(samples: Samples) -> bool:
    return {name for name, _ in samples} == {"crm_exporter_up", "crm_exporter_build_info"}


def test_it_starts_while_the_database_is_away_and_follows_its_coming_and_going(
    private_server: Callable[..., Server],
) -> None:
    server = private_server()
    with server.database() as db:
        dsn = monitor(db)
        name = db.name
        db.close()
        server.stop()
        with serving(dsn) as one:
            samples = one.wait_until_up(0)
            assert only_up(samples)
            assert value(samples, "crm_exporter_up", database=name) == 0
            assert one.get("healthz").status_code == 200
            answer = one.get("readyz")
            assert answer.status_code == 503
            assert "cannot be reached" in answer.text
            assert len(answer.text.splitlines()) == 1
            assert "cannot be reached" in one.get().text
            server.start()
            samples = one.wait_until_up(1)
            assert value(samples, "crm_expiration_paused", task=LEADS) == 0
            assert one.get("readyz").status_code == 200
            server.kill()
            assert only_up(one.wait_until_up(0))
            assert one.get("readyz").status_code == 503
            server.start()
            samples = one.wait_until_up(1)
            assert value(samples, "crm_exporter_up", database=name) == 1
            # a connection that was cut is made anew within the same scrape
            db.terminate(backend_of(db, "pyrunner serve metrics"))
            assert value(one.scrape(), "crm_exporter_up") == 1
            one.process.send(signal.SIGTERM)
            said = one.process.wait(0)
        assert said.out == ""
        lines = [line for line in said.lines if line["event"].startswith("database")]
        # a line when something changes, and not with every scrape
        assert len(lines) < 12
        assert {line["event"] for line in lines} == {"database unreachable", "database readable again"}
        assert all(line.startswith("{") for line in said.err.splitlines()), said.err


def test_a_database_that_does_not_answer_piles_up_nothing(private_server: Callable[..., Server]) -> None:
    server = private_server()
    with server.database() as db, serving(monitor(db)) as one:
        one.wait_until_up(1)
        one.get()
        process = psutil.Process(one.process.pid)
        threads, connections = process.num_threads(), len(process.net_connections())
        stuck = psutil.Process(backend_of(db, "pyrunner serve metrics"))
        stuck.suspend()
        try:
            answers: list[Samples] = []
            scrapers = [
                threading.Thread(target=lambda: answers.append(one.scrape()), daemon=True) for _ in range(20)
            ]
            for scraper in scrapers:
                scraper.start()
            # it serves others meanwhile
            assert one.get("healthz").status_code == 200
            assert one.get("readyz").status_code == 200
            assert process.num_threads() <= threads
            for scraper in scrapers:
                scraper.join(60)
            assert len(answers) == 20
            # those that came in time got none; then the connection was given up, and another one works
            assert any(only_up(samples) for samples in answers)
            assert all(only_up(samples) or value(samples, "crm_exporter_up") == 1 for samples in answers)
            one.wait_until_up(1)
            assert process.num_threads() <= threads
            wait_until(lambda: len(process.net_connections()) <= connections)
        finally:
            stuck.resume()


def test_it_ends_at_once_even_while_a_database_does_not_answer(
    private_server: Callable[..., Server],
) -> None:
    server = private_server()
    with server.database() as db, serving(monitor(db)) as one:
        one.wait_until_up(1)
        stuck = psutil.Process(backend_of(db, "pyrunner serve metrics"))
        stuck.suspend()
        try:
            with socket.create_connection(("127.0.0.1", parse_address(one.url[7:-1]).port)) as client:
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                wait_until(lambda: db.value(
                    "select true from pg_stat_activity where pid = %s", (stuck.pid,)
                ))  # fmt: skip
                one.process.send(signal.SIGTERM)
                answer = one.process.wait(0, timeout=30)
        finally:
            stuck.resume()
    assert answer.events[-1] == "serve stopped"
    assert answer.out == ""


def test_sigterm_and_ctrl_c_end_it_with_code_0(db: Database) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with serving(monitor(db)) as one:
            one.wait_until_up(1)
            one.process.send(number)
            answer = one.process.wait(0)
        assert answer.events == ["serve started", "serve stopped"]


def test_several_exporters_and_scrapes_at_once_say_the_same(db: Database) -> None:
    add_leads(db, 5)
    run_job(db, LEADS)
    with serving(monitor(db)) as one, serving(monitor(db)) as other:
        found: list[Samples] = []

        def scrape(exporter: Exporter) -> None:
            found.append(counters_of(exporter.scrape()))

        scrapers = [threading.Thread(target=scrape, args=(exporter,)) for exporter in (one, other) * 8]
        for scraper in scrapers:
            scraper.start()
        for scraper in scrapers:
            scraper.join(60)
    assert found == [said_by_sql(db)] * 16


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("update expiration.installation set version = '9.9.9'", "newer than this program"),
        ("update expiration.installation set checksum = 'another'", "another state of version"),
        ("drop table expiration.installation", "never completed"),
    ],
)
def test_another_version_is_refused_at_the_start_and_is_down_when_it_comes_later(
    db: Database, change: LiteralString, sentence: str
) -> None:
    with serving(monitor(db)) as one:
        one.wait_until_up(1)
        db.rows(change)
        assert only_up(one.scrape())
        answer = one.get("readyz")
        assert answer.status_code == 503
        assert sentence in answer.text
        assert sentence in one.get().text
        with started("serve", "--listen", "127.0.0.1:0", dsn=monitor(db)) as second:
            refusal = second.wait(4)
        first, hint = refusal.err.splitlines()
        assert sentence in first
        assert hint.strip()
        if change.startswith("update"):
            db.rows(
                "update expiration.installation set version = expiration.schema_version(),"
                " checksum = coalesce((select max(checksum) filter (where checksum <> 'another')"
                " from expiration.installation), checksum)"
            )
        if "version" in change:
            one.wait_until_up(1)
            assert one.get("readyz").status_code == 200


def test_a_database_without_our_schema_and_a_login_without_our_role_are_refused(
    bare_db: Database, db: Database
) -> None:
    listen = ("serve", "--listen", "127.0.0.1:0")
    answer = pyrunner(*listen, dsn=bare_db.dsn, code=4)
    assert "Nothing is installed in this database" in answer.err
    assert "pyrunner migrate" in answer.err
    answer = pyrunner(*listen, dsn=db.role_dsn("pg_checkpoint"), code=5)
    assert "grant crm_monitor to" in answer.err
    answer = pyrunner(*listen, dsn="host=127.0.0.1 nonsense", code=2)
    assert "cannot be understood" in answer.err


def test_an_address_where_nobody_can_listen_is_one_sentence(db: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = pyrunner("serve", "--listen", f"127.0.0.1:{port}", dsn=monitor(db), code=11)
    first, hint = answer.err.splitlines()
    assert first == f"pyrunner: 127.0.0.1:{port} cannot be listened on: another process has the port."
    assert "--listen" in hint
    answer = pyrunner("serve", "--listen", "192.0.2.1:8917", dsn=monitor(db), code=11)
    assert "no address of this machine" in answer.err
    answer = pyrunner("serve", "--listen", "nohost.invalid:8917", dsn=monitor(db), code=11)
    assert "there is no host nohost.invalid" in answer.err


@pytest.mark.parametrize(
    "text", ["8917", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "::1:80", "a b:80"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)
    answer = pyrunner("serve", "--listen", text, code=2)
    assert "HOST:PORT" in answer.err


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:0", "127.0.0.1", 0), (":8917", "", 8917), ("[::1]:80", "::1", 80), (" crm:9 ", "crm", 9)],
)
def test_an_address_is_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert str(parse_address(text)).endswith(f":{port}")


def test_the_help_says_where_it_listens() -> None:
    assert str(DEFAULT_ADDRESS) in pyrunner("serve", "--help").out


def test_several_databases_have_their_own_series_and_one_that_is_away_takes_none_along(
    db: Database, server: Server
) -> None:
    with server.database() as second:
        add_leads(second, 4)
        away = "host=127.0.0.1 port=1 dbname=nowhere password=hunter2"
        with serving(monitor(db), monitor(second), away) as one:
            samples = one.scrape()
            page = one.get()
            answer = one.get("readyz")
        assert "hunter2" not in one.process.so_far.err + page.text + answer.text
    assert value(samples, "crm_exporter_up", database=db.name) == 1
    assert value(samples, "crm_exporter_up", database=second.name) == 1
    assert value(samples, "crm_exporter_up", database="nowhere") == 0
    assert value(samples, "crm_expiration_due_items", database=second.name, phase="Lead") == 4
    assert value(samples, "crm_expiration_due_items", database=db.name, phase="Lead") == 0
    assert values(samples, "crm_expiration_paused", database="nowhere") == []
    assert answer.status_code == 503
    assert len(answer.text.splitlines()) == 3
    assert f"Database {second.name}" in page.text


def test_databases_of_the_same_name_are_told_apart(db: Database) -> None:
    away = f"host=127.0.0.1 port=1 dbname={db.name}"
    with serving(monitor(db), away) as one:
        samples = one.scrape()
    labels = {dict(has)["database"] for name, has in samples if name == "crm_exporter_up"}
    assert len(labels) == 2
    assert f"{db.name} at 127.0.0.1:1" in labels


def test_a_service_file_names_the_database_before_it_can_be_reached(db: Database, tmp_path: Path) -> None:
    service = tmp_path / "services"
    service.write_text("[crm]\nhost=127.0.0.1\nport=1\ndbname=of_a_service\n")
    for dsn, env in (
        ("service=crm", {}),
        (None, {"PGSERVICE": "crm"}),
        (None, {"PGDATABASE": "of_a_service"}),
    ):
        given = {"PGSERVICEFILE": str(service), "PGHOST": "127.0.0.1", "PGPORT": "1", **env}
        with serving(*([dsn] if dsn else []), env=given) as one:
            assert value(one.scrape(), "crm_exporter_up", database="of_a_service") == 0


@pytest.mark.requirement("X1")
def test_it_works_through_a_pooler_and_leaves_no_setting_behind(db: Database) -> None:
    with pooler(db, 2) as between, serving(between.dsn) as one:
        add_leads(db, 3)
        one.wait_until_up(1)
        # it cannot rely on the backend of the scrape before
        with between.connect() as client, client.transaction():
            busy = client.execute("select pg_backend_pid()").fetchone()
            samples = one.scrape()
            assert db.value("select count(*) from pg_stat_activity where datname = %s", (db.name,)) >= 3
            assert client.execute("select pg_backend_pid()").fetchone() == busy
        assert value(samples, "crm_exporter_up") == 1
        assert value(samples, "crm_expiration_due_items", phase="Lead") == 3
        assert sum(values(samples, "crm_exporter_scrape_errors_total")) == 0
        with between.connect() as client:
            assert (
                client.execute(
                    "select name, setting from pg_settings where source = 'session'"
                    " and name ~ 'timeout|enable_|jit|parallel'"
                ).fetchall()
                == []
            )
            assert client.execute("show transaction_read_only").fetchone() == ("off",)


# ---------------------------------------------------------------------------------------------- what it ships


def test_the_wheel_takes_templates_and_runbooks_along(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps",
            "--no-build-isolation", "-w", str(tmp_path), str(PROJECT),
        ],
        check=True, capture_output=True, timeout=240,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("pyrunner-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("status.html", "status.css", "status.js"):
        assert f"pyrunner/serve/templates/{name}" in names
    assert {f"pyrunner/runbooks/{name}.md" for name in RUNBOOKS} <= names
    assert "pyrunner/queries/serve/jobs.sql" in names


def test_every_runbook_that_the_page_names_can_be_read_there(exporter: Exporter) -> None:
    for name in RUNBOOKS:
        answer = exporter.get(f"docs/runbooks/{name}.md")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text.startswith("# ")
    for path in ("docs/runbooks/none.md", "docs/runbooks/..%2Fmonitoring.md", "docs/monitoring.md", "none"):
        assert exporter.get(path).status_code == 404


def test_without_the_packages_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('No module', name='uvicorn')\n")
    answer = pyrunner("serve", code=2, env={"PYTHONPATH": str(tmp_path)})
    assert "needs the package uvicorn" in answer.err
    assert "pip install 'pyrunner[serve]'" in answer.err

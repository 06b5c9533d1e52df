"""Traces: every run once, as spans with the outbox's ids, by the real protocol to a real receiver."""

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from consumers.chessboard import CHESSBOARD
from consumers.consumer import Consumer, Stop
from consumers.contracts import Message
from pyrunner.logs import make_log
from pyrunner.times import format_instant
from pyrunner.traces.otlp import Receiver
from tests.commands import Answer, Process, backend_of, pyrunner, started
from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    add_trigger,
    drop_trigger,
    events,
    expire_batch,
    replay_everything,
    run_batch,
    run_job,
    set_job,
    start_run,
)
from tests.otlp import Otlp, Span, Trouble
from tests.servers import PROJECT, Database, Server, wait_until

# what may be known of a run, a batch or an item: no column of the CRM's but ids and tenants
RUN: Final = {
    "jobRunId", "correlationId", "job", "as_of", "driver", "instance", "status", "reason", "expired",
    "failed", "skipped_locked", "batches", "due_before", "retries", "batch_size", "max_batches_per_cycle",
}  # fmt: skip
BATCH: Final = {
    "jobRunId", "correlationId", "batch", "phase", "step", "claimed", "expired", "failed", "skipped_locked",
    "drained", "capped", "items_left_out",
}  # fmt: skip
LEAD: Final = {"LeadId", "TenantId"}
BOOKING: Final = {"BookingId", "TenantId", "DealId", "Phase"}
NOTHING: Final[Mapping[str, str]] = {}
# gives a receiver up at once
IMPATIENT: Final = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}


@pytest.fixture
def otlp() -> Iterator[Otlp]:
    """A receiver."""
    with Otlp() as receiver:
        yield receiver


@pytest.fixture
def traced(db: Database) -> Database:
    """A database whose runs are sent from now on."""
    return begin(db)


def begin(db: Database, name: str = "otlp") -> Database:
    db.rows("select from expiration.take_traces(%s)", (name,))
    return db


def runner(db: Database) -> str:
    return db.role_dsn("crm_runner")


def send(
    db: Database, otlp: Otlp, *arguments: str, code: int = 0, env: Mapping[str, str] = NOTHING
) -> Answer:
    return pyrunner("traces", *arguments, dsn=runner(db), env=otlp.env(**env), code=code)


def sent(db: Database, otlp: Otlp, *arguments: str, env: Mapping[str, str] = NOTHING) -> int:
    """How many runs it says to have sent."""
    return int(send(db, otlp, "--json", *arguments, env=env).json["runs"])


def position(db: Database, name: str = "otlp") -> Any:
    return db.value("select tally_number from expiration.trace_position where name = %s", (name,))


def wait_until_marked(db: Database, run_id: UUID) -> None:
    """Waits until the exporter has committed that it sent a run."""
    db.wait_until(
        "select p.tally_number >= r.tally_number from expiration.run as r, expiration.trace_position as p"
        " where r.id = %s and p.name = 'otlp'",
        (run_id,),
    )


def ids_of_runs(db: Database) -> list[UUID]:
    return [row[0] for row in db.rows("select id from expiration.run order by started_at")]


def by_call(db: Database, job: str, name: str = "psql") -> dict[str, Any]:
    """A run by CALL, as pg_cron does it where it is named so."""
    with db.connect("crm_runner", application_name=name) as connection:
        return run_job(connection, job)


def assert_traced(db: Database, otlp: Otlp, run_id: UUID, *, times: int = 1, limit: int = 128) -> list[Span]:
    """The spans of a run say what the tables say of it, with the outbox's ids; each has come so often."""
    spans = otlp.of(run_id)
    assert set(Counter(span.span_id for span in spans).values()) == {times}
    cycle, *batches = spans[::times]
    (run,) = db.observer.execute(
        "select to_jsonb(r), r.as_of, extract(epoch from r.started_at) * 1000000,"
        " extract(epoch from r.finished_at) * 1000000 from expiration.run as r where r.id = %s",
        (run_id,),
    ).fetchall()
    row, as_of, *times_of_run = run
    assert (cycle.name, cycle.parent_id, cycle.kind) == (row["job"], "", "internal")
    assert cycle.attributes["jobRunId"] == cycle.attributes["correlationId"] == str(run_id)
    assert cycle.attributes["as_of"] == format_instant(as_of)
    for name in RUN - {"jobRunId", "correlationId", "as_of"}:
        assert cycle.attributes.get(name) == row[name], name
    assert [cycle.start, cycle.end] == [int(one) * 1000 for one in times_of_run]
    found = db.rows(
        "select to_jsonb(b), outbox.traceparent(b.run_id, b.number) from expiration.batch as b"
        " where b.run_id = %s order by b.number",
        (run_id,),
    )
    assert len(found) == len(batches)
    for (row, traceparent), span in zip(found, batches, strict=True):
        assert span.traceparent == traceparent
        assert (span.parent_id, span.name, span.status) == (cycle.span_id, f"{row['phase']} batch", "unset")
        assert span.attributes["batch"] == row["number"]
        for name in BATCH - {"jobRunId", "correlationId", "batch", "items_left_out"}:
            assert span.attributes[name] == row[name], name
        assert span.start <= span.end
        expired = db.rows(
            "select aggregate_id::text, tenant_id::text from outbox.event where traceparent = %s"
            " and replay_id is null order by seq",
            (traceparent,),
        )
        failed = [(failure["id"], failure["sqlstate"]) for failure in row["failures"] or []]
        assert len(expired) == row["expired"]
        happened = {"Lead": "lead.expired"}.get(row["phase"], "booking expired")
        items = [
            *(("item.failed", item_id, sqlstate) for item_id, sqlstate in failed),
            *((happened, item_id, tenant_id) for item_id, tenant_id in expired),
        ]
        assert [
            (
                event.name,
                event.attributes.get("LeadId") or event.attributes.get("BookingId"),
                event.attributes["sqlstate" if event.name == "item.failed" else "TenantId"],
            )
            for event in span.events
        ] == items[:limit]
        left_out = max(0, len(items) - limit)
        assert (span.attributes["items_left_out"], span.dropped_events) == (left_out, left_out)
        assert {event.at for event in span.events} <= {span.end}
    return spans


# ------------------------------------------------------------------------------------- every run, once


@pytest.mark.requirement("L17", "B12", "X2")
def test_every_run_is_traced_once_whoever_drove_it(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 5)
    add_poison(traced, "Lead", 2)
    by_call(traced, LEADS, "pg_cron")
    add_leads(traced, 3)
    pyrunner("run", LEADS, "--batch-size", "2", dsn=runner(traced))
    add_bookings(traced, 4)
    add_bookings(traced, 4, phase="Booking")
    add_poison(traced, "Booking")
    by_call(traced, BOOKINGS)
    add_bookings(traced, 3)
    expire_batch(traced.connect("crm_runner"), "Reserve")
    traced.rows("select expiration.pause(%s)", (LEADS,))
    by_call(traced, LEADS, "pg_cron")
    runs = ids_of_runs(traced)
    assert sent(traced, otlp) == len(runs) == 5
    assert sent(traced, otlp) == 0
    for run_id in runs:
        assert_traced(traced, otlp, run_id)
    assert [otlp.of(run_id)[0].attributes["driver"] for run_id in runs] == [
        "pg_cron", "pyrunner", "psql", "sql", "pg_cron",
    ]  # fmt: skip
    assert otlp.of(runs[-1])[0].attributes["status"] == "skipped"
    # whatever was appended to the outbox points at a span that was sent
    assert {event["traceparent"] for event in events(traced)} <= {span.traceparent for span in otlp.spans}
    assert len(otlp.spans) == len({span.span_id for span in otlp.spans})
    add_leads(traced, 1)
    traced.rows("select expiration.resume(%s)", (LEADS,))
    by_call(traced, LEADS)
    assert sent(traced, otlp) == 1


@pytest.mark.requirement("L17", "B12")
def test_spans_hold_ids_and_counts_and_nothing_personal(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 2)
    add_poison(traced, "Lead")
    add_bookings(traced, 2)
    add_poison(traced, "Booking")
    for job in JOBS:
        by_call(traced, job)
    sent(traced, otlp)
    for span in otlp.spans:
        assert span.attributes.keys() <= (BATCH if span.parent_id else RUN)
        for event in span.events:
            kind = LEAD if "LeadId" in event.attributes else BOOKING
            extra = {"sqlstate"} if event.name == "item.failed" else set()
            assert event.attributes.keys() == kind | extra
    tenants: dict[str, str] = dict(
        traced.rows("select id::text, tenant_id::text from crm.leads")
        + traced.rows("select id::text, tenant_id::text from crm.bookings")
    )
    seen = {
        event.attributes.get("LeadId") or event.attributes["BookingId"]: event.attributes["TenantId"]
        for span in otlp.spans
        for event in span.events
    }
    # of those that failed as well
    assert seen == tenants


def test_a_new_destination_begins_with_what_ends_from_then_on(db: Database, otlp: Otlp) -> None:
    add_leads(db, 2)
    by_call(db, LEADS)
    answer = send(db, otlp)
    assert answer.out.startswith(f"0 runs sent to {otlp.shown}")
    assert "runs that end from now on" in answer.out
    later = by_call(db, LEADS)["id"]
    assert send(db, otlp).out.startswith("1 run sent to")
    assert {span.run_id for span in otlp.spans} == {later}
    # another destination has a place of its own
    assert sent(db, otlp, "--name", "second") == 0
    last = by_call(db, LEADS)["id"]
    assert (sent(db, otlp, "--name", "second"), sent(db, otlp)) == (1, 1)
    assert_traced(db, otlp, last, times=2)


@pytest.mark.requirement("L4", "L17")
def test_a_capped_run_of_two_hundred_batches_is_one_trace(traced: Database, otlp: Otlp) -> None:
    set_job(traced, LEADS, batch_size=1, max_batches_per_cycle=200)
    add_leads(traced, 203)
    run = by_call(traced, LEADS)
    assert run["reason"] == "capped"
    assert sent(traced, otlp) == 1
    spans = assert_traced(traced, otlp, run["id"])
    assert len(spans) == 201
    assert (spans[0].attributes["status"], spans[0].attributes["batches"]) == ("capped", 200)
    assert spans[0].status == "unset"


def test_more_items_than_a_span_may_hold_are_counted(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 200)
    add_poison(traced, "Lead", 3)
    first = by_call(traced, LEADS)["id"]
    assert sent(traced, otlp) == 1
    batch = assert_traced(traced, otlp, first)[1]
    assert len(batch.events) == 128
    # those that failed stand before the others
    assert [event.name for event in batch.events[:4]] == ["item.failed"] * 3 + ["lead.expired"]
    add_leads(traced, 20)
    second = by_call(traced, LEADS)["id"]
    assert sent(traced, otlp, env={"OTEL_SPAN_EVENT_COUNT_LIMIT": "7"}) == 1
    assert_traced(traced, otlp, second, limit=7)


def test_a_large_run_goes_in_several_requests_and_is_marked_when_the_last_is_taken(
    traced: Database, otlp: Otlp
) -> None:
    set_job(traced, LEADS, batch_size=100)
    small = by_call(traced, LEADS)["id"]
    add_leads(traced, 6000)
    large = by_call(traced, LEADS)["id"]
    otlp.trouble, otlp.trouble_from = Trouble(400), 2
    before = position(traced)
    answer = send(traced, otlp, code=3)
    assert "HTTP 400 Bad Request" in answer.err
    assert otlp.requests == 2
    assert position(traced) == before + 1
    taken = len(otlp.of(large))
    assert 1 < taken < 61
    otlp.trouble = None
    assert sent(traced, otlp) == 1
    assert len(otlp.of(small)) == 1
    spans = otlp.of(large)
    # the same spans once more, and then the rest
    assert len(spans) == 61 + taken
    assert len({span.span_id for span in spans}) == 61


# ------------------------------------------------------------------------------------- how runs end


@pytest.mark.requirement("L17")
def test_a_failed_run_is_an_error_with_its_sqlstate_and_message(traced: Database, otlp: Otlp) -> None:
    add_trigger(traced, "crm.leads", "raise exception 'no room' using errcode = '53100';", at="before update")
    add_leads(traced, 3)
    answer = pyrunner("run", LEADS, dsn=runner(traced), code=1)
    assert "53100" in answer.err
    drop_trigger(traced)
    (run_id,) = ids_of_runs(traced)
    assert sent(traced, otlp) == 1
    (cycle,) = assert_traced(traced, otlp, run_id)
    assert (cycle.status, cycle.message) == ("error", "53100: no room")
    assert cycle.attributes["sqlstate"] == cycle.attributes["error.type"] == "53100"
    assert (cycle.attributes["status"], cycle.attributes["reason"]) == ("failed", "error")


@pytest.mark.requirement("L17")
def test_an_abandoned_run_is_an_error_with_what_it_had_done(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 5)
    with traced.connect("crm_runner") as gone:
        pid = gone.info.backend_pid
        run = start_run(gone, LEADS, batch_size=2)
        run_batch(gone, run["id"])
    traced.wait_until_gone(pid)
    assert sent(traced, otlp) == 0
    traced.rows("select from expiration.reap_runs()")
    assert sent(traced, otlp) == 1
    cycle, batch = assert_traced(traced, otlp, run["id"])
    assert cycle.status == "error"
    assert "is gone" in cycle.message
    assert cycle.attributes["error.type"] == "abandoned"
    assert len(batch.events) == 2


def test_a_clock_that_was_set_back_and_an_infinite_cut_off_make_spans_all_the_same(
    traced: Database, otlp: Otlp
) -> None:
    run = by_call(traced, LEADS)
    traced.rows("update expiration.run set finished_at = started_at - interval '1 hour', as_of = '-infinity'")
    assert sent(traced, otlp) == 1
    (cycle,) = otlp.of(run["id"])
    assert cycle.start == cycle.end
    assert cycle.attributes["as_of"] == "-infinity"


def test_items_that_the_outbox_keeps_no_more_are_counted(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 4)
    run = by_call(traced, LEADS)
    traced.rows("truncate outbox.event")
    assert sent(traced, otlp) == 1
    batch = otlp.of(run["id"])[1]
    assert (batch.events, batch.attributes["expired"], batch.attributes["items_left_out"]) == ((), 4, 4)


def test_a_replay_makes_no_item_expire_twice(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 3)
    run = by_call(traced, LEADS)
    replay_everything(traced)
    assert sent(traced, otlp) == 1
    assert len(otlp.of(run["id"])[1].events) == 3


# ------------------------------------------------------------------------------------- several, killed, away


def test_of_two_exporters_one_sends_and_the_other_does_not_wait(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 3)
    runs = [by_call(traced, job)["id"] for job in (LEADS, BOOKINGS, LEADS)]
    with Otlp() as other, otlp.holding() as answers:
        with started("traces", "--json", dsn=runner(traced), env=otlp.env()) as first:
            otlp.wait_for(4)
            assert sent(traced, other) == 0
            answers.set()
            assert json.loads(first.wait(0).out)["runs"] == 3
        assert other.spans == []
    assert sent(traced, otlp) == 0
    for run_id in runs:
        assert_traced(traced, otlp, run_id)


def test_several_exporters_at_once_send_each_run_once(traced: Database, otlp: Otlp) -> None:
    arguments = ("traces", "--follow", "--every", "0.05 s")
    with (
        started(*arguments, dsn=runner(traced), env=otlp.env()) as first,
        started(*arguments, dsn=runner(traced), env=otlp.env()) as second,
    ):
        for exporter in (first, second):
            exporter.wait_for("traces started")
        for _ in range(15):
            add_leads(traced, 2)
            add_bookings(traced, 2)
            for job in JOBS:
                by_call(traced, job)
        runs = ids_of_runs(traced)
        assert len(runs) == 30
        wait_until(lambda: {span.run_id for span in otlp.spans} == set(runs), what="all runs")
        for exporter in (first, second):
            exporter.send(signal.SIGTERM)
            assert exporter.wait(0).events == ["traces started", "traces stopped"]
    for run_id in runs:
        assert_traced(traced, otlp, run_id)


def test_one_that_is_killed_before_its_commit_leaves_the_same_spans_to_the_next(
    traced: Database, otlp: Otlp
) -> None:
    add_leads(traced, 3)
    run = by_call(traced, LEADS)
    before = position(traced)
    with otlp.holding(), started("traces", dsn=runner(traced), env=otlp.env()) as exporter:
        otlp.wait_for(2)
        pid = backend_of(traced, "pyrunner traces")
        exporter.send(signal.SIGKILL)
        exporter.wait(-9)
        traced.wait_until_gone(pid)
    assert position(traced) == before
    assert sent(traced, otlp) == 1
    assert_traced(traced, otlp, run["id"], times=2)


def test_sigterm_ends_it_after_the_request_in_hand(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 3)
    run = by_call(traced, LEADS)
    with otlp.holding() as answers, started("traces", "-f", dsn=runner(traced), env=otlp.env()) as exporter:
        otlp.wait_for(2)
        exporter.send(signal.SIGTERM)
        answers.set()
        assert exporter.wait(0).events[-1] == "traces stopped"
    assert sent(traced, otlp) == 0
    assert_traced(traced, otlp, run["id"])


def test_a_receiver_that_is_away_is_one_sentence_and_nothing_is_marked(traced: Database, otlp: Otlp) -> None:
    add_leads(traced, 2)
    run = by_call(traced, LEADS)
    before = position(traced)
    otlp.go()
    answer = send(traced, otlp, code=3, env=IMPATIENT)
    assert answer.err.splitlines() == [
        f"pyrunner: {otlp.shown} takes no traces: Connection refused.",
        "  Nothing is lost: what was not taken is sent by the next try.",
    ]
    assert position(traced) == before
    otlp.come()
    assert sent(traced, otlp) == 1
    assert_traced(traced, otlp, run["id"])
    # with nothing to send as well
    otlp.go()
    send(traced, otlp, code=3, env=IMPATIENT)


def test_following_outlives_a_receiver_that_is_away(traced: Database, otlp: Otlp) -> None:
    otlp.go()
    env = otlp.env(OTEL_EXPORTER_OTLP_TIMEOUT="2")
    with started("traces", "--follow", "--every", "0.1 s", dsn=runner(traced), env=env) as exporter:
        add_leads(traced, 2)
        first = by_call(traced, LEADS)["id"]
        lines = exporter.wait_for("receiver unreachable", 2)
        assert lines[0]["error"] == f"{otlp.shown} takes no traces: Connection refused."
        assert lines[1]["retryInSeconds"] > lines[0]["retryInSeconds"]
        otlp.come()
        otlp.wait_for(2)
        exporter.wait_for("traces possible again")
        second = by_call(traced, LEADS)["id"]
        wait_until_marked(traced, second)
        # over a connection that it had open
        told = exporter.so_far.events.count("receiver unreachable")
        otlp.go()
        third = by_call(traced, LEADS)["id"]
        exporter.wait_for("receiver unreachable", told + 1)
        otlp.come()
        otlp.wait_for(4)
        exporter.send(signal.SIGTERM)
        answer = exporter.wait(0)
    assert "sesame" not in answer.err
    assert all(line.startswith("{") for line in answer.err.splitlines())
    for run_id in (first, second, third):
        assert_traced(traced, otlp, run_id)


@pytest.mark.slow
def test_following_outlives_a_database_that_is_away(
    private_server: Callable[..., Server], otlp: Otlp
) -> None:
    server = private_server()
    with server.database() as db:
        begin(db)
        dsn = runner(db)
        db.close()
        server.stop()
        with started("traces", "--follow", "--every", "0.1 s", dsn=dsn, env=otlp.env()) as exporter:
            exporter.wait_for("database unreachable")
            server.start()
            first = by_call(db, LEADS)["id"]
            wait_until_marked(db, first)
            db.close()
            server.restart()
            second = by_call(db, LEADS)["id"]
            otlp.wait_for(2)
            exporter.send(signal.SIGTERM)
            exporter.wait(0)
        for run_id in (first, second):
            assert_traced(db, otlp, run_id)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (Trouble(503), "HTTP 503 Service Unavailable"),
        (Trouble(503, headers=(("Retry-After", "3600"),)), "HTTP 503 Service Unavailable"),
        (Trouble(401, b"Bearer sesame is unknown", "text/plain"), "HTTP 401 Unauthorized"),
        (Trouble(413), "HTTP 413"),
        # the SDK takes these for success
        (Trouble(302, headers=(("Location", "/login?sesame"),)), "HTTP 302 Found"),
        (Trouble(200, b"<html>sesame", "text/html; charset=utf-8"), "is no receiver of OTLP (text/html)"),
        (Trouble(200, b"\xff\xff\xffsesame"), "its answer is not OTLP's"),
    ],
)
def test_an_answer_that_takes_nothing_marks_nothing(
    traced: Database, otlp: Otlp, trouble: Trouble, said: str
) -> None:
    by_call(traced, LEADS)
    otlp.trouble = trouble
    before = position(traced)
    answer = send(traced, otlp, code=3, env=IMPATIENT)
    assert answer.err.startswith(f"pyrunner: {otlp.shown} takes no traces: ")
    assert said in answer.err
    assert "sesame" not in answer.err
    assert position(traced) == before
    otlp.trouble = None
    assert sent(traced, otlp) == 1


def test_one_that_does_not_answer_is_given_up(traced: Database, otlp: Otlp) -> None:
    by_call(traced, LEADS)
    with otlp.holding():
        answer = send(traced, otlp, code=3, env=IMPATIENT)
    assert "takes no traces: it does not answer." in answer.err


def test_a_try_without_time_left_does_not_hide_what_was_wrong() -> None:
    receiver = Receiver("http://127.0.0.1:1", log=make_log("debug", human=False))
    session = receiver._session
    for timeout, kind in ((5, OSError), (0, ValueError)):
        with pytest.raises(kind):
            session.request("POST", "http://127.0.0.1:1", timeout=timeout)
        assert session.problem == "Connection refused"
    receiver.close()


def test_spans_that_will_never_be_taken_are_told_of_and_not_sent_again(traced: Database, otlp: Otlp) -> None:
    by_call(traced, LEADS)
    otlp.rejects = 1
    (line,) = send(traced, otlp).lines
    assert (line["level"], line["event"], line["error"]) == ("warning", "spans rejected", "1 spans: too old")
    assert sent(traced, otlp) == 0


# ------------------------------------------------------------------------------------- settings


def test_the_standard_variables_are_obeyed(traced: Database, otlp: Otlp) -> None:
    run = by_call(traced, LEADS)
    nowhere = "http://127.0.0.1:1"
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": nowhere,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": otlp.shown,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-scope=everything",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-api-key=sesame,x-tenant=a%20b",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "leads",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,service.version=9",
    }
    answer = send(traced, otlp, env=env)
    assert "sesame" not in answer.out + answer.err
    assert (otlp.headers["x-api-key"], otlp.headers["x-tenant"]) == ("sesame", "a b")
    assert "x-scope" not in otlp.headers
    assert otlp.headers["content-encoding"] == "gzip"
    (cycle,) = assert_traced(traced, otlp, run["id"])
    assert cycle.resource["service.name"] == "leads"
    assert cycle.resource["service.version"] == "9"
    assert cycle.resource["deployment.environment.name"] == "test"
    # the option goes before all of them
    second = by_call(traced, LEADS)["id"]
    env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = nowhere
    for address in (otlp.url, f"{otlp.url}/", otlp.shown):
        send(traced, otlp, "--endpoint", address, env=env)
    assert_traced(traced, otlp, second)


def test_a_trace_says_which_service_and_database_it_is_of(traced: Database, otlp: Otlp) -> None:
    by_call(traced, LEADS)
    sent(traced, otlp)
    (cycle,) = otlp.spans
    assert cycle.resource["service.name"] == "crm-expiration"
    assert cycle.resource["service.version"] == traced.value("select expiration.schema_version()")
    assert cycle.resource["db.namespace"] == traced.name
    assert cycle.resource["db.system.name"] == "postgresql"
    # by the user and password in the address
    assert otlp.headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (
            ("--endpoint", "localhost:4318"),
            {},
            "The address of the OTLP receiver in --endpoint cannot be used",
        ),
        (("--endpoint", "http://"), {}, "--endpoint cannot be used"),
        (("--endpoint", "http://host:port"), {}, "--endpoint cannot be used"),
        (("--endpoint", "http://host:99999/sesame"), {}, "--endpoint cannot be used"),
        (("--endpoint", "grpc://host:4317"), {}, "--endpoint cannot be used"),
        (("--endpoint", "http://ho st"), {}, "--endpoint cannot be used"),
        ((), {"ENDPOINT": "sesame"}, "in OTEL_EXPORTER_OTLP_ENDPOINT cannot be used"),
        ((), {"TRACES_ENDPOINT": "ftp://sesame"}, "in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT cannot be used"),
        ((), {"PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', and only http/protobuf is"),
        ((), {"TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon', and must be seconds"),
        ((), {"TRACES_TIMEOUT": "10000"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is '10000'"),
        ((), {"COMPRESSION": "zip"}, "must be none, gzip or deflate"),
        ((), {"HEADERS": "sesame"}, "OTEL_EXPORTER_OTLP_HEADERS cannot be used"),
        (
            (),
            {"CERTIFICATE": "/nowhere.pem"},
            "OTEL_EXPORTER_OTLP_CERTIFICATE names /nowhere.pem, which is no",
        ),
        (("--every", "0 s"), {}, "must be greater than 0"),
        (("--name", ""), {}, "--name may not be empty"),
    ],
)
def test_what_cannot_be_used_is_said_at_once_with_code_2(
    db: Database, otlp: Otlp, arguments: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    given = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in env.items()}
    for follow in ((), ("--follow",)):
        answer = send(db, otlp, *arguments, *follow, code=2, env=given)
        assert said in answer.err
        assert "sesame" not in answer.err
    assert otlp.requests == 0
    assert position(db) is None


@pytest.mark.parametrize("name", ["OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"])
def test_a_limit_that_is_no_number_names_its_variable(db: Database, otlp: Otlp, name: str) -> None:
    answer = send(db, otlp, code=2, env={name: "many"})
    assert answer.err == f"pyrunner: {name} must be a non-negative integer but got many.\n"


def test_a_database_without_our_schema_or_of_another_version_is_one_sentence(
    db: Database, bare_db: Database, otlp: Otlp
) -> None:
    db.rows("update expiration.installation set version = '99.0.0'")
    for follow in ((), ("--follow",)):
        answer = pyrunner("traces", *follow, dsn=bare_db.dsn, env=otlp.env(), code=4)
        assert "Nothing is installed in this database.\n  Run `pyrunner migrate`.\n" in answer.err
        assert "newer" in pyrunner("traces", *follow, dsn=db.dsn, env=otlp.env(), code=4).err
    assert otlp.requests == 0


def test_who_may_not_mark_runs_is_told_which_role_can(db: Database, otlp: Otlp) -> None:
    for follow in ((), ("--follow",)):
        answer = pyrunner("traces", *follow, dsn=db.role_dsn("crm_monitor"), env=otlp.env(), code=5)
        assert "As a superuser: grant crm_runner to" in answer.err


def test_without_its_packages_the_command_names_the_extra(db: Database) -> None:
    without = "import sys; sys.modules['opentelemetry'] = None; from pyrunner.cli import main; main()"
    process = Process("traces", dsn=db.dsn, program=(sys.executable, "-c", without))
    answer = process.wait(2)
    assert answer.err == (
        "pyrunner: `pyrunner traces` needs the package opentelemetry, which is not installed.\n"
        "  pip install 'pyrunner[trace]'\n"
    )


# ------------------------------------------------------------------------------------- consumers


def messages_of(db: Database) -> list[Message]:
    """The outbox's events as they come out of Kafka."""
    names = ("id", "event_type", "contract_version", "tenant_id", "correlation_id", "traceparent", "seq")
    return [
        Message(
            event["topic"],
            3,
            offset,
            str(event["aggregate_id"]),
            json.dumps(event["payload"]).encode(),
            {name: str(event[name]) for name in names},
        )
        for offset, event in enumerate(events(db))
    ]


class Board:
    """The chessboard without Kafka: what has come in is handled as it is there."""

    def __init__(self, db: Database) -> None:
        self._consumer = Consumer(
            CHESSBOARD,
            dsn=db.role_dsn("crm_chessboard"),
            kafka={"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
            log=make_log("debug", human=False),
            stop=Stop(),
        )

    def handle(self, messages: list[Message]) -> None:
        """Has them take effect; Kafka has confirmed their offsets already, so it need not be there."""
        self._consumer._pending = list(messages)
        self._consumer._confirmed = {one.place: one.offset + 1 for one in messages}
        self._consumer._process()
        assert self._consumer._pending == []

    def close(self) -> None:
        """The end, as after SIGTERM."""
        self._consumer._leave()


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, otlp: Otlp) -> Otlp:
    """The receiver, as this process's environment names it."""
    for name, value in otlp.env(OTEL_EXPORTER_OTLP_TIMEOUT="2").items():
        monkeypatch.setenv(name, value)
    return otlp


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]


@pytest.mark.requirement("B12", "B13", "L17")
def test_a_consumers_span_hangs_below_the_batch_that_caused_it(traced: Database, configured: Otlp) -> None:
    set_job(traced, BOOKINGS, batch_size=2, max_batches_per_cycle=5)
    add_bookings(traced, 3)
    add_bookings(traced, 1, phase="Booking")
    run_id = by_call(traced, BOOKINGS)["id"]
    messages = messages_of(traced)
    bad = Message(
        "pin.crm.booking-expired.v1", 3, 4, None, b"{}", {**messages[0].headers, "id": str(uuid4())}
    )
    stranger = Message("pin.crm.booking-expired.v1", 3, 5, None, b"?", {"traceparent": "00-zz", "id": "x"})
    board = Board(traced)
    board.handle([*messages, bad, stranger])
    board.handle(messages[:1])
    board.close()
    handled = list(configured.spans)
    assert sent(traced, configured) == 1
    batches = {span.traceparent: span for span in configured.of(run_id) if span.name.endswith(" batch")}
    assert len(batches) == 3
    by_offset = sorted(handled, key=lambda span: (span.attributes["messaging.kafka.offset"], span.start))
    assert [span.attributes["outcome"] for span in by_offset] == [
        "property freed", "duplicate", *["property freed"] * 3, "parked", "parked",
    ]  # fmt: skip
    for span, message in zip(by_offset[1:6], [*messages, bad], strict=True):
        parent = batches[str(message.headers["traceparent"])]
        assert (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
        assert span.kind == "consumer"
        assert span.start >= parent.end
        assert span.attributes == {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": "3",
            "messaging.kafka.offset": message.offset,
            "messaging.consumer.group.name": "chessboard",
            "messaging.message.id": message.headers["id"],
            "correlationId": str(run_id),
            "outcome": span.attributes["outcome"],
        }
        assert (span.status == "error") == (span.attributes["outcome"] == "parked")
        assert span.resource["service.name"] == "crm-chessboard"
    # one whose header says nothing is a trace of its own
    assert (by_offset[6].parent_id, by_offset[6].run_id == run_id) == ("", False)
    assert len({span.span_id for span in configured.spans}) == len(configured.spans)


def test_a_consumer_works_whatever_becomes_of_its_spans(
    traced: Database, configured: Otlp, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_bookings(traced, 2)
    by_call(traced, BOOKINGS)
    configured.go()
    board = Board(traced)
    board.handle(messages_of(traced))
    board.close()
    assert traced.value("select count(*) from chessboard.release") == 2
    told: list[dict[str, Any]] = []

    def seen() -> list[dict[str, Any]]:
        told.extend(line for line in lines_of(capfd) if line["level"] == "warning")
        return told

    wait_until(seen, what="a line")
    assert [(line["event"], line["error"]) for line in told] == [
        ("traces not sent", f"{configured.shown} takes no traces: Connection refused.")
    ]
    # settings that cannot be used
    for name, value in (("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_BSP_MAX_QUEUE_SIZE", "0")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            board = Board(traced)
        board.handle(messages_of(traced))
        board.close()
        (line,) = (line for line in lines_of(capfd) if line["level"] == "warning")
        assert line["event"] == "traces not possible"


def test_a_consumer_does_not_wait_for_a_receiver_that_does_not_answer(
    traced: Database, configured: Otlp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "8")
    add_bookings(traced, 4)
    by_call(traced, BOOKINGS)
    messages = messages_of(traced)
    with configured.holding():
        board = Board(traced)
        board.handle(messages[:1])
        configured.wait_for(1)
        # a request is out and stays without an answer
        board.handle(messages[1:])
        assert traced.value("select count(*) from chessboard.release") == 4
        assert len(configured.spans) == 1
        board.close()
        # the end was not put off until that was given up
        assert any(thread.name.startswith("OtelBatch") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "off",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        "no packages",
    ],
)
def test_where_traces_are_not_wanted_nothing_changes(
    traced: Database,
    configured: Otlp,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    off: dict[str, str] | str,
) -> None:
    add_bookings(traced, 1)
    by_call(traced, BOOKINGS)
    if isinstance(off, dict):
        for name, value in off.items():
            monkeypatch.setenv(name, value)
    else:
        monkeypatch.delitem(sys.modules, "consumers.spans", raising=False)
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    board = Board(traced)
    board.handle(messages_of(traced))
    board.close()
    assert traced.value("select count(*) from chessboard.release") == 1
    assert configured.requests == 0
    assert [line for line in lines_of(capfd) if "trace" in line["event"] and line["level"] != "debug"] == []


@pytest.mark.requirement("L15", "B12")
def test_a_consumers_log_has_ids_and_nothing_else_of_the_payload(
    traced: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    add_bookings(traced, 1)
    run_id = by_call(traced, BOOKINGS)["id"]
    (one,) = messages_of(traced)
    payload = json.loads(one.value or b"")
    more = json.dumps({**payload, "note": "sesame"}).encode()
    wrong = json.dumps({**payload, "phase": "sesame"}).encode()
    board = Board(traced)
    board.handle(
        [
            Message(one.topic, 3, 0, one.key, more, one.headers),
            Message(one.topic, 3, 1, one.key, wrong, one.headers),
        ]
    )
    board.close()
    assert traced.value("select reason like '%sesame%' from chessboard.parked")
    lines = {line["event"]: line for line in lines_of(capfd)}
    freed, parked = lines["property freed"], lines["message parked"]
    assert (freed["eventId"], freed["correlationId"]) == (one.headers["id"], str(run_id))
    ids = ("bookingId", "tenantId", "dealId", "propertyObjectId")
    assert {name: freed[name] for name in ids} == {name: payload[name] for name in ids}
    assert (parked["reason"], parked["correlationId"]) == ("payload.phase", str(run_id))
    assert "sesame" not in json.dumps(lines)


# ------------------------------------------------------------------------------------- what is said of it


def test_the_page_names_what_a_span_has() -> None:
    text = (PROJECT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    page = text.partition("## Traces")[2].partition("\n## ")[0]
    missing = [name for name in RUN | BATCH | LEAD | BOOKING if f"`{name}`" not in page]
    assert missing == []

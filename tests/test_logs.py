"""Log lines: the documents' events and fields, the same for every driver."""

import json
import re
import signal
import subprocess
from datetime import timedelta
from typing import Any

import pytest

from pyrunner.logs import levels_from
from tests.commands import PROGRAM, environment, on_terminal, pyrunner, started
from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    replay_everything,
    run,
    run_batch,
    run_job,
    set_job,
    start_run,
)
from tests.servers import Database, Server

# what every line has, before the event's own fields
HEAD = ["timestamp", "level", "event", "job", "driver", "database", "correlationId"]
DOCUMENTED = {
    LEADS: {
        "job.started": {"jobRunId", "Now"},
        "batch.processed": {"jobRunId", "size", "elapsedMs"},
        "item.failed": {"LeadId", "error"},
        "job.completed": {"jobRunId", "ExpiredCount", "BatchesProcessed", "cappedByMaxBatches"},
        "lead.expired": {"LeadId", "TenantId"},
    },
    BOOKINGS: {
        "cycle started": {"runId", "AsOf"},
        "batch selected": {"phase", "count"},
        "item failed": {"BookingId", "exception"},
        "cycle completed": {"ReserveExpiredCount", "BookingExpiredCount", "DurationMs", "SkippedLocked"},
        "booking expired": {"BookingId", "DealId", "Phase", "TenantId"},
    },
}


def logs(db: Database, *arguments: str) -> list[dict[str, Any]]:
    """What `pyrunner logs` prints."""
    out = pyrunner("logs", *arguments, dsn=db.role_dsn("crm_monitor")).out
    return [json.loads(line) for line in out.splitlines()]


def fill(db: Database) -> None:
    add_leads(db, 3)
    add_poison(db, "Lead")
    add_bookings(db, 3)
    add_bookings(db, 3, phase="Booking")
    add_poison(db, "Reserve")


@pytest.mark.requirement("L15", "B12")
@pytest.mark.parametrize("job", [LEADS, BOOKINGS])
def test_the_documents_events_are_logged_with_their_fields(db: Database, job: str) -> None:
    fill(db)
    lines = pyrunner("run", job, "--log-level", "debug", dsn=db.role_dsn("crm_runner")).lines
    for event, fields in DOCUMENTED[job].items():
        found = [line for line in lines if line["event"] == event]
        assert found, event
        for line in found:
            assert list(line)[: len(HEAD)] == HEAD
            assert fields <= line.keys(), event
            assert line["job"] == job
            assert line["timestamp"].endswith("Z")
    levels = {line["event"]: line["level"] for line in lines}
    assert {levels[event] for event in levels if "failed" in event} == {"error"}
    assert {
        levels[event] for event in levels if event.endswith(".expired") or event == "booking expired"
    } == {"debug"}


@pytest.mark.requirement("L15", "B12", "X2")
@pytest.mark.parametrize("job", [LEADS, BOOKINGS])
def test_a_run_by_call_logs_as_one_of_ours_does(db: Database, job: str) -> None:
    def shape(lines: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
        return [(line["event"], line["level"], list(line)) for line in lines]

    fill(db)
    ours = pyrunner("run", job, dsn=db.role_dsn("crm_runner"))
    run(db, "delete from expiration.failed_item")
    run(db, "update crm.leads set version = 1 where status = 'Expired'")
    add_leads(db, 3)
    add_bookings(db, 3)
    add_bookings(db, 3, phase="Booking")
    theirs = run_job(db, job)
    lines = logs(db, "--run", str(theirs["id"]))
    assert {line["driver"] for line in lines} == {"psql"}
    assert shape(lines) == shape(ours.lines)


ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def without_ids_and_times(lines: list[dict[str, Any]]) -> list[str]:
    """The lines, in any order, without what differs from run to run."""

    def plain(name: str, value: Any) -> Any:
        if name in ("timestamp", "Now", "AsOf", "elapsedMs", "DurationMs"):
            assert value
            return name
        if name == "driver":
            assert value in ("pyrunner", "psql")
            return name
        return ID.sub("ID", value) if isinstance(value, str) else value

    return sorted(json.dumps({name: plain(name, line[name]) for name in line}) for line in lines)


@pytest.mark.requirement("L15", "B12", "X2")
@pytest.mark.parametrize("job", [LEADS, BOOKINGS])
def test_the_same_work_by_call_and_by_us_is_the_same_lines_but_for_ids_and_times(
    server: Server, job: str
) -> None:
    with server.database() as one, server.database() as other:
        for db in (one, other):
            fill(db)
            set_job(db, job, batch_size=2, max_batches_per_cycle=3)
        ours = pyrunner("run", job, "--log-level", "debug", dsn=one.role_dsn("crm_runner")).lines
        with other.connect("crm_runner") as connection:
            run_id = str(run_job(connection, job)["id"])
        theirs = logs(other, "--run", run_id, "--level", "debug")
        for lines, db in ((ours, one), (theirs, other)):
            assert {line.pop("database") for line in lines} == {db.name}
            # whatever a run says can be found by its id
            assert len({line["correlationId"] for line in lines}) == 1
        assert {line["correlationId"] for line in theirs} == {run_id}
        assert {line["event"] for line in ours} == set(DOCUMENTED[job])
        assert without_ids_and_times(theirs) == without_ids_and_times(ours)


@pytest.mark.requirement("L15", "B12")
def test_lines_hold_ids_counts_and_messages_and_nothing_else_of_the_items(db: Database) -> None:
    fill(db)
    for job in (LEADS, BOOKINGS):
        run_job(db, job)
    known = {
        "batch", "step", "failed", "skippedLocked", "status", "reason", "elapsedMs", "sqlstate", "phase",
        "expired", "runId",
    }.union(HEAD, *(fields for job in DOCUMENTED.values() for fields in job.values()))  # fmt: skip
    for line in logs(db, "--level", "debug"):
        assert line.keys() <= known


@pytest.mark.requirement("L15")
def test_a_batch_that_came_late_and_a_replay_change_nothing_about_who_expired_when(db: Database) -> None:
    """Behind a pooler a run is closed that gives no sign of life, and its driver may yet commit a batch."""
    leads = add_leads(db, 3)
    late = db.connect("crm_runner", autocommit=False)
    run_id = start_run(late, LEADS, pooled=True, batch_size=2)["id"]
    late.commit()
    run_batch(late, run_id)
    run(db, "update expiration.run set started_at = started_at - interval '1 day'")
    run(db, "select from expiration.reap_runs()")
    late.commit()
    replay_everything(db)
    items = [
        line for line in logs(db, "--level", "debug", "--since", "2 d") if line["event"] == "lead.expired"
    ]
    assert [line["LeadId"] for line in items] == [str(one) for one in sorted(leads[:2], key=str)]
    assert {line["correlationId"] for line in items} == {str(run_id)}


def test_items_of_batches_from_before_the_upgrade_are_logged_too(db: Database) -> None:
    fill(db)
    set_job(db, LEADS, batch_size=2)
    run_job(db, LEADS)
    run_job(db, BOOKINGS)

    def items() -> list[dict[str, Any]]:
        lines = [line for line in logs(db, "--level", "debug") if line["level"] == "debug"]
        return sorted(({**line, "timestamp": None} for line in lines), key=str)

    before = items()
    assert len(before) == 9
    run(db, "update expiration.batch set transaction_start = null")
    assert items() == before


@pytest.mark.requirement("L15")
@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_what_a_run_printed_is_what_logs_prints_of_it(db: Database, level: str) -> None:
    fill(db)
    ours = pyrunner("run", LEADS, "--batch-size", "2", "--log-level", level, dsn=db.role_dsn("crm_runner"))
    theirs = logs(db, "--level", level)

    def in_any_order(lines: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(line, sort_keys=True) for line in lines)

    assert ours.lines
    assert in_any_order(theirs) == in_any_order(ours.lines)
    assert [line["timestamp"] for line in theirs] == sorted(line["timestamp"] for line in theirs)


def test_lines_are_chosen_by_time_job_run_and_level(db: Database) -> None:
    fill(db)
    leads = run_job(db, LEADS)
    bookings = run_job(db, BOOKINGS)
    assert {line["job"] for line in logs(db)} == {LEADS, BOOKINGS}
    assert {line["job"] for line in logs(db, "--job", LEADS)} == {LEADS}
    assert {line["runId"] for line in logs(db, "--run", str(bookings["id"]))} == {str(bookings["id"])}
    assert {line["level"] for line in logs(db, "--level", "error")} == {"error"}
    later = (leads["finished_at"] + timedelta(microseconds=1)).isoformat()
    assert {line["job"] for line in logs(db, "--since", later)} == {BOOKINGS}
    assert logs(db, "--since", "0 s") == []
    assert "must be a time" in pyrunner("logs", "--since", "9999999 d", dsn=db.dsn, code=2).err
    assert levels_from("warning") == ["warning", "error"]


def test_following_prints_what_is_logged_from_then_on_and_each_line_once(db: Database) -> None:
    fill(db)
    run_job(db, LEADS)
    with started("logs", "--follow", "--level", "debug", dsn=db.role_dsn("crm_monitor")) as process:
        _wait_for_out(process, "job.completed")
        add_leads(db, 2)
        second = run_job(db, LEADS)
        _wait_for_out(process, str(second["id"]), "job.completed")
        add_leads(db, 2)
        third = run_job(db, LEADS)
        _wait_for_out(process, str(third["id"]), "job.completed")
        process.send(signal.SIGTERM)
        answer = process.wait(130)
    lines = answer.out.splitlines()
    assert len(lines) == len(set(lines))
    assert sorted(lines) == sorted(pyrunner("logs", "--level", "debug", dsn=db.dsn).out.splitlines())


def _wait_for_out(process: Any, *parts: str) -> None:
    from tests.servers import wait_until

    def seen() -> bool:
        lines = process.so_far.out.splitlines()
        return any(all(part in line for part in parts) for line in lines)

    wait_until(seen, what=lambda: f"{parts} in:\n{process.so_far.out}")


@pytest.mark.requirement("L15")
def test_a_skipped_a_capped_and_a_failed_run_are_logged_as_such(db: Database) -> None:
    set_job(db, LEADS, batch_size=1, max_batches_per_cycle=1)
    add_leads(db, 3)
    run_job(db, LEADS)
    run(db, "select expiration.pause(%s, 'a release')", LEADS)
    run_job(db, LEADS)
    ends = [line for line in logs(db) if line["event"] in ("job.completed", "job.skipped")]
    assert [(line["event"], line["level"], line["reason"]) for line in ends] == [
        ("job.completed", "warning", "capped"), ("job.skipped", "warning", "paused"),
    ]  # fmt: skip
    assert ends[0]["cappedByMaxBatches"] is True
    assert "a release" in ends[1]["error"]


def test_a_terminal_shows_lines_for_a_person(db: Database) -> None:
    add_leads(db, 1)
    answer = on_terminal("run", LEADS, "--log-level", "debug", dsn=db.role_dsn("crm_runner"))
    assert "lead.expired" in answer.err
    assert '"event"' not in answer.err


def test_a_reader_that_has_seen_enough_is_no_error(db: Database) -> None:
    add_leads(db, 300)
    set_job(db, LEADS, batch_size=1, max_batches_per_cycle=300)
    run_job(db, LEADS)
    process = subprocess.Popen(
        [*PROGRAM, "logs"],
        env=environment({"PYRUNNER_DSN": db.dsn}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read().decode()
    assert process.wait(30) == 0
    assert said == ""

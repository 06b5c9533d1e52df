"""Log lines: the documents' events and fields, the same for every driver."""

import json
import signal
import subprocess
from datetime import timedelta
from typing import Any

import pytest

from pyrunner.logs import levels_from
from tests.commands import PROGRAM, environment, on_terminal, pyrunner, started
from tests.domain import BOOKINGS, LEADS, add_bookings, add_leads, add_poison, run, run_job, set_job
from tests.servers import Database

# what every line has, before the event's own fields
HEAD = ["timestamp", "level", "event", "job", "driver", "database"]
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

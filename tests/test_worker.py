"""`pyrunner worker`: jobs on their periods, whatever happens to it and to its databases."""

import itertools
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.commands import Process, backend_of, pyrunner, started
from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    add_trigger,
    assert_consistent,
    drop_trigger,
    gate,
    last_run,
    open_gate,
    run,
    set_job,
    statuses,
)
from tests.servers import Database, Server

SECOND = timedelta(seconds=1)
LEADS_ONLY = ("worker", "--job", LEADS, "--no-upkeep")


@pytest.fixture
def quick(db: Database) -> Database:
    """A database whose jobs run every second."""
    set_job(db, LEADS, period=SECOND)
    set_job(db, BOOKINGS, period=SECOND)
    return db


def runner(db: Database) -> str:
    return db.role_dsn("crm_runner")


def finish(worker: Process, code: int = 0) -> Any:
    worker.send(signal.SIGTERM)
    answer = worker.wait(code)
    assert answer.out == ""
    assert answer.events[-1] == "worker stopped"
    return answer


@pytest.mark.requirement("L1", "B1", "X2")
def test_both_jobs_run_on_their_periods_and_house_is_kept(quick: Database) -> None:
    leads = add_leads(quick, 3)
    bookings = add_bookings(quick, 3)
    run(quick, "update outbox.settings set partitions_ahead = 20")
    assert quick.value("select count(*) from outbox.partition") < 20
    with started("worker", dsn=runner(quick)) as worker:
        worker.wait_for("job.completed", 2, job=LEADS)
        worker.wait_for("cycle completed", 2, job=BOOKINGS)
        worker.wait_for("upkeep completed")
        answer = finish(worker)
    assert statuses(quick, "Lead", leads) == {"Expired": 3}
    assert statuses(quick, "Reserve", bookings) == {"ReserveExpired": 3}
    assert quick.value("select count(*) from outbox.partition") > 20
    assert quick.rows("select distinct driver, status, sqlstate, error from expiration.run") == [
        ("pyrunner", "completed", None, None)
    ]
    assert {line["level"] for line in answer.lines} == {"info"}


@pytest.mark.requirement("B1", "B3")
def test_ticks_that_a_long_cycle_covers_are_skipped_and_not_queued(quick: Database) -> None:
    leads = add_leads(quick, 2)
    with gate(quick, "Lead", leads[0]) as keeper, started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        quick.wait_for_lock(backend_of(quick, "pyrunner lead-expiration"))
        covered = "select clock_timestamp() > min(started_at) + interval '2.2 s' from expiration.run"
        quick.wait_until(covered)
        assert quick.value("select count(*) from expiration.run") == 1
        open_gate(keeper)
        (line,) = worker.wait_for("tick skipped", job=LEADS)
        worker.wait_for("job.completed", 3)
        finish(worker)
    assert line["ticks"] >= 2
    runs = quick.rows("select started_at, finished_at from expiration.run order by started_at")
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(runs))
    # those that were missed are not made up for
    assert runs[2][0] - runs[1][0] > SECOND * 0.25


def test_several_databases_are_served_side_by_side_and_one_that_is_away_is_tried_again(
    quick: Database, server: Server
) -> None:
    with server.database() as other:
        set_job(other, LEADS, period=SECOND)
        nowhere = "host=127.0.0.1 port=1 dbname=nowhere password=hunter2"
        dsns = [part for dsn in (runner(quick), runner(other), nowhere) for part in ("--dsn", dsn)]
        with started(*LEADS_ONLY, *dsns) as worker:
            worker.wait_for("job.completed", 2, database=f"{quick.name} at {_place(quick)}")
            worker.wait_for("job.completed", 2, database=f"{other.name} at {_place(other)}")
            lines = worker.wait_for("database unreachable", 2)
            answer = finish(worker)
    assert lines[0]["target"] == "database nowhere at 127.0.0.1:1"
    assert lines[1]["retryInSeconds"] > lines[0]["retryInSeconds"]
    assert "hunter2" not in answer.err


def _place(db: Database) -> str:
    info = db.observer.info
    return f"{info.host}:{info.port}"


@pytest.mark.requirement("B15")
def test_it_goes_on_when_a_database_comes_back(private_server: Callable[..., Server]) -> None:
    server = private_server()
    with server.database() as db:
        set_job(db, LEADS, period=SECOND)
        leads = add_leads(db, 2)
        dsn = runner(db)
        db.close()
        server.stop()
        with started(*LEADS_ONLY, dsn=dsn) as worker:
            worker.wait_for("database unreachable")
            server.start()
            worker.wait_for("database reachable")
            worker.wait_for("job.completed")
            server.kill()
            worker.wait_for("database unreachable", 2)
            server.start()
            worker.wait_for("job.completed", len(_completed(worker)) + 1)
            finish(worker)
        assert statuses(db, "Lead", leads) == {"Expired": 2}


def _completed(worker: Process) -> list[str]:
    return [event for event in worker.so_far.events if event == "job.completed"]


def test_a_connection_that_was_ended_while_idle_is_replaced_without_a_word(quick: Database) -> None:
    with started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        worker.wait_for("job.completed")
        first = backend_of(quick, "pyrunner lead-expiration")
        idle = "select state = 'idle' and query = 'COMMIT' from pg_stat_activity where pid = %s"
        quick.wait_until(idle, (first,))
        quick.terminate(first)
        worker.wait_for("job.completed", len(_completed(worker)) + 1)
        assert backend_of(quick, "pyrunner lead-expiration") != first
        answer = finish(worker)
    assert {line["level"] for line in answer.lines} == {"info"}


@pytest.mark.requirement("L12")
def test_a_connection_lost_in_mid_cycle_is_one_line_and_the_next_tick_reconnects(quick: Database) -> None:
    leads = add_leads(quick, 4)
    with (
        gate(quick, "Lead", leads[2]) as keeper,
        started(*LEADS_ONLY, dsn=runner(quick), env={"CRM__JOBS__LEADEXPIRATION__BATCHSIZE": "2"}) as worker,
    ):
        pid = backend_of(quick, "pyrunner lead-expiration")
        quick.wait_for_lock(pid)
        quick.terminate(pid)
        (line,) = worker.wait_for("database unreachable")
        assert "The connection to the database was lost" in line["error"]
        open_gate(keeper)
        worker.wait_for("job.completed", ExpiredCount=2)
        answer = finish(worker)
    assert [line["event"] for line in answer.lines if line["level"] == "error"] == ["database unreachable"]
    assert quick.rows("select distinct status from expiration.run order by 1") == [
        ("abandoned",),
        ("completed",),
    ]
    assert statuses(quick, "Lead", leads) == {"Expired": 4}
    assert_consistent(quick)


@pytest.mark.requirement("L12")
def test_a_failed_cycle_does_not_end_it(quick: Database) -> None:
    leads = add_leads(quick, 2)
    add_trigger(quick, "crm.audit_log", "raise exception using errcode = '53100', message = 'no space left';")
    with started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        worker.wait_for("job.failed", 2, sqlstate="53100")
        drop_trigger(quick)
        worker.wait_for("job.completed", ExpiredCount=2)
        finish(worker)
    assert statuses(quick, "Lead", leads) == {"Expired": 2}


def test_it_waits_for_an_installation(template_db: str, bare_db: Database) -> None:
    dsn = runner(bare_db)
    with started(*LEADS_ONLY, dsn=dsn, env={"CRM__JOBS__LEADEXPIRATION__PERIOD": "1 s"}) as worker:
        (line,) = worker.wait_for(f"{LEADS} not possible")[:1]
        assert "Nothing is installed" in line["error"]
        assert "pyrunner migrate" in line["hint"]
        pyrunner("migrate", dsn=bare_db.dsn)
        worker.wait_for(f"{LEADS} possible again")
        worker.wait_for("job.completed")
        finish(worker)


@pytest.mark.requirement("L1", "L3")
def test_settings_are_read_anew_before_every_cycle(quick: Database) -> None:
    with started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        worker.wait_for("job.completed")
        pyrunner("config", "set", LEADS, "BatchSize", "3", dsn=quick.role_dsn("crm_operator"))
        add_leads(quick, 3)
        worker.wait_for("batch.processed", size=3)
        finish(worker)
    assert last_run(quick, LEADS)["batch_size"] == 3


@pytest.mark.requirement("L1")
def test_the_environment_sets_the_period(db: Database) -> None:
    # the database says one hour
    with started(
        *LEADS_ONLY, dsn=runner(db), env={"CRM__JOBS__LEADEXPIRATION__PERIOD": "00:00:01"}
    ) as worker:
        worker.wait_for("job.completed", 3)
        finish(worker)


@pytest.mark.requirement("B1")
def test_a_paused_job_is_skipped_until_it_is_resumed(quick: Database) -> None:
    leads = add_leads(quick, 2)
    operator = quick.role_dsn("crm_operator")
    pyrunner("pause", LEADS, dsn=operator)
    with started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        worker.wait_for("job.skipped", 2, reason="paused")
        assert statuses(quick, "Lead", leads) == {"Active": 2}
        pyrunner("resume", LEADS, dsn=operator)
        worker.wait_for("job.completed", ExpiredCount=2)
        finish(worker)


@pytest.mark.requirement("L5")
def test_sigterm_ends_it_after_the_batch_in_hand(quick: Database) -> None:
    leads = add_leads(quick, 4)
    with (
        gate(quick, "Lead", leads[0]) as keeper,
        started(*LEADS_ONLY, dsn=runner(quick), env={"CRM__JOBS__LEADEXPIRATION__BATCHSIZE": "2"}) as worker,
    ):
        pid = backend_of(quick, "pyrunner lead-expiration")
        quick.wait_for_lock(pid)
        worker.send(signal.SIGTERM)
        worker.wait_for("worker stopping")
        open_gate(keeper)
        answer = worker.wait(0)
    assert answer.events[-1] == "worker stopped"
    done = last_run(quick, LEADS)
    assert (done["status"], done["reason"]) == ("stopped", "stop requested")
    assert statuses(quick, "Lead", leads) == {"Expired": 2, "Active": 2}
    quick.wait_until_gone(pid)


@pytest.mark.requirement("L5", "L11")
def test_a_second_sigterm_cancels_the_batch_in_hand(quick: Database) -> None:
    leads = add_leads(quick, 4)
    with gate(quick, "Lead", leads[0]), started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        quick.wait_for_lock(backend_of(quick, "pyrunner lead-expiration"))
        worker.send(signal.SIGTERM)
        worker.wait_for("worker stopping")
        worker.send(signal.SIGTERM)
        answer = worker.wait(130)
    assert "job.failed" in answer.events
    done = last_run(quick, LEADS)
    assert (done["status"], done["sqlstate"]) == ("failed", "57014")
    assert statuses(quick, "Lead", leads) == {"Active": 4}


@pytest.mark.requirement("B3")
def test_one_that_is_started_again_after_kill_9_is_not_kept_from_working(quick: Database) -> None:
    leads = add_leads(quick, 4)
    with gate(quick, "Lead", leads[0]) as keeper, started(*LEADS_ONLY, dsn=runner(quick)) as worker:
        pid = backend_of(quick, "pyrunner lead-expiration")
        quick.wait_for_lock(pid)
        worker.send(signal.SIGKILL)
        worker.wait(-9)
        # its backend still waits: the successor does not overlap it
        with started(*LEADS_ONLY, dsn=runner(quick)) as successor:
            successor.wait_for("job.skipped", reason="overlap")
            open_gate(keeper)
            quick.wait_until_gone(pid)
            successor.wait_for("job.completed", ExpiredCount=4)
            finish(successor)
    assert quick.rows("select status from expiration.run where status not in ('skipped', 'completed')") == [
        ("abandoned",)
    ]
    assert statuses(quick, "Lead", leads) == {"Expired": 4}


@pytest.mark.requirement("L2")
def test_workers_of_different_names_work_side_by_side(quick: Database) -> None:
    leads = add_leads(quick, 6)
    env = {"CRM__JOBS__LEADEXPIRATION__BATCHSIZE": "2"}
    with gate(quick, "Lead", leads[0]) as keeper, started(*LEADS_ONLY, dsn=runner(quick), env=env) as worker:
        quick.wait_for_lock(backend_of(quick, "pyrunner lead-expiration"))
        with started(*LEADS_ONLY, "--instance", "two", dsn=runner(quick), env=env) as other:
            other.wait_for("job.completed", ExpiredCount=4)
            finish(other)
        open_gate(keeper)
        worker.wait_for("job.completed")
        finish(worker)
    assert statuses(quick, "Lead", leads) == {"Expired": 6}
    assert_consistent(quick)


def test_a_connection_string_that_cannot_be_understood_is_refused_at_once() -> None:
    answer = pyrunner("worker", "--dsn", "hunter2==", code=2)
    assert answer.err.startswith("pyrunner: The connection string cannot be understood.")
    assert "hunter2" not in answer.err


def test_a_bad_setting_is_refused_at_once(db: Database) -> None:
    answer = pyrunner("worker", dsn=runner(db), env={"CRM__JOBS__LEADEXPIRATION__PERIOD": "0 s"}, code=2)
    assert "CRM__JOBS__LEADEXPIRATION__PERIOD is '0 s'" in answer.err
    assert run(db, "select count(*) from expiration.run") == [(0,)]

"""The run protocol: one cut-off, one result, whatever happens to the driver."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from tests.domain import (
    BOOKINGS,
    EXPIRED,
    JOB_OF,
    JOBS,
    LEADS,
    add_bookings,
    add_items,
    add_leads,
    add_trigger,
    assert_consistent,
    contents,
    drive,
    drop_trigger,
    events,
    expire_batch,
    failed_items,
    finish_run,
    gate,
    item,
    last_run,
    nothing_changes,
    open_gate,
    refused,
    run_batch,
    run_job,
    run_of,
    set_job,
    start_run,
    statuses,
)
from tests.servers import Connection, Database

CRON: dict[str, Any] = {"application_name": "pg_cron"}


def call(job: str = LEADS) -> Callable[[Connection], list[str]]:
    """Work for a background connection: the CALL and nothing after it; returns its notices."""

    def work(connection: Connection) -> list[str]:
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute("call expiration.run_job(%s)", (job,))
        return notices

    return work


# ------------------------------------------------------------------------------------------------ the cut-off


@pytest.mark.requirement("L6")
@pytest.mark.parametrize("phase", ["Lead", "Reserve", "Booking"])
def test_a_cut_off_that_is_set_back_is_honoured(db: Database, phase: str) -> None:
    (old,) = add_items(db, phase, due="3 hours")
    (young,) = add_items(db, phase, due="1 hour")
    as_of = db.value("select now() - interval '2 hours'")
    run = run_job(db, JOB_OF[phase], as_of)
    assert (run["as_of"], run["expired"]) == (as_of, 1)
    assert item(db, phase, old)["expired_at"] == as_of
    assert item(db, phase, young)["expired_at"] is None
    assert events(db)[0]["occurred_at"] == as_of
    assert_consistent(db)


@pytest.mark.requirement("L6")
@pytest.mark.parametrize("job", JOBS)
def test_the_cut_off_is_the_databases_clock_at_the_start(db: Database, job: str) -> None:
    before = db.value("select clock_timestamp()")
    run = run_job(db, job)
    assert (
        before < run["as_of"] <= run["started_at"] < run["finished_at"] < db.value("select clock_timestamp()")
    )


# --------------------------------------------------------------------------------------- overlap, pause, stop


@pytest.mark.requirement("B1", "B3")
def test_ticks_that_an_overlong_cycle_covers_are_skipped_one_by_one_and_not_queued(db: Database) -> None:
    ids = add_bookings(db, 3)
    with gate(db, "Reserve", ids[0]) as keeper:
        first = db.background(call(BOOKINGS), **CRON)
        db.wait_for_lock(first.pid)
        working = last_run(db, BOOKINGS)["id"]
        for _ in range(3):
            late = db.background(call(BOOKINGS), **CRON)
            (notice,) = late.result(timeout=10)
            assert "skipped" in notice
            run = last_run(db, BOOKINGS)
            assert (run["driver"], run["status"], run["reason"], run["expired"]) == (
                "pg_cron",
                "skipped",
                "overlap",
                0,
            )
            assert str(working) in run["error"]
        assert first.is_running()
        # the other job is another matter
        assert run_job(db.connect(**CRON), LEADS)["status"] == "completed"
        open_gate(keeper)
        first.result()
    assert run_of(db, working)["status"] == "completed"
    assert run_job(db.connect(**CRON), BOOKINGS)["status"] == "completed"
    assert db.rows(
        "select status, count(*) from expiration.run where job = %s group by 1 order by 1", (BOOKINGS,)
    ) == [
        ("completed", 2),
        ("skipped", 3),
    ]
    assert_consistent(db)


@pytest.mark.requirement("L2")
def test_runs_of_different_drivers_and_instances_do_not_overlap_each_other(db: Database) -> None:
    ids = add_leads(db, 5)
    with gate(db, "Lead", ids[0]) as keeper:
        set_job(db, LEADS, batch_size=1)
        first = db.background(call(), **CRON)
        db.wait_for_lock(first.pid)
        # a DBA by hand, and two workers
        assert run_job(db, LEADS)["expired"] == 4
        one, two = db.connect("crm_runner"), db.connect("crm_runner")
        runs = [
            start_run(one, LEADS, driver="pyrunner", instance="a"),
            start_run(two, LEADS, driver="pyrunner", instance="b"),
        ]
        assert [run["status"] for run in runs] == ["running", "running"]
        assert (
            start_run(db.connect("crm_runner"), LEADS, driver="pyrunner", instance="a")["reason"] == "overlap"
        )
        for connection, run in zip((one, two), runs, strict=True):
            finish_run(connection, run["id"], "drained")
        open_gate(keeper)
        first.result()
    assert statuses(db, "Lead") == {"Expired": 5}
    assert_consistent(db)


@pytest.mark.requirement("B1")
def test_two_starts_of_one_driver_at_the_same_moment_make_one_run(db: Database) -> None:
    first = db.connect("crm_runner", autocommit=False)
    run = start_run(first, BOOKINGS, driver="pg_cron")
    late = start_run(db.connect("crm_runner"), BOOKINGS, driver="pg_cron")
    first.commit()
    assert (run["status"], late["status"], late["reason"]) == ("running", "skipped", "overlap")


@pytest.mark.requirement("B1", "B3")
def test_ticks_do_not_queue_up_behind_one_that_waits_for_a_table_somebody_is_altering(db: Database) -> None:
    add_bookings(db, 3)
    with db.connect(autocommit=False) as other:
        other.execute("lock table crm.bookings in access exclusive mode")
        first = db.background(call(BOOKINGS), **CRON)
        db.wait_for_lock(first.pid)
        for _ in range(2):
            db.background(call(BOOKINGS), **CRON).result(timeout=10)
        assert db.rows("select status, reason from expiration.run") == [("skipped", "overlap")] * 2
    first.result()
    assert db.rows("select expired from expiration.run where status = 'completed'") == [(3,)]


@pytest.mark.requirement("B1")
def test_a_call_that_could_not_even_record_its_failure_is_abandoned_though_its_session_lives_on(
    db: Database,
) -> None:
    add_leads(db, 3)
    cron = db.connect(**CRON)
    add_trigger(db, "crm.leads", "raise sqlstate '58030';", at="before update", name="broken_disk")
    add_trigger(db, "expiration.run", "raise sqlstate '53100';", at="before update", name="full_disk")
    with refused("53100"):
        run_job(cron, LEADS)
    drop_trigger(db, "broken_disk")
    drop_trigger(db, "full_disk")
    assert db.rows("select status from expiration.run") == [("running",)]
    assert db.value("select running from expiration.status where job = %s", (LEADS,)) == 0
    assert run_job(db.connect(**CRON), LEADS)["expired"] == 3
    assert db.rows("select status, expired from expiration.run order by started_at") == [
        ("abandoned", 0),
        ("completed", 3),
    ]
    assert cron.info.transaction_status.name == "IDLE"


@pytest.mark.requirement("B1")
@pytest.mark.parametrize("job", JOBS)
def test_a_paused_job_is_skipped_whoever_drives_it(db: Database, job: str) -> None:
    add_items(db, "Lead" if job == LEADS else "Reserve", 3)
    db.connect("crm_operator").execute("select expiration.pause(%s, 'stock-taking')", (job,))
    runs = [
        run_job(db, job),
        run_job(db.connect(**CRON), job),
        drive(db.connect("crm_runner"), job, driver="pyrunner"),
    ]
    for run in runs:
        assert (run["status"], run["reason"], run["expired"]) == ("skipped", "paused", 0)
        assert run["finished_at"] is not None
        assert "stock-taking" in run["error"]
    assert events(db) == []
    db.connect("crm_operator").execute("select expiration.resume(%s)", (job,))
    assert run_job(db, job)["expired"] == 3


@pytest.mark.requirement("L5", "L22", "B17")
@pytest.mark.parametrize("phase", ["Lead", "Booking"])
@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_stop_between_batches_keeps_what_was_committed_and_takes_no_further_batch(
    db: Database, phase: str, how: str
) -> None:
    job = JOB_OF[phase]
    ids = add_items(db, phase, 30)
    set_job(db, job, batch_size=10, max_batches_per_cycle=10)
    operator = db.connect("crm_operator")
    with gate(db, phase, ids[12]) as keeper:
        driver = db.background(call(job))
        db.wait_for_lock(driver.pid)
        # asked for in the middle of the second batch, which is done whole
        operator.execute(
            "select expiration.stop(%s)" if how == "stop" else "select expiration.pause(%s)", (job,)
        )
        open_gate(keeper)
        driver.result()
    run = last_run(db, job)
    assert (run["status"], run["reason"]) == ("stopped", "stop requested" if how == "stop" else "paused")
    assert (run["expired"], run["batches"]) == (20, 2)
    assert statuses(db, phase, ids[:20]) == {EXPIRED[phase]: 20}
    assert_consistent(db)
    if how == "pause":
        assert run_job(db, job)["status"] == "skipped"
        operator.execute("select expiration.resume(%s)", (job,))
    # a stop is for the runs at work: the next tick runs again
    assert run_job(db, job)["expired"] == 10
    assert_consistent(db)


@pytest.mark.requirement("L5")
def test_a_stop_that_comes_before_the_first_batch_lets_none_through(db: Database) -> None:
    add_leads(db, 3)
    driver, operator = db.connect("crm_runner"), db.connect("crm_operator")
    run = start_run(driver, LEADS)
    assert operator.execute("select id, stop_requested_by from expiration.stop(%s)", (LEADS,)).fetchall() == [
        (run["id"], operator.info.user)
    ]
    report = run_batch(driver, run["id"])
    assert (report["state"], report["reason"]) == ("done", "stop requested")
    assert finish_run(driver, run["id"], report["reason"])["status"] == "stopped"
    assert statuses(db, "Lead") == {"Active": 3}


@pytest.mark.requirement("B3")
def test_a_cycle_out_of_time_starts_no_further_batch_and_is_not_capped_by_max_batches(db: Database) -> None:
    add_leads(db, 20)
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS, batch_size=5)
    assert run_batch(driver, run["id"])["expired"] == 5
    db.rows("update expiration.run set started_at = started_at - max_duration")
    report = run_batch(driver, run["id"])
    assert (report["state"], report["reason"]) == ("done", "out of time")
    ended = finish_run(driver, run["id"], report["reason"])
    assert (ended["status"], ended["expired"]) == ("capped", 5)
    assert db.value("select result ->> 'CappedByMaxBatches' from expiration.history") == "false"
    set_job(db, LEADS, max_duration="1 microsecond")
    run = run_job(db, LEADS)
    assert (run["status"], run["reason"], run["expired"], run["batches"]) == ("capped", "out of time", 0, 0)
    set_job(db, LEADS, max_duration="1 hour")
    assert run_job(db, LEADS)["expired"] == 15


# ------------------------------------------------------------------------------------------- drivers that end


@pytest.mark.requirement("L5", "L22", "B17")
@pytest.mark.parametrize("phase", ["Lead", "Reserve", "Booking"])
def test_a_cycle_whose_backend_is_terminated_inside_a_batch_loses_that_batch_and_nothing_else(
    db: Database, phase: str
) -> None:
    job = JOB_OF[phase]
    ids = add_items(db, phase, 30)
    set_job(db, job, batch_size=10, max_batches_per_cycle=10)
    with gate(db, phase, ids[15]):
        driver = db.background(call(job))
        db.wait_for_lock(driver.pid)
        db.terminate(driver.pid)
        with pytest.raises(psycopg.OperationalError):
            driver.result()
    assert statuses(db, phase, ids[:10]) == {EXPIRED[phase]: 10}
    assert len(events(db)) == 10
    dead = last_run(db, job)
    assert dead["status"] == "running"
    assert db.value("select running from expiration.status where job = %s", (job,)) == 0
    run = run_job(db, job)
    assert (run["status"], run["expired"]) == ("completed", 20)
    dead = run_of(db, dead["id"])
    assert (dead["status"], dead["reason"], dead["expired"], dead["batches"]) == (
        "abandoned",
        "backend gone",
        10,
        1,
    )
    # it ended when it last did something
    assert dead["finished_at"] == db.value(
        "select max(finished_at) from expiration.batch where run_id = %s", (dead["id"],)
    )
    assert failed_items(db) == {}
    assert_consistent(db)


@pytest.mark.requirement("L5", "B17")
@pytest.mark.parametrize("when", ["before_the_first_batch", "between_batches", "inside_a_batch"])
def test_a_driver_that_goes_batch_by_batch_and_dies_leaves_an_abandoned_run(db: Database, when: str) -> None:
    add_leads(db, 20)
    driver = db.connect("crm_runner", autocommit=False)
    run = start_run(driver, LEADS, driver="pyrunner", batch_size=5)
    driver.commit()
    done = 0
    if when != "before_the_first_batch":
        assert run_batch(driver, run["id"])["expired"] == 5
        driver.commit()
        done = 5
    if when == "inside_a_batch":
        run_batch(driver, run["id"])
    # as long as it is connected nobody else may take its place
    assert start_run(db.connect("crm_runner"), LEADS, driver="pyrunner")["reason"] == "overlap"
    db.terminate(driver.info.backend_pid)
    assert len(events(db)) == done
    after = drive(db.connect("crm_runner"), LEADS, driver="pyrunner")
    assert (after["status"], after["expired"]) == ("completed", 20 - done)
    dead = run_of(db, run["id"])
    assert (dead["status"], dead["expired"], dead["sqlstate"]) == ("abandoned", done, None)
    assert str(driver.info.backend_pid) in dead["error"]
    with refused("XP007", str(run["id"]), "abandoned"):
        run_batch(db.connect("crm_runner"), run["id"])
    assert_consistent(db)


@pytest.mark.requirement("B1")
def test_upkeep_marks_abandoned_runs_too_and_leaves_those_at_work_alone(db: Database) -> None:
    working, dead = db.connect("crm_runner"), db.connect("crm_runner")
    alive = start_run(working, LEADS)
    runs = [start_run(dead, LEADS), start_run(dead, BOOKINGS)]
    db.terminate(dead.info.backend_pid)
    db.rows("call expiration.run_upkeep()")
    assert [run_of(db, run["id"])["status"] for run in (*runs, alive)] == [
        "abandoned",
        "abandoned",
        "running",
    ]


@pytest.mark.requirement("B1")
def test_a_session_that_goes_on_to_another_run_has_abandoned_the_one_before(db: Database) -> None:
    driver = db.connect("crm_runner")
    first = start_run(driver, LEADS, driver="pyrunner")
    other_job = start_run(driver, BOOKINGS, driver="pyrunner")
    second = start_run(driver, LEADS, driver="pyrunner")
    assert [run_of(db, run["id"])["status"] for run in (first, second, other_job)] == [
        "abandoned",
        "running",
        "running",
    ]


@pytest.mark.requirement("B1")
def test_a_run_behind_a_pooler_is_abandoned_after_a_long_silence_only(db: Database) -> None:
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS, driver="pyrunner", pooled=True)
    db.terminate(driver.info.backend_pid)
    other = db.connect("crm_runner")
    assert start_run(other, LEADS, driver="pyrunner", pooled=True)["reason"] == "overlap"
    db.rows("update expiration.run set started_at = now() - interval '9 minutes' where id = %s", (run["id"],))
    assert start_run(other, LEADS, driver="pyrunner", pooled=True)["reason"] == "overlap"
    # any backend may do its batches
    assert run_batch(other, run["id"])["state"] == "done"
    db.rows(
        "update expiration.run set started_at = now() - interval '11 minutes' where id = %s", (run["id"],)
    )
    assert start_run(other, LEADS, driver="pyrunner", pooled=True)["status"] == "running"
    assert run_of(db, run["id"])["status"] == "abandoned"


@pytest.mark.requirement("L5", "L22", "B17")
@pytest.mark.parametrize("how", ["cancelled", "statement_timeout"])
@pytest.mark.parametrize("phase", ["Lead", "Booking"])
def test_a_cancelled_cycle_keeps_what_it_had_committed_and_is_failed_with_57014(
    db: Database, how: str, phase: str
) -> None:
    job = JOB_OF[phase]
    ids = add_items(db, phase, 30)
    set_job(db, job, batch_size=10, max_batches_per_cycle=10)
    options: dict[str, Any] = {"options": "-c statement_timeout=1500ms"} if how == "statement_timeout" else {}
    with gate(db, phase, ids[15]):
        driver = db.background(call(job), **options)
        db.wait_for_lock(driver.pid)
        if how == "cancelled":
            db.rows("select pg_cancel_backend(%s)", (driver.pid,))
        with refused("57014"):
            driver.result()
    run = last_run(db, job)
    assert (run["status"], run["reason"], run["sqlstate"], run["expired"]) == ("failed", "error", "57014", 10)
    assert run["finished_at"] is not None
    assert statuses(db, phase, ids[:10]) == {EXPIRED[phase]: 10}
    assert failed_items(db) == {}
    assert_consistent(db)
    assert run_job(db, job)["expired"] == 20
    assert_consistent(db)


@pytest.mark.requirement("L5")
def test_a_cycle_that_is_cancelled_while_it_waits_to_try_again_is_failed_too(db: Database) -> None:
    add_leads(db, 3)
    set_job(db, LEADS, max_transient_retries=100)
    db.rows("alter table expiration.job drop constraint job_transient_retries_is_sane")
    with db.connect(autocommit=False) as other:
        other.execute("lock table crm.audit_log in access exclusive mode")
        driver = db.background(call(), options="-c lock_timeout=1ms")
        # the pauses grow: by now nearly all of its time is pause
        db.wait_until(
            "select (select max(retries) from expiration.run) >= 5 and wait_event = 'PgSleep' from"
            " pg_stat_activity where pid = %s",
            (driver.pid,),
        )
        db.rows("select pg_cancel_backend(%s)", (driver.pid,))
        with refused("57014"):
            driver.result()
    run = last_run(db, LEADS)
    assert (run["status"], run["sqlstate"], run["expired"]) == ("failed", "57014", 0)


@pytest.mark.requirement("L12")
def test_a_failed_cycle_raises_the_sqlstate_it_has_put_on_record(db: Database) -> None:
    add_leads(db, 1)
    db.rows("alter table crm.audit_log rename to audit_moved")
    with refused("42P01", "crm.audit_log") as caught:
        run_job(db, LEADS)
    run = last_run(db, LEADS)
    assert (run["status"], run["sqlstate"], run["error"]) == (
        "failed",
        "42P01",
        caught.value.diag.message_primary,
    )
    assert str(run["id"]) in (caught.value.diag.message_detail or "")
    assert db.rows(
        "select level, event from expiration.log_event where run_id = %s order by at, ordinal", (run["id"],)
    ) == [
        ("info", "job.started"),
        ("error", "job.failed"),
    ]


@pytest.mark.requirement("L12")
def test_a_driver_that_reports_a_failure_is_told_whether_to_try_again(db: Database) -> None:
    driver = db.connect("crm_runner")
    set_job(db, LEADS, max_transient_retries=2)
    run = start_run(driver, LEADS)
    ask = "select retry, delay from expiration.batch_failed(%s, %s, 'message')"
    before = timedelta(0)
    for sqlstate in ("40P01", "55P03"):
        (answer,) = driver.execute(ask, (run["id"], sqlstate)).fetchall()
        assert answer[0] is True
        assert timedelta(0) < answer[1] < timedelta(seconds=1)
        assert answer[1] >= before / 3
        before = answer[1]
    assert driver.execute(ask, (run["id"], "40001")).fetchall() == [(False, timedelta(0))]
    ended = run_of(db, run["id"])
    assert (ended["status"], ended["sqlstate"], ended["error"], ended["retries"]) == (
        "failed",
        "40001",
        "message",
        2,
    )
    other = start_run(driver, LEADS)
    assert driver.execute(ask, (other["id"], "42501")).fetchall() == [(False, timedelta(0))]
    assert run_of(db, other["id"])["sqlstate"] == "42501"


# ----------------------------------------------------------------------------------------------- transactions


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_cycle_runs_whatever_the_databases_default_isolation(db: Database, level: str) -> None:
    db.rows(
        sql.SQL("alter database {} set default_transaction_isolation = {}").format(
            sql.Identifier(db.name), sql.Literal(level)
        )
    )
    driver = db.connect("crm_runner")
    assert driver.execute("show transaction_isolation").fetchone() == (level,)
    set_job(db, LEADS, batch_size=10)
    add_leads(db, 25)
    add_bookings(db, 3)
    for job, expired in ((LEADS, 25), (BOOKINGS, 3)):
        driver.execute("call expiration.run_job(%s)", (job,))
        assert last_run(db, job)["expired"] == expired
    driver.execute("call expiration.run_upkeep()")
    assert_consistent(db)


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("call_it", ["expire_batch", "run_batch"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_batch_in_another_isolation_than_read_committed_is_refused(
    db: Database, level: str, call_it: str
) -> None:
    add_leads(db, 3)
    driver = db.connect("crm_runner", autocommit=False)
    run = start_run(driver, LEADS)
    driver.commit()
    driver.execute(
        sql.SQL("set session characteristics as transaction isolation level {}").format(sql.SQL(level))
    )
    driver.commit()
    with nothing_changes(db), refused("XP008", level):
        if call_it == "run_batch":
            run_batch(driver, run["id"])
        else:
            expire_batch(driver, "Lead")


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(
    "procedure", ["run_job('lead-expiration')", "run_job('booking-expiration')", "run_upkeep()"]
)
def test_a_procedure_inside_a_transaction_block_is_refused_and_changes_nothing(
    db: Database, procedure: str
) -> None:
    add_leads(db, 3)
    driver = db.connect("crm_runner", autocommit=False)
    with nothing_changes(db), refused("2D000"):
        driver.execute(f"call expiration.{procedure}".encode())
    driver.rollback()
    # the same as a job of pg_cron with two commands in it
    with nothing_changes(db), refused("2D000"):
        db.connect("crm_runner").execute(f"set work_mem = '1MB'; call expiration.{procedure}".encode())
    # in a DO of its own it may commit
    db.connect("crm_runner").execute(f"do $$ begin call expiration.{procedure}; end $$".encode())


@pytest.mark.requirement("L2", "X2")
def test_a_cycle_of_a_dba_commits_after_every_batch(db: Database) -> None:
    ids = add_leads(db, 30)
    set_job(db, LEADS, batch_size=10)
    with gate(db, "Lead", ids[25]) as keeper:
        driver = db.background(call())
        db.wait_for_lock(driver.pid)
        assert statuses(db, "Lead", ids[:20]) == {"Expired": 20}
        # and holds no lock on them any more
        db.rows("select from crm.leads where id = any(%s) for update nowait", (ids[:20],))
        assert db.value("select count(*) from outbox.event") == 20
        open_gate(keeper)
        driver.result()
    assert_consistent(db)


# ---------------------------------------------------------------------------------------- the protocol itself


@pytest.mark.requirement("L13", "B11")
def test_a_run_that_is_over_stays_as_it_is(db: Database) -> None:
    add_leads(db, 3)
    driver = db.connect("crm_runner")
    run = drive(driver, LEADS)
    with nothing_changes(db):
        assert finish_run(driver, run["id"], "stop requested") == run
        with refused("XP007", str(run["id"]), "completed"):
            run_batch(driver, run["id"])
    assert driver.execute(
        "select retry from expiration.batch_failed(%s, '40P01', '')", (run["id"],)
    ).fetchone() == (False,)
    assert run_of(db, run["id"]) == run


@pytest.mark.requirement("L13")
@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("drained", "completed"),
        ("locked", "completed"),
        ("capped", "capped"),
        ("out of time", "capped"),
        ("stop requested", "stopped"),
        ("paused", "stopped"),
    ],
)
def test_each_reason_that_run_batch_gives_ends_a_run_in_its_own_status(
    db: Database, reason: str, status: str
) -> None:
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS)
    assert finish_run(driver, run["id"], reason)["status"] == status


def test_a_phase_whose_last_batch_was_full_is_looked_at_once_more_and_then_left(db: Database) -> None:
    add_bookings(db, 4)
    add_bookings(db, 6, phase="Booking")
    set_job(db, BOOKINGS, batch_size=2, max_batches_per_cycle=100)
    run = drive(db.connect("crm_runner"), BOOKINGS)
    assert (run["status"], run["reason"], run["expired"]) == ("completed", "drained", 10)
    assert db.rows(
        "select phase, step, expired, drained from expiration.batch where run_id = %s order by number",
        (run["id"],),
    ) == [
        ("Reserve", "claim", 2, False),
        ("Reserve", "claim", 2, True),
        ("Booking", "claim", 2, False),
        ("Booking", "claim", 2, False),
        ("Booking", "claim", 2, True),
    ]


@pytest.mark.requirement("L3", "L4", "L7")
def test_a_run_keeps_the_settings_it_was_started_with(db: Database) -> None:
    add_leads(db, 30)
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS, batch_size=4, max_batches_per_cycle=2)
    set_job(db, LEADS, batch_size=30, max_batches_per_cycle=1)
    assert [run_batch(driver, run["id"])["expired"] for _ in range(2)] == [4, 4]
    report = run_batch(driver, run["id"])
    assert (report["state"], report["reason"]) == ("done", "capped")
    ended = finish_run(driver, run["id"], report["reason"])
    assert (ended["batch_size"], ended["max_batches_per_cycle"], ended["expired"]) == (4, 2, 8)


@pytest.mark.requirement("L13", "L16")
def test_a_run_knows_how_much_was_due_before_it(db: Database) -> None:
    add_leads(db, 7)
    add_leads(db, 2, due="-1 day")
    set_job(db, LEADS, batch_size=2, max_batches_per_cycle=2)
    assert [(run_job(db, LEADS)["due_before"]) for _ in range(3)] == [7, 3, 0]


@pytest.mark.requirement("L10")
def test_a_report_names_what_the_batch_expired_and_what_failed(db: Database) -> None:
    ids = add_leads(db, 3)
    db.rows("update crm.leads set version = 2147483647 where id = %s", (ids[1],))
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS)
    report = run_batch(driver, run["id"])
    assert (report["state"], report["number"], report["phase"], report["step"]) == (
        "more",
        1,
        "Lead",
        "claim",
    )
    assert (report["claimed"], report["expired"], report["failed"], report["skipped_locked"]) == (3, 2, 1, 0)
    assert sorted(report["expired_ids"]) == sorted([ids[0], ids[2]])
    assert report["failures"] == [{"id": str(ids[1]), "sqlstate": "22003", "message": "integer out of range"}]
    assert report["elapsed_ms"] > 0
    with refused("XP006", str(UUID(int=5))):
        run_batch(driver, UUID(int=5))


@pytest.mark.requirement("L2")
def test_a_skipped_or_refused_start_leaves_the_items_and_their_locks_alone(db: Database) -> None:
    add_leads(db, 3)
    db.rows("select expiration.pause(%s)", (LEADS,))
    before = contents(db)
    run_job(db, LEADS)
    assert {name for name, rows in contents(db).items() if rows != before[name]} == {"expiration.run"}


def test_a_bare_batch_under_an_id_of_the_callers_own_is_on_the_books(db: Database) -> None:
    add_leads(db, 3)
    own = UUID(int=7)
    expire_batch(db, "Lead", run_id=own)
    assert run_of(db, own)["driver"] == "sql"
    assert db.value("select expired from expiration.batch_total where phase = 'Lead'") == 3


def test_no_driver_can_pass_itself_off_as_a_bare_batch(db: Database) -> None:
    with refused("XP014", "driver"), nothing_changes(db):
        start_run(db.observer, LEADS, driver="sql")


def test_a_call_whose_session_tells_no_activity_is_not_taken_for_dead(db: Database) -> None:
    ids = add_leads(db, 3)
    with db.connect(autocommit=False) as other:
        other.execute("lock table expiration.failed_item in access exclusive mode")
        silent = db.background(
            lambda connection: run_job(connection, LEADS), options="-c track_activities=off"
        )
        db.wait_until("select true from expiration.run where status = 'running'")
        assert db.rows("select * from expiration.reap_runs()") == []
        other.rollback()
    assert silent.result()["expired"] == len(ids)

"""The control plane: pause, resume, stop, preview, failed items, status, history, totals and purge."""

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.domain import (
    BOOKINGS,
    EXPIRED,
    JOB_OF,
    JOBS,
    LEADS,
    PHASES,
    add_bookings,
    add_items,
    add_leads,
    add_poison,
    assert_consistent,
    contents,
    drive,
    events,
    expire_batch,
    failed_items,
    finish_run,
    gate,
    held,
    item,
    last_run,
    nothing_changes,
    open_gate,
    preview,
    refused,
    run_batch,
    run_job,
    run_of,
    set_job,
    start_run,
    statuses,
    update_items,
)
from tests.servers import Connection, Database

ALL_PHASES = ("Lead", *PHASES)


def status_of(db: Database, job: str) -> dict[str, Any]:
    cursor = db.observer.execute("select * from expiration.status where job = %s", (job,))
    assert cursor.description
    row = cursor.fetchone()
    assert row
    return dict(zip((column.name for column in cursor.description), row, strict=True))


# ---------------------------------------------------------------------------------------- pause, resume, stop


@pytest.mark.requirement("B1")
def test_a_pause_says_who_since_when_and_why_and_a_second_one_changes_neither(db: Database) -> None:
    operator, other = db.connect("crm_operator"), db.connect()
    query = "select paused_at, paused_by, paused_reason from expiration.pause(%s, %s)"
    (first,) = operator.execute(query, (LEADS, "stock-taking")).fetchall()
    assert first[1:] == (operator.info.user, "stock-taking")
    (second,) = other.execute(query, (LEADS, None)).fetchall()
    assert second == first
    (third,) = other.execute(query, (LEADS, "and a move")).fetchall()
    assert third == (*first[:2], "and a move")
    status = status_of(db, LEADS)
    assert status["paused"] is True
    assert operator.info.user in status["why_not"]
    assert "and a move" in status["why_not"]
    assert status_of(db, BOOKINGS)["paused"] is False
    for _ in range(2):
        operator.execute("select expiration.resume(%s)", (LEADS,))
        assert db.rows(
            "select paused_at, paused_by, paused_reason from expiration.job where name = %s", (LEADS,)
        ) == [(None,) * 3]


@pytest.mark.requirement("L5")
def test_a_stop_asks_the_runs_of_that_job_alone_and_returns_them(db: Database) -> None:
    driver, other = db.connect("crm_runner"), db.connect("crm_runner")
    runs = [start_run(driver, LEADS), start_run(other, LEADS)]
    start_run(driver, BOOKINGS)
    operator = db.connect("crm_operator")
    asked = operator.execute("select id from expiration.stop(%s)", (LEADS,)).fetchall()
    assert {row[0] for row in asked} == {run["id"] for run in runs}
    before = db.rows("select id, stop_requested_at from expiration.run order by id")
    # asking again moves nothing
    db.connect().execute("select expiration.stop(%s)", (LEADS,))
    assert db.rows("select id, stop_requested_at from expiration.run order by id") == before
    assert db.value("select count(*) from expiration.run where stop_requested_at is null") == 1
    assert operator.execute("select count(*) from expiration.stop(%s)", (BOOKINGS,)).fetchone() == (1,)


# ---------------------------------------------------------------------------------------------------- preview

# due items a phase, poison a phase, batch size, batches a cycle, retries a cycle
SHAPES = {
    "nothing_due": (0, 0, 10, 2, 10),
    "less_than_a_batch": (7, 0, 10, 2, 10),
    "exactly_the_cap": (20, 0, 10, 2, 10),
    "beyond_the_cap": (53, 0, 10, 2, 10),
    "poison_and_room": (7, 5, 10, 2, 10),
    "poison_beyond_the_retries": (7, 25, 10, 2, 10),
    "poison_and_no_retries": (7, 5, 10, 2, 0),
    "poison_behind_a_full_cycle": (53, 5, 10, 2, 10),
    "retries_that_do_not_fit_the_batch": (15, 25, 10, 2, 7),
    "single_rows": (5, 3, 1, 3, 2),
}


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("job", JOBS)
def test_a_preview_is_exactly_what_the_next_cycles_take_and_changes_nothing(
    db: Database, job: str, shape: str
) -> None:
    due, poison, batch_size, batches, retries = SHAPES[shape]
    phases = ("Lead",) if job == LEADS else PHASES
    for phase in phases:
        add_poison(db, phase, poison)
    if poison:
        run_job(db, job)
    for phase in phases:
        add_items(db, phase, due)
        add_items(db, phase, 3, due="-1 hour")
        # in no order
        update_items(db, phase, [], "updated_at = now()")
    set_job(db, job, batch_size=batch_size, max_batches_per_cycle=batches, retry_failures_per_cycle=retries)
    for _ in range(3):
        with nothing_changes(db):
            foreseen = preview(db.connect("crm_monitor"), job, cycles=3)
        first = [row for row in foreseen if row["cycle"] == 1]
        assert {row["item_id"] for row in preview(db, job)} == {row["item_id"] for row in first}
        assert len({row["item_id"] for row in foreseen}) == len(foreseen)
        before = {row[0]: row[1] for row in db.rows("select item_id, attempts from expiration.failed_item")}
        seq = db.value("select coalesce(max(seq), 0) from outbox.event")
        run = run_job(db, job)
        after: dict[UUID, int] = dict(db.rows("select item_id, attempts from expiration.failed_item"))
        tried = {item_id for item_id, attempts in after.items() if attempts != before.get(item_id)}
        expired = [event["aggregate_id"] for event in events(db) if event["seq"] > seq]
        assert [row["item_id"] for row in first if row["step"] == "claim"] == expired
        assert {row["item_id"] for row in first if row["step"] == "retry"} == tried
        taken = db.rows(
            "select phase, number from expiration.batch where run_id = %s and step = 'claim'", (run["id"],)
        )
        for phase in phases:
            rows = [row for row in first if row["phase"] == phase and row["step"] == "claim"]
            assert {row["batch"] for row in rows} == set(
                range(1, 1 + sum(1 for name, _ in taken if name == phase))
            )


@pytest.mark.requirement("X2")
def test_a_preview_says_in_which_cycle_and_batch_each_item_would_be_reached_and_when(db: Database) -> None:
    reserves = add_bookings(db, 25)
    bookings = add_bookings(db, 3, phase="Booking")
    set_job(db, BOOKINGS, batch_size=5, max_batches_per_cycle=2)
    rows = preview(db, BOOKINGS, cycles=2)
    assert [(row["phase"], row["cycle"], row["batch"], row["item_id"]) for row in rows] == [
        *(("Reserve", 1, 1 + n // 5, reserves[n]) for n in range(10)),
        *(("Booking", 1, 1, booking_id) for booking_id in bookings),
        *(("Reserve", 2, 1 + (n - 10) // 5, reserves[n]) for n in range(10, 20)),
    ]
    first, second = (
        {row["expected_at"] for row in rows if row["cycle"] == 1},
        {row["expected_at"] for row in rows if row["cycle"] == 2},
    )
    assert len(first) == len(second) == 1
    assert second.pop() - first.pop() == timedelta(minutes=1)
    started = run_job(db, BOOKINGS)["started_at"]
    assert preview(db, BOOKINGS)[0]["expected_at"] == started + timedelta(minutes=1)
    row = preview(db, BOOKINGS)[0]
    assert (row["tenant_id"], row["deadline"]) == tuple(
        item(db, "Reserve", row["item_id"])[name] for name in ("tenant_id", "reserve_expires_at")
    )


@pytest.mark.requirement("X2")
def test_a_preview_may_look_ahead_and_back(db: Database) -> None:
    (now,) = add_leads(db, due="1 minute")
    (soon,) = add_leads(db, due="-1 hour")
    (old,) = add_leads(db, due="2 days")
    assert {row["item_id"] for row in preview(db, LEADS)} == {old, now}
    assert {
        row["item_id"] for row in preview(db, LEADS, as_of=db.value("select now() + interval '1 day'"))
    } == {old, now, soon}
    assert {
        row["item_id"] for row in preview(db, LEADS, as_of=db.value("select now() - interval '1 day'"))
    } == {old}


# ----------------------------------------------------------------------------------------------- failed items


@pytest.mark.requirement("L14", "B10")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_the_view_of_failed_items_says_what_becomes_of_each(db: Database, phase: str) -> None:
    waiting, changed, freed, gone = add_poison(db, phase, 4)
    job = JOB_OF[phase]
    run = run_job(db, job)
    update_items(db, phase, [changed], "updated_at = now()")
    update_items(db, phase, [gone], "status = 'Archived'" if phase == "Lead" else "status = 'Cancelled'")
    operator = db.connect("crm_operator")
    assert operator.execute(
        "select item_id from expiration.retry_failed(%s, %s)", (job, freed)
    ).fetchall() == [(freed,)]
    assert dict(
        db.connect("crm_monitor").execute("select item_id, state from expiration.failed").fetchall()
    ) == {
        waiting: "waiting",
        changed: "freed for the next cycle",
        freed: "freed for the next cycle",
        gone: "no longer due",
    }
    (row,) = db.rows(
        "select job, phase, attempts, sqlstate, message, run_id, tenant_id, deadline from"
        " expiration.failed where item_id = %s",
        (waiting,),
    )
    deadline = {"Lead": "expires_at", "Reserve": "reserve_expires_at", "Booking": "booking_expires_at"}[phase]
    row_of = item(db, phase, waiting)
    assert row == (
        job,
        phase,
        1,
        "22003",
        "integer out of range",
        run["id"],
        row_of["tenant_id"],
        row_of[deadline],
    )


@pytest.mark.requirement("L14", "B10")
def test_all_failed_items_of_a_job_can_be_freed_at_once_and_go_with_the_healthy(db: Database) -> None:
    add_poison(db, "Lead", 30)
    add_poison(db, "Reserve", 1)
    db.rows("alter table crm.leads add constraint fault check (version < 2000000000) not valid")
    for job in JOBS:
        run_job(db, job)
    set_job(db, LEADS, retry_failures_per_cycle=0)
    operator = db.connect("crm_operator")
    assert operator.execute("select count(*) from expiration.retry_failed(%s)", (LEADS,)).fetchone() == (30,)
    db.rows("alter table crm.leads drop constraint fault")
    # they fail again, and are counted on
    assert run_job(db, LEADS)["failed"] == 30
    assert db.rows(
        "select job, phase, min(attempts), max(attempts) from expiration.failed_item group by 1, 2"
        " order by 1 desc"
    ) == [
        (LEADS, "Lead", 2, 2),
        (BOOKINGS, "Reserve", 1, 1),
    ]
    assert run_job(db, LEADS)["failed"] == 0


@pytest.mark.requirement("L14")
def test_freeing_what_is_not_on_the_list_is_refused(db: Database) -> None:
    with nothing_changes(db), refused("XP013", str(UUID(int=3)), LEADS):
        db.rows("select * from expiration.retry_failed(%s, %s)", (LEADS, UUID(int=3)))
    assert db.rows("select * from expiration.retry_failed(%s)", (LEADS,)) == []


# -------------------------------------------------------------------------------------------- status, history


@pytest.mark.requirement("L16", "L19", "B15")
@pytest.mark.parametrize("job", JOBS)
def test_status_tells_what_is_due_since_when_and_what_the_last_runs_did(db: Database, job: str) -> None:
    phase = "Lead" if job == LEADS else "Booking"
    status = status_of(db, job)
    assert (status["due"], status["oldest_due_at"], status["oldest_due_age"], status["failed_items"]) == (
        0,
        None,
        None,
        0,
    )
    assert (status["last_run_at"], status["last_success_at"]) == (None, None)
    assert "never" in status["why_not"]
    ids = [*add_poison(db, phase, 2, due="3 days"), *add_items(db, phase, 5)]
    deadline = {"Lead": "expires_at", "Booking": "booking_expires_at"}[phase]
    status = status_of(db, job)
    assert (status["due"], status["oldest_due_at"]) == (7, item(db, phase, ids[0])[deadline])
    assert abs(status["oldest_due_age"] - timedelta(days=3)) < timedelta(minutes=1)
    run = run_job(db, job)
    status = status_of(db, job)
    assert (status["due"], status["failed_items"], status["running"], status["why_not"]) == (2, 2, 0, None)
    assert (status["last_run_at"], status["last_run_status"], status["last_run_reason"]) == (
        run["started_at"], "completed", "drained",
    )  # fmt: skip
    assert status["last_success_at"] == run["finished_at"]
    assert 0 < status["seconds_since_last_success"] < 60


@pytest.mark.requirement("L19", "B15")
def test_status_tells_why_a_job_does_not_run(db: Database) -> None:
    add_leads(db, 1)
    good = run_job(db, LEADS)
    add_leads(db, 1)
    db.rows("alter table crm.audit_log rename to audit_moved")
    with refused("42P01"):
        run_job(db, LEADS)
    status = status_of(db, LEADS)
    assert status["last_run_status"] == "failed"
    assert "42P01" in status["why_not"]
    # a failure, a skip and a batch by hand are no success
    assert status["last_success_at"] == good["finished_at"]
    db.rows("alter table crm.audit_moved rename to audit_log")
    expire_batch(db, "Lead")
    assert status_of(db, LEADS)["last_success_at"] == good["finished_at"]
    db.rows(
        "update expiration.run set started_at = started_at - interval '3 hours', finished_at ="
        " finished_at - interval '3 hours'"
    )
    db.rows("update expiration.run set status = 'completed', sqlstate = null where status = 'failed'")
    assert "no driver has called it since" in status_of(db, LEADS)["why_not"]


@pytest.mark.requirement("L19", "B15")
def test_status_shows_the_runs_at_work_and_none_that_are_gone(db: Database) -> None:
    ids = add_leads(db, 3)
    with gate(db, "Lead", ids[0]) as keeper:
        driver = db.background(lambda connection: connection.execute("call expiration.run_job(%s)", (LEADS,)))
        db.wait_for_lock(driver.pid)
        status = status_of(db, LEADS)
        assert (status["running"], status["why_not"]) == (1, None)
        assert status["running_since"] == last_run(db, LEADS)["started_at"]
        open_gate(keeper)
        driver.result()
    assert status_of(db, LEADS)["running"] == 0
    other = db.connect("crm_runner")
    start_run(other, LEADS)
    assert status_of(db, LEADS)["running"] == 1
    db.terminate(other.info.backend_pid)
    assert status_of(db, LEADS)["running"] == 0


@pytest.mark.requirement("L13", "L15")
def test_a_batch_called_by_hand_is_in_the_history_and_sends_no_job_completed(db: Database) -> None:
    """Whoever counts job.completed, as a dead man's switch does, must not take it for a cycle."""
    add_leads(db, 3)
    expire_batch(db, "Lead")
    assert db.rows("select driver, status, expired from expiration.history") == [("sql", "completed", 3)]
    assert db.rows("select event from expiration.log_event") == [("batch.processed",)]


# ------------------------------------------------------------------------------------------- totals and purge

TOTALS = "select phase, batches, expired, failed, skipped_locked from expiration.batch_total order by phase"
RUNS = "select job, status, runs, round(seconds::numeric, 3) from expiration.run_total order by 1, 2"
LATENESS = "select job, phase, le, items from expiration.lateness_histogram order by 1, 2, 3"
DURATIONS = "select job, le, runs from expiration.duration_histogram order by 1, 2"
AGE = (
    "update expiration.run set started_at = started_at - interval '40 days',"
    " finished_at = finished_at - interval '40 days' where status <> 'running'"
)


@pytest.mark.requirement("L13", "B11")
def test_totals_count_every_batch_of_every_driver_and_no_purge_moves_them(db: Database) -> None:
    assert db.rows(TOTALS) == [(phase, 0, 0, 0, 0) for phase in ("Booking", "Lead", "Reserve")]
    for phase in ALL_PHASES:
        add_poison(db, phase, 2)
        ids = add_items(db, phase, 10)
        with held(db, phase, ids[:1]):
            expire_batch(db, phase, batch_size=5)
    for job in JOBS:
        run_job(db, job)
        drive(db.connect("crm_runner"), job)
    expected = [(phase, 5, 10, 6, 1) for phase in ("Booking", "Lead", "Reserve")]
    # by hand: 2 failed, 3 expired, 1 held; then by CALL 7 expired, 2 retried; then 2 retried
    totals, runs = db.rows(TOTALS), db.rows(RUNS)
    before = totals, runs, db.rows(LATENESS), db.rows(DURATIONS)
    assert [(row[0], row[2], row[3], row[4]) for row in totals] == [(row[0], *row[2:]) for row in expected]
    db.rows(AGE)
    # every start of a run puts what is over into the tallies, so only the very last run waits
    assert db.value("select count(*) from expiration.run where tally_number is null") == 1
    purged = 0
    while (count := db.value("select runs from expiration.purge_history(2)")) > 0:
        purged += count
        assert (db.rows(TOTALS), db.rows(RUNS), db.rows(LATENESS), db.rows(DURATIONS)) == before
    assert db.value("select expiration.tally_runs()") == 1
    assert (db.rows(TOTALS), db.rows(RUNS), db.rows(LATENESS), db.rows(DURATIONS)) == before
    # the last success of each job stays: the dead man's switch counts from it
    assert purged == 5
    assert db.value("select count(*) from expiration.run") == 2
    assert db.value("select count(*) from expiration.status where last_success_at is not null") == 2
    gone = (
        "an event bears the id of its run and the trace of its batch",
        "the histograms count every item and every cycle",
    )
    assert_consistent(db, ignore=gone)


@pytest.mark.requirement("L13")
def test_a_purge_leaves_what_is_younger_than_its_retention_and_what_still_runs(db: Database) -> None:
    working = start_run(db.connect("crm_runner"), LEADS)
    old, young, last = (run_job(db, LEADS) for _ in range(3))
    db.rows(
        "update expiration.run set started_at = started_at - interval '40 days' where id = %s",
        (working["id"],),
    )
    set_job(db, LEADS, history_retention="2 hours")
    for run, age in ((old, "3 hours"), (young, "1 hour")):
        db.rows(
            "update expiration.run set started_at = now() - %s::interval, finished_at = now() -"
            " %s::interval where id = %s",
            (age, age, run["id"]),
        )
    assert db.rows("select runs, batches from expiration.purge_history()") == [(1, 0)]
    assert {row[0] for row in db.rows("select id from expiration.run")} == {
        working["id"],
        young["id"],
        last["id"],
    }


@pytest.mark.requirement("L13", "L2")
def test_totals_only_grow_while_runs_and_purges_go_on_at_once(db: Database) -> None:
    for phase in ALL_PHASES:
        add_items(db, phase, 300)
        add_poison(db, phase, 3)
    for job in JOBS:
        set_job(db, job, batch_size=10, max_batches_per_cycle=5)

    def work(connection: Connection, number: int) -> None:
        if number == 0:
            for _ in range(25):
                connection.execute(AGE)
                connection.execute("select expiration.purge_history()")
        elif number == 1:
            before: list[Any] = []
            for _ in range(100):
                now = connection.execute(
                    "select phase, batches, expired, failed from expiration.batch_total"
                    " union all select status, sum(runs), 0, 0 from expiration.run_total group by 1"
                    " order by 1"
                ).fetchall()
                for name, *counts in before:
                    (later,) = (row[1:] for row in now if row[0] == name)
                    assert all(new >= old for new, old in zip(later, counts, strict=True)), (
                        name,
                        counts,
                        later,
                    )
                before = now
        else:
            for _ in range(8):
                drive(connection, JOBS[number % 2], driver="pyrunner", instance=str(number))

    db.sessions(4, work)
    for job in JOBS:
        while run_job(db, job)["expired"]:
            pass
    db.rows(AGE)
    db.rows("select expiration.purge_history()")
    assert {row[0]: row[2] for row in db.rows(TOTALS)} == dict.fromkeys(ALL_PHASES, 300)
    assert len(events(db)) == 900
    gone = (
        "an event bears the id of its run and the trace of its batch",
        "the histograms count every item and every cycle",
    )
    assert_consistent(db, ignore=gone)
    for phase in ALL_PHASES:
        assert statuses(db, phase)[EXPIRED[phase]] >= 300
    assert len(failed_items(db)) == 9


@pytest.mark.requirement("L7")
def test_settings_are_changed_one_by_one_and_the_rest_stays(db: Database) -> None:
    operator = db.connect("crm_operator")
    before = db.rows("select * from expiration.job where name = %s", (BOOKINGS,))
    set_job(operator, LEADS, batch_size=7)
    set_job(operator, LEADS, period="30 minutes", stale_after="20 seconds")
    assert db.rows(
        "select period, batch_size, max_batches_per_cycle, max_duration, stale_after, updated_by from"
        " expiration.job where name = %s",
        (LEADS,),
    ) == [
        (timedelta(minutes=30), 7, 200, timedelta(minutes=55), timedelta(seconds=20), operator.info.user),
    ]
    assert db.rows("select * from expiration.job where name = %s", (BOOKINGS,)) == before


@pytest.mark.requirement("L5", "L13")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_an_operator_does_between_batches_the_books_stay_exact(db: Database, seed: int) -> None:
    """A seeded walk: batches, stops, pauses, resumes, poison made and mended, items held, runs abandoned."""
    chance = random.Random(seed)  # noqa: S311
    for job in JOBS:
        set_job(db, job, batch_size=4, max_batches_per_cycle=3, retry_failures_per_cycle=3)
    runs: dict[UUID, Connection] = {}
    for _ in range(40):
        job, phase = chance.choice([(LEADS, "Lead"), (BOOKINGS, "Reserve"), (BOOKINGS, "Booking")])
        step = chance.choice(
            [
                "add",
                "poison",
                "mend",
                "start",
                "batch",
                "batch",
                "batch",
                "stop",
                "pause",
                "kill",
                "call",
                "purge",
            ]
        )
        if step == "add":
            add_items(db, phase, chance.randint(1, 9))
        elif step == "poison":
            add_poison(db, phase, chance.randint(1, 3))
        elif step == "mend":
            update_items(db, phase, list(failed_items(db)), "version = 1")
        elif step == "start":
            driver = db.connect("crm_runner")
            run = start_run(driver, job, driver="pyrunner", instance=str(len(runs)))
            if run["status"] == "running":
                runs[run["id"]] = driver
        elif step == "stop":
            db.rows("select expiration.stop(%s)", (job,))
        elif step == "pause":
            db.rows("select expiration.pause(%s)", (job,))
            if chance.random() < 0.8:
                db.rows("select expiration.resume(%s)", (job,))
        elif step == "call":
            run_job(db, job)
        elif step == "purge":
            db.rows("call expiration.run_upkeep()")
        elif runs:
            run_id = chance.choice(list(runs))
            if step == "kill":
                db.terminate(runs.pop(run_id).info.backend_pid)
            elif (report := run_batch(runs[run_id], run_id))["state"] == "done":
                ended = finish_run(runs.pop(run_id), run_id, report["reason"])
                assert ended == run_of(db, run_id)
        assert_consistent(db)
    for connection in runs.values():
        db.terminate(connection.info.backend_pid)
    for job in JOBS:
        db.rows("select expiration.resume(%s)", (job,))
        while run_job(db, job)["expired"]:
            pass
    db.rows("call expiration.run_upkeep()")
    assert db.value("select count(*) from expiration.run where status = 'running'") == 0
    assert db.value("select count(*) from expiration.due_item where deadline < now()") == len(
        failed_items(db)
    )
    assert_consistent(db)


@pytest.mark.requirement("X2")
def test_reading_changes_nothing(db: Database) -> None:
    add_poison(db, "Lead", 2)
    add_leads(db, 3)
    run_job(db, LEADS)
    monitor = db.connect("crm_monitor")
    before = contents(db, locks=True)
    for view in (
        "status",
        "history",
        "failed",
        "log_event",
        "batch_total",
        "run_total",
        "job",
        "run",
        "batch",
        "failed_item",
    ):
        assert monitor.execute(f"select * from expiration.{view}".encode()).fetchall()
    monitor.execute("select * from outbox.partition, outbox.settings")
    assert contents(db, locks=True) == before

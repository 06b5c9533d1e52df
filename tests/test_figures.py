"""Figures in the database: lateness, durations, backlog, age; true at any length of history."""

from datetime import timedelta
from math import inf
from typing import Any, Final

import pytest
from psycopg import sql

from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_items,
    add_leads,
    add_poison,
    assert_consistent,
    drive,
    expire_batch,
    finish_run,
    held,
    last_run,
    refused,
    run_batch,
    run_job,
    start_run,
    update_items,
)
from tests.servers import Database

PHASES: Final = ("Lead", "Reserve", "Booking")


def buckets(db: Database, phase: str) -> dict[float, int]:
    """The histogram of lateness, each bucket by itself, without the empty ones."""
    found, before = {}, 0
    for le, items in db.rows(
        "select le, items from expiration.lateness_histogram where phase = %s order by le", (phase,)
    ):
        if items != before:
            found[le] = items - before
        before = items
    return found


def figures_of(db: Database, job: str) -> dict[str, Any]:
    names = (
        "running", "paused", "last_run_status", "seconds_since_last_success", "backlog", "failed_items",
        "last_success_at", "oldest_failed_at",
    )  # fmt: skip
    query = sql.SQL("select {} from expiration.job_figures where job = %s")
    (row,) = db.rows(query.format(sql.SQL(", ").join(map(sql.Identifier, names))), (job,))
    return dict(zip(names, row, strict=True))


def due_of(db: Database, phase: str) -> tuple[int, float | None]:
    (row,) = db.rows("select due, oldest_due_seconds from expiration.due_figures where phase = %s", (phase,))
    return row


@pytest.mark.requirement("L18", "B14")
@pytest.mark.parametrize(
    ("late", "le"),
    [
        ("1 microsecond", 5),
        ("5 s", 5),
        ("5.000001 s", 15),
        ("90 s", 90),
        ("90.000001 s", 120),
        ("65 min", 3900),
        ("65 min 1 microsecond", 7200),
        ("1 day", 86400),
        ("1 day 1 microsecond", inf),
        ("200 years", inf),
    ],
)
def test_an_item_is_in_the_bucket_of_its_lateness(db: Database, late: str, le: float) -> None:
    as_of = db.value("select now() - interval '1 s'")
    for phase in PHASES:
        ids = add_items(db, phase)
        update_items(
            db,
            phase,
            ids,
            # the deadline lies exactly so far before the cut-off
            f"{DEADLINE[phase]} = '{as_of}'::timestamptz - interval '{late}'",
        )
        expire_batch(db, phase, as_of=as_of)
        assert buckets(db, phase) == {le: 1}
    for phase, seconds in db.rows("select phase, lateness_seconds from expiration.batch_total"):
        expected = db.value(
            "select extract(epoch from %s - (%s - %s::interval))::float8", (as_of, as_of, late)
        )
        assert seconds == pytest.approx(expected, abs=1e-3), phase


DEADLINE: Final = {
    "Lead": "expires_at",
    "Reserve": "status = 'Reserved', reserve_expires_at",
    "Booking": "status = 'Booked', booking_expires_at",
}


@pytest.mark.requirement("L18", "B14", "L14", "B10")
def test_only_what_expired_is_counted_as_late(db: Database) -> None:
    for phase in PHASES:
        add_poison(db, phase, 3, due="3 days")
        ids = add_items(db, phase, 40, due="1 minute")
        with held(db, phase, ids[:2]):
            run_job(db, LEADS if phase == "Lead" else BOOKINGS)
        assert sum(buckets(db, phase).values()) == 38
        assert inf not in buckets(db, phase)
    assert_consistent(db)


@pytest.mark.requirement("L16", "B12")
def test_a_deadline_that_is_infinitely_long_ago_keeps_every_figure_finite(db: Database) -> None:
    db.rows("alter table crm.leads drop constraint leads_times_are_finite")
    db.rows("alter table crm.bookings drop constraint bookings_times_are_finite")
    for phase in PHASES:
        ids = add_items(db, phase, 3, due="10 s")
        update_items(db, phase, ids[:1], f"{DEADLINE[phase]} = '-infinity'")
        due, age = due_of(db, phase)
        assert due == 3
        assert age is not None
        assert 9 <= age < 3600
    for job in JOBS:
        run_job(db, job)
    for phase in PHASES:
        assert buckets(db, phase)[inf] == 1
        assert due_of(db, phase) == (0, None)
    assert all(
        20 <= seconds < 7200 for (seconds,) in db.rows("select lateness_seconds from expiration.batch_total")
    )


@pytest.mark.requirement("L19", "B15")
def test_a_job_that_has_never_run_is_measured_from_its_installation(db: Database) -> None:
    db.rows("update expiration.job set created_at = now() - interval '3 hours'")
    for job in JOBS:
        figures = figures_of(db, job)
        assert 10800 <= figures["seconds_since_last_success"] < 11000
        assert (figures["last_run_status"], figures["last_success_at"], figures["backlog"]) == (None, None, 0)
    # a clock that was set back does not make the past the future
    db.rows("update expiration.job set created_at = now() + interval '1 hour'")
    assert [figures_of(db, job)["seconds_since_last_success"] for job in JOBS] == [0, 0]


@pytest.mark.requirement("L16", "B12")
def test_the_backlog_is_what_was_due_before_the_latest_cycle(db: Database) -> None:
    add_bookings(db, 7, phase="Reserve")
    run_job(db, BOOKINGS)
    assert figures_of(db, BOOKINGS)["backlog"] == 7
    add_bookings(db, 3, phase="Booking")
    at_work = db.connect("crm_runner")
    run = start_run(at_work, BOOKINGS)
    figures = figures_of(db, BOOKINGS)
    assert (figures["backlog"], figures["running"]) == (3, 1)
    run_batch(at_work, run["id"])
    finish_run(at_work, run["id"], "drained")
    db.rows("select expiration.pause(%s)", (BOOKINGS,))
    run_job(db, BOOKINGS)
    figures = figures_of(db, BOOKINGS)
    # a tick that was skipped says nothing about the backlog, nor about success
    assert (figures["backlog"], figures["running"], figures["paused"]) == (3, 0, True)
    assert figures["last_run_status"] == "completed"


@pytest.mark.requirement("L16", "B12")
def test_due_items_are_counted_up_to_a_thousand_and_poison_is_among_them(db: Database) -> None:
    add_leads(db, 1005)
    assert due_of(db, "Lead")[0] == 1000
    add_poison(db, "Reserve", 2)
    run_job(db, BOOKINGS)
    assert due_of(db, "Reserve")[0] == 2
    figures = figures_of(db, BOOKINGS)
    assert figures["failed_items"] == 2
    assert figures["oldest_failed_at"] is not None


@pytest.mark.requirement("L16", "B12")
def test_every_start_of_a_run_tallies_what_is_over(db: Database) -> None:
    waiting = (
        "select (select count(*) from expiration.run where tally_number is null), count(*)"
        " from expiration.batch where not tallied"
    )
    add_leads(db, 3)
    run_job(db, LEADS)
    assert db.rows(waiting) == [(1, 1)]
    drive(db.connect("crm_runner"), LEADS)
    assert db.rows(waiting) == [(1, 0)]
    db.rows("call expiration.run_upkeep()")
    assert db.rows(waiting) == [(0, 0)]
    assert db.value("select array_agg(tally_number order by started_at) from expiration.run") == [1, 2]
    assert_consistent(db)


def test_a_batch_that_comes_after_its_run_was_taken_for_abandoned_is_counted(db: Database) -> None:
    """Behind a pooler a run that gives no sign of life is closed, and its driver may yet commit a batch."""
    add_leads(db, 5)
    late = db.connect("crm_runner", autocommit=False)
    run = start_run(late, LEADS, pooled=True, batch_size=2)
    late.commit()
    run_batch(late, run["id"])
    db.rows("update expiration.run set started_at = started_at - interval '1 day'")
    assert [row[0] for row in db.rows("select id from expiration.reap_runs()")] == [run["id"]]
    assert db.value("select expiration.tally_runs()") == 1
    late.commit()
    total = "select expired from expiration.batch_total where phase = 'Lead'"
    assert db.value(total) == 2
    db.rows("select expiration.tally_runs()")
    assert db.value(total) == 2
    assert db.value("select count(*) from expiration.batch where not tallied") == 0


@pytest.mark.requirement("L2")
def test_of_two_tallies_at_once_the_second_does_nothing_and_nobody_waits(db: Database) -> None:
    run_job(db, LEADS)
    with db.connect("crm_runner", autocommit=False) as open_one:
        assert open_one.execute("select expiration.tally_runs()").fetchone() == (1,)
        assert db.value("select expiration.tally_runs()") == 0
        # a cycle goes on meanwhile, and its start tallies nothing
        add_leads(db, 2)
        run_job(db, LEADS)
        assert db.value("select expired from expiration.batch_total where phase = 'Lead'") == 2
    assert db.value("select count(*) from expiration.run where tally_number is null") == 1


def test_a_tally_that_fails_keeps_no_job_from_running(db: Database) -> None:
    run_job(db, LEADS)
    db.rows("alter table expiration.run_tally add constraint broken check (runs < 0) not valid")
    add_leads(db, 2)
    run_job(db, LEADS)
    assert last_run(db, LEADS)["expired"] == 2
    with refused("23514", "broken"):
        db.rows("call expiration.run_upkeep()")


def taken(db: Database, *, role: str = "crm_runner") -> Any:
    return db.connect(role, autocommit=False)


@pytest.mark.requirement("L17")
def test_each_run_is_taken_for_tracing_once_and_in_order(db: Database) -> None:
    run_job(db, LEADS)
    take = "select id, tally_number from expiration.take_traces('otlp', 2)"
    with db.connect("crm_runner", autocommit=False) as first, db.connect("crm_runner") as second:
        # what was over before the first call is history
        assert first.execute(take).fetchall() == []
        first.commit()
        runs = [run_job(db, job)["id"] for job in (LEADS, BOOKINGS, LEADS)]
        got = first.execute(take).fetchall()
        assert [row[0] for row in got] == runs[:2]
        # another exporter finds nothing to do, and does not wait
        assert second.execute(take).fetchall() == []
        first.rollback()
        got = first.execute(take).fetchall()
        assert [row[0] for row in got] == runs[:2]
        first.execute("select expiration.mark_traced('otlp', %s)", (got[-1][1],))
        first.commit()
        assert [row[0] for row in second.execute(take).fetchall()] == runs[2:]
        # another destination has a place of its own
        assert second.execute("select count(*) from expiration.take_traces('other')").fetchone() == (0,)


@pytest.mark.requirement("L16", "L19", "B12", "B15")
def test_the_outboxs_partitions_in_one_row(db: Database) -> None:
    query = (
        "select partitions_ahead, default_events, oldest_from = date_trunc('day', now(), 'UTC')"
        " from outbox.partition_figures"
    )
    assert db.rows(query) == [(7, 0, True)]
    db.rows(
        "insert into outbox.event (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic,"
        " payload, correlation_id) values (now() + interval '1 year', 'Lead', gen_random_uuid(),"
        " gen_random_uuid(), 'LeadExpiredEvent', 'pin.crm.lead-expired.v1', '{}', gen_random_uuid())"
    )
    assert db.rows(query) == [(7, 1, True)]


def test_a_slot_that_is_registered_and_not_there_is_missing(db: Database) -> None:
    db.rows("insert into outbox.slot (name, publication, connector) values ('gone', 'p', 'c')")
    assert db.rows("select state, backlog_events, lag_bytes from outbox.slot_figures") == [
        ("missing", None, None)
    ]
    assert timedelta(0) <= db.value("select now() - created_at from outbox.slot")


def test_a_run_that_is_not_in_the_tallies_is_not_purged(db: Database) -> None:
    add_leads(db, 3)
    old = run_job(db, LEADS)["id"]
    run_job(db, LEADS)
    db.rows(
        "update expiration.run set started_at = started_at - interval '40 days', tally_number = null,"
        " finished_at = finished_at - interval '40 days' where id = %s",
        (old,),
    )
    assert db.value("select runs from expiration.purge_history()") == 0
    db.rows("select expiration.tally_runs()")
    assert db.value("select runs from expiration.purge_history()") == 1

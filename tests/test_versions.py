"""The core on every major version of PostgreSQL that we support."""

import pytest

from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    assert_consistent,
    drive,
    expire_batch,
    refused,
    run_job,
    set_job,
    statuses,
    update_items,
)
from tests.servers import Connection, Database

pytestmark = pytest.mark.slow


def test_both_jobs_expire_what_is_due_and_nothing_else(versioned_db: Database) -> None:
    db = versioned_db
    due = add_leads(db, 70)
    ahead = add_leads(db, 5, due="-1 day")
    archived = add_leads(db, 3, status="Archived")
    reserves = add_bookings(db, 30)
    bookings = add_bookings(db, 30, phase="Booking")
    set_job(db, LEADS, batch_size=20)
    assert run_job(db, LEADS)["expired"] == 70
    assert run_job(db, BOOKINGS)["expired"] == 60
    assert statuses(db, "Lead", due) == {"Expired": 70}
    assert statuses(db, "Lead", ahead) == {"Active": 5}
    assert statuses(db, "Lead", archived) == {"Archived": 3}
    assert statuses(db, "Reserve", reserves) == {"ReserveExpired": 30}
    assert statuses(db, "Booking", bookings) == {"BookingExpired": 30}
    assert_consistent(db)


def test_poison_is_left_out_and_expires_once_it_is_mended(versioned_db: Database) -> None:
    db = versioned_db
    poison = add_poison(db, "Lead", 3) + add_poison(db, "Reserve", 2) + add_poison(db, "Booking", 2)
    add_leads(db, 40)
    add_bookings(db, 20)
    add_bookings(db, 20, phase="Booking")
    assert [(run["expired"], run["failed"]) for run in (run_job(db, job) for job in JOBS)] == [
        (40, 3),
        (40, 4),
    ]
    assert sorted(db.rows("select item_id from expiration.failed_item")) == sorted((item,) for item in poison)
    for phase in ("Lead", "Reserve"):
        update_items(db, phase, poison, "version = 1")
    assert [(run["expired"], run["failed"]) for run in (run_job(db, job) for job in JOBS)] == [(3, 0), (4, 0)]
    assert db.rows("select * from expiration.failed_item") == []
    assert_consistent(db)


def test_two_sessions_expire_each_item_once(versioned_db: Database) -> None:
    db = versioned_db
    leads = add_leads(db, 400)
    set_job(db, LEADS, batch_size=10)

    def work(connection: Connection, number: int) -> None:
        if number:
            drive(connection, LEADS, driver="pyrunner")
        else:
            connection.execute("call expiration.run_job(%s)", (LEADS,))

    db.sessions(2, work, role="crm_runner")
    assert db.value("select sum(expired) from expiration.run where status = 'completed'") == 400
    assert statuses(db, "Lead", leads) == {"Expired": 400}
    assert db.value("select count(*) from outbox.event") == 400
    assert_consistent(db)


def test_a_backend_that_is_gone_leaves_an_abandoned_run(versioned_db: Database) -> None:
    """What pg_stat_activity shows of another session differs from version to version."""
    db = versioned_db
    gone = db.connect("crm_runner")
    gone.execute("select from expiration.start_run(%s, 'pyrunner')", (LEADS,))
    alive = db.connect("crm_runner")
    alive.execute("select from expiration.start_run(%s, 'pyrunner')", (BOOKINGS,))
    pid = gone.info.backend_pid
    gone.close()
    db.wait_until_gone(pid)
    with db.connect("crm_runner") as runner:
        assert runner.execute("select job, status from expiration.reap_runs()").fetchall() == [
            (LEADS, "abandoned")
        ]
    assert db.value("select running from expiration.status where job = %s", (BOOKINGS,)) == 1


def test_commands_batches_and_refusals(versioned_db: Database) -> None:
    db = versioned_db
    add_leads(db, 5)
    with db.connect("crm_runner") as runner:
        assert expire_batch(runner, "Lead", batch_size=2)["expired"] == 2
        with refused("XP002"):
            runner.execute("select crm.expire_leads_batch(as_of => now() + interval '1 minute')")
    app = db.connect("crm_app")
    booking = app.execute(
        "select id from crm.reserve_property("
        "gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now() + interval '1 day')"
    ).fetchone()
    assert booking is not None
    app.execute("select from crm.confirm_booking(%s, 1, now() + interval '2 days')", booking)
    with refused("XP103"):
        app.execute("select from crm.cancel_booking(%s, 1)", booking)
    app.execute("select from crm.cancel_booking(%s, 2)", booking)
    with refused("XP010"):
        db.rows("update outbox.event set topic = 'elsewhere'")
    assert_consistent(db)


def test_upkeep_and_every_view_work(versioned_db: Database) -> None:
    db = versioned_db
    add_leads(db, 5)
    add_poison(db, "Lead")
    with db.connect("crm_runner") as runner:
        runner.execute("call expiration.run_upkeep()")
        run_job(runner, LEADS)
        for view in (
            *("status", "history", "failed", "log_event", "batch_total", "run_total"),
            *("preview('lead-expiration')", "preview('booking-expiration')", "errors()"),
        ):
            runner.execute(f"select * from expiration.{view}".encode())
        partitions = runner.execute("select count(*) from outbox.partition where not is_default").fetchone()
        assert partitions is not None
        assert partitions[0] >= 8

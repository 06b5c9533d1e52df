"""The server is killed in the middle of a cycle: what was committed stays, the next cycle does the rest."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from tests import servers
from tests.domain import (
    BOOKINGS,
    EXPIRED,
    JOB_OF,
    LEADS,
    add_bookings,
    add_items,
    add_leads,
    add_poison,
    assert_consistent,
    drive,
    gate,
    run_job,
    set_job,
    statuses,
)
from tests.servers import Connection, Database, Server, UnavailableError, need

MANY: Final = 5_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server of our own that really writes to disk, so that it may be killed."""
    try:
        binaries = servers.find_binaries(None)
    except UnavailableError as error:
        need(False, str(error))
        raise
    with servers.run_folder() as folder:
        server = servers.private_server(binaries, folder, fsync="on", full_page_writes="on")
        with contextlib.closing(server):
            yield server


@pytest.fixture
def crash_db(durable: Server) -> Iterator[Database]:
    with durable.database() as database:
        yield database


def call(job: str) -> Any:
    """A driver: CALL run_job, in a thread of its own."""

    def run(connection: Connection) -> None:
        connection.execute("call expiration.run_job(%s)", (job,))

    return run


def kill(database: Database) -> None:
    """kill -9 of all of the server's processes, and a new start of it."""
    database.server.kill()
    database.server.start()


def assert_nothing_is_lost_or_doubled(database: Database, phase: str, total: int) -> None:
    """After the crash, and again after the next cycle, which takes the rest."""
    job = JOB_OF[phase]
    assert_consistent(database)
    done = statuses(database, phase).get(EXPIRED[phase], 0)
    assert done < total
    assert database.value("select count(*) from outbox.event") == done
    # the run is not at work any more, whatever its row says
    assert database.rows("select status from expiration.run") == [("running",)]
    assert database.value("select running from expiration.status where job = %s", (job,)) == 0

    set_job(database, job, batch_size=500)
    run = run_job(database, job)
    assert (run["status"], run["expired"]) == ("completed", total - done)
    status, reason, expired, error = database.rows(
        "select status, reason, expired, error from expiration.run where id <> %s", (run["id"],)
    )[0]
    assert (status, reason, expired) == ("abandoned", "backend gone", done)
    assert "is gone" in error
    assert statuses(database, phase) == {EXPIRED[phase]: total}
    assert database.rows(
        "select count(*), count(distinct id), count(distinct aggregate_id) from outbox.event"
    ) == [(total, total, total)]
    assert_consistent(database)


@pytest.mark.requirement("L11", "L12")
@pytest.mark.parametrize("batches", [1, 7, 30])
def test_a_kill_between_or_within_batches_loses_and_doubles_nothing(crash_db: Database, batches: int) -> None:
    """Killed as soon as so many batches have been seen committed, wherever the cycle is by then."""
    add_leads(crash_db, MANY)
    set_job(crash_db, LEADS, batch_size=40, max_batches_per_cycle=1000)
    driver = crash_db.background(call(LEADS))
    crash_db.wait_until("select count(*) >= %s from expiration.batch", (batches,))
    seen = crash_db.value("select count(*) from expiration.batch")
    kill(crash_db)
    with pytest.raises(psycopg.OperationalError):
        driver.result()
    # what others have seen committed is there again
    assert crash_db.value("select count(*) from expiration.batch") >= seen
    assert_nothing_is_lost_or_doubled(crash_db, "Lead", MANY)


@pytest.mark.requirement("L11", "B10")
@pytest.mark.parametrize("held_in_batch", [1, 3])
@pytest.mark.parametrize("phase", EXPIRED)
def test_a_kill_while_a_batch_is_in_hand_undoes_that_batch(
    crash_db: Database, phase: str, held_in_batch: int
) -> None:
    ids = add_items(crash_db, phase, 100)
    set_job(crash_db, JOB_OF[phase], batch_size=20, max_batches_per_cycle=10)
    with gate(crash_db, phase, ids[20 * held_in_batch - 7]):
        driver = crash_db.background(call(JOB_OF[phase]))
        crash_db.wait_for_lock(driver.pid)
        kill(crash_db)
    with pytest.raises(psycopg.OperationalError):
        driver.result()
    assert crash_db.value("select count(*) from outbox.event") == 20 * (held_in_batch - 1)
    assert_nothing_is_lost_or_doubled(crash_db, phase, 100)


def test_a_kill_of_a_driver_that_goes_batch_by_batch_loses_and_doubles_nothing(crash_db: Database) -> None:
    add_leads(crash_db, MANY)
    set_job(crash_db, LEADS, batch_size=40, max_batches_per_cycle=1000)
    driver = crash_db.background(lambda connection: drive(connection, LEADS, driver="pyrunner"))
    crash_db.wait_until("select count(*) >= 5 from expiration.batch")
    kill(crash_db)
    with pytest.raises(psycopg.OperationalError):
        driver.result()
    assert_nothing_is_lost_or_doubled(crash_db, "Lead", MANY)


def test_a_kill_while_poison_is_being_found_blames_no_healthy_item(crash_db: Database) -> None:
    poison = add_poison(crash_db, "Lead", 10)
    ids = add_leads(crash_db, 200)
    set_job(crash_db, LEADS, batch_size=50)
    with gate(crash_db, "Lead", ids[60]):
        driver = crash_db.background(call(LEADS))
        crash_db.wait_for_lock(driver.pid)
        kill(crash_db)
    with pytest.raises(psycopg.OperationalError):
        driver.result()
    assert_consistent(crash_db)
    run_job(crash_db, LEADS)
    failed = crash_db.rows("select item_id from expiration.failed_item")
    assert sorted(failed) == sorted((item,) for item in poison)
    assert statuses(crash_db, "Lead") == {"Expired": 200, "Active": 10}
    assert_consistent(crash_db)


def test_kills_one_after_the_other_leave_one_event_an_item(crash_db: Database) -> None:
    """Both jobs at work, killed again and again until everything has expired."""
    add_leads(crash_db, 3_000)
    add_bookings(crash_db, 600)
    add_bookings(crash_db, 600, phase="Booking")
    set_job(crash_db, LEADS, batch_size=20, max_batches_per_cycle=1000)
    set_job(crash_db, BOOKINGS, batch_size=20, max_batches_per_cycle=1000)
    kills = 0
    for _ in range(3):
        before = crash_db.value("select count(*) from expiration.batch")
        drivers = [crash_db.background(call(job)) for job in (LEADS, BOOKINGS)]
        crash_db.wait_until("select count(*) >= %s from expiration.batch", (before + 8,))
        kill(crash_db)
        for driver in drivers:
            # one that had nothing left to do may have been done by then
            with contextlib.suppress(psycopg.OperationalError):
                driver.result()
        kills += crash_db.value("select count(*) from expiration.run where status = 'running'")
        assert_consistent(crash_db)
    assert kills >= 3
    for job in (LEADS, BOOKINGS):
        set_job(crash_db, job, batch_size=500)
        assert run_job(crash_db, job)["status"] == "completed"
    assert crash_db.value("select count(*) from expiration.run where status = 'running'") == 0
    assert crash_db.value("select count(*) from expiration.run where status = 'abandoned'") >= 3
    assert crash_db.rows("select count(*), count(distinct aggregate_id) from outbox.event") == [
        (4_200, 4_200)
    ]
    assert_consistent(crash_db)


def test_upkeep_marks_the_runs_of_a_killed_server_too(crash_db: Database) -> None:
    ids = add_leads(crash_db, 10)
    with gate(crash_db, "Lead", ids[5]):
        driver = crash_db.background(call(LEADS))
        crash_db.wait_for_lock(driver.pid)
        kill(crash_db)
    with pytest.raises(psycopg.OperationalError):
        driver.result()
    crash_db.rows("call expiration.run_upkeep()")
    assert crash_db.rows("select status, expired from expiration.run") == [("abandoned", 0)]
    assert crash_db.value("select count(*) from outbox.partition where not is_default") >= 1

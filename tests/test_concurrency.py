"""Several sessions at once: each row once, and nobody waits for bookkeeping nor for what others hold."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from tests.domain import (
    ACTIVE,
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
    drive,
    events,
    expire_batch,
    finish_run,
    gate,
    held,
    item,
    last_run,
    open_gate,
    run_batch,
    run_job,
    set_job,
    start_run,
    statuses,
)
from tests.servers import Connection, Database

ALL_PHASES = ("Lead", *PHASES)


@contextmanager
def watched(db: Database) -> Iterator[set[Any]]:
    """Looks, over and over, for sessions that wait for a lock of another; each that was seen is in the set.

    Extending a file is left out: the lock is held for microseconds, by whoever writes a table.
    """
    seen: set[Any] = set()
    done = threading.Event()
    samples = 0

    def look(connection: Connection) -> None:
        nonlocal samples
        while not done.is_set():
            seen.update(
                connection.execute(
                    "select a.wait_event, a.query, a.pid, a.xact_start, pg_blocking_pids(a.pid)::text"
                    " from pg_stat_activity as a"
                    " where a.datname = current_database() and a.wait_event_type = 'Lock' and"
                    " a.wait_event <> 'extend'"
                ).fetchall()
            )
            samples += 1

    watcher = db.background(look)
    try:
        yield seen
    finally:
        done.set()
        watcher.result()
    assert samples > 10, "it has hardly looked"


def by_call(connection: Connection, number: int) -> None:
    """A DBA or pg_cron: CALL, over and over, until nothing is left that it could take."""
    for job in (JOBS, JOBS[::-1])[number % 2]:
        while run_job(connection, job)["expired"]:
            pass


def by_batches(connection: Connection, number: int) -> None:
    """The runner: batch by batch, a transaction each."""
    for job in (JOBS, JOBS[::-1])[number % 2]:
        while drive(connection, job, driver="pyrunner", instance=f"worker {number}")["expired"]:
            pass


def alone(connection: Connection, number: int) -> None:
    """Somebody's own transactions, several batches in each."""
    for phase in (ALL_PHASES, ALL_PHASES[::-1])[number % 2]:
        while True:
            with connection.transaction():
                expired = [expire_batch(connection, phase, batch_size=20)["expired"] for _ in range(2)]
                if not any(expired):
                    break


@pytest.mark.requirement("L2", "L22", "B17")
@pytest.mark.parametrize("sessions", [2, 4, 8])
def test_sessions_at_once_expire_each_item_once_with_one_event_and_nobody_waits(
    db: Database, sessions: int
) -> None:
    ids = {phase: add_items(db, phase, 600) for phase in ALL_PHASES}
    poison = {phase: add_poison(db, phase, 10) for phase in ALL_PHASES}
    for job in JOBS:
        set_job(db, job, batch_size=20, max_batches_per_cycle=10)
    workers: list[Callable[[Connection, int], None]] = [by_call, by_batches, alone, by_call]
    with watched(db) as seen:
        db.sessions(
            sessions, lambda connection, number: workers[number % 4](connection, number), "crm_runner"
        )
    # PostgreSQL itself may wait under SKIP LOCKED: a claim that meets an update in the moment of its commit
    # follows the row to its new version, and waits when a third session has just locked that one. It is rare,
    # and over with that batch; a row of bookkeeping that two of them wait for would be seen all the time.
    assert {wait_event for wait_event, *_ in seen} <= {"transactionid"}
    assert len(seen) <= 2, seen
    assert {phase: statuses(db, phase, ids[phase]) for phase in ALL_PHASES} == {
        phase: {EXPIRED[phase]: 600} for phase in ALL_PHASES
    }
    assert {phase: statuses(db, phase, poison[phase]) for phase in ALL_PHASES} == {
        phase: {ACTIVE[phase]: 10} for phase in ALL_PHASES
    }
    assert len(events(db)) == 1800
    assert_consistent(db)
    # somebody did take turns, and nothing had to be tried again
    assert db.value("select count(distinct correlation_id) from outbox.event") >= sessions
    assert db.value("select coalesce(sum(retries), 0) from expiration.run") == 0
    assert db.value("select count(*) from expiration.run where status not in ('completed', 'capped')") == 0
    db.close()
    with db.server.maintenance() as maintenance:
        row = maintenance.execute(
            "select deadlocks from pg_stat_database where datname = %s", (db.name,)
        ).fetchone()
    assert row == (0,)


def a_start(connection: Connection) -> None:
    start_run(connection, LEADS, driver="pyrunner", instance="the open one")


def a_batch(phase: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        run = start_run(connection, JOB_OF[phase], driver="pyrunner", instance="the open one")
        connection.commit()
        assert run_batch(connection, run["id"])["failed"] == 1

    return work


def a_batch_of_retries(connection: Connection) -> None:
    a_batch("Lead")(connection)
    connection.commit()
    run = start_run(connection, LEADS, driver="pyrunner", instance="the open one")
    connection.commit()
    while (report := run_batch(connection, run["id"]))["step"] != "retry":
        connection.commit()
        assert report["state"] == "more"


def a_batch_alone(connection: Connection) -> None:
    assert expire_batch(connection, "Lead")["failed"] == 1


def a_failure(connection: Connection) -> None:
    run = start_run(connection, LEADS, driver="pyrunner", instance="the open one")
    connection.commit()
    assert connection.execute(
        "select retry from expiration.batch_failed(%s, '40P01', '')", (run["id"],)
    ).fetchone() == (True,)


def an_end(connection: Connection) -> None:
    run = start_run(connection, LEADS, driver="pyrunner", instance="the open one")
    connection.commit()
    finish_run(connection, run["id"], "drained")


def a_purge(connection: Connection) -> None:
    connection.execute("select expiration.reap_runs()")
    assert connection.execute("select runs from expiration.purge_history()").fetchone() == (1,)


def a_pause(connection: Connection) -> None:
    connection.execute("set local role crm_operator")
    connection.execute("select expiration.pause(%s)", (LEADS,))
    connection.execute("select expiration.set_job(%s, batch_size => 7)", (BOOKINGS,))


STAGES: dict[str, Callable[[Connection], None]] = {
    "a_start": a_start,
    "a_batch_of_leads": a_batch("Lead"),
    "a_batch_of_reserves": a_batch("Reserve"),
    "a_batch_of_retries": a_batch_of_retries,
    "a_batch_alone": a_batch_alone,
    "a_failure": a_failure,
    "an_end": an_end,
    "a_purge": a_purge,
    "a_pause": a_pause,
}


@pytest.mark.requirement("L2")
@pytest.mark.parametrize("stage", STAGES)
def test_a_session_that_stops_at_any_stage_with_its_transaction_open_makes_no_other_wait(
    db: Database, stage: str
) -> None:
    """The proof by pairs: of the rows of bookkeeping it has written or locked, nobody else needs one."""
    db.rows("select * from outbox.make_partitions()")
    old = run_job(db, LEADS)
    run_job(db, LEADS)
    db.rows(
        "update expiration.run set started_at = now() - interval '90 days', finished_at = now() -"
        " interval '90 days' where id = %s",
        (old["id"],),
    )
    for phase in ALL_PHASES:
        add_poison(db, phase)
        add_items(db, phase, 5)
    at_work = db.connect("crm_runner", options=(impatient := "-c lock_timeout=1ms"))
    running = {job: start_run(at_work, job, driver="pyrunner", instance="at work") for job in JOBS}
    opened = db.connect(autocommit=False)
    STAGES[stage](opened)
    # due meanwhile, so that the others have work of every kind
    fresh = {phase: [*add_poison(db, phase), *add_items(db, phase, 5, due="1 hour")] for phase in ALL_PHASES}
    for run in running.values():
        run_batch(at_work, run["id"])
        assert finish_run(at_work, run["id"], "drained")["status"] == "completed"
    for job in JOBS:
        assert run_job(db.connect("crm_runner", options=impatient), job)["retries"] == 0
        run = drive(db.connect("crm_runner", options=impatient), job, driver="pyrunner")
        assert run["status"] == "completed"
    for phase in ALL_PHASES:
        expire_batch(db.connect("crm_runner", options=impatient), phase)
    db.connect("crm_runner", options=impatient).execute("call expiration.run_upkeep()")
    db.connect("crm_monitor", options=impatient).execute(
        "select from expiration.status, expiration.history, expiration.failed"
    )
    for phase, ids in fresh.items():
        assert statuses(db, phase, ids) == {EXPIRED[phase]: 5, ACTIVE[phase]: 1}
    opened.commit()
    for job in JOBS:
        db.rows("select expiration.resume(%s)", (job,))
        run_job(db, job)
    assert_consistent(db)


# ------------------------------------------------------------------------------------------- what others hold


@pytest.mark.requirement("L2", "L9")
@pytest.mark.parametrize("child", ["deals", "fixations"])
def test_an_uncommitted_child_of_a_lead_neither_hides_the_lead_nor_is_held_up(
    db: Database, child: str
) -> None:
    first, second = add_leads(db, 2)
    insert = f"insert into crm.{child} (tenant_id, lead_id) values (gen_random_uuid(), %s)".encode()
    before = db.connect("crm_app", autocommit=False)
    before.execute(insert, (first,))
    job = db.connect("crm_runner", autocommit=False)
    result = expire_batch(job, "Lead")
    assert (result["expired_ids"], result["skipped_locked"]) == ([first, second], 0)
    # the batch is still open
    after = db.connect("crm_app", options="-c lock_timeout=1ms")
    after.execute(insert, (second,))
    before.commit()
    job.commit()
    assert statuses(db, "Lead") == {"Expired": 2}
    assert db.value(f"select count(*) from crm.{child}") == 2  # type: ignore[arg-type,unused-ignore]
    assert_consistent(db)


@pytest.mark.requirement("L3", "L2")
@pytest.mark.parametrize("phase", ALL_PHASES)
@pytest.mark.parametrize(
    "setting", ["enable_indexscan", "enable_nestloop", "enable_material", "stale statistics"]
)
def test_a_batch_claims_no_more_than_its_size_whatever_the_plan(
    db: Database, phase: str, setting: str
) -> None:
    ids = add_items(db, phase, 300)
    connection = db.connect("crm_runner")
    if setting == "stale statistics":
        # as of an empty table
        db.rows(
            "update pg_class set relpages = 0, reltuples = 0 where relnamespace = 'crm'::regnamespace"
            " and relkind = 'r'"
        )
    else:
        connection.execute("select set_config(%s, 'off', false)", (setting,))
    for size in (10, 1):
        result = expire_batch(connection, phase, batch_size=size)
        assert (result["claimed"], result["expired"], result["drained"]) == (size, size, False)
    assert statuses(db, phase, ids[:11]) == {EXPIRED[phase]: 11}
    assert statuses(db, phase) == {EXPIRED[phase]: 11, ACTIVE[phase]: 289}


@pytest.mark.requirement("B6", "B11", "L2")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_a_cycle_over_locked_rows_only_says_so_and_does_not_claim_to_be_drained(
    db: Database, phase: str
) -> None:
    ids = add_items(db, phase, 12)
    with held(db, phase, ids):
        run = run_job(db, JOB_OF[phase])
        assert (run["status"], run["reason"]) == ("completed", "locked")
        assert (run["expired"], run["skipped_locked"], run["batches"]) == (0, 12, 0)
        lone = expire_batch(db, phase)
        assert (lone["claimed"], lone["skipped_locked"]) == (0, 12)
        assert last_run(db, JOB_OF[phase])["reason"] == "locked"
    assert db.value("select due from expiration.status where job = %s", (JOB_OF[phase],)) == 12
    run = run_job(db, JOB_OF[phase])
    assert (run["reason"], run["expired"], run["skipped_locked"]) == ("drained", 12, 0)


@pytest.mark.requirement("B6", "B11")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_rows_passed_over_are_counted_exactly_batch_by_batch(db: Database, phase: str) -> None:
    """Of 40 due, every third is held: the oldest, some in the middle of each batch, the youngest."""
    ids = add_items(db, phase, 40)
    locked = ids[::3]
    set_job(db, JOB_OF[phase], batch_size=10, max_batches_per_cycle=10)
    with held(db, phase, locked):
        run = run_job(db, JOB_OF[phase])
    assert (run["reason"], run["expired"], run["skipped_locked"]) == ("locked", 26, 14)
    assert statuses(db, phase, locked) == {ACTIVE[phase]: 14}
    batches = db.rows("select claimed, skipped_locked, last_id from expiration.batch order by number")
    start = 0
    for claimed, skipped, last_id in batches:
        end = ids.index(last_id) + 1 if claimed == 10 else len(ids)
        assert skipped == len(set(ids[start:end]) & set(locked))
        start = end
    assert_consistent(db)


@pytest.mark.requirement("L2", "B6")
def test_with_the_whole_oldest_batch_held_the_cycle_goes_on_behind_it(db: Database) -> None:
    ids = add_leads(db, 30)
    set_job(db, LEADS, batch_size=10)
    with held(db, "Lead", ids[:10]):
        run = run_job(db, LEADS)
        assert (run["reason"], run["expired"], run["skipped_locked"]) == ("locked", 20, 10)
    assert_consistent(db)


def entries_read(db: Database, phase: str) -> int:
    """How many entries of the index of a phase's deadlines have been read so far."""
    db.close()
    name = {"Lead": "ix_leads", "Reserve": "ix_bookings_reserve", "Booking": "ix_bookings_booking"}[phase]
    count: int = db.value(
        "select idx_tup_read from pg_stat_user_indexes where indexrelname = %s", (f"{name}_expires_at",)
    )
    return count


@pytest.mark.requirement("L8", "B4")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_a_snapshot_held_open_does_not_make_a_batch_walk_over_the_rows_of_those_before(
    db: Database, phase: str
) -> None:
    """By the index's own count of entries read: linear in the rows, not in rows times batches."""
    add_items(db, phase, 1000)
    set_job(db, JOB_OF[phase], batch_size=20, max_batches_per_cycle=100)
    query = (
        f"select count(*) from crm.{'leads' if phase == 'Lead' else 'bookings'} where status = %s".encode()
    )
    with db.connect(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read")
        assert reader.execute(query, (ACTIVE[phase],)).fetchone() == (1000,)
        assert run_job(db, JOB_OF[phase])["expired"] == 1000
        assert reader.execute(query, (ACTIVE[phase],)).fetchone() == (1000,)
    assert_consistent(db)
    assert 1000 <= entries_read(db, phase) <= 6000


@pytest.mark.requirement("L8", "B4")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_statistics_of_a_time_without_active_items_do_not_make_a_batch_read_them_all(
    db: Database, phase: str
) -> None:
    """A bulk load, and the job before anybody has analyzed: failing, transition and retry included."""
    table = "crm.leads" if phase == "Lead" else "crm.bookings"
    status = "Archived" if phase == "Lead" else "Cancelled"
    db.rows(f"alter table {table} set (autovacuum_enabled = off)")  # type: ignore[arg-type,unused-ignore]
    if phase == "Lead":
        add_leads(db, 2000, status=status)
    else:
        add_bookings(db, 2000, phase=phase, status=status)
    db.rows(f"analyze {table}")  # type: ignore[arg-type,unused-ignore]
    ids = add_items(db, phase, 1000)
    db.rows(f"update {table} set version = 2147483647 where id = any(%s)", (ids[::50],))  # type: ignore[arg-type,unused-ignore]
    set_job(db, JOB_OF[phase], batch_size=20, max_batches_per_cycle=100, retry_failures_per_cycle=5)
    run = run_job(db, JOB_OF[phase])
    assert (run["expired"], run["failed"]) == (980, 20)
    run = run_job(db, JOB_OF[phase])
    assert (run["expired"], run["failed"]) == (0, 5)
    assert 1000 <= entries_read(db, phase) <= 6000


@pytest.mark.requirement("B6")
def test_a_booking_that_a_manager_confirmed_between_two_batches_is_not_taken_by_the_second(
    db: Database,
) -> None:
    ids = add_bookings(db, 10)
    driver = db.connect("crm_runner")
    run = start_run(driver, BOOKINGS, batch_size=5, max_batches_per_cycle=5)
    run_batch(driver, run["id"])
    db.connect("crm_app").execute("select crm.confirm_booking(%s, 1, now() + interval '1 day')", (ids[7],))
    assert sorted(run_batch(driver, run["id"])["expired_ids"]) == sorted([*ids[5:7], *ids[8:]])
    while (report := run_batch(driver, run["id"]))["state"] == "more":
        assert report["expired"] == 0
    finish_run(driver, run["id"], report["reason"])
    assert item(db, "Booking", ids[7])["status"] == "Booked"
    assert_consistent(db)


@pytest.mark.requirement("L2", "L9")
def test_a_row_that_changed_after_the_claims_snapshot_is_looked_at_again_under_its_lock(db: Database) -> None:
    """The claim comes to a row that a manager had already changed, and has only now committed."""
    first, second = add_leads(db, 2)
    # the claim's statement stands at the first row while the second one changes
    db.rows(
        "create function public.stand() returns boolean language plpgsql volatile as"
        " $$ begin perform pg_advisory_xact_lock_shared(99); return true; end $$"
    )
    keeper = db.connect()
    keeper.execute("select pg_advisory_lock(99)")
    query = (
        "with first as materialized (select public.stand())"
        " select c.ids from first, crm.claim_leads(now(), 10, '-infinity', %s) as c"
    )
    manager = db.connect("crm_app", autocommit=False)
    job = db.background(lambda connection: connection.execute(query, (UUID(int=0),)).fetchone())
    db.wait_for_lock(job.pid)
    manager.execute("select crm.extend_lead(%s, 1, now() + interval '1 day')", (second,))
    manager.commit()
    keeper.execute("select pg_advisory_unlock_all()")
    assert job.result() == ([first],)


@pytest.mark.requirement("L2", "L9")
@pytest.mark.parametrize("phase", ["Lead", *PHASES])
def test_a_row_that_moved_after_the_claims_snapshot_and_is_still_due_expires_from_where_it_lies_now(
    db: Database, phase: str
) -> None:
    """The claim hands on where the locked version lies, not the one that its snapshot had seen."""
    first, second = ids = add_items(db, phase, 2)
    table = sql.Identifier("crm", "leads" if phase == "Lead" else "bookings")
    db.rows(
        "create function public.stand() returns boolean language plpgsql volatile as"
        " $$ begin perform pg_advisory_xact_lock_shared(99); return true; end $$"
    )
    keeper = db.connect()
    keeper.execute("select pg_advisory_lock(99)")
    function = "crm.claim_leads(" if phase == "Lead" else f"crm.claim_bookings('{phase}', "
    query = sql.SQL(
        "with first as materialized (select public.stand())"
        " select c.ids, c.row_ids::text from first, {}now(), 10, '-infinity', %s) as c"
    ).format(sql.SQL(function))
    manager = db.connect(autocommit=False)
    manager.execute(sql.SQL("update {} set updated_at = now() where id = %s").format(table), (second,))
    job = db.background(lambda connection: connection.execute(query, (UUID(int=0),)).fetchone())
    db.wait_for_lock(job.pid)
    manager.commit()
    keeper.execute("select pg_advisory_unlock_all()")
    places: dict[UUID, str] = dict(db.rows(sql.SQL("select id, ctid::text from {}").format(table)))
    found = job.result()
    assert found is not None
    assert found[0] == ids == [first, second]
    assert found[1] == "{{{}}}".format(",".join(f'"{places[one]}"' for one in ids))


@pytest.mark.requirement("L9")
@pytest.mark.parametrize("phase", ["Lead", *PHASES])
def test_a_batch_makes_no_multixact(db: Database, phase: str) -> None:
    """The version that expired bears the id of the transaction that made the new one, not one of two."""
    add_items(db, phase, 20)
    table = sql.Identifier("crm", "leads" if phase == "Lead" else "bookings")
    reader = db.connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("select 1 from crm.leads")
    assert run_job(db, JOB_OF[phase])["expired"] == 20
    before: dict[UUID, str] = dict(
        reader.execute(sql.SQL("select id, xmax::text from {}").format(table)).fetchall()
    )
    after: dict[UUID, str] = dict(db.rows(sql.SQL("select id, xmin::text from {}").format(table)))
    assert before == after


@pytest.mark.requirement("L2")
def test_a_lock_that_a_batch_holds_is_none_that_a_reader_waits_for(db: Database) -> None:
    ids = add_leads(db, 3)
    job = db.connect("crm_runner", autocommit=False)
    expire_batch(job, "Lead")
    reader = db.connect("crm_app", options="-c lock_timeout=1ms")
    assert reader.execute(
        "select count(*) from crm.effective_leads where id = any(%s)", (ids,)
    ).fetchone() == (3,)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        db.rows("select from crm.leads for no key update nowait")


@pytest.mark.requirement("L2", "B1")
def test_a_run_that_began_after_another_session_looked_around_is_not_taken_for_abandoned(
    db: Database,
) -> None:
    """Within a transaction PostgreSQL shows the sessions as they were when it was first asked for them."""
    ids = add_leads(db, 3)
    looking = db.connect("crm_runner", autocommit=False)
    looking.execute("select expiration.current_driver()")
    with gate(db, "Lead", ids[0]) as keeper:
        driver = db.background(lambda connection: connection.execute("call expiration.run_job(%s)", (LEADS,)))
        db.wait_for_lock(driver.pid)
        start_run(looking, LEADS, driver="pyrunner")
        looking.execute("select expiration.reap_runs()")
        looking.commit()
        open_gate(keeper)
        driver.result()
    assert db.rows("select status from expiration.run where driver = 'psql'") == [("completed",)]
    assert_consistent(db)


@pytest.mark.requirement("L2")
def test_upkeep_by_several_at_once_does_everything_once(db: Database) -> None:
    for _ in range(3):
        run_job(db, LEADS)
    db.rows(
        "update expiration.run set started_at = started_at - interval '90 days',"
        " finished_at = finished_at - interval '90 days'"
    )
    dead = db.connect("crm_runner")
    start_run(dead, LEADS)
    db.terminate(dead.info.backend_pid)
    db.sessions(4, lambda connection, _: connection.execute("call expiration.run_upkeep()"), "crm_runner")
    assert db.rows("select status, runs from expiration.run_total order by 1") == [
        ("abandoned", 1),
        ("completed", 3),
    ]
    # the last success stays
    assert db.rows("select status from expiration.run order by 1") == [("abandoned",), ("completed",)]
    assert db.value("select count(*) from outbox.partition") == 9

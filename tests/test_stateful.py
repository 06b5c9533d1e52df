"""Managers, drivers, poison and crashes in any order; after every step each transition has its one event."""

import datetime as dt
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, LiteralString, NamedTuple
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.domain import EXPIRED, JOBS, add_trigger, assert_consistent, set_job
from tests.servers import Background, Connection, Database, wait_until

# past, passing while the test runs, ahead
DEADLINES: Final = ("-7 days", "-1 hour", "-1 second", "50 milliseconds", "200 milliseconds", "1 hour")
AHEAD: Final = ("30 milliseconds", "150 milliseconds", "1 hour")
# an object that is kept although the chessboard has not yet freed it from the booking before
SOLD_TOO_EARLY: Final = (
    "select b.id, o.id from crm.bookings as b inner join crm.bookings as o using (property_object_id)"
    " where b.status in ('Reserved', 'AwaitingPayment', 'Booked')"
    " and o.status in ('ReserveExpired', 'BookingExpired')"
    " and not exists (select from chessboard.release as r where r.booking_id = o.id)"
)
PROPERTIES: Final = [UUID(int=n) for n in range(1, 7)]
COMMANDS: Final = ("confirm", "extend", "cancel")
# how a transaction may end
ENDS: Final = ("commit", "rollback", "crash")

ACTIVE: Final = ("Reserved", "AwaitingPayment", "Booked")
STEPS: Final[dict[str, set[tuple[str, str]]]] = {
    "leads": {("Active", "Active"), ("Active", "Expired"), ("Expired", "Active")},
    "bookings": {
        *((status, status) for status in ACTIVE),
        *((status, "Cancelled") for status in ACTIVE),
        ("Reserved", "Booked"),
        ("AwaitingPayment", "Booked"),
        ("Reserved", "ReserveExpired"),
        ("AwaitingPayment", "ReserveExpired"),
        ("Booked", "BookingExpired"),
    },
}
ROWS: Final[dict[str, LiteralString]] = {
    "leads": "select id, status, version, expires_at, expired_at, updated_at from crm.leads",
    "bookings": """
        select
            id, status, version,
            case when status like 'Book%' then booking_expires_at else reserve_expires_at end,
            expired_at, updated_at
        from crm.bookings
    """,
}
CHILDREN: Final = """
select 'deal', id, status, updated_at, xmin::text, ctid::text from crm.deals
union all
select 'fixation', id, status, updated_at, xmin::text, ctid::text from crm.fixations
"""
EXPIRED_AND_FAILED: Final = """
select f.item_id from expiration.failed_item as f inner join crm.leads as l on f.item_id = l.id
where f.phase = 'Lead' and l.status = 'Expired'
union all
select f.item_id from expiration.failed_item as f inner join crm.bookings as b on f.item_id = b.id
where b.status = f.phase || 'Expired'
"""
LEFT_BEHIND: Final = """
select d.item_id
from expiration.due_item as d
where
    d.job = %s
    and d.deadline < %s
    and not exists (
        select from expiration.failed_item as f
        where f.job = d.job and f.phase = d.phase and f.item_id = d.item_id
    )
"""


class Item(NamedTuple):
    """A lead or booking as it is committed; the deadline is that of its phase."""

    id: UUID
    status: str
    version: int
    deadline: dt.datetime
    expired_at: dt.datetime | None
    updated_at: dt.datetime


@dataclass
class Run:
    """A cycle that is driven batch by batch, by a session of its own."""

    connection: Connection
    id: UUID


def must_be_one_of(error: psycopg.Error, *sqlstates: str) -> None:
    """Raises the error unless it was to be expected."""
    if error.sqlstate not in sqlstates:
        raise error


class Machine(RuleBasedStateMachine):
    """One database; between two steps only what was committed may have changed, and only as it may."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.db = database
        self.leads: list[UUID] = []
        self.bookings: list[UUID] = []
        self.poisoned: set[UUID] = set()
        self.runs: dict[str, Run] = {}
        self.open: dict[str, Connection] = {}
        self.before: dict[str, dict[UUID, Item]] = {"leads": {}, "bookings": {}}
        self.children: set[tuple[Any, ...]] = set()
        self.kept: dict[str, Connection] = {}
        self.sessions: list[Connection] = []

    # ------------------------------------------------------------------------------ sessions

    def connect(self, *, autocommit: bool = True, **parameters: Any) -> Connection:
        """A new session, which waits for nobody for long."""
        options = "-c lock_timeout=40ms -c statement_timeout=10s"
        connection = psycopg.connect(self.db.dsn, autocommit=autocommit, options=options, **parameters)
        self.sessions.append(connection)
        return connection

    def session(self, name: str, **parameters: Any) -> Connection:
        """A session that is kept for later use."""
        if name not in self.kept:
            self.kept[name] = self.connect(**parameters)
        return self.kept[name]

    def in_transaction(self, name: str, work: Callable[[Connection], Any], *refusals: str) -> None:
        """Does the work in a transaction that stays open, unless the work is refused."""
        connection = self.connect(autocommit=False)
        try:
            work(connection)
        except psycopg.Error as error:
            must_be_one_of(error, *refusals)
            connection.close()
        else:
            self.open[name] = connection

    def end(self, connection: Connection, how: str) -> None:
        """Ends an open transaction, or the session in the middle of it."""
        if how == "crash":
            self.db.terminate(connection.info.backend_pid)
        elif how == "commit":
            connection.commit()
        connection.close()

    # ------------------------------------------------------------------------------ beginning and end

    @initialize(
        batch_size=st.integers(1, 6),
        cap=st.integers(1, 6),
        retries=st.integers(0, 3),
        overdue=st.integers(2, 8),
        soon=st.integers(0, 4),
        bad=st.integers(0, 4),
    )
    def begin(self, batch_size: int, cap: int, retries: int, overdue: int, soon: int, bad: int) -> None:
        """A CRM with something due in every phase, some of it poison."""
        self.db.rows(
            "truncate crm.leads, crm.bookings, crm.deals, crm.fixations, crm.deal_timeline, crm.audit_log,"
            " outbox.event, expiration.run, expiration.batch, expiration.failed_item, expiration.batch_tally,"
            " expiration.run_tally, expiration.lateness_tally, expiration.duration_tally, public.poison"
        )
        for job in JOBS:
            self.db.rows("select from expiration.resume(%s)", (job,))
            set_job(
                self.db,
                job,
                batch_size=batch_size,
                max_batches_per_cycle=cap,
                retry_failures_per_cycle=retries,
            )
        for deadline, count in (("-1 hour", overdue), ("200 milliseconds", soon)):
            self.add_leads(deadline, count)
            for status in ACTIVE:
                self.add_bookings(deadline, status, count)
        for items in (self.leads, self.bookings):
            for item_id in items[:bad]:
                self.poison_item(item_id)

    def teardown(self) -> None:
        try:
            for connection in self.open.values():
                self.end(connection, "rollback")
            self.settle()
        finally:
            for connection in self.sessions:
                connection.close()

    def settle(self) -> None:
        """When everybody has gone and all is mended, a few cycles leave nothing that is due."""
        self.db.rows("truncate public.poison")
        last = self.session("last")
        for job in JOBS:
            self.db.rows("select from expiration.resume(%s)", (job,))
            set_job(self.db, job, batch_size=50, max_batches_per_cycle=10, retry_failures_per_cycle=100)
            for _ in range(2):
                last.execute("call expiration.run_job(%s)", (job,))
            as_of = self.db.value("select max(as_of) from expiration.run where job = %s", (job,))
            assert self.db.rows(LEFT_BEHIND, (job, as_of)) == []
        assert self.db.rows("select * from expiration.failed_item") == []
        self.check()

    # ------------------------------------------------------------------------------ after every step

    @invariant()
    def check(self) -> None:
        clock = self.db.value("select clock_timestamp()")
        for table, query in ROWS.items():
            now = {row[0]: Item(*row) for row in self.db.rows(query)}
            assert now.keys() >= self.before[table].keys(), f"{table} have vanished"
            for after in now.values():
                before = self.before[table].get(after.id)
                if before is not None and before != after:
                    assert after.version == before.version + 1, (before, after)
                    assert (before.status, after.status) in STEPS[table], (before, after)
                if after.status in EXPIRED.values():
                    assert before is None or after.deadline == before.deadline, (before, after)
                    assert after.expired_at is not None, after
                    assert after.deadline < after.expired_at <= clock, after
                    assert after.updated_at == after.expired_at, after
            self.before[table] = now
        children = set(self.db.rows(CHILDREN))
        assert children >= self.children, "a deal or fixation has changed"
        self.children = children
        # a command may take an item away that is on the list; the next cycle clears it
        assert_consistent(self.db, ignore=["a failed item is neither expired nor twice on the list"])
        assert self.db.rows(EXPIRED_AND_FAILED) == []
        assert self.db.rows(SOLD_TOO_EARLY) == []

    # ------------------------------------------------------------------------------ the CRM's own work

    @rule(deadline=st.sampled_from(DEADLINES), count=st.integers(1, 5))
    def add_leads(self, deadline: str, count: int) -> None:
        rows = self.db.rows(
            "insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)"
            " select gen_random_uuid(), gen_random_uuid(), now() + %s::interval"
            " from generate_series(1, %s) returning id, tenant_id",
            (deadline, count),
        )
        if not rows:
            return
        self.leads += [row[0] for row in rows]
        self.db.rows("insert into crm.deals (lead_id, tenant_id) values (%s, %s)", rows[0])
        self.db.rows("insert into crm.fixations (lead_id, tenant_id) values (%s, %s)", rows[0])

    @rule(deadline=st.sampled_from(DEADLINES), status=st.sampled_from(ACTIVE), count=st.integers(1, 5))
    def add_bookings(self, deadline: str, status: str, count: int) -> None:
        rows = self.db.rows(
            "insert into crm.bookings"
            " (tenant_id, deal_id, property_object_id, status, reserve_expires_at, booking_expires_at)"
            " select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), %(status)s, d.at,"
            " case when %(status)s = 'Booked' then d.at end from generate_series(1, %(count)s)"
            " cross join (select now() + %(deadline)s::interval as at) as d returning id",
            {"status": status, "deadline": deadline, "count": count},
        )
        self.bookings += [row[0] for row in rows]

    @rule(place=st.integers(0, len(PROPERTIES) - 1), ahead=st.sampled_from(AHEAD))
    def reserve(self, place: int, ahead: str) -> None:
        reserve = (
            "select id from crm.reserve_property(gen_random_uuid(), gen_random_uuid(), %s,"
            " clock_timestamp() + %s::interval)"
        )
        try:
            row = self.session("manager").execute(reserve, (PROPERTIES[place], ahead)).fetchone()
        except psycopg.Error as error:
            must_be_one_of(error, "XP105", "55P03")
        else:
            assert row is not None
            self.bookings.append(row[0])

    @rule()
    def free(self) -> None:
        """The chessboard receives all events there are, those that it has had as well."""
        self.db.rows(
            "select chessboard.free_property(e.id, e.aggregate_id, (e.payload ->> 'propertyObjectId')::uuid,"
            " e.tenant_id, e.payload ->> 'phase', e.occurred_at)"
            " from outbox.event as e where e.event_type = 'BookingExpiredEvent'"
        )

    def command(self, connection: Connection, name: str, item_id: UUID, ahead: str, *, stale: bool) -> None:
        """Gives a command with the version that was read, or with one from before."""
        table, function = (
            ("leads", "extend_lead") if name == "extend lead" else ("bookings", f"{name}_booking")
        )
        version = connection.execute(
            f"select version from crm.{table} where id = %s".encode(), (item_id,)
        ).fetchone()
        assert version is not None
        deadline = "" if name == "cancel" else f", clock_timestamp() + interval '{ahead}'"
        connection.execute(
            f"select from crm.{function}(%s, %s{deadline})".encode(), (item_id, version[0] - stale)
        )
        assert not stale, f"{name} {item_id} was done with a stale version"

    @precondition(lambda self: self.bookings)
    @rule(
        name=st.sampled_from(COMMANDS),
        place=st.integers(0, 1000),
        ahead=st.sampled_from(AHEAD),
        stale=st.sampled_from([False, False, True]),
    )
    def command_on_booking(self, name: str, place: int, ahead: str, *, stale: bool) -> None:
        item_id = self.bookings[place % len(self.bookings)]
        try:
            self.command(self.session("manager"), name, item_id, ahead, stale=stale)
        except psycopg.Error as error:
            must_be_one_of(error, "55P03", *(["XP103"] if stale else ["XP104", "XP009"]))

    @precondition(lambda self: self.leads)
    @rule(
        place=st.integers(0, 1000),
        ahead=st.sampled_from(AHEAD),
        stale=st.sampled_from([False, False, True]),
    )
    def extend_lead(self, place: int, ahead: str, *, stale: bool) -> None:
        item_id = self.leads[place % len(self.leads)]
        try:
            self.command(self.session("manager"), "extend lead", item_id, ahead, stale=stale)
        except psycopg.Error as error:
            must_be_one_of(error, "55P03", "XP103" if stale else "XP009")

    @precondition(lambda self: "manager" not in self.open and (self.leads or self.bookings))
    @rule(name=st.sampled_from([*COMMANDS, "extend lead"]), place=st.integers(0, 1000))
    def command_in_flight(self, name: str, place: int) -> None:
        """A manager's transaction that stays open: the jobs pass over its item."""
        if items := self.leads if name == "extend lead" else self.bookings:
            item_id = items[place % len(items)]
            self.in_transaction(
                "manager",
                lambda connection: self.command(connection, name, item_id, "1 hour", stale=False),
                *("55P03", "XP104", "XP009"),
            )

    # ------------------------------------------------------------------------------ poison

    @precondition(lambda self: self.leads or self.bookings)
    @rule(place=st.integers(0, 1000), count=st.integers(1, 4))
    def poison(self, place: int, count: int) -> None:
        items = self.leads + self.bookings
        for number in range(count):
            self.poison_item(items[(place + number) % len(items)])

    def poison_item(self, item_id: UUID) -> None:
        self.db.rows("insert into public.poison values (%s) on conflict do nothing", (item_id,))
        self.poisoned.add(item_id)

    @precondition(lambda self: self.poisoned)
    @rule(every=st.booleans())
    def mend(self, *, every: bool) -> None:
        for item_id in sorted(self.poisoned)[: None if every else 1]:
            self.db.rows("delete from public.poison where id = %s", (item_id,))
            self.poisoned.discard(item_id)

    # ------------------------------------------------------------------------------ drivers

    @rule(
        job=st.sampled_from(JOBS),
        driver=st.sampled_from(["psql", "pg_cron"]),
        back=st.sampled_from(["0", "0", "0", "1 minute", "2 hours", "30 days"]),
    )
    def call_run_job(self, job: str, driver: str, back: str) -> None:
        """A whole cycle by CALL; with the clock set back, what has fallen due since is left alone."""
        paused = self.db.value("select paused_at is not null from expiration.job where name = %s", (job,))
        self.session(driver, application_name=driver).execute(
            f"call expiration.run_job(%s, now() - interval '{back}')".encode(), (job,)
        )
        as_of, actual_driver, *ending = self.db.rows(
            "select as_of, driver, status, reason from expiration.run"
            " where job = %s and driver in ('psql', 'pg_cron') order by started_at desc limit 1",
            (job,),
        )[0]
        assert actual_driver == driver
        allowed = [["completed", "drained"], ["completed", "locked"], ["capped", "capped"]]
        if paused:
            allowed = [["skipped", "paused"]]
        elif driver == "pg_cron":
            # a cycle that began in the minute before
            allowed.append(["skipped", "overlap"])
        assert ending in allowed
        if ending == ["completed", "drained"]:
            assert self.db.rows(LEFT_BEHIND, (job, as_of)) == []

    @precondition(lambda self: len(self.runs) < 2)
    @rule(job=st.sampled_from(JOBS), instance=st.sampled_from(["a", "b"]), pooled=st.booleans())
    def start_run(self, job: str, instance: str, *, pooled: bool) -> None:
        connection = self.connect()
        row = connection.execute(
            "select id, status, reason from expiration.start_run(%s, 'pyrunner', %s, pooled => %s)",
            (job, instance, pooled),
        ).fetchone()
        assert row is not None
        run_id, status, reason = row
        if status == "skipped":
            assert reason in ("paused", "overlap")
            connection.close()
        else:
            self.runs[f"{job} {instance}"] = Run(connection, run_id)

    @precondition(lambda self: self.runs)
    @rule(place=st.integers(0, 1), batches=st.integers(1, 3))
    def run_batches(self, place: int, batches: int) -> None:
        name = sorted(self.runs)[place % len(self.runs)]
        run = self.runs[name]
        for _ in range(batches):
            row = run.connection.execute(
                "select state, reason from expiration.run_batch(%s)", (run.id,)
            ).fetchone()
            assert row is not None
            state, reason = row
            if state == "done":
                run.connection.execute("select from expiration.finish_run(%s, %s)", (run.id, reason))
                run.connection.close()
                del self.runs[name]
                return

    @precondition(lambda self: self.runs)
    @rule(place=st.integers(0, 1))
    def driver_crashes(self, place: int) -> None:
        """Its run is known to be abandoned; behind a pooler only by a long silence."""
        run = self.runs.pop(sorted(self.runs)[place % len(self.runs)])
        silent = self.db.value("select backend_start is null from expiration.run where id = %s", (run.id,))
        self.end(run.connection, "crash")
        if silent:
            self.db.rows("select from expiration.reap_runs()")
            assert self.db.value("select status from expiration.run where id = %s", (run.id,)) == "running"
            self.db.rows(
                "update expiration.batch set finished_at = finished_at - interval '1 hour' where run_id = %s",
                (run.id,),
            )
            self.db.rows(
                "update expiration.run set started_at = started_at - interval '1 hour' where id = %s",
                (run.id,),
            )
        self.db.rows("select from expiration.reap_runs()")
        assert self.db.value("select status from expiration.run where id = %s", (run.id,)) == "abandoned"

    @precondition(lambda self: "batch" not in self.open)
    @rule(
        phase=st.sampled_from(sorted(EXPIRED)),
        size=st.integers(1, 6),
        back=st.sampled_from(["0", "1 minute"]),
    )
    def lone_batch_in_flight(self, phase: str, size: int, back: str) -> None:
        """Somebody's own transaction that expires items, and is left open."""
        call = "leads_batch(" if phase == "Lead" else f"bookings_batch('{phase}', "
        self.in_transaction(
            "batch",
            lambda connection: connection.execute(
                f"select from crm.expire_{call}now() - interval '{back}', {size})".encode()
            ),
        )

    @precondition(lambda self: self.open)
    @rule(place=st.integers(0, 1), how=st.sampled_from(ENDS))
    def transaction_ends(self, place: int, how: str) -> None:
        self.end(self.open.pop(sorted(self.open)[place % len(self.open)]), how)

    @precondition(lambda self: not self.open)
    @rule(job=st.sampled_from(JOBS))
    def call_crashes_in_a_batch(self, job: str) -> None:
        """The backend of a CALL is terminated while its batch waits to write the audit rows."""
        keeper = self.session("keeper")
        driver_connection = self.connect()
        driver_connection.execute("set lock_timeout = 0")
        with keeper.transaction():
            keeper.execute("lock table crm.audit_log in share mode")
            driver = Background(driver_connection, lambda c: c.execute("call expiration.run_job(%s)", (job,)))
            waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
            wait_until(lambda: not driver.is_running() or self.db.value(waits, (driver.pid,)))
            crashed = driver.is_running()
            if crashed:
                self.db.terminate(driver.pid)
        if not crashed:
            # there was nothing to expire
            driver.result()
            return
        with pytest.raises(psycopg.OperationalError):
            driver.result()
        assert self.db.rows("select job, expired from expiration.reap_runs(%s)", (job,)) == [(job, 0)]

    # ------------------------------------------------------------------------------ the control plane

    @rule(
        job=st.sampled_from(JOBS),
        what=st.sampled_from(["pause", "resume", "resume", "stop", "retry_failed", "upkeep"]),
    )
    def operate(self, job: str, what: str) -> None:
        operator = self.session("operator")
        if what == "upkeep":
            operator.execute("call expiration.run_upkeep()")
        else:
            operator.execute(f"select from expiration.{what}(%s)".encode(), (job,))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.requirement("L2", "L5", "L9", "L10", "L11", "L23", "B5", "B6", "B7", "B8", "B9")
def test_whatever_happens_each_transition_has_exactly_one_event(
    db: Database, record_property: Callable[[str, object], None]
) -> None:
    """CI takes the same examples every time; PYRUNNER_TEST_EXAMPLES asks for more.

    PYRUNNER_TEST_SEED repeats others, and shortens what fails, which takes minutes.
    """
    db.rows("create table public.poison (id uuid primary key)")
    db.rows("grant select on public.poison to crm_owner")
    for table in ("leads", "bookings"):
        add_trigger(
            db,
            f"crm.{table}",
            "if new.status like '%Expired' and exists (select from public.poison as p where p.id = new.id)"
            " then raise exception 'poisoned'; end if;",
            at="before update",
            name=f"poison_{table}",
        )
    given = os.environ.get("PYRUNNER_TEST_SEED")
    in_ci = "CI" in os.environ and given is None
    number = int(given) if given else random.getrandbits(32)
    if not in_ci:
        record_property("PYRUNNER_TEST_SEED", number)
        sys.stdout.write(f"PYRUNNER_TEST_SEED={number}\n")

    class Seeded(Machine):
        def __init__(self) -> None:
            super().__init__(db)

    run_state_machine_as_test(
        Seeded if in_ci else seed(number)(Seeded),
        settings=settings(
            max_examples=int(os.environ.get("PYRUNNER_TEST_EXAMPLES", "25")),
            stateful_step_count=30,
            deadline=None,
            derandomize=in_ci,
            database=None,
            phases=[Phase.generate, Phase.shrink] if given else [Phase.generate],
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

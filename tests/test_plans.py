"""The plans of the engine's statements, as auto_explain saw them while they ran."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from tests.servers import Connection, Database, Server, need

SMALL: Final = 10_000
BIG: Final = 3_000_000
DUE: Final = 2_000

# a row a minute, in an order of their own; the first DUE of each table are overdue, the others lie ahead
FILL_LEADS: Final = """
insert into crm.leads (id, tenant_id, executor_agent_user_id, expires_at)
select
    i.id, '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002',
    now() + make_interval(mins => (n * %(stride)s %% %(rows)s - %(due)s)::integer)
from generate_series(0, %(rows)s::bigint - 1) as n
cross join lateral (select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid as id) as i
"""
FILL_BOOKINGS: Final = """
insert into crm.bookings (
    id, tenant_id, deal_id, property_object_id, status, reserve_expires_at, booking_expires_at
)
select
    i.id, '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002', i.id,
    case n %% 2 when 0 then 'Reserved' else 'Booked' end,
    case n %% 2 when 0 then d.deadline end,
    case n %% 2 when 1 then d.deadline end
from generate_series(0, %(rows)s::bigint - 1) as n
cross join lateral (select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid as id) as i
cross join lateral (
    select now() + make_interval(mins => (n * %(stride)s %% %(rows)s - %(due)s)::integer) as deadline
) as d
"""

PHASES: Final = {
    "Lead": ("crm.expire_leads_batch(", "leads", "ix_leads_expires_at", "expires_at", "Active"),
    "Reserve": (
        "crm.expire_bookings_batch(phase => 'Reserve', ",
        "bookings",
        "ix_bookings_reserve_expires_at",
        "reserve_expires_at",
        "Reserved",
    ),
    "Booking": (
        "crm.expire_bookings_batch(phase => 'Booking', ",
        "bookings",
        "ix_bookings_booking_expires_at",
        "booking_expires_at",
        "Booked",
    ),
}
JOBS: Final = {"Lead": "lead-expiration", "Reserve": "booking-expiration", "Booking": "booking-expiration"}

# what the planner may have been told, by statements that a test takes back
STATISTICS: Final = {
    "fresh": "",
    "none": """
        delete from pg_statistic where starelid in ('crm.leads'::regclass, 'crm.bookings'::regclass);
        update pg_class set reltuples = -1, relpages = 0 where relnamespace = 'crm'::regnamespace
    """,
    "of an empty table": """
        delete from pg_statistic where starelid in ('crm.leads'::regclass, 'crm.bookings'::regclass);
        update pg_class set reltuples = 0, relpages = 0 where relnamespace = 'crm'::regnamespace
    """,
    "a single row": """
        update pg_class set reltuples = 1, relpages = 1 where relnamespace = 'crm'::regnamespace
    """,
    "a thousand times too many rows": """
        update pg_class set reltuples = reltuples * 1000 where relnamespace = 'crm'::regnamespace
    """,
    "a huge index": """
        update pg_class set relpages = 100000000, reltuples = 1e10
        where relname in (
            'ix_leads_expires_at', 'ix_bookings_reserve_expires_at', 'ix_bookings_booking_expires_at'
        )
    """,
}


@dataclass(frozen=True)
class Plan:
    """One statement that was executed, with the plan it had."""

    query: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """All nodes, from the top down."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    @property
    def buffers(self) -> int:
        """Pages touched, in the cache or not."""
        return int(self.root["Shared Hit Blocks"]) + int(self.root["Shared Read Blocks"])

    def __str__(self) -> str:
        return "\n".join(
            f"{node['Node Type']} {node.get('Index Name', node.get('Relation Name', ''))}"
            f" rows {node['Actual Rows']} x {node['Actual Loops']}"
            for node in self.nodes()
        )


class Explained:
    """A session whose statements, and those of the functions that they call, are explained."""

    def __init__(self, database: Database) -> None:
        self.connection = database.connect(autocommit=False)
        self._plans: list[Plan] = []
        try:
            self.connection.execute("load 'auto_explain'")
        except psycopg.errors.UndefinedFile:
            need(False, f"auto_explain is not there in {database.server.source}")
        for name, value in {
            "log_min_duration": "0",
            "log_nested_statements": "on",
            "log_analyze": "on",
            "log_buffers": "on",
            "log_timing": "off",
            "log_triggers": "off",
            "log_format": "json",
            "log_level": "notice",
        }.items():
            self.connection.execute(
                sql.SQL("set auto_explain.{} = {}").format(sql.Identifier(name), sql.Literal(value))
            )
        self.connection.commit()
        self.connection.add_notice_handler(self._keep)

    def _keep(self, notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if text.startswith("duration:"):
            explained = json.loads(text[text.index("{") :])
            self._plans.append(Plan(" ".join(explained["Query Text"].split()), explained["Plan"]))

    def plans(self, statement: str, parameters: dict[str, Any] | None = None) -> list[Plan]:
        """Executes a statement; the plans of it and of what its functions executed, the innermost first."""
        self._plans.clear()
        self.connection.execute(statement.encode(), parameters)
        return list(self._plans)

    def claim(self, phase: str, **arguments: str) -> Plan:
        """Does one batch; the plan of its claim."""
        return claim_of(self.plans(batch(phase, **arguments)), phase)


def batch(phase: str, **arguments: str) -> str:
    """A call of a phase's batch function."""
    given = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    return f"select * from {PHASES[phase][0]}{given or 'as_of => now()'})"


def claim_of(plans: list[Plan], phase: str) -> Plan:
    """The one claim among the plans: what locks rows of the phase's table by its deadline."""
    _, table, _, column, status = PHASES[phase]
    found = [
        plan
        for plan in plans
        if "skip locked" in plan.query
        and f"crm.{table}" in plan.query
        and f"order by {table[0]}.{column}" in plan.query
        and status in plan.query
    ]
    assert len(found) == 1, [plan.query for plan in plans]
    return found[0]


def assert_reads_by_its_index(plan: Plan, phase: str, index: str | None = None) -> None:
    """The claim walks its partial index in order and stops at the batch's end."""
    table = PHASES[phase][1]
    scans = [node for node in plan.nodes() if node.get("Relation Name") == table]
    assert [(node["Node Type"], node.get("Index Name")) for node in scans] == [
        ("Index Scan", index or PHASES[phase][2])
    ], str(plan)
    assert scans[0]["Actual Loops"] == 1, str(plan)
    assert [node["Node Type"] for node in plan.nodes() if node["Node Type"] == "Sort"] == [], str(plan)


def assert_reads_only(plans: list[Plan], rows: int) -> None:
    """None of the statements reads more than so many leads or bookings, be it by an index."""
    for plan in plans:
        for node in plan.nodes():
            if node.get("Relation Name") in ("leads", "bookings") and node["Actual Loops"] > 0:
                assert node["Node Type"] != "Seq Scan", f"{plan.query}\n{plan}"
                dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                read = (node["Actual Rows"] + dropped) * node["Actual Loops"]
                assert read <= rows, f"{read} rows are read by: {plan.query}\n{plan}"


def fill(database: Database, rows: int) -> None:
    """Leads and bookings with up-to-date statistics; nobody else changes those."""
    for table in ("leads", "bookings", "failed_item"):
        schema = "expiration" if table == "failed_item" else "crm"
        database.rows(
            sql.SQL("alter table {}.{} set (autovacuum_enabled = off)").format(
                sql.Identifier(schema), sql.Identifier(table)
            )
        )
    # what was written together falls due far apart; in the big tables together, which loads faster
    numbers = {"rows": rows, "due": DUE, "stride": 7919 if rows == SMALL else 1}

    def load(query: str) -> Callable[[Connection], int]:
        return lambda connection: connection.execute(query.encode(), numbers).rowcount

    loads = [database.background(load(query)) for query in (FILL_LEADS, FILL_BOOKINGS)]
    assert [one.result(timeout=280) for one in loads] == [rows, rows]
    # hint bits and the visibility map, so that reads do not depend on who reads first
    database.rows("vacuum analyze crm.leads, crm.bookings")


@pytest.fixture(scope="module")
def small_db(server: Server) -> Iterator[Database]:
    with server.database() as database:
        fill(database, SMALL)
        yield database


@pytest.fixture(scope="module")
def big_db(server: Server) -> Iterator[Database]:
    with server.database() as database:
        fill(database, BIG)
        yield database


SIZES: Final = [pytest.param("small_db", id="10k"), pytest.param("big_db", id="3M", marks=pytest.mark.slow)]


@pytest.fixture(params=SIZES)
def explained(request: pytest.FixtureRequest) -> Iterator[Explained]:
    """A session in a database of either size; what the test does in it is taken back."""
    session = Explained(request.getfixturevalue(request.param))
    yield session
    session.connection.rollback()
    session.connection.close()


@pytest.fixture
def small(small_db: Database) -> Iterator[Explained]:
    """A session in the small database; what the test does in it is taken back."""
    session = Explained(small_db)
    yield session
    session.connection.rollback()
    session.connection.close()


# -------------------------------------------------------------------------------------- the claim


@pytest.mark.requirement("L8", "B4")
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("phase", PHASES)
def test_the_claim_uses_its_partial_index_whatever_the_statistics(
    explained: Explained, phase: str, statistics: str
) -> None:
    if STATISTICS[statistics]:
        explained.connection.execute(STATISTICS[statistics].encode())
    plans = explained.plans(batch(phase, batch_size="200"))
    assert_reads_by_its_index(claim_of(plans, phase), phase)
    assert_reads_only(plans, 200)


@pytest.mark.parametrize("phase", PHASES)
def test_the_claim_uses_its_partial_index_after_many_calls(explained: Explained, phase: str) -> None:
    """By then PostgreSQL may have settled for a plan that fits any arguments."""
    for _ in range(12):
        explained.plans(batch(phase, batch_size="10"))
    plans = explained.plans(batch(phase, batch_size="10"))
    assert_reads_by_its_index(claim_of(plans, phase), phase)
    assert_reads_only(plans, 10)


@pytest.mark.parametrize("phase", PHASES)
def test_a_claim_that_begins_idle_keeps_its_plan_when_much_falls_due(
    explained: Explained, phase: str
) -> None:
    for _ in range(12):
        explained.claim(phase, as_of="'2000-01-01'")
    assert_reads_by_its_index(explained.claim(phase, batch_size="200"), phase)


@pytest.mark.parametrize("phase", PHASES)
def test_the_claim_uses_an_index_without_the_id(explained: Explained, phase: str) -> None:
    """A team's own, as the documents name it: the deadline alone."""
    _, table, index, column, _ = PHASES[phase]
    condition = explained.connection.execute(
        "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = %s::regclass",
        (f"crm.{index}",),
    ).fetchone()
    assert condition is not None
    explained.connection.execute(f"drop index crm.{index}".encode())
    explained.connection.execute(f"create index own on crm.{table} ({column}) where {condition[0]}".encode())
    plans = explained.plans(batch(phase, batch_size="200"))
    assert_reads_by_its_index(claim_of(plans, phase), phase, "own")
    # those of one deadline are put in order together, some of the next are read for it
    assert_reads_only(plans, 300)


@pytest.mark.slow
def test_the_claim_uses_its_partial_index_on_every_version(versioned_db: Database) -> None:
    fill(versioned_db, SMALL)
    for statistics in STATISTICS.values():
        session = Explained(versioned_db)
        session.connection.execute((statistics or "select").encode())
        for phase in PHASES:
            plans = session.plans(batch(phase, batch_size="200"))
            assert_reads_by_its_index(claim_of(plans, phase), phase)
            assert_reads_only(plans, 200)
        session.connection.rollback()
        session.connection.close()


@pytest.mark.parametrize("phase", PHASES)
def test_a_whole_cycle_reads_no_table_whole(explained: Explained, phase: str) -> None:
    """The count before it, every batch, what was skipped, whether more is due."""
    start = (
        "select id from expiration.start_run(%(job)s, 'test', batch_size => 150, max_batches_per_cycle => 3)"
    )
    for statistics in ("fresh", "none", "of an empty table"):
        explained.connection.execute((STATISTICS[statistics] or "select").encode())
        plans = explained.plans(start, {"job": JOBS[phase]})
        for _ in range(5):
            plans += explained.plans(
                "select b.* from expiration.run as r cross join expiration.run_batch(r.id) as b"
                " where r.status = 'running'"
            )
        assert len([plan for plan in plans if "skip locked" in plan.query]) >= 3
        assert_reads_only(plans, DUE + 50)
        assert_reads_only([plan for plan in plans if "count(*)" not in plan.query], 151)


def test_statistics_of_another_time_do_not_mislead_the_claim(server: Server) -> None:
    """Analyzed when nothing was Active, or everything was due at once."""
    with server.database() as database:
        fill(database, SMALL)
        shift = "update crm.leads set status = %s, expires_at = expires_at + %s::interval"
        for before, after in (("Archived", "Active"), ("Active", "Active")):
            database.rows(shift, (before, "-1 year"))
            database.rows("vacuum analyze crm.leads")
            database.rows(shift, (after, "1 year"))
            session = Explained(database)
            plans = session.plans(batch("Lead", batch_size="200"))
            assert_reads_by_its_index(claim_of(plans, "Lead"), "Lead")
            assert_reads_only(plans, 200)
            session.connection.rollback()


# -------------------------------------------------------------------------------------- failed items

MARK: Final = """
insert into expiration.failed_item (
    job, phase, item_id, first_failed_at, last_failed_at, sqlstate, message, run_id, row_xmin
)
select
    %(job)s, %(phase)s, coalesce(d.item_id, gen_random_uuid()), now(), now(), '23514', 'bad',
    gen_random_uuid(), coalesce(d.row_xmin, '1')
from generate_series(1, 100000) as n
left join (
    select row_number() over (order by d.deadline, d.item_id) as place, d.item_id, d.row_xmin
    from expiration.due_item as d
    where d.job = %(job)s and d.phase = %(phase)s
    order by 1 limit %(real)s
) as d on d.place = n
"""


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "stale"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_hundred_thousand_failed_items_cost_each_row_one_look_up(
    small: Explained, phase: str, *, analyzed: bool
) -> None:
    """The plan may not walk the failed items for every row, even when it was made for an empty list."""
    real = 500
    small.connection.execute("analyze expiration.failed_item")
    small.claim(phase, as_of="'2000-01-01'")
    small.connection.execute(MARK, {"job": JOBS[phase], "phase": phase, "real": real})
    if analyzed:
        small.connection.execute("analyze expiration.failed_item")
    plan = small.claim(phase, batch_size="200")
    assert_reads_by_its_index(plan, phase)
    scan = next(node for node in plan.nodes() if node.get("Relation Name") == PHASES[phase][1])
    assert scan["Actual Rows"] == 200
    assert scan["Rows Removed by Filter"] == real
    look_ups = [node for node in plan.nodes() if node.get("Relation Name") == "failed_item"]
    assert [node.get("Index Name") for node in look_ups] == ["failed_item_pkey"], str(plan)
    assert look_ups[0]["Actual Loops"] == real + 200
    assert look_ups[0]["Shared Hit Blocks"] + look_ups[0]["Shared Read Blocks"] < 6 * (real + 200), str(plan)


@pytest.mark.parametrize("phase", PHASES)
def test_a_retry_takes_the_longest_waiting_of_many_failed_items_by_their_index(
    small: Explained, phase: str
) -> None:
    small.connection.execute(MARK, {"job": JOBS[phase], "phase": phase, "real": 500})
    small.connection.execute(
        "update expiration.failed_item set last_failed_at = clock_timestamp() - interval '1 day'"
    )
    small.connection.execute("analyze expiration.failed_item")
    plans = small.plans(
        "select expiration.claim_failed(%(job)s, %(phase)s, now(), now(), 100)",
        {"job": JOBS[phase], "phase": phase},
    )
    found = [plan for plan in plans if "order by f.last_failed_at" in plan.query]
    assert len(found) == 1
    scans = [node for node in found[0].nodes() if node.get("Relation Name") == "failed_item"]
    assert [node["Index Name"] for node in scans] == ["ix_failed_item_last_failed_at"], str(found[0])
    assert scans[0]["Actual Rows"] <= 200
    assert_reads_only(plans, 100)


@pytest.mark.slow
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "stale"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_hundred_thousand_failed_items_are_passed_by_one_index_scan(
    big_db: Database, phase: str, *, analyzed: bool
) -> None:
    session = Explained(big_db)
    session.connection.execute("analyze expiration.failed_item")
    session.claim(phase, as_of="'2000-01-01'")
    session.connection.execute(MARK, {"job": JOBS[phase], "phase": phase, "real": 100_000})
    if analyzed:
        session.connection.execute("analyze expiration.failed_item")
    # all of the overdue ones have failed, so look as if from a later time, by the claim itself
    function = "crm.claim_leads(" if phase == "Lead" else f"crm.claim_bookings('{phase}', "
    zero = "00000000-0000-0000-0000-000000000000"
    plans = session.plans(f"select {function}now() + interval '1000 days', 200, '-infinity', '{zero}')")
    plan = claim_of(plans, phase)
    assert_reads_by_its_index(plan, phase)
    look_ups = [node for node in plan.nodes() if node.get("Relation Name") == "failed_item"]
    assert [(node["Index Name"], node["Actual Loops"]) for node in look_ups] == [
        ("failed_item_pkey", 100_200)
    ]
    assert plan.buffers < 8 * 100_200
    session.connection.rollback()
    session.connection.close()


# -------------------------------------------------------------------------------------- pages touched


def pages_of_an_idle_claim(database: Database, phase: str) -> int:
    session = Explained(database)
    plans = [session.claim(phase, as_of="'2000-01-01'") for _ in range(3)]
    session.connection.rollback()
    session.connection.close()
    return plans[-1].buffers


def pages_of_an_idle_cycle(database: Database, job: str) -> int:
    """From the start of a run to its end, all that the functions touch; nothing is due at that time."""
    session = Explained(database)
    cycle = (
        "select f.* from expiration.start_run(%(job)s, 'test', as_of => '2000-01-01') as r"
        " cross join lateral expiration.run_batch(r.id) as b"
        " cross join lateral expiration.finish_run(r.id, b.reason) as f"
    )
    plans = [session.plans(cycle, {"job": job})[-1] for _ in range(3)]
    session.connection.rollback()
    session.connection.close()
    return plans[-1].buffers


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_an_idle_claim_touches_as_few_pages_of_three_million_rows(
    small_db: Database, big_db: Database, phase: str
) -> None:
    few = pages_of_an_idle_claim(small_db, phase)
    many = pages_of_an_idle_claim(big_db, phase)
    assert few <= 10
    # a deeper tree, no more
    assert many <= few + 2


@pytest.mark.slow
@pytest.mark.parametrize("job", ["lead-expiration", "booking-expiration"])
def test_an_idle_cycle_touches_as_few_pages_of_three_million_rows(
    small_db: Database, big_db: Database, job: str
) -> None:
    few = pages_of_an_idle_cycle(small_db, job)
    many = pages_of_an_idle_cycle(big_db, job)
    assert few <= 200
    assert many <= few + 30


# -------------------------------------------------------------------------------------- an old snapshot


def pages_of_claims(session: Explained, batches: int, *, cursor: bool) -> list[int]:
    """Batches of 200 leads, each committed; the pages that each claim touched."""
    pages = []
    after: tuple[dt.datetime | str, str] = ("-infinity", "00000000-0000-0000-0000-000000000000")
    for _ in range(batches):
        plans = session.plans(
            batch("Lead", batch_size="200", after_deadline="%(deadline)s", after_id="%(id)s"),
            {"deadline": after[0], "id": after[1]},
        )
        session.connection.commit()
        pages.append(claim_of(plans, "Lead").buffers)
        if cursor:
            row = session.connection.execute(
                "select last_deadline, last_id from expiration.batch order by started_at desc limit 1"
            ).fetchone()
            assert row is not None
            after = (row[0], row[1])
    return pages


def old_snapshot(database: Database) -> Connection:
    """A session whose snapshot sees the leads as they are now, for as long as it is not closed."""
    connection: Connection = database.connect(autocommit=False)
    connection.execute("set transaction isolation level repeatable read")
    connection.execute("select count(*) from crm.leads")
    return connection


def test_an_old_snapshot_makes_no_batch_dearer_than_the_first(server: Server) -> None:
    """What earlier batches expired cannot be cleaned up; the cursor leaves it behind (field case 19)."""
    with server.database() as database:
        fill(database, SMALL)
        database.rows("update crm.leads set expires_at = expires_at - interval '1 year'")
        database.rows("vacuum analyze crm.leads")
        with old_snapshot(database):
            session = Explained(database)
            job = "lead-expiration"
            row = session.connection.execute(
                "select (expiration.start_run(%s, 'test', batch_size => 200)).id", (job,)
            ).fetchone()
            session.connection.commit()
            assert row is not None
            pages = []
            for _ in range(40):
                plans = session.plans("select * from expiration.run_batch(%(run)s)", {"run": row[0]})
                session.connection.commit()
                pages.append(claim_of(plans, "Lead").buffers)
        assert database.value("select count(*) from crm.leads where status = 'Expired'") == 8_000
        assert max(pages[1:]) <= 1.5 * pages[0], pages


def test_without_the_cursor_an_old_snapshot_makes_batches_dearer(server: Server) -> None:
    """So that the test above shows something."""
    with server.database() as database:
        fill(database, SMALL)
        database.rows("update crm.leads set expires_at = expires_at - interval '1 year'")
        database.rows("vacuum analyze crm.leads")
        with old_snapshot(database):
            pages = pages_of_claims(Explained(database), 40, cursor=False)
            assert pages[-1] > 3 * pages[0], pages
            pages = pages_of_claims(Explained(database), 3, cursor=True)
        assert pages[-1] < pages[0], pages

"""Makers of leads and bookings, callers of the jobs, and the invariants that hold after whatever happened."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from tests.servers import Connection, Database

LEADS = "lead-expiration"
BOOKINGS = "booking-expiration"
JOBS = (LEADS, BOOKINGS)
PHASES = ("Reserve", "Booking")
ACTIVE = {"Lead": "Active", "Reserve": "Reserved", "Booking": "Booked"}
EXPIRED = {"Lead": "Expired", "Reserve": "ReserveExpired", "Booking": "BookingExpired"}
JOB_OF = {"Lead": LEADS, "Reserve": BOOKINGS, "Booking": BOOKINGS}
MAX_VERSION = 2147483647

Where = Database | Connection


def run(
    where: Where, query: LiteralString | sql.SQL | sql.Composed, *parameters: Any
) -> list[tuple[Any, ...]]:
    """Executes one statement on a connection, or as the superuser; its rows, if it has any."""
    if isinstance(where, Database):
        return where.rows(query, parameters or None)
    cursor = where.execute(query, parameters or None)
    return cursor.fetchall() if cursor.description else []


def ids_of(rows: Sequence[tuple[Any, ...]]) -> list[UUID]:
    """The first column of rows."""
    return [row[0] for row in rows]


# ----------------------------------------------------------------------------------------------------- makers


def add_leads(
    where: Where,
    count: int = 1,
    *,
    due: str = "1 day",
    status: str = "Active",
    version: int = 1,
    investor: bool = True,
) -> list[UUID]:
    """Leads whose deadlines passed `due` ago ('-1 day' is ahead), 1 ms apart; ids in deadline order."""
    return ids_of(
        run(
            where,
            "insert into crm.leads (tenant_id, executor_agent_user_id, primary_investor_user_id,"
            " status, expires_at,"
            " expired_at, version)"
            " select gen_random_uuid(), gen_random_uuid(), case when %s then gen_random_uuid() end, %s,"
            " now() - %s::interval + n * interval '1 millisecond', case when %s = 'Expired' then"
            " now() end, %s"
            " from generate_series(1, %s) as n order by n returning id",
            investor, status, due, status, version, count,
        )
    )  # fmt: skip


def add_bookings(
    where: Where,
    count: int = 1,
    *,
    phase: str = "Reserve",
    due: str = "1 day",
    status: str | None = None,
    version: int = 1,
) -> list[UUID]:
    """Bookings whose deadline of that phase passed `due` ago, a millisecond apart; ids in deadline order."""
    return ids_of(
        run(
            where,
            "insert into crm.bookings (tenant_id, deal_id, property_object_id, status, reserve_expires_at,"
            " booking_expires_at, version)"
            " select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), %s,"
            " case when %s = 'Reserve' then d.at else now() - interval '9 days' end,"
            " case when %s = 'Booking' then d.at end, %s"
            " from generate_series(1, %s) as n"
            " cross join lateral (select now() - %s::interval + n * interval '1 millisecond' as at) as d"
            " order by n returning id",
            status or ACTIVE[phase], phase, phase, version, count, due,
        )
    )  # fmt: skip


def add_items(
    where: Where, phase: str, count: int = 1, *, due: str = "1 day", version: int = 1
) -> list[UUID]:
    """Leads for phase Lead, else bookings."""
    if phase == "Lead":
        return add_leads(where, count, due=due, version=version)
    return add_bookings(where, count, phase=phase, due=due, version=version)


def add_poison(where: Where, phase: str, count: int = 1, *, due: str = "2 days") -> list[UUID]:
    """Items whose version cannot grow by one (22003)."""
    return add_items(where, phase, count, due=due, version=MAX_VERSION)


def table_of(phase: str) -> sql.Identifier:
    """crm.leads or crm.bookings."""
    return sql.Identifier("crm", "leads" if phase == "Lead" else "bookings")


def update_items(where: Where, phase: str, ids: Sequence[UUID], change: LiteralString) -> None:
    """Changes rows behind the engine's back: `change` is what stands behind SET."""
    run(
        where,
        sql.SQL("update {} set {} where id = any(%s)").format(table_of(phase), sql.SQL(change)),
        list(ids),
    )


@contextmanager
def held(database: Database, phase: str, ids: Sequence[UUID]) -> Iterator[Connection]:
    """An open transaction that has changed these items, as a manager's command does."""
    connection = database.connect(autocommit=False)
    update_items(connection, phase, ids, "updated_at = now()")
    try:
        yield connection
    finally:
        connection.rollback()
        connection.close()


def add_trigger(
    where: Where,
    table: str,
    body: LiteralString,
    *,
    at: LiteralString = "before insert",
    level: LiteralString = "row",
    name: str = "fault",
    options: LiteralString = "",
) -> None:
    """A trigger of somebody else's on a table: `body` is PL/pgSQL between BEGIN and END."""
    function = sql.Identifier("public", name)
    run(
        where,
        sql.SQL(
            "create function {}() returns trigger language plpgsql as $f$ begin {} return new; end $f$"
        ).format(function, sql.SQL(body)),
    )
    run(
        where,
        sql.SQL("create {} trigger {} {} on {} {} for each {} execute function {}()").format(
            sql.SQL("constraint" if options else ""), sql.Identifier(name), sql.SQL(at),
            sql.Identifier(*table.split(".")), sql.SQL(options), sql.SQL(level), function,
        ),
    )  # fmt: skip


def drop_trigger(where: Where, name: str = "fault") -> None:
    """Mends what add_trigger broke."""
    run(where, sql.SQL("drop function {} cascade").format(sql.Identifier("public", name)))


GATE = 4711


@contextmanager
def gate(database: Database, phase: str, item_id: UUID) -> Iterator[Connection]:
    """Whoever expires that item waits for a lock until the block ends, or until the connection unlocks it."""
    name = f"gate_{phase.lower()}"
    table = "crm.leads" if phase == "Lead" else "crm.bookings"
    keeper = database.connect()
    keeper.execute("select pg_advisory_lock(%s)", (GATE,))
    add_trigger(database, table, "perform pg_advisory_xact_lock_shared(4711);", at="before update", name=name)
    run(database, sql.SQL("drop trigger {} on {}").format(sql.Identifier(name), table_of(phase)))
    run(
        database,
        sql.SQL(
            "create trigger {} before update on {} for each row when (old.id = {}) execute function"
            " public.{}()"
        ).format(sql.Identifier(name), table_of(phase), sql.Literal(str(item_id)), sql.Identifier(name)),
    )
    try:
        yield keeper
    finally:
        keeper.close()


def open_gate(keeper: Connection) -> None:
    """Lets whoever waits go on."""
    keeper.execute("select pg_advisory_unlock_all()")


# ---------------------------------------------------------------------------------------------------- callers


def run_job(where: Where, job: str, as_of: datetime | None = None) -> dict[str, Any]:
    """One cycle by CALL; the run that it was."""
    if isinstance(where, Database):
        where = where.observer
    where.execute("call expiration.run_job(%s, %s)", (job, as_of))
    return last_run(where, job)


def replay_everything(where: Where) -> None:
    """All events once more, in what passes by the clock for the transactions that appended them."""
    run(
        where,
        "insert into outbox.event (created_at, id, aggregate_type, aggregate_id, tenant_id, event_type,"
        " topic, payload, correlation_id, traceparent, replay_id)"
        " select created_at, id, aggregate_type, aggregate_id, tenant_id, event_type, topic,"
        " payload, correlation_id, traceparent, gen_random_uuid() from outbox.event",
    )


def last_run(where: Where, job: str) -> dict[str, Any]:
    """The newest run of a job."""
    connection = where.observer if isinstance(where, Database) else where
    row = (
        connection.cursor(row_factory=dict_row)
        .execute("select * from expiration.run where job = %s order by started_at desc limit 1", (job,))
        .fetchone()
    )
    assert row is not None
    return row


def run_of(where: Where, run_id: UUID) -> dict[str, Any]:
    """One run."""
    connection = where.observer if isinstance(where, Database) else where
    row = (
        connection.cursor(row_factory=dict_row)
        .execute("select * from expiration.run where id = %s", (run_id,))
        .fetchone()
    )
    assert row is not None
    return row


def start_run(connection: Connection, job: str, **arguments: Any) -> dict[str, Any]:
    """The run that expiration.start_run returns."""
    return _record(connection, "expiration.start_run", {"job": job, **arguments})


def run_batch(connection: Connection, run_id: UUID) -> dict[str, Any]:
    """What expiration.run_batch reports."""
    return _record(connection, "expiration.run_batch", {"run_id": run_id})


def finish_run(connection: Connection, run_id: UUID, reason: str | None) -> dict[str, Any]:
    """The run that expiration.finish_run returns."""
    return _record(connection, "expiration.finish_run", {"run_id": run_id, "reason": reason})


def expire_batch(where: Where, phase: str, **arguments: Any) -> dict[str, Any]:
    """What crm.expire_leads_batch or crm.expire_bookings_batch returns."""
    connection = where.observer if isinstance(where, Database) else where
    if phase == "Lead":
        return _record(connection, "crm.expire_leads_batch", arguments)
    return _record(connection, "crm.expire_bookings_batch", {"phase": phase, **arguments})


def transition(where: Where, phase: str, ids: Sequence[UUID]) -> list[UUID]:
    """Those of these ids, whatever they are, that expire when a claim lists them."""
    table, call = (
        ("leads", sql.SQL("crm.expire_leads("))
        if phase == "Lead"
        else ("bookings", sql.SQL("crm.expire_bookings({}, ").format(phase))
    )
    query = sql.SQL(
        "with claimed as (select x.id, t.ctid, t.status from unnest(%s::uuid[]) as x (id)"
        " left join {} as t on x.id = t.id order by t.ctid),"
        " claim as (select row(array_agg(c.id), null, false, array_agg(c.ctid), array_agg(c.status))"
        "::expiration.claim as c from claimed as c)"
        " select {}claim.c, now(), gen_random_uuid()) from claim"
    )
    ((expired,),) = run(where, query.format(sql.Identifier("crm", table), call), list(ids))
    return list(expired)


def release(where: Where) -> None:
    """What the chessboard does about all bookings that have expired."""
    run(
        where,
        "insert into chessboard.release (booking_id, property_object_id, tenant_id, phase, expired_at)"
        " select id, property_object_id, tenant_id, replace(status, 'Expired', ''), updated_at"
        " from crm.bookings where status in ('ReserveExpired', 'BookingExpired') on conflict do nothing",
    )


def drive(connection: Connection, job: str, **arguments: Any) -> dict[str, Any]:
    """One cycle as a driver does it that calls batch by batch, a transaction each; the run that it was."""
    run = start_run(connection, job, **arguments)
    if run["status"] == "skipped":
        return run
    while (report := run_batch(connection, run["id"]))["state"] == "more":
        pass
    return finish_run(connection, run["id"], report["reason"])


def _record(connection: Connection, function: LiteralString, arguments: dict[str, Any]) -> dict[str, Any]:
    named = sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(name)) for name in arguments)
    query = sql.SQL("select * from {}({})").format(sql.Identifier(*function.split(".")), named)
    row = connection.cursor(row_factory=dict_row).execute(query, list(arguments.values())).fetchone()
    assert row is not None
    return row


def set_job(where: Where, job: str, **settings: Any) -> None:
    """Changes settings of a job by expiration.set_job."""
    _record(
        where.observer if isinstance(where, Database) else where,
        "expiration.set_job",
        {"job": job, **settings},
    )


@contextmanager
def refused(sqlstate: str, *parts: str) -> Iterator[pytest.ExceptionInfo[psycopg.Error]]:
    """The block must raise that SQLSTATE with these parts in its message; one of ours has a hint."""
    with pytest.raises(psycopg.Error) as caught:
        yield caught
    diagnostic = caught.value.diag
    assert diagnostic.sqlstate == sqlstate, f"{diagnostic.sqlstate}: {diagnostic.message_primary}"
    for part in parts:
        assert part in (diagnostic.message_primary or "")
    if sqlstate.startswith("XP"):
        assert diagnostic.message_hint


# ---------------------------------------------------------------------------------------------------- readers


def statuses(where: Where, phase: str, ids: Sequence[UUID] | None = None) -> dict[str, int]:
    """How many items have which status."""
    query = sql.SQL(
        "select status, count(*) from {} where %s::uuid[] is null or id = any(%s) group by status"
    ).format(table_of(phase))
    wanted = None if ids is None else list(ids)
    return dict(run(where, query, wanted, wanted))


def item(where: Where, phase: str, item_id: UUID) -> dict[str, Any]:
    """The row of a lead or booking."""
    connection = where.observer if isinstance(where, Database) else where
    query = sql.SQL("select * from {} where id = %s").format(table_of(phase))
    row = connection.cursor(row_factory=dict_row).execute(query, (item_id,)).fetchone()
    assert row is not None
    return row


def events(where: Where) -> list[dict[str, Any]]:
    """All events in the order of insertion."""
    connection = where.observer if isinstance(where, Database) else where
    return (
        connection.cursor(row_factory=dict_row).execute("select * from outbox.event order by seq").fetchall()
    )


def failed_items(where: Where) -> dict[UUID, str]:
    """The failed items with their SQLSTATEs."""
    return dict(run(where, "select item_id, sqlstate from expiration.failed_item"))


def preview(where: Where, job: str, **arguments: Any) -> list[dict[str, Any]]:
    """What expiration.preview says."""
    connection = where.observer if isinstance(where, Database) else where
    named = {"job": job, **arguments}
    query = sql.SQL("select * from expiration.preview({})").format(
        sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(name)) for name in named)
    )
    return connection.cursor(row_factory=dict_row).execute(query, list(named.values())).fetchall()


SNAPSHOT_TABLES = (
    "crm.leads", "crm.bookings", "crm.deals", "crm.fixations", "crm.deal_timeline", "crm.audit_log",
    "outbox.event", "outbox.settings", "expiration.job", "expiration.run", "expiration.batch",
    "expiration.failed_item", "expiration.batch_tally", "expiration.run_tally", "expiration.lateness_tally",
    "expiration.duration_tally", "expiration.trace_position",
)  # fmt: skip


def contents(where: Where, *, locks: bool = False) -> dict[str, list[Any]]:
    """All rows of our tables with their versions, and who has locked them: equal when nothing was changed."""
    query = sql.SQL(
        "select t.ctid::text, t.xmin::text, {} t.tableoid::text, t::text from {} as t order by t::text, 1"
    )
    xmax = sql.SQL("t.xmax::text," if locks else "")
    return {
        name: run(where, query.format(xmax, sql.Identifier(*name.split(".")))) for name in SNAPSHOT_TABLES
    }


@contextmanager
def nothing_changes(database: Database, *, locks: bool = True) -> Iterator[None]:
    """The block must leave every row of our tables exactly as it was, and by default not even lock one."""
    before = contents(database, locks=locks)
    yield
    after = contents(database, locks=locks)
    for name, rows in before.items():
        assert after[name] == rows, f"{name} was changed"


INVARIANTS: dict[str, LiteralString] = {
    "a lead or booking has as many expiration events as transitions to an expired state": """
        select coalesce(a.entity_id, e.aggregate_id), a.n, e.n
        from (
            select entity_type, entity_id, count(*) as n
            from crm.audit_log where action = 'Expire' group by 1, 2
        ) as a
        full join (
            select aggregate_type, aggregate_id, count(*) as n from outbox.event group by 1, 2
        ) as e on a.entity_type = e.aggregate_type and a.entity_id = e.aggregate_id
        where a.n is distinct from e.n""",
    "an expired item was expired by exactly one event, which bears its time": """
        select i.id
        from (
            select id, tenant_id, expired_at, updated_at, status from crm.leads where status = 'Expired'
            union all
            select id, tenant_id, expired_at, updated_at, status from crm.bookings
            where status in ('ReserveExpired', 'BookingExpired')
        ) as i
        where (
            i.expired_at <> i.updated_at
            or 1 <> (
                select count(*) from outbox.event as e
                where
                    e.aggregate_id = i.id and e.tenant_id = i.tenant_id and e.occurred_at = i.expired_at
                    and (e.payload ->> 'expiredAt')::timestamptz = i.expired_at
            )
        )""",
    "nothing expires before its deadline": """
        select id from crm.leads where status = 'Expired' and expires_at >= expired_at
        union all
        select id from crm.bookings where status = 'ReserveExpired' and reserve_expires_at >= expired_at
        union all
        select id from crm.bookings where status = 'BookingExpired' and booking_expires_at >= expired_at""",
    "an active item is not expired and a terminal one is only once": """
        select entity_id from crm.audit_log
        where entity_type = 'Booking' and to_status in ('ReserveExpired', 'BookingExpired', 'Cancelled')
        group by entity_id having count(*) > 1""",
    "a booking's timeline has a card for every change in the audit log": """
        select coalesce(a.entity_id, t.booking_id), a.n, t.n
        from (
            select entity_id, count(*) as n from crm.audit_log where entity_type = 'Booking' group by 1
        ) as a
        full join (
            select booking_id, count(*) as n from crm.deal_timeline group by 1
        ) as t on a.entity_id = t.booking_id
        where a.n is distinct from t.n""",
    "a version has grown by one with every change in the audit log": """
        select i.id, i.version, a.n
        from (
            select id, version, false as made from crm.leads
            union all
            select id, version, exists (
                select from crm.audit_log as r where r.entity_id = b.id and r.action = 'Reserve'
            ) from crm.bookings as b
        ) as i
        cross join lateral (select count(*) as n from crm.audit_log as r where r.entity_id = i.id) as a
        where i.version <> 2147483647 and i.version <> 1 + a.n - i.made::int""",
    "the totals count every event once": """
        select t.n, e.n
        from (select coalesce(sum(expired), 0) as n from expiration.batch_total) as t
        cross join (select count(*) as n from outbox.event) as e
        where t.n <> e.n""",
    "a finished run counts what its batches count": """
        select r.id
        from expiration.run as r
        left join expiration.batch as b on r.id = b.run_id
        where r.status not in ('running')
        group by r.id
        having
            r.expired <> coalesce(sum(b.expired), 0)
            or r.failed <> coalesce(sum(b.failed), 0)
            or r.skipped_locked <> coalesce(sum(b.skipped_locked), 0)
            or r.batches <> count(*) filter (where b.claimed > 0)""",
    "an event bears the id of its run and the trace of its batch": """
        select e.seq
        from outbox.event as e
        where not exists (
            select from expiration.batch as b
            where
                b.run_id = e.correlation_id
                and e.traceparent = '00-' || replace(b.run_id::text, '-', '') || '-'
                    || left(md5(b.run_id::text || ':' || b.number), 16) || '-01'
        )""",
    "a batch counts each item it expired in one bucket of lateness": """
        select b.run_id, b.number
        from expiration.batch as b
        where b.expired <> coalesce((select sum(l.items) from unnest(b.lateness) as l (items)), 0)""",
    "the histogram of lateness is that of the expired bookings": """
        select h.phase, h.le, h.items
        from expiration.lateness_histogram as h
        where
            h.phase <> 'Lead'
            and h.items <> (
                select count(*)
                from (
                    select id, expired_at - reserve_expires_at as lateness from crm.bookings
                    where status = 'ReserveExpired' and h.phase = 'Reserve'
                    union all
                    select id, expired_at - booking_expires_at from crm.bookings
                    where status = 'BookingExpired' and h.phase = 'Booking'
                ) as i
                where
                    (h.le = 'Infinity' or i.lateness <= make_interval(secs => h.le))
                    -- one that was made as expired was expired by nobody
                    and exists (select from outbox.event as e where e.aggregate_id = i.id)
            )""",
    "the histograms count every item and every cycle": """
        select t.job, t.phase, t.expired
        from expiration.batch_total as t
        left join expiration.lateness_histogram as h on t.phase = h.phase and h.le = 'Infinity'
        where t.expired is distinct from h.items
        union all
        select t.job, null, sum(t.runs)
        from expiration.run_total as t
        inner join expiration.duration_histogram as h on t.job = h.job and h.le = 'Infinity'
        where t.status in ('completed', 'capped', 'stopped', 'failed')
        group by t.job
        having sum(t.runs) - min(h.runs) <> (
            select count(*) from expiration.run as r
            where
                r.job = t.job
                and r.driver = 'sql'
                and r.status in ('completed', 'capped', 'stopped', 'failed')
        )""",
    "event ids and sequence numbers are unique": """
        select id from outbox.event group by id having count(*) > 1
        union all
        select null from outbox.event group by seq having count(*) > 1""",
    "a failed item is neither expired nor twice on the list": """
        select f.item_id
        from expiration.failed_item as f
        where not exists (
            select from crm.leads where id = f.item_id and status = 'Active'
            union all
            select from crm.bookings
            where id = f.item_id and status in ('Reserved', 'AwaitingPayment', 'Booked')
        )""",
}


def assert_consistent(database: Database, *, ignore: Sequence[str] = ()) -> None:
    """Checks all invariants of the tables as they are committed now."""
    for sentence, query in INVARIANTS.items():
        if sentence in ignore:
            continue
        wrong = database.rows(query)
        assert not wrong, f"violated: {sentence}: {wrong[:5]}"

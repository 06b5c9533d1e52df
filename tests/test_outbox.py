"""The outbox: what events look like, that they never change, that an insert never lacks a partition."""

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from psycopg import sql

from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    assert_consistent,
    contents,
    events,
    nothing_changes,
    refused,
    run_job,
    set_job,
)
from tests.servers import Database, Server

APPEND = (
    "insert into outbox.event"
    " (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
    " select now() + %s::interval, 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', 't',"
    " '{}'"
)
PARTITIONS = "select name from outbox.partition where not is_default order by name"


@pytest.fixture
def db(db: Database) -> Database:
    """A fresh database in which upkeep has not made a partition yet."""
    for (name,) in db.rows(PARTITIONS):
        db.rows(sql.SQL("drop table outbox.{}").format(sql.Identifier(name)))
    return db


def test_an_installation_has_the_partitions_of_today_and_the_days_ahead(server: Server) -> None:
    with server.database() as fresh:
        assert fresh.value(
            "select count(*) from outbox.partition where not is_default and to_time > now()"
        ) == fresh.value("select partitions_ahead + 1 from outbox.settings")


def names(first: date, count: int) -> list[tuple[str]]:
    """The names of the partitions of so many days."""
    return [(f"event_{first + timedelta(days=day):%Y%m%d}",) for day in range(count)]


def today(db: Database) -> date:
    """By the server's clock, in UTC."""
    day: date = db.value("select (now() at time zone 'UTC')::date")
    return day


@pytest.mark.requirement("L10", "B8")
@pytest.mark.parametrize("time_zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
@pytest.mark.parametrize("style", ["ISO, MDY", "German, DMY"])
def test_times_in_a_payload_are_utc_with_microseconds_wherever_the_session_is(
    db: Database, time_zone: str, style: str
) -> None:
    add_leads(db)
    add_bookings(db, phase="Booking")
    driver = db.connect()
    driver.execute(
        "select set_config('timezone', %s, false), set_config('datestyle', %s, false)", (time_zone, style)
    )
    for job, as_of in ((LEADS, "2026-01-31T23:59:59.000007"), (BOOKINGS, "2026-01-31T23:59:59.9")):
        db.rows("update crm.leads set expires_at = '2020-01-01'")
        db.rows("update crm.bookings set booking_expires_at = '2020-01-01'")
        # a time of a day in UTC is read alike in every style
        driver.execute("call expiration.run_job(%s, (%s || 'Z')::timestamptz)", (job, as_of))
    assert [event["payload"]["expiredAt"] for event in events(db)] == [
        "2026-01-31T23:59:59.000007Z",
        "2026-01-31T23:59:59.900000Z",
    ]


@pytest.mark.requirement("L10", "B8")
def test_names_in_a_payload_are_camel_case_and_ids_are_text(db: Database) -> None:
    add_leads(db, investor=False)
    for phase in ("Reserve", "Booking"):
        add_bookings(db, phase=phase)
    run_job(db, LEADS)
    run_job(db, BOOKINGS)
    for event in events(db):
        for name, value in event["payload"].items():
            assert re.fullmatch("[a-z]+([A-Z][a-z]+)*", name)
            assert value is None or isinstance(value, str)
    # a null is there, and not left out
    assert events(db)[0]["payload"]["investorUserId"] is None


@pytest.mark.requirement("B12", "L17")
def test_an_event_bears_its_runs_id_as_correlation_and_as_trace_with_a_span_a_batch(db: Database) -> None:
    add_leads(db, 25)
    set_job(db, LEADS, batch_size=10)
    run = run_job(db, LEADS)
    appended = events(db)
    assert {event["correlation_id"] for event in appended} == {run["id"]}
    spans = []
    for event in appended:
        # W3C trace context, version 00, sampled; neither id may be all zeroes
        match = re.fullmatch("00-([0-9a-f]{32})-([0-9a-f]{16})-01", event["traceparent"])
        assert match
        assert match[1] == run["id"].hex != "0" * 32
        assert match[2] != "0" * 16
        spans.append(match[2])
    assert [spans.count(span) for span in dict.fromkeys(spans)] == [10, 10, 5]


@pytest.mark.requirement("L8", "L10")
def test_events_of_a_batch_are_appended_in_the_order_of_their_deadlines(db: Database) -> None:
    add_leads(db, 300)
    # the heap's order, the ids' order and the deadlines' order have nothing to do with each other
    db.rows("update crm.leads set expires_at = now() - interval '1 day' * random()")
    in_order = [row[0] for row in db.rows("select id from crm.leads order by expires_at")]
    run_job(db, LEADS)
    assert [event["aggregate_id"] for event in events(db)] == in_order


@pytest.mark.requirement("L11", "X3")
def test_an_event_lies_in_the_log_where_its_column_says(db: Database) -> None:
    before = db.value("select pg_current_wal_insert_lsn()::text")
    add_leads(db, 3)
    run_job(db, LEADS)
    assert (
        db.value(
            "select count(*) from outbox.event where lsn > %s and lsn < pg_current_wal_insert_lsn()",
            (before,),
        )
        == 3
    )


@pytest.mark.requirement("X3")
@pytest.mark.parametrize("table", ["outbox.event", "outbox.event_default", "a_partition_made_ahead"])
@pytest.mark.parametrize("role", ["superuser", "crm_owner"])
def test_an_event_can_be_changed_by_nobody_by_no_table(db: Database, table: str, role: str) -> None:
    db.rows(APPEND, ("0",))
    db.rows("select * from outbox.make_partitions(2)")
    db.rows(APPEND, ("0",))
    db.rows(APPEND, ("90 days",))
    if table == "a_partition_made_ahead":
        table = f"outbox.{db.value(PARTITIONS)}"
    connection = db.connect()
    if role != "superuser":
        connection.execute("set role crm_owner")
    with nothing_changes(db, locks=False), refused("XP010", "UPDATE", "append only"):
        connection.execute(f"update {table} set payload = '{{\"x\": 1}}'".encode())
    with refused("XP010"):
        connection.execute(f"update {table} set topic = topic where seq > 0".encode())


@pytest.mark.requirement("X3")
def test_partitions_are_made_ahead_for_today_and_the_days_to_come_by_utc(db: Database) -> None:
    assert db.rows(PARTITIONS) == []
    first = today(db)
    made = db.rows("select partition, events_moved from outbox.make_partitions()")
    assert [name for name, _ in made] == [name for (name,) in names(first, 8)]
    assert db.rows(PARTITIONS) == names(first, 8)
    assert db.rows("select partition from outbox.make_partitions()") == []
    assert db.rows("select partition from outbox.make_partitions(9)") == names(first + timedelta(days=8), 2)
    db.rows("update outbox.settings set partitions_ahead = 10")
    db.rows("call expiration.run_upkeep()")
    assert db.rows(PARTITIONS) == names(first, 11)
    midnight = datetime(first.year, first.month, first.day, tzinfo=UTC)
    assert db.rows(
        "select from_time, to_time from outbox.partition where not is_default order by name limit 1"
    ) == [(midnight, midnight + timedelta(days=1))]


@pytest.mark.requirement("X3")
@pytest.mark.parametrize("time_zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kolkata"])
def test_a_partition_is_a_day_of_utc_whatever_the_session_thinks(db: Database, time_zone: str) -> None:
    connection = db.connect(options=f"-c timezone={time_zone} -c datestyle=German")
    connection.execute("select * from outbox.make_partitions(1)")
    assert db.rows(PARTITIONS) == names(today(db), 2)
    (edges,) = db.rows(
        "select bool_and(from_time at time zone 'UTC' = date_trunc('day', from_time at time zone 'UTC')"
        " and to_time - from_time = interval '1 day' and to_char(from_time at time zone 'UTC',"
        " '\"event_\"YYYYMMDD') = name)"
        " from outbox.partition where not is_default"
    )
    assert edges == (True,)
    # the abbreviations of zones that such a session prints are not even unique
    epochs = "select name, extract(epoch from from_time)::bigint from outbox.partition order by name"
    assert connection.execute(epochs).fetchall() == db.rows(epochs)


@pytest.mark.requirement("L10", "B8")
def test_an_insert_never_fails_for_want_of_a_partition(db: Database) -> None:
    db.rows("select * from outbox.make_partitions(0)")
    for ahead in ("-400 days", "0", "1 day", "400 days"):
        db.rows(APPEND, (ahead,))
    assert db.value("select count(*) from outbox.event_default") == 3
    assert db.value("select count(*) from outbox.event") == 4


@pytest.mark.requirement("X3")
def test_events_that_fell_into_the_default_partition_are_brought_home(db: Database) -> None:
    add_leads(db, 5)
    run_job(db, LEADS)
    for ahead in ("-3 days", "2 days", "30 days"):
        db.rows(APPEND, (ahead,))
    assert db.value("select count(*) from outbox.event_default") == 8
    before = db.rows("select * from outbox.event order by seq")
    moved = db.rows("select partition, events_moved from outbox.make_partitions(2) where events_moved > 0")
    first = today(db)
    expected = {-3: 1, 0: 5, 2: 1, 30: 1}
    assert moved == [
        (f"event_{first + timedelta(days=day):%Y%m%d}", count) for day, count in expected.items()
    ]
    assert db.value("select count(*) from only outbox.event_default") == 0
    assert db.rows("select * from outbox.event order by seq") == before
    # what came home is as protected as the rest
    with refused("XP010"):
        db.rows("update outbox.event set topic = 'x'")
    assert_consistent(
        db,
        ignore=[
            "a lead or booking has as many expiration events as transitions to an expired state",
            "the totals count every event once",
            "an event bears the id of its run and the trace of its batch",
        ],
    )


@pytest.mark.requirement("X3")
def test_events_are_appended_to_the_partition_of_their_day_when_there_is_one(db: Database) -> None:
    db.rows("select * from outbox.make_partitions()")
    add_leads(db, 3)
    run_job(db, LEADS)
    (home,) = db.rows("select distinct tableoid::regclass::text from outbox.event")
    assert home == (f"outbox.event_{db.value('select created_at from outbox.event').astimezone(UTC):%Y%m%d}",)


@pytest.mark.requirement("X3")
def test_several_sessions_may_make_partitions_at_once(db: Database) -> None:
    add_leads(db, 20)
    run_job(db, LEADS)
    made = db.sessions(
        4, lambda connection, _: connection.execute("select * from outbox.make_partitions()").fetchall()
    )
    everything = [row for rows in made for row in rows]
    # one made them all, or those that came later found nothing to do
    assert sorted(name for name, _ in everything) == [name for (name,) in names(today(db), 8)]
    assert sum(moved for _, moved in everything) == 20
    assert db.rows(PARTITIONS) == names(today(db), 8)
    assert db.value("select count(*) from outbox.event") == 20


@pytest.mark.requirement("X3", "L2")
def test_partitions_can_be_made_while_batches_are_under_way_and_no_event_is_lost(db: Database) -> None:
    db.rows("select * from outbox.make_partitions(0)")
    add_leads(db, 300)
    set_job(db, LEADS, batch_size=10)
    driver = db.background(lambda connection: run_job(connection, LEADS))
    ahead = 0
    while driver.is_running():
        ahead += 1
        db.rows("select * from outbox.make_partitions(%s)", (min(ahead, 300),))
    assert driver.result()["expired"] == 300
    assert driver.result()["retries"] == 0
    assert_consistent(db)


@pytest.mark.requirement("X3")
def test_an_open_insert_into_the_default_partition_puts_upkeep_off_and_not_the_jobs(db: Database) -> None:
    """Upkeep gives up after its lock timeout, says so by SQLSTATE, and leaves everything as it was."""
    db.rows(APPEND, ("0",))
    with db.connect(autocommit=False) as writer:
        writer.execute(APPEND, ("1 day",))
        before = contents(db)
        upkeep = db.background(
            lambda connection: connection.execute("select * from outbox.make_partitions()")
        )
        db.wait_for_lock(upkeep.pid)
        with refused("55P03"):
            upkeep.result()
        assert db.rows(PARTITIONS) == []
        assert contents(db) == before
        writer.commit()
    assert len(db.rows("select * from outbox.make_partitions()")) == 8
    assert db.value("select count(*) from only outbox.event_default") == 0


@pytest.mark.requirement("X3")
def test_upkeep_does_its_other_steps_when_one_fails_and_raises_the_failure_at_the_end(db: Database) -> None:
    run_job(db, LEADS)
    first = db.value("select id from expiration.run")
    run_job(db, LEADS)
    db.rows(
        "update expiration.run set started_at = now() - interval '90 days', finished_at = now() -"
        " interval '90 days' where id = %s",
        (first,),
    )
    db.rows(APPEND, ("0",))
    with db.connect(autocommit=False) as writer:
        writer.execute(APPEND, ("1 day",))
        with refused("55P03", "make partitions"):
            db.rows("call expiration.run_upkeep()")
    assert db.value("select count(*) from expiration.run where id = %s", (first,)) == 0
    db.rows("call expiration.run_upkeep()")
    assert len(db.rows(PARTITIONS)) == 8


def test_an_insert_that_meets_the_making_of_its_partition_is_not_refused(db: Database) -> None:
    with db.connect(autocommit=False) as maker:
        maker.execute("select outbox.make_partitions(0)")
        insert = db.background(lambda connection: connection.execute(APPEND, ("0 s",)).rowcount)
        db.wait_for_lock(insert.pid)
        maker.commit()
        assert insert.result() == 1
    assert db.value("select count(*) from outbox.event_default") == 0

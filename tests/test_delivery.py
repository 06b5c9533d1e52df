"""What the outbox and the consumers' tables do around Kafka: slots, retention, replay, effects."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests import slots
from tests.domain import (
    BOOKINGS,
    LEADS,
    PHASES,
    add_bookings,
    add_leads,
    events,
    item,
    refused,
    run_job,
)
from tests.servers import Database

SEAL = "insert into outbox.sealed_partition (partition, lsn) values (%s, pg_current_wal_insert_lsn())"
OLD_DAY = "date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' - interval '20 days'"


@pytest.fixture
def slot(db: Database) -> Iterator[str]:
    """A logical slot that is registered as one of the outbox's; gone at the end."""
    with slots.slot(db) as name:
        yield name


def confirm(db: Database, slot: str) -> None:
    """As a reader that has read everything so far."""
    db.rows("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (slot,))


def age(db: Database, count: int = 3) -> str:
    """Events of twenty days ago, in a partition of their own, whose name it returns."""
    db.rows(
        "insert into outbox.event"
        " (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
        f" select {OLD_DAY}, 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', 't', '{{}}'"
        " from generate_series(1, %s)",
        (count,),
    )
    ((name, moved),) = db.rows("select * from outbox.make_partitions()")
    assert moved == count
    return str(name)


def dropped(db: Database) -> list[str]:
    return [name for name, _, _ in db.rows("select * from outbox.drop_partitions()")]


def partitions(db: Database) -> set[str]:
    return {name for (name,) in db.rows("select name from outbox.partition where not is_default")}


# ------------------------------------------------------------------------------------------ slots


@pytest.mark.requirement("X3")
def test_the_publication_publishes_inserts_of_the_root_alone(db: Database) -> None:
    assert db.value("select outbox.create_publication()") is True
    assert db.value("select outbox.create_publication()") is False
    assert db.rows(
        "select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication"
        " where pubname = 'crm_outbox'"
    ) == [(True, False, False, False, True)]
    assert db.rows(
        "select schemaname, tablename from pg_publication_tables where pubname = 'crm_outbox'"
    ) == [("outbox", "event")]


@pytest.mark.parametrize(
    "definition",
    [
        "for all tables",
        "for table crm.leads",
        "for table outbox.event, crm.leads with (publish = 'insert', publish_via_partition_root)",
        "for table outbox.event with (publish = 'insert')",
        "for table outbox.event with (publish_via_partition_root)",
        "for table outbox.event (created_at, seq) with (publish = 'insert', publish_via_partition_root)",
        "for table outbox.event where (topic = 'x') with (publish = 'insert', publish_via_partition_root)",
        "for tables in schema outbox with (publish = 'insert', publish_via_partition_root)",
        "",
    ],
)
def test_a_publication_of_that_name_that_publishes_something_else_is_refused(
    db: Database, definition: str
) -> None:
    db.rows(sql.SQL("create publication crm_outbox {}").format(sql.SQL(definition)))
    with refused("XP020", "crm_outbox"):
        db.rows("select outbox.create_publication()")


def test_a_name_with_a_quote_in_it_is_a_name(db: Database) -> None:
    name = """it's "x" """
    assert db.value("select outbox.create_publication(%s)", (name,)) is True
    assert db.value("select count(*) from pg_publication where pubname = %s", (name,)) == 1


def test_the_status_of_a_slot_counts_what_it_has_not_confirmed(db: Database, slot: str) -> None:
    query = "select state, active, backlog_events, lag_bytes, backlog_seconds from outbox.slot_status"
    confirm(db, slot)
    ((state, active, backlog, before, seconds),) = db.rows(query)
    assert (state, active, backlog, seconds) == ("inactive", False, 0, None)
    add_leads(db, 5)
    run_job(db, LEADS)
    ((_, _, backlog, lag, seconds),) = db.rows(query)
    assert backlog == 5
    assert lag > before
    assert seconds > 0
    confirm(db, slot)
    assert db.value("select backlog_events from outbox.slot_status") == 0


def test_a_registered_slot_that_is_gone_is_missing(db: Database, slot: str) -> None:
    db.rows("select pg_drop_replication_slot(%s)", (slot,))
    assert db.rows("select state, active, backlog_events, lag_bytes from outbox.slot_status") == [
        ("missing", None, None, None)
    ]


def test_a_slot_is_registered_once_and_can_be_forgotten(db: Database) -> None:
    register = "select outbox.register_slot('s', %s, 'c')"
    assert [db.value(register, (name,)) for name in ("p", "p", "q", "q")] == [True, False, True, False]
    assert [db.value("select outbox.forget_slot('s')") for _ in range(2)] == [True, False]


def gap(db: Database, slot: str) -> bool:
    return bool(db.value("select gap_since is not null from outbox.slot_state where name = %s", (slot,)))


@pytest.mark.requirement("X3")
def test_a_slot_made_when_events_were_there_already_may_have_a_gap_before_it(db: Database, slot: str) -> None:
    assert not gap(db, slot)
    register = "select outbox.register_slot(%s, 'crm_outbox', %s)"
    add_leads(db, 1)
    run_job(db, LEADS)
    # what comes after the slot's beginning is read by it, whatever becomes of its registration
    db.rows("select outbox.forget_slot(%s)", (slot,))
    db.rows(register, (slot, "crm-outbox"))
    assert not gap(db, slot)
    db.rows("select pg_drop_replication_slot(%s)", (slot,))
    assert db.value("select outbox.open_gap(%s)", (slot,)) is True
    assert db.value("select outbox.open_gap(%s)", (slot,)) is False
    assert gap(db, slot)
    db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    assert [db.value("select outbox.close_gap(%s)", (slot,)) for _ in range(2)] == [True, False]
    assert not gap(db, slot)
    # as one that was never registered
    db.rows("select outbox.forget_slot(%s)", (slot,))
    db.rows(register, (slot, "crm-outbox"))
    assert gap(db, slot)
    db.rows(register, (slot, "another"))
    assert gap(db, slot)
    assert [db.value("select outbox.open_gap('none')"), db.value("select outbox.close_gap('none')")] == [
        False
    ] * 2


# ------------------------------------------------------------------------------------------ retention


def test_a_partition_goes_once_it_is_past_its_retention_and_every_slot_has_confirmed_it(
    db: Database, slot: str
) -> None:
    before = partitions(db)
    old = age(db)
    # the seal comes first, and nothing has confirmed it
    assert [dropped(db), dropped(db)] == [[], []]
    confirm(db, slot)
    assert dropped(db) == [old]
    assert partitions(db) == before
    assert db.value("select count(*) from outbox.sealed_partition") == 0
    assert db.value("select count(*) from outbox.event") == 0


@pytest.mark.requirement("X3")
def test_a_slot_vouches_for_nothing_that_was_there_before_it(db: Database) -> None:
    old = age(db)
    with slots.slot(db) as name:
        # by a slot that is no more
        db.rows(SEAL, (old,))
        confirm(db, name)
        for _ in range(2):
            with refused("XP021", name):
                dropped(db)
        with pytest.raises(psycopg.Error, match="nobody has compared these with Kafka") as failure:
            db.rows("call expiration.run_upkeep()")
        assert failure.value.sqlstate == "XP021"
        assert old in partitions(db)
        db.rows("select outbox.close_gap(%s)", (name,))
        assert dropped(db) == [old]


def test_upkeep_notes_how_far_each_slot_has_come(db: Database, slot: str) -> None:
    noted = "select delivered_lsn is not distinct from %s::pg_lsn from outbox.slot where name = %s"
    confirm(db, slot)
    position = db.value("select confirmed_flush_lsn::text from outbox.slot_state")
    assert db.value(noted, (None, slot)) is True
    dropped(db)
    assert db.value(noted, (position, slot)) is True
    # a gap keeps what is known of before it
    db.rows("select outbox.open_gap(%s)", (slot,))
    confirm(db, slot)
    with refused("XP021", slot):
        dropped(db)
    assert db.value(noted, (position, slot)) is True


def test_a_slot_that_lags_keeps_every_partition(db: Database, slot: str) -> None:
    second = f"{slot}_2"
    db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (second,))
    db.rows("select outbox.register_slot(%s, 'crm_outbox', 'other')", (second,))
    try:
        old = age(db)
        assert dropped(db) == []
        confirm(db, slot)
        assert dropped(db) == []
        assert old in partitions(db)
        confirm(db, second)
        assert dropped(db) == [old]
    finally:
        db.rows("select pg_drop_replication_slot(%s)", (second,))


def test_retention_counts_from_the_end_of_a_partitions_day(db: Database, slot: str) -> None:
    old = age(db)
    db.rows("update outbox.settings set retention = interval '20 days'")
    assert dropped(db) == []
    confirm(db, slot)
    assert dropped(db) == []
    # nineteen to twenty days have gone since that day ended
    db.rows("update outbox.settings set retention = interval '18 days'")
    assert dropped(db) == []
    confirm(db, slot)
    assert dropped(db) == [old]


@pytest.mark.parametrize("trouble", ["missing", "elsewhere"])
def test_a_slot_that_is_not_there_stops_retention_loudly(db: Database, slot: str, trouble: str) -> None:
    old = age(db)
    dropped(db)
    confirm(db, slot)
    if trouble == "missing":
        db.rows("select pg_drop_replication_slot(%s)", (slot,))
    else:
        # one of that name, of another kind, is not it
        db.rows("select pg_drop_replication_slot(%s)", (slot,))
        db.rows("select pg_create_physical_replication_slot(%s)", (slot,))
    with refused("XP016", slot, "missing"):
        dropped(db)
    with pytest.raises(psycopg.Error, match="drop partitions") as failure:
        db.rows("call expiration.run_upkeep()")
    assert failure.value.sqlstate == "XP016"
    assert old in partitions(db)
    # nobody reads it any more, says whoever knows: then there is no reader at all, and it is the only copy
    assert db.value("select outbox.forget_slot(%s)", (slot,)) is True
    assert dropped(db) == []
    assert old in partitions(db)


def test_a_partition_that_somebody_is_writing_to_is_not_sealed(db: Database, slot: str) -> None:
    old = age(db)
    writer = db.connect(autocommit=False)
    insert = (
        "insert into outbox.event"
        " (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
        f" values ({OLD_DAY}, 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', 't', '{{}}')"
    )
    writer.execute(insert)
    assert dropped(db) == []
    assert db.value("select count(*) from outbox.sealed_partition") == 0
    writer.commit()
    assert dropped(db) == []
    assert db.value("select count(*) from outbox.sealed_partition") == 1
    # one that comes late breaks the seal
    writer.execute(insert)
    writer.commit()
    confirm(db, slot)
    assert dropped(db) == []
    assert dropped(db) == []
    confirm(db, slot)
    assert dropped(db) == [old]


def test_upkeep_drops_what_is_due(db: Database, slot: str) -> None:
    old = age(db)
    db.rows("call expiration.run_upkeep()")
    confirm(db, slot)
    db.rows("call expiration.run_upkeep()")
    assert old not in partitions(db)


# ------------------------------------------------------------------------------------------ replay


def some_events(db: Database) -> list[dict[str, Any]]:
    add_leads(db, 3)
    add_bookings(db, 2)
    run_job(db, LEADS)
    run_job(db, BOOKINGS)
    found = events(db)
    assert len(found) == 5
    return found


COPIED = (
    "id", "aggregate_type", "aggregate_id", "tenant_id", "event_type", "contract_version", "topic", "payload",
    "correlation_id", "traceparent", "occurred_at",
)  # fmt: skip


@pytest.mark.requirement("B18")
def test_a_replay_appends_the_same_events_with_their_ids_and_is_on_record(db: Database) -> None:
    first = some_events(db)
    operator = db.connect("crm_operator")
    chosen = [first[3]["id"], first[1]["id"]]
    assert [row[0] for row in operator.execute("select seq from outbox.preview_replay(%s)", (chosen,))] == [
        first[1]["seq"],
        first[3]["seq"],
    ]
    row = operator.execute(
        "select * from outbox.replay('INC-7: Kafka was restored', %s)", (chosen,)
    ).fetchone()
    assert row is not None
    again = events(db)[5:]
    assert [{k: e[k] for k in COPIED} for e in again] == [{k: first[n][k] for k in COPIED} for n in (1, 3)]
    assert {e["replay_id"] for e in again} == {row[0]}
    assert all(e["replay_id"] is None for e in first)
    ((reason, by, ids, count),) = db.rows(
        "select reason, requested_by, event_ids, events from outbox.replay_log"
    )
    assert (reason, ids, count) == ("INC-7: Kafka was restored", chosen, 2)
    assert by == operator.info.user
    # a replay of what was replayed appends it once, not once a copy
    assert db.value("select (outbox.replay('again', %s)).events", (chosen,)) == 2


def test_what_is_given_must_all_hold(db: Database) -> None:
    found = some_events(db)
    lead, booking = found[0], found[4]

    def preview(**criteria: Any) -> list[int]:
        names = sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(k)) for k in criteria)
        query = sql.SQL("select seq from outbox.preview_replay({})").format(names)
        return [seq for (seq,) in db.rows(query, list(criteria.values()))]

    assert preview(aggregate_id=lead["aggregate_id"]) == [lead["seq"]]
    assert preview(topic=booking["topic"]) == [e["seq"] for e in found[3:]]
    assert preview(topic=booking["topic"], aggregate_id=lead["aggregate_id"]) == []
    assert preview(since=found[3]["created_at"]) == [e["seq"] for e in found[3:]]
    assert preview(until=found[3]["created_at"]) == [e["seq"] for e in found[:3]]
    assert preview(since=found[0]["created_at"], until=found[0]["created_at"]) == []
    assert preview(event_ids=[uuid4()]) == []


def test_more_than_the_limit_is_refused_whole(db: Database) -> None:
    found = some_events(db)
    since: datetime = found[0]["created_at"] - timedelta(seconds=1)
    replay = "select (outbox.replay('x', since => %s, max_events => %s)).events"
    with refused("XP017", "4"):
        db.rows(replay, (since, 4))
    assert len(events(db)) == 5
    assert db.value(replay, (since, 5)) == 5


@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("outbox.replay('x')", "XP018"),
        ("outbox.preview_replay()", "XP018"),
        ("outbox.replay('x', array[gen_random_uuid()])", "XP019"),
        ("outbox.replay('x', '{}')", "XP019"),
        ("outbox.replay('', array[gen_random_uuid()])", "XP014"),
        ("outbox.replay(null, array[gen_random_uuid()])", "XP005"),
        ("outbox.replay('x', topic => 't', max_events => 0)", "XP014"),
        ("outbox.replay('x', topic => 't', max_events => null)", "XP005"),
    ],
)
def test_a_replay_that_says_too_little_is_refused(db: Database, call: str, sqlstate: str) -> None:
    with refused(sqlstate):
        db.rows(sql.SQL("select * from {}").format(sql.SQL(call)))
    assert db.value("select count(*) from outbox.replay_log") == 0


# ------------------------------------------------------------------------------------------ chessboard

FREE = "select chessboard.free_property(%s, %s, %s, gen_random_uuid(), 'Reserve', now())"
RESERVE = (
    "select (crm.reserve_property(gen_random_uuid(), gen_random_uuid(), %s, now() + interval '1 day')).id"
)


@pytest.mark.requirement("B13")
@pytest.mark.parametrize("phase", PHASES)
def test_an_expired_booking_keeps_its_property_until_the_chessboard_has_freed_it(
    db: Database, phase: str
) -> None:
    (booking,) = add_bookings(db, phase=phase)
    kept = item(db, phase, booking)["property_object_id"]
    manager = db.connect("crm_app")
    with refused("XP105", str(kept)):
        manager.execute(RESERVE, (kept,))
    run_job(db, BOOKINGS)
    with refused("XP105", str(kept), "CRM_PROPERTY_OBJECT_NOT_AVAILABLE"):
        manager.execute(RESERVE, (kept,))
    ((event, payload),) = db.rows("select id, payload from outbox.event")
    chessboard = db.connect("crm_chessboard")
    free = (event, payload["bookingId"], payload["propertyObjectId"])
    assert chessboard.execute(FREE, free).fetchone() == (True,)
    assert chessboard.execute(FREE, free).fetchone() == (False,)
    row = manager.execute(RESERVE, (kept,)).fetchone()
    assert row is not None
    # the booking before it is freed; the one after it is not, once it has expired in its turn
    db.rows("update crm.bookings set reserve_expires_at = now() - interval '1 s' where id = %s", (row[0],))
    run_job(db, BOOKINGS)
    with refused("XP105"):
        manager.execute(RESERVE, (kept,))


@pytest.mark.requirement("B13")
def test_a_reservation_that_waits_for_an_expiration_is_refused_when_that_commits(db: Database) -> None:
    (booking,) = add_bookings(db)
    kept = item(db, "Reserve", booking)["property_object_id"]
    job = db.connect("crm_runner", autocommit=False)
    job.execute("select crm.expire_bookings_batch('Reserve')")
    manager = db.background(lambda connection: connection.execute(RESERVE, (kept,)).fetchone(), "crm_app")
    db.wait_for_lock(manager.pid)
    job.commit()
    with refused("XP105", str(kept)):
        manager.result()


@pytest.mark.requirement("B13")
def test_a_cancelled_booking_keeps_nothing(db: Database) -> None:
    (booking,) = add_bookings(db, due="-1 day")
    kept = item(db, "Reserve", booking)["property_object_id"]
    manager = db.connect("crm_app")
    manager.execute("select crm.cancel_booking(%s, 1)", (booking,))
    assert manager.execute(RESERVE, (kept,)).fetchone() is not None


@pytest.mark.requirement("B18")
def test_an_event_has_its_effect_once_whatever_comes_again(db: Database) -> None:
    session = db.connect("crm_chessboard")
    booking, kept = uuid4(), uuid4()
    assert session.execute(FREE, (UUID(int=1), booking, kept)).fetchone() == (True,)
    assert session.execute(FREE, (UUID(int=1), uuid4(), uuid4())).fetchone() == (False,)
    assert session.execute(FREE, (UUID(int=2), booking, kept)).fetchone() == (True,)
    assert db.rows("select booking_id, event_id from chessboard.release") == [(booking, UUID(int=1))]


# ------------------------------------------------------------------------------------------ notifications


@pytest.mark.requirement("X6")
def test_a_notice_is_filed_once_and_sent_until_it_was_sent(db: Database) -> None:
    session = db.connect("crm_notifications", autocommit=False)
    file = (
        "select notifications.file_notice(%s, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now())"
    )
    found = [session.execute(file, (UUID(int=n),)).fetchone() for n in (1, 1, 2)]
    assert found == [(True,), (False,), (True,)]
    session.commit()

    def unsent(connection: psycopg.Connection[Any]) -> list[UUID]:
        return [r[0] for r in connection.execute("select event_id from notifications.take_unsent(10)")]

    assert unsent(session) == [UUID(int=1), UUID(int=2)]
    # what one sends another passes over
    other = db.connect("crm_notifications")
    assert unsent(other) == []
    session.execute("select notifications.mark_sent(%s)", (UUID(int=1),))
    session.execute("select notifications.mark_failed(%s, 'HTTP 503')", (UUID(int=2),))
    session.commit()
    assert unsent(other) == []
    db.rows("update notifications.notice set last_attempt_at = last_attempt_at - interval '2 s'")
    assert unsent(other) == [UUID(int=2)]
    # the fourth failure puts it off for 8 s
    for _ in range(3):
        other.execute("select notifications.mark_failed(%s, 'HTTP 503')", (UUID(int=2),))
    db.rows("update notifications.notice set last_attempt_at = last_attempt_at - interval '7 s'")
    assert unsent(other) == []
    db.rows("update notifications.notice set last_attempt_at = last_attempt_at - interval '1 s'")
    assert unsent(other) == [UUID(int=2)]
    db.rows(
        "update notifications.notice set attempts = 1000000, last_attempt_at = now() - interval '5 minutes'"
    )
    assert unsent(other) == [UUID(int=2)]


@pytest.mark.parametrize("schema", ["chessboard", "notifications"])
def test_a_message_is_parked_once(db: Database, schema: str) -> None:
    session = db.connect(f"crm_{schema}")
    park = sql.SQL("select {}.park('t', 0, 5, null, null, null, null, 'no JSON')").format(
        sql.Identifier(schema)
    )
    assert [session.execute(park).fetchone() for _ in range(2)] == [(True,), (False,)]
    # the topic was made anew, and its offsets count from 0 again: this one is another
    other = sql.SQL("select {}.park('t', 0, 5, null, null, null, 'x', 'no JSON')").format(
        sql.Identifier(schema)
    )
    assert [session.execute(other).fetchone() for _ in range(2)] == [(True,), (False,)]
    total = sql.SQL("select topic, messages from {}.parked_total").format(sql.Identifier(schema))
    assert session.execute(total).fetchall() == [("t", 2)]


@pytest.mark.parametrize("schema", ["chessboard", "notifications"])
def test_an_operator_takes_what_was_seen_to_off_the_list(db: Database, schema: str) -> None:
    session = db.connect(f"crm_{schema}")
    park = sql.SQL("select {}.park('t', 0, %s, null, null, null, null, 'no JSON')").format(
        sql.Identifier(schema)
    )
    for offset in (5, 6):
        session.execute(park, (offset,))
    operator = db.connect("crm_operator")
    parked = sql.SQL("select id, kafka_offset from {}.parked order by id").format(sql.Identifier(schema))
    (first, _), second = operator.execute(parked).fetchall()
    dismiss = sql.SQL("select {}.dismiss_parked(%s)").format(sql.Identifier(schema))
    assert [operator.execute(dismiss, (first,)).fetchone() for _ in range(2)] == [(True,), (False,)]
    assert operator.execute(parked).fetchall() == [second]
    # what comes again is put aside again
    assert session.execute(park, (5,)).fetchone() == (True,)


@pytest.mark.parametrize("role", ["crm_chessboard", "crm_notifications"])
def test_a_consumer_can_touch_no_other_schemas_tables(db: Database, role: str) -> None:
    own = role.removeprefix("crm_")
    session = db.connect(role)
    tables = db.rows(
        "select c.oid::regclass::text from pg_class as c where c.relkind in ('r', 'p')"
        " and c.relnamespace = any ('{crm,outbox,expiration,chessboard,notifications}'::regnamespace[])"
        " and c.relnamespace <> %s::regnamespace",
        (own,),
    )
    assert len(tables) > 20
    for (table,) in tables:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(sql.SQL("select from {}").format(sql.SQL(table)))


def test_ids_of_events_go_when_nobody_can_send_the_events_again(db: Database) -> None:
    sessions = {name: db.connect(f"crm_{name}") for name in ("chessboard", "notifications")}
    file = (
        "select notifications.file_notice(%s, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now())"
    )
    booking, kept = uuid4(), uuid4()
    for number in range(4):
        sessions["chessboard"].execute(FREE, (UUID(int=number), booking if number == 0 else uuid4(), kept))
        sessions["notifications"].execute(file, (UUID(int=number),))
    for name in sessions:
        db.rows(
            sql.SQL(
                "update {}.inbox set received_at = now() - case when event_id < %s then %s else %s end"
            ).format(sql.Identifier(name)),
            (UUID(int=2), timedelta(days=91), timedelta(days=89)),
        )
    runner = db.connect("crm_runner")
    assert runner.execute("select outbox.purge_inboxes(1)").fetchone() == (2,)
    assert runner.execute("select outbox.purge_inboxes()").fetchone() == (2,)
    assert runner.execute("select outbox.purge_inboxes()").fetchone() == (0,)
    for name in sessions:
        left = db.rows(sql.SQL("select event_id from {}.inbox order by 1").format(sql.Identifier(name)))
        assert left == [(UUID(int=2),), (UUID(int=3),)]
    # what comes again all the same changes nothing more
    before = (
        db.rows("select * from chessboard.release order by 1"),
        db.rows("select * from notifications.notice order by 1"),
    )
    sessions["chessboard"].execute(FREE, (UUID(int=0), booking, kept))
    sessions["notifications"].execute(file, (UUID(int=0),))
    assert before == (
        db.rows("select * from chessboard.release order by 1"),
        db.rows("select * from notifications.notice order by 1"),
    )
    # the outbox keeps its events for longer than that: so do the ids stay
    db.rows("update outbox.settings set retention = interval '1 year'")
    for name in sessions:
        db.rows(
            sql.SQL("update {}.inbox set received_at = now() - interval '91 days'").format(
                sql.Identifier(name)
            )
        )
    db.rows("call expiration.run_upkeep()")
    assert runner.execute("select outbox.purge_inboxes()").fetchone() == (0,)
    db.rows("update outbox.settings set retention = interval '7 days'")
    db.rows("call expiration.run_upkeep()")
    assert (
        db.value(
            "select (select count(*) from chessboard.inbox) + (select count(*) from notifications.inbox)"
        )
        == 0
    )

"""Managers' commands, and the race between a manager and a job, seen from both sides with real locks."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.domain import (
    ACTIVE,
    BOOKINGS,
    EXPIRED,
    JOB_OF,
    LEADS,
    add_bookings,
    add_items,
    add_leads,
    assert_consistent,
    events,
    expire_batch,
    finish_run,
    item,
    nothing_changes,
    refused,
    release,
    run_batch,
    run_job,
    start_run,
    statuses,
)
from tests.servers import Connection, Database

Command = Callable[[Connection, UUID, int], Any]


def confirm(connection: Connection, booking_id: UUID, version: int) -> Any:
    return one(
        connection,
        "select * from crm.confirm_booking(%s, %s, now() + interval '1 day', 'maria')",
        booking_id,
        version,
    )


def extend(connection: Connection, booking_id: UUID, version: int) -> Any:
    return one(
        connection,
        "select * from crm.extend_booking(%s, %s, now() + interval '1 day', 'maria')",
        booking_id,
        version,
    )


def cancel(connection: Connection, booking_id: UUID, version: int) -> Any:
    return one(connection, "select * from crm.cancel_booking(%s, %s, 'maria')", booking_id, version)


def extend_lead(connection: Connection, lead_id: UUID, version: int) -> Any:
    return one(
        connection,
        "select * from crm.extend_lead(%s, %s, now() + interval '1 day', 'maria')",
        lead_id,
        version,
    )


def one(connection: Connection, query: str, *parameters: Any) -> Any:
    return connection.execute(query.encode(), parameters).fetchone()


# the command, the phase of the item that it meets, the status that it leaves
RACES: dict[str, tuple[Command, str, str]] = {
    "confirm": (confirm, "Reserve", "Booked"),
    "extend_reserve": (extend, "Reserve", "Reserved"),
    "extend_booking": (extend, "Booking", "Booked"),
    "cancel_reserve": (cancel, "Reserve", "Cancelled"),
    "cancel_booking": (cancel, "Booking", "Cancelled"),
    "extend_lead": (extend_lead, "Lead", "Active"),
}


@pytest.mark.requirement("B6", "B17", "L23")
@pytest.mark.parametrize("race", RACES)
def test_a_job_passes_over_what_a_command_in_flight_holds_and_does_not_expire_it_afterwards(
    db: Database, race: str
) -> None:
    command, phase, status = RACES[race]
    (held,) = add_items(db, phase)
    others = add_items(db, phase, 3, due="1 hour")
    manager = db.connect("crm_app", autocommit=False)
    command(manager, held, 1)
    # it may not wait, not even for a moment
    run = run_job(db.connect("crm_runner", options="-c lock_timeout=1ms"), JOB_OF[phase])
    assert (run["status"], run["reason"], run["expired"], run["skipped_locked"]) == (
        "completed",
        "locked",
        3,
        1,
    )
    assert run["retries"] == 0
    assert statuses(db, phase, others) == {EXPIRED[phase]: 3}
    manager.commit()
    assert run_job(db, JOB_OF[phase])["expired"] == 0
    row = item(db, phase, held)
    assert (row["status"], row["version"], row["expired_at"]) == (status, 2, None)
    assert held not in {event["aggregate_id"] for event in events(db)}
    assert_consistent(db)


@pytest.mark.requirement("B6")
@pytest.mark.parametrize("race", RACES)
def test_a_job_expires_in_its_next_cycle_what_a_command_held_and_gave_up(db: Database, race: str) -> None:
    command, phase, _ = RACES[race]
    (held,) = add_items(db, phase)
    manager = db.connect("crm_app", autocommit=False)
    command(manager, held, 1)
    assert run_job(db, JOB_OF[phase])["expired"] == 0
    manager.rollback()
    assert run_job(db, JOB_OF[phase])["expired"] == 1
    assert_consistent(db)


@pytest.mark.requirement("B6", "B17", "L23")
@pytest.mark.parametrize("race", RACES)
@pytest.mark.parametrize("driver", ["run_batch", "alone"])
def test_a_command_waits_for_the_batch_that_came_first_and_is_told_to_read_again(
    db: Database, race: str, driver: str
) -> None:
    command, phase, _ = RACES[race]
    (item_id,) = add_items(db, phase)
    job = db.connect("crm_runner", autocommit=False)
    run = None
    if driver == "alone":
        assert expire_batch(job, phase)["expired"] == 1
    else:
        run = start_run(job, JOB_OF[phase])
        job.commit()
        assert run_batch(job, run["id"])["expired"] == 1
    manager = db.background(lambda connection: command(connection, item_id, 1), "crm_app")
    db.wait_for_lock(manager.pid)
    job.commit()
    with refused("XP103", "CRM_VERSION_CONFLICT", str(item_id), "has version 2", "expected 1"):
        manager.result()
    # reading again shows why
    again = db.connect("crm_app")
    if phase == "Lead":
        assert command(again, item_id, 2)
        assert item(db, phase, item_id)["status"] == "Active"
    else:
        with refused("XP104", "CRM_INVALID_TRANSITION", str(item_id), EXPIRED[phase]):
            command(again, item_id, 2)
        assert item(db, phase, item_id)["status"] == EXPIRED[phase]
    assert len(events(db)) == 1
    if run is not None:
        finish_run(job, run["id"], "drained")
        job.commit()
    assert_consistent(db)


@pytest.mark.requirement("B6")
@pytest.mark.parametrize("race", RACES)
def test_a_command_that_waited_for_a_batch_that_was_rolled_back_goes_through(db: Database, race: str) -> None:
    command, phase, status = RACES[race]
    (item_id,) = add_items(db, phase)
    job = db.connect("crm_runner", autocommit=False)
    assert expire_batch(job, phase)["expired"] == 1
    manager = db.background(lambda connection: command(connection, item_id, 1), "crm_app")
    db.wait_for_lock(manager.pid)
    job.rollback()
    assert manager.result()
    assert item(db, phase, item_id)["status"] == status
    assert run_job(db, JOB_OF[phase])["expired"] == 0
    assert events(db) == []
    assert_consistent(db)


@pytest.mark.requirement("B6")
@pytest.mark.parametrize("race", RACES)
def test_a_command_with_another_version_than_the_rows_is_refused_and_changes_nothing(
    db: Database, race: str
) -> None:
    command, phase, _ = RACES[race]
    (item_id,) = add_items(db, phase, due="-1 day")
    manager = db.connect("crm_app")
    for version in (0, 2):
        with nothing_changes(db, locks=False), refused("XP103", str(item_id), f"expected {version}"):
            command(manager, item_id, version)


@pytest.mark.requirement("B6")
@pytest.mark.parametrize("race", RACES)
def test_a_command_on_what_is_not_there_is_refused(db: Database, race: str) -> None:
    command, phase, _ = RACES[race]
    nobody = UUID(int=42)
    with nothing_changes(db), refused("XP101" if phase == "Lead" else "XP102", str(nobody)):
        command(db.connect("crm_app"), nobody, 1)


@pytest.mark.requirement("B6")
def test_of_two_managers_who_read_the_same_version_one_wins(db: Database) -> None:
    (booking_id,) = add_bookings(db, due="-1 hour")
    first = db.connect("crm_app", autocommit=False)
    extend(first, booking_id, 1)
    second = db.background(lambda connection: cancel(connection, booking_id, 1), "crm_app")
    db.wait_for_lock(second.pid)
    first.commit()
    with refused("XP103"):
        second.result()
    assert item(db, "Reserve", booking_id)["version"] == 2
    assert_consistent(db)


@pytest.mark.requirement("B5")
@pytest.mark.parametrize("status", ["ReserveExpired", "BookingExpired", "Cancelled"])
@pytest.mark.parametrize("command", [confirm, extend, cancel])
def test_no_command_changes_a_terminal_booking(db: Database, command: Command, status: str) -> None:
    (booking_id,) = add_bookings(db, phase="Booking", status=status)
    with nothing_changes(db, locks=False), refused("XP104", str(booking_id), status):
        command(db.connect("crm_app"), booking_id, 1)


@pytest.mark.requirement("B5")
def test_a_booked_booking_cannot_be_confirmed_again_nor_an_archived_lead_extended(db: Database) -> None:
    (booking_id,) = add_bookings(db, phase="Booking", due="-1 day")
    (lead_id,) = add_leads(db, status="Archived", due="-1 day")
    manager = db.connect("crm_app")
    with nothing_changes(db, locks=False), refused("XP104", "Booked", "confirm"):
        confirm(manager, booking_id, 1)
    with nothing_changes(db, locks=False), refused("XP104", "Archived", "extend"):
        extend_lead(manager, lead_id, 1)


@pytest.mark.requirement("B4", "B9", "B7")
@pytest.mark.parametrize("status", ["Reserved", "AwaitingPayment"])
def test_a_booking_goes_from_reserve_through_confirmation_to_its_own_expiry(
    db: Database, status: str
) -> None:
    manager = db.connect("crm_app")
    tenant, deal, property_object, command = UUID(int=1), UUID(int=2), UUID(int=3), UUID(int=4)
    (booking_id,) = one(
        manager,
        "select id from crm.reserve_property(%s, %s, %s, now() + interval '1 day', 'maria', %s)",
        tenant, deal, property_object, command,
    )  # fmt: skip
    db.rows("update crm.bookings set status = %s", (status,))
    confirm(manager, booking_id, 1)
    extend(manager, booking_id, 2)
    db.rows("update crm.bookings set booking_expires_at = now() - interval '1 minute'")
    run = run_job(db, BOOKINGS)
    assert item(db, "Booking", booking_id)["status"] == "BookingExpired"
    history = db.rows(
        "select action, actor, from_status, to_status, tenant_id, correlation_id from crm.audit_log"
        " order by occurred_at"
    )
    assert history == [
        ("Reserve", "maria", None, "Reserved", tenant, command),
        ("Confirm", "maria", status, "Booked", tenant, None),
        ("Extend", "maria", "Booked", "Booked", tenant, None),
        ("Expire", "system", "Booked", "BookingExpired", tenant, run["id"]),
    ]
    assert [row[0] for row in db.rows("select kind from crm.deal_timeline where deal_id = %s order by"
                                      " occurred_at", (deal,))] == [
        "PropertyReserved", "BookingConfirmed", "BookingExtended", "BookingExpired",
    ]  # fmt: skip
    assert_consistent(db)


@pytest.mark.requirement("B4")
def test_an_extension_moves_the_deadline_of_the_phase_the_booking_is_in(db: Database) -> None:
    manager = db.connect("crm_app")
    for phase, moved, kept in (
        ("Reserve", "reserve_expires_at", "booking_expires_at"),
        ("Booking", "booking_expires_at", "reserve_expires_at"),
    ):
        (booking_id,) = add_bookings(db, phase=phase, due="-1 hour")
        before = item(db, phase, booking_id)
        extend(manager, booking_id, 1)
        after = item(db, phase, booking_id)
        assert after[moved] > before[moved]
        assert (after[kept], after["status"]) == (before[kept], ACTIVE[phase])


@pytest.mark.requirement("L23")
def test_an_expired_lead_can_be_extended_again_becomes_active_and_expires_once_more(db: Database) -> None:
    (lead_id,) = add_leads(db)
    db.rows("insert into crm.deals (tenant_id, lead_id) values (gen_random_uuid(), %s)", (lead_id,))
    run_job(db, LEADS)
    agent = db.connect("crm_app")
    extend_lead(agent, lead_id, 2)
    row = item(db, "Lead", lead_id)
    assert (row["status"], row["version"], row["expired_at"]) == ("Active", 3, None)
    assert row["expires_at"] > db.value("select now()")
    assert run_job(db, LEADS)["expired"] == 0
    db.rows("update crm.leads set expires_at = now() - interval '1 second'")
    assert run_job(db, LEADS)["expired"] == 1
    assert item(db, "Lead", lead_id)["version"] == 4
    assert [event["aggregate_id"] for event in events(db)] == [lead_id, lead_id]
    assert len({event["id"] for event in events(db)}) == 2
    assert [row[0] for row in db.rows("select action from crm.audit_log order by occurred_at")] == [
        "Expire",
        "Extend",
        "Expire",
    ]
    assert_consistent(db)


@pytest.mark.requirement("L23")
def test_a_lead_in_time_is_extended_too(db: Database) -> None:
    (lead_id,) = add_leads(db, due="-1 hour")
    extend_lead(db.connect("crm_app"), lead_id, 1)
    assert item(db, "Lead", lead_id)["version"] == 2
    assert_consistent(db)


@pytest.mark.requirement("B6", "L23")
@pytest.mark.parametrize("race", ["confirm", "extend_booking", "extend_lead"])
@pytest.mark.parametrize("deadline", ["infinity", "-infinity", "-1 second", "0"])
def test_a_command_takes_no_deadline_that_is_infinite_or_has_passed(
    db: Database, race: str, deadline: str
) -> None:
    function = {
        "confirm": "confirm_booking",
        "extend_booking": "extend_booking",
        "extend_lead": "extend_lead",
    }[race]
    _, phase, _ = RACES[race]
    (item_id,) = add_items(db, phase, due="-1 hour")
    when: str = db.value(
        "select case when %s like '%%infinity' then %s else (now() + interval '1 s' * split_part(%s,"
        " ' ', 1)::int)::text end",
        [deadline] * 3,
    )
    with nothing_changes(db, locks=False), refused("XP009", str(item_id), when):
        one(db.connect("crm_app"), f"select crm.{function}(%s, 1, %s::timestamptz)", item_id, when)


@pytest.mark.requirement("B6", "L23")
@pytest.mark.parametrize("race", ["extend_reserve", "extend_booking", "extend_lead"])
def test_an_extension_must_be_one(db: Database, race: str) -> None:
    """A deadline ahead that lies before the present one would shorten it."""
    command, phase, _ = RACES[race]
    (item_id,) = add_items(db, phase, due="-3 days")
    with nothing_changes(db, locks=False), refused("XP009", str(item_id), "not later than the present one"):
        command(db.connect("crm_app"), item_id, 1)


@pytest.mark.requirement("B13")
def test_of_two_reservations_of_a_property_at_once_one_gets_it(db: Database) -> None:
    reserve = (
        "select crm.reserve_property(gen_random_uuid(), gen_random_uuid(), %s, now() + interval '1 day')"
    )
    first = db.connect("crm_app", autocommit=False)
    one(first, reserve, UUID(int=9))
    second = db.background(lambda connection: one(connection, reserve, UUID(int=9)), "crm_app")
    db.wait_for_lock(second.pid)
    first.commit()
    with refused("XP105", str(UUID(int=9))):
        second.result()
    third = db.connect("crm_app", autocommit=False)
    one(third, reserve, UUID(int=10))
    fourth = db.background(lambda connection: one(connection, reserve, UUID(int=10)), "crm_app")
    db.wait_for_lock(fourth.pid)
    third.rollback()
    assert fourth.result()
    assert db.value("select count(*) from crm.bookings") == 2
    assert_consistent(db)


@pytest.mark.requirement("B13")
@pytest.mark.parametrize("status", ["ReserveExpired", "BookingExpired", "Cancelled"])
def test_a_property_whose_booking_has_ended_and_is_released_can_be_reserved(
    db: Database, status: str
) -> None:
    (ended,) = add_bookings(db, phase="Booking", status=status)
    kept = item(db, "Booking", ended)["property_object_id"]
    if status != "Cancelled":
        release(db)
    assert one(
        db.connect("crm_app"),
        "select crm.reserve_property(gen_random_uuid(), gen_random_uuid(), %s, now() + interval"
        " '1 day')", kept,
    )  # fmt: skip


@pytest.mark.requirement("B13", "L8")
def test_readers_can_see_a_due_row_as_expired_before_the_job_has_reached_it(db: Database) -> None:
    app = db.connect("crm_app")
    expected: dict[UUID, tuple[str, bool]] = {}
    for phase in ("Lead", "Reserve", "Booking"):
        (due,), (ahead,) = add_items(db, phase), add_items(db, phase, due="-1 hour")
        expected |= {due: (EXPIRED[phase], True), ahead: (ACTIVE[phase], False)}
    (waiting,) = add_bookings(db, status="AwaitingPayment")
    (cancelled,) = add_bookings(db, status="Cancelled")
    (archived,) = add_leads(db, status="Archived")
    expected |= {
        waiting: ("ReserveExpired", True),
        cancelled: ("Cancelled", False),
        archived: ("Archived", False),
    }
    query = (
        "select id, effective_status, is_due from crm.effective_leads"
        " union all select id, effective_status, is_due from crm.effective_bookings"
    )
    assert {row[0]: row[1:] for row in app.execute(query)} == expected
    for job in (LEADS, BOOKINGS):
        run_job(db, job)
    assert {row[0]: row[1] for row in app.execute(query)} == {
        key: status for key, (status, _) in expected.items()
    }
    assert not any(row[2] for row in app.execute(query))


@pytest.mark.requirement("B6")
def test_a_manager_may_still_save_a_booking_that_is_due_until_the_job_has_reached_it(db: Database) -> None:
    (booking_id,) = add_bookings(db, due="1 second")
    confirm(db.connect("crm_app"), booking_id, 1)
    assert run_job(db, BOOKINGS)["expired"] == 0
    assert item(db, "Booking", booking_id)["booking_expires_at"] > datetime.now().astimezone() + timedelta(
        hours=23
    )
    assert_consistent(db)

"""BookingExpirationJob: what expires in which phase, how, and what is left alone."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.domain import (
    ACTIVE,
    BOOKINGS,
    EXPIRED,
    PHASES,
    add_bookings,
    add_poison,
    add_trigger,
    assert_consistent,
    contents,
    drive,
    drop_trigger,
    events,
    expire_batch,
    held,
    item,
    last_run,
    refused,
    release,
    run_job,
    set_job,
    statuses,
    transition,
)
from tests.servers import Database

TERMINAL = ("ReserveExpired", "BookingExpired", "Cancelled")


@pytest.mark.requirement("B1", "B2", "B3")
def test_the_settings_are_the_documents_until_somebody_changes_them(db: Database) -> None:
    assert db.rows(
        "select period, batch_size, max_batches_per_cycle, max_duration from expiration.job where name = %s",
        (BOOKINGS,),
    ) == [(timedelta(seconds=60), 200, 1, timedelta(seconds=30))]


@pytest.mark.requirement("B17")
def test_an_empty_cycle_succeeds_and_leaves_nothing_but_its_run(db: Database) -> None:
    for phase in PHASES:
        add_bookings(db, 3, phase=phase, due="-1 day")
    before = contents(db)
    run = run_job(db, BOOKINGS)
    assert (run["status"], run["reason"], run["expired"], run["batches"]) == ("completed", "drained", 0, 0)
    assert {name for name, rows in contents(db).items() if rows != before[name]} == {"expiration.run"}


@pytest.mark.requirement("B4", "B5", "B7", "B8", "B9", "B17")
@pytest.mark.parametrize(
    ("status", "phase"), [("Reserved", "Reserve"), ("AwaitingPayment", "Reserve"), ("Booked", "Booking")]
)
def test_an_overdue_booking_expires_with_its_event_its_card_and_its_audit_row(
    db: Database, status: str, phase: str
) -> None:
    (booking_id,) = add_bookings(db, phase=phase, status=status)
    before = item(db, phase, booking_id)
    run = run_job(db, BOOKINGS)
    assert item(db, phase, booking_id) == before | {
        "status": EXPIRED[phase], "expired_at": run["as_of"], "updated_at": run["as_of"], "version": 2,
    }  # fmt: skip

    (event,) = events(db)
    # no more than these fields, so no personal data
    assert event["payload"] == {
        "bookingId": str(booking_id),
        "tenantId": str(before["tenant_id"]),
        "dealId": str(before["deal_id"]),
        "propertyObjectId": str(before["property_object_id"]),
        "phase": phase,
        "expiredAt": db.value(
            "select to_char(%s at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')", (run["as_of"],)
        ),
    }
    assert (event["aggregate_type"], event["aggregate_id"]) == ("Booking", booking_id)
    assert (event["event_type"], event["contract_version"]) == ("BookingExpiredEvent", 1)
    assert event["topic"] == "pin.crm.booking-expired.v1"
    assert (event["tenant_id"], event["correlation_id"]) == (before["tenant_id"], run["id"])

    assert db.rows(
        "select tenant_id, deal_id, booking_id, kind, phase, occurred_at, correlation_id from"
        " crm.deal_timeline"
    ) == [
        (before["tenant_id"], before["deal_id"], booking_id, "BookingExpired", phase, run["as_of"], run["id"])
    ]
    assert db.rows(
        "select tenant_id, entity_type, entity_id, action, actor, from_status, to_status,"
        " correlation_id, occurred_at"
        " from crm.audit_log"
    ) == [
        (
            before["tenant_id"],
            "Booking",
            booking_id,
            "Expire",
            "system",
            status,
            EXPIRED[phase],
            run["id"],
            run["as_of"],
        )
    ]
    assert_consistent(db)


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("offset", "expires"), [(-1, True), (0, False), (1, False)], ids=["before", "equal", "after"]
)
def test_only_a_deadline_strictly_before_the_cut_off_has_passed(
    db: Database, phase: str, offset: int, expires: bool
) -> None:
    as_of: datetime = db.value("select now() - interval '1 hour'")
    (booking_id,) = add_bookings(db, phase=phase)
    deadline = as_of + timedelta(microseconds=offset)
    db.rows("update crm.bookings set reserve_expires_at = %s, booking_expires_at = %s", (deadline, deadline))
    run_job(db, BOOKINGS, as_of)
    assert item(db, phase, booking_id)["status"] == (EXPIRED if expires else ACTIVE)[phase]


@pytest.mark.requirement("B5")
def test_terminal_bookings_are_never_touched(db: Database) -> None:
    for status in TERMINAL:
        add_bookings(db, 2, phase="Booking", status=status)
        add_bookings(db, 2, phase="Reserve", status=status)
    query = "select xmin::text, xmax::text, * from crm.bookings order by id"
    before = db.rows(query)
    assert run_job(db, BOOKINGS)["expired"] == 0
    for phase in PHASES:
        assert expire_batch(db, phase)["claimed"] == 0
        ids = [row[2] for row in before]
        assert transition(db, phase, ids) == []
    assert db.rows(query) == before
    assert events(db) == []


@pytest.mark.requirement("B4")
def test_a_phase_looks_at_its_own_deadline_only(db: Database) -> None:
    """A Booked booking's reserve lies in the past, a reserve may know of a booking deadline already."""
    (booked,) = add_bookings(db, phase="Booking", due="-1 day")
    (reserved,) = add_bookings(db, phase="Reserve", due="-1 day")
    db.rows(
        "update crm.bookings set booking_expires_at = now() - interval '1 day' where id = %s", (reserved,)
    )
    assert item(db, "Booking", booked)["reserve_expires_at"] < db.value("select now()")
    assert run_job(db, BOOKINGS)["expired"] == 0
    assert expire_batch(db, "Reserve")["claimed"] == expire_batch(db, "Booking")["claimed"] == 0


@pytest.mark.requirement("B4", "B11")
def test_one_cycle_goes_through_both_phases_and_counts_them_apart(db: Database) -> None:
    add_bookings(db, 3, phase="Reserve")
    add_bookings(db, 2, phase="Booking")
    locked = add_bookings(db, 1, phase="Booking")
    with held(db, "Booking", locked):
        run = run_job(db, BOOKINGS)
    assert (run["status"], run["reason"]) == ("completed", "locked")
    (result,) = db.rows("select result from expiration.history where id = %s", (run["id"],))[0]
    assert result == {
        "ReserveExpiredCount": 3,
        "BookingExpiredCount": 2,
        "SkippedLockedCount": 1,
        "DurationMs": result["DurationMs"],
    }
    milliseconds = (run["finished_at"] - run["started_at"]) / timedelta(milliseconds=1)
    assert result["DurationMs"] == pytest.approx(milliseconds, abs=0.001)
    assert_consistent(db)


@pytest.mark.requirement("B2")
def test_a_cycle_takes_two_hundred_a_phase_and_the_next_cycles_take_the_backlog_oldest_first(
    db: Database,
) -> None:
    reserves = add_bookings(db, 450, phase="Reserve")
    bookings = add_bookings(db, 250, phase="Booking")
    taken: list[tuple[str, dict[str, int]]] = []
    for _ in range(4):
        run = run_job(db, BOOKINGS)
        phases = db.rows(
            "select phase, sum(expired)::int from expiration.batch where run_id = %s group by 1", (run["id"],)
        )
        taken.append((run["status"], dict(phases)))
    assert taken == [
        ("capped", {"Reserve": 200, "Booking": 200}),
        ("capped", {"Reserve": 200, "Booking": 50}),
        ("completed", {"Reserve": 50}),
        ("completed", {}),
    ]
    by_event = [event["aggregate_id"] for event in events(db)]
    assert [booking_id for booking_id in by_event if booking_id in set(reserves)] == reserves
    assert [booking_id for booking_id in by_event if booking_id in set(bookings)] == bookings
    assert_consistent(db)


@pytest.mark.requirement("B2")
def test_a_backlog_in_one_phase_does_not_hold_up_the_other(db: Database) -> None:
    add_bookings(db, 30, phase="Reserve", due="9 days")
    late = add_bookings(db, 5, phase="Booking", due="1 minute")
    set_job(db, BOOKINGS, batch_size=10)
    run_job(db, BOOKINGS)
    assert statuses(db, "Booking", late) == {"BookingExpired": 5}


@pytest.mark.requirement("B10", "B17")
@pytest.mark.parametrize("phase", PHASES)
def test_a_poison_booking_is_left_for_later_and_the_rest_of_the_batch_commits(
    db: Database, phase: str
) -> None:
    (poison,) = add_poison(db, phase)
    healthy = add_bookings(db, 9, phase=phase)
    run = run_job(db, BOOKINGS)
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 9, 1)
    assert statuses(db, phase, healthy) == {EXPIRED[phase]: 9}
    assert item(db, phase, poison)["status"] == ACTIVE[phase]
    assert db.rows("select phase, item_id, sqlstate, attempts, run_id from expiration.failed_item") == [
        (phase, poison, "22003", 1, run["id"])
    ]
    failed = db.rows(
        "select level, fields from expiration.log_event where run_id = %s and event = 'item failed'",
        (run["id"],),
    )
    assert failed == [
        ("error", {
            "runId": str(run["id"]), "BookingId": str(poison), "phase": phase,
            "exception": "integer out of range", "sqlstate": "22003",
        })
    ]  # fmt: skip
    assert_consistent(db)


@pytest.mark.requirement("B10")
def test_a_fault_of_the_infrastructure_rolls_the_batch_back_and_the_next_cycle_retries(db: Database) -> None:
    for phase in PHASES:
        add_bookings(db, 5, phase=phase)
    add_trigger(db, "crm.deal_timeline", "raise sqlstate '53100';")
    with refused("53100"):
        run_job(db, BOOKINGS)
    assert statuses(db, "Reserve") == {"Reserved": 5, "Booked": 5}
    assert db.value("select count(*) from expiration.failed_item") == 0
    assert last_run(db, BOOKINGS)["status"] == "failed"
    drop_trigger(db)
    assert run_job(db, BOOKINGS)["expired"] == 10
    assert_consistent(db)


@pytest.mark.requirement("B12")
def test_the_log_has_the_documents_events(db: Database) -> None:
    (reserve,) = add_bookings(db, phase="Reserve")
    (booking,) = add_bookings(db, phase="Booking")
    for run in (run_job(db, BOOKINGS),):
        run_id = str(run["id"])
        log = db.rows(
            "select event, fields from expiration.log_event where run_id = %s order by at, ordinal",
            (run["id"],),
        )
        assert [event for event, _ in log] == [
            "cycle started",
            "batch selected",
            "batch selected",
            "cycle completed",
        ]
        assert log[0][1]["runId"] == run_id
        assert db.value("select %s::timestamptz", (log[0][1]["AsOf"],)) == run["as_of"]
        assert [(fields["runId"], fields["phase"], fields["count"]) for _, fields in log[1:3]] == [
            (run_id, "Reserve", 1),
            (run_id, "Booking", 1),
        ]
        assert log[3][1].items() >= {
            "runId": run_id, "ReserveExpiredCount": 1, "BookingExpiredCount": 1, "SkippedLocked": 0,
        }.items()  # fmt: skip
        assert log[3][1]["DurationMs"] > 0
        assert db.rows("select event, fields from expiration.log_item(%s)", (run["id"],)) == [
            (
                "booking expired",
                {
                    "BookingId": str(booking_id),
                    "DealId": str(item(db, phase, booking_id)["deal_id"]),
                    "Phase": phase,
                    "TenantId": str(item(db, phase, booking_id)["tenant_id"]),
                },
            )
            for phase, booking_id in (("Reserve", reserve), ("Booking", booking))
        ]


@pytest.mark.requirement("B14", "B17")
def test_a_cycle_a_minute_expires_no_booking_later_than_its_deadline_and_sixty_seconds(db: Database) -> None:
    """Ten cycles a minute apart, by as_of, over deadlines spread in between."""
    start: datetime = db.value("select date_trunc('minute', now()) - interval '1 hour'")
    for phase in PHASES:
        db.rows(
            "insert into crm.bookings (tenant_id, deal_id, property_object_id, status,"
            " reserve_expires_at, booking_expires_at)"
            " select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), %s, d.at, d.at from"
            " generate_series(0, 539, 7) as n"
            " cross join lateral (select %s + n * interval '1 second' as at) as d",
            (ACTIVE[phase], start),
        )
    for minute in range(10):
        run_job(db, BOOKINGS, start + timedelta(minutes=minute))
    late = db.rows(
        "select status, min(expired_at - d.at), max(expired_at - d.at) from crm.bookings cross join lateral"
        " (select case status when 'ReserveExpired' then reserve_expires_at else booking_expires_at"
        " end as at) as d"
        " group by 1 order by 1"
    )
    assert [status for status, _, _ in late] == ["BookingExpired", "ReserveExpired"]
    for _, least, most in late:
        assert timedelta(0) < least
        assert most <= timedelta(seconds=60)
    assert_consistent(db)


@pytest.mark.requirement("B13")
def test_a_property_can_be_reserved_again_once_its_booking_has_expired_and_not_before(db: Database) -> None:
    (booking_id,) = add_bookings(db, phase="Booking")
    kept: UUID = item(db, "Booking", booking_id)["property_object_id"]
    app = db.connect("crm_app")
    reserve = (
        "select status"
        " from crm.reserve_property(gen_random_uuid(), gen_random_uuid(), %s, now() + interval '1 day')"
    )
    with refused("XP105", "CRM_PROPERTY_OBJECT_NOT_AVAILABLE", str(kept)):
        app.execute(reserve, (kept,))
    run_job(db, BOOKINGS)
    release(db)
    assert app.execute(reserve, (kept,)).fetchall() == [("Reserved",)]
    assert_consistent(db)


@pytest.mark.requirement("X2", "B11")
@pytest.mark.parametrize("phase", PHASES)
def test_a_batch_can_be_called_alone_in_anybodys_transaction(db: Database, phase: str) -> None:
    bookings = add_bookings(db, 5, phase=phase)
    add_bookings(db, 5, phase="Booking" if phase == "Reserve" else "Reserve")
    dba = db.connect("crm_runner", autocommit=False)
    first = expire_batch(dba, phase, batch_size=3)
    second = expire_batch(dba, phase, batch_size=3)
    dba.commit()
    assert (first["expired_ids"], second["expired_ids"], second["drained"]) == (
        bookings[:3],
        bookings[3:],
        True,
    )
    assert drive(dba, BOOKINGS)["expired"] == 5
    dba.commit()
    assert_consistent(db)

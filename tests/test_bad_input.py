"""Bad input: one clear sentence with the value in it, a documented SQLSTATE, and nothing changed."""

import re
from typing import Any
from uuid import UUID

import pytest

from tests.domain import (
    LEADS,
    add_bookings,
    add_leads,
    assert_consistent,
    nothing_changes,
    refused,
    run_job,
    start_run,
)
from tests.servers import Database

SOMEBODY = "'00000000-0000-0000-0000-000000000001'"

BOOKING = {"booking_id": SOMEBODY, "expected_version": "1"}
COMMANDS = {
    "confirm_booking": {**BOOKING, "booking_expires_at": "'infinity'", "actor": "'a'"},
    "extend_booking": {**BOOKING, "expires_at": "'infinity'", "actor": "'a'"},
    "cancel_booking": {**BOOKING, "actor": "'a'"},
    "extend_lead": {"lead_id": SOMEBODY, "expected_version": "1", "expires_at": "'infinity'", "actor": "'a'"},
    "reserve_property": {
        **dict.fromkeys(("tenant_id", "deal_id", "property_object_id"), SOMEBODY),
        "reserve_expires_at": "'infinity'",
        "actor": "'a'",
    },
}

# a call, its SQLSTATE, and what its message must name
CALLS: list[tuple[str, str, tuple[str, ...]]] = [
    # sizes that are zero or negative (L7), before anything is read
    *(
        (f"select * from crm.expire_leads_batch(batch_size => {size})", "XP001", ("BatchSize", f"is {size}"))
        for size in (0, -1)
    ),
    *(
        (
            f"select * from crm.expire_bookings_batch(phase => 'Reserve', batch_size => {size})",
            "XP001",
            ("BatchSize", f"is {size}"),
        )
        for size in (0, -200)
    ),
    *(
        (
            f"select * from expiration.start_run('lead-expiration', {setting} => {value})",
            "XP001",
            (name, f"is {shown}"),
        )
        for setting, name, value, shown in (
            ("batch_size", "BatchSize", "0", "0"),
            ("batch_size", "BatchSize", "-500", "-500"),
            ("max_batches_per_cycle", "MaxBatchesPerCycle", "0", "0"),
            ("max_batches_per_cycle", "MaxBatchesPerCycle", "-3", "-3"),
            ("max_duration", "MaxDuration", "'0'", "00:00:00"),
            ("max_duration", "MaxDuration", "'-1 second'", "-00:00:01"),
        )
    ),
    *(
        (
            f"select * from expiration.set_job('booking-expiration', {setting} => {value})",
            "XP001",
            (name, f"is {shown}"),
        )
        for setting, name, value, shown in (
            ("batch_size", "BatchSize", "0", "0"),
            ("batch_size", "BatchSize", "-1", "-1"),
            ("batch_size", "BatchSize", "100001", "100001"),
            ("max_batches_per_cycle", "MaxBatchesPerCycle", "0", "0"),
            ("max_batches_per_cycle", "MaxBatchesPerCycle", "-1", "-1"),
            ("period", "Period", "'0'", "00:00:00"),
            ("period", "Period", "'-1 hour'", "-01:00:00"),
            ("period", "Period", "'999 ms'", "00:00:00.999"),
            ("period", "Period", "'25 hours'", "25:00:00"),
            ("max_duration", "MaxDuration", "'0'", "00:00:00"),
            ("retry_failures_per_cycle", "RetryFailuresPerCycle", "-1", "-1"),
            ("max_transient_retries", "MaxTransientRetries", "-1", "-1"),
            ("max_transient_retries", "MaxTransientRetries", "101", "101"),
            ("stale_after", "StaleAfter", "'9 seconds'", "00:00:09"),
            ("history_retention", "HistoryRetention", "'59 minutes'", "00:59:00"),
        )
    ),
    *(
        (f"select * from expiration.purge_history({value})", "XP014", ("max_runs", f"is {value}"))
        for value in (0, -1)
    ),
    *(
        (f"select * from outbox.make_partitions({value})", "XP014", ("days_ahead", f"is {value}"))
        for value in (-1, 367)
    ),
    *(
        (
            f"select * from expiration.preview('lead-expiration', cycles => {value})",
            "XP014",
            ("cycles", f"is {value}"),
        )
        for value in (0, -1)
    ),
    # nothing may expire early
    *(
        (call, "XP002", ("as_of is", "later than the database's clock"))
        for call in (
            "select * from crm.expire_leads_batch(as_of => now() + interval '1 hour')",
            "select * from crm.expire_leads_batch(as_of => 'infinity')",
            (
                "select * from crm.expire_bookings_batch(phase => 'Booking', as_of => now() + interval '1"
                " minute')"
            ),
            "select * from expiration.start_run('lead-expiration', as_of => now() + interval '1 minute')",
            "select * from expiration.start_run('booking-expiration', as_of => 'infinity')",
            "call expiration.run_job('lead-expiration', now() + interval '1 minute')",
            "call expiration.run_job('booking-expiration', as_of => 'infinity')",
        )
    ),
    # a job or a phase that is not there
    *(
        (call, "XP003", ("lead-expiry",))
        for call in (
            "call expiration.run_job('lead-expiry')",
            "select * from expiration.start_run('lead-expiry')",
            "select * from expiration.preview('lead-expiry')",
            "select * from expiration.pause('lead-expiry')",
            "select * from expiration.resume('lead-expiry')",
            "select * from expiration.stop('lead-expiry')",
            "select * from expiration.retry_failed('lead-expiry')",
            "select * from expiration.set_job('lead-expiry', batch_size => 1)",
        )
    ),
    *(
        (f"select * from crm.expire_bookings_batch(phase => '{phase}')", "XP004", (phase,))
        for phase in ("reserve", "Lead", "Booked")
    ),
    # a run that is not there
    *(
        (call, "XP006", (SOMEBODY.strip("'"),))
        for call in (
            f"select * from expiration.run_batch({SOMEBODY})",
            f"select * from expiration.finish_run({SOMEBODY}, 'drained')",
            f"select * from expiration.batch_failed({SOMEBODY}, '42501', 'message')",
        )
    ),
    (f"select * from expiration.finish_run({SOMEBODY}, 'tired')", "XP014", ("reason", "is tired")),
    (
        f"select * from expiration.retry_failed('lead-expiration', {SOMEBODY})",
        "XP013",
        (SOMEBODY.strip("'"),),
    ),
    # null where none may be
    *(
        (f"select * from crm.expire_leads_batch({name} => null)", "XP005", (name, "crm.expire_leads_batch"))
        for name in ("as_of", "batch_size", "batch_number", "after_deadline", "after_id")
    ),
    *(
        (
            "select * from crm.expire_bookings_batch({})".format(
                "phase => null" if name == "phase" else f"phase => 'Reserve', {name} => null"
            ),
            "XP005",
            (name, "crm.expire_bookings_batch"),
        )
        for name in ("phase", "as_of", "batch_size", "batch_number", "after_deadline", "after_id")
    ),
    ("select * from expiration.start_run(null)", "XP005", ("job", "expiration.start_run")),
    *(
        (
            f"select * from expiration.start_run('lead-expiration', {name} => null)",
            "XP005",
            (name, "expiration.start_run"),
        )
        for name in ("driver", "whole_statement", "pooled")
    ),
    *(
        (f"select expiration.cron_schedule({arguments})", "XP005", (name, "expiration.cron_schedule"))
        for name, arguments in (
            ("job", "null, '1 hour'"),
            ("period", "'a job', null"),
            ("seconds_allowed", "'a job', '1 hour', null"),
        )
    ),
    ("call expiration.run_job(null)", "XP005", ("job",)),
    ("select * from expiration.run_batch(null)", "XP006", ("null",)),
    ("select * from expiration.finish_run(null, 'drained')", "XP006", ("null",)),
    (f"select * from expiration.finish_run({SOMEBODY}, null)", "XP014", ("reason", "is null")),
    ("select * from expiration.batch_failed(null, '42501', 'message')", "XP006", ("null",)),
    *(
        (f"select * from expiration.{function}", "XP005", ("job", "expiration." + function.split("(")[0]))
        for function in (
            "pause(null)",
            "resume(null)",
            "stop(null)",
            "retry_failed(null)",
            "set_job(null)",
            "preview(null)",
        )
    ),
    ("select * from expiration.preview('lead-expiration', null)", "XP005", ("as_of", "expiration.preview")),
    (
        "select * from expiration.preview('lead-expiration', now(), null)",
        "XP005",
        ("cycles", "expiration.preview"),
    ),
    ("select * from expiration.purge_history(null)", "XP014", ("max_runs", "is null")),
    *(
        (f"select * from crm.{function}({listed})", "XP005", (name, f"crm.{function}"))
        for function, arguments in COMMANDS.items()
        for name in arguments
        for listed in [", ".join("null" if other == name else value for other, value in arguments.items())]
    ),
    # deadlines that never come, or have gone by
    *(
        (
            f"select * from crm.reserve_property({SOMEBODY}, {SOMEBODY}, {SOMEBODY}, '{when}')",
            "XP009",
            (when, SOMEBODY.strip("'")),
        )
        for when in ("infinity", "-infinity")
    ),
    # periods that pg_cron cannot express
    *(
        (
            f"select expiration.cron_schedule('a job', '{period}', {seconds})",
            "XP012",
            ("a job", shown, nearest),
        )
        for period, seconds, shown, nearest in (
            ("7 minutes", "true", "00:07:00", "00:06:00 and 00:10:00"),
            ("90 minutes", "false", "01:30:00", "01:00:00 and 02:00:00"),
            ("30 seconds", "false", "00:00:30", "00:01:00"),
            ("61 seconds", "true", "00:01:01", "00:01:00 and 00:02:00"),
            ("500 ms", "true", "00:00:00.5", "00:00:01"),
            ("5 hours", "false", "05:00:00", "04:00:00 and 06:00:00"),
            ("2 days", "false", "2 days", "1 day"),
            ("0", "false", "00:00:00", "00:01:00"),
            ("-1 hour", "false", "-01:00:00", "00:01:00"),
        )
    ),
]


def name_of(call: tuple[str, str, tuple[str, ...]]) -> str:
    return (
        call[0].removeprefix("select ").removeprefix("* from ").removeprefix("call ").replace(SOMEBODY, "id")
    )


@pytest.fixture(scope="module")
def filled(server: Any) -> Any:
    """A database with something due and a run in its history; nothing here may change it."""
    with server.database() as database:
        for count in (3, 2):
            add_leads(database, count)
            add_bookings(database, count)
            if count == 3:
                run_job(database, LEADS)
        yield database


@pytest.mark.requirement("L7")
@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_bad_input_is_refused_with_a_documented_sqlstate_and_changes_nothing(
    filled: Database, call: tuple[str, str, tuple[str, ...]]
) -> None:
    query, sqlstate, parts = call
    with nothing_changes(filled), refused(sqlstate, *parts) as caught:
        filled.observer.execute(query.encode())
    message = caught.value.diag.message_primary or ""
    (documented,) = filled.rows(
        "select message, hint from expiration.errors() as e where e.sqlstate = %s", (sqlstate,)
    )
    # the message is the documented one with its gaps filled
    assert re.fullmatch(".+".join(re.escape(piece) for piece in documented[0].split("%s")), message)
    assert caught.value.diag.message_hint == documented[1]
    assert "%" not in message
    assert "\n" not in message


@pytest.mark.requirement("L7")
def test_every_sqlstate_of_ours_is_documented_once_with_a_message_and_a_hint(filled: Database) -> None:
    documented = filled.rows("select * from expiration.errors()")
    assert len(documented) >= 20
    assert len({row[0] for row in documented}) == len({row[1] for row in documented}) == len(documented)
    for sqlstate, name, message, hint in documented:
        assert sqlstate.startswith("XP")
        assert len(sqlstate) == 5
        assert name
        assert message
        assert hint


@pytest.mark.requirement("L7")
@pytest.mark.parametrize("setting", ["batch_size", "max_batches_per_cycle"])
@pytest.mark.parametrize("value", [0, -5])
def test_a_bad_setting_that_got_into_the_table_stops_the_job_before_anything_is_read(
    db: Database, setting: str, value: int
) -> None:
    add_leads(db, 3)
    db.rows(
        "alter table expiration.job drop constraint job_batch_size_is_positive, drop constraint"
        " job_max_batches_is_positive"
    )
    db.rows(f"update expiration.job set {setting} = %s where name = %s", (value, LEADS))  # type: ignore[arg-type,unused-ignore]
    # the items cannot be read at all, and that is not what is complained of
    with db.connect(autocommit=False) as other:
        other.execute("lock table crm.leads in access exclusive mode")
        name = {"batch_size": "BatchSize", "max_batches_per_cycle": "MaxBatchesPerCycle"}[setting]
        driver = db.connect("crm_runner", options="-c lock_timeout=1s")
        with refused("XP001", name, str(value)):
            driver.execute("call expiration.run_job(%s)", (LEADS,))
    assert db.value("select count(*) from expiration.run") == 0


@pytest.mark.requirement("L7")
def test_the_table_of_settings_takes_no_bad_value_either(db: Database) -> None:
    for change in (
        "batch_size = 0", "batch_size = -1", "max_batches_per_cycle = 0", "period = '0'", "period = '-1 s'",
        "max_duration = '0'", "retry_failures_per_cycle = -1", "max_transient_retries = -1",
        "stale_after = '0'", "history_retention = '0'",
    ):  # fmt: skip
        with nothing_changes(db, locks=False), refused("23514"):
            db.rows(f"update expiration.job set {change}")  # type: ignore[arg-type,unused-ignore]


@pytest.mark.requirement("L8", "B4")
@pytest.mark.parametrize("deadline", ["infinity", "-infinity"])
def test_the_tables_take_no_infinite_deadline(db: Database, deadline: str) -> None:
    add_leads(db, 1)
    add_bookings(db, 1)
    for table, column in (
        ("leads", "expires_at"),
        ("bookings", "reserve_expires_at"),
        ("bookings", "booking_expires_at"),
    ):
        with nothing_changes(db, locks=False), refused("23514", f"{table}_times_are_finite"):
            db.rows(f"update crm.{table} set {column} = %s", (deadline,))  # type: ignore[arg-type,unused-ignore]


@pytest.mark.requirement("L8", "B4")
def test_infinite_deadlines_of_a_teams_own_table_are_taken_for_what_they_are(db: Database) -> None:
    """'infinity' never comes, '-infinity' has long gone by; neither breaks the job."""
    db.rows("alter table crm.leads drop constraint leads_times_are_finite")
    never, always, _ = add_leads(db, 3)
    db.rows("update crm.leads set expires_at = 'infinity' where id = %s", (never,))
    db.rows("update crm.leads set expires_at = '-infinity' where id = %s", (always,))
    run = run_job(db, LEADS)
    assert (run["status"], run["expired"]) == ("completed", 2)
    assert db.rows("select id from crm.leads where status = 'Active'") == [(never,)]
    assert_consistent(db)
    assert db.value("select oldest_due_age from expiration.status where job = %s", (LEADS,)) is None


@pytest.mark.requirement("L7")
def test_a_failure_without_a_sqlstate_cannot_be_put_on_record(db: Database) -> None:
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS)
    with nothing_changes(db), refused("XP005", "sqlstate", "expiration.batch_failed"):
        driver.execute("select * from expiration.batch_failed(%s, null, 'message')", (run["id"],))


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("leads", "status = 'Gone'"),
        ("leads", "expires_at = null"),
        ("leads", "expired_at = now()"),
        ("leads", "version = 0"),
        ("leads", "version = -1"),
        ("bookings", "status = 'reserved'"),
        ("bookings", "reserve_expires_at = null"),
        ("bookings", "status = 'Booked', booking_expires_at = null"),
        ("bookings", "expired_at = now()"),
        ("bookings", "version = 0"),
    ],
)
def test_illegal_rows_are_impossible(db: Database, table: str, row: str) -> None:
    add_leads(db, 1)
    add_bookings(db, 1)
    with nothing_changes(db, locks=False), refused("23514"):
        db.rows(f"update crm.{table} set {row}")  # type: ignore[arg-type,unused-ignore]


@pytest.mark.requirement("B13")
def test_a_property_has_at_most_one_active_booking(db: Database) -> None:
    first, second = add_bookings(db, 2)
    with nothing_changes(db, locks=False), refused("23505", "ux_bookings_property_object_id"):
        db.rows(
            "update crm.bookings set property_object_id = (select property_object_id from"
            " crm.bookings where id = %s)"
            " where id = %s",
            (first, second),
        )


@pytest.mark.requirement("X2")
def test_a_nil_uuid_is_an_id_like_any_other(db: Database) -> None:
    """The cursor of a cycle begins at the nil uuid."""
    (lead_id,) = add_leads(db)
    db.rows("update crm.leads set id = %s where id = %s", (UUID(int=0), lead_id))
    assert run_job(db, LEADS)["expired"] == 1

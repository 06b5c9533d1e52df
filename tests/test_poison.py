"""What fails alone is left aside, what fails for reasons of the system is blamed on nobody."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from tests.domain import (
    ACTIVE,
    BOOKINGS,
    EXPIRED,
    JOB_OF,
    LEADS,
    PHASES,
    add_items,
    add_leads,
    add_poison,
    add_trigger,
    assert_consistent,
    drop_trigger,
    events,
    failed_items,
    held,
    item,
    last_run,
    refused,
    run_job,
    set_job,
    statuses,
    update_items,
)
from tests.servers import Database, Server

ALL_PHASES = ("Lead", *PHASES)


def execute(*queries: str) -> Callable[[Database, str, UUID], None]:
    """Executes queries with {table}, {id} and {expired} filled in."""

    def work(db: Database, phase: str, item_id: UUID) -> None:
        table = "crm.leads" if phase == "Lead" else "crm.bookings"
        for query in queries:
            filled = query.format(table=table, id=item_id, expired=EXPIRED[phase])
            db.observer.execute(filled.encode())

    return work


def trigger(
    body: str, at: str = "before update on {table}", level: str = "row", options: str = ""
) -> tuple[str, ...]:
    """Queries that make a trigger of somebody else's."""
    return (
        "create function public.fault() returns trigger language plpgsql as $f$ begin "
        + body
        + " return new; end $f$",
        (
            f"create {'constraint' if options else ''} trigger fault {at} {options} for each {level}"
            " execute function public.fault()"
        ),
    )


def guard(
    what: str, at: str = "before update on {table}", key: str = "new.id", options: str = ""
) -> tuple[str, ...]:
    """A trigger that refuses one item."""
    return trigger(f"if {key} = '{{id}}' then {what} end if;", at=at, options=options)


NO_PARTITION_BUT_THE_DEFAULT = (
    "do $$ declare v_name text; begin for v_name in select name from outbox.partition where not is_default"
    " loop execute format('drop table outbox.%I', v_name); end loop; end $$"
)
NO_TRIGGER = "drop function public.fault() cascade"

# what is done, the SQLSTATE it fails with, and how it is mended without touching the row
POISON: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "check_not_valid": (
        ("alter table {table} add constraint fault check (id <> '{id}' or status <> '{expired}') not valid",),
        "23514",
        ("alter table {table} drop constraint fault",),
    ),
    "unique": (
        (
            "create table public.taken (id uuid primary key)",
            "insert into public.taken values ('{id}')",
            *trigger("insert into public.taken values (new.id);"),
            "grant all on public.taken to crm_owner",
        ),
        "23505",
        ("drop table public.taken", NO_TRIGGER),
    ),
    "guard": (guard("raise exception 'not this one';"), "P0001", (NO_TRIGGER,)),
    "guard_after_update": (
        guard("raise exception 'not this one';", at="after update on {table}"),
        "P0001",
        (NO_TRIGGER,),
    ),
    "guard_with_a_code_of_its_own": (guard("raise sqlstate 'CRM01';"), "CRM01", (NO_TRIGGER,)),
    "guard_of_the_domain": (
        guard(
            "perform expiration.raise_error('invalid_transition', 'item', new.id::text, old.status,"
            " 'expire');"
        ),
        "XP104",
        (NO_TRIGGER,),
    ),
    "division_by_zero": (guard("perform 1 / 0;"), "22012", (NO_TRIGGER,)),
    "text_too_long": (
        ("alter table {table} add column note varchar(1) not null default ''", *guard("new.note := 'long';")),
        "22001",
        (NO_TRIGGER,),
    ),
    "deferred_constraint_trigger": (
        guard(
            "raise exception 'not this one';",
            at="after update on {table}",
            options="deferrable initially deferred",
        ),
        "P0001",
        (NO_TRIGGER,),
    ),
    "audit_check": (
        ("alter table crm.audit_log add constraint fault check (entity_id <> '{id}')",),
        "23514",
        ("alter table crm.audit_log drop constraint fault",),
    ),
    "audit_not_null": (
        (
            (
                "alter table crm.audit_log add column digest integer not null"
                " generated always as (case when entity_id <> '{id}' then 1 end) stored"
            ),
        ),
        "23502",
        ("alter table crm.audit_log drop column digest",),
    ),
    "audit_guard": (
        guard("raise exception 'not this one';", at="before insert on crm.audit_log", key="new.entity_id"),
        "P0001",
        (NO_TRIGGER,),
    ),
}
TIMELINE_POISON: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "timeline_check": (
        ("alter table crm.deal_timeline add constraint fault check (booking_id <> '{id}')",),
        "23514",
        ("alter table crm.deal_timeline drop constraint fault",),
    ),
    "timeline_guard": (
        guard(
            "raise exception 'not this one';", at="before insert on crm.deal_timeline", key="new.booking_id"
        ),
        "P0001",
        (NO_TRIGGER,),
    ),
}


@pytest.mark.requirement("L14", "B10")
@pytest.mark.parametrize(
    ("phase", "kind"),
    [(phase, kind) for phase in ("Lead", "Booking") for kind in POISON]
    + [(phase, kind) for phase in PHASES for kind in TIMELINE_POISON],
)
def test_an_item_that_fails_alone_is_set_aside_and_expires_by_itself_once_the_cause_is_gone(
    db: Database, phase: str, kind: str
) -> None:
    """The row itself is never touched: the bounded retry finds out."""
    ids = add_items(db, phase, 7)
    poison = ids[2]
    breaks, sqlstate, mends = (POISON | TIMELINE_POISON)[kind]
    execute(*breaks)(db, phase, poison)
    run = run_job(db, JOB_OF[phase])
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 6, 1)
    assert failed_items(db) == {poison: sqlstate}
    assert statuses(db, phase) == {EXPIRED[phase]: 6, ACTIVE[phase]: 1}
    assert_consistent(db)

    again = run_job(db, JOB_OF[phase])
    assert (again["status"], again["expired"], again["failed"]) == ("completed", 0, 1)
    assert db.rows("select attempts, run_id from expiration.failed_item") == [(2, again["id"])]

    execute(*mends)(db, phase, poison)
    mended = run_job(db, JOB_OF[phase])
    assert (mended["status"], mended["expired"], mended["failed"]) == ("completed", 1, 0)
    assert failed_items(db) == {}
    assert item(db, phase, poison)["status"] == EXPIRED[phase]
    assert_consistent(db)


@pytest.mark.requirement("L14", "B10")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_an_item_whose_row_is_mended_expires_with_the_healthy_ones_of_the_next_cycle(
    db: Database, phase: str
) -> None:
    (poison,) = add_poison(db, phase)
    run_job(db, JOB_OF[phase])
    assert failed_items(db) == {poison: "22003"}
    # no retry is needed for it
    set_job(db, JOB_OF[phase], retry_failures_per_cycle=0)
    update_items(db, phase, [poison], "version = 1")
    run = run_job(db, JOB_OF[phase])
    assert (run["expired"], run["failed"]) == (1, 0)
    assert db.value("select step from expiration.batch where run_id = %s", (run["id"],)) == "claim"
    assert failed_items(db) == {}
    assert_consistent(db)


@pytest.mark.requirement("L14", "L8")
@pytest.mark.slow
def test_1200_poisoned_leads_with_the_oldest_deadlines_do_not_hold_up_1000_healthy_ones(db: Database) -> None:
    poison = add_poison(db, "Lead", 1200)
    healthy = add_leads(db, 1000)
    run = run_job(db, LEADS)
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 1000, 1200)
    assert statuses(db, "Lead", healthy) == {"Expired": 1000}
    assert failed_items(db) == dict.fromkeys(poison, "22003")
    assert [event["aggregate_id"] for event in events(db)] == healthy
    assert_consistent(db)

    # all are mended at once, by changing the rows
    update_items(db, "Lead", poison, "version = 1")
    assert run_job(db, LEADS)["expired"] == 1200
    assert failed_items(db) == {}
    assert_consistent(db)


@pytest.mark.requirement("B2", "B10")
@pytest.mark.slow
def test_1200_poisoned_bookings_a_phase_do_not_hold_up_the_healthy_ones_behind_them(db: Database) -> None:
    healthy = {}
    for phase in PHASES:
        add_poison(db, phase, 1200)
        healthy[phase] = add_items(db, phase, 1000)
    for cycle in range(1, 6):
        run = run_job(db, BOOKINGS)
        assert (run["status"], run["expired"]) == ("capped" if cycle < 5 else "completed", 400)
        for phase in PHASES:
            assert statuses(db, phase, healthy[phase][: cycle * 200]) == {EXPIRED[phase]: cycle * 200}
    assert len(failed_items(db)) == 2400
    assert_consistent(db)


@pytest.mark.requirement("L14", "B10")
@pytest.mark.parametrize("phase", ALL_PHASES)
def test_poison_in_every_second_row_costs_no_more_subtransactions_than_a_backend_remembers(
    db: Database, phase: str
) -> None:
    """PostgreSQL keeps 64 subtransaction ids a backend; each has written its own xmin into the events."""
    ids = add_items(db, phase, 200)
    update_items(db, phase, ids[::2], "version = 2147483647")
    set_job(db, JOB_OF[phase], batch_size=500)
    run = run_job(db, JOB_OF[phase])
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 100, 100)
    writing = db.rows("select traceparent, count(distinct xmin::text), count(*) from outbox.event group by 1")
    assert len(writing) == run["batches"] >= 2
    assert sum(expired for _, _, expired in writing) == 100
    assert 32 <= max(subtransactions for _, subtransactions, _ in writing) <= 64
    # each batch goes on behind the one before
    cursors = db.rows("select oldest_deadline, last_deadline, claimed from expiration.batch order by number")
    assert [claimed for *_, claimed in cursors] == sorted((claimed for *_, claimed in cursors), reverse=True)
    assert all(before[1] < after[0] for before, after in pairwise(cursors))
    assert sum(claimed for *_, claimed in cursors) == 200
    assert_consistent(db)


@pytest.mark.requirement("L14")
@pytest.mark.parametrize("kind", ["overflow", "guard", "guard_after_update", "audit_check", "audit_guard"])
@pytest.mark.parametrize("counting", ["on", "off"], ids=["counting", "not_counting"])
def test_a_batch_with_one_poison_row_is_split_and_not_done_row_by_row(
    db: Database, kind: str, counting: str
) -> None:
    """Where PostgreSQL counts the rows that a statement has changed, that tells where it stopped."""
    ids = add_leads(db, 256)
    if kind == "overflow":
        update_items(db, "Lead", ids[100:101], "version = 2147483647")
    else:
        execute(*POISON[kind][0])(db, "Lead", ids[100])
    driver = db.connect()
    driver.execute("select set_config('track_counts', %s, false)", (counting,))
    run = run_job(driver, LEADS)
    assert (run["expired"], run["failed"], run["batches"]) == (255, 1, 1)
    # parts that were written: by halves log2(256), after one guess
    assert db.value("select count(distinct xmin::text) from outbox.event") <= 10


@pytest.mark.requirement("L14")
def test_poison_is_retried_a_bounded_number_a_cycle_longest_waiting_first(db: Database) -> None:
    poison = set(add_poison(db, "Lead", 25))
    set_job(db, LEADS, retry_failures_per_cycle=10)
    run_job(db, LEADS)
    tried: list[set[UUID]] = []
    for _ in range(3):
        run = run_job(db, LEADS)
        assert (run["status"], run["expired"], run["failed"]) == ("completed", 0, 10)
        tried.append(
            {
                row[0]
                for row in db.rows(
                    "select item_id from expiration.failed_item where run_id = %s", (run["id"],)
                )
            }
        )
    assert [len(items) for items in tried] == [10, 10, 10]
    assert set().union(*tried) == poison
    assert db.value("select min(attempts) || ' ' || max(attempts) from expiration.failed_item") == "2 3"


@pytest.mark.requirement("L14")
def test_all_that_was_mended_elsewhere_goes_in_one_cycle_however_few_failures_it_may_retry(
    db: Database,
) -> None:
    add_leads(db, 250)
    db.rows("alter table crm.leads add constraint fault check (status <> 'Expired') not valid")
    run_job(db, LEADS)
    assert len(failed_items(db)) == 250
    set_job(db, LEADS, retry_failures_per_cycle=10)
    db.rows("alter table crm.leads drop constraint fault")
    run = run_job(db, LEADS)
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 250, 0)
    assert failed_items(db) == {}
    assert_consistent(db)


@pytest.mark.requirement("L14")
def test_a_failed_item_keeps_its_first_failure_and_counts_its_attempts(db: Database) -> None:
    (poison,) = add_poison(db, "Lead")
    first = run_job(db, LEADS)
    (before,) = db.rows(
        "select first_failed_at, last_failed_at, attempts, run_id from expiration.failed_item"
    )
    update_items(db, "Lead", [poison], "updated_at = now()")
    second = run_job(db, LEADS)
    (after,) = db.rows("select first_failed_at, last_failed_at, attempts, run_id from expiration.failed_item")
    assert (before[2:], after[2:]) == ((1, first["id"]), (2, second["id"]))
    assert after[0] == before[0] <= before[1] < after[1]


@pytest.mark.requirement("L14", "B10")
def test_items_that_are_no_longer_due_leave_the_list(db: Database) -> None:
    deleted, archived, ahead = add_poison(db, "Lead", 3)
    cancelled, confirmed = add_poison(db, "Reserve", 2)
    for job in (LEADS, BOOKINGS):
        run_job(db, job)
    assert len(failed_items(db)) == 5
    db.rows("delete from crm.leads where id = %s", (deleted,))
    update_items(db, "Lead", [archived], "status = 'Archived'")
    update_items(db, "Lead", [ahead], "expires_at = now() + interval '1 day'")
    update_items(db, "Reserve", [cancelled], "status = 'Cancelled'")
    update_items(
        db, "Reserve", [confirmed], "status = 'Booked', booking_expires_at = now() + interval '1 day'"
    )
    for job in (LEADS, BOOKINGS):
        run = run_job(db, job)
        assert (run["expired"], run["failed"]) == (0, 0)
    assert failed_items(db) == {}


@pytest.mark.requirement("B10")
def test_failed_items_that_a_manager_holds_wait_for_the_next_cycle(db: Database) -> None:
    poison = add_poison(db, "Reserve", 3)
    run_job(db, BOOKINGS)
    with held(db, "Reserve", poison):
        run = run_job(db, BOOKINGS)
        assert (run["status"], run["failed"], len(failed_items(db))) == ("completed", 0, 3)
    assert run_job(db, BOOKINGS)["failed"] == 3


@pytest.mark.requirement("L14")
def test_a_change_that_a_trigger_suppresses_ends_the_cycle_and_marks_nothing(db: Database) -> None:
    """Neither expired nor failed: a cycle must not go round in circles over such rows."""
    add_leads(db, 30)
    set_job(db, LEADS, batch_size=10, retry_failures_per_cycle=10, max_duration="1 minute")
    add_trigger(db, "crm.leads", "raise exception 'no';", at="before update")
    run_job(db, LEADS)
    assert len(failed_items(db)) == 30
    db.rows(
        "create or replace function public.fault() returns trigger language plpgsql as 'begin return"
        " null; end'"
    )
    run = run_job(db, LEADS)
    assert (run["status"], run["reason"], run["expired"]) == ("completed", "drained", 0)
    drop_trigger(db)
    assert run_job(db, LEADS)["expired"] == 30
    assert_consistent(db)


# --------------------------------------------------------------------------------------- faults of the system

# what is done, the SQLSTATE it fails with, how it is mended
SYSTEM: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "privilege_on_items": (
        ("revoke update on {table} from crm_owner",),
        "42501",
        ("grant update on {table} to crm_owner",),
    ),
    "privilege_on_the_outbox": (
        ("revoke insert on outbox.event from crm_owner",),
        "42501",
        ("grant insert on outbox.event to crm_owner",),
    ),
    "privilege_on_the_audit_log": (
        ("revoke insert on crm.audit_log from crm_owner",),
        "42501",
        ("grant insert on crm.audit_log to crm_owner",),
    ),
    "privilege_on_the_list_of_failed_items": (
        ("revoke insert on expiration.failed_item from crm_owner",),
        "42501",
        ("grant insert on expiration.failed_item to crm_owner",),
    ),
    "column_renamed": (
        ("alter table {table} rename column version to revision",),
        "42703",
        ("alter table {table} rename column revision to version",),
    ),
    "column_of_the_outbox_missing": (
        ("alter table outbox.event drop column traceparent",),
        "42703",
        ("alter table outbox.event add column traceparent text",),
    ),
    "column_of_the_audit_log_missing": (
        ("alter table crm.audit_log rename column actor to who",),
        "42703",
        ("alter table crm.audit_log rename column who to actor",),
    ),
    "outbox_missing": (
        ("alter table outbox.event rename to event_moved",),
        "42P01",
        ("alter table outbox.event_moved rename to event",),
    ),
    "audit_log_missing": (
        ("alter table crm.audit_log rename to audit_moved",),
        "42P01",
        ("alter table crm.audit_moved rename to audit_log",),
    ),
    "outbox_has_no_partition": (
        (NO_PARTITION_BUT_THE_DEFAULT, "alter table outbox.event detach partition outbox.event_default"),
        "23514",
        ("alter table outbox.event attach partition outbox.event_default default",),
    ),
    "outbox_check": (
        ("alter table outbox.event add constraint fault check (topic = '')",),
        "23514",
        ("alter table outbox.event drop constraint fault",),
    ),
    "outbox_not_null": (
        ("alter table outbox.event add column shard integer not null",),
        "23502",
        ("alter table outbox.event drop column shard",),
    ),
    "outbox_unique": (
        (
            NO_PARTITION_BUT_THE_DEFAULT,
            "create unique index fault on outbox.event_default (aggregate_type)",
        ),
        "23505",
        ("drop index outbox.fault",),
    ),
    "outbox_trigger": (
        trigger("raise exception 'closed';", at="before insert on outbox.event"),
        "P0001",
        (NO_TRIGGER,),
    ),
    "outbox_trigger_with_a_code_of_its_own": (
        trigger("raise sqlstate 'CRM99';", at="before insert on outbox.event"),
        "CRM99",
        (NO_TRIGGER,),
    ),
    "outbox_trigger_a_statement": (
        trigger("raise exception 'closed';", at="before insert on outbox.event", level="statement"),
        "P0001",
        (NO_TRIGGER,),
    ),
    "outbox_trigger_that_divides_by_zero": (
        trigger("perform 1 / 0;", at="after insert on outbox.event"),
        "22012",
        (NO_TRIGGER,),
    ),
    "outbox_trigger_into_a_table_elsewhere": (
        (
            "create table public.queue (a integer not null)",
            "grant all on public.queue to crm_owner",
            *trigger("insert into public.queue values (null);", at="after insert on outbox.event"),
        ),
        "23502",
        (NO_TRIGGER,),
    ),
    "outbox_deferred_trigger": (
        (
            NO_PARTITION_BUT_THE_DEFAULT,
            *trigger(
                "raise exception 'closed';",
                at="after insert on outbox.event_default",
                options="deferrable initially deferred",
            ),
        ),
        "P0001",
        (NO_TRIGGER,),
    ),
    "outbox_function_broken": (
        (
            "alter function outbox.utc(timestamptz) rename to old_utc",
            (
                "create function outbox.utc(instant timestamptz) returns text language plpgsql as 'begin"
                " return 1 / 0; end'"
            ),
            "grant execute on function outbox.utc(timestamptz) to crm_owner",
        ),
        "22012",
        (
            "drop function outbox.utc(timestamptz)",
            "alter function outbox.old_utc(timestamptz) rename to utc",
        ),
    ),
    "table_of_batches_check": (
        ("alter table expiration.batch add constraint fault check (claimed < 0)",),
        "23514",
        ("alter table expiration.batch drop constraint fault",),
    ),
}


@pytest.mark.requirement("L12", "L14", "B10")
@pytest.mark.parametrize("fault", SYSTEM)
@pytest.mark.parametrize("phase", ["Lead", "Booking"])
def test_a_fault_of_the_system_marks_no_item_fails_loudly_and_everything_is_due_again(
    db: Database, phase: str, fault: str
) -> None:
    """Poison and healthy rows among each other: nobody may be blamed, and nothing may be kept."""
    poison = add_poison(db, phase, 2)
    healthy = add_items(db, phase, 5)
    breaks, sqlstate, mends = SYSTEM[fault]
    execute(*breaks)(db, phase, healthy[0])
    # the connection's plans are of before and after
    with refused(sqlstate):
        run_job(db, JOB_OF[phase])
    assert statuses(db, phase) == {ACTIVE[phase]: 7}
    assert failed_items(db) == {}
    run = last_run(db, JOB_OF[phase])
    assert (run["status"], run["sqlstate"], run["expired"], run["failed"]) == ("failed", sqlstate, 0, 0)
    assert run["error"]
    execute(*mends)(db, phase, healthy[0])
    run = run_job(db, JOB_OF[phase])
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 5, 2)
    assert set(failed_items(db)) == set(poison)
    assert_consistent(db, ignore=["an event bears the id of its run and the trace of its batch"])


@pytest.mark.requirement("L14", "B10")
@pytest.mark.parametrize("phase", ["Lead", "Booking"])
def test_a_sqlstate_that_is_not_on_the_allow_list_is_never_blamed_on_an_item(
    db: Database, phase: str
) -> None:
    """Raised while the row is changed: connection, feature, transaction state, privilege, full disk
    (simulated), memory, connections, limits, shutdown, I/O, foreign data, internal, assertion, the engine's.
    """
    add_poison(db, phase, 1)
    add_items(db, phase, 3)
    for code in (
        "08006", "0A000", "25006", "42501", "42P01", "53100", "53200", "53300", "54000", "55000", "57P01",
        "58030", "HV000", "XX000", "XX001", "P0002", "P0004", "XP008",
    ):  # fmt: skip
        execute(*trigger(f"raise sqlstate '{code}' using message = 'this', hint = 'Mend it.';"))(
            db, phase, UUID(int=0)
        )
        with refused(code, "this"):
            run_job(db, JOB_OF[phase])
        run = last_run(db, JOB_OF[phase])
        assert (run["status"], run["sqlstate"], run["error"], run["failed"]) == ("failed", code, "this", 0)
        db.rows("drop function public.fault() cascade")
    assert failed_items(db) == {}
    assert run_job(db, JOB_OF[phase])["expired"] == 3


@pytest.mark.requirement("L12", "B10")
@pytest.mark.parametrize("phase", ["Lead", "Booking"])
def test_a_lock_timeout_is_tried_again_a_bounded_number_of_times_and_marks_no_item(
    db: Database, phase: str
) -> None:
    ids = [*add_poison(db, phase, 1), *add_items(db, phase, 3)]
    set_job(db, JOB_OF[phase], max_transient_retries=2)
    driver = db.connect(options="-c lock_timeout=20ms")
    with db.connect(autocommit=False) as other:
        other.execute("lock table outbox.event in access exclusive mode")
        with refused("55P03"):
            run_job(driver, JOB_OF[phase])
    run = last_run(db, JOB_OF[phase])
    assert (run["status"], run["sqlstate"], run["retries"], run["failed"]) == ("failed", "55P03", 2, 0)
    assert failed_items(db) == {}
    assert statuses(db, phase, ids) == {ACTIVE[phase]: 4}
    run = run_job(driver, JOB_OF[phase])
    assert (run["status"], run["expired"], run["failed"], run["retries"]) == ("completed", 3, 1, 0)


@pytest.mark.requirement("L12", "B10")
@pytest.mark.parametrize("how", ["cancelled", "statement_timeout"])
def test_a_statement_that_is_cancelled_marks_no_item(db: Database, how: str) -> None:
    add_poison(db, "Lead", 1)
    add_leads(db, 3)
    options: dict[str, Any] = {"options": "-c statement_timeout=1500ms"} if how == "statement_timeout" else {}
    with db.connect(autocommit=False) as other:
        other.execute("lock table outbox.event in access exclusive mode")
        driver = db.background(lambda connection: run_job(connection, LEADS), **options)
        db.wait_for_lock(driver.pid)
        if how == "cancelled":
            db.rows("select pg_cancel_backend(%s)", (driver.pid,))
        with refused("57014"):
            driver.result()
    run = last_run(db, LEADS)
    assert (run["status"], run["sqlstate"], run["failed"]) == ("failed", "57014", 0)
    assert failed_items(db) == {}
    assert run_job(db, LEADS)["expired"] == 3


@pytest.mark.requirement("L2", "B10")
def test_a_deadlock_with_another_application_is_tried_again_and_blames_no_item(db: Database) -> None:
    """The other one locks the audit log, then the lead; the job does it the other way round."""
    poison, lead_id = add_poison(db, "Lead")[0], add_leads(db, 1)[0]
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    other = db.connect(autocommit=False, options="-c deadlock_timeout=60s")
    other.execute("lock table crm.audit_log in share mode")
    driver = db.background(lambda connection: run_job(connection, LEADS), options="-c deadlock_timeout=1s")
    db.wait_for_lock(driver.pid)
    # waits until the job has become the deadlock's victim
    other.execute("update crm.leads set updated_at = now() where id = %s", (lead_id,))
    other.commit()
    run = driver.result()
    assert (run["status"], run["retries"], run["expired"], run["failed"]) == ("completed", 1, 1, 1)
    assert set(failed_items(db)) == {poison}
    db.wait_until(deadlocks, what="the deadlock is counted")
    assert_consistent(db)


@contextlib.contextmanager
def small_disk(owner: int) -> Iterator[Path]:
    """A file system of 4 MB that belongs to that user."""
    with tempfile.TemporaryDirectory(prefix="pyrunner-small-disk-") as name:
        Path(name).chmod(0o711)
        disk = Path(name) / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size=4m,uid={owner},mode=700", "tmpfs", disk],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if mounted.returncode:
            pytest.skip(
                f"a full disk needs a file system of our own, and mount says: {mounted.stderr.strip()}"
            )
        try:
            yield disk
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.requirement("L12", "B10")
@pytest.mark.skipif(
    os.geteuid() != 0, reason="a full disk needs a file system of our own, and only root may mount one"
)
def test_a_disk_that_is_really_full_marks_no_item(private_server: Callable[..., Server]) -> None:
    server = private_server()
    with server.database() as db:
        owner = Path(db.value("show data_directory")).stat().st_uid
        with small_disk(owner) as disk:
            db.rows(sql.SQL("create tablespace small location {}").format(sql.Literal(str(disk))))
            db.rows(sql.SQL(NO_PARTITION_BUT_THE_DEFAULT))
            db.rows("alter table outbox.event_default set tablespace small")
            # what is written before the disk is full is taken back, and the file stays as long as it is
            db.rows("create table public.filler (x text) tablespace small")
            with refused("53100"):
                db.rows("insert into public.filler select repeat('x', 1000) from generate_series(1, 10000)")
            add_poison(db, "Lead", 2)
            add_leads(db, 5)
            with refused("53100"):
                run_job(db, LEADS)
            run = last_run(db, LEADS)
            assert (run["status"], run["sqlstate"], run["failed"]) == ("failed", "53100", 0)
            assert failed_items(db) == {}
            assert statuses(db, "Lead") == {"Active": 7}
            db.rows("drop table public.filler")
            run = run_job(db, LEADS)
            assert (run["status"], run["expired"], run["failed"]) == ("completed", 5, 2)
            assert_consistent(db)
            db.rows("alter table outbox.event_default set tablespace pg_default")
            db.rows("drop tablespace small")


@pytest.mark.requirement("L14")
def test_a_verdict_outlives_a_vacuum_that_freezes_or_rewrites_the_table(db: Database) -> None:
    """It is bound to the row's version, which neither changes."""
    add_poison(db, "Lead", 3)
    run_job(db, LEADS)
    set_job(db, LEADS, retry_failures_per_cycle=0)
    db.rows("vacuum freeze crm.leads")
    assert run_job(db, LEADS)["failed"] == 0
    db.rows("vacuum (full, freeze) crm.leads")
    assert run_job(db, LEADS)["failed"] == 0
    assert len(failed_items(db)) == 3


@pytest.mark.requirement("B2", "B10")
def test_a_backlog_that_uses_up_every_cycle_does_not_keep_failed_items_waiting_for_good(db: Database) -> None:
    (poison,) = add_poison(db, "Reserve")
    add_items(db, "Reserve", 5)
    set_job(db, BOOKINGS, batch_size=2)
    tried = []
    for _ in range(2):
        run = run_job(db, BOOKINGS)
        assert (run["status"], run["expired"]) == ("capped", 2)
        tried.append(db.value("select attempts from expiration.failed_item where item_id = %s", (poison,)))
    assert tried == [1, 2]


@pytest.mark.requirement("B2")
def test_mended_items_go_within_the_cap(db: Database) -> None:
    add_items(db, "Reserve", 7)
    add_trigger(db, "crm.bookings", "raise exception 'not now';", at="before update")
    assert run_job(db, BOOKINGS)["failed"] == 7
    drop_trigger(db)
    set_job(db, BOOKINGS, batch_size=3)
    assert [run_job(db, BOOKINGS)["expired"] for _ in range(3)] == [3, 3, 1]
    assert failed_items(db) == {}


def test_status_says_so_when_a_run_expired_nothing_and_items_failed(db: Database) -> None:
    add_poison(db, "Lead", 3)
    run_job(db, LEADS)
    why = db.value("select why_not from expiration.status where job = %s", (LEADS,))
    assert why == "the last run expired nothing, and 3 items failed: see expiration.failed"

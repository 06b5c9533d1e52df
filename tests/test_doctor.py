"""`pyrunner doctor`: each kind of trouble is found, with its remedy, and the exit code tells the worst."""

import contextlib
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, LiteralString

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from tests.commands import pyrunner
from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    held,
    nothing_changes,
    run,
    run_job,
    set_job,
)
from tests.servers import Database, Server, need

Finding = dict[str, Any]


def doctor(db: Database, *arguments: str, role: str | None = None, code: int | None = None) -> list[Finding]:
    """The findings."""
    dsn = db.dsn if role is None else db.role_dsn(role)
    found = pyrunner("doctor", "--json", *arguments, dsn=dsn, code=code).json
    assert isinstance(found, list)
    return found


def trouble(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding["severity"] in ("warning", "error")]


def the(findings: list[Finding], part: str, severity: str) -> Finding:
    """The one finding that says so, which must be of that severity and have a reason and a remedy."""
    found = [finding for finding in findings if part in finding["what"]]
    assert len(found) == 1, f"{part!r} in {[finding['what'] for finding in findings]}"
    assert found[0]["severity"] == severity, found[0]
    assert found[0]["why"]
    assert found[0]["remedy"]
    return found[0]


@pytest.fixture
def sound(db: Database) -> Database:
    """A database in which all is well: house was kept, both jobs have just run."""
    run(db, "call expiration.run_upkeep()")
    run_job(db, LEADS)
    run_job(db, BOOKINGS)
    return db


def remedied(db: Database, finding: Finding) -> None:
    """Types the remedy, where it is SQL."""
    db.psql(finding["remedy"])


def test_where_all_is_well_nothing_is_found_and_the_code_is_0(sound: Database) -> None:
    findings = doctor(sound, code=0)
    assert trouble(findings) == []
    checks = [finding["check"] for finding in findings]
    assert len(set(checks)) == 13
    assert "0 errors, 0 warnings." in pyrunner("doctor", dsn=sound.dsn, code=0).out


@pytest.mark.parametrize("role", ["crm_monitor", "crm_runner", "crm_operator"])
def test_it_works_for_every_role_and_says_what_it_cannot_see(sound: Database, role: str) -> None:
    # the server's own processes and other users' sessions are not for everybody's eyes
    findings = doctor(sound, role=role, code=0)
    assert trouble(findings) == []
    assert len({finding["check"] for finding in findings}) == 13
    for finding in findings:
        if finding["severity"] == "unseen":
            assert finding["remedy"], finding


@pytest.mark.parametrize("role", ["pg_monitor", "crm_app"])
def test_a_login_that_may_not_look_is_told_what_to_grant(sound: Database, role: str) -> None:
    findings = doctor(sound, role=role)
    unseen = [finding for finding in findings if finding["severity"] == "unseen"]
    assert any("crm_monitor" in finding["remedy"] for finding in unseen)


def test_looking_changes_nothing(sound: Database) -> None:
    add_poison(sound, "Lead")
    with nothing_changes(sound):
        doctor(sound)


# --------------------------------------------------------------------------------------------- installation


def test_an_empty_database_has_one_error_and_its_remedy(bare_db: Database) -> None:
    (finding,) = trouble(doctor(bare_db, code=9))
    assert (finding["what"], finding["remedy"]) == (
        "Nothing is installed in this database",
        "pyrunner migrate",
    )


def test_half_an_installation_is_found_and_the_rest_is_looked_at_all_the_same(sound: Database) -> None:
    run(sound, "delete from expiration.installation")
    run(sound, "drop view expiration.status cascade")
    findings = doctor(sound, code=9)
    the(findings, "never completed", "error")
    assert [f["severity"] for f in findings if "expiration.status" in f["what"]] == ["unseen"]
    assert "Indexes" in {finding["check"] for finding in findings}


def test_a_function_changed_by_hand_is_found(sound: Database) -> None:
    run(sound, "alter function expiration.stop(text) set work_mem = '1MB'")
    finding = the(doctor(sound, code=10), "function expiration.stop(text)", "warning")
    assert finding["remedy"] == "pyrunner migrate"


# ------------------------------------------------------------------------------------------- tables, indexes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("alter table crm.leads rename column expires_at to due_at", "crm.leads has no column expires_at"),
        ("alter table crm.fixations alter column tenant_id type text", "crm.fixations.tenant_id is text"),
        ("alter table crm.deals rename to contracts", "there is no table crm.deals"),
        ("alter table crm.audit_log add column branch text not null", "crm.audit_log.branch must be given"),
    ],
)
def test_missing_and_wrong_columns_are_found(sound: Database, change: LiteralString, said: str) -> None:
    run(sound, change)
    the(doctor(sound, code=9), said, "error")


def test_a_missing_column_is_remedied_by_what_is_said(sound: Database) -> None:
    run(sound, "alter table crm.deals drop column tenant_id")
    remedied(sound, the(doctor(sound, code=9), "crm.deals has no column tenant_id", "error"))
    assert not [f for f in doctor(sound) if f["check"] == "Tables and columns" and f["severity"] != "ok"]


@pytest.mark.requirement("L8", "B4")
@pytest.mark.parametrize(
    "index", ["ix_leads_expires_at", "ix_bookings_reserve_expires_at", "ix_bookings_booking_expires_at"]
)
def test_a_missing_index_of_a_claim_is_found_and_made_anew(sound: Database, index: str) -> None:
    run(sound, f"drop index crm.{index}")
    remedied(sound, the(doctor(sound, code=9), f"index crm.{index} is missing", "error"))
    assert trouble(doctor(sound)) == []


@pytest.mark.requirement("L8", "B4")
def test_an_invalid_index_is_found_and_built_anew(sound: Database) -> None:
    run(
        sound, "update pg_index set indisvalid = false where indexrelid = 'crm.ix_leads_expires_at'::regclass"
    )
    remedied(sound, the(doctor(sound, code=9), "index crm.ix_leads_expires_at is invalid", "error"))
    assert trouble(doctor(sound)) == []


def test_an_index_that_serves_no_claim_is_found(sound: Database) -> None:
    run(sound, "drop index crm.ix_leads_expires_at")
    run(sound, "create index ix_leads_expires_at on crm.leads (created_at)")
    the(doctor(sound, code=10), "index crm.ix_leads_expires_at is on (created_at), not partial", "warning")


def test_autovacuum_that_was_disabled_is_found(sound: Database) -> None:
    run(sound, "alter table crm.leads set (autovacuum_enabled = off)")
    remedied(sound, the(doctor(sound, code=10), "autovacuum is disabled on crm.leads", "warning"))
    assert trouble(doctor(sound)) == []


# ----------------------------------------------------------------------------------------------- privileges


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("revoke update on crm.leads from crm_owner", "crm_owner may not update crm.leads"),
        (
            "revoke execute on function expiration.run_batch(uuid) from crm_runner",
            "crm_runner may not execute",
        ),
        ("grant execute on function expiration.stop(text) to public", "everybody may execute"),
    ],
)
def test_privileges_that_are_missing_or_too_many_are_found(
    sound: Database, change: LiteralString, said: str
) -> None:
    run(sound, change)
    the(doctor(sound, code=9), said, "error")


def test_settings_of_a_login_that_would_cut_off_a_cycle_are_found(sound: Database) -> None:
    dsn = sound.role_dsn("crm_runner")
    login = conninfo_to_dict(dsn)["user"]
    run(sound, f"alter role {login} in database {sound.name} set statement_timeout = '5s'")
    run(sound, f"alter role {login} in database {sound.name} set lock_timeout = 10")
    # as the login itself sees it, and as somebody else does
    for role in ("crm_runner", None):
        findings = doctor(sound, role=role, code=10)
        the(findings, f"statement_timeout is 00:00:05 for {login}", "warning")
        the(findings, f"lock_timeout is 00:00:00.01 for {login}", "warning")
    run(sound, f"alter role {login} in database {sound.name} set statement_timeout = '1min'")
    findings = doctor(sound, role="crm_runner", code=10)
    about = [finding for finding in findings if "statement_timeout is 00:01:00" in finding["what"]]
    assert [finding["why"] for finding in about] == [
        "a cycle of lead-expiration by CALL (pg_cron, psql) may take 00:55:00"
    ]


@pytest.mark.parametrize(
    ("setting", "said", "severity", "code"),
    [
        ("default_transaction_isolation = 'repeatable read'", "repeatable read by default", "warning", 10),
        ("default_transaction_read_only = on", "read only by default", "error", 9),
    ],
)
def test_defaults_of_transactions_are_found(
    sound: Database, setting: str, said: str, severity: str, code: int
) -> None:
    run(sound, f"alter database {sound.name} set {setting}")
    the(doctor(sound, code=code), said, severity)


def test_clocks_that_differ_are_found(sound: Database) -> None:
    connection = sound.connect(autocommit=False)
    check = (files("pyrunner") / "queries" / "doctor" / "02.connection.sql").read_text("utf-8")
    settings = (
        "select set_config('pyrunner.backend_pid', pg_backend_pid()::text, true), set_config(%s, %s, true)"
    )
    for difference, found in (("1 second", 0), ("-90 seconds", 1), ("90 seconds", 1)):
        client = sound.value("select (clock_timestamp() + %s::interval)::text", (difference,))
        connection.execute(settings, ("pyrunner.client_time", client))
        rows = connection.execute(check).fetchall()
        assert [row[0] for row in rows] == ["warning"] * found, rows
        connection.rollback()


# ------------------------------------------------------------------------------------------- outbox, jobs


def test_missing_partitions_and_events_without_one_are_found(db: Database) -> None:
    for (name,) in db.rows("select name from outbox.partition where not is_default"):
        db.rows(SQL("drop table outbox.{}").format(Identifier(name)))
    add_leads(db, 3)
    run_job(db, LEADS)
    run_job(db, BOOKINGS)
    db.wait_until("select n_live_tup > 0 from pg_stat_user_tables where relname = 'event_default'")
    findings = doctor(db, code=9)
    remedied(db, the(findings, "the outbox has no partition for today", "error"))
    the(findings, "outbox.event_default holds about 3 events", "warning")
    db.wait_until("select n_live_tup = 0 from pg_stat_user_tables where relname = 'event_default'")
    assert trouble(doctor(db, code=0)) == []
    run(db, "update outbox.settings set partitions_ahead = 20")
    the(doctor(db, code=10), "the outbox has partitions until", "warning")


@pytest.mark.requirement("L19", "B15")
def test_jobs_that_never_ran_failed_are_paused_or_silent_are_found(sound: Database) -> None:
    run(sound, "delete from expiration.run where job = %s", BOOKINGS)
    the(doctor(sound, code=10), "booking-expiration has never run", "warning")
    run(
        sound,
        "update expiration.run set started_at = started_at - interval '5 h',"
        " finished_at = finished_at - interval '5 h'",
    )
    the(doctor(sound, code=9), "lead-expiration has had no successful cycle for 05:00:", "error")
    run(sound, "select expiration.pause(%s, 'a release')", LEADS)
    findings = doctor(sound, code=10)
    assert (
        the(findings, "lead-expiration is paused by", "warning")["remedy"]
        == "pyrunner resume lead-expiration"
    )
    assert not [finding for finding in findings if "no successful cycle" in finding["what"]]
    run(sound, "select expiration.resume(%s)", LEADS)
    run(
        sound,
        "update expiration.run set status = 'failed', sqlstate = '53100', error = 'no space left',"
        " finished_at = now(), started_at = now()",
    )
    the(doctor(sound, code=9), "the last run failed with 53100: no space left", "error")


@pytest.mark.requirement("L14", "B10")
def test_failed_items_a_backlog_and_locked_rows_are_found(sound: Database) -> None:
    add_poison(sound, "Lead", 2)
    set_job(sound, LEADS, batch_size=1, max_batches_per_cycle=1)
    add_leads(sound, 3)
    reserves = add_bookings(sound, 2)
    with held(sound, "Reserve", reserves):
        run_job(sound, LEADS)
        run_job(sound, BOOKINGS)
        findings = doctor(sound, code=10)
    assert (
        the(findings, "lead-expiration: 2 failed items", "warning")["remedy"]
        == "pyrunner failed list lead-expiration"
    )
    the(findings, "the last cycle ended with capped", "warning")
    the(findings, "the last cycle ended with locked, and 2 items are due", "warning")


def test_runs_whose_driver_is_gone_are_found(sound: Database) -> None:
    gone = sound.connect("crm_runner")
    gone.execute("select expiration.start_run(%s, 'pyrunner', 'a')", (LEADS,))
    pid = gone.info.backend_pid
    assert trouble(doctor(sound)) == []
    gone.close()
    sound.wait_until_gone(pid)
    remedied(
        sound,
        the(doctor(sound, code=10), "is on record as running, and its driver pyrunner is gone", "warning"),
    )
    the(doctor(sound, code=10), "lead-expiration: 1 runs were abandoned within a day", "warning")


# -------------------------------------------------------------------------------------------- sessions, slots


def test_sessions_that_hold_rows_or_old_snapshots_are_found(sound: Database) -> None:
    lead = add_leads(sound, 1, due="-1 day")
    with held(sound, "Lead", lead) as holder:
        pid = holder.info.backend_pid
        assert trouble(doctor(sound)) == []
        # a minute is too long to wait for: the check is run with a shorter one
        check = (files("pyrunner") / "queries" / "doctor" / "11.sessions.sql").read_text("utf-8")
        sound.wait_until("select state = 'idle in transaction' from pg_stat_activity where pid = %s", (pid,))
        found = run(sound, check.replace("interval '1 minute'", "interval '0'"))
    assert [row[3] for row in found if str(pid) in row[1]] == [f"select pg_terminate_backend({pid});"]


def test_a_slot_that_nobody_reads_or_that_is_lost_is_found(private_server: Callable[..., Server]) -> None:
    server = private_server(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    with server.database() as db:
        run(db, "call expiration.run_upkeep()")
        run_job(db, LEADS)
        run_job(db, BOOKINGS)
        run(db, "select pg_create_logical_replication_slot('crm_outbox', 'pgoutput')")
        the(doctor(db, code=10), "nobody reads slot crm_outbox", "warning")
        for _ in range(4):
            run(
                db,
                "select pg_logical_emit_message(false, 'fill', repeat('x', 1000000))"
                " from generate_series(1, 20)",
            )
            run(db, "select pg_switch_wal()")
            run(db, "checkpoint")
        db.wait_until("select wal_status = 'lost' from pg_replication_slots")
        found = the(doctor(db, code=9), "slot crm_outbox has lost its place in the log", "error")
        assert found["remedy"] == "select pg_drop_replication_slot('crm_outbox');"
        run(db, "select outbox.register_slot('crm_outbox', 'crm_outbox', 'crm-outbox')")
        found = the(doctor(db, code=9), "slot crm_outbox has lost its place in the log", "error")
        assert found["remedy"] == "pyrunner cdc recover --slot crm_outbox"
        run(db, "select pg_drop_replication_slot('crm_outbox')")
        the(doctor(db, code=9), "slot crm_outbox, which reads the outbox, is not there", "error")


def test_partitions_that_are_kept_because_nobody_is_known_to_read_them_are_found(sound: Database) -> None:
    run(
        sound,
        "insert into outbox.event"
        " (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
        " values (now() - interval '20 days', 'Lead', gen_random_uuid(), gen_random_uuid(), 'E', 't', '{}')",
    )
    run(sound, "select outbox.make_partitions()")
    the(
        doctor(sound, code=10),
        "partitions of the outbox past their retention, and no slot registered: 1",
        "warning",
    )


def test_settings_of_the_server_that_hinder_are_found(private_server: Callable[..., Server]) -> None:
    server = private_server(autovacuum="off", track_activities="off")
    with server.database() as db:
        findings = doctor(db, code=9)
    the(findings, "track_activities is off", "error")
    the(findings, "autovacuum is off", "warning")


# -------------------------------------------------------------------------------------------------- pg_cron


@contextlib.contextmanager
def scheduled(db: Database, job: str, schedule: str, command: str) -> Iterator[int]:
    number = db.value("select cron.schedule(%s, %s, %s)", (job, schedule, command))
    assert isinstance(number, int)
    yield number
    run(db, "delete from cron.job where jobid = %s", number)


@pytest.fixture
def sound_cron(cron_db: Database) -> Database:
    run(cron_db, "call expiration.run_upkeep()")
    run_job(cron_db, LEADS)
    run_job(cron_db, BOOKINGS)
    return cron_db


def test_entries_of_pg_cron_that_are_wrong_are_found(sound_cron: Database) -> None:
    db = sound_cron
    run(db, "select * from expiration.cron_install()")
    assert trouble(doctor(db, code=0)) == []
    the_one = {"jobid": db.value("select jobid from cron.job where command ~ 'lead'")}
    run(db, "select cron.alter_job(%s, active := false)", the_one["jobid"])
    assert (
        the(doctor(db, code=10), "entry lead-expiration is not active", "warning")["remedy"]
        == "pyrunner cron install"
    )
    run(db, "select cron.alter_job(%s, active := true, schedule := '*/5 * * * *')", the_one["jobid"])
    the(
        doctor(db, code=10),
        "entry lead-expiration runs at */5 * * * *, and the job's period asks for 0 * * * *",
        "warning",
    )
    pyrunner("cron", "install", dsn=db.dsn)
    assert trouble(doctor(db, code=0)) == []
    with scheduled(db, "again", "0 * * * *", "CALL expiration.run_job('lead-expiration')") as again:
        finding = the(doctor(db, code=10), "is scheduled 2 times", "warning")
        assert finding["remedy"] == f"select cron.unschedule({again});"
    with scheduled(
        db, "two", "0 * * * *", "SET lock_timeout = '1s'; CALL expiration.run_job('lead-expiration')"
    ):
        the(doctor(db, code=9), "entry two is not exactly one CALL", "error")
    run(db, "delete from cron.job where command ~ 'upkeep'")
    the(doctor(db, code=10), "CALL expiration.run_upkeep() is not scheduled", "warning")
    run(
        db,
        "insert into cron.job_run_details (jobid, runid, database, username, command, status, return_message,"
        " start_time, end_time) select jobid, 4711, database, username, command, 'failed',"
        " 'connection failed', now(), now() from cron.job where command ~ 'lead'",
    )
    the(doctor(db, code=9), "connection failed", "error")
    run(db, "delete from cron.job")


def test_a_period_that_pg_cron_cannot_express_is_found(sound_cron: Database) -> None:
    set_job(sound_cron, LEADS, period="7 minutes")
    finding = the(doctor(sound_cron, code=10), "pg_cron cannot run lead-expiration every 00:07:00", "warning")
    assert "pyrunner worker" in finding["remedy"]


def test_pg_cron_of_another_database_is_looked_at_as_well(sound: Database, sound_cron: Database) -> None:
    pyrunner("cron", "install", dsn=sound.dsn)
    try:
        findings = doctor(sound, code=0)
        (finding,) = [f for f in findings if f["check"] == "pg_cron"]
        assert f"in database {sound_cron.name}, 3 entries of ours" in finding["what"]
        run(sound_cron, "update cron.job set active = false where database = %s", sound.name)
        assert len([f for f in doctor(sound, code=10) if "is not active" in f["what"]]) == 3
        # who may not look there is told so
        assert [f["severity"] for f in doctor(sound, role="crm_monitor") if f["check"] == "pg_cron"] == [
            "unseen"
        ]
    finally:
        run(sound_cron, "delete from cron.job")


def test_pg_cron_in_the_mode_that_delays_is_found(private_server: Callable[..., Server]) -> None:
    server = private_server(**{"cron.use_background_workers": "on"})
    need(server.has_pg_cron, "pg_cron is not there")
    with server.cron_database_installed() as db:
        version = db.value("select extversion from pg_extension where extname = 'pg_cron'")
        need(version.startswith("1.4"), "pg_cron is newer than 1.4")
        the(doctor(db, code=None), "runs with cron.use_background_workers = on", "warning")


def test_a_server_that_cannot_be_reached_ends_with_its_own_code() -> None:
    pyrunner("doctor", dsn=make_conninfo(host="127.0.0.1", port=1), code=3)

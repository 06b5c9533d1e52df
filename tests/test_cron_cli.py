"""`pyrunner cron`: the jobs in pg_cron, in our database or in the one that pg_cron lives in."""

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.commands import pyrunner
from tests.domain import BOOKINGS, LEADS, run, set_job
from tests.servers import Database, wait_until

COMMANDS = {
    BOOKINGS: "CALL expiration.run_job('booking-expiration')",
    "expiration-upkeep": "CALL expiration.run_upkeep()",
    LEADS: "CALL expiration.run_job('lead-expiration')",
}


@pytest.fixture
def here(cron_db: Database) -> Iterator[Database]:
    """Our database is the one that pg_cron lives in."""
    yield cron_db
    run(cron_db, "delete from cron.job")


@pytest.fixture
def elsewhere(here: Database, db: Database) -> Database:
    """Our database is another one."""
    return db


def entries(cron: Database) -> list[tuple[Any, ...]]:
    return run(
        cron, "select jobname, schedule, command, database, username, active from cron.job order by command"
    )


def installer(cron: Database, db: Database) -> str:
    """A login that may run the jobs and schedule in pg_cron, and nothing else."""
    dsn = db.role_dsn("crm_runner")
    login = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
    run(cron, sql.SQL("grant usage on schema cron to {}").format(login))
    run(cron, sql.SQL("grant execute on all functions in schema cron to {}").format(login))
    return dsn


@pytest.mark.requirement("L1", "B1", "X2")
def test_the_jobs_are_scheduled_once_on_their_periods(here: Database) -> None:
    dsn = installer(here, here)
    login = conninfo_to_dict(dsn)["user"]
    first = pyrunner("cron", "install", "--json", dsn=dsn).json
    assert {(row["jobname"], row["command"], row["action"]) for row in first} == {
        (name, command, "scheduled") for name, command in COMMANDS.items()
    }
    assert entries(here) == [
        (BOOKINGS, "* * * * *", COMMANDS[BOOKINGS], here.name, login, True),
        (LEADS, "0 * * * *", COMMANDS[LEADS], here.name, login, True),
        ("expiration-upkeep", "7 * * * *", COMMANDS["expiration-upkeep"], here.name, login, True),
    ]
    second = pyrunner("cron", "install", "--json", dsn=dsn).json
    assert {row["action"] for row in second} == {"kept"}
    assert len(entries(here)) == 3


@pytest.mark.requirement("L1", "X2")
def test_a_changed_period_is_scheduled_anew_by_a_second_call(here: Database) -> None:
    dsn = installer(here, here)
    pyrunner("cron", "install", dsn=dsn)
    set_job(here, LEADS, period="30 minutes")
    again = {row["jobname"]: row["action"] for row in pyrunner("cron", "install", "--json", dsn=dsn).json}
    assert again == {BOOKINGS: "kept", "expiration-upkeep": "kept", LEADS: "changed from 0 * * * *"}
    assert run(here, "select schedule from cron.job where jobname = %s", LEADS) == [("*/30 * * * *",)]


def test_a_period_that_pg_cron_cannot_express_is_refused_with_the_nearest(here: Database) -> None:
    set_job(here, LEADS, period="7 minutes")
    answer = pyrunner("cron", "install", dsn=here.dsn, code=2)
    assert "pg_cron cannot run lead-expiration every 00:07:00" in answer.err
    assert "00:06:00 and 00:10:00" in answer.err
    assert entries(here) == []


def test_status_shows_the_entries_with_their_last_runs(here: Database) -> None:
    dsn = installer(here, here)
    assert pyrunner("cron", "status", dsn=dsn).out == "pg_cron has no entry of ours.\n"
    pyrunner("cron", "install", dsn=dsn)
    run(
        here,
        "insert into cron.job_run_details (jobid, runid, database, username, command, status, return_message,"
        " start_time, end_time) select jobid, 4711, database, username, command, 'failed',"
        " 'connection failed', now(), now() from cron.job where jobname = %s",
        LEADS,
    )
    found = {row["jobname"]: row for row in pyrunner("cron", "status", "--json", dsn=dsn).json}
    assert found.keys() == COMMANDS.keys()
    assert (found[LEADS]["last_status"], found[LEADS]["last_message"]) == ("failed", "connection failed")
    assert "connection failed" in pyrunner("cron", "status", dsn=dsn).out


def test_uninstalling_takes_our_entries_and_no_others(here: Database) -> None:
    dsn = installer(here, here)
    pyrunner("cron", "install", dsn=dsn)
    run(here, "select cron.schedule('theirs', '0 0 * * *', 'select 1')")
    taken = pyrunner("cron", "uninstall", "--json", dsn=dsn).json
    assert {row["jobname"] for row in taken} == COMMANDS.keys()
    assert [entry[0] for entry in entries(here)] == ["theirs"]
    assert pyrunner("cron", "uninstall", "--json", dsn=dsn).json == []


@pytest.mark.requirement("X2")
def test_pg_cron_in_another_database_schedules_for_ours(here: Database, elsewhere: Database) -> None:
    done = pyrunner("cron", "install", "--json", dsn=elsewhere.dsn).json
    assert {(row["command"], row["action"]) for row in done} == {
        (one, "scheduled") for one in COMMANDS.values()
    }
    assert {(entry[0], entry[2], entry[3]) for entry in entries(here)} == {
        (f"{name} ({elsewhere.name})", command, elsewhere.name) for name, command in COMMANDS.items()
    }
    # beside them, those of the database that pg_cron lives in
    pyrunner("cron", "install", dsn=here.dsn)
    assert len(entries(here)) == 6
    assert {row["action"] for row in pyrunner("cron", "install", "--json", dsn=elsewhere.dsn).json} == {
        "kept"
    }
    set_job(elsewhere, LEADS, period="30 minutes")
    run(here, "update cron.job set active = false where command = %s", COMMANDS[BOOKINGS])
    changed = {
        row["jobname"]: row["action"] for row in pyrunner("cron", "install", "--json", dsn=elsewhere.dsn).json
    }
    assert changed == {BOOKINGS: "activated", "expiration-upkeep": "kept", LEADS: "changed from 0 * * * *"}
    assert len(pyrunner("cron", "status", "--json", dsn=elsewhere.dsn).json) == 3
    assert len(pyrunner("cron", "uninstall", "--json", dsn=elsewhere.dsn).json) == 3
    assert {entry[3] for entry in entries(here)} == {here.name}


@pytest.mark.slow
@pytest.mark.requirement("X2")
def test_what_is_scheduled_for_another_database_really_runs(here: Database, elsewhere: Database) -> None:
    pyrunner("cron", "install", dsn=elsewhere.dsn)
    # pg_cron looks at the minute, and nothing shortens it: time for two of them
    wait_until(
        lambda: elsewhere.value(
            "select exists (select from expiration.run where driver = 'pg_cron' and status = 'completed')"
        ),
        timeout=150,
        what=lambda: (
            f"a run by pg_cron; runs: {elsewhere.rows('select job, driver, status from expiration.run')}; "
            "pg_cron's own book: "
            f"{here.rows('select command, database, status, return_message from cron.job_run_details')}; "
            f"its entries: {here.rows('select command, database, schedule, active from cron.job')}"
        ),
    )


def test_who_may_not_see_where_pg_cron_lives_names_it(here: Database, elsewhere: Database) -> None:
    dsn = elsewhere.role_dsn("crm_runner")
    answer = pyrunner("cron", "install", dsn=dsn, code=4)
    assert "--cron-database" in answer.err
    denied = pyrunner("cron", "install", "--cron-database", here.name, dsn=dsn, code=None)
    assert denied.code in (0, 5)
    installer(here, elsewhere)
    pyrunner("cron", "install", "--cron-database", here.name, dsn=dsn)
    assert len(entries(here)) == 3


def test_a_login_that_may_not_use_pg_cron_is_told_what_to_grant(here: Database) -> None:
    dsn = here.role_dsn("crm_runner")
    login = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
    run(here, sql.SQL("revoke all on schema cron from {}").format(login))
    answer = pyrunner("cron", "status", dsn=dsn, code=5)
    assert "permission denied for schema cron" in answer.err
    assert "grant usage on schema cron to" in answer.err

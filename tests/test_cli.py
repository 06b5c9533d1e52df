"""The command line as a whole: what it says of trouble, its exit codes, and every command that is no run."""

import contextlib
import importlib.util
import signal
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pyrunner import __version__
from pyrunner.database import connect
from pyrunner.errors import DatabaseError, ExitCode
from tests.commands import backend_of, pyrunner, started
from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    held,
    nothing_changes,
    preview,
    run,
    run_job,
    set_job,
    statuses,
)
from tests.servers import Database, Server

READERS = (
    ("status",), ("preview", LEADS), ("history",), ("failed", "list"), ("config", "show"), ("logs",),
)  # fmt: skip
WRITERS = (
    ("pause", LEADS), ("resume", LEADS), ("stop", LEADS), ("config", "set", LEADS, "BatchSize", "5"),
    ("failed", "retry", LEADS, "--all"),
)  # fmt: skip


def operator(db: Database) -> str:
    return db.role_dsn("crm_operator")


def monitor(db: Database) -> str:
    return db.role_dsn("crm_monitor")


# ------------------------------------------------------------------------------------------- help and codes


def test_it_says_its_version_and_helps() -> None:
    assert pyrunner("--version").out == f"pyrunner {__version__}\n"
    answer = pyrunner("--help").out
    for code in ExitCode:
        assert f"{code.value}  {code.meaning}" in answer
    commands = (
        "migrate uninstall sql run worker status preview failed pause resume stop config cron logs history"
        " doctor demo serve traces"
    )
    for command in commands.split():
        assert f"│ {command} " in answer


@pytest.mark.parametrize(
    "arguments", [("runn",), ("run",), ("run", "lead"), ("run", LEADS, "--fast"), ("config",)]
)
def test_what_is_typed_wrong_is_explained_with_code_2(arguments: tuple[str, ...]) -> None:
    answer = pyrunner(*arguments, code=2)
    assert "Usage: pyrunner" in answer.err + answer.out


def test_the_page_of_exit_codes_is_what_the_code_says() -> None:
    folder = Path(__file__).parent.parent / "docs"
    spec = importlib.util.spec_from_file_location("exit_codes", folder / "exit_codes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (folder / "exit-codes.md").read_text(encoding="utf-8")
    assert page == module.render(), "write it anew by: python docs/exit_codes.py"


def test_every_sqlstate_of_our_own_has_a_class_and_an_exit_code(db: Database) -> None:
    for sqlstate, name in db.rows("select sqlstate, name from expiration.errors()"):
        assert DatabaseError.for_sqlstate(sqlstate) is not DatabaseError, f"{sqlstate} {name}"


# --------------------------------------------------------------------------------- databases out of reach


def test_a_server_that_cannot_be_reached_is_one_sentence(db: Database) -> None:
    answer = pyrunner("status", dsn="host=127.0.0.1 port=1 dbname=crm", code=3)
    first, second = answer.err.splitlines()
    assert first.startswith("pyrunner: database crm at 127.0.0.1:1 cannot be reached: ")
    assert "Connection refused" in first
    assert "PYRUNNER_DSN" in second
    assert answer.out == ""


def test_a_host_that_does_not_exist_a_wrong_database_and_a_wrong_password_end_with_code_3(
    db: Database,
) -> None:
    for change in (
        {"host": "nohost.invalid", "hostaddr": None},
        {"dbname": "no such database"},
        {"user": "nobody_of_that_name", "password": "hunter2"},
    ):
        dsn = make_conninfo(db.role_dsn("crm_monitor"), **{"passfile": "/dev/null"} | change)
        answer = pyrunner("status", dsn=dsn, code=3)
        assert len(answer.err.splitlines()) == 2, answer.err
        assert "cannot be reached" in answer.err


@pytest.mark.parametrize(
    "dsn",
    [
        "hunter2", "host=127.0.0.1 password='hunter2", "postgresql://u:hunter2@127.0.0.1:1/x?hunter2",
        "postgresql://u:secret/hunter2@127.0.0.1:1/x", "postgresql://u:hunter2/secret@127.0.0.1:1/x",
        "postgresql://u:secret@hunter2@127.0.0.1:1/x", "host=127.0.0.1 port=1 password=hunter2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [("status",), ("run", LEADS), ("migrate",), ("doctor",)])
def test_a_password_is_never_printed(dsn: str, command: tuple[str, ...]) -> None:
    answer = pyrunner(*command, dsn=dsn, code=None)
    assert answer.code in (2, 3)
    assert "hunter2" not in answer.err + answer.out


def test_a_dsn_before_the_command_behind_it_and_in_the_environment_is_the_same(db: Database) -> None:
    wrong = "host=127.0.0.1 port=1"
    one = pyrunner("status", "--json", dsn=monitor(db))
    two = pyrunner("status", "--json", "--dsn", monitor(db), dsn=wrong)
    three = pyrunner("--dsn", monitor(db), "status", "--json", dsn=wrong)
    assert (
        [row["job"] for row in one.json]
        == [row["job"] for row in two.json]
        == [row["job"] for row in three.json]
    )


def test_libpqs_environment_and_service_files_are_used_as_by_psql(db: Database, tmp_path: Path) -> None:
    given = {key: str(value) for key, value in conninfo_to_dict(monitor(db)).items() if value is not None}
    names = {
        "host": "PGHOST",
        "port": "PGPORT",
        "dbname": "PGDATABASE",
        "user": "PGUSER",
        "password": "PGPASSWORD",
    }
    pyrunner("status", env={names[key]: given[key] for key in names if key in given})
    service = tmp_path / "services"
    lines = "\n".join(f"{key}={given[key]}" for key in names if key in given)
    service.write_text(f"[crm]\n{lines}\n")
    pyrunner("status", env={"PGSERVICE": "crm", "PGSERVICEFILE": str(service)})
    pyrunner("status", dsn="service=crm", env={"PGSERVICEFILE": str(service)})


def test_a_network_that_dies_in_silence_is_noticed_by_keepalives(db: Database) -> None:
    for given, idle in (("", "30"), (" keepalives_idle=5", "5")):
        with contextlib.closing(connect(db.dsn + given)) as connection:
            parameters = connection.info.get_parameters()
        assert parameters["keepalives_idle"] == idle
        assert parameters["keepalives_interval"] == "10"


# ------------------------------------------------------------------------------ installations, privileges


@pytest.mark.parametrize("command", [*READERS, *WRITERS, ("run", LEADS)])
def test_without_an_installation_the_command_to_type_is_named(
    bare_db: Database, command: tuple[str, ...]
) -> None:
    answer = pyrunner(*command, dsn=bare_db.dsn, code=4)
    assert answer.err == "pyrunner: Nothing is installed in this database.\n  Run `pyrunner migrate`.\n"
    assert (
        bare_db.value(
            "select count(*) from pg_namespace where nspname in ("
            "'crm', 'outbox', 'expiration', 'chessboard', 'notifications')"
        )
        == 0
    )


def test_an_installation_of_another_version_or_a_part_of_one_is_refused(db: Database) -> None:
    run(db, "update expiration.installation set version = '99.0.0'")
    with nothing_changes(db):
        assert "newer" in pyrunner("run", LEADS, dsn=db.dsn, code=4).err
    run(db, "delete from expiration.installation")
    with nothing_changes(db):
        answer = pyrunner("run", LEADS, dsn=db.dsn, code=4)
    assert "never completed" in answer.err
    assert "pyrunner migrate" in answer.err


@pytest.mark.parametrize(
    ("role", "command", "needed"),
    [
        *(("crm_runner", command, "crm_operator") for command in WRITERS),
        ("crm_monitor", ("run", LEADS), "crm_runner"),
        ("crm_monitor", ("pause", LEADS), "crm_operator"),
    ],
)
def test_a_missing_privilege_names_the_role_to_grant(
    db: Database, role: str, command: tuple[str, ...], needed: str
) -> None:
    dsn = db.role_dsn(role)
    with nothing_changes(db):
        answer = pyrunner(*command, dsn=dsn, code=5)
    login = conninfo_to_dict(dsn)["user"]
    assert "permission denied" in answer.err
    assert f'As a superuser: grant {needed} to "{login}";' in answer.err


@pytest.mark.parametrize("command", READERS)
def test_a_monitor_can_look_at_everything_and_looking_changes_nothing(
    db: Database, command: tuple[str, ...]
) -> None:
    add_leads(db, 3)
    add_poison(db, "Lead")
    run_job(db, LEADS)
    add_leads(db, 2)
    dsn = monitor(db)
    with nothing_changes(db):
        human = pyrunner(*command, dsn=dsn).out
        if command != ("logs",):
            pyrunner(*command, "--json", dsn=dsn).json  # noqa: B018 - must be JSON
    assert human


# ------------------------------------------------------------------------------------------------- looking


@pytest.mark.requirement("L13", "B11")
def test_status_says_what_is_due_what_failed_and_why_a_job_does_not_run(db: Database) -> None:
    never = {row["job"]: row for row in pyrunner("status", "--json", dsn=monitor(db)).json}
    assert never[LEADS]["why_not"] == "it has never run: no driver has called it"
    add_leads(db, 3)
    add_poison(db, "Lead")
    run_job(db, LEADS)
    add_leads(db, 2, due="3 hours")
    run(db, "select expiration.pause(%s, 'a release')", BOOKINGS)
    by_job = {row["job"]: row for row in pyrunner("status", "--json", dsn=monitor(db)).json}
    leads = by_job[LEADS]
    assert (leads["due"], leads["failed_items"], leads["last_run_status"]) == (3, 1, "completed")
    assert leads["period"] == "01:00:00"
    assert datetime.fromisoformat(leads["last_success_at"]) <= datetime.now(UTC)
    assert by_job[BOOKINGS]["paused"] is True
    human = pyrunner("status", dsn=monitor(db)).out
    assert "lead-expiration  idle, every 01:00:00" in human
    assert "pyrunner failed list lead-expiration" in human
    assert "booking-expiration  paused" in human
    assert "a release" in human


def test_preview_prints_what_the_next_cycle_would_take(db: Database) -> None:
    set_job(db, LEADS, batch_size=2)
    add_leads(db, 5)
    wanted = [str(row["item_id"]) for row in preview(db, LEADS)]
    answer = pyrunner("preview", LEADS, "--json", dsn=monitor(db)).json
    assert answer["total"] == 5
    assert [item["item_id"] for item in answer["items"]] == wanted
    assert [item["batch"] for item in answer["items"]] == [1, 1, 2, 2, 3]
    few = pyrunner("preview", LEADS, "--limit", "2", "--json", dsn=monitor(db)).json
    assert (few["total"], len(few["items"])) == (5, 2)
    assert "5 items in all" in pyrunner("preview", LEADS, "--limit", "2", dsn=monitor(db)).out
    ahead = pyrunner("preview", LEADS, "--as-of", "2100-01-01", "--cycles", "3", "--json", dsn=monitor(db))
    assert ahead.json["total"] == 5
    assert pyrunner("preview", BOOKINGS, dsn=monitor(db)).out == "Nothing is due for booking-expiration.\n"


def test_infinite_deadlines_in_a_teams_own_table_can_be_looked_at(db: Database) -> None:
    run(db, "alter table crm.leads drop constraint leads_times_are_finite")
    add_leads(db, 1)
    run(db, "update crm.leads set expires_at = '-infinity'")
    pyrunner("status", dsn=monitor(db))
    assert pyrunner("status", "--json", dsn=monitor(db)).json[0]["oldest_due_at"] == "-infinity"
    assert pyrunner("preview", LEADS, "--json", dsn=monitor(db)).json["items"][0]["deadline"] == "-infinity"
    assert "-infinity" in pyrunner("preview", LEADS, dsn=monitor(db)).out


def test_history_lists_runs_newest_first_with_their_errors(db: Database) -> None:
    for job in (LEADS, BOOKINGS, LEADS):
        run_job(db, job)
    runs = pyrunner("history", "--json", dsn=monitor(db)).json
    assert [row["job"] for row in runs] == [LEADS, BOOKINGS, LEADS]
    assert runs[0]["result"]["ExpiredCount"] == 0
    assert len(pyrunner("history", "--limit", "1", "--json", dsn=monitor(db)).json) == 1
    assert [row["job"] for row in pyrunner("history", "--job", BOOKINGS, "--json", dsn=monitor(db)).json] == [
        BOOKINGS
    ]
    run(db, "update expiration.run set status = 'failed', sqlstate = '53100', error = 'no space left'")
    assert "failed 53100: no space left" in pyrunner("history", dsn=monitor(db)).out


# ----------------------------------------------------------------------------------------------- operating


@pytest.mark.requirement("L14", "B10")
def test_failed_items_are_listed_and_freed(db: Database) -> None:
    first, second = add_poison(db, "Lead", 2)
    run_job(db, LEADS)
    found = pyrunner("failed", "list", "--json", dsn=monitor(db)).json
    assert {row["item_id"] for row in found} == {str(first), str(second)}
    assert {(row["state"], row["attempts"], row["sqlstate"]) for row in found} == {("waiting", 1, "22003")}
    assert str(first) in pyrunner("failed", "list", LEADS, dsn=monitor(db)).out
    assert pyrunner("failed", "list", BOOKINGS, dsn=monitor(db)).out == "No item has failed.\n"
    assert (
        "1 item of lead-expiration is free"
        in pyrunner("failed", "retry", LEADS, str(first), dsn=operator(db)).out
    )
    states: dict[Any, str] = dict(db.rows("select item_id, state from expiration.failed"))
    assert states == {first: "freed for the next cycle", second: "waiting"}
    assert len(pyrunner("failed", "retry", LEADS, "--all", "--json", dsn=operator(db)).json) == 2


def test_freeing_wants_one_item_or_all_and_one_that_is_there(db: Database) -> None:
    pyrunner("failed", "retry", LEADS, dsn=operator(db), code=2)
    pyrunner("failed", "retry", LEADS, "abc", dsn=operator(db), code=2)
    pyrunner("failed", "retry", LEADS, str(uuid4()), "--all", dsn=operator(db), code=2)
    stranger = str(uuid4())
    answer = pyrunner("failed", "retry", LEADS, stranger, dsn=operator(db), code=2)
    assert f"item {stranger} of job lead-expiration is not on the list of failed items" in answer.err


def test_a_job_is_paused_and_resumed(db: Database) -> None:
    answer = pyrunner("pause", LEADS, "--reason", "a release", dsn=operator(db))
    assert "a release" in answer.out
    assert "pyrunner resume lead-expiration" in answer.out
    assert db.value("select paused_reason from expiration.job where name = %s", (LEADS,)) == "a release"
    pyrunner("resume", LEADS, dsn=operator(db))
    assert db.value("select paused_at from expiration.job where name = %s", (LEADS,)) is None


@pytest.mark.requirement("L5")
def test_runs_at_work_are_asked_to_stop(db: Database) -> None:
    assert pyrunner("stop", LEADS, dsn=operator(db)).out == "No run of lead-expiration is at work.\n"
    runner = db.connect("crm_runner")
    row = runner.execute("select id from expiration.start_run(%s, 'pyrunner', 'a')", (LEADS,)).fetchone()
    assert row is not None
    asked = pyrunner("stop", LEADS, "--json", dsn=operator(db)).json
    assert [one["id"] for one in asked] == [str(row[0])]
    assert db.value("select stop_requested_at is not null from expiration.run where id = %s", (row[0],))


# -------------------------------------------------------------------------------------------- installation


def test_a_fresh_database_is_installed_and_ready(bare_db: Database) -> None:
    answer = pyrunner("migrate", dsn=bare_db.dsn)
    assert f"version {__version__} is installed in database {bare_db.name}" in answer.out
    assert "Applying 0001.crm." in answer.err
    assert bare_db.value("select count(*) from outbox.partition") > 7
    again = pyrunner("migrate", "--json", dsn=bare_db.dsn).json
    assert (again["version"], again["applied"], again["dropped"]) == (__version__, [], [])
    add_leads(bare_db, 2)
    assert pyrunner("run", LEADS, "--json", dsn=bare_db.dsn).json["result"]["ExpiredCount"] == 2


def test_uninstalling_asks_first_and_keeps_the_data_unless_told(db: Database) -> None:
    leads = add_leads(db, 2)
    with nothing_changes(db):
        answer = pyrunner("uninstall", dsn=db.dsn, code=6)
    assert "--yes" in answer.err
    pyrunner("uninstall", "--yes", dsn=db.dsn)
    assert statuses(db, "Lead", leads) == {"Active": 2}
    assert pyrunner("status", dsn=db.dsn, code=4).err
    pyrunner("migrate", dsn=db.dsn)
    pyrunner("run", LEADS, dsn=db.dsn)
    assert statuses(db, "Lead", leads) == {"Expired": 2}
    pyrunner("uninstall", "--drop-data", "--yes", dsn=db.dsn)
    assert (
        db.value(
            "select count(*) from pg_namespace where nspname in ("
            "'crm', 'outbox', 'expiration', 'chessboard', 'notifications')"
        )
        == 0
    )


def test_sql_prints_the_installation_for_psql(bare_db: Database, tmp_path: Path) -> None:
    script = tmp_path / "install.sql"
    script.write_text(pyrunner("sql").out)
    bare_db.psql(file=script)
    pyrunner("status", dsn=bare_db.dsn)


def test_sigterm_ends_a_command_and_its_query_in_the_server(db: Database) -> None:
    keeper = db.connect(autocommit=False)
    keeper.execute("lock table expiration.job in access exclusive mode")
    with started("status", dsn=monitor(db)) as process:
        pid = backend_of(db, "pyrunner status")
        db.wait_for_lock(pid)
        process.send(signal.SIGTERM)
        process.wait(130)
        db.wait_until_gone(pid)
    keeper.rollback()


# ------------------------------------------------------------------------------------- odd servers and output


def test_a_standby_can_be_looked_at_and_runs_nothing(private_server: Callable[..., Server]) -> None:
    server = private_server()
    assert server.private is not None
    with server.database() as db:
        leads = add_leads(db, 2)
        run_job(db, LEADS)
        db.close()
        server.stop()
        signal_file = server.private.data / "standby.signal"
        signal_file.touch()
        server.start()
        try:
            for command in READERS:
                # no login can be made there
                pyrunner(*command, dsn=db.dsn)
            findings = pyrunner("doctor", "--json", dsn=db.dsn, code=None).json
            assert "this server is a standby" in {finding["what"] for finding in findings}
            for writer in (("run", LEADS), ("pause", LEADS)):
                answer = pyrunner(*writer, dsn=db.dsn, code=3)
                assert "target_session_attrs=read-write" in answer.err
        finally:
            db.close()
            server.stop()
            signal_file.unlink()
            server.start()
        assert statuses(db, "Lead", leads) == {"Expired": 2}


def test_what_a_transaction_holds_is_skipped_and_said(db: Database) -> None:
    reserves = add_bookings(db, 3)
    with held(db, "Reserve", reserves[:1]):
        answer = pyrunner("run", BOOKINGS, "--json", dsn=db.role_dsn("crm_runner")).json
    assert (answer["result"]["SkippedLockedCount"], answer["reason"]) == (1, "locked")


def test_a_port_that_answers_with_something_else_is_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        answer = pyrunner("status", dsn=f"host=127.0.0.1 port={port} dbname=crm sslmode=disable", code=3)
    assert "cannot be reached" in answer.err


def test_json_has_instants_in_utc_and_durations_as_the_documents_write_them(db: Database) -> None:
    run_job(db, LEADS)
    (row,) = pyrunner("history", "--json", dsn=monitor(db)).json
    assert row["started_at"].endswith("Z")
    assert row["duration"].startswith("00:00:0")


def test_where_pg_cron_is_missing_it_is_said(db: Database) -> None:
    answer = pyrunner("cron", "status", dsn=monitor(db), code=4)
    assert "pg_cron is not installed in database" in answer.err

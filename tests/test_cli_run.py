"""`pyrunner run`: one cycle driven from outside, its result, its signals, its failures."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pyrunner.postgres import free_port
from tests.commands import backend_of, on_terminal, pyrunner, started
from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    add_trigger,
    assert_consistent,
    failed_items,
    gate,
    last_run,
    open_gate,
    run,
    run_job,
    set_job,
    statuses,
)
from tests.servers import Database, need, wait_until


def runner(db: Database) -> str:
    return db.role_dsn("crm_runner")


# --------------------------------------------------------------------------------------------- the result


@pytest.mark.requirement("L13", "X2")
def test_a_cycle_of_leads_prints_its_result_as_the_documents_name_it(db: Database) -> None:
    leads = add_leads(db, 7)
    answer = pyrunner("run", LEADS, "--batch-size", "3", "--json", dsn=runner(db))
    done = last_run(db, LEADS)
    result = answer.json["result"]
    assert list(result) == ["ExpiredCount", "BatchesProcessed", "Elapsed", "CappedByMaxBatches"]
    assert (result["ExpiredCount"], result["BatchesProcessed"], result["CappedByMaxBatches"]) == (7, 3, False)
    assert (answer.json["runId"], answer.json["status"]) == (str(done["id"]), "completed")
    assert done["driver"] == "pyrunner"
    assert statuses(db, "Lead", leads) == {"Expired": 7}
    assert_consistent(db)


@pytest.mark.requirement("B11", "X2")
def test_a_cycle_of_bookings_prints_its_result_as_the_documents_name_it(db: Database) -> None:
    add_bookings(db, 3)
    add_bookings(db, 2, phase="Booking")
    answer = pyrunner("run", BOOKINGS, "--json", dsn=runner(db))
    result = answer.json["result"]
    assert list(result) == ["ReserveExpiredCount", "BookingExpiredCount", "SkippedLockedCount", "DurationMs"]
    assert list(result.values())[:3] == [3, 2, 0]
    assert result["DurationMs"] > 0
    assert_consistent(db)


@pytest.mark.requirement("L4", "L13")
def test_a_capped_cycle_is_no_error(db: Database) -> None:
    add_leads(db, 5)
    arguments = ("--batch-size", "2", "--max-batches", "1")
    answer = pyrunner("run", LEADS, *arguments, "--json", dsn=runner(db))
    assert answer.json["result"]["CappedByMaxBatches"] is True
    assert answer.json["result"]["ExpiredCount"] == 2
    assert answer.lines[-1]["level"] == "warning"


@pytest.mark.requirement("L6")
def test_the_cut_off_can_be_set_back_and_never_ahead(db: Database) -> None:
    old, new = add_leads(db, due="3 days"), add_leads(db, due="1 day")
    pyrunner("run", LEADS, "--as-of", "2 days ago", dsn=runner(db))
    assert statuses(db, "Lead", old) == {"Expired": 1}
    assert statuses(db, "Lead", new) == {"Active": 1}
    answer = pyrunner("run", LEADS, "--as-of", "2100-01-01", dsn=runner(db), code=2)
    assert "nothing may expire early" in answer.err
    assert statuses(db, "Lead", new) == {"Active": 1}


def test_a_person_reads_the_result_and_where_the_failed_items_are(db: Database) -> None:
    add_leads(db, 2)
    add_poison(db, "Lead")
    answer = pyrunner("run", LEADS, dsn=runner(db))
    assert "lead-expiration completed (drained)" in answer.out
    assert "pyrunner failed list lead-expiration" in answer.out
    assert answer.events == ["job.started", "batch.processed", "item.failed", "job.completed"]


def test_a_terminal_shows_a_bar_in_place_of_the_info_lines(db: Database) -> None:
    add_leads(db, 5)
    add_poison(db, "Lead")
    answer = on_terminal("run", LEADS, "--batch-size", "2", dsn=runner(db))
    assert answer.code == 0
    assert "lead-expiration completed" in answer.out
    assert "6/6" in answer.err
    assert "item.failed" in answer.err
    assert "batch.processed" not in answer.err
    assert "{" not in answer.err


@pytest.mark.requirement("L15")
def test_debug_has_a_line_for_every_item_before_the_end(db: Database) -> None:
    leads = add_leads(db, 3)
    answer = pyrunner("run", LEADS, "--batch-size", "2", "--log-level", "debug", dsn=runner(db))
    assert answer.events[-4:] == ["lead.expired"] * 3 + ["job.completed"]
    items = answer.lines[-4:-1]
    assert [line["LeadId"] for line in items] == [str(lead) for lead in leads]
    assert all(line["level"] == "debug" and line["TenantId"] for line in items)


# -------------------------------------------------------------------------------------- paused, twice at once


@pytest.mark.requirement("B1", "B3")
def test_a_paused_job_is_skipped_with_a_code_of_its_own(db: Database) -> None:
    leads = add_leads(db)
    pyrunner("pause", LEADS, "--reason", "a release", dsn=db.role_dsn("crm_operator"))
    answer = pyrunner("run", LEADS, "--json", dsn=runner(db), code=8)
    assert (answer.json["status"], answer.json["reason"], answer.json["result"]) == (
        "skipped",
        "paused",
        None,
    )
    assert "a release" in answer.json["error"]
    assert answer.events == ["job.skipped"]
    assert statuses(db, "Lead", leads) == {"Active": 1}


@pytest.mark.requirement("L2", "L22")
def test_two_runs_typed_at_once_both_work_and_expire_each_lead_once(db: Database) -> None:
    leads = add_leads(db, 6)
    with (
        gate(db, "Lead", leads[0]) as keeper,
        started("run", LEADS, "--batch-size", "2", dsn=runner(db)) as first,
    ):
        db.wait_for_lock(backend_of(db, "pyrunner lead-expiration"))
        second = pyrunner("run", LEADS, "--json", dsn=runner(db)).json
        assert (second["result"]["ExpiredCount"], second["reason"]) == (4, "locked")
        open_gate(keeper)
        first.wait()
    assert statuses(db, "Lead", leads) == {"Expired": 6}
    assert_consistent(db)


@pytest.mark.requirement("B1", "B3")
def test_a_second_run_of_the_same_instance_is_skipped(db: Database) -> None:
    leads = add_leads(db, 4)
    arguments = ("run", LEADS, "--batch-size", "2", "--instance", "nightly")
    with gate(db, "Lead", leads[0]) as keeper, started(*arguments, dsn=runner(db)) as first:
        db.wait_for_lock(backend_of(db, "pyrunner lead-expiration"))
        second = pyrunner(*arguments, "--json", dsn=runner(db), code=8).json
        assert (second["status"], second["reason"]) == ("skipped", "overlap")
        open_gate(keeper)
        first.wait()
    assert statuses(db, "Lead", leads) == {"Expired": 4}


# ------------------------------------------------------------------------------------------------- signals


@pytest.mark.requirement("L5", "L22", "B17")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_batch_in_hand(db: Database, number: signal.Signals) -> None:
    leads = add_leads(db, 6)
    with (
        gate(db, "Lead", leads[2]) as keeper,
        started("run", LEADS, "--batch-size", "2", dsn=runner(db)) as cycle,
    ):
        pid = backend_of(db, "pyrunner lead-expiration")
        db.wait_for_lock(pid)
        cycle.send(number)
        cycle.wait_for("stop requested")
        open_gate(keeper)
        answer = cycle.wait(130)
    done = last_run(db, LEADS)
    assert (done["status"], done["reason"], done["expired"]) == ("stopped", "stop requested", 4)
    assert statuses(db, "Lead", leads[:4]) == {"Expired": 4}
    assert statuses(db, "Lead", leads[4:]) == {"Active": 2}
    assert answer.lines[-1]["reason"] == "stop requested"
    db.wait_until_gone(pid)
    assert_consistent(db)


@pytest.mark.requirement("L5", "L11", "L22", "B17")
def test_a_second_signal_cancels_the_batch_in_hand_and_nothing_is_half_done(db: Database) -> None:
    leads = add_leads(db, 6)
    with gate(db, "Lead", leads[2]), started("run", LEADS, "--batch-size", "2", dsn=runner(db)) as cycle:
        pid = backend_of(db, "pyrunner lead-expiration")
        db.wait_for_lock(pid)
        cycle.send(signal.SIGTERM)
        cycle.wait_for("stop requested")
        cycle.send(signal.SIGTERM)
        answer = cycle.wait(130)
        db.wait_until_gone(pid)
    done = last_run(db, LEADS)
    assert (done["status"], done["sqlstate"], done["expired"]) == ("failed", "57014", 2)
    assert "failed with 57014" in answer.err
    assert statuses(db, "Lead", leads) == {"Expired": 2, "Active": 4}
    assert failed_items(db) == {}
    assert_consistent(db)


@pytest.mark.requirement("L5", "L11")
def test_after_kill_9_the_same_instance_goes_on_and_nothing_is_lost_or_doubled(db: Database) -> None:
    leads = add_leads(db, 6)
    arguments = ("run", LEADS, "--batch-size", "2", "--instance", "nightly")
    with gate(db, "Lead", leads[2]) as keeper, started(*arguments, dsn=runner(db)) as cycle:
        pid = backend_of(db, "pyrunner lead-expiration")
        db.wait_for_lock(pid)
        cycle.send(signal.SIGKILL)
        cycle.wait(-9)
        open_gate(keeper)
        db.wait_until_gone(pid)
    killed = last_run(db, LEADS)
    answer = pyrunner(*arguments, "--json", dsn=runner(db))
    assert answer.json["result"]["ExpiredCount"] in (2, 4)
    assert db.value("select status from expiration.run where id = %s", (killed["id"],)) == "abandoned"
    assert statuses(db, "Lead", leads) == {"Expired": 6}
    assert_consistent(db)


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.requirement("L8", "L12")
def test_a_fault_of_the_system_fails_the_run_with_one_sentence_and_blames_no_item(db: Database) -> None:
    leads = add_leads(db, 3)
    fault = "raise exception using errcode = '53100', message = 'no space left', hint = 'Make room.';"
    add_trigger(db, "crm.audit_log", fault)
    answer = pyrunner("run", LEADS, dsn=runner(db), code=1)
    assert "pyrunner: lead-expiration failed with 53100: no space left.\n  Make room" in answer.err
    assert answer.out == ""
    assert answer.lines[-1]["event"] == "job.failed"
    assert (answer.lines[-1]["sqlstate"], answer.lines[-1]["level"]) == ("53100", "error")
    assert last_run(db, LEADS)["status"] == "failed"
    assert failed_items(db) == {}
    assert statuses(db, "Lead", leads) == {"Active": 3}


@pytest.mark.requirement("B10")
def test_a_passing_fault_is_tried_again(db: Database) -> None:
    add_leads(db, 3)
    run(db, "create sequence public.faults")
    fault = (
        "if nextval('public.faults') <= 2 then"
        " raise exception using errcode = '40P01', message = 'deadlock detected'; end if;"
    )
    add_trigger(db, "crm.audit_log", fault)
    run(db, "grant usage on sequence public.faults to public")
    pyrunner("run", LEADS, dsn=runner(db))
    done = last_run(db, LEADS)
    assert (done["status"], done["retries"], done["expired"]) == ("completed", 2, 3)


def test_a_batch_that_keeps_failing_is_given_up_after_its_retries(db: Database) -> None:
    add_leads(db, 3)
    set_job(db, LEADS, max_transient_retries=1)
    add_trigger(
        db, "crm.audit_log", "raise exception using errcode = '55P03', message = 'lock not available';"
    )
    answer = pyrunner("run", LEADS, dsn=runner(db), code=1)
    assert "failed with 55P03" in answer.err
    done = last_run(db, LEADS)
    assert (done["status"], done["retries"]) == ("failed", 1)


@pytest.mark.requirement("L12")
def test_a_connection_lost_in_mid_cycle_is_one_line_and_the_next_run_goes_on(db: Database) -> None:
    leads = add_leads(db, 6)
    arguments = ("run", LEADS, "--batch-size", "2", "--instance", "nightly")
    with gate(db, "Lead", leads[2]), started(*arguments, dsn=runner(db)) as cycle:
        pid = backend_of(db, "pyrunner lead-expiration")
        db.wait_for_lock(pid)
        db.terminate(pid)
        answer = cycle.wait(3)
    assert "pyrunner: The connection to the database was lost" in answer.err
    lost = last_run(db, LEADS)
    pyrunner(*arguments, dsn=runner(db))
    assert db.value("select status from expiration.run where id = %s", (lost["id"],)) == "abandoned"
    assert statuses(db, "Lead", leads) == {"Expired": 6}
    assert_consistent(db)


def test_a_default_of_repeatable_read_does_not_matter(db: Database) -> None:
    leads = add_leads(db, 3)
    run(db, f"alter database {db.name} set default_transaction_isolation = 'repeatable read'")
    pyrunner("run", LEADS, "--batch-size", "1", dsn=runner(db))
    assert statuses(db, "Lead", leads) == {"Expired": 3}


def test_a_database_that_is_read_only_by_default_is_respected(db: Database) -> None:
    leads = add_leads(db, 3)
    run(db, f"alter database {db.name} set default_transaction_read_only = on")
    answer = pyrunner("run", LEADS, dsn=runner(db), code=3)
    assert "read-only transaction" in answer.err
    assert "default_transaction_read_only" in answer.err
    db.close()
    assert statuses(db, "Lead", leads) == {"Active": 3}


def test_odd_settings_of_the_login_do_not_matter(db: Database) -> None:
    leads = add_leads(db, 3)
    dsn = runner(db)
    login = conninfo_to_dict(dsn)["user"]
    settings = {
        "datestyle": "German, DMY", "intervalstyle": "iso_8601", "timezone": "Asia/Kathmandu",
        "search_path": "pg_temp", "bytea_output": "escape", "extra_float_digits": "0",
    }  # fmt: skip
    for name, value in settings.items():
        run(db, f"alter role {login} set {name} = '{value}'")
    try:
        answer = pyrunner("run", LEADS, "--json", dsn=dsn)
        pyrunner("status", dsn=dsn)
        pyrunner("history", dsn=dsn)
    finally:
        run(db, f"alter role {login} reset all")
    assert answer.json["result"]["ExpiredCount"] == 3
    assert answer.lines[0]["Now"].endswith("+00:00")
    assert statuses(db, "Lead", leads) == {"Expired": 3}


# ------------------------------------------------------------------------------------------ pooler, memory


@contextmanager
def pooler(db: Database, dsn: str, folder: Path) -> Iterator[str]:
    """PgBouncer in transaction mode in front of a database; a DSN that leads through it."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    need(program, "PgBouncer is not installed")
    assert program is not None
    given = conninfo_to_dict(dsn)
    port = free_port()
    target = make_conninfo(
        host=given["host"], port=given["port"], dbname=db.name, user=given["user"], password=given["password"]
    )
    home = folder / "pgbouncer"
    home.mkdir(mode=0o755)
    configuration = home / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n{db.name} = {target}\n[pgbouncer]\npool_mode = transaction\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\nunix_socket_dir =\nadmin_users = anybody\n"
        # what a session leaves behind is gone with its transaction, as if another backend came next
        "server_reset_query_always = 1\n"
    )
    for path in (configuration, *(p for p in (home, *home.parents) if p.is_relative_to(folder.parent))):
        path.chmod(0o755)
    # it does not run as root
    user = ("-u", "nobody") if psutil.Process().uids().effective == 0 else ()
    process = subprocess.Popen(
        [program, *user, str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    through = make_conninfo(host="127.0.0.1", port=port, dbname=db.name, user="anybody")
    try:
        wait_until(
            lambda: pyrunner("status", dsn=through, code=None).code == 0, what="PgBouncer lets us through"
        )
        yield through
    finally:
        process.terminate()
        process.wait(10)


def test_it_works_through_a_pooler_in_transaction_mode(db: Database, tmp_path: Path) -> None:
    # more batches than psycopg executes before it prepares a statement
    leads = add_leads(db, 12)
    with pooler(db, runner(db), tmp_path) as through:
        answer = pyrunner("run", LEADS, "--batch-size", "1", "--log-level", "debug", dsn=through)
        assert answer.events.count("lead.expired") == 12
        console = pyrunner("status", dsn=make_conninfo(through, dbname="pgbouncer"), code=4)
        assert "PostgreSQL 15 or newer is needed" in console.err
        findings = pyrunner("doctor", "--json", dsn=through, code=None).json
        assert [f["severity"] for f in findings if "pooler" in f["what"]] == ["warning"]
    assert statuses(db, "Lead", leads) == {"Expired": 12}
    # no backend is on record that could be taken for the driver's
    assert db.value("select count(*) from expiration.run where backend_start is not null") == 0
    assert_consistent(db)


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_batches(db: Database) -> None:
    add_leads(db, 1300)
    arguments = ("run", LEADS, "--batch-size", "1", "--max-batches", "10000")
    with started(*arguments, dsn=runner(db)) as cycle:
        process = psutil.Process(cycle.pid)
        cycle.wait_for("batch.processed", 100)
        early = process.memory_info().rss
        cycle.wait_for("batch.processed", 1250)
        late = process.memory_info().rss
        answer = cycle.wait()
    assert answer.lines[-1]["ExpiredCount"] == 1300
    assert late < 100_000_000
    assert late - early < 4_000_000


def test_a_run_by_call_and_one_by_us_do_the_same(db: Database) -> None:
    add_leads(db, 3)
    pyrunner("run", LEADS, dsn=runner(db))
    add_leads(db, 3)
    run_job(db, LEADS)
    columns = "status, reason, expired, failed, skipped_locked, batches, due_before"
    found = db.rows(f"select {columns} from expiration.run order by started_at")
    assert found[0] == found[1]

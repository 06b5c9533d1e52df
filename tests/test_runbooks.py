"""Runbooks: what is broken as a page says is cured by its commands, and the alert's condition clears.

A command stands in a block marked `sh` and a name, which is hidden where the page is rendered. What needs
Kafka (kafka-...) is in test_cdc_runbooks.py.
"""

import contextlib
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests import servers
from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_items,
    add_leads,
    add_poison,
    add_trigger,
    drop_trigger,
    failed_items,
    last_run,
    run_job,
    set_job,
    table_of,
)
from tests.exporter import serving
from tests.prometheus import place_of
from tests.runbooks import FOLDER, PAGES, Shell, blocks, figure, headings
from tests.servers import Database, Server, need, wait_until
from tests.slots import reading, slot

# ---------------------------------------------------------------------------------------------- the pages


@pytest.mark.requirement("L21", "B16")
def test_the_documents_pages_are_there() -> None:
    assert {path.name for path in PAGES} == {
        "lead-expiration-backlog.md", "lead-expiration-poison-item.md", "booking-expiration.md",
        "outbox-stuck.md", "outbox-backlog.md", "job-not-running.md", "slot-lost.md",
    }  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_has_the_same_parts_in_the_same_order(page: Path) -> None:
    assert headings(page) == ["What users see", "Be sure", "Causes", "It is over when"]
    text = page.read_text("utf-8")
    # one command to be sure
    sure = text.partition("\n## Be sure")[2].partition("\n## ")[0]
    assert len(re.findall(r"^```sh ", sure, re.MULTILINE)) >= 1
    assert "README.md#before-the-first-command" in text
    assert f"({page.name})" in (FOLDER / "README.md").read_text("utf-8")


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, FOLDER / "README.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_command_is_run_by_a_test() -> None:
    found = blocks()
    assert all(block.language in ("sh", "text") for block in found)
    named = [block.name for block in found if block.language == "sh"]
    assert len(set(named)) == len(named)
    assert "" not in named
    for name in named:
        file = "test_cdc_runbooks.py" if name.startswith("kafka-") else "test_runbooks.py"
        assert f'"{name}"' in (Path(__file__).parent / file).read_text("utf-8"), f"{name} is run by no test"


def test_a_command_that_fails_is_noticed(db: Database) -> None:
    with pytest.raises(pytest.fail.Exception, match="ended with"):
        Shell(Database(db.server, "no_such_database")).run("backlog-sure")


@pytest.fixture
def shell(db: Database) -> Shell:
    return Shell(db)


def column(table: str, name: str) -> list[str]:
    """A column of what psql has printed."""
    lines = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "|" in line]
    at = lines[0].index(name)
    return [line[at] for line in lines[1:]]


@contextlib.contextmanager
def forgotten(db: Database, statement: sql.SQL | sql.Composed, *parameters: Any) -> Iterator[int]:
    """A client that did something and has forgotten its transaction; its backend."""
    with contextlib.closing(psycopg.connect(db.dsn, application_name="somebody's shell")) as connection:
        connection.execute(statement, parameters)
        yield connection.info.backend_pid


def untaken(db: Database, job: str) -> float:
    """What the alerts on a backlog measure: due now, failed ones left out."""
    due = figure(db, "crm_expiration_due_items", task=job)
    failed = figure(db, "crm_expiration_failed_items", task=job)
    assert due is not None
    assert failed is not None
    return due - failed


def errors(db: Database, job: str, kind: str) -> float:
    found = figure(db, f"crm_{job.replace('-', '_')}_errors_total", kind=kind)
    assert found is not None
    return found


def cycle_that_fails(db: Database, job: str) -> None:
    with pytest.raises(psycopg.Error):
        run_job(db, job)
    assert last_run(db, job)["status"] == "failed"


# ------------------------------------------------------------------------------ leads and bookings pile up

PHASE = {LEADS: "Lead", BOOKINGS: "Reserve"}
TABLE = {LEADS: "crm.leads", BOOKINGS: "crm.bookings"}
HOLDING = sql.SQL("update {} set updated_at = now() where id = any(%s)")
# the same causes have a command on either page
PAGE = {
    LEADS: {
        "sure": "backlog-sure",
        "tell": "backlog-tell",
        "locked-tell": "backlog-locked-tell",
        "locked-cure": "backlog-locked-cure",
        "capped-cure": "backlog-capped-cure",
        "capped-for-good": "backlog-capped-for-good",
        "fault-tell": "backlog-fault-tell",
        "fault-cure": "backlog-fault-cure",
        "over": "backlog-over",
    },
    BOOKINGS: {
        "sure": "booking-sure",
        "tell": "booking-tell",
        "locked-tell": "booking-locked-tell",
        "locked-cure": "booking-locked-cure",
        "capped-cure": "booking-capped-cure",
        "capped-for-good": "booking-capped-for-good",
        "fault-tell": "booking-fault-tell",
        "fault-cure": "booking-fault-cure",
        "over": "booking-over",
    },
}


@pytest.mark.requirement("L21", "B16", "L19", "B15")
@pytest.mark.parametrize("job", JOBS)
def test_rows_that_a_forgotten_transaction_holds(db: Database, shell: Shell, job: str) -> None:
    page = PAGE[job]
    run_job(db, job)
    ids = add_items(db, PHASE[job], 130)
    with forgotten(db, HOLDING.format(table_of(PHASE[job])), ids) as pid:
        run_job(db, job)
        assert untaken(db, job) == 130
        assert "130" in shell.run(page["sure"])
        assert re.search(r"completed +locked", shell.run(page["tell"]))
        assert column(shell.run(page["locked-tell"]), "pid") == [str(pid)]
        assert not shell.says(page["over"])
        shell.run(page["locked-cure"], PID=pid)
    assert untaken(db, job) == 0
    assert shell.says(page["over"])


@pytest.mark.requirement("L21", "B16", "L19", "B15")
@pytest.mark.parametrize("job", JOBS)
def test_more_falls_due_than_a_cycle_may_take(db: Database, shell: Shell, job: str) -> None:
    page = PAGE[job]
    set_job(db, job, batch_size=10, max_batches_per_cycle=1)
    add_items(db, PHASE[job], 150)
    run_job(db, job)
    assert untaken(db, job) == 140
    assert "capped" in shell.run(page["tell"])
    assert not shell.says(page["over"])
    shell.run(page["capped-cure"])
    assert untaken(db, job) == 0
    assert shell.says(page["over"])
    # and it does not come again
    shell.run(page["capped-for-good"])
    add_items(db, PHASE[job], 40)
    run_job(db, job)
    assert untaken(db, job) == 0
    assert figure(db, f"crm_{job.replace('-', '_')}_backlog") == 40


@pytest.mark.requirement("L21", "B16", "L19", "B15")
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    "revoked", ["insert on outbox.event", "insert on crm.audit_log", "update on crm.leads, crm.bookings"]
)
def test_a_privilege_that_was_taken_away(
    db: Database, shell: Shell, job: str, revoked: LiteralString
) -> None:
    page = PAGE[job]
    db.rows(sql.SQL("revoke {} from crm_owner").format(sql.SQL(revoked)))
    add_items(db, PHASE[job], 120)
    cycle_that_fails(db, job)
    assert errors(db, job, "run") == 1
    assert "42501" in shell.run(page["sure"])
    assert "42501" in shell.run(page["tell"])
    table = TABLE[job] if revoked.startswith("update") else revoked.rpartition(" ")[2]
    assert f"> grant {revoked.partition(' ')[0]} on {table} to crm_owner;" in shell.run(
        page["fault-tell"], code=9
    )
    assert not shell.says(page["over"])
    shell.run(page["fault-cure"])
    assert untaken(db, job) == 0
    assert errors(db, job, "run") == 1
    assert not failed_items(db)
    assert shell.says(page["over"])


@pytest.mark.requirement("B16", "B15")
def test_a_run_of_the_bookings_that_hangs(db: Database, shell: Shell) -> None:
    add_bookings(db, 150)
    with forgotten(db, sql.SQL("lock table crm.audit_log in share mode")) as pid:
        hanging = db.background(lambda one: one.execute("call expiration.run_job('booking-expiration')"))
        db.wait_for_lock(hanging.pid)
        assert untaken(db, BOOKINGS) == 150
        assert figure(db, "crm_expiration_running", task=BOOKINGS) == 1
        assert "running" in shell.run("booking-tell")
        told = shell.run("booking-hangs-tell")
        assert (column(told, "run_pid"), column(told, "held_by")) == ([str(hanging.pid)], [str(pid)])
        assert not shell.says("booking-over")
        shell.run("booking-hangs-cure", PID=pid)
        hanging.result()
    assert untaken(db, BOOKINGS) == 0
    assert figure(db, "crm_expiration_running", task=BOOKINGS) == 0
    assert shell.says("booking-over")


# -------------------------------------------------------------------------------------------------- poison


@pytest.mark.requirement("L21", "L14", "L19")
def test_a_lead_whose_row_is_bad(db: Database, shell: Shell) -> None:
    (bad,) = add_poison(db, "Lead")
    add_leads(db, 5)
    run_job(db, LEADS)
    assert figure(db, "crm_expiration_failed_items", task=LEADS) == 1
    assert str(bad) in shell.run("poison-sure")
    assert "2147483647" in shell.run("poison-row-tell", ITEM_ID=bad)
    assert not shell.says("poison-over")
    shell.run("poison-row-cure", ITEM_ID=bad)
    assert figure(db, "crm_expiration_failed_items", task=LEADS) == 0
    assert shell.says("poison-over")


@pytest.mark.requirement("L21", "L14", "L19")
def test_leads_that_a_trigger_refuses(db: Database, shell: Shell) -> None:
    add_leads(db, 4)
    add_trigger(db, "crm.leads", "raise exception 'not tonight';", at="before update")
    run_job(db, LEADS)
    assert figure(db, "crm_expiration_failed_items", task=LEADS) == 4
    assert shell.run("poison-sure").count("not tonight") == 4
    assert "fault BEFORE UPDATE" in shell.run("poison-around-tell")
    drop_trigger(db)
    assert not shell.says("poison-over")
    shell.run("poison-around-cure")
    assert figure(db, "crm_expiration_failed_items", task=LEADS) == 0
    assert shell.says("poison-over")


@pytest.mark.requirement("B16", "B10", "B15")
def test_a_booking_whose_row_is_bad(db: Database, shell: Shell) -> None:
    (bad,) = add_poison(db, "Booking")
    run_job(db, BOOKINGS)
    assert figure(db, "crm_expiration_failed_items", task=BOOKINGS) == 1
    assert str(bad) in shell.run("booking-poison-tell")
    assert not shell.says("booking-over")
    shell.run("booking-poison-cure", ITEM_ID=bad)
    assert figure(db, "crm_expiration_failed_items", task=BOOKINGS) == 0
    assert shell.says("booking-over")


@pytest.mark.requirement("B16", "B10", "B15")
def test_bookings_that_a_trigger_refuses(db: Database, shell: Shell) -> None:
    add_bookings(db, 3)
    add_trigger(db, "crm.bookings", "raise exception 'not tonight';", at="before update")
    run_job(db, BOOKINGS)
    drop_trigger(db)
    assert figure(db, "crm_expiration_failed_items", task=BOOKINGS) == 3
    shell.run("booking-poison-free")
    assert figure(db, "crm_expiration_failed_items", task=BOOKINGS) == 0
    assert shell.says("booking-over")


# --------------------------------------------------------------------------------------------- nobody runs


def aged(db: Database, **since: str) -> None:
    """As if the jobs had last succeeded so long ago."""
    for job, age in ((LEADS, since.get("leads", "0 s")), (BOOKINGS, since.get("bookings", "0 s"))):
        run_job(db, job)
        db.rows(
            "update expiration.run set started_at = started_at - %(age)s::interval,"
            " finished_at = finished_at - %(age)s::interval where job = %(job)s",
            {"age": age, "job": job},
        )


def since_success(db: Database, job: str) -> float:
    found = figure(db, "crm_expiration_seconds_since_last_success", task=job)
    assert found is not None
    return found


@pytest.mark.requirement("B16", "L19", "B15")
def test_a_job_that_nobody_runs(db: Database, shell: Shell) -> None:
    aged(db, leads="3 h", bookings="6 min")
    assert since_success(db, LEADS) > 7200
    assert since_success(db, BOOKINGS) > 300
    assert "no driver has called it since" in shell.run("not-running-sure")
    assert drivers(shell) == []
    assert not shell.says("not-running-over")
    shell.run("not-running-first-aid")
    assert since_success(db, LEADS) < 300
    assert since_success(db, BOOKINGS) < 300
    assert shell.says("not-running-over")


@pytest.mark.requirement("L19", "B15")
@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_is_paused(db: Database, shell: Shell, job: str) -> None:
    aged(db)
    db.rows("select from expiration.pause(%s, 'INC-42')", (job,))
    assert figure(db, "crm_expiration_paused", task=job) == 1
    assert "INC-42" in shell.run("not-running-sure")
    assert not shell.says("not-running-over")
    shell.run("paused-cure", JOB=job)
    assert figure(db, "crm_expiration_paused", task=job) == 0
    assert shell.says("not-running-over")


def drivers(shell: Shell) -> list[str]:
    """Who is there to call the jobs; pg_cron may be loaded into the tests' server."""
    return sorted(set(column(shell.run("not-running-tell"), "driver")) - {"pg_cron launcher"})


def worker_cures(db: Database, shell: Shell) -> None:
    """The worker that the page tells to start runs both jobs, and is seen as a driver."""
    worker = shell.start("worker-cure")
    try:
        wait_until(lambda: since_success(db, BOOKINGS) < 300 and since_success(db, LEADS) < 7200, timeout=60)
        assert drivers(shell) == ["pyrunner booking-expiration", "pyrunner lead-expiration"]
        assert shell.says("not-running-over")
    finally:
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "cycle completed" in said


@pytest.mark.requirement("L19", "B15")
def test_a_scheduler_that_is_gone(private_server: Callable[..., Server]) -> None:
    binaries = servers.find_binaries(None)
    need(binaries.has_library("pg_cron"), f"pg_cron is not installed for {binaries}")
    # of a server of its own: PostgreSQL does not start it again
    server = private_server(binaries.major)
    with server.cron_database_installed() as db:
        shell = Shell(db)
        aged(db, leads="3 h", bookings="6 min")
        launcher = "select pid from pg_stat_activity where backend_type = 'pg_cron launcher'"
        db.wait_until(launcher)
        assert column(shell.run("not-running-tell"), "driver") == ["pg_cron launcher"]
        db.terminate(db.value(launcher))
        assert column(shell.run("not-running-tell"), "driver") == []
        assert not shell.says("not-running-over")
        worker_cures(db, shell)


@pytest.mark.requirement("L19", "B15")
def test_a_worker_that_is_gone(db: Database, shell: Shell) -> None:
    aged(db, leads="3 h", bookings="6 min")
    assert not shell.says("not-running-over")
    worker_cures(db, shell)


@pytest.mark.requirement("L19", "B15")
def test_entries_of_pg_cron_that_are_gone_or_off(cron_db: Database) -> None:
    shell = Shell(cron_db)
    shell.run("cron-cure")
    entries = cron_db.rows("select jobname, active from expiration.cron_job() order by jobname")
    assert [active for _, active in entries] == [True] * 3
    cron_db.rows("select cron.unschedule('booking-expiration')")
    cron_db.rows("update cron.job set active = false where jobname = 'lead-expiration'")
    told = shell.run("cron-tell")
    assert BOOKINGS not in told
    assert LEADS in told
    shell.run("cron-cure")
    assert cron_db.rows("select jobname, active from expiration.cron_job() order by jobname") == entries


@pytest.mark.requirement("L19", "B15")
def test_partitions_that_nobody_makes(db: Database, shell: Shell) -> None:
    ahead = db.rows("select name from outbox.partition where from_time > now() order by from_time")
    for (name,) in ahead[1:]:
        db.rows(sql.SQL("drop table outbox.{}").format(sql.Identifier(name)))
    append(db, "now() + interval '3 days'")
    assert figure(db, "crm_outbox_partitions_ahead") == 1
    assert figure(db, "crm_outbox_default_events") == 1
    assert column(shell.run("upkeep-tell"), "partitions_ahead") == ["1"]
    assert not shell.says("upkeep-over")
    shell.run("upkeep-cure")
    assert figure(db, "crm_outbox_partitions_ahead") == 7
    assert figure(db, "crm_outbox_default_events") == 0
    assert shell.says("upkeep-over")


@pytest.mark.requirement("L19", "B15")
def test_an_exporter_that_is_gone(db: Database, shell: Shell) -> None:
    need(shutil.which("curl"), "no curl on this machine")
    with serving(db.dsn) as exporter:
        place = place_of(exporter)
        shell.run("exporter-tell", EXPORTER=place)
        assert f'database="{db.name}"' in shell.run("exporter-over", EXPORTER=place)
    # 7: nobody listens there
    shell.run("exporter-tell", EXPORTER=place, code=7)
    assert shell.run("unseen-tell").strip() == "1"
    again = shell.start("exporter-cure", EXPORTER=place)
    try:

        def answers() -> bool:
            with contextlib.suppress(pytest.fail.Exception):
                shell.run("exporter-over", EXPORTER=place)
                return True
            return False

        wait_until(answers, timeout=60)
        shell.run("exporter-tell", EXPORTER=place)
    finally:
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=60)
    assert again.returncode == 0


# -------------------------------------------------------------------------------------------------- outbox


def append(db: Database, created_at: LiteralString = "now()") -> None:
    """An event of nobody's, appended at that time."""
    db.rows(
        sql.SQL(
            "insert into outbox.event (created_at, aggregate_type, aggregate_id, tenant_id, event_type,"
            " topic, payload, correlation_id) select {}, 'Lead', gen_random_uuid(), gen_random_uuid(),"
            " 'LeadExpiredEvent', 'pin.crm.lead-expired.v1', '{{}}', gen_random_uuid()"
        ).format(sql.SQL(created_at))
    )


@pytest.mark.requirement("L21", "B16", "L19", "B15")
def test_a_stranger_who_reads_the_slot_and_confirms_nothing(db: Database, shell: Shell) -> None:
    with slot(db) as name:
        append(db, "now() - interval '10 minutes'")
        # dead or not, it holds the slot
        with contextlib.suppress(psycopg.OperationalError), reading(db, name):
            assert (figure(db, "crm_outbox_backlog_seconds", slot=name) or 0) > 300
            assert figure(db, "crm_outbox_slot_state", slot=name, state="active") == 1
            assert column(shell.run("stuck-sure"), "state") == ["active"]
            told = shell.run("stuck-reader-tell", SLOT=name)
            assert column(told, "application_name") == ["a reader of the slot"]
            assert not shell.says("stuck-over")
            (pid,) = column(told, "pid")
            shell.run("stuck-reader-cure", PID=pid)
            db.wait_until_gone(int(pid))
        # the connector has its place again
        with reading(db, name) as confirm:
            confirm()
            assert figure(db, "crm_outbox_backlog_seconds", slot=name) == 0
            assert shell.says("stuck-over")


@pytest.mark.requirement("L21", "B16", "L19", "B15")
def test_a_slot_that_nears_the_limit_of_its_log(private_server: Callable[..., Server]) -> None:
    server = private_server(max_slot_wal_keep_size="64MB", min_wal_size="32MB", max_wal_size="64MB")
    with server.database() as db, slot(db) as name, reading(db, name) as confirm:
        shell = Shell(db)

        def left() -> float:
            here = figure(db, "crm_outbox_slot_left_bytes", slot=name)
            kept = figure(db, "crm_outbox_retained_bytes", slot=name)
            assert here is not None
            assert kept is not None
            return here / (here + kept)

        while left() >= 0.25:
            append(db)
            db.rows("select pg_switch_wal()")
        assert not shell.says("stuck-over")
        shell.run("stuck-limit-cure", LIMIT="1GB")
        wait_until(lambda: left() > 0.25, what="there is room again")
        confirm()
        assert shell.says("stuck-over")


@pytest.mark.requirement("B16", "L19", "B15")
def test_a_burst_of_events(db: Database, shell: Shell) -> None:
    with slot(db) as name, reading(db, name) as confirm:
        add_leads(db, 1200)
        run_job(db, LEADS)
        assert figure(db, "crm_outbox_backlog_events", slot=name) == 1200
        assert column(shell.run("outbox-sure"), "backlog_events") == ["1200"]
        assert "1,200" in shell.run("outbox-burst-tell")
        assert not shell.says("outbox-over")
        # it is delivered
        confirm()
        assert figure(db, "crm_outbox_backlog_events", slot=name) == 0
        assert shell.says("outbox-over")


@pytest.mark.requirement("L19", "B15")
def test_a_message_that_a_consumer_has_put_aside(db: Database, shell: Shell) -> None:
    add_bookings(db)
    run_job(db, BOOKINGS)
    event = db.value("select id from outbox.event")
    topic = "pin.crm.booking-expired.v1"
    db.rows(
        "select chessboard.park(%s, 0, 7, %s, null, null, '{}', 'contractVersion 2 is unknown')",
        (topic, event),
    )
    assert figure(db, "crm_consumer_parked_messages", consumer="chessboard", topic=topic) == 1
    told = shell.run("parked-tell")
    assert str(event) in told
    assert "contractVersion 2 is unknown" in told
    assert not shell.says("outbox-over")
    shell.run("parked-cure", EVENT_ID=event, PARKED_ID=db.value("select id from chessboard.parked"))
    assert figure(db, "crm_consumer_parked_messages", consumer="chessboard", topic=topic) in (0, None)
    assert shell.says("outbox-over")
    assert db.value("select count(*) from outbox.event where id = %s", (event,)) == 2
    assert "put aside by a consumer" in shell.run("outbox-replay-tell")


@pytest.mark.requirement("L19", "B15")
def test_a_slot_that_is_gone_for_good(db: Database, shell: Shell) -> None:
    name = f"t_{uuid4().hex[:12]}"
    db.rows("select outbox.register_slot(%s, 'crm_outbox', 'crm-outbox')", (name,))
    assert figure(db, "crm_outbox_slot_state", slot=name, state="missing") == 1
    assert column(shell.run("lost-sure"), "state") == ["missing"]
    assert not shell.says("lost-over")
    shell.run("lost-forget-cure", SLOT=name)
    assert figure(db, "crm_outbox_slot_state", slot=name) is None
    assert shell.says("lost-over")

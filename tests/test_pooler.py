"""PgBouncer in transaction mode in between: the backend changes from one transaction to the next."""

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pyrunner.postgres import free_port
from tests import servers
from tests.domain import (
    BOOKINGS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    assert_consistent,
    drive,
    finish_run,
    run_batch,
    set_job,
    start_run,
    statuses,
)
from tests.servers import Connection, Database, need, wait_until


class Pooler:
    """A PgBouncer in front of one database."""

    def __init__(self, dsn: str, database: Database) -> None:
        self.dsn = dsn
        self.database = database

    def connect(self) -> Connection:
        """A client as the runner is one: it relies on no prepared statement."""
        return psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)


@contextlib.contextmanager
def pooler(database: Database, backends: int) -> Iterator[Pooler]:
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    need(program, "PgBouncer is not installed")
    assert program is not None
    # it speaks to the server as a runner does
    server = conninfo_to_dict(database.role_dsn("crm_runner"))
    target = make_conninfo(
        **{key: str(server[key]) for key in ("host", "port", "user", "password", "dbname")}
    )
    port = free_port()
    with servers.run_folder() as folder:
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n{database.name} = {target}\n"
            f"[pgbouncer]\npool_mode = transaction\ndefault_pool_size = {backends}\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        )
        configuration.chmod(0o644)
        log = (folder / "log").open("w+")
        # it refuses to run as root
        user = ("-u", "nobody") if os.geteuid() == 0 else ()
        process = subprocess.Popen([program, *user, str(configuration)], stdout=log, stderr=log)
        between = Pooler(
            make_conninfo(host="127.0.0.1", port=port, dbname=database.name, user="anybody"), database
        )

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError), between.connect() as client:
                return client.execute("select true").fetchone() == (True,)
            return False

        try:
            wait_until(answers, what=lambda: f"PgBouncer lets us through: {(folder / 'log').read_text()}")
            yield between
        finally:
            process.terminate()
            process.wait(10)
            log.close()


@pytest.fixture
def one_backend(db: Database) -> Iterator[Pooler]:
    """All clients share one connection to the server."""
    with pooler(db, 1) as between:
        yield between


@pytest.fixture
def two_backends(db: Database) -> Iterator[Pooler]:
    with pooler(db, 2) as between:
        yield between


def backend(client: Connection) -> int:
    row = client.execute("select pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def run_statuses(database: Database) -> dict[UUID, str]:
    return dict(database.rows("select id, status from expiration.run"))


def test_two_clients_do_share_a_backend(one_backend: Pooler) -> None:
    """Otherwise the tests below would show nothing."""
    with one_backend.connect() as first, one_backend.connect() as second:
        assert backend(first) == backend(second)
        assert backend(first) != first.info.backend_pid


def test_the_protocol_works_batch_by_batch(one_backend: Pooler) -> None:
    db = one_backend.database
    add_leads(db, 50)
    add_poison(db, "Lead", 2)
    set_job(db, LEADS, batch_size=7)
    with one_backend.connect() as client:
        run = drive(client, LEADS, driver="pyrunner", instance="a", pooled=True)
    assert (run["status"], run["expired"], run["failed"]) == ("completed", 50, 2)
    assert run["backend_start"] is None
    assert_consistent(db)


def test_two_clients_over_one_backend_do_not_abandon_each_others_runs(one_backend: Pooler) -> None:
    db = one_backend.database
    leads = add_leads(db, 40)
    set_job(db, LEADS, batch_size=3)
    with one_backend.connect() as first, one_backend.connect() as second:
        mine = start_run(first, LEADS, driver="pyrunner", instance="a", pooled=True)
        other = start_run(second, LEADS, driver="pyrunner", instance="b", pooled=True)
        assert run_statuses(db) == {mine["id"]: "running", other["id"]: "running"}
        # turn by turn, until both have nothing left
        waiting = {"a": (first, mine["id"]), "b": (second, other["id"])}
        while waiting:
            for name, (client, run_id) in list(waiting.items()):
                report = run_batch(client, run_id)
                if report["state"] == "done":
                    assert finish_run(client, run_id, report["reason"])["status"] == "completed"
                    del waiting[name]
                else:
                    assert set(run_statuses(db).values()) <= {"running", "completed"}
    assert run_statuses(db) == {mine["id"]: "completed", other["id"]: "completed"}
    assert statuses(db, "Lead", leads) == {"Expired": 40}
    shares = [count for (count,) in db.rows("select expired from expiration.run")]
    assert sum(shares) == 40
    assert min(shares) > 0
    assert_consistent(db)


def test_the_same_instance_twice_is_an_overlap_and_not_an_abandoned_run(one_backend: Pooler) -> None:
    db = one_backend.database
    with one_backend.connect() as first, one_backend.connect() as second:
        mine = start_run(first, LEADS, driver="pyrunner", instance="a", pooled=True)
        again = start_run(second, LEADS, driver="pyrunner", instance="a", pooled=True)
        assert (again["status"], again["reason"]) == ("skipped", "overlap")
        assert run_statuses(db)[mine["id"]] == "running"


def test_a_client_that_hides_the_pooler_is_taken_for_one_that_went_on(one_backend: Pooler) -> None:
    """Why a client must say `pooled`: by the backend alone nobody could tell the two apart."""
    db = one_backend.database
    with one_backend.connect() as first, one_backend.connect() as second:
        mine = start_run(first, LEADS, driver="pyrunner", instance="a")
        start_run(second, LEADS, driver="pyrunner", instance="b")
        assert run_statuses(db)[mine["id"]] == "abandoned"


def test_a_pooled_run_is_abandoned_only_after_a_long_silence(one_backend: Pooler) -> None:
    db = one_backend.database
    add_leads(db, 10)
    set_job(db, LEADS, batch_size=2)
    with one_backend.connect() as client:
        mine = start_run(client, LEADS, driver="pyrunner", instance="a", pooled=True)
        run_batch(client, mine["id"])
    assert db.rows("select from expiration.reap_runs()") == []
    # the last batch counts, not the start
    age = "update expiration.{} set {} = {} - interval '11 minutes' where {} = %s"
    db.rows(age.format("run", "started_at", "started_at", "id").encode(), (mine["id"],))  # type: ignore[arg-type]
    assert db.rows("select from expiration.reap_runs()") == []
    db.rows(age.format("batch", "finished_at", "finished_at", "run_id").encode(), (mine["id"],))  # type: ignore[arg-type]
    assert db.rows("select status, expired from expiration.reap_runs()") == [("abandoned", 2)]


@pytest.mark.parametrize("job", [LEADS, BOOKINGS])
def test_call_run_job_works_through_it(one_backend: Pooler, job: str) -> None:
    db = one_backend.database
    add_leads(db, 20)
    add_bookings(db, 10)
    add_bookings(db, 10, phase="Booking")
    set_job(db, job, batch_size=3, max_batches_per_cycle=20)
    with one_backend.connect() as client:
        client.execute("call expiration.run_job(%s)", (job,))
    assert db.rows("select job, driver, status, expired from expiration.run") == [
        (job, "psql", "completed", 20)
    ]
    assert_consistent(db)


def test_a_call_leaves_the_run_of_a_client_on_the_same_backend_alone(one_backend: Pooler) -> None:
    db = one_backend.database
    add_leads(db, 20)
    set_job(db, LEADS, batch_size=5)
    with one_backend.connect() as first, one_backend.connect() as second:
        mine = start_run(first, LEADS, driver="pyrunner", instance="a", pooled=True)
        run_batch(first, mine["id"])
        second.execute("call expiration.run_job(%s)", (LEADS,))
        assert run_statuses(db)[mine["id"]] == "running"
        while (report := run_batch(first, mine["id"]))["state"] == "more":
            pass
        assert finish_run(first, mine["id"], report["reason"])["expired"] == 5
    assert sorted(run_statuses(db).values()) == ["completed", "completed"]
    assert_consistent(db)


def test_clients_at_once_over_two_backends_expire_each_item_once(two_backends: Pooler) -> None:
    db = two_backends.database
    leads = add_leads(db, 300)
    set_job(db, LEADS, batch_size=10)
    start = threading.Barrier(4)
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with two_backends.connect() as client:
                start.wait(30)
                if number % 2:
                    client.execute("call expiration.run_job(%s)", (LEADS,))
                else:
                    drive(client, LEADS, driver="pyrunner", instance=str(number), pooled=True)
        except BaseException as fault:  # noqa: BLE001 - handed on below
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert sorted(run_statuses(db).values()) == ["completed"] * 4
    assert statuses(db, "Lead", leads) == {"Expired": 300}
    assert db.value("select count(*) from outbox.event") == 300
    assert_consistent(db)

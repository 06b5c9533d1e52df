"""Brings the system up to date: engine, pg_cron's jobs, logins, and the way to Kafka. Safe to repeat.

Connects as libpq's environment says, as a superuser; the passwords of the logins stand in files in
/run/secrets.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier, Literal

from pyrunner.cdc.rest import Connect
from pyrunner.cron import open_cron
from pyrunner.database import connect, rows
from pyrunner.errors import CannotConnectError, PyrunnerError
from pyrunner.migrations import migrate

SECRETS: Final = Path("/run/secrets")
# each login and the group role that it is a member of
LOGINS: Final = {
    "pyrunner": "crm_runner",
    "monitor": "crm_monitor",
    "chessboard": "crm_chessboard",
    "notifications": "crm_notifications",
}
PATIENCE: Final = 300.0


def say(text: str) -> None:
    """Tells what was done."""
    print(f"setup: {text}", flush=True)  # noqa: T201


def password_of(login: str) -> str:
    """The password of a login.

    Raises:
        PyrunnerError: its file is missing or empty.
    """
    path = SECRETS / f"{login}_password"
    try:
        password = path.read_text("utf-8").strip()
    except OSError as error:
        raise PyrunnerError(f"The password of {login}, {path}, cannot be read: {error.strerror}.") from None
    if not password:
        raise PyrunnerError(f"The password of {login}, {path}, is empty.")
    return password


def wait_for_database() -> str:
    """Waits until the database takes connections; says which version it is."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with contextlib.closing(connect("", name="setup")) as connection:
                return f"PostgreSQL {connection.info.parameter_status('server_version')} answers"
        except CannotConnectError as error:
            # a wrong password does not become right by waiting
            if time.monotonic() > deadline or "authentication" in error.message:
                raise
        time.sleep(0.2)


def install_engine() -> str:
    """Schema, functions and views."""
    result = migrate("")
    applied = f"{len(result.applied)} migrations applied" if result.applied else "nothing to migrate"
    return f"version {result.version} is installed: {applied}"


def make_logins() -> str:
    """pg_cron and the logins, with their passwords as the files say."""
    made = []
    with contextlib.closing(connect("", name="setup", autocommit=True)) as connection:
        rows(connection, "create extension if not exists pg_cron")
        for login, role in LOGINS.items():
            name = Identifier(login)
            # the password itself would stand in the log of a server that logs statements
            verifier = connection.pgconn.encrypt_password(
                password_of(login).encode(), login.encode(), b"scram-sha-256"
            ).decode()
            known = rows(connection, "select 1 as found from pg_roles where rolname = %s", (login,))
            verb = SQL("alter" if known else "create")
            rows(connection, SQL("{} role {} login password {}").format(verb, name, Literal(verifier)))
            rows(connection, SQL("grant {} to {}").format(Identifier(role), name))
            if not known:
                made.append(login)
        # schedules under its own name
        rows(connection, "grant usage on schema cron to pyrunner")
    return f"logins made: {', '.join(made)}" if made else f"logins kept: {', '.join(LOGINS)}"


def wait_for_connect() -> str:
    """Waits until Connect answers, which it does when Kafka does."""
    deadline = time.monotonic() + PATIENCE
    url = os.environ["PYRUNNER_CONNECT_URL"]
    while True:
        try:
            with Connect(url, patience=10) as connect_:
                connect_.connectors()
        except PyrunnerError as error:
            if time.monotonic() > deadline:
                raise PyrunnerError(error.message, hint="See: docker compose logs connect kafka") from None
        else:
            return "Kafka Connect answers"
        time.sleep(0.5)


def install_connector() -> str:
    """Publication, slot, topics and connector; ends when events flow."""
    command = [sys.executable, "-m", "pyrunner", "cdc", "install"]
    done = subprocess.run(
        [*command, "--password-file", str(SECRETS / "debezium.properties"), "--json"],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        # it has said why
        sys.exit(done.returncode)
    return "events flow from the outbox to Kafka"


def schedule() -> str:
    """Both jobs and upkeep, by pg_cron."""
    dsn = make_conninfo("", user="pyrunner", password=password_of("pyrunner"))
    with open_cron(dsn, "cron") as cron:
        done = cron.install()
    return "pg_cron: " + ", ".join(f"{one['jobname']} ({one['schedule']}) {one['action']}" for one in done)


def main() -> int:
    """Does one step after the other, and tells how long each took."""
    steps: tuple[Callable[[], str], ...] = (
        wait_for_database, install_engine, make_logins, wait_for_connect, install_connector, schedule,
    )  # fmt: skip
    for step in steps:
        began = time.monotonic()
        try:
            said = step()
        except PyrunnerError as error:
            say(" ".join(filter(None, (error.message, error.hint))))
            return error.exit_code
        except psycopg.Error as error:
            say(str(error).strip())
            return 1
        say(f"{said} ({time.monotonic() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PGAPPNAME", "setup")
    sys.exit(main())

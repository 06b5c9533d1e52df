"""Looks for what is wrong with an installation, and says what to type against it.

Each check is a query in `queries/doctor`, which gives its findings: severity, what, why, remedy. A DBA can
run it as it stands; what it has to be told, the comment at its head says.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final, Literal

import psycopg
from psycopg.conninfo import make_conninfo

from pyrunner.cron import knows_seconds
from pyrunner.database import Connection, connect, explain, query, quoted, rows
from pyrunner.errors import ExitCode, PyrunnerError
from pyrunner.migrations import Installed, changed_objects, check_installation
from pyrunner.times import format_instant

__all__ = ["Finding", "Severity", "examine", "exit_code_of"]

Severity = Literal["ok", "unseen", "warning", "error"]

# these make sense before anything is installed
_BEFORE_INSTALLATION: Final = ("Server", "Connection")


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        check: the check's title.
        severity: "unseen" where the login may not look.
        what: what is so.
        why: why it matters, None where nothing is wrong.
        remedy: what to type, None where nothing is wrong.
    """

    check: str
    severity: Severity
    what: str
    why: str | None = None
    remedy: str | None = None


def exit_code_of(findings: list[Finding]) -> ExitCode:
    """The code that tells the worst of them."""
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        return ExitCode.TROUBLE
    return ExitCode.WARNINGS if "warning" in severities else ExitCode.DONE


def examine(dsn: str, *, cron_database: str | None = None) -> list[Finding]:
    """Runs all checks on a database; changes nothing.

    Args:
        dsn: as for `connect`.
        cron_database: where pg_cron lives; by default the server is asked.

    Raises:
        PyrunnerError: the database cannot be reached, or the connection broke.
    """
    with contextlib.closing(connect(dsn, name="pyrunner doctor", read_only=True)) as connection:
        try:
            return list(_Examination(dsn, connection, cron_database).findings())
        except psycopg.Error as error:
            raise explain(error, connection, "crm_monitor") from None


def _checks() -> Iterator[tuple[str, str]]:
    """Name and title of every check, in order."""
    for path in sorted((files("pyrunner") / "queries" / "doctor").iterdir(), key=lambda path: path.name):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("-- ")
        yield f"doctor/{path.name.removesuffix('.sql')}", title


class _Examination:
    def __init__(self, dsn: str, connection: Connection, cron_database: str | None) -> None:
        self._dsn = dsn
        self._connection = connection
        self._cron_database = cron_database
        self._context = {
            "backend_pid": str(connection.info.backend_pid),
            "database": connection.info.dbname,
            "cron_plan": "",
        }

    def findings(self) -> Iterator[Finding]:
        """All findings, in the order of the checks."""
        installation, is_there = self._installation()
        yield from installation
        for name, title in _checks():
            if title == "pg_cron" and is_there:
                yield from self._cron(name, title)
            elif is_there or title in _BEFORE_INSTALLATION:
                yield from self._run(name, title, self._connection)

    def _installation(self) -> tuple[list[Finding], bool]:
        """Its findings, and whether there is anything for the other checks to look at."""
        title = "Installation"
        try:
            state = check_installation(self._connection)
            if state.status is not Installed.CURRENT:
                why = "pyrunner works with its own version only"
                finding = Finding(title, "error", _clause(state.sentence), why, _remedy(state.hint))
                return [finding], state.status is not Installed.ABSENT
            changed = [
                Finding(
                    title,
                    "warning",
                    f"{name} is missing or was changed by hand",
                    "it is not ours",
                    "pyrunner migrate",
                )
                for name in changed_objects(self._connection)
            ]
            return [Finding(title, "ok", f"version {state.version}"), *changed], True
        except psycopg.errors.InsufficientPrivilege as error:
            return [self._unseen(title, self._connection, error)], True
        except PyrunnerError as error:
            return [
                Finding(title, "unseen", _clause(error.message), "what is installed is not known", error.hint)
            ], True
        finally:
            self._connection.rollback()

    def _run(self, name: str, title: str, connection: Connection) -> Iterator[Finding]:
        found = []
        try:
            self._set_context(connection)
            found = [Finding(title, **row) for row in rows(connection, query(name))]
        except psycopg.errors.InsufficientPrivilege as error:
            found = [self._unseen(title, connection, error)]
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.UndefinedFunction,
        ) as error:
            found = [
                Finding(
                    title,
                    "unseen",
                    str(error.diag.message_primary),
                    "this check cannot be made without it",
                    "pyrunner migrate",
                )
            ]
        finally:
            connection.rollback()
        yield from found or [Finding(title, "ok", "nothing wrong")]

    def _set_context(self, connection: Connection) -> None:
        context = {**self._context, "client_time": format_instant(datetime.now(UTC))}
        for key, value in context.items():
            connection.execute("select set_config('pyrunner.' || %s, %s, true)", (key, value))

    def _unseen(self, title: str, connection: Connection, error: psycopg.Error) -> Finding:
        message = str(error.diag.message_primary)
        user = quoted(connection.info.user)
        remedy = (
            f"in database {connection.info.dbname}: grant usage on schema cron to {user};"
            if "cron" in message
            else f"grant crm_monitor to {user};"
        )
        return Finding(title, "unseen", message, "this check cannot be made without it", remedy)

    def _cron(self, name: str, title: str) -> Iterator[Finding]:
        (where,) = rows(self._connection, query("cron_location"))
        self._connection.rollback()
        place = self._cron_database or where["theirs"]
        if where["version_here"] and self._cron_database in (None, where["ours"]):
            yield from self._cron_at(name, title, self._connection, where["version_here"])
        elif place == where["ours"]:
            yield Finding(title, "ok", "loaded into the server and not installed here: it drives nothing")
        elif place is not None:
            try:
                theirs = connect(
                    make_conninfo(self._dsn, dbname=place), name="pyrunner doctor", read_only=True
                )
            except PyrunnerError as error:
                yield Finding(title, "unseen", _clause(error.message), "pg_cron lives there", error.hint)
                return
            with contextlib.closing(theirs):
                (there,) = rows(theirs, query("cron_location"))
                theirs.rollback()
                yield from self._cron_at(name, title, theirs, there["version_here"])
        elif rows(self._connection, "select pg_has_role('pg_read_all_settings', 'usage') as sees")[0]["sees"]:
            yield Finding(title, "ok", "not loaded into this server: it drives nothing")
        else:
            yield Finding(
                title,
                "unseen",
                "pg_cron is not installed here, and whether it is in another database is hidden",
                "it may drive the jobs from there",
                f"grant pg_read_all_settings to {quoted(self._connection.info.user)};",
            )

    def _cron_at(
        self, name: str, title: str, connection: Connection, version: str | None
    ) -> Iterator[Finding]:
        if version is None:
            yield Finding(
                title, "ok", f"not installed in database {connection.info.dbname}: it drives nothing"
            )
            return
        plan = self._plan(title, version)
        if isinstance(plan, Finding):
            yield plan
        else:
            self._context["cron_plan"] = plan
        yield from self._run(name, title, connection)

    def _plan(self, title: str, version: str) -> str | Finding:
        """The entries that pg_cron needs, as JSON; or why they are not known."""
        parameters = (knows_seconds(version),)
        try:
            (row,) = rows(
                self._connection,
                "select jsonb_agg(to_jsonb(p)) as plan from expiration.cron_plan(%s) as p",
                parameters,
            )
            return json.dumps(row["plan"])
        except psycopg.errors.InsufficientPrivilege as error:
            return Finding(
                title,
                "unseen",
                f"whether the schedules fit the periods: {error.diag.message_primary}",
                "a changed period must be scheduled anew",
                f"grant crm_runner to {quoted(self._connection.info.user)};",
            )
        except psycopg.Error as error:
            shown = explain(error, self._connection)
            return Finding(
                title,
                "warning",
                _clause(shown.message),
                "no schedule of pg_cron fits this period",
                shown.hint,
            )
        finally:
            self._connection.rollback()


def _clause(sentence: str) -> str:
    return sentence.removesuffix(".")


def _remedy(hint: str | None) -> str | None:
    return None if hint is None else hint.removeprefix("Run `").removesuffix("`.")

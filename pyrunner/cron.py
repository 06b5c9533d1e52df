"""The jobs in pg_cron, also where it lives in another database than ours."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow

from pyrunner.database import Connection, connect, explain, query, quoted, rows, session
from pyrunner.errors import CronMissingError, MissingPrivilegeError

__all__ = ["Cron", "knows_seconds", "open_cron"]


def knows_seconds(version: str) -> bool:
    """Whether pg_cron of that version has schedules such as "30 seconds"."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 5)


@dataclass(frozen=True)
class Cron:
    """pg_cron, as it is reached for one of our databases.

    Attributes:
        ours: a connection to our database.
        theirs: a connection to the database in which pg_cron lives; the same one when that is ours.
        database: the name of our database.
        version: of the extension.
    """

    ours: Connection
    theirs: Connection
    database: str
    version: str

    @property
    def is_here(self) -> bool:
        """Whether pg_cron lives in our database."""
        return self.ours is self.theirs

    def plan(self) -> list[DictRow]:
        """The entries that are needed: jobname, schedule, command."""
        return rows(self.ours, "select * from expiration.cron_plan(%s)", (knows_seconds(self.version),))

    def jobs(self) -> list[DictRow]:
        """Our entries, each with its last run."""
        return rows(self.theirs, query("cron_jobs"), {"database": self.database})

    def install(self) -> list[DictRow]:
        """Schedules what is missing, puts right what differs: jobname, schedule, command, action of each."""
        if self.is_here:
            done = rows(self.ours, "select * from expiration.cron_install()")
        else:
            present = self.jobs()
            done = [{**wanted, "action": self._schedule(wanted, present)} for wanted in self.plan()]
        self.theirs.commit()
        return done

    def _schedule(self, wanted: DictRow, present: list[DictRow]) -> str:
        same = [job for job in present if job["command"] == wanted["command"]]
        if not same:
            # names are unique to a user, and one pg_cron may serve several of our databases
            name = f"{wanted['jobname']} ({self.database})"
            rows(
                self.theirs,
                "select cron.schedule_in_database(%s, %s, %s, %s)",
                (name, wanted["schedule"], wanted["command"], self.database),
            )
            return "scheduled"
        job = same[0]
        if job["schedule"] == wanted["schedule"] and job["active"]:
            return (
                "kept"
                if job["username"] == self.theirs.info.user
                else f"kept: it belongs to {job['username']}"
            )
        rows(
            self.theirs,
            "select cron.alter_job(job_id := %s, schedule := %s, active := true)",
            (job["jobid"], wanted["schedule"]),
        )
        return f"changed from {job['schedule']}" if job["schedule"] != wanted["schedule"] else "activated"

    def uninstall(self) -> list[DictRow]:
        """Takes our entries out; what was taken."""
        present = self.jobs()
        for job in present:
            rows(self.theirs, "select cron.unschedule(%s::bigint)", (job["jobid"],))
        self.theirs.commit()
        return [{**job, "action": "unscheduled"} for job in present]


@contextlib.contextmanager
def open_cron(
    dsn: str, command: str, *, cron_database: str | None = None, read_only: bool = False
) -> Iterator[Cron]:
    """pg_cron for the database that `dsn` names.

    Args:
        dsn: as for `connect`.
        command: the command's name, for application_name.
        cron_database: where pg_cron lives; by default the server is asked.
        read_only: change nothing.

    Raises:
        CronMissingError: it is not to be found.
        PyrunnerError: anything else that goes wrong, in words.
    """
    with session(dsn, command, "crm_runner", read_only=read_only) as ours:
        (where,) = rows(ours, query("cron_location"))
        if where["version_here"] and cron_database in (None, where["ours"]):
            with _explained(ours):
                yield Cron(ours, ours, where["ours"], where["version_here"])
            return
        name = cron_database or where["theirs"]
        if name is None:
            raise CronMissingError(
                f"pg_cron is not installed in database {where['ours']}, and whether it is in another one "
                f"cannot be seen by {ours.info.user}.",
                hint="Name the database that it lives in by --cron-database, or install it here, "
                "as a superuser: create extension pg_cron;",
            )
        if name == where["ours"]:
            raise CronMissingError(
                f"pg_cron is loaded into the server and not yet installed in database {name}.",
                hint="As a superuser: create extension pg_cron;",
            )
        ours.commit()
        with (
            contextlib.closing(
                connect(make_conninfo(dsn, dbname=name), name=f"pyrunner {command}", read_only=read_only)
            ) as theirs,
            _explained(theirs),
        ):
            (there,) = rows(theirs, query("cron_location"))
            if not there["version_here"]:
                raise CronMissingError(
                    f"pg_cron is not installed in database {name} either.",
                    hint=f"As a superuser in database {name}: create extension pg_cron;",
                )
            yield Cron(ours, theirs, where["ours"], there["version_here"])


@contextlib.contextmanager
def _explained(connection: Connection) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        shown = explain(error, connection)
        if isinstance(shown, MissingPrivilegeError) and "cron" in shown.message + str(
            error.diag.message_hint
        ):
            user = quoted(connection.info.user)
            raise MissingPrivilegeError(
                shown.message,
                hint=f"As a superuser, in database {connection.info.dbname}: "
                f"grant usage on schema cron to {user}; "
                f"grant execute on all functions in schema cron to {user};",
                sqlstate=shown.sqlstate,
            ) from None
        raise shown from None

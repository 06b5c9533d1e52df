"""Connections as the commands need them, and the errors of the database in words."""

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, LiteralString, cast

import psycopg
from psycopg.abc import Buffer, Params
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, TupleRow, dict_row
from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.datetime import TimestamptzBinaryLoader

from pyrunner.errors import (
    CannotConnectError,
    DatabaseError,
    MissingPrivilegeError,
    NotInstalledError,
    PyrunnerError,
    ReadOnlyError,
    UsageError,
    from_database,
    one_line,
)
from pyrunner.migrations import require_installation
from pyrunner.times import FIRST, LAST

__all__ = [
    "OLDEST_SERVER",
    "Connection",
    "Role",
    "connect",
    "explain",
    "is_lost",
    "is_pooled",
    "parse_dsn",
    "query",
    "quoted",
    "rows",
    "session",
    "target_of",
]

Connection = psycopg.Connection[TupleRow]
Role = Literal["crm_monitor", "crm_runner", "crm_operator"]

OLDEST_SERVER: Final = 15
# a network that died in silence is noticed within a minute and a half
_KEEPALIVES: Final = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "6",
}
_HOW: Final = (
    "pyrunner connects as psql does: see --dsn, PYRUNNER_DSN, "
    "or PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSFILE."
)


class _InstantLoader(TimestamptzBinaryLoader):
    """Loads instants; those that Python cannot hold, the infinite ones among them, as its first or last."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return FIRST if bytes(data)[0] & 0x80 else LAST


def connect(
    dsn: str, *, name: str = "pyrunner", autocommit: bool = False, read_only: bool = False
) -> Connection:
    """Connects as psql does; transactions are read committed, whatever the database's default is.

    Args:
        dsn: a connection string; what it leaves out comes from libpq's environment, "" is all of it.
        name: application_name, unless the string gives one.
        autocommit: each statement is a transaction of its own, as a procedure that commits needs it.
        read_only: transactions may change nothing.

    Raises:
        UsageError: the string cannot be understood.
        CannotConnectError: the server cannot be reached, or lets us not in.
        NotInstalledError: the server is too old.
    """
    given = parse_dsn(dsn)
    # the weakest of libpq's sources, so that a string, a service or the environment wins
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    # goes with the start of the connection, so that it passes a pooler
    os.environ["PGTZ"] = "UTC"
    extras = {key: value for key, value in _KEEPALIVES.items() if key not in given}
    try:
        connection: Connection = psycopg.connect(
            make_conninfo(dsn, **extras),
            autocommit=autocommit,
            # a pooler in transaction mode keeps no prepared statements for us
            prepare_threshold=None,
            fallback_application_name=name,
        )
    except (psycopg.Error, UnicodeError) as error:
        # one line a host; those of libpq's advice are indented, and psycopg repeats them all at the end
        lines = str(error).partition("Multiple connection attempts failed")[0].splitlines()
        text = one_line(" ".join(line for line in lines if not line.startswith("\t")))
        if password := given.get("password"):
            text = text.replace(str(password), "***")
        raise CannotConnectError(
            f"{target_of(dsn)} cannot be reached: {text.removeprefix('connection failed: ')}.",
            hint=_HOW,
            sqlstate=getattr(error, "sqlstate", None),
        ) from None
    if connection.info.server_version < OLDEST_SERVER * 10000:
        version = connection.info.parameter_status("server_version")
        connection.close()
        raise NotInstalledError(
            f"{target_of(dsn)} has version {version}, and PostgreSQL {OLDEST_SERVER} or newer is needed.",
            hint="Upgrade the server; or, where that is a pooler's own console, name the database behind it.",
        )
    connection.adapters.register_loader("timestamptz", _InstantLoader)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if read_only:
        connection.read_only = True
    return connection


def parse_dsn(dsn: str) -> dict[str, Any]:
    """The parts of a connection string.

    Raises:
        UsageError: it cannot be understood.
    """
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        given = {"port": "?"}
    host, port = str(given.get("host", "")), str(given.get("port", ""))
    # (a host that begins with @ is an abstract socket)
    if "@" in host[1:] or (port and not port.replace(",", "").isdigit()):
        # libpq would repeat what it does not understand, and that may be a part of a password
        raise UsageError(
            "The connection string cannot be understood.",
            hint="Write 'host=... dbname=... user=...', or postgresql://user@host/dbname; in the latter, "
            "@ : / and the like are written %40 %3A %2F within a password.",
        )
    return given


def target_of(dsn: str) -> str:
    """Where a connection string leads, for a person, without the password.

    Raises:
        UsageError: it cannot be understood.
    """
    given = parse_dsn(dsn)
    if service := given.get("service") or os.environ.get("PGSERVICE"):
        return f"service {service}"
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = given.get("port") or os.environ.get("PGPORT")
    name = given.get("dbname") or os.environ.get("PGDATABASE")
    return f"{f'database {name}' if name else 'the default database'} at {host}{f':{port}' if port else ''}"


@contextlib.contextmanager
def session(
    dsn: str,
    command: str,
    role: Role,
    *,
    autocommit: bool = False,
    read_only: bool = False,
    installed: bool = True,
) -> Iterator[Connection]:
    """A connection for one command; errors of the database leave it as `PyrunnerError`.

    Args:
        dsn: as for `connect`.
        command: the command's name, for application_name.
        role: whose privileges it takes; named when one is missing.
        autocommit: as for `connect`.
        read_only: as for `connect`.
        installed: refuse to work where this version is not installed.

    Raises:
        PyrunnerError: what went wrong, in words.
    """
    connection = connect(dsn, name=f"pyrunner {command}", autocommit=autocommit, read_only=read_only)
    try:
        if installed:
            require_installation(connection)
            if not autocommit:
                connection.commit()
        yield connection
    except psycopg.Error as error:
        raise explain(error, connection, role) from None
    finally:
        connection.close()


def explain(
    error: psycopg.Error, connection: psycopg.Connection[Any], role: Role | None = None
) -> PyrunnerError:
    """The error to show for one of the database's, with a hint where the database gave none.

    Args:
        error: as caught.
        connection: where it came from.
        role: what the login must be a member of for what it tried; None where that is not in question.
    """
    if is_lost(error, connection):
        return CannotConnectError(
            f"The connection to the database was lost: {one_line(error.diag.message_primary or str(error))}.",
            hint="What had been committed stays. Run it again when the server answers.",
            sqlstate=error.sqlstate,
        )
    shown = from_database(error)
    if shown.hint is not None:
        return shown
    hint: str | None = None
    match shown:
        case MissingPrivilegeError() if role is not None:
            hint = f"As a superuser: grant {role} to {quoted(connection.info.user)};"
        case ReadOnlyError():
            hint = (
                "Connect to the primary (host=a,b target_session_attrs=read-write finds it), "
                "or unset default_transaction_read_only."
            )
        case DatabaseError(sqlstate="57014"):
            hint = "Somebody cancelled it, or statement_timeout is shorter than it takes: `pyrunner doctor`."
        case DatabaseError(sqlstate=code) if code and code.startswith("42"):
            hint = "`pyrunner doctor` says what is missing."
    return type(shown)(shown.message, hint=hint, sqlstate=shown.sqlstate)


def quoted(name: str) -> str:
    """A name as SQL needs it, for a command to type."""
    return SQL("{}").format(Identifier(name)).as_string()


def is_lost(error: psycopg.Error, connection: psycopg.Connection[Any]) -> bool:
    """Whether the error says that the connection is of no use any more."""
    return connection.closed or isinstance(from_database(error), CannotConnectError)


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler stands between: the backend that answers is not the one that we were told of."""
    row = rows(connection, "select pg_backend_pid() as pid")[0]
    return bool(row["pid"] != connection.info.backend_pid)


def rows(
    connection: Connection, statement: LiteralString | SQL | Composed, parameters: Params | None = None
) -> list[DictRow]:
    """Executes one statement; its rows as dictionaries, empty where it yields none.

    Values come in binary, so that no DateStyle or IntervalStyle of the role's matters.
    """
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


@cache
def query(name: str) -> SQL:
    """The statement in the file `queries/NAME.sql` of this package."""
    text = (files("pyrunner") / "queries" / f"{name}.sql").read_text("utf-8")
    return SQL(cast(Any, text))

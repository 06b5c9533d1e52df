"""What is installed in a database, beside what this program would install."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import psycopg
from psycopg.rows import dict_row

import pyrunner
from pyrunner.errors import MissingPrivilegeError, NotInstalledError, from_database
from pyrunner.migrations.session import Connection, connect
from pyrunner.migrations.tree import SqlTree, sql_tree

__all__ = [
    "InstallationState",
    "Installed",
    "changed_objects",
    "check_installation",
    "pending",
    "require_installation",
]

_MIGRATE: Final = "Run `pyrunner migrate`."


class Installed(StrEnum):
    """How far a database is installed."""

    ABSENT = "absent"
    PARTIAL = "partial"
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    EDITED = "edited"


@dataclass(frozen=True)
class InstallationState:
    """What is installed.

    Attributes:
        status: see `Installed`; "edited" is said of an applied migration whose file says something else now.
        sentence: the same for a person.
        hint: what to do about it, or None.
        version: of the last complete installation, None when there is none.
        program_version: of this program.
        applied: migrations that the database has, in order.
        pending: those that it lacks, in order.
    """

    status: Installed
    sentence: str
    hint: str | None
    version: str | None
    program_version: str
    applied: tuple[str, ...]
    pending: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """What the database says of itself.

    Attributes:
        exists: there is a schema `expiration` with yoyo's table.
        checksums: of the applied migrations by id, None for one that yoyo alone applied.
        version: of the last complete installation.
        checksum: of its functions, views and grants.
        last_migration: its last migration.
    """

    exists: bool
    checksums: Mapping[str, str | None]
    version: str | None = None
    checksum: str | None = None
    last_migration: str | None = None


def read_record(connection: Connection) -> Record:
    """Reads the record of the installation; an empty one when there is none."""
    tables = {
        row[0]
        for row in connection.execute(
            "select c.relname from pg_catalog.pg_class as c"
            " inner join pg_catalog.pg_namespace as n on c.relnamespace = n.oid"
            " where n.nspname = 'expiration' and c.relkind = 'r'"
        )
    }
    if not {"installation", "migration_checksum", "_yoyo_migration"} <= tables:
        return Record("_yoyo_migration" in tables, {})
    cursor = connection.cursor(row_factory=dict_row)
    checksums = dict(
        connection.execute("select migration_id, checksum from expiration.migration_checksum").fetchall()
    )
    last = cursor.execute(
        "select version, checksum, last_migration from expiration.installation"
        " order by installed_at desc limit 1"
    ).fetchone()
    if last is None:
        return Record(True, checksums)
    return Record(True, checksums, last["version"], last["checksum"], last["last_migration"])


def judge(record: Record, tree: SqlTree, program_version: str = pyrunner.__version__) -> InstallationState:
    """Compares what the database says of itself with what this program would install."""
    known = tree.migrations
    unknown = sorted(record.checksums.keys() - known.keys())
    edited = [name for name in known if record.checksums.get(name) not in (None, known[name].checksum)]
    missing = tuple(name for name in known if name not in record.checksums)

    def state(status: Installed, sentence: str, hint: str | None = _MIGRATE) -> InstallationState:
        return InstallationState(
            status, sentence, hint, record.version, program_version, tuple(sorted(record.checksums)), missing
        )

    if unknown or _is_later(record.version, program_version):
        what = f"migration {unknown[-1]}" if unknown else f"version {record.version}"
        return state(
            Installed.NEWER,
            f"The database is newer than this program: it has {what}, which pyrunner {program_version}"
            " does not know.",
            f"Use pyrunner {record.version or 'of that version'} or a later one.",
        )
    if edited:
        return state(
            Installed.EDITED,
            f"Migration {edited[0]} was edited after it had been applied to this database.",
            f"Put {edited[0]}.sql back as it was, and make the change by a new migration.",
        )
    if not record.exists:
        return state(Installed.ABSENT, "Nothing is installed in this database.")
    if record.version is None:
        return state(
            Installed.PARTIAL,
            "The installation of this database was never completed, or was removed in part.",
        )
    if record.last_migration != max(record.checksums, default=None):
        return state(Installed.PARTIAL, "An upgrade of this database was begun and not completed.")
    if missing or record.checksum != tree.checksum or record.version != program_version:
        return state(
            Installed.OLDER,
            f"The database holds version {record.version}, and this is pyrunner {program_version}."
            if record.version != program_version
            else f"The database holds another state of version {record.version} than this program.",
        )
    return state(Installed.CURRENT, f"Version {record.version} is installed.", None)


def check_installation(connection: str | Connection, *, sql_root: Path | None = None) -> InstallationState:
    """What is installed in a database; changes nothing.

    Args:
        connection: a connection string as psql takes it, or an open connection.
        sql_root: the sql/ folder to compare with, by default the program's own.

    Raises:
        CannotConnectError: the server cannot be reached.
        MissingPrivilegeError: the role may not read the record of the installation.
    """
    if isinstance(connection, str):
        with connect(connection) as own:
            return check_installation(own, sql_root=sql_root)
    tree = sql_tree(sql_root)
    try:
        return judge(read_record(connection), tree)
    except psycopg.errors.InsufficientPrivilege as error:
        raise MissingPrivilegeError(
            f"{connection.info.user} may not read what is installed in this database.",
            hint=f"As a superuser: grant crm_monitor to {connection.info.user}; or crm_runner, crm_operator.",
            sqlstate=error.sqlstate,
        ) from error
    except psycopg.Error as error:
        raise from_database(error, doing="reading what is installed") from error


def require_installation(connection: str | Connection, *, sql_root: Path | None = None) -> InstallationState:
    """As `check_installation`, and refuses everything but this program's own version.

    Raises:
        NotInstalledError: with the one sentence that says what is there instead, and what to do.
    """
    state = check_installation(connection, sql_root=sql_root)
    if state.status is not Installed.CURRENT:
        raise NotInstalledError(state.sentence, hint=state.hint)
    return state


def pending(conninfo: str, *, sql_root: Path | None = None) -> tuple[str, ...]:
    """The migrations that the database lacks, in the order in which they would be applied."""
    return check_installation(conninfo, sql_root=sql_root).pending


def changed_objects(connection: Connection) -> list[str]:
    """Functions, procedures, views and triggers that are missing or were changed since they were installed.

    Sorted; "function crm.expire_leads_batch(...)". `migrate` puts them right.
    """
    rows = connection.execute(
        "select o.kind || ' ' || o.identity from expiration.installed_object as o"
        " left join expiration.loadable_objects() as c on o.kind = c.kind and o.identity = c.identity"
        " where c.object is null or o.fingerprint <> expiration.fingerprint(c.class, c.object)"
        " order by 1"
    ).fetchall()
    return [row[0] for row in rows]


def _is_later(version: str | None, than: str) -> bool:
    return version is not None and version_numbers(version) > version_numbers(than)


def version_numbers(version: str) -> list[int]:
    """The numbers of a version, for comparing: [0, 2, 1] of "0.2.1"."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]

"""`migrate`: installs into a database, or brings it up to date."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

import pyrunner
from pyrunner.errors import (
    DatabaseError,
    MissingPrivilegeError,
    NotInstalledError,
    RefusedError,
    from_database,
)
from pyrunner.migrations import statements
from pyrunner.migrations.session import PATIENCE, Connection, Session, passes_by_itself, resource, run
from pyrunner.migrations.state import Installed, judge, read_record
from pyrunner.migrations.tree import SCHEMAS, Migration, SqlTree, sql_tree

__all__ = ["OLDEST_SERVER", "ROLES", "MigrationResult", "migrate"]

ROLES: Final = (
    "crm_owner",
    "crm_runner",
    "crm_operator",
    "crm_monitor",
    "crm_app",
    "crm_chessboard",
    "crm_notifications",
)
OLDEST_SERVER: Final = 15


@dataclass(frozen=True)
class MigrationResult:
    """What `migrate` did.

    Attributes:
        version: now installed.
        applied: migrations, in order; empty when none was pending.
        loaded: functions, procedures, views and triggers that are installed now, in the order of loading.
        dropped: those of an earlier version that no file makes any more.
    """

    version: str
    applied: tuple[str, ...]
    loaded: tuple[str, ...]
    dropped: tuple[str, ...]


def migrate(
    conninfo: str,
    *,
    sql_root: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> MigrationResult:
    """Installs everything into a database, or brings it up to date, while others work in it.

    Each migration is a transaction; all functions and views are another, together with the grants. A call
    that is killed leaves whole steps, and the next one goes on from there. Two calls at once do it one after
    the other.

    Args:
        conninfo: as psql takes it; "" is libpq's environment. Needs a superuser, or CREATEROLE and CREATE on
            the database.
        sql_root: the sql/ folder, by default the program's own.
        on_progress: told, in words, what is done and what is waited for; also from another thread.
        patience: seconds that one step may be put off by locks of others before it is given up.

    Raises:
        CannotConnectError: the server cannot be reached.
        MissingPrivilegeError: the role lacks a privilege; says which.
        NotInstalledError: PostgreSQL is too old.
        RefusedError: the database is newer than this program, or an applied migration was edited.
        BusyError: others held a lock for longer than `patience`.
        DatabaseError: anything else; the step that failed was rolled back.
    """
    say = on_progress or (lambda _: None)
    tree = sql_tree(sql_root)
    tree.check()
    # not at the top: no other command needs yoyo
    from pyrunner.migrations.yoyo_backend import read_steps

    steps = read_steps(tree)
    with Session(conninfo, say, patience=patience) as session:
        _check_server(session.connection)
        session.transaction(
            "making roles and schemas", lambda connection: run(connection, tree.bootstrap), as_owner=False
        )
        applied = session.transaction(
            "reading what is installed", lambda connection: _prepare(connection, tree)
        )
        if stale := session.transaction("taking yoyo's lock", _take_yoyo_lock):
            say(f"Removed the lock that process {stale} had left when it was killed.")
        try:
            now = [migration for name, migration in tree.migrations.items() if name not in applied]
            for migration in now:
                say(f"Applying {migration.id}.")
                session.transaction(
                    f"applying {migration.id}", partial(_apply, migration, steps[migration.id])
                )
        finally:
            if not session.connection.closed:
                session.transaction("giving yoyo's lock back", _give_yoyo_lock_back)
        say(f"Loading {len(tree.sources)} files of functions and views.")
        before, after = session.transaction(
            "loading functions and views", lambda connection: _load(connection, tree)
        )
    return MigrationResult(
        pyrunner.__version__,
        tuple(migration.id for migration in now),
        tuple(after),
        tuple(name for name in before if name not in after),
    )


def _check_server(connection: Connection) -> None:
    """Says in advance what would fail half way."""
    if connection.info.server_version < OLDEST_SERVER * 10000:
        raise NotInstalledError(
            f"PostgreSQL {OLDEST_SERVER} or newer is needed, and this server is "
            f"{connection.info.parameter_status('server_version')}.",
        )
    with connection.cursor(row_factory=dict_row) as cursor:
        has = cursor.execute(
            resource("needs.sql"), {"roles": list(ROLES), "schemas": list(SCHEMAS)}
        ).fetchone()
    assert has is not None
    me, quoted = has["me"], has["quoted"]
    if has["is_standby"]:
        raise DatabaseError(
            "This server is a standby, which takes no changes.", hint="Connect to the primary."
        )
    if has["is_superuser"]:
        return
    if has["roles"] and not has["may_make_roles"]:
        raise MissingPrivilegeError(
            f"{me} lacks CREATEROLE, which is needed to make {', '.join(has['roles'])}.",
            hint=f"As a superuser: alter role {quoted} createrole;",
        )
    if not has["may_make_schemas"]:
        raise MissingPrivilegeError(
            f"{me} lacks CREATE on database {has['database']}, which is needed to make schemas.",
            hint=f"As the database's owner: grant create on database {has['database']} to {quoted};",
        )
    if has["schema"]:
        raise MissingPrivilegeError(
            f"Schema {has['schema']} belongs to {has['owner']}, and {me} cannot let crm_owner work in it.",
            hint=f"As {has['owner']}: grant usage, create on schema {has['schema']} to {quoted}"
            " with grant option;",
        )


def _prepare(connection: Connection, tree: SqlTree) -> set[str]:
    """Sees to our record; returns the migrations that the database has, or refuses to go on."""
    run(connection, resource("record.sql"))
    # migrations that yoyo alone has applied are taken as they are
    applied = {row[0] for row in connection.execute("select migration_id from expiration._yoyo_migration")}
    for name, migration in tree.migrations.items():
        if name in applied:
            _keep_checksum(connection, migration)
    connection.execute(
        "insert into expiration.migration_checksum (migration_id, checksum)"
        " select m.migration_id, '' from expiration._yoyo_migration as m on conflict do nothing"
    )
    state = judge(read_record(connection), tree)
    if state.status in (Installed.NEWER, Installed.EDITED):
        raise RefusedError(state.sentence, hint=state.hint)
    return applied


def _take_yoyo_lock(connection: Connection) -> int | None:
    """Takes yoyo's lock; returns the process that had it. As ours is held, that process is dead."""
    stale = connection.execute("delete from expiration.yoyo_lock returning pid").fetchone()
    connection.execute(
        "insert into expiration.yoyo_lock (locked, ctime, pid)"
        " values (1, clock_timestamp() at time zone 'UTC', %s)",
        (os.getpid(),),
    )
    return None if stale is None else int(stale[0])


def _give_yoyo_lock_back(connection: Connection) -> None:
    connection.execute("delete from expiration.yoyo_lock")


def _keep_checksum(connection: Connection, migration: Migration) -> None:
    connection.execute(
        "insert into expiration.migration_checksum (migration_id, checksum) values (%s, %s)"
        " on conflict do nothing",
        (migration.id, migration.checksum),
    )


def _apply(migration: Migration, steps: Any, connection: Connection) -> None:
    from pyrunner.migrations.yoyo_backend import YoyoBackend

    connection.execute(statements.MIGRATION_PATH)
    yoyo = YoyoBackend(connection)
    # what a killed predecessor had sent off may have been committed since we looked
    if not yoyo.is_applied(steps):
        yoyo.apply_one(steps)
        _keep_checksum(connection, migration)


def _load(connection: Connection, tree: SqlTree) -> tuple[list[str], list[str]]:
    """Functions, views, grants, the record of the version; returns what was installed before and is now."""
    before = _installed(connection)
    run(connection, statements.sources(tree))
    try:
        run(connection, resource("load.sql"))
    except psycopg.Error as error:
        if passes_by_itself(error) or (place := _place(error, tree)) is None:
            raise
        raise from_database(error, doing=f"loading {place}") from error
    run(connection, tree.grants)
    run(connection, resource("readers.sql"))
    run(connection, statements.completed(tree))
    return before, _installed(connection)


def _place(error: psycopg.Error, tree: SqlTree) -> str | None:
    """The file, and the line if it is known, that an error of load.sql came from."""
    told = f"{error.diag.internal_query or ''}\n{error.diag.context or ''}"
    for source in tree.sources:
        for unit in source.units:
            if unit.source in told:
                place = f"sql/functions/{source.path}"
                if error.diag.internal_query != unit.source or error.diag.internal_position is None:
                    return place
                end = source.source.index(unit.source) + int(error.diag.internal_position) - 1
                return f"{place}, line {source.source.count(chr(10), 0, end) + 1}"
    return None


def _installed(connection: Connection) -> list[str]:
    rows = connection.execute(
        "select kind || ' ' || identity from expiration.installed_object order by position, kind"
    )
    return [row[0] for row in rows]

"""`uninstall`: takes the installation out of a database."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pyrunner.errors import MissingPrivilegeError, PyrunnerError, RefusedError, one_line
from pyrunner.migrations.install import ROLES
from pyrunner.migrations.session import PATIENCE, Connection, Session, connect, resource
from pyrunner.migrations.tree import SCHEMAS

__all__ = ["Kept", "UninstallResult", "uninstall"]

_OUR_JOBS: Final = (
    "select cron.unschedule(j.jobid), coalesce(j.jobname, j.command) from cron.job as j"
    r" where j.database = %s and j.command ~* '^\s*call\s+expiration\.' order by j.jobid"
)


@dataclass(frozen=True)
class Kept:
    """Something that an uninstallation left, and why.

    Attributes:
        what: "schema crm", "role crm_owner".
        why: a clause: "its tables hold data".
    """

    what: str
    why: str


@dataclass(frozen=True)
class UninstallResult:
    """What `uninstall` did.

    Attributes:
        dropped: functions, procedures, views, triggers, schemas and roles, in this order.
        unscheduled: entries of pg_cron, by their names.
        kept: what is still there.
    """

    dropped: tuple[str, ...]
    unscheduled: tuple[str, ...]
    kept: tuple[Kept, ...]


def uninstall(
    conninfo: str,
    *,
    drop_data: bool = False,
    on_progress: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> UninstallResult:
    """Takes the installation out of a database; `migrate` puts it back.

    Without `drop_data` no row is lost: functions, procedures, views, triggers and entries of pg_cron go, the
    tables of all schemas stay, among them the record of the migrations, from which a later `migrate`
    goes on. Roles go when nothing needs them any more. All in one transaction.

    Args:
        conninfo: as psql takes it. Needs a superuser, or a member of crm_owner; roles go only by CREATEROLE.
        drop_data: also drops our schemas with everything in them.
        on_progress: told, in words, what is done and what is waited for.
        patience: seconds that it may be put off by locks of others before it is given up.

    Raises:
        CannotConnectError: the server cannot be reached.
        MissingPrivilegeError: the role may not act as crm_owner.
        RefusedError: objects of others depend on ours, or stand in our schemas; they are named.
        BusyError: others held a lock for longer than `patience`.
    """
    with Session(conninfo, on_progress or (lambda _: None), patience=patience) as session:
        result = session.transaction(
            "uninstalling", lambda connection: _Removal(connection, drop_data).result(), as_owner=False
        )
    return _with_cron_elsewhere(conninfo, result)


class _Removal:
    """One uninstallation, inside a transaction."""

    def __init__(self, connection: Connection, drop_data: bool) -> None:
        self._connection = connection
        self._dropped: list[str] = []
        self._kept: list[Kept] = []
        self._owners = dict(
            connection.execute(
                "select nspname, pg_get_userbyid(nspowner) from pg_namespace where nspname = any (%s)",
                (list(SCHEMAS),),
            ).fetchall()
        )
        self._check_privilege()
        self._unscheduled = self._unschedule()
        self._drop_objects()
        for schema, owner in sorted(self._owners.items()):
            if owner != "crm_owner":
                self._kept.append(Kept(f"schema {schema}", f"it belongs to {owner}"))
            elif not drop_data:
                self._kept.append(Kept(f"schema {schema}", "its tables hold data"))
        if drop_data:
            self._drop_schemas([schema for schema, owner in self._owners.items() if owner == "crm_owner"])
            self._kept += self._slots()
            if self._row("select to_regrole('crm_owner') is not null")[0]:
                # the built-in default, which leaves no entry
                self._connection.execute(
                    "alter default privileges for role crm_owner grant execute on functions to public"
                )
        for role in reversed(ROLES):
            self._drop_role(role)

    def result(self) -> UninstallResult:
        return UninstallResult(tuple(self._dropped), tuple(self._unscheduled), tuple(self._kept))

    def _check_privilege(self) -> None:
        me, may = self._row(
            "select current_user,"
            " to_regrole('crm_owner') is null or pg_has_role(to_regrole('crm_owner'), 'usage')"
        )
        if not may:
            raise MissingPrivilegeError(
                f"{me} may not act as crm_owner, who owns what is installed.",
                hint=f"As a superuser: grant crm_owner to {me};",
            )

    def _unschedule(self) -> list[str]:
        if not self._has_table("cron", "job"):
            return []
        name, is_superuser = self._row(
            "select current_database(), rolsuper from pg_roles where rolname = current_user"
        )
        if not is_superuser:
            self._kept.append(Kept("other roles' entries in pg_cron", "only a superuser sees them"))
        return [row[1] for row in self._connection.execute(_OUR_JOBS, (name,))]

    def _drop_objects(self) -> None:
        if not self._has_table("expiration", "installed_object"):
            return
        rows = self._connection.execute(
            "select o.kind, o.identity from expiration.installed_object as o"
            " inner join expiration.loadable_objects() as c on o.kind = c.kind and o.identity = c.identity"
            " order by o.position desc, o.kind desc"
        ).fetchall()
        for kind, identity in rows:
            self._drop(f"{kind} {identity}")
        self._connection.execute("delete from expiration.installed_object")
        self._connection.execute("delete from expiration.installed_file")
        self._connection.execute("delete from expiration.installation")

    def _drop_schemas(self, schemas: list[str]) -> None:
        strangers = [
            row[0] for row in self._connection.execute(resource("strangers.sql"), {"schemas": schemas})
        ]
        if strangers:
            raise RefusedError(
                f"Objects that are not ours stand in the schemas {', '.join(schemas)}, or depend on them: "
                f"{', '.join(strangers)}.",
                hint="Move or drop them, and uninstall again.",
            )
        for schema in schemas:
            self._drop(f"schema {schema}", cascade=True)

    def _drop(self, what: str, *, cascade: bool = False) -> None:
        try:
            self._connection.execute(f"drop {what}{' cascade' if cascade else ''}")
        except psycopg.errors.DependentObjectsStillExist as error:
            others = ", ".join((error.diag.message_detail or "").splitlines())
            raise RefusedError(
                f"{what[0].upper()}{what[1:]} cannot be dropped, because others depend on it: {others}.",
                hint="Drop what depends on it, and uninstall again.",
                sqlstate=error.sqlstate,
            ) from error
        self._dropped.append(what)

    def _slots(self) -> list[Kept]:
        rows = self._connection.execute(
            "select slot_name from pg_replication_slots where database = current_database() order by 1"
        )
        return [
            Kept(f"replication slot {name}", "it keeps the log; drop it by pg_drop_replication_slot")
            for (name,) in rows
        ]

    def _drop_role(self, role: str) -> None:
        if self._row("select to_regrole(%s)", (role,))[0] is None:
            return
        (members,) = self._row(
            "select string_agg(m.rolname, ', ' order by m.rolname) from pg_auth_members as a"
            " inner join pg_roles as m on a.member = m.oid"
            " where a.roleid = to_regrole(%s) and m.rolname <> all (%s)"
            " and m.rolname not in (current_user, session_user)",
            (role, list(ROLES)),
        )
        if members:
            self._kept.append(Kept(f"role {role}", f"it has members: {members}"))
            return
        try:
            with self._connection.transaction():
                self._revoke(role)
                self._connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
        except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.InsufficientPrivilege) as error:
            lines = (error.diag.message_detail or error.diag.message_primary or "").splitlines()
            shown = ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
            self._kept.append(Kept(f"role {role}", one_line(shown)))
        else:
            self._dropped.append(f"role {role}")

    def _revoke(self, role: str) -> None:
        """Takes from the role what the installation gave it, and no more."""
        name = sql.Identifier(role)
        left = [
            row[0]
            for row in self._connection.execute(
                "select nspname from pg_namespace where nspname = any (%s)", (list(SCHEMAS),)
            )
        ]
        for schema in map(sql.Identifier, left):
            for kind in ("all tables in schema", "all routines in schema", "schema"):
                self._connection.execute(
                    sql.SQL("revoke all on {} {} from {}").format(sql.SQL(kind), schema, name)
                )

    def _has_table(self, schema: str, name: str) -> bool:
        return bool(
            self._row(
                "select exists (select from pg_class as c"
                " inner join pg_namespace as n on c.relnamespace = n.oid"
                " where n.nspname = %s and c.relname = %s)",
                (schema, name),
            )[0]
        )

    def _row(self, query: str, parameters: tuple[object, ...] = ()) -> tuple[object, ...]:
        row: tuple[object, ...] | None = self._connection.execute(query, parameters).fetchone()
        assert row is not None
        return row


def _with_cron_elsewhere(conninfo: str, result: UninstallResult) -> UninstallResult:
    """Entries for this database in the pg_cron of another one, made by cron.schedule_in_database."""
    with connect(conninfo) as connection:
        try:
            row = connection.execute(
                "select current_database(), nullif(current_setting('cron.database_name', true), '')"
            ).fetchone()
        except psycopg.errors.InsufficientPrivilege:
            kept = Kept("entries in the pg_cron of another database", "only a superuser can look for them")
            return UninstallResult(result.dropped, result.unscheduled, (*result.kept, kept))
    assert row is not None
    ours, theirs = row
    if theirs is None or theirs == ours:
        return result
    try:
        with connect(make_conninfo(conninfo, dbname=theirs)) as connection:
            if connection.execute("select to_regclass('cron.job')").fetchone() == (None,):
                return result
            jobs = tuple(row[1] for row in connection.execute(_OUR_JOBS, (ours,)))
    except (PyrunnerError, psycopg.Error) as error:
        kept = Kept(f"entries in the pg_cron of database {theirs}", one_line(str(error)))
        return UninstallResult(result.dropped, result.unscheduled, (*result.kept, kept))
    return UninstallResult(result.dropped, (*result.unscheduled, *jobs), result.kept)

"""`sql`: the whole installation as one script for psql, for a DBA who runs no Python."""

import json
from pathlib import Path

import pyrunner
from pyrunner.migrations import statements
from pyrunner.migrations.install import OLDEST_SERVER
from pyrunner.migrations.session import LOCK_KEY, resource
from pyrunner.migrations.state import version_numbers
from pyrunner.migrations.statements import quoted, terminated
from pyrunner.migrations.tree import Migration, sql_tree

__all__ = ["install_script"]


def install_script(sql_root: Path | None = None) -> str:
    """The installation as a script for psql 10 or newer; it leaves what `migrate` leaves, record included.

    It is one transaction. It installs, upgrades, or puts right, whichever the database needs; run twice it
    changes nothing the second time. It refuses what `migrate` refuses.

    Args:
        sql_root: the sql/ folder, by default the program's own.
    """
    tree = sql_tree(sql_root)
    tree.check()
    known = {name: migration.checksum for name, migration in tree.migrations.items()}
    values = {
        "@version@": pyrunner.__version__,
        "@numbers@": str(version_numbers(pyrunner.__version__)),
        "@oldest@": str(OLDEST_SERVER),
        "@key@": str(LOCK_KEY),
        "@known@": quoted(json.dumps(known, indent=4)),
        "@settings@": resource("settings.sql"),
    }
    parts = [
        _filled("head.sql", values),
        "-- 1. Roles and schemas\n",
        terminated(tree.bootstrap),
        "-- 2. The record of the installation\n\nset local role crm_owner;\n",
        resource("record.sql"),
        _filled("check.sql", values),
        "-- 3. Tables, types and indexes; migrations that the database has are passed over\n",
        *map(_guarded, tree.migrations.values()),
        "-- 4. Functions, views and triggers\n\nset local search_path = pg_catalog, pg_temp;\n",
        statements.sources(tree),
        resource("load.sql"),
        "-- 5. Privileges\n",
        terminated(tree.grants),
        resource("readers.sql"),
        "-- 6. Done\n",
        statements.completed(tree),
        f"commit;\n\\echo pyrunner {pyrunner.__version__} is installed.",
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _filled(name: str, values: dict[str, str]) -> str:
    text = resource(name)
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _guarded(migration: Migration) -> str:
    of_id, of_hash = quoted(migration.id), quoted(migration.hash)
    return f"""\
select not exists (
    select from expiration._yoyo_migration as m where m.migration_hash = {of_hash}
) as pyrunner_is_pending \\gset
\\if :pyrunner_is_pending
{statements.MIGRATION_PATH};

{terminated(migration.source)}
insert into expiration._yoyo_log (
    id, migration_hash, migration_id, operation, username, hostname, created_at_utc
)
values (
    pg_catalog.gen_random_uuid(), {of_hash}, {of_id}, 'apply', session_user,
    coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), 'local'), clock_timestamp() at time zone 'UTC'
);
insert into expiration._yoyo_migration (migration_hash, migration_id, applied_at_utc)
values ({of_hash}, {of_id}, clock_timestamp() at time zone 'UTC');
insert into expiration.migration_checksum (migration_id, checksum)
values ({of_id}, {quoted(migration.checksum)});
\\endif
"""

"""What the tests of the installation share: small SQL folders, dumps, a `migrate` in a process to kill."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pyrunner.migrations import default_sql_root
from pyrunner.postgres import embedded_binaries, local_binaries
from tests.servers import Database, need

VIEW = """
create or replace view crm.item_count as select count(*) as items from crm.item;
comment on view crm.item_count is 'Number of items.';
"""
FUNCTION = """
create or replace function crm.double(number integer) returns integer language sql immutable
return number * 2;
comment on function crm.double(integer) is 'Twice the number.';
"""
TRIGGER = """
create or replace function crm.keep_name() returns trigger language plpgsql as $$
begin
    return new;
end
$$;
comment on function crm.keep_name() is 'Trigger: does nothing.';
create or replace trigger item_keeps_name before update on crm.item
for each row execute function crm.keep_name();
comment on trigger item_keeps_name on crm.item is 'Does nothing.';
"""
ITEM = """
create table crm.item (id integer primary key, name text not null default 'a; -- b');
comment on table crm.item is 'Items; each has a name.';
"""


class SqlFolder:
    """A sql/ folder with the real bootstrap.sql and a few files; its methods can be chained."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "migrations").mkdir(parents=True)
        shutil.copy(default_sql_root() / "bootstrap.sql", root)
        (root / "functions").mkdir()
        self.grants("-- no grants\n")

    def grants(self, text: str) -> Self:
        (self.root / "grants.sql").write_text(text)
        return self

    def migration(self, name: str, text: str) -> Self:
        (self.root / "migrations" / f"{name}.sql").write_text(text)
        return self

    def file(self, name: str, text: str | None) -> Self:
        """`crm.double`: its text, or None to remove it."""
        path = self.root / "functions" / f"{name.replace('.', '/')}.sql"
        path.parent.mkdir(exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        return self

    def copy(self, root: Path) -> "SqlFolder":
        shutil.copytree(self.root, root)
        copied = SqlFolder.__new__(SqlFolder)
        copied.root = root
        return copied


def small(root: Path) -> SqlFolder:
    """One table, one function, one view, one trigger."""
    return (
        SqlFolder(root)
        .migration("0001.item", ITEM)
        .file("crm.double", FUNCTION)
        .file("crm.item_count", VIEW)
        .file("crm.keep_name", TRIGGER)
    )


def dump(db: Database, *options: str) -> str:
    """The whole schema as pg_dump writes it, owners, privileges and comments included."""
    # one that is older than the server refuses it
    candidates = [db.server.binaries, embedded_binaries(), *local_binaries()]
    found = next(
        (
            program
            for binaries in candidates
            if binaries is not None and binaries.major >= db.server.major
            if (program := binaries.program("pg_dump")) is not None
        ),
        None,
    )
    need(found, f"no pg_dump for PostgreSQL {db.server.major} on this machine")
    assert found is not None
    command: list[str | Path] = [found, "--schema-only", *options, "-d", db.dsn]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    # newer ones write a random key around the dump
    return "\n".join(
        line for line in done.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))
    )


def psql(db: Database, dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    """Runs psql on a script as somebody else than the superuser."""
    return subprocess.run(
        [db.server.psql, "-X", "-f", "-", "-d", dsn],
        input=script,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def record(db: Database) -> dict[str, Any]:
    """What the installation wrote down, times and names of machines left out."""
    queries = {
        "yoyo": "select migration_hash, migration_id from expiration._yoyo_migration order by applied_at_utc",
        "log": "select migration_hash, operation, comment from expiration._yoyo_log order by created_at_utc",
        "yoyo version": "select version from expiration._yoyo_version",
        "lock": "select * from expiration.yoyo_lock",
        "checksums": "select * from expiration.migration_checksum order by 1",
        "files": "select * from expiration.installed_file order by position",
        "objects": "select * from expiration.installed_object order by position, kind, identity",
        "installation": "select version, last_migration, checksum from expiration.installation",
    }
    return {name: db.rows(query) for name, query in queries.items()}


MIGRATE = """
import json, sys
from pathlib import Path
from pyrunner.migrations import migrate
dsn, root, stops = json.loads(sys.argv[1])

def tell(text):
    print(text, flush=True)
    if stops:
        sys.stdin.readline()

migrate(dsn, sql_root=root and Path(root), on_progress=tell, patience=60)
print("done", flush=True)
"""


@contextmanager
def migrate_process(
    db: Database, root: Path | None = None, *, stops: bool = False
) -> Iterator["subprocess.Popen[str]"]:
    """`migrate` in a process that writes its progress; with `stops` it waits for a line after each."""
    arguments = json.dumps([db.dsn, None if root is None else str(root), stops])
    with subprocess.Popen(
        [sys.executable, "-c", MIGRATE, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()

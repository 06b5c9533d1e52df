"""The installation as one script for psql."""

from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import pyrunner
from pyrunner.migrations import (
    Installed,
    check_installation,
    default_sql_root,
    install_script,
    migrate,
    uninstall,
)
from tests.installing import FUNCTION, ITEM, VIEW, SqlFolder, dump, psql, record, small
from tests.servers import Database, Server
from tests.test_migrations import MIGRATIONS


def run_script(db: Database, root: Path | None = None, *, check: bool = True) -> str:
    """Runs the script; what psql wrote to both streams."""
    done = db.psql(install_script(root), check=check)
    return done.stdout + done.stderr


def test_the_script_installs_what_migrate_installs(server: Server, bare_db: Database) -> None:
    assert run_script(bare_db) == f"pyrunner {pyrunner.__version__} is installed.\n"
    assert check_installation(bare_db.dsn).status is Installed.CURRENT
    with server.database() as migrated:
        assert dump(bare_db) == dump(migrated)
        assert record(bare_db) == record(migrated)


def test_the_script_run_twice_changes_nothing(bare_db: Database) -> None:
    run_script(bare_db)
    before, written = dump(bare_db), record(bare_db)
    assert run_script(bare_db) == f"pyrunner {pyrunner.__version__} is installed.\n"
    assert (dump(bare_db), record(bare_db)) == (before, written)


def test_migrate_goes_on_where_the_script_stopped_and_the_other_way_round(
    server: Server, bare_db: Database, tmp_path: Path
) -> None:
    folder = small(tmp_path / "sql")
    run_script(bare_db, folder.root)
    folder.migration("0002.more", "create table crm.more (id integer);").file("crm.double", None)
    result = migrate(bare_db.dsn, sql_root=folder.root)
    assert (result.applied, result.dropped) == (("0002.more",), ("function crm.double(integer)",))
    folder.migration("0003.most", "create table crm.most (id integer);").file("crm.double", FUNCTION)
    folder.file("crm.item_count", VIEW.replace("items", "things"))
    run_script(bare_db, folder.root)
    assert check_installation(bare_db.dsn, sql_root=folder.root).status is Installed.CURRENT
    assert migrate(bare_db.dsn, sql_root=folder.root).applied == ()
    with server.database(installed=False) as fresh:
        migrate(fresh.dsn, sql_root=folder.root)
        assert dump(bare_db) == dump(fresh)
        assert record(bare_db) == record(fresh)


@pytest.mark.parametrize("count", range(1, len(MIGRATIONS)))
def test_the_script_upgrades_from_the_first_migrations(
    server: Server, bare_db: Database, tmp_path: Path, count: int
) -> None:
    earlier = SqlFolder(tmp_path / "sql")
    for name in MIGRATIONS[:count]:
        earlier.migration(name, (default_sql_root() / "migrations" / f"{name}.sql").read_text())
    migrate(bare_db.dsn, sql_root=earlier.root)
    run_script(bare_db)
    with server.database() as fresh:
        assert dump(bare_db) == dump(fresh)
        assert record(bare_db) == record(fresh)


def test_the_script_puts_back_what_uninstall_took(db: Database) -> None:
    before = dump(db)
    uninstall(db.dsn)
    run_script(db)
    assert dump(db) == before


def test_the_script_restores_and_rebuilds(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    run_script(bare_db, folder.root)
    bare_db.rows(
        "create or replace function crm.double(number integer) returns integer language sql return 0"
    )
    run_script(bare_db, folder.root)
    assert bare_db.value("select crm.double(2)") == 4
    folder.file("crm.double", FUNCTION.replace("returns integer", "returns bigint")).file(
        "crm.item_count", None
    )
    run_script(bare_db, folder.root)
    assert bare_db.value("select pg_typeof(crm.double(2))::text") == "bigint"
    assert bare_db.value("select to_regclass('crm.item_count')") is None


@pytest.mark.parametrize("case", ["edited", "newer migration", "newer version", "broken"])
def test_the_script_refuses_what_migrate_refuses_and_changes_nothing(
    bare_db: Database, tmp_path: Path, case: str
) -> None:
    folder = small(tmp_path / "sql").migration("0002.more", "create table crm.more (id integer);")
    run_script(bare_db, folder.root)
    match case:
        case "edited":
            folder.migration("0001.item", ITEM + "-- one more word")
            complaint = "ERROR:  migration 0001.item was edited after it had been applied to this database"
        case "newer migration":
            (folder.root / "migrations" / "0002.more.sql").unlink()
            complaint = "newer than this script: it has migration 0002.more, which pyrunner"
        case "newer version":
            bare_db.rows(
                "insert into expiration.installation"
                " values ('0.10.0', clock_timestamp(), 'x', '0002.more', 'x')"
            )
            complaint = "newer than this script: it has version 0.10.0, and this is"
        case _:
            folder.migration("0003.most", "create table crm.most (id integer);").file(
                "crm.double", FUNCTION + "select 1/0;"
            )
            complaint = "division by zero"
    before, written = dump(bare_db), record(bare_db)
    assert complaint in run_script(bare_db, folder.root, check=False)
    assert (dump(bare_db), record(bare_db)) == (before, written)


def test_the_script_adopts_a_lock_and_migrations_of_yoyo_alone(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    run_script(bare_db, folder.root)
    bare_db.rows(
        "insert into expiration.yoyo_lock values (1, now(), 4711); delete from expiration.migration_checksum"
    )
    run_script(bare_db, folder.root)
    assert record(bare_db)["lock"] == []
    assert len(record(bare_db)["checksums"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("major", [15, 16])
def test_the_script_needs_no_superuser(private_server: Callable[..., Server], major: int) -> None:
    with private_server(major).database(installed=False) as database:
        database.rows("create role dba login password 'x' createrole")
        database.rows(sql.SQL(f"grant create on database {database.name} to dba"))
        dsn = make_conninfo(database.dsn, user="dba", password="x")
        done = psql(database, dsn, install_script())
        assert done.returncode == 0, done.stderr
        assert check_installation(dsn).status is Installed.CURRENT
        # a later version goes in over it in the same way
        assert psql(database, dsn, install_script()).returncode == 0


def test_a_script_waits_for_a_migrate_at_work(bare_db: Database) -> None:
    with bare_db.connect(autocommit=False) as holder:
        from pyrunner.migrations.session import LOCK_KEY

        holder.execute("select pg_advisory_xact_lock(%s, 1)", (LOCK_KEY,))
        script = bare_db.background(lambda _: run_script(bare_db))
        bare_db.wait_until(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and application_name = 'psql' and wait_event_type = 'Lock')"
        )
        assert check_installation(bare_db.dsn).status is Installed.ABSENT
    assert "is installed" in script.result()

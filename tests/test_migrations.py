"""`migrate`, the state of an installation, and `uninstall`."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pyrunner
from pyrunner.errors import (
    BusyError,
    CannotConnectError,
    DatabaseError,
    ExitCode,
    MissingPrivilegeError,
    NotInstalledError,
    RefusedError,
)
from pyrunner.migrations import (
    Installed,
    SqlTreeError,
    changed_objects,
    check_installation,
    default_sql_root,
    migrate,
    pending,
    require_installation,
    uninstall,
)
from pyrunner.migrations.session import LOCK_KEY
from pyrunner.migrations.tree import SourceFile, load_order, take_apart
from pyrunner.migrations.yoyo_backend import YoyoBackend
from tests.installing import FUNCTION, ITEM, TRIGGER, VIEW, SqlFolder, dump, migrate_process, record, small
from tests.servers import Connection, Database, Server, wait_until

MIGRATIONS = sorted(path.stem for path in (default_sql_root() / "migrations").glob("*.sql"))


def held_advisory_lock(db: Database, second: int) -> Connection:
    connection = db.connect()
    connection.execute("select pg_advisory_lock(%s, %s)", (LOCK_KEY, second))
    return connection


def waiting_for_lock(db: Database) -> bool:
    """Whether a session of pyrunner in this database waits for a lock."""
    return bool(
        db.value(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and application_name = 'pyrunner' and wait_event_type = 'Lock')"
        )
    )


def no_session_of_ours(db: Database) -> bool:
    return not db.value(
        "select exists (select from pg_stat_activity where datname = current_database()"
        " and application_name = 'pyrunner')"
    )


# ------------------------------------------------------------------------------------------------- installing


def test_a_fresh_database_gets_everything(bare_db: Database) -> None:
    assert check_installation(bare_db.dsn).status is Installed.ABSENT
    assert pending(bare_db.dsn) == tuple(MIGRATIONS)

    told: list[str] = []
    result = migrate(bare_db.dsn, on_progress=told.append)

    assert result.version == pyrunner.__version__
    assert result.applied == tuple(MIGRATIONS)
    assert result.dropped == ()
    assert "procedure expiration.run_job(text,timestamp with time zone)" in result.loaded
    assert "trigger event_is_append_only on outbox.event" in result.loaded
    assert told[: len(MIGRATIONS)] == [f"Applying {name}." for name in MIGRATIONS]
    state = check_installation(bare_db.dsn)
    assert (state.status, state.pending, state.version) == (Installed.CURRENT, (), pyrunner.__version__)
    assert changed_objects(bare_db.observer) == []


def test_every_file_has_made_the_object_that_it_is_named_after(db: Database) -> None:
    files = {
        ".".join(path.relative_to(default_sql_root() / "functions").with_suffix("").parts)
        for path in (default_sql_root() / "functions").glob("*/*.sql")
    }
    made = db.rows(
        "select n.nspname || '.' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " union select schemaname || '.' || viewname from pg_views"
    )
    assert files <= {name for (name,) in made}
    assert not db.rows(
        "select file from expiration.installed_file except select file from expiration.installed_object"
    )


def test_the_database_tells_the_program_s_version(db: Database) -> None:
    assert db.value("select expiration.schema_version()") == pyrunner.__version__


def test_everything_belongs_to_the_owner_role(db: Database) -> None:
    assert not db.rows(
        "select pg_describe_object(classid, objid, 0) from pg_shdepend where deptype = 'o'"
        " and dbid = (select oid from pg_database where datname = current_database())"
        " and refobjid <> 'crm_owner'::regrole"
    )


def test_installing_twice_gives_the_same_schema(bare_db: Database) -> None:
    migrate(bare_db.dsn)
    once, written = dump(bare_db), record(bare_db)
    oids = bare_db.rows("select oid from pg_proc where pronamespace = 'crm'::regnamespace order by 1")

    again = migrate(bare_db.dsn)

    assert (again.applied, again.dropped) == ((), ())
    assert dump(bare_db) == once
    assert record(bare_db) == written
    # replaced in place: a session that executes a function keeps executing it
    assert bare_db.rows("select oid from pg_proc where pronamespace = 'crm'::regnamespace order by 1") == oids


@pytest.mark.parametrize("count", range(1, len(MIGRATIONS)))
def test_upgrading_from_the_first_migrations_gives_what_a_fresh_installation_gives(
    server: Server, bare_db: Database, tmp_path: Path, count: int
) -> None:
    earlier = SqlFolder(tmp_path / "sql")
    for name in MIGRATIONS[:count]:
        earlier.migration(name, (default_sql_root() / "migrations" / f"{name}.sql").read_text())
    migrate(bare_db.dsn, sql_root=earlier.root)
    assert pending(bare_db.dsn) == tuple(MIGRATIONS[count:])
    assert check_installation(bare_db.dsn).status is Installed.OLDER

    assert migrate(bare_db.dsn).applied == tuple(MIGRATIONS[count:])

    with server.database() as fresh:
        assert dump(bare_db) == dump(fresh)
        assert record(bare_db) == record(fresh)


def test_yoyo_would_have_made_its_tables_in_the_same_way(server: Server, bare_db: Database) -> None:
    migrate(bare_db.dsn)
    columns = (
        "select table_name, column_name, ordinal_position, data_type, character_maximum_length, is_nullable,"
        " column_default from information_schema.columns where table_name like '%yoyo%' order by 1, 3"
    )
    keys = (
        "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid::regclass::text like '%yoyo%' order by 1, 2"
    )
    ours, our_keys = bare_db.rows(columns), bare_db.rows("set search_path = expiration") or bare_db.rows(keys)
    with (
        server.database(installed=False) as other,
        closing(psycopg.connect(other.dsn, autocommit=True)) as connection,
    ):

        class AsYoyoDoes(YoyoBackend):
            _internal_schema_updated = False

        yoyo = AsYoyoDoes(connection)
        yoyo.uri = type("Uri", (), {"database": other.name})()
        yoyo._in_transaction = False
        yoyo.create_lock_table()
        yoyo.get_applied_migration_hashes()
        assert other.rows(columns) == ours
        assert other.rows(keys) == our_keys
        assert other.rows("select version from _yoyo_version") == bare_db.rows(
            "select version from _yoyo_version"
        )


def test_migrations_that_yoyo_alone_applied_are_taken_as_they_are(bare_db: Database) -> None:
    migrate(bare_db.dsn)
    bare_db.rows("delete from expiration.migration_checksum")
    assert migrate(bare_db.dsn).applied == ()
    assert check_installation(bare_db.dsn).status is Installed.CURRENT
    assert bare_db.value("select count(*) from expiration.migration_checksum") == len(MIGRATIONS)


def test_the_connection_may_come_from_the_environment(
    bare_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in conninfo_to_dict(bare_db.dsn).items():
        variable = {"dbname": "PGDATABASE", "hostaddr": "PGHOSTADDR"}.get(name, f"PG{name.upper()}")
        monkeypatch.setenv(variable, str(value))
    assert migrate("").applied == tuple(MIGRATIONS)


@pytest.mark.requirement("X5")
def test_settings_of_role_and_database_do_not_matter(server: Server, bare_db: Database) -> None:
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "standard_conforming_strings = off",
        "statement_timeout = '100ms'",
        "lock_timeout = '100ms'",
        "idle_in_transaction_session_timeout = '100ms'",
        "check_function_bodies = off",
        "search_path = 'crm', 'public'",
        "intervalstyle = 'sql_standard'",
        "datestyle = 'German'",
        "client_min_messages = 'debug1'",
    ):
        with server.maintenance() as connection:
            connection.execute(f"alter database {bare_db.name} set {setting}")
    migrate(bare_db.dsn)
    migrate(bare_db.dsn)
    with server.maintenance() as connection:
        connection.execute(f"alter database {bare_db.name} reset all")
    with server.database() as fresh:
        assert dump(bare_db) == dump(fresh)


# ---------------------------------------------------------------------------------------- functions and views


def test_a_function_edited_by_hand_is_restored(bare_db: Database) -> None:
    migrate(bare_db.dsn)
    before = dump(bare_db)
    bare_db.rows(
        "create or replace function outbox.utc(instant timestamptz) returns text language sql return 'never';"
        "do $$ begin execute format("
        "'create or replace view outbox.partition as select * from (%s) as p where false',"
        " rtrim(pg_get_viewdef('outbox.partition'::regclass), ';')); end $$;"
        "alter table outbox.event disable trigger event_is_append_only;"
        "drop function outbox.traceparent(uuid, integer)"
    )
    assert changed_objects(bare_db.observer) == [
        "function outbox.traceparent(uuid,integer)",
        "function outbox.utc(timestamp with time zone)",
        "trigger event_is_append_only on outbox.event",
        "view outbox.partition",
    ]
    migrate(bare_db.dsn)
    assert changed_objects(bare_db.observer) == []
    assert dump(bare_db) == before


def test_what_no_file_makes_any_more_is_dropped(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    for name in ("crm.item_count", "crm.double", "crm.keep_name"):
        folder.file(name, None)
    folder.file("crm.treble", FUNCTION.replace("double", "treble"))

    result = migrate(bare_db.dsn, sql_root=folder.root)

    assert sorted(result.dropped) == [
        "function crm.double(integer)",
        "function crm.keep_name()",
        "trigger item_keeps_name on crm.item",
        "view crm.item_count",
    ]
    assert bare_db.rows("select proname from pg_proc where pronamespace = 'crm'::regnamespace") == [
        ("treble",)
    ]
    assert bare_db.value("select to_regclass('crm.item_count')") is None


def test_a_stale_object_that_is_gone_already_is_forgotten(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    bare_db.rows("drop function crm.double(integer)")
    folder.file("crm.double", None)
    assert migrate(bare_db.dsn, sql_root=folder.root).dropped == ("function crm.double(integer)",)


def test_other_people_s_objects_in_our_schemas_are_kept(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    bare_db.rows(
        "create function crm.theirs() returns integer language sql return 1;"
        "create function crm.double(number text) returns text language sql return number || number;"
        "create view expiration.theirs as select 1 as one;"
        "set role crm_owner; create function crm.quick_fix() returns integer language sql return 2;"
        "reset role"
    )
    folder.file("crm.double", None).file("crm.item_count", VIEW.replace("items", "things"))
    migrate(bare_db.dsn, sql_root=folder.root)
    assert bare_db.rows(
        "select crm.theirs(), crm.double('ab'), one, crm.quick_fix() from expiration.theirs"
    ) == [(1, "abab", 1, 2)]


def test_another_return_type_and_other_columns_are_installed(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql").file(
        "crm.doubled", "create or replace view crm.doubled as select crm.double(id) as number from crm.item;"
    )
    folder.file(
        "crm.doubled_count",
        "create or replace view crm.doubled_count as select count(number) as n from crm.doubled;",
    )
    migrate(bare_db.dsn, sql_root=folder.root)
    (keeper,) = bare_db.rows("select oid from pg_proc where proname = 'keep_name'")

    folder.file("crm.item_count", VIEW.replace("items", "things"))
    migrate(bare_db.dsn, sql_root=folder.root)
    assert bare_db.rows("select things from crm.item_count") == [(0,)]
    # what had nothing to do with it was replaced in place
    assert bare_db.rows("select oid from pg_proc where proname = 'keep_name'") == [keeper]

    # a view needs the function, and another view that view
    folder.file("crm.double", FUNCTION.replace("returns integer", "returns bigint"))
    migrate(bare_db.dsn, sql_root=folder.root)
    assert bare_db.value("select pg_typeof(crm.double(2))::text") == "bigint"
    assert (
        bare_db.value(
            "select format_type(atttypid, -1) from pg_attribute"
            " where attrelid = 'crm.doubled'::regclass and attnum = 1"
        )
        == "bigint"
    )
    fresh = small(tmp_path / "fresh")
    assert fresh.root != folder.root
    with bare_db.server.database(installed=False) as other:
        migrate(other.dsn, sql_root=folder.root)
        assert dump(other) == dump(bare_db)


def test_other_arguments_leave_no_second_function(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql").file(
        "crm.doubled", "create or replace view crm.doubled as select crm.double(id) as number from crm.item;"
    )
    migrate(bare_db.dsn, sql_root=folder.root)
    folder.file(
        "crm.double",
        FUNCTION.replace("number integer", "number integer, more integer default 0").replace(
            "(integer)", "(integer, integer)"
        ),
    )
    result = migrate(bare_db.dsn, sql_root=folder.root)
    assert result.dropped == ("function crm.double(integer)",)
    assert bare_db.rows("select oid::regprocedure::text from pg_proc where proname = 'double'") == [
        ("crm.double(integer,integer)",)
    ]


def test_a_function_may_become_a_procedure_and_a_view_a_function(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    folder.file(
        "crm.double",
        "create or replace procedure crm.double(number integer) language plpgsql as 'begin end';",
    )
    folder.file(
        "crm.item_count",
        "create or replace function crm.item_count() returns bigint language sql stable"
        " return (select count(*) from crm.item);",
    )
    result = migrate(bare_db.dsn, sql_root=folder.root)
    assert sorted(result.dropped) == ["function crm.double(integer)", "view crm.item_count"]
    assert bare_db.value("select crm.item_count()") == 0


def test_what_others_were_granted_survives_a_rebuild(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    bare_db.rows(
        "grant select on crm.item_count to pg_monitor; grant execute on function crm.double to pg_monitor"
    )
    folder.file("crm.item_count", VIEW.replace("items", "things"))
    folder.file("crm.double", FUNCTION.replace("returns integer", "returns bigint"))
    migrate(bare_db.dsn, sql_root=folder.root)
    assert bare_db.rows(
        "select has_table_privilege('pg_monitor', 'crm.item_count', 'select'),"
        " has_function_privilege('pg_monitor', 'crm.double(integer)', 'execute')"
    ) == [(True, True)]


def test_a_view_of_somebody_else_that_depends_on_ours_is_named(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    bare_db.rows("create view public.report as select items from crm.item_count")
    before = dump(bare_db)
    # columns may be added at the end without it
    folder.file("crm.item_count", VIEW.replace("as items", "as items, 1 as one"))
    migrate(bare_db.dsn, sql_root=folder.root)
    folder.file("crm.item_count", VIEW.replace("items", "things")).file(
        "crm.double", FUNCTION.replace("* 2", "* 3")
    )

    with pytest.raises(DatabaseError) as caught:
        migrate(bare_db.dsn, sql_root=folder.root)

    assert "view crm.item_count" in str(caught.value)
    assert "view public.report depends on view crm.item_count" in str(caught.value)
    assert caught.value.hint == "Drop what depends on it, install again, and make it anew."
    assert bare_db.value("select crm.double(2)") == 4
    assert dump(bare_db) != before


def test_a_stale_view_that_somebody_else_uses_is_named(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    bare_db.rows("create view public.report as select items from crm.item_count")
    before = dump(bare_db)
    folder.file("crm.item_count", None)
    with pytest.raises(DatabaseError, match=r"view public\.report depends on view crm\.item_count"):
        migrate(bare_db.dsn, sql_root=folder.root)
    assert dump(bare_db) == before


def test_a_view_shows_columns_that_a_migration_added(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql").file(
        "crm.items", "create or replace view crm.items as select * from crm.item;"
    )
    migrate(bare_db.dsn, sql_root=folder.root)
    folder.migration("0002.colour", "alter table crm.item add column colour text;")
    migrate(bare_db.dsn, sql_root=folder.root)
    assert bare_db.rows("select colour from crm.items") == []


def test_names_without_a_schema_are_not_looked_up_on_anybody_s_search_path(
    bare_db: Database, tmp_path: Path
) -> None:
    folder = small(tmp_path / "sql").file(
        "crm.items", "create or replace view crm.items as select id from item;"
    )
    with pytest.raises(DatabaseError, match=r'crm/items.sql, line 1: relation "item" does not exist'):
        migrate(f"{bare_db.dsn} options='-c search_path=crm'", sql_root=folder.root)


def test_an_error_in_a_file_names_file_and_line_and_changes_nothing(
    bare_db: Database, tmp_path: Path
) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    before = dump(bare_db)
    folder.file("crm.double", FUNCTION.replace("* 2", "* 2 * nothing"))
    with pytest.raises(
        DatabaseError,
        match=r'loading sql/functions/crm/double.sql, line 3: column "nothing" does not exist\.$',
    ):
        migrate(bare_db.dsn, sql_root=folder.root)
    assert dump(bare_db) == before
    folder.file("crm.double", FUNCTION).grants("grant select on crm.nothing to crm_app")
    with pytest.raises(DatabaseError, match=r'relation "crm.nothing" does not exist'):
        migrate(bare_db.dsn, sql_root=folder.root)
    assert dump(bare_db) == before


# ------------------------------------------------------------------------------------------------------ order


def function(name: str, body: str = "", *, language: str = "plpgsql", head: str = "") -> SourceFile:
    body = (
        f"$function$ begin perform {body or '1'}; end $function$"
        if language == "plpgsql"
        else f"$$ select {body} $$"
    )
    return SourceFile(
        f"{name.replace('.', '/')}.sql",
        f"create or replace function {name}({head}) returns void language {language} as {body};",
    )


def view(name: str, query: str) -> SourceFile:
    return SourceFile(f"{name.replace('.', '/')}.sql", f"create or replace view {name} as {query};")


def names(sources: list[SourceFile]) -> list[str]:
    return [source.name for source in sources]


def test_the_order_is_found_whatever_the_names_are() -> None:
    sources = [
        view("crm.a", "select * from crm.b join lateral outbox.z() on true"),
        view("crm.b", "select expiration.c() as c"),
        function("expiration.c", "outbox.z()", language="sql"),
        function("outbox.z"),
    ]
    for shuffled in itertools.permutations(sources):
        assert names(load_order(shuffled)) == ["outbox.z", "expiration.c", "crm.b", "crm.a"]


def test_plpgsql_functions_may_call_each_other_in_a_circle() -> None:
    sources = [function("crm.a", "crm.b()"), function("crm.b", "crm.c()"), function("crm.c", "crm.a()")]
    assert sorted(names(load_order(sources))) == ["crm.a", "crm.b", "crm.c"]
    # the view needs one of them at once
    assert names(load_order([view("crm.v", "select crm.a()"), *sources]))[-1] == "crm.v"


def test_a_circle_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(
        SqlTreeError, match=r"in a circle: crm\.(a -> crm\.b -> crm\.a|b -> crm\.a -> crm\.b)\.$"
    ):
        load_order(
            [view("crm.a", "select * from crm.b"), view("crm.b", "select * from crm.a"), function("crm.c")]
        )


def test_comments_and_literals_bind_nothing_and_defaults_do() -> None:
    source = function(
        "crm.f",
        "'crm.literal' -- crm.comment\n /* crm.outer /* crm.inner */ crm.outer */",
        head="number integer default crm.needed('it''s crm.literal')",
    )
    assert source.needs == {"crm.needed"}
    assert source.mentions == {"crm.literal"}
    assert function("crm.f", "crm.called()").mentions == {"crm.called"}
    assert function("crm.f", "crm.called()", language="sql").needs == {"crm.called"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a -- b\nc", "a     \nc"),
        ("a /* /* b */ */ c", "a               c"),
        ("a 'b -- c' d", "a          d"),
        (r"a e'\'b' d", "a        d"),
        ("a '''b' d", "a       d"),
        ("a $$ b $x$ c $$ d", "a               d"),
        ("a $x$ $$ $x$ d", "a            d"),
        ('a "--" d', 'a "--" d'),
        ("a $1 b$c $2", "a $1 b$c $2"),
        ("a /* b", "a     "),
    ],
)
def test_code_is_told_from_comments_literals_and_bodies(text: str, code: str) -> None:
    assert take_apart(text).text == code


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("crm.other", FUNCTION, "makes no crm.other"),
        ("elsewhere.double", FUNCTION, "is out of place"),
        ("crm.keep_name", TRIGGER + FUNCTION, "after a trigger"),
    ],
)
def test_a_misplaced_file_is_refused(
    bare_db: Database, tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    folder = small(tmp_path / "sql").file(name, text)
    with pytest.raises(SqlTreeError, match=complaint):
        migrate(bare_db.dsn, sql_root=folder.root)
    assert check_installation(bare_db.dsn).status is Installed.ABSENT


def test_a_folder_without_sql_is_refused(bare_db: Database, tmp_path: Path) -> None:
    with pytest.raises(SqlTreeError, match=r"bootstrap\.sql cannot be read: No such file or directory"):
        migrate(bare_db.dsn, sql_root=tmp_path)


# --------------------------------------------------------------------------------------------------- refusals


def test_an_edited_migration_is_refused(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    before, written = dump(bare_db), record(bare_db)
    folder.migration("0001.item", ITEM + "-- one more word\n").migration(
        "0002.more", "create table crm.more (id integer);"
    )
    assert check_installation(bare_db.dsn, sql_root=folder.root).status is Installed.EDITED

    with pytest.raises(
        RefusedError, match=r"^Migration 0001\.item was edited after it had been applied to this database\.$"
    ):
        migrate(bare_db.dsn, sql_root=folder.root)

    assert (dump(bare_db), record(bare_db)) == (before, written)


def test_a_newer_database_is_refused(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql").migration("0002.more", "create table crm.more (id integer);")
    migrate(bare_db.dsn, sql_root=folder.root)
    before = dump(bare_db)
    (folder.root / "migrations" / "0002.more.sql").unlink()
    with pytest.raises(RefusedError, match=r"newer than this program: it has migration 0002\.more"):
        migrate(bare_db.dsn, sql_root=folder.root)
    assert dump(bare_db) == before


def test_a_newer_version_without_a_new_migration_is_refused(bare_db: Database) -> None:
    migrate(bare_db.dsn)
    bare_db.rows(
        "insert into expiration.installation"
        " select '0.10.0', clock_timestamp(), 'x', last_migration, checksum"
        " from expiration.installation"
    )
    state = check_installation(bare_db.dsn)
    assert (state.status, state.version) == (Installed.NEWER, "0.10.0")
    with pytest.raises(RefusedError, match=r"it has version 0\.10\.0, which pyrunner .* does not know"):
        migrate(bare_db.dsn)
    with pytest.raises(NotInstalledError, match=r"it has version 0\.10\.0"):
        require_installation(bare_db.dsn)


def test_a_migration_outside_a_transaction_is_refused(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql").migration(
        "0002.index", "-- transactional: false\ncreate index concurrently i on crm.item (name);"
    )
    with pytest.raises(SqlTreeError, match=r"0002\.index\.sql is not SQL that runs in a transaction"):
        migrate(bare_db.dsn, sql_root=folder.root)


def test_a_failing_migration_leaves_those_before_it(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql").migration(
        "0002.broken", "create table crm.half (id integer);\nselect 1 as printed_by_yoyo;\nselect 1 / 0;"
    )
    with pytest.raises(DatabaseError, match=r"^While applying 0002\.broken: division by zero\.$"):
        migrate(bare_db.dsn, sql_root=folder.root)
    assert bare_db.value("select to_regclass('crm.half')") is None
    assert bare_db.value("select count(*) from expiration.yoyo_lock") == 0
    state = check_installation(bare_db.dsn, sql_root=folder.root)
    assert (state.status, state.applied, state.pending) == (
        Installed.PARTIAL,
        ("0001.item",),
        ("0002.broken",),
    )
    folder.migration("0002.broken", "create table crm.half (id integer);")
    assert migrate(bare_db.dsn, sql_root=folder.root).applied == ("0002.broken",)


def test_nothing_is_printed(bare_db: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = small(tmp_path / "sql").migration("0002.rows", "select 1 as printed_by_yoyo;")
    migrate(bare_db.dsn, sql_root=folder.root)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("conninfo", "sentence"),
    [
        (
            "host=127.0.0.1 port=1 connect_timeout=2",
            "The server cannot be reached: .*port 1 failed: Connection refused",
        ),
        ("postgresql//u:topsecret@host/db", r"^The connection string cannot be understood\.$"),
        ("service=there_is_no_such_service", "there_is_no_such_service"),
    ],
)
def test_a_server_that_cannot_be_reached_is_one_sentence(conninfo: str, sentence: str) -> None:
    with pytest.raises(CannotConnectError, match=sentence) as caught:
        migrate(conninfo)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "topsecret" not in f"{caught.value} {caught.value.hint}"
    assert "\n" not in str(caught.value)


def test_a_database_that_does_not_exist_is_named(server: Server) -> None:
    with pytest.raises(CannotConnectError, match='database "there_is_none" does not exist'):
        migrate(server.superuser_dsn("there_is_none"))


def test_a_stale_lock_of_yoyo_is_removed_and_said(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    bare_db.rows("insert into expiration.yoyo_lock values (1, now(), 4711)")
    told: list[str] = []
    migrate(bare_db.dsn, sql_root=folder.root, on_progress=told.append)
    assert "Removed the lock that process 4711 had left when it was killed." in told
    assert bare_db.value("select count(*) from expiration.yoyo_lock") == 0


# ------------------------------------------------------------------------------------------------ concurrency


def test_two_migrates_at_once_do_it_one_after_the_other(server: Server, bare_db: Database) -> None:
    start = threading.Barrier(2)
    told: list[list[str]] = [[], []]

    def one(number: int) -> tuple[str, ...]:
        start.wait(timeout=30)
        return migrate(bare_db.dsn, on_progress=told[number].append).applied

    applied = bare_db.sessions(2, lambda _, number: one(number))
    assert sorted(applied) == [(), tuple(MIGRATIONS)]
    assert sum("waiting for its end" in text for text in itertools.chain(*told)) <= 1
    with server.database() as fresh:
        assert dump(bare_db) == dump(fresh)
        assert record(bare_db) == record(fresh)


def test_a_second_migrate_waits_for_the_first_and_says_so(bare_db: Database) -> None:
    holder = held_advisory_lock(bare_db, 1)
    told: list[str] = []
    waiting = bare_db.background(lambda _: migrate(bare_db.dsn, on_progress=told.append))
    wait_until(lambda: waiting_for_lock(bare_db), what="the second migrate waits")
    assert told == ["Another installation is at work in this database: waiting for its end."]
    assert check_installation(bare_db.dsn).status is Installed.ABSENT
    holder.close()
    assert waiting.result().applied == tuple(MIGRATIONS)


def test_locks_of_others_are_waited_for_in_short_turns(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    folder.migration("0002.colour", "alter table crm.item add column colour text;")
    manager = bare_db.connect(autocommit=False, application_name="manager")
    manager.execute("insert into crm.item values (1)")
    told: list[str] = []
    waiting = bare_db.background(
        lambda _: migrate(bare_db.dsn, sql_root=folder.root, on_progress=told.append)
    )
    said = f"Waiting while applying 0002.colour: session {manager.info.backend_pid} "
    wait_until(
        lambda: any(text.startswith(said) for text in told), what=lambda: f"it says whom it waits for: {told}"
    )
    (text,) = (text for text in told if text.startswith(said))
    assert (
        text.endswith("application manager, idle in transaction) holds a lock on crm.item.")
        or "manager" in text
    )

    # whoever comes after us in the queue is not kept for longer than our lock timeout
    reader = bare_db.connect(options="-c statement_timeout=20s")
    for _ in range(3):
        wait_until(lambda: waiting_for_lock(bare_db), what="migrate waits again")
        assert reader.execute("select count(*) from crm.item").fetchone() == (0,)
    manager.commit()
    assert waiting.result().applied == ("0002.colour",)


def test_a_lock_that_is_never_given_back_ends_in_one_sentence(bare_db: Database, tmp_path: Path) -> None:
    folder = small(tmp_path / "sql")
    migrate(bare_db.dsn, sql_root=folder.root)
    folder.migration("0002.colour", "alter table crm.item add column colour text;")
    manager = bare_db.connect(autocommit=False)
    manager.execute("insert into crm.item values (1)")
    with pytest.raises(
        BusyError,
        match=rf"^Gave up applying 0002\.colour: session {manager.info.backend_pid} "
        r".* holds a lock on crm\.item\.$",
    ) as caught:
        migrate(bare_db.dsn, sql_root=folder.root, patience=0)
    assert caught.value.exit_code is ExitCode.BUSY
    manager.rollback()
    assert migrate(bare_db.dsn, sql_root=folder.root).applied == ("0002.colour",)


def test_nothing_to_do_needs_no_lock_on_any_table_or_view(bare_db: Database) -> None:
    migrate(bare_db.dsn)
    holder = bare_db.connect(autocommit=False)
    for schema, name in bare_db.rows(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname in ('crm', 'outbox') and c.relkind in ('r', 'p')"
        " or n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')"
        " and c.relkind = 'v'"
    ):
        # a dump locks everything in this mode; writers hold what a trigger's replacement would wait for
        mode = (
            "row exclusive"
            if not bare_db.value(
                "select relkind = 'v' from pg_class where oid = %s::regclass", (f"{schema}.{name}",)
            )
            else "access share"
        )
        holder.execute(
            sql.SQL("lock table {} in {} mode").format(sql.Identifier(schema, name), sql.SQL(mode))
        )
    migrate(bare_db.dsn, patience=0)
    holder.rollback()


@pytest.mark.slow
def test_sessions_that_execute_functions_all_the_time_notice_nothing(bare_db: Database) -> None:
    migrate(bare_db.dsn)
    over = threading.Event()

    def work(connection: Connection, number: int) -> int:
        if number == 0:
            try:
                for _ in range(3):
                    migrate(bare_db.dsn)
                    bare_db.rows(
                        "create or replace function outbox.utc(instant timestamptz) returns text"
                        " language sql return 'x'"
                    )
                    bare_db.rows("drop view expiration.history")
                migrate(bare_db.dsn)
            finally:
                over.set()
            return 0
        calls = 0
        while not over.is_set():
            connection.execute("call expiration.run_job('lead-expiration')")
            connection.execute("select * from crm.expire_leads_batch()")
            connection.execute("select * from expiration.status")
            calls += 1
        return calls

    _, first, second = bare_db.sessions(3, work)
    assert first > 0
    assert second > 0


# -------------------------------------------------------------------------------------------- killed half way


@pytest.fixture
def upgrade(tmp_path: Path) -> tuple[SqlFolder, SqlFolder]:
    """An installation and its successor, with two more migrations, a changed view and a removed function."""
    old = small(tmp_path / "old")
    new = (
        old.copy(tmp_path / "new")
        .migration("0002.colour", "alter table crm.item add column colour text;")
        .migration("0003.more", "create table crm.more (id integer);")
        .file("crm.item_count", VIEW.replace("items", "things"))
        .file("crm.double", None)
    )
    return old, new


def finish(server: Server, db: Database, root: Path | None) -> None:
    """The next migrate brings the database to what a fresh installation gives."""
    wait_until(lambda: no_session_of_ours(db), what="the server has noticed the death of the killed one")
    migrate(db.dsn, sql_root=root)
    assert check_installation(db.dsn, sql_root=root).status is Installed.CURRENT
    with server.database(installed=root is None) as fresh:
        if root is not None:
            migrate(fresh.dsn, sql_root=root)
        assert dump(db) == dump(fresh)
        assert record(db) == record(fresh)


@pytest.mark.parametrize("stop", [*(f"Applying {name}." for name in MIGRATIONS), "Loading "])
def test_a_migrate_killed_between_steps_is_finished_by_the_next(
    server: Server, bare_db: Database, stop: str
) -> None:
    with migrate_process(bare_db, stops=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        for line in process.stdout:
            if line.startswith(stop):
                break
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            pytest.fail(f"never said {stop}")
        process.kill()
    assert check_installation(bare_db.dsn).status is Installed.PARTIAL
    finish(server, bare_db, None)


@pytest.mark.parametrize(
    ("hold", "status"),
    [
        ("create schema outbox", Installed.ABSENT),
        (f"select pg_advisory_xact_lock({LOCK_KEY}, 1)", Installed.ABSENT),
        (f"select pg_advisory_xact_lock({LOCK_KEY}, 2)", Installed.ABSENT),
    ],
)
def test_a_first_migrate_killed_while_it_waits_is_finished_by_the_next(
    server: Server, bare_db: Database, hold: str, status: Installed
) -> None:
    holder = bare_db.connect(autocommit=False)
    holder.execute(hold)
    with migrate_process(bare_db) as process:
        wait_until(lambda: waiting_for_lock(bare_db), what="migrate waits")
        process.kill()
    holder.rollback()
    assert check_installation(bare_db.dsn).status is status
    finish(server, bare_db, None)


@pytest.mark.parametrize(
    ("held", "applied"),
    [("crm.item", ("0001.item",)), ("crm.item_count", ("0001.item", "0002.colour", "0003.more"))],
)
def test_an_upgrade_killed_while_it_waits_is_finished_by_the_next(
    server: Server,
    bare_db: Database,
    upgrade: tuple[SqlFolder, SqlFolder],
    held: str,
    applied: tuple[str, ...],
) -> None:
    old, new = upgrade
    migrate(bare_db.dsn, sql_root=old.root)
    holder = bare_db.connect(autocommit=False)
    # the view's own lock alone: the table is read without one
    holder.execute(
        f"lock table {held} in access share mode"
        if held == "crm.item"
        else f"comment on view {held} is 'held'"
    )
    with migrate_process(bare_db, new.root) as process:
        wait_until(lambda: waiting_for_lock(bare_db), what="migrate waits")
        process.kill()
    holder.rollback()
    wait_until(lambda: no_session_of_ours(bare_db), what="the server has noticed the death of the killed one")
    state = check_installation(bare_db.dsn, sql_root=new.root)
    assert state.applied == applied
    assert state.status is (Installed.OLDER if held == "crm.item" else Installed.PARTIAL)
    assert bare_db.value("select count(*) from expiration.yoyo_lock") == 1 if held == "crm.item" else True
    finish(server, bare_db, new.root)


def test_what_a_killed_migrate_had_sent_off_does_not_meet_the_next(
    server: Server, bare_db: Database, upgrade: tuple[SqlFolder, SqlFolder]
) -> None:
    """The killed one's backend is still at work when the next begins: that waits for it."""
    old, new = upgrade
    migrate(bare_db.dsn, sql_root=old.root)
    backend = held_advisory_lock(bare_db, 2)
    told: list[str] = []
    waiting = bare_db.background(lambda _: migrate(bare_db.dsn, sql_root=new.root, on_progress=told.append))
    said = f"Waiting while making roles and schemas: session {backend.info.backend_pid} "
    wait_until(
        lambda: any(text.startswith(said) for text in told), what=lambda: f"it says whom it waits for: {told}"
    )
    backend.close()
    assert waiting.result().applied == ("0002.colour", "0003.more")


def test_a_lost_connection_is_one_sentence_and_the_next_migrate_goes_on(
    server: Server, bare_db: Database, upgrade: tuple[SqlFolder, SqlFolder]
) -> None:
    old, new = upgrade
    migrate(bare_db.dsn, sql_root=old.root)
    holder = bare_db.connect(autocommit=False)
    holder.execute("lock table crm.item in access share mode")
    waiting = bare_db.background(lambda _: migrate(bare_db.dsn, sql_root=new.root))
    wait_until(lambda: waiting_for_lock(bare_db), what="migrate waits")
    bare_db.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and application_name = 'pyrunner' and wait_event_type = 'Lock'"
    )
    with pytest.raises(
        CannotConnectError,
        match=r"^While applying 0002\.colour: terminating connection due to administrator command\.$",
    ):
        waiting.result()
    holder.rollback()
    finish(server, bare_db, new.root)


# ------------------------------------------------------------------------------------------------- privileges


@pytest.fixture
def dba(private_server: Callable[..., Server]) -> Iterator[Callable[..., tuple[Database, str]]]:
    """`dba("createrole", major=15)`: an empty database of a new server, the DSN of a role there."""
    with ExitStack() as stack:

        def make(
            attributes: str = "createrole", *, major: int | None = None, create: bool = True
        ) -> tuple[Database, str]:
            database = stack.enter_context(private_server(major).database(installed=False))
            database.rows(sql.SQL("create role \"our DBA\" login password 'x' " + attributes))
            if create:
                database.rows(sql.SQL(f'grant create on database {database.name} to "our DBA"'))
            return database, make_conninfo(database.dsn, user="our DBA", password="x")

        yield make


@pytest.mark.slow
@pytest.mark.parametrize("major", [15, 16])
def test_createrole_and_create_on_the_database_are_enough(
    dba: Callable[..., tuple[Database, str]], major: int
) -> None:
    database, dsn = dba(major=major)
    told: list[str] = []
    migrate(dsn, on_progress=told.append)
    assert check_installation(dsn).status is Installed.CURRENT
    assert migrate(dsn).applied == ()
    assert not database.rows(
        "select relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications')"
        " and relowner <> 'crm_owner'::regrole"
    )
    result = uninstall(dsn, drop_data=True)
    assert check_installation(dsn).status is Installed.ABSENT
    assert [name for name in result.dropped if name.startswith("role")] == [
        "role crm_notifications", "role crm_chessboard", "role crm_app", "role crm_monitor",
        "role crm_operator", "role crm_runner", "role crm_owner",
    ]  # fmt: skip


def test_a_missing_privilege_is_named(dba: Callable[..., tuple[Database, str]]) -> None:
    database, dsn = dba("nocreaterole", create=False)
    with pytest.raises(
        MissingPrivilegeError, match=r"^our DBA lacks CREATEROLE, .* crm_owner, crm_runner"
    ) as caught:
        migrate(dsn)
    assert caught.value.hint == 'As a superuser: alter role "our DBA" createrole;'
    assert caught.value.exit_code is ExitCode.NO_PRIVILEGE
    database.rows('alter role "our DBA" createrole')
    with pytest.raises(MissingPrivilegeError, match=r"^our DBA lacks CREATE on database") as caught:
        migrate(dsn)
    assert (
        caught.value.hint
        == f'As the database\'s owner: grant create on database {database.name} to "our DBA";'
    )
    assert check_installation(dsn).status is Installed.ABSENT
    database.rows(caught.value.hint.partition(": ")[2])
    migrate(dsn)
    # whoever is no member of the owner neither sees nor removes it
    database.rows("create role stranger login password 'x'")
    stranger = make_conninfo(dsn, user="stranger")
    with pytest.raises(
        MissingPrivilegeError, match=r"^stranger may not read what is installed in this database\.$"
    ):
        check_installation(stranger)
    with pytest.raises(MissingPrivilegeError, match="stranger may not act as crm_owner"):
        uninstall(stranger)


def test_a_schema_of_somebody_else_is_named(dba: Callable[..., tuple[Database, str]]) -> None:
    database, dsn = dba()
    database.rows("create role team; create schema crm authorization team")
    with pytest.raises(
        MissingPrivilegeError,
        match=r"^Schema crm belongs to team, and our DBA cannot let crm_owner work in it\.$",
    ) as caught:
        migrate(dsn)
    assert database.value("select count(*) from pg_roles where rolname like 'crm%'") == 0
    assert caught.value.hint is not None
    database.rows(sql.SQL(caught.value.hint.removeprefix("As team: ")))
    migrate(dsn)
    kept = [(kept.what, kept.why) for kept in uninstall(dsn, drop_data=True).kept]
    assert ("schema crm", "it belongs to team") in kept
    assert database.value("select count(*) from crm.leads") == 0


@pytest.mark.slow
def test_a_member_of_the_owner_may_upgrade(dba: Callable[..., tuple[Database, str]]) -> None:
    database, dsn = dba()
    migrate(dsn)
    database.rows("create role deputy login password 'x' in role crm_owner")
    database.rows(sql.SQL(f"grant create on database {database.name} to deputy"))
    migrate(make_conninfo(dsn, user="deputy"))
    assert check_installation(dsn).status is Installed.CURRENT


@pytest.mark.slow
def test_databases_of_a_new_server_can_be_installed_at_once(private_server: Callable[..., Server]) -> None:
    server = private_server()
    with ExitStack() as stack:
        every = [stack.enter_context(server.database(installed=False)) for _ in range(3)]
        applied = every[0].sessions(3, lambda _, number: migrate(every[number].dsn).applied)
        assert applied == [tuple(MIGRATIONS)] * 3
        assert len({dump(database) for database in every}) == 1


@pytest.mark.slow
def test_roles_and_grants_that_another_database_makes_at_this_moment_are_waited_for(
    dba: Callable[..., tuple[Database, str]],
) -> None:
    database, dsn = dba()
    elsewhere = database.connect(autocommit=False)
    elsewhere.execute("create role crm_owner nologin")
    waiting = database.background(lambda _: migrate(dsn))
    wait_until(lambda: waiting_for_lock(database), what="migrate waits for the role")
    elsewhere.commit()
    assert waiting.result().applied == tuple(MIGRATIONS)

    database.rows('revoke crm_owner from "our DBA"')
    elsewhere.execute('grant crm_owner to "our DBA"')
    waiting = database.background(lambda _: migrate(dsn))
    wait_until(lambda: waiting_for_lock(database), what="migrate waits for the grant")
    elsewhere.commit()
    assert waiting.result().applied == ()


def test_each_command_s_role_may_read_what_is_installed(db: Database) -> None:
    for role in ("crm_monitor", "crm_runner", "crm_operator"):
        assert require_installation(db.role_dsn(role)).status is Installed.CURRENT
        assert changed_objects(db.connect(role)) == []


# ----------------------------------------------------------------------------------------------- uninstalling


def rows_of(db: Database) -> dict[str, int]:
    return {
        table: db.value(sql.SQL("select count(*) from {}").format(sql.SQL(table)))
        for table in ("crm.leads", "crm.audit_log", "outbox.event", "expiration.run", "expiration.job")
    }


@pytest.fixture
def used_db(db: Database) -> Database:
    """A database with an expired lead and what goes with it."""
    db.rows(
        "insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)"
        " values (gen_random_uuid(), gen_random_uuid(), now() - interval '1 day')"
    )
    db.rows("call expiration.run_job('lead-expiration')")
    return db


def test_uninstalling_keeps_the_data_unless_asked_and_a_migrate_puts_the_rest_back(used_db: Database) -> None:
    before, rows = dump(used_db), rows_of(used_db)
    assert rows["outbox.event"] == 1

    result = uninstall(used_db.dsn)

    assert rows_of(used_db) == rows
    assert used_db.value("select count(*) from pg_trigger where tgrelid = 'outbox.event'::regclass") == 0
    assert (
        used_db.value(
            "select count(*) from pg_proc where pronamespace in ('crm'::regnamespace, 'outbox'::regnamespace)"
        )
        == 0
    )
    assert {("schema crm", "its tables hold data"), ("schema outbox", "its tables hold data")} <= {
        (kept.what, kept.why) for kept in result.kept
    }
    assert "view crm.effective_leads" in result.dropped
    assert check_installation(used_db.dsn).status is Installed.PARTIAL

    assert migrate(used_db.dsn).applied == ()
    assert dump(used_db) == before
    assert rows_of(used_db) == rows


def test_uninstalling_with_the_data_leaves_nothing_and_a_migrate_installs_afresh(used_db: Database) -> None:
    before = dump(used_db)
    result = uninstall(used_db.dsn, drop_data=True)
    assert {"schema crm", "schema outbox", "schema expiration"} <= set(result.dropped)
    assert not used_db.rows(
        "select pg_describe_object(classid, objid, objsubid) from pg_shdepend"
        " where dbid = (select oid from pg_database where datname = current_database())"
    )
    assert check_installation(used_db.dsn).status is Installed.ABSENT
    migrate(used_db.dsn)
    assert dump(used_db) == before
    assert rows_of(used_db)["crm.leads"] == 0


def test_uninstalling_twice_is_no_error(db: Database) -> None:
    uninstall(db.dsn)
    assert not [name for name in uninstall(db.dsn).dropped if not name.startswith("role")]
    uninstall(db.dsn, drop_data=True)
    assert not [name for name in uninstall(db.dsn, drop_data=True).dropped if not name.startswith("role")]


@pytest.mark.slow
def test_roles_go_with_the_last_database_that_needs_them(private_server: Callable[..., Server]) -> None:
    server = private_server()
    with server.database(installed=False) as first, server.database(installed=False) as second:
        migrate(first.dsn)
        migrate(second.dsn)
        kept = {kept.what: kept.why for kept in uninstall(first.dsn, drop_data=True).kept}
        assert set(kept) == {
            "role crm_owner",
            "role crm_runner",
            "role crm_operator",
            "role crm_monitor",
            "role crm_app",
            "role crm_chessboard",
            "role crm_notifications",
        }
        assert all(second.name in why for why in kept.values())

        second.rows("create role alice in role crm_app")
        kept = {kept.what: kept.why for kept in uninstall(second.dsn, drop_data=True).kept}
        assert kept == {"role crm_app": "it has members: alice"}
        assert second.rows("select rolname from pg_roles where rolname like 'crm%'") == [("crm_app",)]


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("create view public.report as select id from crm.leads", "view public.report"),
        (
            "create table public.note (lead_id uuid references crm.leads)",
            "constraint note_lead_id_fkey on table public.note",
        ),
        ("create table crm.theirs (id integer)", "table crm.theirs of "),
        ("create table public.note (runs expiration.run[])", "table public.note"),
        ("create function public.f(l crm.leads) returns integer language sql return 1", "function public.f"),
        ("create table public.note () inherits (crm.leads)", "table public.note"),
    ],
)
def test_uninstalling_names_what_others_have_built_on_ours(
    used_db: Database, statement: str, named: str
) -> None:
    used_db.rows(statement)
    before, rows = dump(used_db), rows_of(used_db)
    with pytest.raises(RefusedError) as caught:
        uninstall(used_db.dsn, drop_data=True)
    assert named in str(caught.value)
    assert (dump(used_db), rows_of(used_db)) == (before, rows)
    # it is in nobody's way as long as the data stay
    uninstall(used_db.dsn)


def test_uninstalling_names_a_view_on_one_of_our_views(db: Database) -> None:
    db.rows("create view public.report as select * from expiration.status")
    before = dump(db)
    with pytest.raises(
        RefusedError,
        match=r"^View expiration\.status cannot be dropped, because others depend on it: "
        r"view public\.report depends on",
    ):
        uninstall(db.dsn)
    assert dump(db) == before


def test_uninstalling_tells_of_a_replication_slot(db: Database) -> None:
    db.rows("select pg_create_logical_replication_slot('test_uninstall', 'pgoutput')")
    try:
        kept = [kept.what for kept in uninstall(db.dsn, drop_data=True).kept]
    finally:
        db.rows("select pg_drop_replication_slot('test_uninstall')")
    assert "replication slot test_uninstall" in kept


def test_uninstalling_takes_our_entries_out_of_pg_cron(cron_db: Database, server: Server) -> None:
    cron_db.rows("select expiration.cron_install()")
    cron_db.rows("select cron.schedule('theirs', '0 0 1 1 *', 'select 1')")
    ours = {name for (name,) in cron_db.rows("select jobname from cron.job where jobname <> 'theirs'")}
    assert len(ours) >= 2

    assert set(uninstall(cron_db.dsn).unscheduled) == ours
    assert cron_db.rows("select jobname from cron.job") == [("theirs",)]

    with server.database() as elsewhere:
        cron_db.rows(
            "select cron.schedule_in_database("
            "'elsewhere', '0 0 1 1 *', 'call expiration.run_job(''lead-expiration'')', %s)",
            (elsewhere.name,),
        )
        assert uninstall(elsewhere.dsn).unscheduled == ("elsewhere",)
    assert cron_db.rows("select jobname from cron.job") == [("theirs",)]

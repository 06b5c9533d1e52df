"""What the catalog says about every object of ours, so that a new one cannot be forgotten."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql

from tests.servers import PROJECT, Database, Server, need

SCHEMAS: Final = ("crm", "outbox", "expiration", "chessboard", "notifications")
ROLES: Final = (
    "crm_owner",
    "crm_runner",
    "crm_operator",
    "crm_monitor",
    "crm_app",
    "crm_chessboard",
    "crm_notifications",
)
FUNCTION_FILES: Final = sorted((PROJECT / "sql" / "functions").rglob("*.sql"))
# the installer's own functions: they must be there before the others can be loaded
RECORD_FILE: Final = PROJECT / "pyrunner" / "migrations" / "sql" / "record.sql"

OURS: Final = "any ('{crm,outbox,expiration,chessboard,notifications}'::regnamespace[])"

# what a null means to the functions that are called although an argument is null
NOT_STRICT: Final = {
    # commands and entry points: a null is refused by XP005, or stands for a documented default
    "crm.cancel_booking": "XP005",
    "crm.confirm_booking": "XP005",
    "crm.extend_booking": "XP005",
    "crm.extend_lead": "XP005",
    "crm.reserve_property": "XP005",
    "crm.expire_leads_batch": "XP005",
    "crm.expire_bookings_batch": "XP005",
    "expiration.start_run": "XP005",
    "expiration.preview": "XP005",
    "expiration.pause": "XP005",
    "expiration.resume": "XP005",
    "expiration.stop": "XP005",
    "expiration.retry_failed": "XP005",
    "expiration.set_job": "XP005",
    # a null run is an unknown run
    "expiration.run_batch": "XP006",
    "expiration.finish_run": "XP014",
    "expiration.batch_failed": "XP006",
    # a null that is not a default is out of range
    "expiration.purge_history": "XP014",
    "expiration.tally_runs": "XP014",
    "expiration.take_traces": "XP005",
    "expiration.mark_traced": "XP005",
    "outbox.preview_replay": "XP018",
    "outbox.purge_inboxes": "XP014",
    "outbox.replay": "XP005",
}
# a null argument is what these look for, leave out, or pass on
NULL_HAS_A_MEANING: Final = {
    "crm.check_command": "looks for nulls",
    "crm.check_deadline": "present may be missing",
    "crm.lock_booking": "no booking has a null id",
    "crm.record_command": "from_status and correlation_id may be null",
    "expiration.check_batch": "looks for nulls",
    "expiration.check_job": "looks for nulls",
    "expiration.close_run": "sqlstate and error may be null",
    "expiration.count_due": "the upper bound may be missing",
    "expiration.cron_install": "no arguments",
    "expiration.cron_job": "no arguments",
    "expiration.cron_plan": "null means no seconds",
    "expiration.cron_schedule": "a null period is none that can be expressed",
    "expiration.cron_uninstall": "no arguments",
    "expiration.current_driver": "no arguments",
    "expiration.duration_bounds": "no arguments",
    "expiration.errors": "no arguments",
    "expiration.claim_items": "a retry has no cursor, a claim no failed_before",
    "expiration.expire_batch": "a retry has no cursor, a claim no failed_before",
    "expiration.expire_in_parts": "an empty claim has no ids",
    "expiration.fingerprint": "an object that is not there",
    "expiration.has_due": "a null cursor: nothing lies beyond it",
    "expiration.is_alive": "no run is alive",
    "expiration.is_item_fault": "a fault may name no schema",
    "expiration.last_sign_of_life": "no run has none",
    "expiration.lateness_bounds": "no arguments",
    "expiration.loadable_objects": "no arguments",
    "expiration.phases": "no job has no phases",
    "expiration.purge_cron_history": "a null retention keeps everything",
    "expiration.raise_error": "a null argument is shown as such",
    "expiration.reap_runs": "null: every job",
    "expiration.record_lone_batch": "result may hold nulls",
    "expiration.run_result": "no run has no result",
    "expiration.schema_version": "no arguments",
    "expiration.split": "nobody may be suspect",
    "chessboard.park": "a message may have neither key nor event id nor value",
    "notifications.park": "a message may have neither key nor event id nor value",
    "outbox.drop_partitions": "no arguments",
    "outbox.make_partitions": "null: as in outbox.settings",
    "outbox.refuse_update": "trigger",
}


@pytest.fixture(scope="module")
def catalog(server: Server) -> Iterator[Database]:
    """One installed database for the tests that only look."""
    with server.database() as database:
        yield database


@pytest.fixture
def checked_db(server: Server, db: Database, request: pytest.FixtureRequest) -> Database:
    """An installed database with plpgsql_check, and with pg_cron in it where that can be had."""
    need(server.has_plpgsql_check, f"plpgsql_check is not there in {server.source}")
    database = request.getfixturevalue("cron_db") if server.has_pg_cron else db
    assert isinstance(database, Database)
    database.rows("create extension plpgsql_check")
    return database


def without_comments(text: str) -> str:
    """SQL text without its comments; literals are kept."""
    return re.sub(r"--[^\n]*|('(?:[^']|'')*')", lambda found: found.group(1) or "", text)


def arguments_of_call(text: str, start: int) -> list[str]:
    """The arguments of a call, where `start` is the place behind its opening parenthesis."""
    arguments: list[str] = []
    depth, current, place = 0, "", start
    while True:
        character = text[place]
        if character == "'":
            end = re.compile(r"'(?:[^']|'')*'").match(text, place)
            assert end is not None
            current += end.group()
            place = end.end()
            continue
        if character in "([":
            depth += 1
        elif character in ")]":
            if depth == 0:
                return [argument.strip() for argument in [*arguments, current] if argument.strip()]
            depth -= 1
        if character == "," and depth == 0:
            arguments.append(current)
            current = ""
        else:
            current += character
        place += 1


# ------------------------------------------------------------------------------------------ safety


def test_every_definer_function_pins_its_search_path_with_pg_temp_last(catalog: Database) -> None:
    functions = catalog.rows(
        "select p.oid::regprocedure::text, p.proconfig from pg_proc as p"
        f" where p.pronamespace = {OURS} and p.prosecdef"
    )
    assert len(functions) >= 30
    wrong = {
        name: config for name, config in functions if "search_path=pg_catalog, pg_temp" not in (config or [])
    }
    assert wrong == {}


def test_only_what_must_run_on_the_callers_path_does_not_pin_it(catalog: Database) -> None:
    """Procedures that commit cannot; tests/test_privileges.py runs them on a hostile path."""
    unpinned = catalog.rows(
        "select p.oid::regprocedure::text from pg_proc as p"
        f" where p.pronamespace = {OURS}"
        " and not coalesce(p.proconfig @> array['search_path=pg_catalog, pg_temp'], false)"
        # a body of standard SQL was resolved when it was loaded, and can be inlined if nothing is set
        " and p.prosqlbody is null order by 1"
    )
    assert [name for (name,) in unpinned] == [
        # only qualified names; its output is compared as text, which a pinned path would change
        "expiration.loadable_objects()",
        "expiration.run_job(text,timestamp with time zone)",
        "expiration.run_upkeep()",
    ]


def test_definer_functions_belong_to_the_owner_who_is_no_superuser(catalog: Database) -> None:
    others = catalog.rows(
        f"select p.oid::regprocedure::text from pg_proc as p where p.pronamespace = {OURS}"
        " and p.proowner <> 'crm_owner'::regrole"
    )
    assert others == []
    assert catalog.rows(
        "select rolname from pg_roles where rolname = any (%s)"
        " and (rolsuper or rolcanlogin or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)",
        (list(ROLES),),
    ) == []  # fmt: skip


def test_public_can_execute_and_read_nothing(catalog: Database) -> None:
    assert catalog.rows(
        f"select p.oid::regprocedure::text from pg_proc as p where p.pronamespace = {OURS}"
        " and has_function_privilege('public', p.oid, 'execute')"
    ) == []  # fmt: skip
    assert catalog.rows(
        f"select c.oid::regclass::text from pg_class as c where c.relnamespace = {OURS}"
        " and c.relkind in ('r', 'p', 'v', 'm', 'f')"
        " and (has_table_privilege('public', c.oid,"
        " 'select, insert, update, delete, truncate, references, trigger')"
        " or has_any_column_privilege('public', c.oid, 'select, insert, update, references'))"
    ) == []  # fmt: skip
    assert catalog.rows(
        f"select c.oid::regclass::text from pg_class as c where c.relnamespace = {OURS}"
        " and case when c.relkind = 'S'"
        " then has_sequence_privilege('public', c.oid, 'usage, select, update') end"
    ) == []  # fmt: skip
    assert catalog.rows(
        "select n.nspname from pg_namespace as n where n.nspname = any (%s)"
        " and has_schema_privilege('public', n.oid, 'usage, create')",
        (list(SCHEMAS),),
    ) == []  # fmt: skip


def test_public_cannot_execute_what_the_owner_makes_later(db: Database) -> None:
    with db.connect() as owner:
        owner.execute("set role crm_owner")
        owner.execute("create function crm.made_later() returns integer language sql return 1")
        owner.execute("create procedure expiration.made_later() language sql as ''")
    for routine in ("crm.made_later()", "expiration.made_later()"):
        assert (
            db.value("select has_function_privilege('public', %s::regprocedure, 'execute')", (routine,))
            is False
        )


def test_nobody_but_the_owner_may_create_in_our_schemas(catalog: Database) -> None:
    assert catalog.rows(
        "select r.rolname, n.nspname from pg_roles as r, pg_namespace as n where n.nspname = any (%s)"
        " and r.rolname = any (%s) and r.rolname <> 'crm_owner'"
        " and has_schema_privilege(r.oid, n.oid, 'create')",
        (list(SCHEMAS), list(ROLES)),
    ) == []  # fmt: skip


# ------------------------------------------------------------------------------------------ comments

UNCOMMENTED = {
    "schemas": f"select nspname from pg_namespace where oid = {OURS}"
    " and obj_description(oid, 'pg_namespace') is null",
    "tables and views": f"select c.oid::regclass::text from pg_class as c where c.relnamespace = {OURS}"
    " and c.relkind in ('r', 'p', 'v', 'm', 'f', 'c') and obj_description(c.oid, 'pg_class') is null"
    # the row of a type in pg_class; the type itself is looked at below
    " and c.relkind <> 'c'",
    # a partition's columns are its root's; yoyo's tables are made as yoyo makes them
    "columns of tables": "select c.oid::regclass || '.' || a.attname from pg_attribute as a"
    " inner join pg_class as c on a.attrelid = c.oid"
    f" where c.relnamespace = {OURS} and c.relkind in ('r', 'p') and not c.relispartition"
    " and a.attnum > 0 and not a.attisdropped and c.relname not like '%yoyo%'"
    " and col_description(c.oid, a.attnum) is null",
    # a constraint's index says what the constraint says, a partition's index what its root's says
    "indexes": "select c.oid::regclass::text from pg_class as c"
    f" where c.relnamespace = {OURS} and c.relkind in ('i', 'I') and not c.relispartition"
    " and not exists (select from pg_constraint as k where k.conindid = c.oid)"
    " and obj_description(c.oid, 'pg_class') is null",
    "types": "select t.oid::regtype::text from pg_type as t left join pg_class as c on t.typrelid = c.oid"
    f" where t.typnamespace = {OURS} and (c.oid is null or c.relkind = 'c') and t.typelem = 0"
    " and obj_description(t.oid, 'pg_type') is null",
    "functions and procedures": "select p.oid::regprocedure::text from pg_proc as p"
    f" where p.pronamespace = {OURS} and obj_description(p.oid, 'pg_proc') is null",
    "triggers": "select t.tgname from pg_trigger as t inner join pg_class as c on t.tgrelid = c.oid"
    f" where c.relnamespace = {OURS} and not t.tgisinternal and t.tgparentid = 0"
    " and obj_description(t.oid, 'pg_trigger') is null",
    "roles": "select rolname from pg_roles where rolname = any (array["
    + ", ".join(f"'{role}'" for role in ROLES)
    + "]) and shobj_description(oid, 'pg_authid') is null",
}


@pytest.mark.parametrize("kind", UNCOMMENTED)
def test_every_object_has_a_comment(catalog: Database, kind: str) -> None:
    assert [name for (name,) in catalog.rows(sql.SQL(UNCOMMENTED[kind]))] == []


def test_partitions_of_the_outbox_are_made_with_a_comment(db: Database) -> None:
    made = db.rows("select partition from outbox.make_partitions(3)")
    partitions = db.rows(
        "select c.relname, obj_description(c.oid, 'pg_class') from pg_inherits as i"
        " inner join pg_class as c on i.inhrelid = c.oid where i.inhparent = 'outbox.event'::regclass"
    )
    assert {name for (name,) in made} < {name for name, _ in partitions}
    assert [name for name, comment in partitions if not comment] == []


def test_comments_are_sentences(catalog: Database) -> None:
    """A comment that says nothing, or is cut off, is as good as none."""
    comments = catalog.rows(
        "select d.description from pg_description as d"
        " left join pg_proc as p on d.classoid = 'pg_proc'::regclass and d.objoid = p.oid"
        " left join pg_class as c on d.classoid = 'pg_class'::regclass and d.objoid = c.oid"
        f" where coalesce(p.pronamespace, c.relnamespace) = {OURS}"
    )
    assert len(comments) > 200
    assert [comment for (comment,) in comments if not re.search(r"[.;]$", comment) or len(comment) < 4] == []


# ------------------------------------------------------------------------------------------ declarations


def declarations() -> dict[tuple[str, str], str]:
    """By schema and name the head of every function in the source files, up to its body."""
    found = {}
    for file in [*FUNCTION_FILES, RECORD_FILE]:
        for head in re.finditer(
            r"create or replace (?:function|procedure) (\w+)\.(\w+)"
            r"\s*\((.*?)(?:as \$|begin atomic|\breturn\b)",
            without_comments(file.read_text()),
            re.DOTALL,
        ):
            found[head.group(1), head.group(2)] = head.group(3)
    return found


def test_every_function_declares_its_volatility(catalog: Database) -> None:
    declared = {}
    for name, head in declarations().items():
        words = re.findall(r"\b(volatile|stable|immutable)\b", head)
        declared[name] = words[0] if len(words) == 1 else f"declared {len(words)} times"
    actual = catalog.rows(
        "select n.nspname, p.proname, p.prokind = 'p',"
        " case p.provolatile when 'v' then 'volatile' when 's' then 'stable' else 'immutable' end"
        " from pg_proc as p inner join pg_namespace as n on p.pronamespace = n.oid"
        " where n.nspname = any (%s)",
        (list(SCHEMAS),),
    )
    # a procedure has none to declare
    wrong = {
        f"{schema}.{name}": (declared[schema, name], volatility)
        for schema, name, is_procedure, volatility in actual
        if not is_procedure and declared[schema, name] != volatility
    }
    assert wrong == {}


def test_what_may_run_in_parallel_only_reads(catalog: Database) -> None:
    assert catalog.rows(
        f"select p.oid::regprocedure::text from pg_proc as p where p.pronamespace = {OURS}"
        " and p.proparallel = 's' and p.provolatile = 'v'"
    ) == []  # fmt: skip


def test_strictness_is_decided_for_every_function(catalog: Database) -> None:
    not_strict = catalog.rows(
        "select distinct n.nspname || '.' || p.proname from pg_proc as p"
        " inner join pg_namespace as n on p.pronamespace = n.oid"
        " where n.nspname = any (%s) and not p.proisstrict and p.prokind = 'f'",
        (list(SCHEMAS),),
    )
    assert {name for (name,) in not_strict} == set(NOT_STRICT) | set(NULL_HAS_A_MEANING)


@pytest.mark.parametrize("name", NOT_STRICT)
def test_a_null_for_a_required_argument_is_refused(catalog: Database, name: str) -> None:
    """Each argument without a default in turn, or the first of all when every one has a default."""
    arguments = catalog.rows(
        "select a.name, format_type(p.proargtypes[a.place - 1], null),"
        " a.place > p.pronargs - p.pronargdefaults from pg_proc as p"
        " cross join lateral unnest(p.proargnames[:p.pronargs]) with ordinality as a (name, place)"
        " where p.oid = %s::regproc order by a.place",
        (name,),
    )
    values = {
        "uuid": "gen_random_uuid()",
        "integer": "1",
        "bigint": "1",
        "text": "'lead-expiration'",
        "timestamp with time zone": "(now() - interval '1 hour')",
        "interval": "interval '1 hour'",
    }
    required = [argument for argument, _, has_default in arguments if not has_default] or [arguments[0][0]]
    for missing in required:
        given = ", ".join(
            f"{argument} => {'null' if argument == missing else values[kind]}::{kind}"
            for argument, kind, _ in arguments
            if argument in required
        )
        with pytest.raises(psycopg.Error) as refusal, catalog.connect() as connection:
            connection.execute(f"select * from {name}({given})".encode())
        # what the other, valid arguments meet first may be another refusal of ours
        if NOT_STRICT[name] == "XP005":
            assert refusal.value.sqlstate == "XP005", (missing, refusal.value)
            assert missing in str(refusal.value)
        else:
            assert refusal.value.sqlstate in (NOT_STRICT[name], "XP006"), (missing, refusal.value)


# ------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("file", FUNCTION_FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_holds_the_one_object_it_is_named_after(file: Path) -> None:
    text = without_comments(file.read_text())
    made = re.findall(r"^create or replace (function|procedure|view|trigger) ([\w.]+)", text, re.MULTILINE)
    assert re.findall(r"^create\b", text, re.MULTILINE) == ["create"] * len(made)
    names = [name for kind, name in made if kind != "trigger"]
    assert names == [f"{file.parent.name}.{file.stem}"]
    for kind, name in made:
        assert re.search(rf"^comment on {kind} {re.escape(name)}\b", text, re.MULTILINE), (
            f"no comment on {kind} {name}"
        )


def test_every_function_and_view_stands_in_a_file(catalog: Database) -> None:
    in_files = {f"{file.parent.name}.{file.stem}" for file in FUNCTION_FILES}
    installers = set(re.findall(r"create or replace function ([\w.]+)", RECORD_FILE.read_text()))
    installed = catalog.rows(
        "select p.pronamespace::regnamespace || '.' || p.proname from pg_proc as p"
        f" where p.pronamespace = {OURS} union"
        " select c.relnamespace::regnamespace || '.' || c.relname from pg_class as c"
        f" where c.relnamespace = {OURS} and c.relkind = 'v'"
    )
    assert {name for (name,) in installed} == in_files | installers


def test_the_documents_indexes_are_partial_and_valid(catalog: Database) -> None:
    indexes = catalog.rows(
        "select c.relname, i.indpred is not null and i.indisvalid and i.indisready from pg_index as i"
        " inner join pg_class as c on i.indexrelid = c.oid where c.relname = any (%s) order by 1",
        (["ix_leads_expires_at", "ix_bookings_reserve_expires_at", "ix_bookings_booking_expires_at"],),
    )
    assert indexes == [
        ("ix_bookings_booking_expires_at", True),
        ("ix_bookings_reserve_expires_at", True),
        ("ix_leads_expires_at", True),
    ]


# ------------------------------------------------------------------------------------------ plpgsql_check


def test_plpgsql_check_finds_nothing(checked_db: Database) -> None:
    """All warnings on; in the database of pg_cron, so that what names its tables can be resolved."""
    functions = checked_db.rows(
        "select p.oid, p.oid::regprocedure::text from pg_proc as p"
        f" inner join pg_language as l on p.prolang = l.oid"
        f" where p.pronamespace = {OURS} and l.lanname = 'plpgsql'"
    )
    assert len(functions) >= 35
    findings = {}
    for oid, name in functions:
        found = checked_db.rows(
            "select c from pg_proc as p"
            # a trigger function is checked for each table that it serves
            " left join pg_trigger as t on t.tgfoid = p.oid and not t.tgisinternal and t.tgparentid = 0"
            " cross join lateral public.plpgsql_check_function(p.oid, coalesce(t.tgrelid, 0),"
            " fatal_errors => false, other_warnings => true, extra_warnings => true,"
            " performance_warnings => true, security_warnings => true) as c where p.oid = %s",
            (oid,),
        )
        if found:
            findings[name] = [line for (line,) in found]
    assert findings == {}


def test_what_plpgsql_check_is_told_to_overlook_is_explained() -> None:
    for file in FUNCTION_FILES:
        lines = file.read_text().splitlines()
        for number, line in enumerate(lines):
            if "@plpgsql_check_options" in line:
                assert re.fullmatch(r"\s*-- @plpgsql_check_options: \w+ = off", line), f"{file}: {line}"
                assert re.match(r"\s*-- \(", lines[number + 1]), f"{file}: no reason for {line.strip()}"


# ------------------------------------------------------------------------------------------ errors


def test_every_error_of_ours_is_raised_by_the_one_helper() -> None:
    """Elsewhere `raise exception` only hands on what was caught, with its own SQLSTATE."""
    handed_on = {}
    for file in FUNCTION_FILES:
        text = without_comments(file.read_text())
        for found in re.finditer(r"\braise\b(?!_)\s*(\w*)([^;]*);", text):
            level, rest = found.groups()
            if level in ("notice", "warning", "debug", "log", "info", ""):
                assert "errcode" not in rest
                continue
            assert level == "exception", f"{file}: {found.group()}"
            errcode = re.search(r"errcode = ([\w.]+)", rest)
            assert errcode is not None, f"{file}: {found.group()}"
            assert re.match(r"v_\w*(sqlstate|error\.sqlstate)$", errcode.group(1)), f"{file}: {found.group()}"
            handed_on[file.stem] = errcode.group(1)
    assert set(handed_on) == {"raise_error", "expire_in_parts", "run_job", "run_upkeep"}


def test_every_error_of_ours_is_listed_with_a_hint_and_is_used(catalog: Database) -> None:
    listed = {
        name: (sqlstate, message.count("%s"), hint)
        for sqlstate, name, message, hint in catalog.rows(
            "select sqlstate, name, message, hint from expiration.errors()"
        )
    }
    sqlstates = [sqlstate for sqlstate, _, _ in listed.values()]
    assert len(set(sqlstates)) == len(sqlstates)
    assert all(re.fullmatch(r"XP[01]\d\d", sqlstate) for sqlstate in sqlstates)
    assert all(hint.endswith(".") or hint.startswith("See the comment") for _, _, hint in listed.values())

    used = {}
    for file in FUNCTION_FILES:
        text = without_comments(file.read_text())
        for call in re.finditer(r"\braise_error\(", text):
            arguments = arguments_of_call(text, call.end())
            if file.stem == "raise_error":
                continue
            name = arguments[0].strip("'")
            assert name in listed, f"{file}: {name} is not in expiration.errors()"
            # too few would make format() fail in place of our error, too many would go unseen
            assert len(arguments) - 1 == listed[name][1], f"{file}: {name} is given {arguments[1:]}"
            used[name] = file
    assert set(used) == set(listed)


def test_sqlstates_stand_only_in_the_list() -> None:
    """Written elsewhere: the end of a rehearsal, which is caught by its SQLSTATE, and comments."""
    elsewhere = {}
    for file in FUNCTION_FILES:
        code = re.sub(
            r"^comment on .*?';$", "", without_comments(file.read_text()), flags=re.DOTALL | re.MULTILINE
        )
        if file.stem != "errors" and (found := re.findall(r"\bXP\d{3}\b", code)):
            elsewhere[file.stem] = found
    assert elsewhere == {"is_item_fault": ["XP015"]}


def test_an_error_carries_its_sqlstate_message_and_hint(catalog: Database) -> None:
    for sqlstate, name, message, hint in catalog.rows("select * from expiration.errors()"):
        arguments = [f"<{number}>" for number in range(message.count("%s"))]
        with pytest.raises(psycopg.Error) as raised, catalog.connect() as connection:
            connection.execute("select expiration.raise_error(%s, variadic %s::text[])", (name, arguments))
        assert raised.value.sqlstate == sqlstate
        assert raised.value.diag.message_primary == message.replace("%s", "{}").format(*arguments)
        assert raised.value.diag.message_hint == hint


def test_no_handler_hides_an_sqlstate() -> None:
    """Where everything is caught, its SQLSTATE is kept and raised or recorded."""
    for file in FUNCTION_FILES:
        text = without_comments(file.read_text())
        for handler in re.finditer(r"\bwhen [^;]*\bothers\b[^;]*?\bthen\b\s*([^;]*);", text):
            assert "returned_sqlstate" in handler.group(1), f"{file}: {handler.group()}"

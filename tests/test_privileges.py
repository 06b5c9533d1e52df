"""Each role can do its work and nothing else; and nobody is fooled by objects of a caller's own."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

import psycopg
import pytest
from psycopg import sql

from tests.servers import Connection, Database, Server

OURS: Final = "any ('{crm,outbox,expiration,chessboard,notifications}'::regnamespace[])"

# the logins of the tests, by the group role that each is a member of; the last may do nothing of ours
ROLES: Final = {
    "monitor": "crm_monitor",
    "runner": "crm_runner",
    "operator": "crm_operator",
    "app": "crm_app",
    "chessboard": "crm_chessboard",
    "notifications": "crm_notifications",
    "nobody": "pg_checkpoint",
}
MONITOR: Final = {"monitor", "runner", "operator"}
RUNNER: Final = {"runner", "operator"}
OPERATOR: Final = {"operator"}
APP: Final = {"app"}
CHESSBOARD: Final = {"chessboard"}
NOTIFICATIONS: Final = {"notifications"}
NOBODY: Final[set[str]] = set()

MAY_EXECUTE: Final = {
    "chessboard.free_property": CHESSBOARD,
    "chessboard.dismiss_parked": OPERATOR,
    "chessboard.park": CHESSBOARD,
    "crm.cancel_booking": APP,
    "crm.check_command": NOBODY,
    "crm.check_deadline": NOBODY,
    "crm.claim_bookings": NOBODY,
    "crm.claim_leads": NOBODY,
    "crm.confirm_booking": APP,
    "crm.expire_bookings": NOBODY,
    "crm.expire_bookings_batch": RUNNER,
    "crm.expire_leads": NOBODY,
    "crm.expire_leads_batch": RUNNER,
    "crm.extend_booking": APP,
    "crm.extend_lead": APP,
    "crm.lock_booking": NOBODY,
    "crm.record_command": NOBODY,
    "crm.reserve_property": APP,
    "expiration.batch_failed": RUNNER,
    "expiration.batch_item": MONITOR,
    "expiration.check_batch": NOBODY,
    "expiration.check_job": MONITOR,
    "expiration.claim_failed": NOBODY,
    "expiration.claim_items": NOBODY,
    "expiration.close_run": NOBODY,
    "expiration.count_due": NOBODY,
    "expiration.cron_install": RUNNER,
    "expiration.cron_job": MONITOR,
    "expiration.count_lateness": NOBODY,
    "expiration.cron_plan": RUNNER,
    "expiration.cron_schedule": RUNNER,
    "expiration.cron_uninstall": RUNNER,
    "expiration.current_driver": RUNNER,
    "expiration.duration_bounds": MONITOR,
    "expiration.duration_bucket": MONITOR,
    "expiration.errors": MONITOR,
    "expiration.expire_batch": NOBODY,
    "expiration.expire_in_parts": NOBODY,
    "expiration.expire_items": NOBODY,
    "expiration.fingerprint": MONITOR,
    "expiration.finish_run": RUNNER,
    "expiration.has_due": NOBODY,
    "expiration.is_alive": MONITOR,
    "expiration.is_item_fault": NOBODY,
    "expiration.is_item_sqlstate": NOBODY,
    "expiration.last_sign_of_life": MONITOR,
    "expiration.lateness_bounds": MONITOR,
    "expiration.loadable_objects": MONITOR,
    "expiration.log_item": MONITOR,
    "expiration.mark_traced": RUNNER,
    "expiration.pause": OPERATOR,
    "expiration.phases": MONITOR,
    "expiration.preview": MONITOR,
    "expiration.purge_cron_history": RUNNER,
    "expiration.purge_history": RUNNER,
    "expiration.raise_error": MONITOR,
    "expiration.reap_runs": RUNNER,
    "expiration.record_lone_batch": NOBODY,
    "expiration.resume": OPERATOR,
    "expiration.retry_failed": OPERATOR,
    "expiration.run_batch": RUNNER,
    "expiration.run_job": RUNNER,
    "expiration.run_result": MONITOR,
    "expiration.run_upkeep": RUNNER,
    "expiration.schema_version": MONITOR,
    "expiration.set_job": OPERATOR,
    "expiration.split": NOBODY,
    "expiration.start_run": RUNNER,
    "expiration.stop": OPERATOR,
    "expiration.take_traces": RUNNER,
    "expiration.tally_runs": RUNNER,
    "notifications.dismiss_parked": OPERATOR,
    "notifications.file_notice": NOTIFICATIONS,
    "notifications.mark_failed": NOTIFICATIONS,
    "notifications.mark_sent": NOTIFICATIONS,
    "notifications.park": NOTIFICATIONS,
    "notifications.take_unsent": NOTIFICATIONS,
    "outbox.close_gap": OPERATOR,
    "outbox.create_publication": NOBODY,
    "outbox.drop_partitions": RUNNER,
    "outbox.forget_slot": OPERATOR,
    "outbox.is_publication_right": MONITOR,
    "outbox.make_partitions": RUNNER,
    "outbox.open_gap": OPERATOR,
    "outbox.partition_start": MONITOR,
    "outbox.preview_replay": OPERATOR,
    "outbox.purge_inboxes": RUNNER,
    "outbox.refuse_update": NOBODY,
    "outbox.register_slot": OPERATOR,
    "outbox.replay": OPERATOR,
    "outbox.traceparent": MONITOR,
    "outbox.utc": NOBODY,
}

# who may SELECT; nobody may do anything else to them, but for MAY_INSERT
MAY_SELECT: Final = {
    "chessboard.inbox": NOBODY,
    "chessboard.parked": CHESSBOARD | OPERATOR,
    "chessboard.parked_total": CHESSBOARD | MONITOR,
    "chessboard.release": CHESSBOARD,
    "crm.audit_log": APP,
    "crm.bookings": APP,
    "crm.deal_timeline": APP,
    "crm.deals": APP,
    "crm.effective_bookings": APP,
    "crm.effective_leads": APP,
    "crm.fixations": APP,
    "crm.leads": APP,
    "expiration._yoyo_log": NOBODY,
    "expiration._yoyo_migration": NOBODY,
    "expiration._yoyo_version": NOBODY,
    "expiration.batch": MONITOR,
    "expiration.batch_tally": MONITOR,
    "expiration.batch_total": MONITOR,
    "expiration.due_figures": MONITOR,
    "expiration.due_item": NOBODY,
    "expiration.duration_histogram": MONITOR,
    "expiration.duration_tally": MONITOR,
    "expiration.failed": MONITOR,
    "expiration.failed_item": MONITOR,
    "expiration.history": MONITOR,
    "expiration.installation": MONITOR,
    "expiration.installed_file": NOBODY,
    "expiration.installed_object": MONITOR,
    "expiration.job": MONITOR,
    "expiration.job_figures": MONITOR,
    "expiration.last_cycle": NOBODY,
    "expiration.lateness_histogram": MONITOR,
    "expiration.lateness_tally": MONITOR,
    "expiration.log_event": MONITOR,
    "expiration.migration_checksum": MONITOR,
    "expiration.run": MONITOR,
    "expiration.run_tally": MONITOR,
    "expiration.run_total": MONITOR,
    "expiration.status": MONITOR,
    "expiration.trace_position": MONITOR,
    "expiration.yoyo_lock": NOBODY,
    "notifications.inbox": NOBODY,
    "notifications.notice": NOTIFICATIONS,
    "notifications.parked": NOTIFICATIONS | OPERATOR,
    "notifications.parked_total": NOTIFICATIONS | MONITOR,
    "outbox.event": NOBODY,
    "outbox.event_default": NOBODY,
    "outbox.partition": MONITOR,
    "outbox.partition_figures": MONITOR,
    "outbox.replay_log": MONITOR,
    "outbox.sealed_partition": NOBODY,
    "outbox.settings": MONITOR,
    "outbox.slot": MONITOR,
    "outbox.slot_figures": MONITOR,
    "outbox.slot_state": MONITOR,
    "outbox.slot_status": MONITOR,
}
MAY_INSERT: Final = {"crm.leads": APP, "crm.deals": APP, "crm.fixations": APP}

# arguments for a call that gets as far as the function's own checks, by type and where needed by name
VALUES: Final = {
    "uuid": "gen_random_uuid()",
    "integer": "1",
    "text": "'x'",
    "boolean": "false",
    "jsonb": "'{}'",
    "oid": "0",
    "uuid[]": "array[gen_random_uuid()]",
    "text[]": "array['actor', 'x']",
    "bigint": "1",
    "bytea": "'x'",
    "interval": "interval '1 hour'",
    "timestamp with time zone": "(now() - interval '1 day')",
    "expiration.claim": "row('{}', '{}', true, '{}', '{}')",
}
NAMED_VALUES: Final = {
    "job": "'lead-expiration'",
    "phase": "'Reserve'",
    "name": "'unknown_run'",
    "args": "array['x']",
    "booking_expires_at": "(now() + interval '1 day')",
    "expires_at": "(now() + interval '1 day')",
    "reserve_expires_at": "(now() + interval '1 day')",
    "deadline": "(now() + interval '1 day')",
    "reason": "'drained'",
    "max_notices": "1",
    "headers": "'{}'",
}


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[Database]:
    """One database for the tests that only try."""
    with server.database() as database:
        yield database


@pytest.fixture(scope="module")
def logins(shared: Database) -> dict[str, Connection]:
    """A connection of each login."""
    return {name: shared.connect(role) for name, role in ROLES.items()}


def attempt(connection: Connection, statement: str) -> psycopg.Error | None:
    """Tries a statement and takes it back; returns what it raised."""
    try:
        if statement.startswith("call"):
            connection.execute(statement.encode())
        else:
            with connection.transaction(force_rollback=True):
                connection.execute(statement.encode())
    except psycopg.Error as error:
        return error
    return None


def judge(connection: Connection, statement: str, *, allowed: bool) -> str | None:
    """None when it was as it should be, otherwise what happened. Refusals of ours are as good as success."""
    error = attempt(connection, statement)
    # what nobody can do to a view is refused before privileges are looked at
    denied = error is not None and error.sqlstate in ("42501", "42809", "55000")
    if allowed and error is not None and not (error.sqlstate or "").startswith("XP"):
        return f"{statement}: should be allowed: {error}"
    if not allowed and not denied:
        return f"{statement}: should be denied: {error or 'it was done'}"
    return None


def call_of(shared: Database, routine: str) -> str:
    """A statement that calls a function or procedure with an argument for every parameter."""
    rows = shared.rows(
        "select p.prokind = 'p', p.provariadic <> 0, a.name, format_type(p.proargtypes[a.place - 1], null)"
        " from pg_proc as p left join lateral unnest(p.proargnames[:p.pronargs])"
        " with ordinality as a (name, place) on true where p.oid = %s::regproc order by a.place",
        (routine,),
    )
    arguments = []
    for _, _, name, kind in rows:
        if name is None:
            continue
        value = NAMED_VALUES.get(name, VALUES.get(kind, "null"))
        arguments.append(f"{'variadic ' if kind == 'text[]' else ''}{name} => {value}::{kind}")
    is_procedure = rows[0][0]
    # in the list of what is selected: there a trigger function can be called as well
    return f"{'call' if is_procedure else 'select'} {routine}({', '.join(arguments)})"


# ------------------------------------------------------------------------------------------ who may do what


def test_every_object_stands_in_the_table_of_privileges(shared: Database) -> None:
    routines = shared.rows(
        "select p.pronamespace::regnamespace || '.' || p.proname from pg_proc as p"
        f" where p.pronamespace = {OURS} order by 1"
    )
    # by name: a second function of the same name would go unseen
    assert [name for (name,) in routines] == sorted(MAY_EXECUTE)
    relations = shared.rows(
        "select c.relnamespace::regnamespace || '.' || c.relname from pg_class as c"
        f" where c.relnamespace = {OURS} and c.relkind in ('r', 'p', 'v', 'm', 'f')"
        " and c.relname !~ '^event_[0-9]{8}$'"
    )
    assert {name for (name,) in relations} == set(MAY_SELECT)


@pytest.mark.parametrize("routine", MAY_EXECUTE)
def test_only_those_who_need_a_function_can_execute_it(
    shared: Database, logins: dict[str, Connection], routine: str
) -> None:
    statement = call_of(shared, routine)
    wrong = {
        name: verdict
        for name, connection in logins.items()
        if (verdict := judge(connection, statement, allowed=name in MAY_EXECUTE[routine]))
    }
    assert wrong == {}


@pytest.mark.parametrize("relation", MAY_SELECT)
def test_only_those_who_need_a_table_can_read_it_and_nobody_can_change_it(
    shared: Database, logins: dict[str, Connection], relation: str
) -> None:
    column = shared.value(
        "select quote_ident(a.attname) from pg_attribute as a where a.attrelid = %s::regclass"
        " and a.attnum > 0 and a.attidentity = '' order by a.attnum limit 1",
        (relation,),
    )
    wrong = []
    for name, connection in logins.items():
        verdicts = [judge(connection, f"select * from {relation}", allowed=name in MAY_SELECT[relation])]
        verdicts += [
            judge(connection, statement, allowed=False)
            for statement in (
                f"update {relation} set {column} = {column}",
                f"delete from {relation}",
                f"truncate {relation}",
                f"lock table {relation} in exclusive mode",
                f"create trigger t before insert on {relation} execute function pg_catalog.now()",
            )
        ]
        inserts = f"insert into {relation} ({column}) select {column} from {relation} where false"
        verdicts.append(judge(connection, inserts, allowed=name in MAY_INSERT.get(relation, NOBODY)))
        wrong += [f"{name}: {verdict}" for verdict in verdicts if verdict]
    assert wrong == []


def test_partitions_are_as_closed_as_the_outbox(shared: Database, logins: dict[str, Connection]) -> None:
    shared.rows("select from outbox.make_partitions(2)")
    partitions = shared.rows(
        "select c.oid::regclass::text from pg_inherits as i inner join pg_class as c on i.inhrelid = c.oid"
        " where i.inhparent = 'outbox.event'::regclass"
    )
    assert len(partitions) >= 3
    for (partition,) in partitions:
        for name, connection in logins.items():
            for statement in (
                f"select from {partition}",
                f"insert into {partition} select * from {partition}",
                f"delete from {partition}",
            ):
                assert judge(connection, statement, allowed=False) is None, name


def test_no_role_of_ours_may_act_as_the_owner(logins: dict[str, Connection]) -> None:
    for name, connection in logins.items():
        for statement in (
            "set role crm_owner",
            "create table crm.mine ()",
            "create function expiration.mine() returns integer language sql return 1",
            "drop function crm.expire_leads_batch",
            "alter table outbox.event disable trigger event_is_append_only",
            "comment on table crm.leads is 'mine'",
        ):
            error = attempt(connection, statement)
            assert error is not None, (name, statement)
            assert error.sqlstate == "42501", (name, statement, error)


# ------------------------------------------------------------------------------------------ their work

FILL: Final = """
insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)
select gen_random_uuid(), gen_random_uuid(), now() - make_interval(mins => n)
from generate_series(1, 30) as n;
insert into crm.bookings (
    tenant_id, deal_id, property_object_id, status, reserve_expires_at, booking_expires_at
)
select
    gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
    case when n % 2 = 0 then 'Reserved' else 'Booked' end,
    now() - make_interval(mins => n), now() - make_interval(mins => n)
from generate_series(1, 30) as n;
"""

EXPIRED: Final = """
select
    (select count(*) from crm.leads where status = 'Expired'),
    (select count(*) from crm.bookings where status in ('ReserveExpired', 'BookingExpired')),
    (select count(*) from outbox.event),
    (select count(*) from crm.audit_log where action = 'Expire'),
    (select count(*) from crm.deal_timeline where kind = 'BookingExpired')
"""


def test_a_runner_runs_both_jobs_in_every_way(db: Database) -> None:
    db.rows(FILL)
    runner = db.connect("crm_runner")
    runner.execute("call expiration.run_job('lead-expiration')")
    run = runner.execute("select (expiration.start_run('booking-expiration', 'pyrunner')).id").fetchone()
    assert run is not None
    while (
        report := runner.execute("select state, reason from expiration.run_batch(%s)", run).fetchone()
    ) != (
        "done",
        "drained",
    ):
        assert report is not None
        assert report[0] == "more"
    finished = runner.execute(
        "select status, expired from expiration.finish_run(%s, 'drained')", run
    ).fetchone()
    assert finished == ("completed", 30)
    assert db.rows(EXPIRED) == [(30, 30, 60, 60, 30)]
    db.rows(FILL)
    runner.execute("select from crm.expire_leads_batch(batch_size => 100)")
    runner.execute("select from crm.expire_bookings_batch('Reserve')")
    runner.execute("select from crm.expire_bookings_batch('Booking')")
    assert db.rows(EXPIRED) == [(60, 60, 120, 120, 60)]
    runner.execute("call expiration.run_upkeep()")
    assert runner.execute("select count(*) from expiration.status where due = 0").fetchone() == (2,)


def test_an_operator_controls_the_jobs(db: Database) -> None:
    operator = db.connect("crm_operator")
    operator.execute("select from expiration.pause('lead-expiration', 'because')")
    operator.execute("select from expiration.start_run('lead-expiration')")
    paused = "select why_not like 'paused by %: because' from expiration.status where paused"
    assert operator.execute(paused).fetchall() == [(True,)]
    operator.execute("select from expiration.resume('lead-expiration')")
    operator.execute("select from expiration.set_job('lead-expiration', batch_size => 7)")
    operator.execute("select from expiration.start_run('lead-expiration')")
    assert operator.execute("select batch_size from expiration.stop('lead-expiration')").fetchall() == [(7,)]
    operator.execute("select from expiration.retry_failed('lead-expiration')")


def test_a_monitor_sees_every_view(db: Database) -> None:
    db.rows(FILL)
    db.rows("alter table crm.leads add constraint no_more check (status = 'Active') not valid")
    with db.connect("crm_runner") as runner:
        runner.execute("call expiration.run_job('lead-expiration')")
        runner.execute("call expiration.run_job('booking-expiration')")
    monitor = db.connect("crm_monitor")
    for view, rows in {
        "status": 2,
        "history": 2,
        "run": 2,
        "failed": 30,
        "failed_item": 30,
        "batch_total": 3,
        "run_total": 2,
        "job_figures": 2,
        "due_figures": 3,
    }.items():
        assert len(monitor.execute(f"select * from expiration.{view}".encode()).fetchall()) == rows, view
    for query in (
        "select * from expiration.log_event",
        "select * from expiration.preview('lead-expiration')",
        "select l.* from expiration.run as r cross join expiration.log_item(r.id) as l",
        "select i.* from expiration.run as r cross join expiration.batch_item(r.id, 1) as i",
        "select outbox.traceparent(r.id, 0) from expiration.run as r",
        "select * from outbox.partition",
        "select * from outbox.partition_figures",
        "select * from expiration.lateness_histogram",
        "select * from expiration.duration_histogram",
    ):
        assert monitor.execute(query.encode()).fetchall() != []


def test_the_app_gives_every_command_and_reads_what_it_wrote(db: Database) -> None:
    app = db.connect("crm_app")
    lead = app.execute(
        "insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)"
        " values (gen_random_uuid(), gen_random_uuid(), now() + interval '1 day') returning id"
    ).fetchone()
    app.execute("insert into crm.deals (tenant_id, lead_id) values (gen_random_uuid(), %s)", lead)
    app.execute("insert into crm.fixations (tenant_id, lead_id) values (gen_random_uuid(), %s)", lead)
    app.execute("select from crm.extend_lead(%s, 1, now() + interval '2 days')", lead)
    booking = app.execute(
        "select id from crm.reserve_property("
        "gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now() + interval '1 day')"
    ).fetchone()
    app.execute("select from crm.confirm_booking(%s, 1, now() + interval '2 days')", booking)
    app.execute("select from crm.extend_booking(%s, 2, now() + interval '3 days')", booking)
    app.execute("select from crm.cancel_booking(%s, 3)", booking)
    assert app.execute("select effective_status from crm.effective_bookings").fetchall() == [("Cancelled",)]
    assert app.execute("select version, effective_status from crm.effective_leads").fetchall() == [
        (2, "Active")
    ]
    assert app.execute("select count(*) from crm.deal_timeline").fetchone() == (4,)
    assert app.execute("select count(*) from crm.audit_log").fetchone() == (5,)
    # who gave the command, not who owns the function
    assert app.execute("select distinct actor = session_user from crm.audit_log").fetchall() == [(True,)]


# ------------------------------------------------------------------------------------------ shadowing

SHADOWED_TABLES: Final = (
    *(
        "leads",
        "bookings",
        "deals",
        "fixations",
        "deal_timeline",
        "audit_log",
        "event",
        "event_default",
        "settings",
    ),
    *(
        "job",
        "run",
        "batch",
        "failed_item",
        "due_item",
        "batch_tally",
        "run_tally",
        "lateness_tally",
        "status",
    ),
    *("pg_stat_activity", "pg_class", "pg_proc", "pg_extension", "pg_inherits", "pg_roles"),
)
SHADOWED_TYPES: Final = (
    *(
        "text",
        "int4",
        "int8",
        "bool",
        "uuid",
        "jsonb",
        "timestamptz",
        "interval",
        "xid",
        "claim",
        "batch_result",
    ),
    *("batch_report", "float8", "numeric", "date", "regclass"),
)
SHADOWED_FUNCTIONS: Final = (
    "now() returns timestamptz",
    "clock_timestamp() returns timestamptz",
    "statement_timestamp() returns timestamptz",
    "gen_random_uuid() returns uuid",
    "pg_backend_pid() returns integer",
    "format(text) returns text",
    "format(text, variadic text[]) returns text",
    "to_char(timestamp, text) returns text",
    "cardinality(anyarray) returns integer",
    "hashtext(text) returns integer",
    "pg_sleep_for(interval) returns void",
    "pg_advisory_xact_lock(integer, integer) returns void",
    "pg_current_wal_insert_lsn() returns pg_lsn",
    "isfinite(timestamptz) returns boolean",
    "current_setting(text) returns text",
    "to_regclass(text) returns regclass",
    "random() returns float8",
    "raise_error(text, variadic text[]) returns void",
    "run_batch(uuid) returns text",
)
SHADOWED_OPERATORS: Final = {
    "=": ("text", "uuid", "timestamptz", "integer", "bigint", "boolean", "xid", "interval", "numeric"),
    "<>": ("text", "integer", "uuid"),
    "<": ("timestamptz", "integer", "bigint", "interval"),
    ">": ("timestamptz", "integer", "bigint", "interval"),
    ">=": ("integer", "timestamptz"),
    "<=": ("integer", "timestamptz"),
    "||": ("text", "jsonb"),
    "+": ("integer", "bigint"),
    "-": ("integer", "timestamptz"),
    "*": ("integer", "bigint"),
}


def lay_traps(connection: Connection) -> None:
    """Objects of the login's own, named like ours and like PostgreSQL's; whoever meets a function raises."""
    connection.execute("create schema trap")
    body = "language plpgsql as $$ begin raise exception 'fooled' using errcode = 'TRAP0'; end $$"
    for function in SHADOWED_FUNCTIONS:
        connection.execute(f"create function trap.{function} {body}".encode())
    for operator, kinds in SHADOWED_OPERATORS.items():
        for kind in kinds:
            result = "boolean" if operator in ("=", "<>", "<", ">", ">=", "<=") else kind
            function = f'trap."{operator} {kind}"'
            connection.execute(f"create function {function}({kind}, {kind}) returns {result} {body}".encode())
            connection.execute(
                f"create operator trap.{operator}"
                f" (leftarg = {kind}, rightarg = {kind}, function = {function})".encode()
            )
    for table in SHADOWED_TABLES:
        connection.execute(f"create temporary table {table} (like pg_catalog.pg_description)".encode())
    for kind in SHADOWED_TYPES:
        if kind not in SHADOWED_TABLES:
            connection.execute(f"create type pg_temp.{kind} as (trap pg_catalog.int2)".encode())


PATHS: Final = {
    "traps first": "trap, pg_temp, pg_catalog",
    "temporary first": "pg_temp, trap, pg_catalog, crm, expiration, outbox",
    "empty": "",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_callers_own_objects_change_nothing_of_what_the_jobs_do(db: Database, path: str) -> None:
    db.rows(FILL)
    poison = db.value(
        "insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)"
        " values (gen_random_uuid(), gen_random_uuid(), now() - interval '1 year') returning id"
    )
    db.rows(
        sql.SQL("alter table crm.leads add constraint poison check (status <> 'Expired' or id <> {})").format(
            sql.Literal(poison)
        )
    )
    db.rows(sql.SQL("grant create on database {} to crm_runner").format(sql.Identifier(db.name)))
    runner = db.connect("crm_runner")
    lay_traps(runner)
    runner.execute("select pg_catalog.set_config('search_path', %s, false)", (PATHS[path],))
    runner.execute("call expiration.run_job('lead-expiration')")
    runner.execute("call expiration.run_job('booking-expiration')")
    assert db.rows(EXPIRED) == [(30, 30, 60, 60, 30)]
    assert db.rows("select status, reason, expired, failed from expiration.run order by started_at") == [
        ("completed", "drained", 30, 1),
        ("completed", "drained", 30, 0),
    ]
    db.rows(FILL)
    run = runner.execute(
        "select (r).id from expiration.start_run('lead-expiration', 'pyrunner') as r"
    ).fetchone()
    for _ in range(3):
        runner.execute("select from expiration.run_batch(%s)", run)
    runner.execute("select from expiration.finish_run(%s, 'drained')", run)
    runner.execute("select from crm.expire_bookings_batch('Reserve')")
    runner.execute("select from crm.expire_bookings_batch('Booking')")
    assert db.rows(EXPIRED) == [(60, 60, 120, 120, 60)]
    runner.execute("call expiration.run_upkeep()")
    for view in ("status", "history", "failed", "log_event", "batch_total", "run_total"):
        rows = runner.execute(f"select * from expiration.{view}".encode()).fetchall()
        assert rows != [], view
    runner.execute("select from expiration.preview('lead-expiration')")
    with pytest.raises(psycopg.Error) as refusal:
        runner.execute("select from expiration.run_batch('00000000-0000-0000-0000-000000000001')")
    assert refusal.value.sqlstate == "XP006"
    for table in SHADOWED_TABLES:
        count = runner.execute(
            sql.SQL("select count(*) from pg_temp.{}").format(sql.Identifier(table))
        ).fetchone()
        assert count == (0,), table


@pytest.mark.parametrize("path", PATHS)
def test_a_callers_own_objects_change_nothing_of_what_the_commands_do(db: Database, path: str) -> None:
    db.rows(sql.SQL("grant create on database {} to crm_app").format(sql.Identifier(db.name)))
    app = db.connect("crm_app")
    lay_traps(app)
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    app.execute("select pg_catalog.set_config('search_path', %s, false)", (PATHS[path],))
    lead = app.execute(
        "insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)"
        " values (pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid(), %s) returning id",
        (tomorrow,),
    ).fetchone()
    assert lead is not None
    app.execute("select from crm.extend_lead(%s, 1, %s)", (*lead, tomorrow + dt.timedelta(days=1)))
    booking = app.execute(
        "select (r).id from crm.reserve_property("
        "pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid(), %s) as r",
        (tomorrow,),
    ).fetchone()
    assert booking is not None
    app.execute("select from crm.confirm_booking(%s, 1, %s)", (*booking, tomorrow))
    app.execute("select from crm.extend_booking(%s, 2, %s)", (*booking, tomorrow + dt.timedelta(days=1)))
    app.execute("select from crm.cancel_booking(%s, 3)", booking)
    assert app.execute("select effective_status from crm.effective_bookings").fetchall() == [("Cancelled",)]
    assert db.rows("select action from crm.audit_log order by occurred_at, action") == [
        (action,) for action in ("Extend", "Reserve", "Confirm", "Extend", "Cancel")
    ]
    # the refusals too are ours
    for statement, sqlstate in {
        "select from crm.cancel_booking('00000000-0000-0000-0000-000000000001', 3)": "XP102",
        "select from crm.cancel_booking(null, 3)": "XP005",
    }.items():
        with pytest.raises(psycopg.Error) as refusal:
            app.execute(statement.encode())
        assert refusal.value.sqlstate == sqlstate


def test_the_outbox_refuses_updates_whatever_the_path(db: Database) -> None:
    db.rows(FILL)
    db.rows("call expiration.run_job('lead-expiration')")
    owner = db.connect()
    lay_traps(owner)
    for path in PATHS.values():
        owner.execute("select pg_catalog.set_config('search_path', %s, false)", (path,))
        with pytest.raises(psycopg.Error) as refusal:
            owner.execute("update outbox.event set topic = 'elsewhere'")
        assert refusal.value.sqlstate == "XP010"


def test_the_traps_do_catch_an_unqualified_name(db: Database) -> None:
    """Otherwise the tests above would show nothing."""
    db.rows(sql.SQL("grant create on database {} to crm_runner").format(sql.Identifier(db.name)))
    runner = db.connect("crm_runner")
    lay_traps(runner)
    runner.execute("select pg_catalog.set_config('search_path', %s, false)", (PATHS["traps first"],))
    for statement in (
        "select now()",
        "select 'a'::pg_catalog.text = 'b'::pg_catalog.text",
        "select format('%s', 'x')",
    ):
        with pytest.raises(psycopg.Error) as caught:
            runner.execute(statement.encode())
        assert caught.value.sqlstate == "TRAP0", statement
    assert runner.execute("select pg_catalog.count(*) from run").fetchone() == (0,)

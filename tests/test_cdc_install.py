"""`pyrunner cdc install` and `uninstall`: complete or not at all, and one sentence for whatever is wrong."""

import contextlib
import json
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pyrunner.cdc import PasswordFile, install
from pyrunner.cdc.setup import CONNECTOR_CLASS, DEBEZIUM_CLASS
from pyrunner.cdc.source import Source
from pyrunner.database import connect
from pyrunner.errors import PyrunnerError
from pyrunner.postgres import free_port
from pyrunner.stack import Stack
from pyrunner.stack.files import filled_properties
from tests.cdc import Cdc, cdc
from tests.commands import Answer, pyrunner
from tests.kafka import admin, connect_client, delete_topics, make_topics, topics
from tests.servers import Database, Server

__all__ = ["cdc"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def one_sentence(answer: Answer, *parts: str) -> None:
    """One sentence that says all of it, with a remedy below, and nothing else."""
    first, *rest = answer.err.splitlines()
    assert first.startswith("pyrunner: "), answer.err
    for part in parts:
        assert part in answer.err, answer.err
    assert len(rest) == 1, answer.err
    assert rest[0].startswith("  "), answer.err
    assert answer.out == ""


# --------------------------------------------------------------------------------------------- two commands


@pytest.mark.requirement("L10", "B8", "X3")
def test_one_command_brings_an_expired_booking_to_kafka_and_another_takes_it_all_down(
    cdc: Cdc, stack: Stack, stack_db: Database
) -> None:
    # by the names that everybody has who gives none
    plain = replace(cdc, options=(), setup=replace(
        cdc.setup, connector="crm-outbox", slot="crm_outbox", role="debezium", topic_prefix="crm"
    ))  # fmt: skip
    with plain.nothing_changes():
        assert plain.install() == {
            "crm_outbox": "made",
            "debezium": "made",
            str(plain.password_file): "made",
            "pin.crm.lead-expired.v1": "made",
            "pin.crm.booking-expired.v1": "made",
            "__debezium-heartbeat.crm": "made",
            "crm-outbox": "made",
        }
        (event,) = plain.expire_bookings(1)
        (record,) = plain.arrived([event])
        ((booking, payload),) = stack_db.rows("select aggregate_id, payload from outbox.event")
        assert record.topic == "pin.crm.booking-expired.v1"
        assert record.key == str(booking).encode()
        assert json.loads(record.value or b"") == payload
        assert record.headers["replayed"] is None
        assert set(plain.install().values()) == {"kept"}
        assert plain.run("status", "--json").json["healthy"] is True
        removed = plain.run("uninstall", "--yes", "--drop-role", "--json").json
        assert {step["name"]: step["action"] for step in removed} == {
            "crm-outbox": "removed",
            "_connect_offsets_crm-outbox": "removed",
            "crm_outbox": "removed",
            "__debezium-heartbeat.crm": "removed",
            "pin.crm.lead-expired.v1": "kept",
            "pin.crm.booking-expired.v1": "kept",
            "debezium": "removed",
        }
        again = plain.run("uninstall", "--yes", "--drop-role", "--json").json
        assert {step["action"] for step in again} == {"absent", "kept"}
        # its events are still there to be read
        assert [one.id for one in plain.records()] == [event]
        delete_topics(stack, plain.setup.event_topics)
        plain.password_file.unlink()


@pytest.mark.requirement("X3")
def test_after_an_uninstall_the_same_names_can_be_installed_again(cdc: Cdc) -> None:
    cdc.install()
    first = cdc.expire_leads(2)
    cdc.arrived(first)
    cdc.run("uninstall", "--yes")
    between = cdc.expire_leads(2)
    answer = cdc.run("install")
    assert "older events: pyrunner cdc recover" in answer.out
    then = cdc.expire_leads(2)
    # the new slot begins where it was made
    assert sorted(record.id for record in cdc.arrived(then)) == sorted(first + then)
    assert cdc.run("verify", "--json", code=9).json["missing"] == len(between)


def test_every_name_can_be_given(cdc: Cdc, stack_db: Database) -> None:
    other = cdc.named(role='Debezium "9"; --', namespace="stage.", publication="others")
    try:
        made = other.install("--partitions", "2", "--retention", "1 d")
        assert made["stage.pin.crm.lead-expired.v1"] == "made"
        assert topics(cdc.stack)["stage.pin.crm.lead-expired.v1"] == 2
        (event,) = other.expire_leads(1)
        (record,) = other.arrived([event])
        assert record.topic == "stage.pin.crm.lead-expired.v1"
        # what the connector knows need not be given again
        short = replace(other, options=("--name", other.setup.connector))
        assert set(short.install().values()) == {"kept"}
        assert short.run("status", "--json").json["healthy"] is True
        assert short.run("verify", "--json").json["arrived"] == 1
        short.run("uninstall", "--yes", "--drop-role")
        assert stack_db.value("select count(*) from pg_roles where rolname = %s", (other.setup.role,)) == 0
    finally:
        with contextlib.suppress(psycopg.errors.UndefinedObject):
            name = sql.Identifier(other.setup.role)
            stack_db.rows(sql.SQL("drop owned by {}").format(name))
            stack_db.rows(sql.SQL("drop role {}").format(name))


def test_what_differs_is_put_right_and_what_is_missing_made(
    cdc: Cdc, stack: Stack, stack_db: Database
) -> None:
    cdc.install()
    role = sql.Identifier(cdc.setup.role)
    stack_db.rows(sql.SQL("revoke usage on schema outbox from {}").format(role))
    stack_db.rows("select outbox.forget_slot(%s)", (cdc.setup.slot,))
    cdc.configure(poll__interval__ms="500", heartbeat__interval__ms="0")
    delete_topics(stack, [cdc.setup.heartbeat_topic])
    answer = cdc.run("install", "--json").json
    steps = {step["name"]: step for step in answer}
    assert steps[cdc.setup.role]["action"] == "changed"
    assert steps[cdc.setup.connector]["action"] == "changed"
    assert steps[cdc.setup.connector]["note"] == "heartbeat.interval.ms, poll.interval.ms"
    assert steps[cdc.setup.slot]["action"] == "kept"
    assert steps[cdc.setup.publication]["action"] == "kept"
    assert stack_db.value("select count(*) from outbox.slot") == 1
    assert set(cdc.install().values()) == {"kept"}
    cdc.arrived(cdc.expire_leads(3))


@pytest.mark.requirement("L11")
def test_a_connector_of_debeziums_own_class_is_taken_over_with_its_position(cdc: Cdc) -> None:
    """An installation of version 0.3.0, or one made by hand."""
    cdc.install()
    cdc.configure(connector__class=DEBEZIUM_CLASS)
    cdc.arrived(cdc.expire_leads(3))
    steps = {step["name"]: step for step in cdc.run("install", "--json").json}
    assert steps[cdc.setup.connector]["action"] == "changed"
    assert steps[cdc.setup.connector]["note"] == "connector.class"
    assert cdc.configuration()["connector.class"] == CONNECTOR_CLASS
    records = cdc.arrived(cdc.expire_leads(3))
    # each once, also those of before
    assert sorted(record.id for record in records) == sorted(cdc.outbox_ids())
    assert cdc.run("verify", "--json").json["missing"] == 0


def test_the_configuration_is_the_committed_one(cdc: Cdc) -> None:
    cdc.install()
    source = Source(cdc.setup, connect(cdc.db.dsn))
    with source.connection:
        wanted = cdc.setup.configuration(
            host=source.host, port=source.port, database=source.database, password_file=str(cdc.password_file)
        )
    assert {key: value for key, value in cdc.configuration().items() if key != "name"} == wanted
    assert wanted["exactly.once.support"] == "required"
    assert wanted["topic.creation.default.retention.ms"] == "604800000"


# --------------------------------------------------------------------------------------------- privileges


@pytest.mark.requirement("X3")
def test_the_role_can_read_the_log_and_nothing_else(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    password = PasswordFile(cdc.password_file).read()
    assert password is not None
    dsn = make_conninfo(stack_db.dsn, user=cdc.setup.role, password=password, passfile=None)
    assert stack_db.rows(
        "select rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolreplication from pg_roles where "
        "rolname = %s",
        (cdc.setup.role,),
    ) == [(False, False, False, False, True)]
    assert (
        stack_db.value("select count(*) from pg_auth_members where member = %s::regrole", (cdc.setup.role,))
        == 0
    )
    tables = stack_db.rows(
        "select c.oid::regclass::text from pg_class as c inner join pg_namespace as n on c.relnamespace = "
        "n.oid"
        " where n.nspname in ('crm', 'outbox', 'expiration', 'chessboard', 'notifications') and c.relkind in "
        "('r', 'p', 'v')"
    )
    assert len(tables) > 20
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as session:
        for (table,) in tables:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(sql.SQL("select from {}").format(sql.SQL(table)))


def test_an_installer_who_is_no_superuser_needs_only_what_the_documentation_says(
    cdc: Cdc, stack_db: Database
) -> None:
    """On PostgreSQL 15 only a superuser makes a role with REPLICATION; all else can be given."""
    password = "given by a superuser"
    stack_db.rows("drop role if exists platform")
    stack_db.rows(
        "create role platform login replication createrole password 'p' in role crm_owner, crm_operator"
    )
    stack_db.rows(sql.SQL("grant create on database {} to platform").format(sql.Identifier(stack_db.name)))
    ours = replace(cdc, db=_Login(stack_db, "platform", "p"))  # type: ignore[arg-type]
    try:
        if stack_db.server.major == 15:
            with cdc.nothing_changes():
                one_sentence(ours.run("install", code=5), "platform", "create replication users")
        stack_db.rows(
            sql.SQL("create role {} login replication password {}").format(
                sql.Identifier(cdc.setup.role), sql.Literal(password)
            )
        )
        cdc.password_file.write_text(f"password={password}\n")
        ours.run("install")
        cdc.arrived(cdc.expire_leads(2))
        ours.run("uninstall", "--yes")
    finally:
        stack_db.rows("drop owned by platform")
        stack_db.rows("drop role platform")


class _Login:
    """The database as another login sees it."""

    def __init__(self, database: Database, user: str, password: str) -> None:
        self.dsn = make_conninfo(database.dsn, user=user, password=password, passfile=None)
        self.rows = database.rows


def test_the_password_is_seen_nowhere(cdc: Cdc, stack: Stack, stack_db: Database) -> None:
    stack_db.rows(
        sql.SQL("alter database {} set log_statement = 'all'").format(sql.Identifier(stack_db.name))
    )
    answer = cdc.run("install", env={"PYRUNNER_TRACE": "1"})
    assert stat.S_IMODE(cdc.password_file.stat().st_mode) == 0o600
    password = PasswordFile(cdc.password_file).read()
    assert password is not None
    assert len(password) > 30
    with connect_client(stack) as connect:
        told = connect.get("/connectors?expand=info&expand=status").text
    for text in (
        answer.out,
        answer.err,
        told,
        stack.log("postgres").read_text(errors="replace"),
        stack.log("connect").read_text(errors="replace"),
    ):
        assert text
        assert password not in text
    assert f'create role "{cdc.setup.role}"' in stack.log("postgres").read_text(errors="replace")


def test_a_new_password_is_given_on_demand_only(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()

    def verifier() -> Any:
        return stack_db.value("select rolpassword from pg_authid where rolname = %s", (cdc.setup.role,))

    first = verifier()
    assert first.startswith("SCRAM-SHA-256$")
    cdc.password_file.unlink()
    one_sentence(cdc.run("install", code=2), cdc.setup.role, "its password is not known", "--set-password")
    assert verifier() == first
    assert cdc.install("--set-password")[cdc.setup.role] == "changed"
    assert verifier() != first
    cdc.run("restart")
    cdc.arrived(cdc.expire_leads(1))


def test_a_new_password_that_was_given_outlives_a_failed_installation(cdc: Cdc, stack_db: Database) -> None:
    """Others may use the role: its former password is gone, so the new one must be known."""
    cdc.install()
    cdc.password_file.unlink()
    unseen = str(cdc.password_file.parent / "unseen" / "debezium.properties")
    answer = cdc.run("install", "--set-password", "--connect-password-file", unseen, code=None)
    assert answer.code != 0
    password = PasswordFile(cdc.password_file).read()
    assert password is not None
    assert f"Role {cdc.setup.role} has the password of {cdc.password_file}" in answer.err
    assert password not in answer.err
    role = make_conninfo(stack_db.dsn, user=cdc.setup.role, password=password)
    with contextlib.closing(connect(role)) as connection:
        assert connection.execute("select current_user::text").fetchone() is not None
    cdc.install()
    cdc.run("restart")
    cdc.arrived(cdc.expire_leads(1))


# -------------------------------------------------------------------------------------------- the slot's wait


@pytest.mark.requirement("X3")
def test_whom_the_slot_waits_for_is_told(cdc: Cdc, stack_db: Database) -> None:
    other = stack_db.connect(autocommit=False, application_name="slowpoke")
    other.execute("select pg_current_xact_id()")
    with cdc.started("install") as process:
        wanted = f"The slot waits for the transaction of backend {other.info.backend_pid}"
        _wait_for_text(process, wanted)
        assert "(slowpoke), idle in transaction" in process.so_far.err
        assert cdc.states() == []
        other.rollback()
        process.wait()
    cdc.arrived(cdc.expire_leads(1))


def test_a_prepared_transaction_that_the_slot_waits_for_is_told(
    cdc: Cdc, private_server: Callable[..., Server]
) -> None:
    server = private_server(max_prepared_transactions="5")
    with server.database() as database:
        session = database.connect(autocommit=False)
        session.execute("select pg_current_xact_id()")
        session.execute("prepare transaction 'forgotten'")
        elsewhere = replace(cdc, db=database)
        answer = elsewhere.run("install", "--patience", "2 s", code=7)
        assert "prepared transaction 'forgotten' of postgres" in answer.err
        assert "commit prepared or rollback prepared" in answer.err
        session.autocommit = True
        session.execute("rollback prepared 'forgotten'")
        assert database.rows("select slot_name from pg_replication_slots") == []


def test_who_waits_too_long_leaves_nothing_behind(cdc: Cdc, stack_db: Database) -> None:
    other = stack_db.connect(autocommit=False)
    other.execute("select pg_current_xact_id()")
    with cdc.nothing_changes():
        answer = cdc.run("install", "--patience", "1 s", code=7)
    assert "could not be made within 1 s" in answer.err
    assert f"select pg_terminate_backend({other.info.backend_pid})" in answer.err


def test_a_slot_that_comes_when_it_was_given_up_is_dropped(cdc: Cdc, stack_db: Database) -> None:
    other = stack_db.connect(autocommit=False)
    other.execute("select pg_current_xact_id()")

    def give_up(_sentence: str) -> None:
        other.rollback()
        stack_db.wait_until(
            "select confirmed_flush_lsn is not null from pg_replication_slots where slot_name = %s",
            (cdc.setup.slot,),
        )
        raise KeyboardInterrupt

    with contextlib.closing(connect(stack_db.dsn)) as connection, cdc.nothing_changes():
        source = Source(cdc.setup, connection)
        with pytest.raises(KeyboardInterrupt):
            source.create_slot(patience=60, tell=give_up)


def test_an_interrupt_leaves_nothing_behind(cdc: Cdc, stack_db: Database) -> None:
    other = stack_db.connect(autocommit=False)
    other.execute("select pg_current_xact_id()")
    with cdc.nothing_changes(), cdc.started("install") as process:
        _wait_for_text(process, "The slot waits for")
        process.send(signal.SIGTERM)
        process.wait(code=130)


def _wait_for_text(process: Any, text: str) -> None:
    from tests.servers import wait_until

    wait_until(lambda: text in process.so_far.err, timeout=60, what=lambda: f"{text} in {process.so_far}")


# --------------------------------------------------------------------------------------------- half done


@pytest.mark.requirement("X3")
def test_a_failure_of_the_last_step_takes_everything_back(cdc: Cdc) -> None:
    """Where Connect cannot get to PostgreSQL shows only when the role is there."""
    with cdc.nothing_changes():
        answer = cdc.run("install", "--database-port", str(free_port()), code=2)
    lines = [line for line in answer.err.splitlines() if line.startswith("pyrunner: ")]
    assert len(lines) == 1
    assert "Connect does not get to PostgreSQL at 127.0.0.1:" in lines[0]
    assert "--database-host and --database-port" in answer.err
    # and what is right now goes through
    assert set(cdc.install().values()) == {"made"}


def test_what_was_there_before_a_failed_installation_is_there_after_it(cdc: Cdc, stack_db: Database) -> None:
    stack_db.rows("select outbox.create_publication(%s)", (cdc.setup.publication,))
    stack_db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (cdc.setup.slot,))
    make_topics(cdc.stack)
    with cdc.nothing_changes():
        cdc.run("install", "--database-port", str(free_port()), code=2)


def test_a_registration_that_was_there_before_a_failed_installation_is_there_after_it(
    cdc: Cdc, stack_db: Database
) -> None:
    """A slot that is registered for another connector of ours, which is gone."""
    cdc.install()
    with cdc.connect() as connect_:
        connect_.delete(cdc.path).raise_for_status()
    cdc.wait_until_unread()
    other = cdc.named(connector=f"{cdc.setup.connector}-2")
    unseen = str(cdc.password_file.parent / "unseen" / "debezium.properties")
    answer = other.run("install", "--set-password", "--connect-password-file", unseen, code=None)
    assert answer.code != 0
    assert other.states() == []
    assert stack_db.rows("select name, connector from outbox.slot") == [(cdc.setup.slot, cdc.setup.connector)]


def test_a_connector_that_does_not_come_up_is_taken_away_again(cdc: Cdc, stack_db: Database) -> None:
    """Its role may not log in any more by the time that its task starts."""
    cdc.install()
    cdc.run("uninstall", "--yes")
    stack_db.rows(sql.SQL("alter role {} connection limit 1").format(sql.Identifier(cdc.setup.role)))
    with cdc.nothing_changes():
        answer = cdc.run("install", code=1)
    assert f"Connector {cdc.setup.connector} " in answer.err
    stack_db.rows(sql.SQL("alter role {} connection limit -1").format(sql.Identifier(cdc.setup.role)))
    cdc.run("install")
    cdc.arrived(cdc.expire_leads(1))


# --------------------------------------------------------------------------------------------- bad input

BAD_NAMES = [
    ("--slot", 'it\'s "x"', "slot"),
    ("--slot", "Upper", "slot"),
    ("--slot", "x" * 64, "slot"),
    ("--publication", "drop'em", "publication"),
    ("--publication", "1st", "publication"),
    ("--name", "a/b", "connector"),
    ("--name", "", "connector"),
    ("--topic-prefix", "späß", "topic prefix"),
    ("--namespace", "a b", "namespace"),
    ("--role", "it's", "role"),
    ("--role", "", "role"),
]


@pytest.mark.parametrize(("option", "name", "what"), BAD_NAMES)
def test_a_name_that_cannot_be_is_refused(cdc: Cdc, option: str, name: str, what: str) -> None:
    answer = cdc.run("install", option, name, code=2)
    assert repr(name) in answer.err
    assert f"cannot be the {what}'s name" in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("option", "value"),
    [("--partitions", "0"), ("--replication-factor", "-1"), ("--retention", "0 s"), ("--patience", "soon")],
)
def test_a_number_that_cannot_be_is_refused(cdc: Cdc, option: str, value: str) -> None:
    answer = cdc.run("install", option, value, code=2)
    assert option in answer.err


@pytest.mark.parametrize("missing", ["PYRUNNER_CONNECT_URL", "PYRUNNER_BOOTSTRAP_SERVERS"])
def test_where_things_are_must_be_said(cdc: Cdc, missing: str) -> None:
    one_sentence(replace(cdc, environment={**cdc.environment, missing: ""}).run("install", code=2), missing)


def test_a_database_that_is_away(cdc: Cdc) -> None:
    answer = pyrunner(
        "cdc", "install", *cdc.options, dsn=f"host=127.0.0.1 port={free_port()} dbname=crm", code=3,
        env=cdc.environment,
    )  # fmt: skip
    assert "cannot be reached" in answer.err


def test_a_broker_that_is_away(cdc: Cdc) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with cdc.nothing_changes():
        answer = cdc.run("install", "--bootstrap-servers", nobody, code=3)
    one_sentence(
        answer, f"Kafka at {nobody} cannot be reached", "Connection refused", "PYRUNNER_BOOTSTRAP_SERVERS"
    )


@pytest.mark.parametrize("given", ["nonsense", "http://", "ftp://127.0.0.1", "127.0.0.1:8083"])
def test_an_address_of_connect_that_is_none(cdc: Cdc, given: str) -> None:
    one_sentence(cdc.run("install", "--connect", given, code=2), "cannot be understood", "http://host:8083")


def test_a_connect_that_is_away(cdc: Cdc) -> None:
    port = free_port()
    with cdc.nothing_changes():
        answer = cdc.run("install", "--connect", f"http://me:secret-word@127.0.0.1:{port}", code=3)
    one_sentence(
        answer, f"Kafka Connect at http://127.0.0.1:{port} cannot be reached", "PYRUNNER_CONNECT_URL"
    )
    assert "secret-word" not in answer.err


@pytest.fixture
def stranger() -> Iterator[str]:
    """Some web server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html>It works!</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_stranger_in_place_of_connect(cdc: Cdc, stranger: str) -> None:
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", "--connect", stranger, code=3), "is not Kafka Connect")


def test_everything_that_is_away_is_said_at_once(cdc: Cdc) -> None:
    answer = cdc.run(
        "install", "--connect", f"http://127.0.0.1:{free_port()}",
        "--bootstrap-servers", f"127.0.0.1:{free_port()}",
        code=3,
    )  # fmt: skip
    said = [line for line in answer.err.splitlines() if line.startswith("pyrunner: ")]
    assert len(said) == 2
    assert "Kafka at" in said[0]
    assert "Kafka Connect at" in said[1]


@pytest.mark.parametrize(
    ("partitions", "settings", "said"),
    [
        (3, {}, "partitions 3 and not 6"),
        (6, {"retention.ms": "1000"}, "retention.ms 1000 and not 604800000"),
        (6, {"cleanup.policy": "compact"}, "cleanup.policy compact and not delete"),
    ],
)
def test_a_topic_with_other_settings(
    cdc: Cdc, stack: Stack, partitions: int, settings: dict[str, str], said: str
) -> None:
    from confluent_kafka.cimpl import NewTopic

    name = cdc.setup.event_topics[0]
    config = {"cleanup.policy": "delete", "retention.ms": "604800000", "min.insync.replicas": "1", **settings}
    client = admin(stack)
    client.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", code=2), f"Topic {name} has other settings: {said}", "--partitions")


def test_more_replicas_than_brokers(cdc: Cdc) -> None:
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", "--replication-factor", "3", code=2), "factor of 3", "there are 1")


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("select pg_create_logical_replication_slot(%s, 'test_decoding')", "plugin test_decoding"),
        ("select pg_create_physical_replication_slot(%s)", "physical"),
    ],
)
def test_a_slot_of_another_kind(cdc: Cdc, stack_db: Database, statement: Any, kind: str) -> None:
    stack_db.rows(statement, (cdc.setup.slot,))
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", code=6), f"slot {cdc.setup.slot} of another kind", kind, "--slot")


def test_a_slot_of_another_database(cdc: Cdc, stack_db: Database, stack: Stack) -> None:
    with contextlib.closing(psycopg.connect(stack.dsn("postgres"), autocommit=True)) as session:
        session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (cdc.setup.slot,))
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", code=6), "of another kind", "database postgres")


def test_a_publication_of_something_else(cdc: Cdc, stack_db: Database) -> None:
    stack_db.rows("create publication crm_outbox for table crm.leads")
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", code=2), "crm_outbox publishes something else", "drop publication")


@pytest.mark.parametrize(
    ("attributes", "lacks"),
    [("login", "REPLICATION"), ("replication", "LOGIN"), ("", "LOGIN and REPLICATION")],
)
def test_a_role_that_lacks_a_right(cdc: Cdc, stack_db: Database, attributes: str, lacks: str) -> None:
    stack_db.rows(sql.SQL("create role {} {}").format(sql.Identifier(cdc.setup.role), sql.SQL(attributes)))
    cdc.password_file.write_text("password=x\n")
    try:
        with cdc.nothing_changes():
            answer = cdc.run("install", code=5)
            one_sentence(answer, f"The role {cdc.setup.role} lacks {lacks}.", "alter role")
        # the remedy is one
        stack_db.psql(answer.err.partition("As a superuser: ")[2].partition(";")[0])
        stack_db.rows(sql.SQL("alter role {} password 'x'").format(sql.Identifier(cdc.setup.role)))
        cdc.run("install")
    finally:
        stack_db.rows(sql.SQL("alter role {} replication").format(sql.Identifier(cdc.setup.role)))


def test_a_wrong_password_is_not_shown(cdc: Cdc, stack_db: Database) -> None:
    stack_db.rows(
        sql.SQL("create role {} login replication password 'right'").format(sql.Identifier(cdc.setup.role))
    )
    cdc.password_file.write_text("password=not-the-one\n")
    with cdc.nothing_changes():
        answer = cdc.run("install", code=3)
        one_sentence(answer, f"does not let {cdc.setup.role} in", str(cdc.password_file), "--set-password")
    assert "not-the-one" not in answer.err
    cdc.run("install", "--set-password")
    assert PasswordFile(cdc.password_file).read() == "not-the-one"


def test_a_password_is_read_as_java_reads_it(cdc: Cdc, stack_db: Database) -> None:
    password = "ä\\ö = :\"'#!"
    stack_db.rows(
        sql.SQL("create role {} login replication password {}").format(
            sql.Identifier(cdc.setup.role), sql.Literal(password)
        )
    )
    cdc.password_file.write_text("# ours\n\n  password = \\u00e4\\\\ö = :\"'\\#!\n", "utf-8")
    assert PasswordFile(cdc.password_file).read() == password
    cdc.run("install")


@pytest.mark.parametrize("text", ["", "# password=x\n", "passwort=x\n", "password=\n"])
def test_a_file_without_a_password(cdc: Cdc, text: str) -> None:
    cdc.password_file.write_text(text)
    with cdc.nothing_changes():
        one_sentence(cdc.run("install", code=2), "holds no password", "password=...")


def test_a_password_file_without_a_folder(cdc: Cdc) -> None:
    with cdc.nothing_changes():
        answer = cdc.run("install", "--password-file", str(cdc.password_file.parent / "none" / "x"), code=2)
    one_sentence(answer, "There is no folder", "none")


def test_a_password_file_that_connect_cannot_see(cdc: Cdc) -> None:
    with cdc.nothing_changes():
        answer = cdc.run("install", "--connect-password-file", f"{cdc.password_file}.elsewhere", code=2)
    assert "Connect cannot read the password's file" in answer.err
    assert "config.providers.file.param.allowed.paths" in answer.err


def test_no_password_file_at_all(cdc: Cdc) -> None:
    one_sentence(
        replace(cdc, environment=cdc.environment | {"PYRUNNER_CDC_PASSWORD_FILE": ""}).run("install", code=2),
        "which file holds the password", "--password-file",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- others' things


def test_the_connector_of_another_database_is_left_alone(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    with stack_db.server.database() as database:
        other = replace(cdc, db=database)
        with cdc.nothing_changes():
            for command in (("install",), ("uninstall", "--yes"), ("restart",), ("recover",)):
                answer = other.run(*command, code=6)
                assert f"There is a connector {cdc.setup.connector} with database.dbname" in answer.err
                assert "--name" in answer.err
    cdc.arrived(cdc.expire_leads(1))


def test_two_databases_go_to_the_same_topics_by_connectors_of_their_own(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    with stack_db.server.database() as database:
        second = replace(
            cdc.named(
                slot=f"{cdc.setup.slot}_b", connector=f"{cdc.setup.connector}-b", topic_prefix="second"
            ),
            db=database,
        )
        with second.nothing_changes():
            answer = second.named(topic_prefix=cdc.setup.topic_prefix).run("install", code=6)
            one_sentence(answer, f"Connector {cdc.setup.connector} has the topic prefix", "--topic-prefix")
        second.install()
        theirs, ours = second.expire_leads(2), cdc.expire_leads(2)
        cdc.arrived([*theirs, *ours])
        assert second.run("verify", "--json").json | {"strangers": 2} == second.run("verify", "--json").json
        second.run("uninstall", "--yes")


def test_uninstall_asks_and_says_what_would_not_be_delivered(cdc: Cdc) -> None:
    cdc.install()
    cdc.stop()
    cdc.expire_leads(3)
    with cdc.nothing_changes():
        one_sentence(
            cdc.run("uninstall", code=6), "3 events would not be delivered", "nobody can be asked", "--yes"
        )


def test_a_publication_that_another_slot_reads_stays(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    other = cdc.named(
        connector=f"{cdc.setup.connector}-2",
        slot=f"{cdc.setup.slot}_2",
        topic_prefix=f"{cdc.setup.topic_prefix}b",
    )
    other.install()
    steps = {one["what"]: one for one in other.run("uninstall", "--yes", "--json").json}
    assert (steps["publication"]["action"], steps["slot"]["action"]) == ("kept", "removed")
    assert cdc.setup.slot in steps["publication"]["note"]
    cdc.arrived(cdc.expire_leads(1))
    steps = {one["what"]: one for one in cdc.run("uninstall", "--yes", "--json").json}
    assert steps["publication"]["action"] == "removed"


def test_a_publication_that_is_not_ours_stays(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    name = sql.Identifier(cdc.setup.publication)
    stack_db.rows(sql.SQL("alter publication {} set (publish = 'insert, update')").format(name))
    steps = {one["what"]: one for one in cdc.run("uninstall", "--yes", "--json").json}
    assert steps["publication"]["action"] == "kept"
    assert stack_db.value("select count(*) from pg_publication") == 1


def test_uninstall_needs_no_password(cdc: Cdc, stack_db: Database) -> None:
    """Connect tells no offsets of a connector whose password it cannot read."""
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    cdc.password_file.unlink()
    steps = {one["what"]: one["action"] for one in cdc.run("uninstall", "--yes", "--json").json}
    assert (steps["connector"], steps["slot"]) == ("removed", "removed")
    assert (
        stack_db.value("select count(*) from pg_replication_slots where slot_name = %s", (cdc.setup.slot,))
        == 0
    )
    # nothing is passed over because of the offsets that it has kept
    gap = cdc.expire_leads(1)
    assert "older events: pyrunner cdc recover" in cdc.run("install", "--set-password").out
    assert cdc.run("recover", "--json").json["complete"] is True
    cdc.arrived(gap)
    assert cdc.run("verify", "--json").json["doubled"] == 0


def test_a_role_that_is_used_elsewhere_stays(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    stack_db.rows(sql.SQL("create table public.theirs ()"))
    stack_db.rows(sql.SQL("alter table public.theirs owner to {}").format(sql.Identifier(cdc.setup.role)))
    answer = cdc.run("uninstall", "--yes", "--drop-role", code=6)
    assert f"The role {cdc.setup.role} is in use elsewhere: owner of table theirs." in answer.err
    assert stack_db.value("select to_regclass('public.theirs') is not null") is True
    assert cdc.states() == []


def test_an_unreachable_part_keeps_uninstall_from_beginning(cdc: Cdc) -> None:
    cdc.install()
    with cdc.nothing_changes():
        cdc.run("uninstall", "--yes", "--connect", f"http://127.0.0.1:{free_port()}", code=3)
        cdc.run("uninstall", "--yes", "--bootstrap-servers", f"127.0.0.1:{free_port()}", code=3)


# --------------------------------------------------------------------------------------------- servers unfit


@pytest.mark.parametrize(
    ("settings", "said", "remedy"),
    [
        ({"wal_level": "replica"}, "wal_level is replica", "alter system set wal_level = 'logical'"),
        ({"max_replication_slots": "0"}, "All 0 replication slots", "max_replication_slots"),
        ({"max_wal_senders": "0"}, "All 0 WAL senders", "max_wal_senders"),
    ],
)
def test_a_server_that_is_not_set_up_for_it(
    cdc: Cdc, private_server: Callable[..., Server], settings: dict[str, str], said: str, remedy: str
) -> None:
    with private_server(**settings).database() as database:
        elsewhere = replace(cdc, db=database)
        with elsewhere.nothing_changes():
            one_sentence(elsewhere.run("install", code=2), said, remedy)


def test_the_last_slot_is_taken(cdc: Cdc, private_server: Callable[..., Server]) -> None:
    with private_server(max_replication_slots="1").database() as database:
        database.rows("select pg_create_physical_replication_slot('standby')")
        elsewhere = replace(cdc, db=database)
        with elsewhere.nothing_changes():
            one_sentence(elsewhere.run("install", code=2), "All 1 replication slots", "Drop one")


def test_a_database_with_a_name_that_needs_quotes(cdc: Cdc, stack_db: Database) -> None:
    with stack_db.server.database(name=f'o\'c "{stack_db.name}" & #;Ä') as database:
        odd = replace(cdc, db=database)
        odd.run("install")
        odd.arrived(odd.expire_leads(1))
        odd.run("uninstall", "--yes")


@pytest.mark.parametrize("odd", "?%+/")
def test_a_database_with_a_name_that_debezium_cannot_reach(cdc: Cdc, stack_db: Database, odd: str) -> None:
    with stack_db.server.database(name=f"{stack_db.name}{odd}") as database:
        elsewhere = replace(cdc, db=database)
        with elsewhere.nothing_changes():
            one_sentence(elsewhere.run("install", code=2), f"has {odd!r} in it", "alter database")


def test_a_database_without_our_schema(cdc: Cdc, stack_db: Database) -> None:
    with stack_db.server.database(installed=False) as database:
        one_sentence(replace(cdc, db=database).run("install", code=4), "pyrunner migrate")


@contextlib.contextmanager
def worker_without(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str]
) -> Iterator[None]:
    """Connect, restarted with other lines in its configuration, each in place of one that begins so."""

    def changed(name: str, values: dict[str, str]) -> str:
        text = filled_properties(name, values)
        if name != "connect.properties":
            return text
        for line, instead in changes.items():
            (found,) = [one for one in text.splitlines() if one.startswith(line)]
            text = text.replace(found, instead)
        return text

    stack.stop("connect")
    monkeypatch.setattr("pyrunner.stack.stack.filled_properties", changed)
    stack.start_connect()
    try:
        yield
    finally:
        monkeypatch.undo()
        stack.stop("connect")
        stack.start_connect()


def test_a_worker_without_exactly_once(cdc: Cdc, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"exactly.once": "exactly.once.source.support=disabled"}
    with worker_without(stack, monkeypatch, changes):
        with cdc.nothing_changes():
            answer = cdc.run("install", code=2)
        assert "has no exactly-once support" in answer.err
        assert "exactly.once.source.support=enabled" in answer.err


def test_a_worker_without_the_plugin(cdc: Cdc, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    # with the caretaker's line it would not even start
    changes = {"plugin.path": f"plugin.path={stack.folder / 'tmp'}", "rest.extension": ""}
    with worker_without(stack, monkeypatch, changes), cdc.nothing_changes():
        one_sentence(cdc.run("install", code=2), "has no pyrunner.OutboxConnector", "plugin.path")


# --------------------------------------------------------------------------------------------- from Python


def test_it_can_be_installed_from_python(cdc: Cdc) -> None:
    told: list[str] = []
    steps = install(cdc.setup, PasswordFile(cdc.password_file), tell=told.append)
    assert {step.action for step in steps} == {"made"}
    assert told
    with pytest.raises(PyrunnerError, match="publishes something else"):
        install(_with_wrong_publication(cdc), PasswordFile(cdc.password_file))


def _with_wrong_publication(cdc: Cdc) -> Any:
    cdc.db.rows("create publication wrong for table crm.leads")
    return replace(cdc.setup, publication="wrong")

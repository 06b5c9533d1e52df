"""`pyrunner cdc status`: each trouble is found, with a remedy that is one, and nothing else is found."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pyrunner.postgres import free_port
from pyrunner.stack import Part
from tests.cdc import Cdc, installed
from tests.commands import pyrunner
from tests.kafka import admin, delete_topics, topics
from tests.servers import wait_until

__all__ = ["installed"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Finding = dict[str, Any]


@pytest.fixture
def well(installed: Cdc) -> Iterator[Cdc]:
    """The module's database with all well; and it is so again at the end, by the remedies that were given."""
    if not is_well(installed):
        # a test before has failed half-way
        installed.stack.up()
        installed.run("uninstall", "--yes", code=None)
        installed.run("install", "--set-password")
        installed.run("recover")
    yield installed
    wait_until(lambda: is_well(installed), timeout=90, what=lambda: f"all is well: {status(installed)}")


def is_well(cdc: Cdc) -> bool:
    return cdc.run("status", code=None).code == 0


def status(cdc: Cdc, *arguments: str, code: int | None = None) -> Any:
    return cdc.run("status", "--json", *arguments, code=code).json


def trouble(found: Any) -> list[Finding]:
    return [one for one in found["findings"] if one["severity"] != "ok"]


def the(found: Any, part: str, severity: str = "error") -> Finding:
    """The one finding that says so, which must be of that severity and have a reason and a remedy."""
    said = [finding for finding in trouble(found) if part in finding["what"]]
    assert len(said) == 1, f"{part!r} in {[finding['what'] for finding in trouble(found)]}"
    assert said[0]["severity"] == severity, said[0]
    assert said[0]["why"]
    assert said[0]["remedy"]
    return said[0]


def seen(cdc: Cdc, part: str, severity: str = "error") -> Finding:
    """Waits until the finding is there, and returns it."""
    answers: list[Any] = []

    def is_there() -> bool:
        answers.append(status(cdc))
        return any(part in finding["what"] for finding in trouble(answers[-1]))

    wait_until(is_there, timeout=90, what=lambda: f"{part!r} in {trouble(answers[-1])}")
    return the(answers[-1], part, severity)


def remedied(cdc: Cdc, finding: Finding) -> None:
    """Types the remedy, a command of ours or SQL."""
    remedy = finding["remedy"]
    if remedy.startswith("pyrunner cdc "):
        cdc.run(*remedy.removeprefix("pyrunner cdc ").split())
    else:
        cdc.db.psql(remedy)


# --------------------------------------------------------------------------------------------- all is well


@pytest.mark.requirement("X3")
def test_where_all_is_well_it_says_how_far_everything_is(well: Cdc) -> None:
    events = well.expire_leads(3)
    well.arrived(events)
    found = status(well, code=0)
    assert trouble(found) == []
    assert {finding["check"] for finding in found["findings"]} == {"Connector", "Database", "Kafka"}
    assert found["healthy"] is True
    assert found["connector"] == {
        "name": well.setup.connector,
        "state": "RUNNING",
        "tasks": [{"id": 0, "state": "RUNNING"}],
    }
    assert found["slot"]["state"] == "active"
    assert found["slot"]["lag_bytes"] >= 0
    assert "/" in found["slot"]["confirmed_flush_lsn"]
    assert found["publication"] == {"name": well.setup.publication, "right": True}
    assert found["lastEventAt"] > "2026"
    text = well.run("status").out
    for part in ("healthy", "RUNNING, task 0 RUNNING", "active", "last event", "last heartbeat"):
        assert part in text


def test_looking_changes_nothing(well: Cdc) -> None:
    with well.nothing_changes():
        status(well, code=0)


def test_a_connector_that_reads_another_database_is_told_as_such(well: Cdc) -> None:
    with well.db.server.database() as database:
        found = status(replace(well, db=database), code=9)
        finding = the(found, f"reads database {well.db.name}, and this is {database.name}")
        assert "--name" in finding["remedy"]


def test_a_connector_that_goes_on_meanwhile_is_not_taken_for_one_left_behind(well: Cdc) -> None:
    confirmed = (
        "select confirmed_flush_lsn > (select max(lsn) from outbox.event)"
        " from pg_replication_slots where slot_name = %s"
    )
    # it has been somewhere
    well.arrived(well.expire_leads(1))
    well.db.wait_until(confirmed, (well.setup.slot,), timeout=60)
    stands = "select exists (select from pg_locks where not granted and relation = 'outbox.slot'::regclass)"
    with ThreadPoolExecutor(1) as other, well.db.connect(autocommit=False) as keeper:
        keeper.execute("lock table outbox.slot in access exclusive mode")
        answer = other.submit(status, well)
        # it stands before the slot at its beginning, and again once it has asked the connector
        well.db.wait_until(stands, timeout=60)
        keeper.rollback()
        keeper.execute("lock table outbox.slot in access exclusive mode")
        well.db.wait_until(stands, timeout=60)
        well.expire_leads(1)
        well.db.wait_until(confirmed, (well.setup.slot,), timeout=60)
        keeper.rollback()
        found = answer.result()
    assert [finding["what"] for finding in trouble(found)] == []


def test_nothing_installed_is_one_finding(well: Cdc) -> None:
    with well.db.server.database() as database:
        elsewhere = replace(
            well.named(slot="none_such", connector="none-such", topic_prefix="none"), db=database
        )
        found = status(elsewhere, code=9)
        assert len(trouble(found)) == 1
        assert the(found, "nothing is set up")["remedy"] == "pyrunner cdc install"


@pytest.mark.parametrize("role", ["crm_monitor", "crm_operator"])
def test_what_a_login_cannot_see_is_said(well: Cdc, role: str) -> None:
    found = pyrunner(
        "cdc", "status", "--json", *well.options, dsn=well.db.role_dsn(role), env=well.environment, code=0
    ).json
    assert found["slot"]["state"] == "active"
    for finding in trouble(found):
        assert finding["severity"] == "unseen"
        assert finding["remedy"]


# --------------------------------------------------------------------------------------------- Connect


def test_a_paused_connector(well: Cdc) -> None:
    with well.connect() as connect:
        connect.put(f"{well.path}/pause").raise_for_status()
    finding = seen(well, f"{well.setup.connector} is PAUSED")
    # the state of the connector comes before that of its task
    well.wait_for_states("PAUSED", "PAUSED")
    remedied(well, finding)
    well.arrived(well.expire_leads(1))


def test_a_stopped_connector_and_a_slot_that_nobody_reads(well: Cdc) -> None:
    well.stop()
    found = status(well, code=9)
    the(found, "nobody reads slot")
    remedied(well, the(found, f"{well.setup.connector} is STOPPED"))
    assert "runs already" in well.run("restart").out


@pytest.mark.requirement("X3")
def test_a_connector_that_was_deleted(well: Cdc) -> None:
    with well.connect() as connect:
        connect.delete(well.path).raise_for_status()
    well.wait_until_unread()
    events = well.expire_leads(2)
    finding = seen(well, f"Connect does not know connector {well.setup.connector}")
    assert well.run("restart", code=6).err.count("\n") == 2
    assert "pyrunner cdc install" in well.run("recover", code=6).err
    remedied(well, finding)
    well.arrived(events)
    assert well.run("verify", "--json").json["doubled"] == 0


def test_a_setting_that_somebody_changed(well: Cdc) -> None:
    well.configure(max__batch__size="100", heartbeat__interval__ms="4000")
    finding = seen(well, "differs from ours in heartbeat.interval.ms, max.batch.size", "warning")
    assert status(well, code=10)["healthy"] is False
    remedied(well, finding)


def test_a_task_that_failed_says_why(well: Cdc) -> None:
    """A transform that cannot be carried out stands for whatever a task may trip over."""
    well.configure(transforms__outbox__route__by__field="no_such_column")

    def failed() -> Finding | None:
        # the task with the settings of before may still take some
        well.expire_leads(1)
        return next((one for one in trouble(status(well)) if "has failed" in one["what"]), None)

    finding = wait_until(failed, timeout=90, what="the task has failed")
    assert finding is not None
    assert "no_such_column" in finding["what"]
    assert "\n" not in finding["what"]
    assert finding["remedy"] == "mend that, then: pyrunner cdc restart"
    answer = well.run("restart", code=1)
    assert "no_such_column" in answer.err
    assert answer.err.count("pyrunner: ") == 1
    well.run("install")
    assert well.run("verify", "--json").json["missing"] == 0


def test_a_password_file_that_is_gone(well: Cdc) -> None:
    kept = well.password_file.read_text()
    well.password_file.unlink()
    try:
        finding = the(status(well, code=9), "Could not read properties from file")
        assert finding["remedy"].endswith("pyrunner cdc install --set-password")
    finally:
        well.password_file.write_text(kept)


# --------------------------------------------------------------------------------------------- PostgreSQL


def test_a_slot_that_is_not_registered(well: Cdc) -> None:
    well.arrived(well.expire_leads(1))
    well.wait_until_confirmed()
    well.db.rows("select outbox.forget_slot(%s)", (well.setup.slot,))
    remedied(well, seen(well, f"slot {well.setup.slot} is not registered"))
    # retention did not wait for it meanwhile
    remedied(well, seen(well, "was made or registered when events were there already"))


def test_a_slot_that_is_registered_as_somebody_elses(well: Cdc) -> None:
    well.db.rows("select outbox.register_slot(%s, 'other', 'other')", (well.setup.slot,))
    remedied(well, seen(well, "is registered for connector other and publication other", "warning"))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("alter role {} nologin", "may not login"),
        ("revoke usage on schema outbox from {}", "may not use schema"),
    ],
)
def test_a_role_that_has_lost_a_right(well: Cdc, statement: str, said: str) -> None:
    role = sql.Identifier(well.setup.role)
    well.db.rows(sql.SQL(statement).format(role))
    remedied(well, seen(well, f"role {well.setup.role} {said}"))


def test_events_that_wait_too_long(well: Cdc) -> None:
    well.stop()
    events = well.expire_leads(4)
    well.db.wait_until(
        "select backlog_seconds > 1 from outbox.slot_status where name = %s", (well.setup.slot,)
    )
    assert not [f for f in trouble(status(well)) if "not delivered" in f["what"]]
    finding = the(status(well, "--max-age", "1 s", code=9), "4 events not delivered, the oldest for")
    assert "1 s" in finding["why"]
    well.run("restart")
    well.arrived(events)


def test_a_slot_that_is_about_to_be_lost(well: Cdc) -> None:
    well.stop()
    try:
        well.db.rows("alter system set max_slot_wal_keep_size = '64MB'")
        well.db.rows("select pg_reload_conf()")
        _fill_log(well, 40)
        finding = seen(well, f"slot {well.setup.slot} is about to lose its place", "warning")
        assert "max_slot_wal_keep_size" in finding["remedy"]
    finally:
        well.db.rows("alter system reset max_slot_wal_keep_size")
        well.db.rows("select pg_reload_conf()")
        well.run("restart")


def _fill_log(cdc: Cdc, megabytes: int) -> None:
    """Writes so much log that has nothing to do with the outbox."""
    cdc.db.rows("create table if not exists public.foreign_wal (t text)")
    # incompressible, and not moved out of line
    cdc.db.rows(
        "insert into public.foreign_wal select string_agg(md5(random()::text), '')"
        " from generate_series(1, %s) as row, generate_series(1, 40) as part group by row",
        (megabytes * 800,),
    )


# --------------------------------------------------------------------------------------------- the outbox


def test_an_event_that_cannot_be_delivered_is_named_before_it_is_tried(well: Cdc) -> None:
    well.stop()
    (event,) = _force(well, "jsonb_build_object('note', repeat('x', 1100000))")
    finding = the(status(well, code=9), f"event {event} ")
    assert "its payload has 1100012 bytes" in finding["what"]
    well.db.psql(finding["remedy"].partition("; then")[0].partition("keep a copy; ")[2])
    remedied(well, {"remedy": finding["remedy"].partition("then: ")[2]})
    well.arrived(well.expire_leads(1))


def _force(cdc: Cdc, payload: str, topic: str = "pin.crm.lead-expired.v1") -> list[str]:
    """A superuser puts an event into the outbox by hand."""
    rows = cdc.db.rows(
        sql.SQL(
            "insert into outbox.event (aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
            " values ('Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', {}, {}) returning id"
        ).format(sql.Literal(topic), sql.SQL(payload))
    )
    return [str(row[0]) for row in rows]


def test_messages_that_a_consumer_has_put_aside(well: Cdc) -> None:
    for schema in ("chessboard", "notifications"):
        well.db.rows(
            sql.SQL("select {}.park('some.topic', 0, 7, null, null, null, null, 'no JSON')").format(
                sql.Identifier(schema)
            )
        )
        finding = the(
            status(well, code=10), f"consumer {schema} has put aside 1 message of some.topic", "warning"
        )
        well.db.psql(finding["remedy"].partition(";")[0])
        assert finding["remedy"].endswith(f"select {schema}.dismiss_parked(id);")
        well.db.psql(f"select {schema}.dismiss_parked(id) from {schema}.parked;")


# --------------------------------------------------------------------------------------------- Kafka


@pytest.mark.parametrize("number", [0, 2])
def test_a_topic_that_is_gone(well: Cdc, number: int) -> None:
    name = well.setup.topics[number].name
    if name == well.setup.heartbeat_topic:
        # which its connector would make anew at once
        well.stop()
    delete_topics(well.stack, [name])
    seen(well, f"topic {name} is missing")
    well.run("install")
    assert name in topics(well.stack)
    if number == 0:
        # what was in it is in the outbox still
        well.run("recover")
    # a transaction to a topic that is away may have expired meanwhile, and the task with it
    wait_until(lambda: _is_well_or_restarted(well), timeout=120, what=lambda: str(trouble(status(well))))


def _is_well_or_restarted(cdc: Cdc) -> bool:
    found = status(cdc)
    if any(finding["remedy"] == "pyrunner cdc restart" for finding in trouble(found)):
        cdc.run("restart")
    return not trouble(found)


def test_a_topic_with_other_settings(well: Cdc) -> None:
    name = well.setup.event_topics[1]
    client = admin(well.stack)

    def alter(value: str) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(30)

    alter("1000000")
    finding = seen(
        well, f"topic {name} has other settings: retention.ms 1000000 and not 604800000", "warning"
    )
    assert "--retention" in finding["remedy"]
    alter("604800000")


@pytest.mark.requirement("X3")
def test_heartbeats_that_do_not_come(well: Cdc) -> None:
    well.configure(heartbeat__interval__ms="0")
    finding = seen(well, "the last heartbeat is")
    assert "holds the log back" in finding["why"]
    the(status(well), "differs from ours in heartbeat.interval.ms", "warning")
    remedied(well, finding)


# --------------------------------------------------------------------------------------------- parts away


@pytest.mark.parametrize(
    ("arguments", "check", "still"),
    [
        (("--connect", "http://127.0.0.1:{port}"), "Connector", "slot"),
        (("--bootstrap-servers", "127.0.0.1:{port}"), "Kafka", "slot"),
    ],
)
def test_a_part_that_is_away_is_a_finding_and_the_others_are_looked_at(
    well: Cdc, arguments: tuple[str, ...], check: str, still: str
) -> None:
    given = [one.format(port=free_port()) for one in arguments]
    found = status(well, *given, code=9)
    (finding,) = trouble(found)
    assert (finding["check"], finding["severity"]) == (check, "error")
    assert "cannot be reached" in finding["what"]
    assert found[still]["state"] == "active"


def test_a_database_that_is_away_is_a_finding(well: Cdc) -> None:
    dsn = make_conninfo(well.db.dsn, port=free_port())
    answer = pyrunner("cdc", "status", "--json", *well.options, dsn=dsn, env=well.environment, code=9)
    assert "cannot be reached" in the(answer.json, "cannot be reached")["what"]
    assert answer.json["connector"]["state"] == "RUNNING"
    assert answer.json["lastHeartbeatAt"]


@pytest.mark.parametrize("part", ["broker", "connect"])
def test_a_part_that_was_killed(well: Cdc, part: Part) -> None:
    """RUNNING does not say that anything arrives: with the broker away Connect still says so."""
    well.stack.kill(part)
    try:
        found = status(well, code=9)
        assert any("cannot be reached" in finding["what"] for finding in trouble(found))
    finally:
        well.stack.up()
    well.arrived(well.expire_leads(1))

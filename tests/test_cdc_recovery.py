"""After a fault: what was not delivered is found by comparing outbox and Kafka, and exactly that is sent."""

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from psycopg import sql

from tests.cdc import Cdc, cdc
from tests.commands import pyrunner
from tests.domain import LEADS, add_leads, refused, run_job
from tests.kafka import Record, admin, delete_topics
from tests.servers import Database, wait_until

__all__ = ["cdc"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def verdict(cdc: Cdc, *arguments: str, code: int | None = 0) -> Any:
    return cdc.run("verify", "--json", *arguments, code=code).json


def findings(cdc: Cdc) -> dict[str, str | None]:
    """What status complains of, with the remedy of each."""
    found = cdc.run("status", "--json", code=None).json["findings"]
    return {one["what"]: one["remedy"] for one in found if one["severity"] in ("error", "warning")}


def complained(cdc: Cdc, part: str) -> str:
    """Waits until status complains of that; the remedy."""
    seen: list[dict[str, str | None]] = []

    def is_there() -> str | None:
        seen.append(findings(cdc))
        return next((remedy for what, remedy in seen[-1].items() if part in what), None)

    remedy = wait_until(is_there, timeout=90, what=lambda: f"{part!r} in {seen[-1]}")
    assert remedy is not None
    return remedy


def replayed(records: Sequence[Record]) -> list[str]:
    """The events that came by a replay, in the order in which they came."""
    return [record.id for record in records if record.headers["replayed"] is not None]


def assert_complete(cdc: Cdc, *, again: Sequence[str] = ()) -> None:
    """Kafka has every event of the outbox once, and those of `again` by a replay; the rest is well, too."""
    wait_until(lambda: cdc.run("status", code=None).code == 0, timeout=90, what=lambda: str(findings(cdc)))
    found = verdict(cdc)
    assert (found["missing"], found["doubled"], found["lost"], found["decided"]) == (0, 0, 0, True)
    records = cdc.records()
    assert Counter(record.id for record in records) == Counter(set(cdc.outbox_ids()))
    assert sorted(replayed(records)) == sorted(again)


def recovered(cdc: Cdc, *arguments: str) -> Any:
    return cdc.run("recover", "--json", *arguments).json


def end_readers(cdc: Cdc) -> None:
    cdc.db.rows(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active",
        (cdc.setup.slot,),
    )


def drop_slot(cdc: Cdc) -> None:
    """Whoever reads from it is quick to come back."""

    def is_dropped() -> bool:
        end_readers(cdc)
        with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            cdc.db.rows("select pg_drop_replication_slot(%s)", (cdc.setup.slot,))
        return not cdc.db.rows("select from pg_replication_slots where slot_name = %s", (cdc.setup.slot,))

    wait_until(is_dropped, timeout=60, what="the slot is dropped")


# --------------------------------------------------------------------------------------------- a lost slot


@pytest.mark.requirement("X3", "B18")
def test_a_slot_dropped_while_the_connector_stood_still(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    before = cdc.expire_leads(3)
    cdc.arrived(before)
    cdc.stop()
    drop_slot(cdc)
    gap = cdc.expire_leads(4)
    assert complained(cdc, f"slot {cdc.setup.slot} is gone") == "pyrunner cdc recover"
    # the outbox is the only copy now
    with refused("XP016", cdc.setup.slot):
        stack_db.rows("select * from outbox.drop_partitions()")
    with cdc.nothing_changes():
        answer = cdc.run("install", code=6)
        assert f"Slot {cdc.setup.slot} of the outbox is gone" in answer.err
        assert "pyrunner cdc recover" in answer.err
        shown = cdc.run("recover", "--dry-run").out
        assert f"would be made anew: slot {cdc.setup.slot} is gone" in shown
        assert "4 events would be sent once more." in shown
        for event in gap:
            assert event in shown
    done = recovered(cdc, "--reason", "INC-12")
    assert done["slotMadeAnew"] is True
    assert done["missingBefore"]["missing"] == 4
    assert done["complete"] is True
    after = cdc.expire_leads(2)
    cdc.arrived(after)
    assert_complete(cdc, again=gap)
    assert stack_db.rows("select reason, events from outbox.replay_log") == [("INC-12", 4)]
    # again there is nothing to do
    done = recovered(cdc)
    assert (done["slotMadeAnew"], done["replays"]) == (False, [])


@pytest.mark.requirement("X3")
def test_a_slot_dropped_under_a_running_connector(cdc: Cdc) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    drop_slot(cdc)
    gap = cdc.expire_leads(2)
    cdc.wait_for_states("RUNNING", "FAILED")
    remedy = complained(cdc, f"connector {cdc.setup.connector} has failed")
    assert remedy == "pyrunner cdc recover"
    answer = cdc.run("restart", code=1)
    assert "has failed" in answer.err
    recovered(cdc)
    assert_complete(cdc, again=gap)


def test_a_slot_made_anew_by_hand(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    cdc.stop()
    drop_slot(cdc)
    gap = cdc.expire_leads(3)
    stack_db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (cdc.setup.slot,))
    assert complained(cdc, "was made anew") == "pyrunner cdc recover"
    with cdc.nothing_changes():
        assert "is ahead of where connector" in cdc.run("install", code=6).err
    recovered(cdc)
    assert_complete(cdc, again=gap)


def test_a_slot_that_lost_its_place_in_the_log(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    cdc.stop()
    gap = cdc.expire_leads(3)
    stack_db.rows("create table public.foreign_wal (t text)")
    stack_db.rows("alter system set max_slot_wal_keep_size = '1MB'")
    stack_db.rows("select pg_reload_conf()")
    try:

        def is_lost() -> bool:
            stack_db.rows(
                "insert into public.foreign_wal select repeat(md5(random()::text), 30) from "
                "generate_series(1, 20000)"
            )
            stack_db.rows("select pg_switch_wal()")
            stack_db.rows("checkpoint")
            state = stack_db.value("select state from outbox.slot_status where name = %s", (cdc.setup.slot,))
            return bool(state == "lost")

        wait_until(is_lost, timeout=120, what="the slot is lost")
        assert complained(cdc, f"slot {cdc.setup.slot} has lost its place") == "pyrunner cdc recover"
        with cdc.nothing_changes():
            assert "has lost its place" in cdc.run("install", code=6).err
    finally:
        stack_db.rows("alter system reset max_slot_wal_keep_size")
        stack_db.rows("select pg_reload_conf()")
    recovered(cdc)
    assert_complete(cdc, again=gap)


def test_slot_and_connector_both_gone(cdc: Cdc) -> None:
    """Connect keeps the offsets of a connector that is deleted; the new one must not start from them."""
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    with cdc.connect() as connect:
        connect.delete(cdc.path).raise_for_status()
    cdc.wait_until_unread()
    drop_slot(cdc)
    cdc.db.rows("select outbox.forget_slot(%s)", (cdc.setup.slot,))
    gap = cdc.expire_leads(2)
    with cdc.nothing_changes():
        answer = cdc.run("install", code=6)
        assert "has offsets of an earlier connector" in answer.err
        assert "pyrunner cdc recover" in answer.err
    recovered(cdc)
    assert_complete(cdc, again=gap)


def test_a_connector_without_a_slot_is_not_given_a_new_one_in_silence(cdc: Cdc) -> None:
    cdc.install()
    cdc.stop()
    drop_slot(cdc)
    cdc.db.rows("select outbox.forget_slot(%s)", (cdc.setup.slot,))
    gap = cdc.expire_leads(1)
    with cdc.nothing_changes():
        assert "is there and its slot" in cdc.run("install", code=6).err
    recovered(cdc)
    assert_complete(cdc, again=gap)


def test_an_idle_outbox_does_not_hold_back_the_log_after_a_recovery(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    cdc.stop()
    drop_slot(cdc)
    recovered(cdc)
    stack_db.rows("create table public.foreign_wal (t text)")
    stack_db.rows("insert into public.foreign_wal select repeat('x', 900) from generate_series(1, 20000)")
    position = stack_db.value("select pg_current_wal_lsn()::text")
    stack_db.wait_until(
        "select confirmed_flush_lsn >= %s::pg_lsn from outbox.slot_status where name = %s",
        (position, cdc.setup.slot),
        timeout=90,
    )


@pytest.mark.parametrize("at", ["The connector stops", "has not confirmed yet", "sent once more"])
def test_a_recovery_that_was_killed_can_be_repeated(cdc: Cdc, stack_db: Database, at: str) -> None:
    cdc.install()
    cdc.stop()
    drop_slot(cdc)
    gap = cdc.expire_leads(3)
    with cdc.started("recover") as process:
        wait_until(lambda: at in process.so_far.err, timeout=90, what=lambda: f"{at}: {process.so_far}")
        process.send(signal.SIGKILL)
    cdc.wait_until_unread() if at == "The connector stops" else None
    # a slot is there again, and the outbox is the only copy all the same
    if at != "The connector stops":
        with refused("XP021", cdc.setup.slot):
            stack_db.rows("select * from outbox.drop_partitions()")
    recovered(cdc)
    stack_db.rows("select * from outbox.drop_partitions()")
    wait_until(lambda: cdc.run("status", code=None).code == 0, timeout=90, what=lambda: str(findings(cdc)))
    found = verdict(cdc)
    assert (found["missing"], found["decided"]) == (0, True)
    # sent at least once; consumers take care of the rest
    assert set(gap) == set(replayed(cdc.records()))


def test_many_missing_events_come_in_their_order(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    cdc.stop()
    drop_slot(cdc)
    gap = cdc.expire_leads(2300)
    done = recovered(cdc)
    assert len(done["replays"]) == 3
    assert_complete(cdc, again=gap)
    place = {event: at for at, event in enumerate(gap)}
    last: dict[int, int] = {}
    for record in sorted(cdc.records(), key=lambda one: (one.topic, one.partition, one.offset)):
        assert place[record.id] > last.get(record.partition, -1)
        last[record.partition] = place[record.id]


@pytest.mark.requirement("X3")
def test_events_from_before_the_installation_are_sent_on_demand(cdc: Cdc, stack_db: Database) -> None:
    old = cdc.expire_leads(3)
    assert "older events: pyrunner cdc recover" in cdc.run("install").out
    new = cdc.expire_leads(2)
    cdc.arrived(new)
    assert verdict(cdc, code=9)["missing"] == 3
    # nobody has delivered them, so nothing is dropped
    assert complained(cdc, "was made or registered when events were there already") == "pyrunner cdc recover"
    with refused("XP021", cdc.setup.slot):
        stack_db.rows("select * from outbox.drop_partitions()")
    cdc.run("recover", "--dry-run")
    assert "was made or registered when events were there already" in str(findings(cdc))
    done = recovered(cdc)
    assert (done["slotMadeAnew"], done["complete"]) == (False, True)
    assert_complete(cdc, again=old)
    stack_db.rows("select * from outbox.drop_partitions()")
    assert "older events" not in cdc.run("install").out


def test_what_was_there_before_an_uninstall_is_compared_before_any_of_it_is_dropped(
    cdc: Cdc, stack_db: Database
) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(3))
    cdc.run("uninstall", "--yes")
    assert "older events: pyrunner cdc recover" in cdc.run("install").out
    with refused("XP021", cdc.setup.slot):
        stack_db.rows("select * from outbox.drop_partitions()")
    done = recovered(cdc)
    assert (done["replays"], done["complete"]) == ([], True)
    assert_complete(cdc)
    stack_db.rows("select * from outbox.drop_partitions()")


def test_a_topic_that_was_deleted_is_filled_again(cdc: Cdc) -> None:
    cdc.install()
    leads, bookings = cdc.expire_leads(3), cdc.expire_bookings(3)
    cdc.arrived([*leads, *bookings])
    delete_topics(cdc.stack, [cdc.setup.event_topics[1]])
    cdc.run("install")
    recovered(cdc)
    assert_complete(cdc, again=bookings)


# --------------------------------------------------------------------------------------------- other faults


@pytest.mark.requirement("X3")
def test_a_publication_that_was_dropped(cdc: Cdc, stack_db: Database) -> None:
    """What was appended without it cannot be read from the log, whatever is made since."""
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    stack_db.rows(sql.SQL("drop publication {}").format(sql.Identifier(cdc.setup.publication)))
    gap = cdc.expire_leads(3)
    remedy = complained(cdc, f"publication {cdc.setup.publication} is missing")
    assert remedy == "pyrunner cdc recover --new-slot"
    cdc.run(*remedy.removeprefix("pyrunner cdc ").split())
    cdc.arrived(cdc.expire_leads(2))
    assert_complete(cdc, again=gap)


@pytest.mark.parametrize(
    ("payload", "topic", "why"),
    [
        ("jsonb_build_object('note', repeat('x', 3000000))", "pin.crm.lead-expired.v1", "its payload has"),
        ("'{}'", "no topic of ours!", "is no name of a topic"),
    ],
)
@pytest.mark.requirement("X3")
def test_a_broken_event_forced_in_by_a_superuser(
    cdc: Cdc, stack_db: Database, payload: str, topic: str, why: str
) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    (broken,) = (
        str(row[0])
        for row in stack_db.rows(
            sql.SQL(
                "insert into outbox.event (aggregate_type, aggregate_id, tenant_id, event_type, topic, "
                "payload)"
                " values ('Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', {}, {}) "
                "returning id"
            ).format(sql.Literal(topic), sql.SQL(payload))
        )
    )
    behind = cdc.expire_leads(3)
    remedy = complained(cdc, f"event {broken} ")
    assert why in str(findings(cdc))
    # as long as it is there, it comes again
    _, _, rest = remedy.partition("; ")
    delete, _, command = rest.partition("; then: ")
    stack_db.psql(delete)
    assert stack_db.value("select count(*) from outbox.event where id = %s", (broken,)) == 0
    cdc.run(*command.removeprefix("pyrunner cdc ").split())
    cdc.arrived(cdc.expire_leads(2))
    assert_complete(cdc, again=behind)
    assert broken not in [record.id for record in cdc.records()]


@pytest.mark.requirement("X3")
def test_an_outbox_truncated_by_mistake(cdc: Cdc, stack_db: Database) -> None:
    """What was not delivered is in the log still; the slot is the only copy, and nobody may drop it."""
    cdc.install()
    first = cdc.expire_leads(3)
    cdc.arrived(first)
    cdc.stop()
    second = cdc.expire_leads(4)
    stack_db.rows("truncate outbox.event")
    remedy = complained(cdc, "has 0 of 7 events that had been appended: it was truncated")
    assert remedy.startswith("keep the slot")
    with cdc.nothing_changes():
        answer = cdc.run("recover", "--new-slot", code=6)
        assert "was truncated" in answer.err
    lost = verdict(cdc, code=9)
    assert (lost["appended"], lost["lost"]) == (0, 4)
    # the next cycle hides nothing of it
    third = cdc.expire_leads(1)
    assert complained(cdc, "has 1 of 8 events that had been appended: it was truncated") == remedy
    with cdc.nothing_changes():
        assert "was truncated" in cdc.run("recover", "--new-slot", code=6).err
    cdc.run("restart")
    records = cdc.arrived([*first, *second, *third])
    assert Counter(record.id for record in records) == Counter([*first, *second, *third])
    # by the runs' own books, and not by an outbox that holds next to nothing
    found = verdict(cdc)
    assert (found["appended"], found["lost"], found["strangers"]) == (1, 0, 7)
    # all of it is delivered
    wait_until(lambda: "truncated" not in str(findings(cdc)), timeout=60, what="nothing of it is left to say")


@pytest.mark.requirement("X3")
def test_after_a_truncation_what_was_delivered_long_before_is_not_taken_for_lost(
    cdc: Cdc, stack_db: Database
) -> None:
    # whatever the hour is, the outbox begins before that run
    stack_db.rows(
        "insert into outbox.event (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, "
        "payload)"
        " values (now() - interval '1 day', 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent',"
        " 'pin.crm.lead-expired.v1', '{}')"
    )
    stack_db.rows("select * from outbox.make_partitions()")
    stack_db.rows("delete from outbox.event")
    cdc.install()
    cdc.arrived(cdc.expire_leads(1))
    ((run_id, batch),) = stack_db.rows("select run_id, to_jsonb(b) from expiration.batch as b")
    ago = datetime.now(UTC) - timedelta(minutes=20)
    # a run of twenty minutes ago, whose event is in Kafka since then, and in the outbox no more
    producer = Producer({"bootstrap.servers": cdc.stack.bootstrap_servers})
    producer.produce(
        cdc.setup.event_topics[0],
        b"{}",
        headers=[("id", str(uuid4()).encode()), ("correlation_id", str(run_id).encode())],
        timestamp=int(ago.timestamp() * 1000),
    )
    assert producer.flush(30) == 0
    assert batch["expired"] == 1
    stack_db.rows("update expiration.batch set started_at = %s, expired = 2 where run_id = %s", (ago, run_id))
    found = verdict(cdc)
    assert (found["lost"], found["missing"], found["strangers"]) == (0, 0, 1)


def test_events_that_are_nowhere_any_more_are_counted(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    cdc.stop()
    cdc.expire_leads(3)
    stack_db.rows("truncate outbox.event")
    drop_slot(cdc)
    # all that can be done is done, and it is not whole
    answer = cdc.run("recover", code=9)
    assert "neither in the outbox nor in Kafka" in answer.out
    assert "was made or registered" not in str(findings(cdc))
    answer = cdc.run("verify", code=9)
    assert "3 events of 1 run" in answer.out
    assert "neither in the outbox nor in Kafka" in answer.out
    run_id = stack_db.value("select id from expiration.run order by started_at desc limit 1")
    assert str(run_id) in answer.out


# --------------------------------------------------------------------------------------------- verify


def test_what_is_doubled_is_found_and_a_replay_is_not_taken_for_it(cdc: Cdc) -> None:
    cdc.install()
    events = cdc.expire_leads(4)
    record = next(one for one in cdc.arrived(events) if one.id == events[2])
    cdc.run("replay", "--event", events[0], "--reason", "not a double")
    wait_until(lambda: len(cdc.records()) == 5, timeout=60)
    assert verdict(cdc)["doubled"] == 0
    producer = Producer({"bootstrap.servers": cdc.stack.bootstrap_servers})
    producer.produce(
        record.topic,
        record.value,
        record.key,
        headers=[(name, value) for name, value in record.headers.items()],
    )
    assert producer.flush(30) == 0
    found = verdict(cdc, code=9)
    assert found["doubled"] == 1
    assert [(one["id"], one["times"]) for one in found["doubledExamples"]] == [(events[2], 2)]
    assert "more than once" in found["findings"][0]["what"]


def test_records_of_others_are_told(cdc: Cdc) -> None:
    cdc.install()
    cdc.arrived(cdc.expire_leads(1))
    producer = Producer({"bootstrap.servers": cdc.stack.bootstrap_servers})
    for headers in ({}, {"id": b"no id"}, {"id": b"\xff"}):
        producer.produce(cdc.setup.event_topics[0], b"{}", headers=dict(headers))
    producer.produce(cdc.setup.event_topics[0], b"{}", headers=[("id", str(uuid4()).encode())])
    assert producer.flush(30) == 0
    found = verdict(cdc, code=10)
    assert (found["unreadable"], found["strangers"], found["missing"]) == (3, 1, 0)


def test_a_steady_load_makes_no_false_alarm(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    done = threading.Event()
    worker = stack_db.connect()

    def load() -> None:
        while not done.is_set():
            add_leads(worker, 40)
            run_job(worker, LEADS)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(3):
            found = verdict(cdc)
            assert (found["missing"], found["doubled"], found["lost"]) == (0, 0, 0)
    finally:
        done.set()
        thread.join()
    assert_complete(cdc)


def test_an_event_whose_transaction_was_open_for_long_is_waited_for(cdc: Cdc, stack_db: Database) -> None:
    """It lies before what the slot has confirmed, and is delivered when it commits."""
    cdc.install()
    slow = stack_db.connect(autocommit=False)
    add_leads(slow, 1)
    slow.execute("select * from crm.expire_leads_batch()")
    cdc.arrived(cdc.expire_leads(2))
    cdc.wait_until_confirmed()
    with cdc.connect() as connect:
        connect.put(f"{cdc.path}/stop").raise_for_status()
    cdc.wait_until_unread()
    slow.commit()
    found = verdict(cdc, "--wait", "1 s", code=9)
    assert (found["missing"], found["decided"]) == (1, False)
    assert "perhaps still on the way" in found["findings"][0]["what"]
    cdc.run("restart")
    assert_complete(cdc)


def test_a_recovery_does_not_send_what_may_be_on_its_way(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    cdc.stop()
    cdc.expire_leads(2)
    with cdc.nothing_changes():
        assert "does not run" in cdc.run("recover", code=6).err
    cdc.run("restart")
    assert_complete(cdc)


def empty(cdc: Cdc, partitions: Iterable[int] = range(6)) -> None:
    """Takes away what these partitions of the leads' topic hold."""
    ends = [TopicPartition(cdc.setup.event_topics[0], partition, -1) for partition in partitions]
    client = admin(cdc.stack)
    for future in client.delete_records(ends).values():
        future.result(30)


def limit(cdc: Cdc, size: int) -> None:
    """Has the leads' topic keep no more than so many bytes a partition."""
    resource = ConfigResource(ResourceType.TOPIC, cdc.setup.event_topics[0])
    resource.add_incremental_config(
        ConfigEntry("retention.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    )
    client = admin(cdc.stack)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(30)


def old_events(cdc: Cdc) -> list[str]:
    """Thirty events that are a day older than what the topic keeps."""
    before = cdc.outbox_ids()
    cdc.db.rows(
        "insert into outbox.event (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, "
        "payload)"
        " select now() - interval '8 days', 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent',"
        " 'pin.crm.lead-expired.v1', '{}' from generate_series(1, 30)"
    )
    return cdc.outbox_ids()[len(before) :]


def test_what_kafka_has_forgotten_is_not_missed(cdc: Cdc) -> None:
    cdc.install()
    cdc.arrived(old_events(cdc))
    empty(cdc)
    new = cdc.expire_leads(60)
    cdc.arrived(new[-1:])
    found = verdict(cdc)
    assert (found["missing"], found["unjudged"], found["doubtful"], found["arrived"]) == (0, 30, 0, 60)


def test_what_was_taken_away_by_hand_is_missing(cdc: Cdc) -> None:
    """A partition that is empty, or has but its youngest events, says nothing of what the topic keeps."""
    cdc.install()
    cdc.arrived(cdc.expire_leads(30))
    gone = [record.id for record in cdc.records() if record.partition == 2]
    empty(cdc, [2])
    found = verdict(cdc, code=9)
    assert (found["missing"], found["unjudged"]) == (len(gone), 0)
    assert {one["id"] for one in found["missingExamples"]} <= set(gone)
    # which may forget anything
    limit(cdc, 2**30)
    found = verdict(cdc)
    assert (found["missing"], found["unjudged"], found["doubtful"]) == (0, len(gone), 0)


@pytest.mark.requirement("X3")
@pytest.mark.parametrize("was_seen", [True, False])
def test_what_nobody_can_vouch_for_is_not_called_complete(
    cdc: Cdc, stack_db: Database, was_seen: bool
) -> None:
    """The slot is lost, and Kafka has forgotten what was delivered by it."""
    cdc.install()
    cdc.arrived(old_events(cdc))
    if was_seen:
        # upkeep has seen how far the slot had come
        cdc.wait_until_confirmed()
        stack_db.rows("select * from outbox.drop_partitions()")
    cdc.stop()
    drop_slot(cdc)
    empty(cdc)
    doubtful = 0 if was_seen else 30
    found = verdict(cdc, code=9 if doubtful else 0)
    assert (found["missing"], found["unjudged"], found["doubtful"]) == (0, 30, doubtful)
    answer = cdc.run("recover", "--json", code=9 if doubtful else 0).json
    assert answer["complete"] is not bool(doubtful)
    if not doubtful:
        assert stack_db.value("select gap_since from outbox.slot") is None
        return
    with refused("XP021", cdc.setup.slot):
        stack_db.rows("select * from outbox.drop_partitions()")
    told = cdc.run("verify", code=9).out
    assert "30 events older than what Kafka keeps" in told
    assert "pyrunner cdc replay --until" in told
    cdc.run("replay", "--until", "1 s ago", "--reason", "nobody vouches for them")
    wait_until(lambda: len(cdc.records()) == 30, timeout=60, what=lambda: str(len(cdc.records())))
    done = recovered(cdc)
    assert (done["complete"], done["replays"]) == (True, [])
    assert stack_db.value("select gap_since from outbox.slot") is None


def test_a_comparison_can_be_of_the_last_hour_alone(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    stack_db.rows(
        "insert into outbox.event (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, "
        "payload)"
        " values (now() - interval '2 h', 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent',"
        " 'pin.crm.lead-expired.v1', '{}')"
    )
    cdc.arrived(cdc.expire_leads(2))
    assert verdict(cdc)["appended"] == 3
    assert verdict(cdc, "--since", "1 h")["appended"] == 2


# --------------------------------------------------------------------------------------------- replay


@pytest.mark.requirement("B18")
def test_a_replay_by_each_criterion(cdc: Cdc, stack_db: Database) -> None:
    cdc.install()
    leads, bookings = cdc.expire_leads(3), cdc.expire_bookings(2)
    cdc.arrived([*leads, *bookings])
    ((aggregate,),) = stack_db.rows("select aggregate_id from outbox.event where id = %s", (leads[1],))
    ((since,),) = stack_db.rows("select created_at from outbox.event where id = %s", (bookings[0],))
    for arguments, wanted in (
        (("--event", leads[2], "--event", leads[0]), [leads[0], leads[2]]),
        (("--aggregate", str(aggregate)), [leads[1]]),
        (("--topic", "pin.crm.booking-expired.v1"), bookings),
        (("--since", since.isoformat()), bookings),
        (("--until", since.isoformat()), leads),
        (("--since", since.isoformat(), "--topic", "pin.crm.lead-expired.v1"), []),
    ):
        shown = cdc.run("replay", *arguments, "--dry-run", "--json").json
        assert [event["id"] for event in shown["events"]] == list(wanted), arguments
    before = len(cdc.records())
    done = cdc.run("replay", "--event", leads[2], "--event", leads[0], "--reason", "INC-3", "--json").json
    assert done["events"] == 2
    assert done["reason"] == "INC-3"
    wait_until(lambda: len(cdc.records()) == before + 2, timeout=60)
    again = [record for record in cdc.records() if record.headers["replayed"] is not None]
    assert sorted(record.id for record in again) == sorted([leads[0], leads[2]])
    assert {UUID(str((record.headers["replayed"] or b"").decode())) for record in again} == {UUID(done["id"])}
    assert "No event of the outbox matches." in cdc.run("replay", "--topic", "nothing", "--dry-run").out


def test_a_replay_needs_a_reason_and_a_choice_and_keeps_its_limit(cdc: Cdc, stack_db: Database) -> None:
    events = cdc.expire_leads(3)
    topic = "pin.crm.lead-expired.v1"
    for arguments, code, said in (
        ((), 2, "which events"),
        (("--event", events[0]), 2, "not said why"),
        (("--event", "it's"), 2, "must be an id"),
        (("--topic", topic, "--reason", "x", "--max", "2"), None, "more than 2 events match"),
        (("--topic", "o'ther", "--reason", "x"), None, "no event of the outbox matches"),
        (("--since", "yesterday", "--reason", "x"), 2, "must be"),
        (("--topic", topic, "--reason", "x", "--max", "0"), 2, "greater than 0"),
    ):
        answer = cdc.run("replay", *arguments, code=code)
        assert answer.code != 0
        assert said in answer.err, (arguments, answer.err)
    assert cdc.outbox_ids() == events
    shown = cdc.run("replay", "--topic", topic, "--dry-run", "--max", "2")
    assert "There are more than 2" in shown.err
    assert events[1] in shown.out
    assert events[2] not in shown.out


def test_a_replay_needs_an_operator(cdc: Cdc, stack_db: Database) -> None:
    (event,) = cdc.expire_leads(1)
    for role, code in (("crm_monitor", 5), ("crm_app", 5), ("crm_operator", 0)):
        pyrunner("cdc", "replay", "--event", event, "--reason", "x", dsn=stack_db.role_dsn(role), code=code)
    assert stack_db.value("select count(*) from outbox.replay_log") == 1
    assert stack_db.value(
        "select requested_at > %s from outbox.replay_log", (datetime(2026, 1, 1, tzinfo=UTC),)
    )


def test_an_operator_verifies_and_recovers_as_long_as_the_slot_can_be_used(
    cdc: Cdc, stack_db: Database
) -> None:
    operator = stack_db.role_dsn("crm_operator")
    cdc.install()
    cdc.arrived(cdc.expire_leads(3))

    def run(command: str, code: int) -> Any:
        return pyrunner(
            "cdc", command, *cdc.options, "--json", dsn=operator, env=cdc.environment, code=code
        ).json

    assert run("verify", 0)["missing"] == 0
    # what was written into a table of its own is in the outbox once that is attached, and in no slot's log
    stack_db.rows("create table outbox.by_hand (like outbox.event including defaults including constraints)")
    stack_db.rows(
        "insert into outbox.by_hand (seq, id, created_at, aggregate_type, aggregate_id, tenant_id,"
        " event_type, topic, payload, correlation_id)"
        " select seq + 1000, gen_random_uuid(), '2020-01-01 12:00+00',"
        " aggregate_type, aggregate_id, tenant_id, event_type, topic, payload, gen_random_uuid()"
        " from outbox.event limit 1"
    )
    stack_db.rows(
        "alter table outbox.event attach partition outbox.by_hand"
        " for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')"
    )
    assert run("verify", 9)["missing"] == 1
    done = run("recover", 0)
    assert (done["slotMadeAnew"], done["missingBefore"]["missing"], done["complete"]) == (False, 1, True)
    assert run("verify", 0)["missing"] == 0

"""All is killed, again and again, under load: each event comes once, in order, and has its effect once."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import psycopg
import pytest

from pyrunner.stack.stack import Part
from tests.kafka import BOOKINGS, LEADS, Ceaseless, Record, Watch, Wired, connect_client, read_all
from tests.servers import Database, wait_until

pytestmark = pytest.mark.kafka

KILLS: Final = 3
VICTIMS: Final = ("connect", "broker", "postgres", "chessboard", "notifications")
SERVICES: Final = ("chessboard", "notifications")
# how many events must come between a restart and the next kill
BETWEEN: Final = (20, 400)

# leads that have expired are given a moment more, so that one key has many events
LOAD: Final = (
    """insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)
    select gen_random_uuid(), gen_random_uuid(), now() - interval '1 s' from generate_series(1, 20)""",
    """insert into crm.bookings
        (tenant_id, deal_id, property_object_id, status, reserve_expires_at, booking_expires_at)
    select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), s.status, now() - interval '1 s',
        now() - interval '1 s'
    from generate_series(1, 5), unnest(array['Reserved', 'Booked']) as s (status)""",
    """select crm.extend_lead(l.id, l.version, clock_timestamp() + interval '100 ms')
    from (select * from crm.leads where status = 'Expired' order by random() limit 20) as l""",
    "call expiration.run_job('lead-expiration')",
    "call expiration.run_job('booking-expiration')",
)


class Load(Ceaseless):
    """Rows that fall due and expire without end; begins anew whenever its session breaks."""

    def __init__(self, db: Database) -> None:
        self._db = db
        super().__init__()
        self.errors: list[str] = []
        self.cycles = 0

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._db.dsn, autocommit=True, connect_timeout=5) as connection:
                    while not self._stop.is_set():
                        for statement in LOAD:
                            connection.execute(statement)
                        self.cycles += 1
            except psycopg.OperationalError:
                # killed; the next session finds it up again, or not yet
                self._stop.wait(0.1)
            except psycopg.Error as error:
                # on a busy machine the moment more may have passed before it was given
                if error.sqlstate == "XP009":
                    continue
                self.errors.append(f"{error.sqlstate}: {error}")
                self._stop.wait(0.1)


@dataclass
class Instances:
    """Consumers as processes of their own, started again when they were killed."""

    wired: Wired
    folder: Path
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=lambda: defaultdict(list))

    def start(self, service: str) -> None:
        with (self.folder / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"consumers.{service}", "--bootstrap-servers",
                 self.wired.stack.bootstrap_servers],
                stdout=log, stderr=log, env={**os.environ, "PYRUNNER_DSN": self.wired.db.dsn},
            )  # fmt: skip
        self.running[service].append(process)

    def kill(self, service: str, chance: random.Random) -> None:
        victim = chance.choice(self.running[service])
        assert victim.poll() is None, f"{service} had ended by itself: {self.log(service)}"
        victim.kill()
        victim.wait(timeout=30)
        self.running[service].remove(victim)

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()[-3000:]

    def stop(self) -> None:
        for service, processes in self.running.items():
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                assert process.wait(timeout=60) == 0, self.log(service)
        self.running.clear()

    def end(self) -> None:
        for processes in self.running.values():
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait(timeout=30)


@pytest.fixture
def instances(wired: Wired, tmp_path: Path) -> Iterator[Instances]:
    made = Instances(wired, tmp_path)
    yield made
    made.end()


def events_in(db: Database) -> list[tuple[str, str, int]]:
    return [
        (str(i), str(k), s)
        for i, k, s in db.rows("select id, aggregate_id, seq from outbox.event order by seq")
    ]


def assert_each_once_and_in_order(records: list[Record], outbox: list[tuple[str, str, int]]) -> None:
    """Kafka has what the outbox has: each id once, and the events of a key in the order of the outbox."""
    sent = Counter(record.id for record in records)
    wanted = {event_id for event_id, _, _ in outbox}
    lost, doubled = wanted - sent.keys(), {event_id for event_id, times in sent.items() if times > 1}
    assert (len(lost), len(doubled), len(sent.keys() - wanted)) == (0, 0, 0), (lost, doubled)
    by_key: dict[str, list[int]] = defaultdict(list)
    partition_of: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for record in sorted(records, key=lambda one: (one.topic, one.partition, one.offset)):
        assert record.key is not None
        sequence = record.headers["seq"]
        assert sequence is not None
        by_key[record.key.decode()].append(int(sequence))
        partition_of[record.key.decode()].add((record.topic, record.partition))
    expected: dict[str, list[int]] = defaultdict(list)
    for _, key, sequence_number in outbox:
        expected[key].append(sequence_number)
    assert by_key == expected
    assert all(len(places) == 1 for places in partition_of.values())


def caught_up(wired: Wired) -> Callable[[], bool]:
    """Whether Kafka has as many events as the outbox."""

    def check() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return bool(len(wired.read_all()) >= wired.db.value("select count(*) from outbox.event"))
        return False

    return check


def behind(wired: Wired, seed: int) -> str:
    """What stands between the outbox and Kafka, for the one who has to find out why."""
    sent = {record.id for record in wired.read_all()}
    missing = [seq for event_id, _, seq in events_in(wired.db) if event_id not in sent]
    slot = wired.db.rows(
        "select s.active, s.wal_status, s.restart_lsn, s.confirmed_flush_lsn, pg_current_wal_lsn()"
        " from pg_replication_slots as s where s.slot_name = %s",
        (wired.slot,),
    )
    log = wired.stack.log("connect").read_text()[-6000:]
    return (
        f"Kafka has what the outbox has (seed {seed}); it lacks {len(missing)},"
        f" seq {missing[:3]}..{missing[-3:]}; {wired.states()}; slot {slot}\n{log}"
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.requirement("L11", "B8", "B13", "B18", "X3", "X6")
def test_whatever_is_killed_each_event_arrives_once_in_order_and_has_its_effect_once(
    wired: Wired, instances: Instances, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PYRUNNER_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    chance = random.Random(seed)  # noqa: S311 - where to strike
    stack, db = wired.stack, wired.db
    for service in SERVICES:
        for _ in range(2):
            instances.start(service)
    kills = list(VICTIMS) * KILLS
    chance.shuffle(kills)

    def count() -> int:
        with contextlib.suppress(psycopg.OperationalError):
            return int(db.value("select count(*) from outbox.event"))
        return 0

    def reached(events: int) -> bool:
        return count() >= events

    began = time.monotonic()
    with Watch(wired) as watch, Load(db) as load:
        for victim in kills:
            # amid the stream: after so many events more, whatever is behind with them
            enough = count() + chance.randrange(*BETWEEN)
            wait_until(partial(reached, enough), timeout=180, what=f"the load goes on (seed {seed})")
            if victim in SERVICES:
                instances.kill(victim, chance)
                instances.start(victim)
            else:
                stack.kill(cast(Part, victim))
                {
                    "connect": stack.start_connect,
                    "broker": stack.start_broker,
                    "postgres": stack.start_postgres,
                }[victim]()
        enough = count() + 300
        wait_until(partial(reached, enough), timeout=180, what=f"the load goes on (seed {seed})")
    assert load.errors == []
    # a job that was killed in a cycle leaves rows for the next one
    for job in ("lead-expiration", "booking-expiration"):
        db.rows("call expiration.run_job(%s)", (job,))
    wait_until(caught_up(wired), timeout=240, what=partial(behind, wired, seed))
    outbox = events_in(db)
    records = wired.read_all()
    assert_each_once_and_in_order(records, outbox)
    assert max(Counter(key for _, key, _ in outbox).values()) > 1

    # each item's events are as many as its expirations, whoever was killed in the middle of them
    assert db.rows(
        "select count(*) from"
        " (select entity_id as id, count(*) as n from crm.audit_log where action = 'Expire' group by 1) as a"
        " full join (select aggregate_id as id, count(*) as n from outbox.event group by 1) as e using (id)"
        " where a.n is distinct from e.n"
    ) == [(0,)]

    # the consumers: every event has had its effect, once
    effects = "select (select count(*) from chessboard.inbox), (select count(*) from notifications.inbox)"
    wanted = tuple(sum(record.topic == topic for record in records) for topic in (BOOKINGS, LEADS))
    wait_until(lambda: db.rows(effects) == [wanted], timeout=120, what=f"{wanted} effects")
    assert db.rows(
        "select count(*) from outbox.event as e full join chessboard.release as r on r.event_id = e.id"
        " where e.topic is distinct from 'pin.crm.lead-expired.v1'"
        " and r.booking_id is distinct from e.aggregate_id"
    ) == [(0,)]
    assert db.value("select count(*) from notifications.notice") == wanted[1]
    assert db.rows("select * from chessboard.parked union all select * from notifications.parked") == []
    # Connect itself fails what it is starting when the broker goes, and its caretaker has seen to that
    assert [trace for trace in watch.traces if "zombie fencing" not in trace] == []
    wired.wait_until_running()
    instances.stop()

    aborted = len(read_all(stack.bootstrap_servers, wired.topics, isolation="read_uncommitted")) - len(
        records
    )
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(kills)} kills ({', '.join(f'{victim} {KILLS}' for victim in VICTIMS)}) in"
            f" {time.monotonic() - began:.0f} s, seed {seed}: {len(outbox)} events, 0 lost, 0 doubled,"
            f" {aborted} copies were aborted, the task was seen FAILED {len(watch.traces)} times\n"
        )


@pytest.mark.slow
@pytest.mark.requirement("L11", "B18", "X3")
def test_a_connect_that_is_killed_amid_a_backlog_sends_none_of_it_twice(
    wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    """Struck while it sends, by how much has arrived, so that transactions are open then."""
    db, stack = wired.db, wired.stack
    for _ in range(40):
        db.rows(
            "insert into outbox.event (aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
            " select 'Lead', lpad((n % 100)::text, 32, '0')::uuid, gen_random_uuid(), 'LeadExpiredEvent',"
            " 'pin.crm.lead-expired.v1', jsonb_build_object('leadId', gen_random_uuid())"
            " from generate_series(1, 500) as n"
        )
    for seen in (1, 4000, 8000, 12000):
        wired.consume(seen)
        stack.kill("connect")
        stack.start_connect()
    wired.wait_until_running()
    wired.consume(20_000)
    records = wired.read_all()
    assert_each_once_and_in_order(records, events_in(db))
    uncommitted = read_all(stack.bootstrap_servers, wired.topics, isolation="read_uncommitted")
    with capsys.disabled():
        sys.stdout.write(
            f"\n4 kills of Connect amid 20,000 events: {len(uncommitted) - len(records)} copies aborted\n"
        )


@pytest.mark.slow
@pytest.mark.requirement("L11", "X3")
def test_what_was_rolled_back_never_comes_and_what_committed_does_whatever_becomes_of_its_partition(
    wired: Wired,
) -> None:
    db = wired.db
    insert = (
        "insert into outbox.event"
        " (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
        " select now() + %(days)s * interval '1 day', 'Lead', gen_random_uuid(), gen_random_uuid(),"
        " 'LeadExpiredEvent', 'pin.crm.lead-expired.v1', jsonb_build_object('leadId', gen_random_uuid())"
        " from generate_series(1, 10) returning id"
    )
    committed: list[str] = []
    session = db.connect(autocommit=False)

    def append(days: int, *, commit: bool = True) -> None:
        ids = [str(row[0]) for row in session.execute(insert, {"days": days})]
        if commit:
            session.commit()
            committed.extend(ids)
        else:
            session.rollback()

    def ddl(statement: str) -> None:
        db.rows(statement)

    def partition_of(days: int) -> str:
        day = "now() at time zone 'UTC' + %s * interval '1 day'"
        return str(db.value(f"select 'event_' || to_char({day}, 'YYYYMMDD')", (days,)))

    append(0)
    append(0, commit=False)
    # made while events are under way
    db.rows("select outbox.make_partitions(9)")
    append(9)
    append(9, commit=False)
    # detached, and dropped at once
    name = partition_of(9)
    append(9)
    ddl(f"alter table outbox.event detach partition outbox.{name}")
    ddl(f"drop table outbox.{name}")
    # into the default partition, and home again
    append(9)
    append(20)
    append(20, commit=False)
    db.rows("select outbox.make_partitions(20)")
    append(20)
    ddl(f"alter table outbox.event detach partition outbox.{partition_of(20)}")
    ddl(f"drop table outbox.{partition_of(20)}")
    # while nobody reads
    with connect_client(wired.stack) as connect:
        connect.put(f"/connectors/{wired.connector}/stop").raise_for_status()
        wait_until(lambda: wired.states() == ["STOPPED"], timeout=60, what="the connector has stopped")
        append(9)
        append(9, commit=False)
        ddl(f"drop table outbox.{partition_of(9)}")
        db.rows("truncate outbox.event_default")
        append(0)
        connect.put(f"/connectors/{wired.connector}/resume").raise_for_status()
    wired.wait_until_running()
    append(0)
    records = wired.consume(len(committed))
    assert sorted(record.id for record in records) == sorted(committed)
    assert sorted(record.id for record in wired.read_all()) == sorted(committed)
    assert {record.topic for record in records} == {LEADS}


BUSY: Final = "insert into public.other select repeat('x', 1000) from generate_series(1, 2000)"


@pytest.mark.slow
@pytest.mark.requirement("X3")
@pytest.mark.parametrize("busy", ["the rest", "the outbox"])
def test_the_log_does_not_pile_up_when_only_one_of_the_outbox_and_the_rest_is_busy(
    wired: Wired, busy: str
) -> None:
    """The slot follows: what it holds back stays below what is written meanwhile, again and again."""
    db = wired.db
    db.rows("create table public.other (x text)")
    position = "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s"
    passed: list[Any] = []
    for _ in range(3):
        if busy == "the rest":
            db.rows(BUSY)
        else:
            db.rows(
                "insert into crm.leads (tenant_id, executor_agent_user_id, expires_at)"
                " select gen_random_uuid(), gen_random_uuid(), now() - interval '1 s'"
                " from generate_series(1, 500)"
            )
            db.rows("call expiration.run_job('lead-expiration')")
        written = db.value("select pg_current_wal_insert_lsn()")
        db.wait_until(
            "select confirmed_flush_lsn >= %s from pg_replication_slots where slot_name = %s",
            (written, wired.slot),
            timeout=90,
            what="the slot confirms what was written",
        )
        passed.append(db.value(position, (wired.slot,)))
    # restart_lsn, which holds the files, follows once the server has noted what was running
    db.rows("checkpoint")
    db.wait_until(
        "select pg_wal_lsn_diff(confirmed_flush_lsn, restart_lsn) < 1000000 from pg_replication_slots"
        " where slot_name = %s",
        (wired.slot,),
        timeout=120,
        what="the slot lets go of the files of the log",
    )
    assert passed == sorted(passed)
    assert db.value("select count(*) from public.other") == (6000 if busy == "the rest" else 0)

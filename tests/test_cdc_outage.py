"""PostgreSQL goes away in a chosen moment of the connector's work: the task goes on, and is never FAILED.

What Kafka Connect itself ends FAILED is restarted when its cause has passed.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

from pyrunner.stack import Stack
from tests.kafka import Watch, Wired, connect_client, wire
from tests.servers import Database, wait_until
from tests.slots import reading

pytestmark = pytest.mark.kafka

# how long the database stays away, in seconds
OUTAGE: Final = 1.5
INSERT: Final = (
    "insert into outbox.event (aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
    " select 'Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', 'pin.crm.lead-expired.v1',"
    " jsonb_build_object('leadId', gen_random_uuid()) from generate_series(1, 20)"
)
# a standby's message to the server: how far it has come
STATUS: Final = b"d" + struct.pack(">i", 4 + 1 + 8 + 8 + 8 + 8 + 1) + b"r"


class Line:
    """The line between Connect and PostgreSQL, which breaks at a chosen word and stays broken for a while."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._word: bytes | None = None
        self._times = 0
        self._broken_until = 0.0
        self.breaks = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where to connect to instead of the server."""
        port: int = self._listener.getsockname()[1]
        return port

    def break_at(self, word: bytes, times: int = 1) -> None:
        """Breaks as soon as the client has said `word` for the so-manyeth time from now on."""
        with self._lock:
            self._word, self._times = word, times

    def break_now(self) -> None:
        """All connections are reset, and new ones are for as long as the outage lasts."""
        with self._lock:
            self._break()

    def close(self) -> None:
        """Ends it."""
        # wakes the thread that waits for the next connection
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=60)
        self._listener.close()
        self.break_now()

    def _break(self) -> None:
        self._word = None
        self._broken_until = time.monotonic() + OUTAGE
        self.breaks += 1
        while self._open:
            reset(self._open.pop())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if time.monotonic() < self._broken_until:
                    reset(client)
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._server), timeout=30)
                except OSError:
                    reset(client)
                    continue
                server.settimeout(None)
                self._open += [client, server]
            for source, target, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=(source, target, is_client), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_client and self._is_the_word(data):
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _is_the_word(self, data: bytes) -> bool:
        with self._lock:
            if self._word is None or self._word not in data:
                return False
            self._times -= 1
            if self._times > 0:
                return False
            self._break()
            return True


def reset(connection: socket.socket) -> None:
    """Closes as a dead machine's would be: without a word of farewell."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # wakes the thread that reads from it
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.fixture
def line(stack: Stack) -> Iterator[Line]:
    made = Line(int(stack.postgres.port))
    yield made
    made.close()


@pytest.fixture
def far(stack: Stack, stack_db: Database, line: Line) -> Wired:
    """A connector that has the line between itself and the database."""
    return wire(stack, stack_db, database__port=str(line.port))


def arrives(wired: Wired, watch: Watch) -> None:
    """Events that are appended now reach Kafka, each once, and the task was never FAILED."""
    wired.db.rows(INSERT)
    ids = wired.outbox_ids()
    wait_until(
        lambda: watch.traces or len(wired.read_all()) >= len(ids),
        timeout=90,
        what=lambda: f"{len(ids)} events in Kafka; {wired.states()}",
    )
    assert watch.traces == []
    assert sorted(record.id for record in wired.read_all()) == sorted(ids)


# what the connector says in a start, in the order of a start
MOMENTS: Final = {
    "the first session": (b"user\0", 1),
    "the second session": (b"user\0", 2),
    "the third session": (b"user\0", 3),
    "the fourth session": (b"user\0", 4),
    "the fifth session": (b"user\0", 5),
    "types are read": (b"pg_type", 1),
    "the log's level is asked for": (b"wal_level", 1),
    "the slot is looked at": (b"pg_replication_slots", 1),
    "the log's end is asked for": (b"IDENTIFY_SYSTEM", 1),
    "the log is opened": (b"START_REPLICATION", 1),
    "the slot is told of the first events": (STATUS, 1),
}


@pytest.mark.slow
@pytest.mark.requirement("L11", "X3")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_database_that_goes_away_while_the_task_starts_fails_nothing(
    far: Wired, line: Line, moment: str
) -> None:
    far.db.rows(INSERT)
    far.consume(20)
    word, times = MOMENTS[moment]
    with Watch(far) as watch:
        line.break_at(word, times)
        with connect_client(far.stack) as connect:
            connect.post(
                f"/connectors/{far.connector}/restart", params={"includeTasks": "true"}
            ).raise_for_status()
        wait_until(lambda: line.breaks or watch.traces, timeout=60, what=f"the line broke when {moment}")
        arrives(far, watch)


@pytest.mark.slow
@pytest.mark.requirement("L11", "X3")
def test_a_database_that_goes_away_amid_the_stream_fails_nothing(far: Wired, line: Line) -> None:
    """Amid events and while the slot is told of them, by turns."""
    with Watch(far) as watch:
        for turn in range(6):
            if turn % 2:
                line.break_at(STATUS, 2)
            far.db.rows(INSERT)
            if turn % 2:
                wait_until(lambda turn=turn: line.breaks > turn, timeout=60, what="the slot is told")  # type: ignore[misc]
            else:
                line.break_now()
            arrives(far, watch)


@pytest.mark.slow
@pytest.mark.requirement("L11", "X3")
def test_what_is_failed_is_restarted_until_its_cause_has_passed(wired: Wired) -> None:
    wired.db.rows(INSERT)
    wired.consume(20)
    # which Debezium does not take for something that passes
    wired.db.rows("drop publication crm_outbox")
    with connect_client(wired.stack) as connect:
        connect.post(
            f"/connectors/{wired.connector}/restart", params={"includeTasks": "true"}
        ).raise_for_status()

    def failed() -> bool:
        return "FAILED" in wired.states()

    for _ in range(2):
        wait_until(failed, timeout=60, what=lambda: f"the task is FAILED: {wired.states()}")
        # tried again, in vain
        wait_until(lambda: not failed(), timeout=60, what="the task is restarted")
    wired.db.rows(
        "create publication crm_outbox for table outbox.event"
        " with (publish = 'insert', publish_via_partition_root = true)"
    )
    wired.wait_until_running()
    wired.db.rows(INSERT)
    ids = wired.outbox_ids()
    assert sorted(record.id for record in wired.consume(len(ids))) == sorted(ids)
    assert len(wired.read_all()) == len(ids)


@pytest.mark.slow
@pytest.mark.requirement("L11", "X3")
def test_what_people_have_stopped_or_paused_is_left_alone(wired: Wired) -> None:
    with connect_client(wired.stack) as connect:
        for command, state in (("pause", "PAUSED"), ("stop", "STOPPED")):
            connect.put(f"/connectors/{wired.connector}/{command}").raise_for_status()
            wait_until(lambda state=state: wired.states()[0] == state, timeout=60, what=f"it is {state}")  # type: ignore[misc]
            # several of the caretaker's looks
            time.sleep(3)
            assert set(wired.states()) == {state}
            connect.put(f"/connectors/{wired.connector}/resume").raise_for_status()
            wired.wait_until_running()


@pytest.mark.slow
@pytest.mark.requirement("L11", "X3")
def test_a_slot_that_somebody_else_reads_is_waited_for(wired: Wired) -> None:
    """For longer than Debezium asks for it in one go."""
    wired.db.rows(INSERT)
    wired.consume(20)
    with connect_client(wired.stack) as connect, Watch(wired) as watch:
        connect.put(f"/connectors/{wired.connector}/stop").raise_for_status()
        wait_until(lambda: wired.states() == ["STOPPED"], timeout=60, what="it is STOPPED")
        wired.db.wait_until(
            "select not active from pg_replication_slots where slot_name = %s", (wired.slot,), timeout=60
        )
        with reading(wired.db, wired.slot):
            connect.put(f"/connectors/{wired.connector}/resume").raise_for_status()
            # it is refused, begins anew, and is refused again
            for _ in range(2):
                refusals = occurrences(wired)
                wait_until(
                    lambda refusals=refusals: occurrences(wired) > refusals + 3,  # type: ignore[misc]
                    timeout=120,
                    what="the slot is asked for again and again",
                )
        arrives(wired, watch)


def occurrences(wired: Wired) -> int:
    """How often Connect's log says that this slot is taken."""
    text = wired.stack.log("connect").read_text("utf-8", "replace")
    return text.count(f'replication slot "{wired.slot}" is active')

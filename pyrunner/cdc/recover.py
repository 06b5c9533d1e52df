"""After events were not delivered: the slot made anew where it must be, what is missing sent once more."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pyrunner.cdc.connector import describe, find_position
from pyrunner.cdc.install import Step, check_connector, quiet, reinstall
from pyrunner.cdc.kafka import Kafka
from pyrunner.cdc.rest import Connect
from pyrunner.cdc.secret import PasswordFile
from pyrunner.cdc.setup import Setup
from pyrunner.cdc.source import Source, open_source
from pyrunner.cdc.verify import Comparison, Verdict, comparing
from pyrunner.database import rows
from pyrunner.errors import PyrunnerError, RefusedError

__all__ = ["Recovery", "recover"]

_CHUNK: Final = 1000


@dataclass
class Recovery:
    """What was found and done.

    Attributes:
        why_anew: why the slot had to be made anew; None where it can be used.
        steps: what was made for that.
        before: what was missing.
        replays: by which the missing was sent.
        after: what is missing still; None where nothing was sent.
    """

    why_anew: str | None = None
    steps: list[Step] = field(default_factory=list)
    before: Verdict | None = None
    replays: list[UUID] = field(default_factory=list)
    after: Verdict | None = None


def recover(
    setup: Setup,
    password_file: Callable[[], PasswordFile],
    *,
    set_password: bool = False,
    new_slot: bool = False,
    dry_run: bool = False,
    reason: str = "pyrunner cdc recover",
    patience: float = 120,
    wait: float = 60,
    tell: Callable[[str], None] = quiet,
) -> Recovery:
    """Finds what was not delivered, by comparing outbox and Kafka, and has exactly that published once more.

    When nothing is missing and nothing in doubt any more, retention goes on (`outbox.close_gap`).
    Safe to repeat, also when it was interrupted.

    Args:
        setup: names and places.
        password_file: gives the file with the role's password, where the slot is made anew.
        set_password: as for `install`, where the slot is made anew.
        new_slot: make the slot anew even where it can be used: it cannot get past an event, or its
            publication was away for a while.
        dry_run: only say what would be done.
        reason: for outbox.replay_log.
        patience: seconds that the slot may wait for open transactions of others.
        wait: seconds that the slot may lag behind what is compared.
        tell: is told how far it is.

    Raises:
        PyrunnerError: a part cannot be reached, or it could not be done.
    """
    done = Recovery()
    kafka = Kafka(setup.bootstrap_servers, setup.kafka_settings)
    kafka.cluster_id()
    with open_source(setup, "recover") as source, Connect(setup.connect_url) as connect:
        done.why_anew = _why_anew(source, connect, kafka, new_slot=new_slot)
    if done.why_anew is not None and not dry_run:
        done.steps = reinstall(
            setup, password_file(), set_password=set_password, patience=patience, tell=tell
        )
    with comparing(setup, "recover", tell=tell) as comparison:
        # a slot that will go is not waited for
        done.before = comparison.look(wait=0 if dry_run and done.why_anew else wait)
        if dry_run:
            return done
        if done.before.missing:
            if not done.before.is_decided:
                raise _undecided(setup, done.before)
            done.replays = _replay(setup, comparison, reason, tell)
            comparison.mark()
            done.after = comparison.look(wait=wait)
    last = done.after or done.before
    if last.is_settled:
        with open_source(setup, "recover") as source:
            source.close_gap()
    return done


def _why_anew(source: Source, connect: Connect, kafka: Kafka, *, new_slot: bool) -> str | None:
    setup, slot = source.setup, source.slot()
    present = connect.configuration(setup.connector)
    for obstacle in check_connector(source, present, {}):
        raise obstacle
    source.check_slot(slot)
    position = None if present is None else find_position(connect, kafka, setup)
    if not slot.is_there:
        return f"slot {slot.name} is gone"
    if slot.is_lost:
        return f"slot {slot.name} has lost its place in the log"
    if position and slot.confirmed is not None and slot.confirmed > position:
        return f"slot {slot.name} is ahead of where the connector left off"
    if new_slot:
        _check_only_copy(source)
        return "it was asked for"
    if present is None:
        raise RefusedError(
            f"Connect does not know connector {setup.connector}, and its slot {slot.name} is as it should "
            f"be.",
            hint="Make the connector by: pyrunner cdc install; it goes on from the slot, and nothing is "
            "lost.",
        )
    state = connect.state(setup.connector)
    if state is None or not state.is_running:
        raise RefusedError(
            f"Connector {setup.connector} does not run ({describe(state)}), and its slot {slot.name} can be "
            f"used.",
            hint="Let it run by pyrunner cdc restart; what it cannot get past (see pyrunner cdc status) is "
            "left behind "
            "by pyrunner cdc recover --new-slot.",
        )
    return None


def _check_only_copy(source: Source) -> None:
    """Refuses to drop a slot of which the outbox no longer has what it has not delivered."""
    emptied = [row["partition"] for row in source.rows("emptied", {"slot": source.setup.slot})]
    if emptied and not _has_caught_up(source):
        raise RefusedError(
            f"Partition {emptied[0]} of the outbox was truncated: what slot {source.setup.slot} has not "
            f"delivered is "
            "in the log alone, and would go with it.",
            hint="Let the connector catch up first: pyrunner cdc status. To give these events up, drop the "
            "slot yourself.",
        )


def _has_caught_up(source: Source) -> bool:
    """Whether the slot has confirmed everything but what an idle server writes."""
    found = source.rows("slot_status", {"slot": source.setup.slot})
    return bool(found) and found[0]["active"] and found[0]["lag_bytes"] < 1024


def _undecided(setup: Setup, verdict: Verdict) -> PyrunnerError:
    return RefusedError(
        f"{verdict.missing:,} events are not in Kafka, and slot {setup.slot} lags behind: they may be on "
        f"their way.",
        hint="Wait until it has caught up (pyrunner cdc status), or give it longer by --wait. If it cannot: "
        "pyrunner cdc recover --new-slot",
    )


def _replay(setup: Setup, comparison: Comparison, reason: str, tell: Callable[[str], None]) -> list[UUID]:
    made: list[UUID] = []
    with open_source(setup, "recover") as source:
        for events in comparison.missing(_CHUNK):
            tell(f"{len(made) * _CHUNK + len(events):,} events are sent once more.")
            (row,) = rows(
                source.connection,
                "select (outbox.replay(%s, event_ids => %s, max_events => %s)).id",
                (reason, [event["id"] for event in events], len(events)),
            )
            source.connection.commit()
            made.append(row["id"])
    return made

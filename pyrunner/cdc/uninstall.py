"""Taking down the way from the outbox to Kafka; what is in Kafka stays."""

from collections.abc import Callable
from typing import Final

import psycopg
from psycopg.sql import SQL, Identifier

from pyrunner.cdc.connector import remove
from pyrunner.cdc.install import Step, quiet, require_ours
from pyrunner.cdc.kafka import Kafka
from pyrunner.cdc.rest import Connect
from pyrunner.cdc.setup import Setup
from pyrunner.cdc.source import Source, open_source
from pyrunner.database import rows
from pyrunner.errors import RefusedError

__all__ = ["undelivered", "uninstall"]

_PATIENCE: Final = 60.0


def undelivered(setup: Setup) -> int | None:
    """How many events the slot has not delivered; None where there is no such slot."""
    with open_source(setup, "uninstall") as source:
        found = source.rows("slot_status", {"slot": setup.slot})
    return found[0]["backlog_events"] if found else None


def uninstall(setup: Setup, *, drop_role: bool = False, tell: Callable[[str], None] = quiet) -> list[Step]:
    """Removes connector, its offsets, slot, registration and publication; safe to repeat.

    The event topics stay, with all that is in them, and so does the outbox.

    Args:
        setup: names and places.
        drop_role: remove the connector's role, too.
        tell: is told what is waited for.

    Returns:
        what was removed, what was not there, and what was kept.

    Raises:
        PyrunnerError: a part cannot be reached, or somebody else uses it.
    """
    # all three must answer before anything goes
    kafka = Kafka(setup.bootstrap_servers, setup.kafka_settings)
    kafka.cluster_id()
    with open_source(setup, "uninstall") as source, Connect(setup.connect_url) as connect:
        is_there = require_ours(source, connect) is not None
        source.check_slot(source.slot())
        tell("The connector stops.")
        if is_there:
            remove(connect, setup, patience=_PATIENCE)
        steps = [_gone("connector", setup.connector, is_there)]
        steps.append(_gone("offsets", setup.offsets_topic, kafka.delete(setup.offsets_topic)))
        dropped = source.drop_slot(patience=_PATIENCE)
        forgotten = source.forget()
        steps.append(_gone("slot", setup.slot, dropped or forgotten))
        steps.append(_publication(source))
        heartbeats = setup.heartbeat_topic
        steps.append(_gone("topic", heartbeats, kafka.delete(heartbeats)))
        steps += [Step("topic", name, "kept", "with its events") for name in kafka.topics(setup.event_topics)]
        steps.append(_role(source, drop_role=drop_role))
    return steps


def _gone(what: str, name: str, was_there: bool) -> Step:
    return Step(what, name, "removed" if was_there else "absent")


def _publication(source: Source) -> Step:
    what, name = "publication", source.setup.publication
    is_right = source.publication()
    readers = source.rows("publication_readers", {"publication": name, "slot": source.setup.slot})
    if is_right is None:
        return _gone(what, name, was_there=False)
    if readers:
        return Step(what, name, "kept", f"slot {readers[0]['name']} reads it")
    if not is_right:
        return Step(what, name, "kept", "it publishes something else: it is not ours")
    rows(source.connection, SQL("drop publication {}").format(Identifier(name)))
    source.connection.commit()
    return _gone(what, name, was_there=True)


def _role(source: Source, *, drop_role: bool) -> Step:
    name = source.setup.role
    role = source.role()
    if role is None or not drop_role:
        return Step("role", name, "absent" if role is None else "kept")
    who = Identifier(name)
    try:
        # what install gave it; anything else it has or owns keeps it
        if role["was_given_schema"]:
            rows(source.connection, SQL("revoke usage on schema outbox from {}").format(who))
        if role["was_given_database"]:
            database = Identifier(source.database)
            rows(source.connection, SQL("revoke connect on database {} from {}").format(database, who))
        rows(source.connection, SQL("drop role {}").format(who))
    except psycopg.errors.DependentObjectsStillExist as error:
        source.connection.rollback()
        raise RefusedError(
            f"The role {name} is in use elsewhere: {' '.join(str(error.diag.message_detail).split())}.",
            hint="It stays; the rest is gone. Drop it when nobody needs it any more.",
        ) from None
    source.connection.commit()
    return Step("role", name, "removed")

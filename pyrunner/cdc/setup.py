"""One way from an outbox to Kafka: all its names, and the connector's configuration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pyrunner.errors import UsageError
from pyrunner.stack.files import filled_json

__all__ = ["CONNECTOR_CLASS", "DEBEZIUM_CLASS", "EVENT_TOPICS", "PLUGIN", "Setup", "Topic"]

EVENT_TOPICS: Final = ("pin.crm.lead-expired.v1", "pin.crm.booking-expired.v1")
CONNECTOR_CLASS: Final = "pyrunner.OutboxConnector"
# what ours adds to; a connector of an earlier version, or made by hand, has it as it is
DEBEZIUM_CLASS: Final = "io.debezium.connector.postgresql.PostgresConnector"
PLUGIN: Final = "pgoutput"

_IN_SQL: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")
_IN_KAFKA: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{0,100}")
_ROUTED: Final = "${routedByValue}"


@dataclass(frozen=True)
class Topic:
    """A topic as it is wanted, or as it is.

    Attributes:
        settings: those that differ from the broker's defaults on purpose.
    """

    name: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """Where the parts are and what they are called.

    Attributes:
        dsn: our way to the database, as for `pyrunner.database.connect`.
        connect_url: Connect's REST interface.
        bootstrap_servers: of Kafka, as clients write it.
        connector: in Connect.
        slot: the replication slot.
        publication: what the slot reads.
        role: what the connector logs in as.
        topic_prefix: Debezium's name for the database, in heartbeats and offsets; no other connector's.
        namespace: put before the names of the event topics, where several installations share a Kafka.
        partitions: of an event topic.
        replication_factor: of all topics.
        retention: how long Kafka keeps an event.
        database_host: of PostgreSQL, as Connect sees it; None is as we see it.
        database_port: the same of its port.
        kafka_settings: more of librdkafka's settings, for a Kafka that wants TLS or a login.
    """

    dsn: str
    connect_url: str
    bootstrap_servers: str
    connector: str = "crm-outbox"
    slot: str = "crm_outbox"
    publication: str = "crm_outbox"
    role: str = "debezium"
    topic_prefix: str = "crm"
    namespace: str = ""
    partitions: int = 6
    replication_factor: int = 1
    retention: timedelta = timedelta(days=7)
    database_host: str | None = None
    database_port: int | None = None
    kafka_settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses names that PostgreSQL, Debezium or Kafka would not take, or take for something else."""
        for what, name, pattern, wanted in (
            ("slot", self.slot, _SLOT, "of a-z, 0-9 and _, at most 63 characters"),
            # pgoutput gets it unquoted
            (
                "publication",
                self.publication,
                _IN_SQL,
                "of a-z, 0-9 and _, no digit first, at most 63 characters",
            ),
            (
                "connector",
                self.connector,
                _IN_KAFKA,
                "of letters, digits, '.', '_' and '-', at most 200 characters",
            ),
            ("topic prefix", self.topic_prefix, _IN_KAFKA, "of letters, digits, '.', '_' and '-'"),
            ("namespace", self.namespace, _NAMESPACE, "of letters, digits, '.', '_' and '-'"),
        ):
            if pattern.fullmatch(name) is None:
                raise UsageError(f"{name!r} cannot be the {what}'s name: it must be {wanted}.")
        # Debezium puts it into a statement as it is
        if not 0 < len(self.role.encode()) < 64 or "'" in self.role or "\0" in self.role:
            raise UsageError(f"{self.role!r} cannot be the role's name: it must have 1 to 63 bytes and no '.")
        if self.partitions < 1 or self.replication_factor < 1:
            raise UsageError("Partitions and replication factor must be greater than 0.")

    @staticmethod
    def told_by(configuration: Mapping[str, str]) -> dict[str, Any]:
        """What a connector's configuration tells of a set-up, as arguments of `Setup`."""
        names = {
            "slot.name": "slot",
            "publication.name": "publication",
            "database.user": "role",
            "database.hostname": "database_host",
            "topic.prefix": "topic_prefix",
        }
        numbers = {
            "database.port": "database_port",
            "topic.creation.default.partitions": "partitions",
            "topic.creation.default.replication.factor": "replication_factor",
        }
        told: dict[str, Any] = {
            field: configuration[key] for key, field in names.items() if key in configuration
        }
        for key, name in numbers.items():
            if configuration.get(key, "").isdigit():
                told[name] = int(configuration[key])
        if (kept := configuration.get("topic.creation.default.retention.ms", "")).isdigit():
            told["retention"] = timedelta(milliseconds=int(kept))
        route = configuration.get("transforms.outbox.route.topic.replacement", "")
        if route.endswith(_ROUTED):
            told["namespace"] = route.removesuffix(_ROUTED)
        return told

    @property
    def offsets_topic(self) -> str:
        """Where Connect keeps this connector's offsets; shared with no other."""
        return f"_connect_offsets_{self.connector}"

    @property
    def heartbeat_topic(self) -> str:
        """Where Debezium sends its heartbeats."""
        return f"__debezium-heartbeat.{self.topic_prefix}"

    @property
    def event_topics(self) -> tuple[str, ...]:
        """The topics of the events that are known, as Kafka has them."""
        return tuple(self.namespace + name for name in EVENT_TOPICS)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics that have to be there."""
        events = {
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention // timedelta(milliseconds=1)),
            "min.insync.replicas": str(self.min_insync_replicas),
        }
        # a heartbeat says when it was, and is of no use tomorrow
        heartbeats = {"cleanup.policy": "delete", "retention.ms": "86400000"}
        return (
            *(Topic(name, self.partitions, self.replication_factor, events) for name in self.event_topics),
            Topic(self.heartbeat_topic, 1, self.replication_factor, heartbeats),
        )

    @property
    def min_insync_replicas(self) -> int:
        """Two of three: one broker may be away, and what was acknowledged is nowhere alone."""
        return 2 if self.replication_factor >= 3 else 1

    @property
    def offset_partition(self) -> dict[str, str]:
        """What Debezium's offsets are kept under."""
        return {"server": self.topic_prefix}

    def configuration(self, *, host: str, port: int, database: str, password_file: str) -> dict[str, str]:
        """The connector's configuration, from debezium/connector.json.

        Args:
            host: of PostgreSQL, as Connect sees it.
            port: the same of its port.
            database: its name.
            password_file: as Connect sees it.
        """
        for character in ":}":
            if character in password_file:
                raise UsageError(
                    f"The password's file, {password_file}, may have no {character!r} in its path."
                )
        found = filled_json(
            "connector.json",
            {
                "DATABASE_HOST": host,
                "DATABASE_PORT": str(port),
                "DATABASE_NAME": database,
                "DATABASE_USER": self.role,
                "PASSWORD_FILE": password_file,
                "TOPIC_PREFIX": self.topic_prefix,
                "PUBLICATION": self.publication,
                "SLOT": self.slot,
                "OFFSETS_TOPIC": self.offsets_topic,
                "PARTITIONS": str(self.partitions),
                "REPLICATION_FACTOR": str(self.replication_factor),
            },
        )
        if self.namespace:
            found["transforms.outbox.route.topic.replacement"] = self.namespace + _ROUTED
        # a topic that nobody made ahead is as the others
        for name, value in self.topics[0].settings.items():
            found[f"topic.creation.default.{name}"] = value
        return found

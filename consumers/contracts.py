"""Messages of Kafka, and what they say by their contracts: contracts/ alone knows which fields there are."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

import confluent_kafka
from jsonschema import Draft202012Validator

__all__ = ["Contract", "Contracts", "Event", "Message", "MisunderstoodError"]

# what a consumer needs to know before it reads the payload; it does without the others
_NEEDED: Final = ("id", "event_type", "contract_version")
_LONGEST_REASON: Final = 300


class MisunderstoodError(Exception):
    """A message does not say what its contract promises; the text says where."""


@dataclass(frozen=True)
class Message:
    """A message as it came.

    Attributes:
        headers: by name, as text; a list where a name is there several times.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    headers: Mapping[str, str | list[str | None] | None]

    @classmethod
    def of(cls, message: confluent_kafka.Message) -> Self:
        """The message that the client library received."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        headers: dict[str, str | list[str | None] | None] = {}
        given = message.headers() or []
        for name, value in given.items() if isinstance(given, dict) else given:
            plain, text = _text(name), _text(value)
            if plain in headers:
                before = headers[plain]
                headers[plain] = [*before, text] if isinstance(before, list) else [before, text]
            else:
                headers[plain] = text
        return cls(topic, partition, offset, _text(message.key()), message.value(), headers)

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def event_id(self) -> UUID | None:
        """The event's id, where the headers have a valid one."""
        return self._id("id")

    @property
    def correlation_id(self) -> UUID | None:
        """The run that caused the event, where the headers have a valid one."""
        return self._id("correlation_id")

    def _id(self, name: str) -> UUID | None:
        given = self.headers.get(name)
        try:
            return UUID(given) if isinstance(given, str) else None
        except ValueError:
            return None


@dataclass(frozen=True)
class Event:
    """What an understood message says.

    Attributes:
        payload: by the names of the contract.
        ids: of the payload, what the contract calls an id, for the log.
    """

    id: UUID
    type: str
    version: str
    topic: str
    payload: Mapping[str, Any]
    ids: Mapping[str, str | None]

    @property
    def kind(self) -> tuple[str, str]:
        """Type and version."""
        return self.type, self.version


def _text(value: bytes | str | None) -> Any:
    """As PostgreSQL can keep it: UTF-8 without zeros, and what is none is spelled out."""
    if value is None:
        return None
    text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
    return text.replace("\0", "\\x00")


class Contract:
    """The payload of one version of an event.

    Args:
        schema: JSON Schema 2020-12 with x-topic and x-contract-version; the title is the event's type.

    Raises:
        ValueError: it asks for a format that nobody would check.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.event_type: Final = str(schema["title"])
        self.version: Final = str(schema["x-contract-version"])
        self.topic: Final = str(schema["x-topic"])
        self.required: Final = frozenset(schema["required"])
        properties = schema["properties"].items()
        self.ids: Final = tuple(name for name, rule in properties if rule.get("format") == "uuid")
        self._validator = _validator(schema)

    def check(self, payload: object) -> None:
        """Refuses a payload that breaks the contract; what the contract does not know is passed over.

        Raises:
            MisunderstoodError: it does.
        """
        _check(self._validator, payload, "payload")


class Contracts:
    """All contracts in a folder.

    Args:
        folder: where they are; by default those that belong to this program.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or _own_folder()

    @cached_property
    def by_event(self) -> Mapping[tuple[str, str], Contract]:
        """The contracts by event type and version."""
        found = (Contract(json.loads(file.read_text("utf-8"))) for file in self._folder.glob("*.v*.json"))
        return {(contract.event_type, contract.version): contract for contract in found}

    @cached_property
    def _headers(self) -> Draft202012Validator:
        schema = json.loads((self._folder / "headers.json").read_text("utf-8"))
        properties = {name: schema["properties"][name] for name in _NEEDED}
        return _validator({**schema, "properties": properties, "required": list(_NEEDED)})

    def understand(self, message: Message, known: Iterable[tuple[str, str]]) -> Event:
        """Reads a message.

        Args:
            message: as it came.
            known: the event types and versions that the reader can do something about.

        Raises:
            MisunderstoodError: it is no JSON, breaks its contract, lacks a header, or is of none of `known`.
        """
        _check(self._headers, message.headers, "headers")
        event_id, event_type, version = (str(message.headers[name]) for name in _NEEDED)
        known = set(known)
        if (event_type, version) not in known:
            versions = [one for name, one in sorted(known) if name == event_type]
            raise MisunderstoodError(
                f"contract version {version} of {event_type} is not known here, only {', '.join(versions)}"
                if versions
                else f"{event_type} is not for this consumer"
            )
        if message.value is None:
            raise MisunderstoodError("there is no payload")
        try:
            payload = json.loads(message.value.decode("utf-8"), parse_constant=_refuse)
        except RecursionError:
            raise MisunderstoodError("payload: no JSON that can be read: too deep") from None
        except ValueError as error:
            raise MisunderstoodError(_short(f"payload: no JSON: {error}")) from None
        contract = self.by_event[event_type, version]
        contract.check(payload)
        ids = {name: payload.get(name) for name in contract.ids}
        return Event(UUID(event_id), event_type, version, message.topic, payload, ids)


def _own_folder() -> Path:
    package = Path(str(files("consumers")))
    return next(
        (place for place in (package / "contracts", package.parent / "contracts") if place.is_dir()),
        package / "contracts",
    )


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    checker = Draft202012Validator.FORMAT_CHECKER
    for name, rule in schema["properties"].items():
        # a format that the library has no check for would pass whatever comes
        if "format" in rule and rule["format"] not in checker.checkers:
            raise ValueError(f"{schema['title']}: nothing checks format {rule['format']} of {name}")
    open_schema = {name: rule for name, rule in schema.items() if name != "additionalProperties"}
    return Draft202012Validator(open_schema, format_checker=checker)


def _check(validator: Draft202012Validator, instance: Any, what: str) -> None:
    for error in validator.iter_errors(instance):
        where = ".".join([what, *map(str, error.absolute_path)])
        raise MisunderstoodError(_short(f"{where}: {error.message}"))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _short(text: str) -> str:
    text = str(_text(text))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."

"""The contracts: what the SQL writes is what they say, and what they once said they go on saying."""

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, LiteralString
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from pyrunner.cdc import EVENT_TOPICS, Setup
from tests.contracts import (
    CONTRACTS,
    FILES,
    HEADERS,
    RELEASED,
    Schema,
    asyncapi,
    by_topic,
    expire_all_kinds,
    schema,
    strict,
)
from tests.domain import events
from tests.servers import PROJECT, Database

ANNOTATIONS: Final = {"description", "examples", "$comment", "deprecated"}


# -------------------------------------------------------------------------------------------------- the files


@pytest.mark.parametrize("name", [*FILES, HEADERS])
def test_a_contract_is_a_schema_and_its_examples_hold(name: str) -> None:
    one = schema(name)
    assert one["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(one)
    assert one["examples"]
    for example in one["examples"]:
        strict(one).validate(example)
    assert all(part["description"] for part in one["properties"].values())
    # what an event has it always has: a reader need not ask
    assert sorted(one["required"]) == sorted(one["properties"])
    # yesterday's reader must take what today's writer adds
    assert "additionalProperties" not in one


@pytest.mark.parametrize("name", FILES)
def test_a_contracts_name_topic_version_and_title_agree(name: str) -> None:
    one = schema(name)
    event, version = re.fullmatch(r"([a-z-]+)\.v([1-9]\d*)\.json", name).groups()  # type: ignore[union-attr]
    assert one["x-topic"] == f"pin.crm.{event}.v{version}"
    assert one["$id"] == f"urn:pin:crm:{event}:v{version}"
    assert one["x-contract-version"] == int(version)
    assert one["title"] == "".join(word.capitalize() for word in event.split("-")) + "Event"
    assert one["properties"][one["x-key"]]["type"] == "string"


@pytest.mark.requirement("B8")
@pytest.mark.parametrize("name", FILES)
def test_no_personal_data_fits_into_a_contract(name: str) -> None:
    for part in schema(name)["properties"].values():
        # an id, a time, or a word of a list; nowhere free text
        assert part.get("format") in ("uuid", "date-time") or part["enum"]
        assert "pattern" in part or "enum" in part


@pytest.mark.requirement("L10", "B8")
@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("lead-expired.v1.json", ["LeadId", "TenantId", "AgentUserId", "InvestorUserId", "ExpiredAt"]),
        (
            "booking-expired.v1.json",
            ["BookingId", "TenantId", "DealId", "PropertyObjectId", "Phase", "ExpiredAt"],
        ),
    ],
)
def test_a_contract_has_the_properties_of_the_documents(name: str, properties: list[str]) -> None:
    assert list(schema(name)["properties"]) == [one[0].lower() + one[1:] for one in properties]


# ------------------------------------------------------------------------------------------ what the SQL does


def check_event(event: dict[str, Any]) -> None:
    """A row of the outbox is as its topic's contract says, and no other."""
    one = by_topic()[event["topic"]]
    strict(one).validate(event["payload"])
    assert event["event_type"] == one["title"]
    assert event["contract_version"] == one["x-contract-version"]
    assert event["aggregate_type"] == one["x-aggregate-type"]
    assert event["aggregate_id"] == UUID(event["payload"][one["x-key"]])
    assert event["tenant_id"] == UUID(event["payload"]["tenantId"])
    assert event["occurred_at"] == datetime.fromisoformat(event["payload"]["expiredAt"])


@pytest.mark.requirement("L10", "B8")
def test_the_sql_writes_what_the_contracts_say(db: Database) -> None:
    expire_all_kinds(db)
    written = events(db)
    assert {event["topic"] for event in written} == set(by_topic())
    for event in written:
        check_event(event)


@pytest.mark.requirement("L10", "B8")
def test_the_sql_writes_every_property_type_and_word_of_the_contracts(db: Database) -> None:
    expire_all_kinds(db)
    for topic, one in by_topic().items():
        payloads = [event["payload"] for event in events(db) if event["topic"] == topic]
        for name, part in one["properties"].items():
            values = [payload[name] for payload in payloads]
            # a null or a word that is allowed and never comes would be a promise to nobody
            assert {"null" if value is None else "string" for value in values} == types_of(part)
            assert "enum" not in part or set(values) == set(part["enum"])


@pytest.mark.parametrize(
    "change",
    [
        "payload = payload - 'tenantId'",
        'payload = payload || \'{"name": "x"}\'',
        'payload = payload || \'{"expiredAt": "2026-11-29 16:05:49+00"}\'',
        'payload = payload || \'{"leadId": "nobody", "bookingId": "nobody"}\'',
        "event_type = 'Expired'",
        "contract_version = 2",
        "aggregate_id = gen_random_uuid()",
        "tenant_id = gen_random_uuid()",
        "occurred_at = occurred_at + interval '1 microsecond'",
    ],
)
def test_an_event_that_departs_from_its_contract_is_noticed(db: Database, change: str) -> None:
    expire_all_kinds(db)
    db.rows("drop trigger event_is_append_only on outbox.event")
    db.observer.execute(f"update outbox.event set {change}".encode())
    for event in events(db):
        with pytest.raises((AssertionError, ValidationError, ValueError)):
            check_event(event)


def sql_literals(pattern: str) -> set[str]:
    """The literals in our functions that are like that."""
    found: set[str] = set()
    for path in (PROJECT / "sql" / "functions").rglob("*.sql"):
        found |= set(re.findall(f"'({pattern})'", path.read_text()))
    return found


def test_the_sql_writes_no_event_without_a_contract() -> None:
    assert set(EVENT_TOPICS) == set(by_topic())
    assert sql_literals(r"pin\.[a-z.-]+\.v\d+") == set(by_topic())
    assert sql_literals(r"[A-Z][A-Za-z]*Event") == {one["title"] for one in by_topic().values()}


# ---------------------------------------------------------------------------------------------- compatibility


def types_of(one: Schema) -> set[str]:
    found = one.get("type", ["any"])
    return {found} if isinstance(found, str) else set(found)


def canonical(value: Any) -> str:
    """Text by which JSON values can be compared: in Python, true is 1."""
    return json.dumps(value, sort_keys=True)


def incompatible(old: Schema, new: Schema, where: str = "the event") -> list[str]:
    """What keeps a reader of either schema from understanding an event of the other.

    Both ways count: readers of the old one are still there, and events of the old one lie in Kafka and are
    replayed. What this does not know is taken for a restriction, so that it must stay as it is.

    Args:
        old: as it was published.
        new: as it would be published, under the same version.
        where: for the messages.

    Returns:
        Sentences; none when nothing is wrong.
    """
    wrong = []
    ours, theirs = old.get("properties", {}), new.get("properties", {})
    wrong += [f"{where}: {name} is gone" for name in ours if name not in theirs]
    for name in ours:
        if name in theirs:
            wrong += incompatible(ours[name], theirs[name], f"{where}, {name}")
    needed, now_needed = set(old.get("required", [])), set(new.get("required", []))
    wrong += [f"{where}: {name} is no longer required" for name in sorted(needed - now_needed)]
    wrong += [f"{where}: {name} has become required" for name in sorted(now_needed - needed)]
    # it was there, and could be anything
    wrong += [f"{where}: {name} has become restricted" for name in theirs if name in needed - ours.keys()]

    for keyword in sorted((old.keys() | new.keys()) - {"properties", "required"} - ANNOTATIONS):
        before, after = old.get(keyword), new.get(keyword)
        if keyword in ("type", "enum") and before is not None and after is not None:
            before, after = (
                [canonical(one) for one in (value if isinstance(value, list) else [value])]
                for value in (before, after)
            )
            if added := sorted(set(after) - set(before)):
                wrong.append(f"{where}: {keyword} is wider by {', '.join(added)}")
            if removed := sorted(set(before) - set(after)):
                wrong.append(f"{where}: {keyword} is narrower by {', '.join(removed)}")
        elif (keyword in old) != (keyword in new) or canonical(before) != canonical(after):
            wrong.append(f"{where}: {keyword} has changed")
    return wrong


def unfrozen(folder: Path) -> list[str]:
    """Released versions that are not what they were, by their check sums."""
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.json")}
    return sorted(name for name in sums.keys() | there.keys() if sums.get(name) != there.get(name))


def broken_promises(folder: Path) -> list[str]:
    """What in a folder of contracts goes against the versions released from it."""
    wrong = []
    for path in sorted((folder / "released").glob("*.json")):
        if not (folder / path.name).exists():
            wrong.append(f"{path.name}: readers have it, and it is gone")
            continue
        old, new = (json.loads(one.read_text()) for one in (path, folder / path.name))
        wrong += [f"{path.name}: {problem}" for problem in incompatible(old, new)]
    return wrong


def test_released_contracts_are_kept() -> None:
    """Else: put it back, and write a new version beside it (contracts/README.md)."""
    assert unfrozen(RELEASED) == []
    assert broken_promises(CONTRACTS) == []


def test_what_the_sql_writes_is_released() -> None:
    """Else: copy it to contracts/released, as contracts/README.md says."""
    written = sql_literals(r"pin\.[a-z.-]+\.v\d+")
    assert {schema(path.name, RELEASED)["x-topic"] for path in RELEASED.glob("*.v*.json")} >= written
    assert (RELEASED / HEADERS).exists()


def test_a_released_contract_that_was_edited_or_removed_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    shutil.copytree(CONTRACTS, folder)
    assert unfrozen(folder / "released") == []
    edited, gone, extra = FILES[0], FILES[1], "other-expired.v1.json"
    (folder / "released" / edited).write_text((RELEASED / edited).read_text() + "\n")
    (folder / "released" / gone).unlink()
    shutil.copy(folder / edited, folder / "released" / extra)
    assert unfrozen(folder / "released") == sorted([edited, gone, extra])
    assert broken_promises(folder) == [f"{extra}: readers have it, and it is gone"]


Change = Callable[[Schema], object]


def changed(name: str, change: Change) -> Schema:
    one = schema(name)
    change(one)
    return one


def rename(one: Schema) -> None:
    one["properties"]["agentId"] = one["properties"].pop("agentUserId")
    one["required"] = [{"agentUserId": "agentId"}.get(name, name) for name in one["required"]]


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        pytest.param(
            lambda one: one["properties"].pop("dealId"), ["the event: dealId is gone"], id="property_removed"
        ),
        pytest.param(
            lambda one: one["required"].remove("dealId"),
            ["the event: dealId is no longer required"],
            id="requirement_removed",
        ),
        pytest.param(
            lambda one: (
                one["properties"].update(city={"type": "string"}),
                one["required"].append("city"),
            ),
            ["the event: city has become required"],
            id="requirement_added",
        ),
        pytest.param(
            lambda one: one["properties"]["dealId"].update(type=["string", "null"]),
            ['the event, dealId: type is wider by "null"'],
            id="type_widened",
        ),
        pytest.param(
            lambda one: one["properties"]["dealId"].update(type="integer"),
            [
                'the event, dealId: type is wider by "integer"',
                'the event, dealId: type is narrower by "string"',
            ],
            id="type_replaced",
        ),
        pytest.param(
            lambda one: one["properties"]["phase"]["enum"].append("Deposit"),
            ['the event, phase: enum is wider by "Deposit"'],
            id="word_added",
        ),
        pytest.param(
            lambda one: one["properties"]["phase"]["enum"].remove("Reserve"),
            ['the event, phase: enum is narrower by "Reserve"'],
            id="word_removed",
        ),
        pytest.param(
            lambda one: one["properties"]["phase"].pop("enum"),
            ["the event, phase: enum has changed"],
            id="words_freed",
        ),
        pytest.param(
            lambda one: one["properties"]["expiredAt"].update(format="date"),
            ["the event, expiredAt: format has changed"],
            id="format_changed",
        ),
        pytest.param(
            lambda one: one["properties"]["expiredAt"].pop("pattern"),
            ["the event, expiredAt: pattern has changed"],
            id="pattern_removed",
        ),
        pytest.param(
            lambda one: one["properties"]["dealId"].update(minLength=40),
            ["the event, dealId: minLength has changed"],
            id="length_restricted",
        ),
        pytest.param(
            lambda one: one.update(additionalProperties=False),
            ["the event: additionalProperties has changed"],
            id="closed",
        ),
        pytest.param(
            lambda one: one.update({"x-topic": "pin.crm.bookings"}),
            ["the event: x-topic has changed"],
            id="topic_changed",
        ),
        pytest.param(
            lambda one: one.update(title="BookingGoneEvent"),
            ["the event: title has changed"],
            id="title_changed",
        ),
    ],
)
def test_a_change_that_breaks_a_reader_needs_a_new_version(change: Change, problems: list[str]) -> None:
    name = "booking-expired.v1.json"
    assert incompatible(schema(name), changed(name, change)) == problems


def test_a_renamed_property_and_a_null_taken_back_need_a_new_version() -> None:
    name = "lead-expired.v1.json"
    assert incompatible(schema(name), changed(name, rename)) == [
        "the event: agentUserId is gone",
        "the event: agentUserId is no longer required",
        "the event: agentId has become required",
    ]
    taken_back = changed(name, lambda one: one["properties"]["investorUserId"].update(type="string"))
    assert incompatible(schema(name), taken_back) == ['the event, investorUserId: type is narrower by "null"']


def test_a_number_is_not_taken_for_a_truth_value() -> None:
    assert incompatible({"const": 1}, {"const": True}) == ["the event: const has changed"]
    assert len(incompatible({"enum": [1]}, {"enum": [True]})) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(description="Said better."),
        lambda one: next(iter(one["properties"].values())).update(description="Said better."),
        lambda one: one["examples"].append(one["examples"][0]),
        lambda one: one["properties"].update(reason={"type": "string", "maxLength": 9}),
        lambda one: one["required"].reverse(),
        lambda one: one.update(properties=dict(reversed(one["properties"].items()))),
    ],
    ids=["description", "description_of_a_property", "example", "optional_property", "order", "order_too"],
)
@pytest.mark.parametrize("name", [*FILES, HEADERS])
def test_a_change_that_breaks_no_reader_needs_none(name: str, change: Change) -> None:
    old, new = schema(name), changed(name, change)
    assert incompatible(old, new) == []
    for example in old["examples"]:
        Draft202012Validator(new).validate(example)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a schema that is no remark."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if key not in ANNOTATIONS:
            yield (*path, key)
            yield from places(part, (*path, key))


@pytest.mark.parametrize("name", [*FILES, HEADERS])
@pytest.mark.parametrize("how", ["taken_away", "replaced"])
def test_no_part_of_a_contract_can_be_changed_unseen(name: str, how: str) -> None:
    old = schema(name)
    for *way, last in places(old):
        new = copy.deepcopy(old)
        parent = new
        for step in way:
            parent = parent[step]
        if how == "taken_away":
            del parent[last]
        elif isinstance(parent[last], str | int):
            parent[last] = "something else"
        else:
            continue
        assert incompatible(old, new), f"unseen: {[*way, last]} {how}"
        # the other way round it is no better
        assert incompatible(new, old), f"unseen: {[*way, last]} put there"


# --------------------------------------------------------------------------------------------------- AsyncAPI


def closed(required: str, **properties: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def each(one: Schema) -> Schema:
    return {"type": "object", "additionalProperties": one, "minProperties": 1}


TEXT: Final = {"type": "string", "minLength": 1}
REFERENCE: Final = closed("$ref", **{"$ref": TEXT})
# the part of AsyncAPI 3.0 that our document uses, and closed: what is misspelt is nowhere allowed
ASYNCAPI: Final = closed(
    "asyncapi info channels operations components",
    asyncapi={"const": "3.0.0"},
    info=closed("title version description", title=TEXT, version=TEXT, description=TEXT),
    defaultContentType={"const": "application/json"},
    channels=each(
        closed(
            "address messages bindings",
            address=TEXT,
            title=TEXT,
            description=TEXT,
            messages=each(REFERENCE),
            bindings=REFERENCE,
        )
    ),
    operations=each(
        closed(
            "action channel messages",
            action={"enum": ["send", "receive"]},
            title=TEXT,
            description=TEXT,
            channel=REFERENCE,
            messages={"type": "array", "items": REFERENCE, "minItems": 1},
        )
    ),
    components=closed(
        "messages",
        channelBindings=each(
            closed(
                "kafka",
                kafka=closed(
                    "partitions topicConfiguration bindingVersion",
                    partitions={"type": "integer", "minimum": 1},
                    topicConfiguration=closed(
                        "cleanup.policy retention.ms",
                        **{
                            "cleanup.policy": {"type": "array", "items": {"enum": ["delete", "compact"]}},
                            "retention.ms": {"type": "integer", "minimum": -1},
                        },
                    ),
                    bindingVersion={"const": "0.5.0"},
                ),
            )
        ),
        correlationIds=each(
            closed(
                "location",
                description=TEXT,
                location={"type": "string", "pattern": r"^\$message\.(header|payload)#/"},
            )
        ),
        messages=each(
            closed(
                "name contentType headers payload bindings",
                name=TEXT,
                title=TEXT,
                contentType={"const": "application/json"},
                correlationId=REFERENCE,
                headers=closed(
                    "allOf",
                    allOf={
                        "prefixItems": [
                            REFERENCE,
                            closed("properties", properties=each(closed("const", const=TEXT))),
                        ],
                        "items": False,
                    },
                ),
                payload=REFERENCE,
                bindings=closed(
                    "kafka",
                    kafka=closed(
                        "key bindingVersion", key={"type": "object"}, bindingVersion={"const": "0.5.0"}
                    ),
                ),
            )
        ),
    ),
)


def references(value: Any) -> Iterator[str]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and isinstance(value.get("$ref"), str):
        yield value["$ref"]
    for part in parts:
        yield from references(part)


def follow(document: Schema, reference: str) -> Any:
    """What a reference leads to.

    Raises:
        LookupError, OSError: there is nothing.
    """
    file, _, pointer = reference.partition("#")
    found: Any = schema(file) if file else document
    for step in pointer.strip("/").split("/") if pointer else ():
        found = found[step]
    while isinstance(found, dict) and found.keys() == {"$ref"}:
        found = follow(document, found["$ref"])
    return found


def test_the_asyncapi_document_is_valid_and_leads_somewhere() -> None:
    document = asyncapi()
    Draft202012Validator(ASYNCAPI).validate(document)
    for reference in references(document):
        assert follow(document, reference)
    used = set(references(document))
    for kind, parts in document["components"].items():
        assert used >= {f"#/components/{kind}/{name}" for name in parts}, f"{kind} that nobody uses"


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(chanels=one.pop("channels")),
        lambda one: one["channels"]["leadExpired"].update(adress="pin"),
        lambda one: one["operations"]["sendLeadExpired"].update(action="publish"),
        lambda one: one["components"]["messages"]["leadExpired"].pop("payload"),
        lambda one: one["components"]["channelBindings"]["events"]["kafka"].update(partitions="six"),
    ],
    ids=["misspelt", "misspelt_below", "of_version_2", "missing", "of_the_wrong_type"],
)
def test_an_asyncapi_document_that_is_not_valid_is_noticed(change: Change) -> None:
    document = asyncapi()
    change(document)
    with pytest.raises(ValidationError):
        Draft202012Validator(ASYNCAPI).validate(document)


def test_asyncapi_names_the_topics_payloads_keys_and_headers_of_the_contracts() -> None:
    document = asyncapi()
    channels = document["channels"]
    assert sorted(channel["address"] for channel in channels.values()) == sorted(by_topic())
    for name, channel in channels.items():
        one = by_topic()[channel["address"]]
        (message,) = (follow(document, part["$ref"]) for part in channel["messages"].values())
        assert follow(document, message["payload"]["$ref"]) == one
        base, own = message["headers"]["allOf"]
        assert base == {"$ref": HEADERS}
        assert own["properties"] == {
            "event_type": {"const": one["title"]},
            "contract_version": {"const": str(one["x-contract-version"])},
            "aggregate_type": {"const": one["x-aggregate-type"]},
        }
        assert own["properties"].keys() <= set(schema(HEADERS)["properties"])
        assert message["name"] == one["title"]
        key = message["bindings"]["kafka"]["key"]
        assert (key["type"], key["format"]) == ("string", "uuid")
        assert key["description"].startswith(one["x-key"])
        # each channel has one operation, by which we send
        (operation,) = (
            part
            for part in document["operations"].values()
            if part["channel"]["$ref"] == f"#/channels/{name}"
        )
        assert operation["action"] == "send"
        assert [part["$ref"] for part in operation["messages"]] == [
            f"#/channels/{name}/messages/{label}" for label in channel["messages"]
        ]
    kafka = document["components"]["channelBindings"]["events"]["kafka"]
    setup = Setup(dsn="", connect_url="", bootstrap_servers="")
    assert kafka["partitions"] == setup.partitions
    assert kafka["topicConfiguration"] == {
        "cleanup.policy": ["delete"],
        "retention.ms": setup.retention // timedelta(milliseconds=1),
    }
    field = document["components"]["correlationIds"]["run"]["location"].rpartition("/")[2]
    assert field in schema(HEADERS)["properties"]


def placement() -> dict[str, str]:
    """The headers that the connector makes of columns: column by header."""
    settings = json.loads((PROJECT / "debezium" / "connector.json").read_text())
    found = {}
    for part in settings["transforms.outbox.table.fields.additional.placement"].split(","):
        column, kind, *alias = part.split(":")
        assert kind == "header"
        found[alias[0] if alias else column] = column
    # the router makes this one by itself
    return found | {"id": settings.get("transforms.outbox.table.field.event.id", "id")}


def test_the_connector_makes_the_headers_of_the_contract_of_columns_that_there_are(db: Database) -> None:
    assert sorted(placement()) == sorted(schema(HEADERS)["properties"])
    query: LiteralString = (
        "select attname::text, not attnotnull from pg_attribute"
        " where attrelid = 'outbox.event'::regclass and attnum > 0 and not attisdropped"
    )
    columns = {name: is_nullable for name, is_nullable in db.rows(query)}  # noqa: C416 - rows of any length
    for header, column in placement().items():
        # null in Kafka where it may be null in the table, and nowhere else
        assert ("null" in types_of(schema(HEADERS)["properties"][header])) == columns[column], header


def test_the_connector_takes_topic_key_and_payload_from_the_columns_of_the_contract() -> None:
    settings = json.loads((PROJECT / "debezium" / "connector.json").read_text())
    assert settings["transforms.outbox.route.by.field"] == "topic"
    assert settings["transforms.outbox.table.field.event.key"] == "aggregate_id"
    assert settings.get("transforms.outbox.table.field.event.payload", "payload") == "payload"

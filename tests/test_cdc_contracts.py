"""What arrives in Kafka is what the contracts say, and what the database wrote."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.contracts import HEADERS, asyncapi, by_topic, expire_all_kinds, schema, strict
from tests.domain import events
from tests.kafka import LEADS, Record, Wired

pytestmark = pytest.mark.kafka


def headers_of(record: Record) -> dict[str, str | None]:
    """The headers as text."""
    return {name: None if value is None else value.decode() for name, value in record.headers.items()}


def payload_of(record: Record) -> Any:
    """The payload, every number as it is written."""
    assert record.value is not None
    return json.loads(record.value.decode(), parse_float=Decimal)


@pytest.mark.requirement("L10", "B8", "X3")
def test_what_arrives_holds_to_the_contracts(wired: Wired) -> None:
    expire_all_kinds(wired.db)
    written = {str(event["id"]): event for event in events(wired.db)}
    messages = {
        message["name"]: message["headers"]["allOf"][1]["properties"]
        for message in asyncapi()["components"]["messages"].values()
    }
    records = wired.consume(len(written))
    assert sorted(record.id for record in records) == sorted(written)
    for record in records:
        contract, event = by_topic()[record.topic], written[record.id]
        payload, headers = payload_of(record), headers_of(record)
        strict(contract).validate(payload)
        strict(schema(HEADERS)).validate(headers)
        for name, rule in messages[contract["title"]].items():
            assert headers[name] == rule["const"]
        assert record.key is not None
        assert record.key.decode() == payload[contract["x-key"]] == str(event["aggregate_id"])
        # and it says what the row says
        assert record.topic == event["topic"]
        assert payload == event["payload"]
        assert headers["traceparent"] == event["traceparent"]
        assert [headers["tenant_id"], headers["correlation_id"]] == [
            str(event["tenant_id"]),
            str(event["correlation_id"]),
        ]
        assert headers["occurred_at"] is not None
        assert datetime.fromisoformat(headers["occurred_at"]) == event["occurred_at"]
        assert headers["seq"] == str(event["seq"])
        assert headers["replayed"] is None


def test_a_replay_differs_from_its_original_by_number_and_header_alone(wired: Wired) -> None:
    expire_all_kinds(wired.db)
    count = len(events(wired.db))
    event_id: UUID = wired.db.value("select id from outbox.event order by seq limit 1")
    replay = wired.db.value("select (outbox.replay('a test', array[%s::uuid])).id", (event_id,))
    records = [record for record in wired.consume(count + 1) if record.id == str(event_id)]
    first, second = (headers_of(record) for record in records)
    strict(schema(HEADERS)).validate(second)
    assert first.pop("replayed") is None
    assert second.pop("replayed") == str(replay)
    assert int(first.pop("seq") or 0) < int(second.pop("seq") or 0)
    assert first == second
    assert [(one.topic, one.partition, one.key, one.value) for one in records] == [
        (records[0].topic, records[0].partition, records[0].key, records[0].value)
    ] * 2


@pytest.mark.requirement("L10")
def test_a_payload_keeps_its_numbers_nulls_and_letters(wired: Wired) -> None:
    # what the router's own expansion of JSON would drop, round or turn into text
    payload = (
        '{"null": null, "whole": 10, "long": 12345678901234567890123, "exact": 0.10, "true": true,'
        ' "mixed": [1, 1.5, null, "1"], "deep": {"empty": {}, "list": []},'
        ' "letters": "Ж \\\\ \\"quoted\\" \\u2028 😀"}'
    )
    wired.db.rows(
        "insert into outbox.event (aggregate_type, aggregate_id, tenant_id, event_type, topic, payload)"
        " values ('Lead', gen_random_uuid(), gen_random_uuid(), 'LeadExpiredEvent', %s, %s::jsonb)",
        (LEADS, payload),
    )
    (record,) = wired.consume(1)
    assert payload_of(record) == json.loads(payload, parse_float=Decimal)
    assert record.value is not None
    assert str(Decimal("0.10")) in record.value.decode()
    headers = headers_of(record)
    strict(schema(HEADERS)).validate(headers)
    assert [headers["correlation_id"], headers["traceparent"]] == [None, None]

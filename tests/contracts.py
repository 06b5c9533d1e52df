"""Reads contracts/ for the tests: what is written must be as they say, and hold nothing else."""

import json
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator

from tests.domain import BOOKINGS, LEADS, PHASES, add_bookings, add_leads, run_job
from tests.servers import PROJECT, Database

Schema = dict[str, Any]

CONTRACTS: Final = PROJECT / "contracts"
RELEASED: Final = CONTRACTS / "released"
FILES: Final = sorted(path.name for path in CONTRACTS.glob("*.v*.json"))
HEADERS: Final = "headers.json"


def schema(name: str, folder: Path = CONTRACTS) -> Schema:
    """A schema by the name of its file."""
    found: Schema = json.loads((folder / name).read_text())
    return found


def by_topic() -> dict[str, Schema]:
    """The schemas of the events, by the topic that each has to itself."""
    return {one["x-topic"]: one for one in map(schema, FILES)}


def strict(one: Schema) -> Draft202012Validator:
    """For what we write: with nothing in it that the schema does not name."""
    return Draft202012Validator(
        {**one, "additionalProperties": False}, format_checker=Draft202012Validator.FORMAT_CHECKER
    )


def asyncapi() -> Schema:
    """The AsyncAPI document, its references as they stand."""
    found: Schema = yaml.safe_load((CONTRACTS / "asyncapi.yaml").read_text())
    return found


def expire_all_kinds(db: Database) -> None:
    """Leads with an investor and without, bookings of both phases: every kind of event that there is."""
    add_leads(db, 3)
    add_leads(db, 2, investor=False)
    for phase in PHASES:
        add_bookings(db, 2, phase=phase)
    run_job(db, LEADS)
    run_job(db, BOOKINGS)

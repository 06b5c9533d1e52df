"""A stack for development and tests: PostgreSQL with logical WAL, a Kafka broker, Kafka Connect."""

from pyrunner.stack.assembly import assemble
from pyrunner.stack.files import debezium_root, escaped, filled_json, filled_properties
from pyrunner.stack.stack import DATABASE, PARTS, Part, PartStatus, Stack, StackError

__all__ = [
    "DATABASE",
    "PARTS",
    "Part",
    "PartStatus",
    "Stack",
    "StackError",
    "assemble",
    "debezium_root",
    "escaped",
    "filled_json",
    "filled_properties",
]

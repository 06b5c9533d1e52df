"""What the command lines share: pyrunner's, those of its groups cdc and stack, and the consumers'."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar
from uuid import UUID

import typer

from pyrunner.database import parse_dsn
from pyrunner.errors import UsageError
from pyrunner.output import console, say
from pyrunner.settings import read_own
from pyrunner.times import parse_instant

__all__ = [
    "DsnOption",
    "JsonOption",
    "dsn_from",
    "kafka_file",
    "parse_id",
    "parse_since",
    "progress",
    "reads",
]

T = TypeVar("T")

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Connection string: 'host=... dbname=...' or postgresql://... "
        "Default: PYRUNNER_DSN, else as psql.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def reads(parse: Callable[[str], T]) -> Callable[[str | T], T]:
    """A parser for an option, whose refusal says what is wanted; typer gives it the default as well."""

    def read_value(text: str | T) -> T:
        if not isinstance(text, str):
            return text
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} must be {error}.") from None

    return read_value


def parse_id(text: str) -> UUID:
    """Reads an id.

    Raises:
        ValueError: it is none; the message says what is wanted.
    """
    try:
        return UUID(text)
    except ValueError:
        raise ValueError("an id such as 01234567-89ab-cdef-0123-456789abcdef") from None


def parse_since(text: str) -> datetime:
    """Reads a time, or how long ago it was: "2 h".

    Raises:
        ValueError: it is neither; the message says what is wanted.
    """
    with contextlib.suppress(ValueError):
        return parse_instant(f"{text} ago")
    return parse_instant(text)


def dsn_from(given: str | None) -> str:
    """The connection string to use: the option's, else that of the environment.

    Raises:
        UsageError: it cannot be understood.
    """
    own = read_own().dsn
    dsn = given if given is not None else "" if own is None else own.get_secret_value()
    parse_dsn(dsn)
    return dsn


def kafka_file(path: Path) -> dict[str, str]:
    """Settings of Kafka's client from a file of lines name=value.

    Raises:
        UsageError: the file cannot be read, or a line is something else.
    """
    try:
        lines = path.expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}.") from None
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, found, value = (part.strip() for part in line.partition("="))
        if not found or not name:
            # the line itself may hold a password
            raise UsageError(f"Line {number} of {path} is not name=value.")
        settings[name] = value
    return settings


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A function to tell progress by: the current step on a terminal, a line each elsewhere.

    Args:
        first: what a terminal shows before anything is told.
    """
    err = console(stderr=True)
    if not err.is_terminal:
        yield say
        return
    with err.status(first) as status:
        yield status.update

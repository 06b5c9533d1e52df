"""The files of debezium/: where they are, and how their placeholders are filled in.

Kafka Connect has placeholders of the same look, `${file:...}` and `${routedByValue}`. Ours are of capitals
only, so that the others stay, here as well as under `envsubst`.
"""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from pyrunner.errors import PyrunnerError

__all__ = ["debezium_root", "escaped", "filled_json", "filled_properties", "read"]

_PLACEHOLDER: Final = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


def debezium_root() -> Path:
    """The folder debezium/ of this program: inside an installed wheel, beside the package in a checkout."""
    package = Path(str(files("pyrunner")))
    places = (package / "debezium", package.parent / "debezium")
    return next((place for place in places if (place / "pom.xml").is_file()), places[0])


def read(name: str) -> str:
    """The text of a file of debezium/.

    Raises:
        PyrunnerError: it is not there.
    """
    path = debezium_root() / name
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise PyrunnerError(
            f"The file {path} cannot be read: {error.strerror}.", hint="Install pyrunner again."
        ) from None


def filled_json(name: str, values: Mapping[str, str]) -> dict[str, str]:
    """A connector's configuration: a JSON file of debezium/, each ${NAME} replaced by its value.

    Raises:
        KeyError: a name has no value, or a value no name; both are faults of the program.
    """
    text = read(name)
    _check(text, values)
    settings: dict[str, str] = json.loads(text)
    return {key: _filled(setting, values) for key, setting in settings.items()}


def filled_properties(name: str, values: Mapping[str, str]) -> str:
    """A file of Java properties of debezium/, each ${NAME} replaced by its value, escaped as Java wants it.

    Raises:
        KeyError: as for `filled_json`.
    """
    text = read(name)
    _check(text, values)
    return _filled(text, {key: escaped(value) for key, value in values.items()})


def escaped(value: str) -> str:
    """A value for a file of Java properties, whatever encoding it is read by: ASCII, with backslashes."""
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be")
    units = [int.from_bytes(utf16[at : at + 2]) for at in range(0, len(utf16), 2)]
    text = "".join(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04x}" for unit in units)
    # blanks in front would be dropped
    return f"\\{text}" if text.startswith(" ") else text


def _check(text: str, values: Mapping[str, str]) -> None:
    if different := set(_PLACEHOLDER.findall(text)) ^ values.keys():
        raise KeyError(", ".join(sorted(different)))


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], text)

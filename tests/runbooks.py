"""The pages in docs/runbooks: their commands, run as they stand there."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pyrunner.serve.figures import SCRAPE, Figures
from pyrunner.serve.reader import Reading
from tests.commands import environment
from tests.servers import PROJECT, Database

FOLDER: Final = PROJECT / "docs" / "runbooks"
PAGES: Final = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")

# a fenced block: its language, then the name by which a test runs it
_BLOCK: Final = re.compile(r"^```(\w+)(?: ([\w-]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADINGS: Final = ("What users see", "Be sure", "Causes", "It is over when")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    name: str
    text: str

    @property
    def placeholders(self) -> set[str]:
        """The words with a dollar that are to be set first."""
        return set(re.findall(r"\$([A-Z][A-Z_]*)", self.text)) - {"PYRUNNER_DSN"}


def blocks() -> list[Block]:
    """All blocks of all pages, in order."""
    return [
        Block(path.name, *found)
        for path in (*PAGES, FOLDER / "README.md")
        for found in _BLOCK.findall(path.read_text("utf-8"))
    ]


def headings(page: Path) -> list[str]:
    """The headings of the second level."""
    return re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)


COMMANDS: Final[Mapping[str, Block]] = {block.name: block for block in blocks() if block.language == "sh"}


@dataclass(frozen=True)
class Shell:
    """Where somebody types what a page says: `PYRUNNER_DSN` and whatever else the README asks for is set."""

    db: Database
    more: Mapping[str, str] | None = None

    def environment(self, placeholders: Mapping[str, Any]) -> dict[str, str]:
        """What a command finds set."""
        return environment(
            {
                "PYRUNNER_DSN": self.db.dsn,
                "PATH": os.pathsep.join(
                    [
                        str(Path(sys.executable).parent), str(Path(self.db.server.psql).parent),
                        os.environ["PATH"],
                    ]
                ),
                "PGOPTIONS": "",
                **(self.more or {}),
                **{name: str(value) for name, value in placeholders.items()},
            }
        )  # fmt: skip

    def run(self, name: str, *, code: int = 0, **placeholders: Any) -> str:
        """Runs a block as it stands on its page; what it printed. All its placeholders must be given."""
        block = COMMANDS[name]
        assert block.placeholders == set(placeholders), f"{name} wants {block.placeholders}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            env=self.environment(placeholders), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        if done.returncode != code:
            said = f"{block.text}\n{done.stdout}\n{done.stderr}"
            pytest.fail(f"{name} of {block.page} ended with {done.returncode}:\n{said}", pytrace=False)
        return done.stdout

    def start(self, name: str, **placeholders: Any) -> "subprocess.Popen[str]":
        """Starts a block that goes on until somebody ends it: one command, which takes the shell's place."""
        block = COMMANDS[name]
        assert block.placeholders == set(placeholders)
        assert block.text.count("\n") == 1
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"exec {block.text}"],
            env=self.environment(placeholders), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def says(self, name: str) -> bool:
        """Whether a block "It is over when" prints t."""
        answer = self.run(name).strip()
        assert answer in ("t", "f")
        return answer == "t"


def figures(db: Database) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What the exporter would say of a database now: what the alerts measure."""
    rows: dict[str, list[dict[str, Any]]] = {}
    with db.connect("crm_monitor") as connection:
        for section, question in SCRAPE.sections.items():
            cursor = connection.execute(question)
            assert cursor.description is not None
            names = [column.name for column in cursor.description]
            rows[section] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    scrape = Figures([Reading(label=db.name, seconds=0, rows=rows)], "test")
    return {
        (sample.name, frozenset(sample.labels.items()) - {("database", db.name)}): sample.value
        for family in scrape.collect()
        for sample in family.samples
    }


def figure(db: Database, name: str, **labels: str) -> float | None:
    """The sum of a series' samples that have these labels; None when there is none."""
    found = [
        value
        for (one, have), value in figures(db).items()
        if one == name and have >= frozenset(labels.items())
    ]
    return sum(found) if found else None

"""The table: for the terminal, for the README, for a program."""

import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.lab import SETTINGS
from benchmarks.measure import Ratio
from benchmarks.scale import Scale
from benchmarks.scenarios import Row

__all__ = ["RESULTS", "Machine", "as_json", "as_markdown", "show"]

RESULTS: Final = Path(__file__).parent / "results.md"
_HEADINGS: Final = ("measured", "target", "ratio by the clock", "by CPU time", "figures (medians)", "")


@dataclass(frozen=True)
class Machine:
    """Where and when it was measured."""

    postgres: str
    cpu: str = field(default_factory=lambda: _cpu_model())
    cores: int = field(default_factory=lambda: _cores())
    memory_gb: float = field(default_factory=lambda: _memory())
    system: str = field(default_factory=lambda: f"{platform.system()} {platform.release()}")
    python: str = field(default_factory=platform.python_version)
    psycopg: str = psycopg.__version__
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the table."""
    table = Table(show_lines=True)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows:
        style = {"met": "green", "missed": "red"}.get(row.verdict, "yellow")
        *cells, verdict = _cells(row)
        table.add_row(*cells, f"[{style}]{verdict}[/]")
    console.print(table)


def as_markdown(rows: Sequence[Row], scale: Scale, machine: Machine) -> str:
    """The table with everything that is needed to understand it."""
    rounds = f"{scale.rounds} round{'s' if scale.rounds > 1 else ''}"
    how = (
        f"{scale.overdue:,} overdue of {scale.items:,} leads, {scale.lead_batch} a batch, and of as many "
        f"bookings, {scale.booking_batch} a batch, the caps of a cycle lifted; outbox (partitioned), audit "
        "log and timeline written. What a loop of the benchmark writes is compared with what the engine "
        "writes, row by row. The ways of a pair follow each other in every round, each in a database put "
        f"back just before. Ratios are medians of {rounds}, least and greatest in brackets; CPU time is the "
        "backends' own, user and system."
    )
    load = f"Load average when it began: {machine.load_before:.1f}"
    if machine.load_before > 0.7:
        load += ", so others were at work on the machine, and CPU time is the steadier figure"
    where = (
        f"PostgreSQL {machine.postgres}, Python {machine.python}, psycopg {machine.psycopg}; {machine.cpu}, "
        f"{machine.cores} cores, {machine.memory_gb:.0f} GB, {machine.system}; {machine.date}. {load}."
    )
    settings = ", ".join(f"`{name} = {value}`" for name, value in SETTINGS.items())
    lines = [
        "<!-- written by make bench -->",
        "",
        _line(_HEADINGS),
        _line(["---"] * len(_HEADINGS)),
        *(_line(_cells(row)) for row in rows),
        "",
        how,
        "",
        where,
        "",
        f"Settings: {settings}.",
        "",
    ]
    return "\n".join(lines)


def as_json(rows: Sequence[Row], scale: Scale, machine: Machine) -> str:
    """Everything, each round's figures included."""
    return json.dumps(
        {
            "scale": asdict(scale),
            "machine": asdict(machine),
            "settings": dict(SETTINGS),
            "rows": [asdict(row) for row in rows],
        },
        indent=2,
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> list[str]:
    return [row.what, row.target or "-", _ratio(row.clock), _ratio(row.cpu), row.shown, row.verdict or "-"]


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.median:.2f} ({ratio.least:.2f}..{ratio.greatest:.2f})"


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30

"""The tables: for the terminal, for the README, for a program."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import libversion
from rich.console import Console
from rich.table import Table

from benchmarks.cdc.scale import Scale
from benchmarks.cdc.scenarios import Comparison, Row
from benchmarks.measure import Ratio
from benchmarks.report import Machine

__all__ = ["RESULTS", "Results"]

RESULTS: Final = Path(__file__).parents[1] / "results-cdc.md"
_ROWS: Final = ("measured", "target", "figures (medians)", "")
_SETTINGS: Final = ("setting", "as it is", "tried instead", "measured", "as it is", "instead", "ratio")


@dataclass(frozen=True)
class Results:
    """What was measured, and where.

    Attributes:
        lines: of both tables.
        scale: how much.
        machine: where and when.
        software: versions by name.
    """

    lines: Sequence[Row | Comparison]
    scale: Scale
    machine: Machine
    software: dict[str, str]

    @property
    def _tables(self) -> list[tuple[tuple[str, ...], list[list[str]]]]:
        rows = [_row(one) for one in self.lines if isinstance(one, Row)]
        settings = [_comparison(one) for one in self.lines if isinstance(one, Comparison)]
        return [(head, body) for head, body in ((_ROWS, rows), (_SETTINGS, settings)) if body]

    def show(self, console: Console) -> None:
        """Prints the tables."""
        for headings, body in self._tables:
            table = Table(show_lines=True)
            for heading in headings:
                table.add_column(heading, overflow="fold")
            for *cells, last in body:
                style = {"met": "green", "missed": "red"}.get(last)
                table.add_row(*cells, f"[{style}]{last}[/]" if style else last)
            console.print(table)

    def as_markdown(self) -> str:
        """The tables with everything that is needed to understand them."""
        lines = ["<!-- written by make bench-cdc -->", ""]
        for headings, body in self._tables:
            lines += [_line(headings), _line(["---"] * len(headings)), *map(_line, body), ""]
        return "\n".join([*lines, self._how, "", self._where, ""])

    def as_json(self) -> str:
        """Everything, each round's figures included."""
        return json.dumps(
            {
                "scale": asdict(self.scale),
                "machine": asdict(self.machine),
                "software": self.software,
                "lines": [asdict(one) for one in self.lines],
            },
            indent=2,
        )

    @property
    def _how(self) -> str:
        return (
            f"PostgreSQL, broker, Connect and consumer share the {self.machine.cores} cores of one machine; "
            "one broker, one task. The consumer reads committed, with librdkafka's defaults, and after every "
            "measurement the ids that came are compared with those in the outbox. Latency: a lead expires by "
            "`crm.expire_leads_batch`, and time runs from the return of its commit. Rate: events as the job "
            f"writes them, {self.scale.batch} a transaction, timed to the last arrival: from the first "
            "insert, or with a backlog from when the connector has its slot. Before anything is measured, "
            f"{self.scale.warm_up:,} events pass, so that Java has compiled what it will. Settings: as they "
            "are and otherwise, in turn; ratios of the rate, or of p99. Figures are medians of the rounds, "
            "least and greatest in brackets. Memory: resident, of Java's processes; of PostgreSQL's, what "
            "they share counted once."
        )

    @property
    def _where(self) -> str:
        load = f"Load average when it began: {self.machine.load_before:.1f}"
        if self.machine.load_before > 0.7:
            load += ", so others were at work on the machine, and CPU time is the steadier figure"
        versions = ", ".join(f"{name} {version}" for name, version in self.software.items())
        return (
            f"{versions}, librdkafka {libversion()[0]}, Python {self.machine.python}; {self.machine.cpu}, "
            f"{self.machine.cores} cores, {self.machine.memory_gb:.0f} GB, {self.machine.system}; "
            f"{self.machine.date}. {load}."
        )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(row: Row) -> list[str]:
    return [row.what, row.target or "-", row.shown, row.verdict or "-"]


def _comparison(one: Comparison) -> list[str]:
    return [
        f"`{one.setting}`", one.ours, one.instead, one.measured, one.with_ours, one.with_instead,
        _ratio(one.ratio),
    ]  # fmt: skip


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.median:.2f} ({ratio.least:.2f}..{ratio.greatest:.2f})"

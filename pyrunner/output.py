"""What commands print: tables for people, JSON for programs, progress on a terminal."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from pyrunner.cycle import Run
from pyrunner.errors import PyrunnerError
from pyrunner.logs import LogObserver
from pyrunner.times import FIRST, LAST, format_duration, format_instant

__all__ = [
    "CycleProgress",
    "ago",
    "console",
    "count",
    "moment",
    "print_error",
    "print_facts",
    "print_json",
    "print_run",
    "print_table",
    "say",
    "span",
]

# a table that goes to a file is not folded to the width of a terminal
_WIDE: Final = 200


def console(*, stderr: bool = False) -> Console:
    """A console for standard output or error, as they are at this moment."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        highlight=False,
        width=None if stream.isatty() else _WIDE,
        soft_wrap=not stream.isatty(),
    )


def say(text: str) -> None:
    """A line for the person at the terminal, on standard error."""
    console(stderr=True).print(Text(text))


def print_error(error: PyrunnerError) -> None:
    """One sentence, and the hint below it, on standard error."""
    err = console(stderr=True)
    err.print(Text("pyrunner: ", style="bold red") + Text(_sentence(error.message)), soft_wrap=True)
    if error.hint:
        err.print(Text(f"  {error.hint}", style="dim"), soft_wrap=True)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def print_json(value: Any) -> None:
    """JSON on standard output; instants by ISO 8601 in UTC, durations as 01:00:00."""
    print(json.dumps(value, default=_plain, ensure_ascii=False, indent=2))  # noqa: T201


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value)


def print_table(columns: Sequence[str], lines: Iterable[Sequence[Any]], *, empty: str) -> None:
    """A table on standard output, or the sentence `empty` when it would have no lines."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(*(value if isinstance(value, Text) else Text(shown(value)) for value in line))
    console().print(table if table.row_count else Text(empty))


def print_facts(title: Text, facts: Iterable[tuple[str, Any]]) -> None:
    """A heading with names and values below it, on standard output; None is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        if value is not None:
            table.add_row(
                Text(f"  {name}", style="dim"), value if isinstance(value, Text) else Text(shown(value))
            )
    out = console()
    out.print(title)
    out.print(table)


def print_run(run: Run) -> None:
    """The result of a cycle, for a person."""
    style = {"completed": "green", "skipped": "yellow", "capped": "yellow", "stopped": "yellow"}.get(
        run.status, "red"
    )
    title = Text.assemble(
        Text(run.job, style="bold"), " ", (run.status, style), f" ({run.reason})" if run.reason else ""
    )
    if run.status == "skipped":
        print_facts(title, [("why", run.error)])
        return
    failed = (
        Text(f"{run.failed:,}  see: pyrunner failed list {run.job}", style="yellow") if run.failed else None
    )
    print_facts(title, [*run.result.items(), ("failed items", failed), ("run", run.id)])


def shown(value: Any) -> str:
    """A value as people read it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return moment(value)
        case timedelta():
            return format_duration(value)
    return str(value)


def moment(instant: datetime | None) -> str:
    """To the second, in UTC."""
    if instant is None:
        return ""
    if instant in (FIRST, LAST):
        return format_instant(instant)
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(instant: datetime | None, now: datetime) -> str:
    """A moment with its distance from now."""
    return "never" if instant is None else f"{moment(instant)}, {span(now - instant)} ago"


def span(duration: timedelta) -> str:
    """A duration in its two largest units: "3 h 12 min"."""
    seconds = max(0, int(duration.total_seconds()))
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number or len(parts) == 1) or "0 s"


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 item", "1,200 items"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class CycleProgress:
    """A cycle as a bar on standard error; warnings and errors of its log stand above it."""

    def __init__(self, observer: LogObserver) -> None:
        self._observer = observer
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[batches]}"),
            TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._batches = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def wants(self, level: str) -> bool:
        """Whether events of that level are of interest."""
        return self._observer.wants(level)

    def started(self, run: Run) -> None:
        """Draws the bar: as long as there are due items."""
        self._task = self._progress.add_task(run.job, total=run.due_before, batches="")

    def batch(self, report: Mapping[str, Any]) -> None:
        """Moves the bar on."""
        self._batches += 1
        if self._task is not None:
            self._progress.update(
                self._task, advance=report["claimed"], batches=count(self._batches, "batch", "batches")
            )

    def event(self, event: Mapping[str, Any]) -> None:
        """Writes a warning or an error."""
        self._observer.event(event)

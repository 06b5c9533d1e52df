"""What the demo writes: headings, sentences, tables, bars; plain text where the output is no terminal."""

import contextlib
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "Screen"]

_WIDEST: Final = 100
_INDENT: Final = "  "

Column = str | tuple[str, Literal["right"]]


class Screen:
    """A terminal, or a file.

    Args:
        console: where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, _WIDEST)

    def title(self, text: str) -> None:
        """The first line."""
        self._console.print(Text(text, style="bold"), soft_wrap=True)

    def heading(self, text: str) -> None:
        """A line that begins a part."""
        self._console.print()
        self._console.print(Text(text, style="bold cyan"), soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """A paragraph."""
        wrapped = textwrap.fill(
            " ".join(text.split()), self._width - 1, initial_indent=_INDENT, subsequent_indent=_INDENT,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        self._console.print(Text(wrapped, style=style), soft_wrap=True)

    def verbatim(self, text: str, style: str = "bold") -> None:
        """A line to be copied, however long it is."""
        self._console.print(Text(_INDENT + text, style=style), soft_wrap=True)

    def choices(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Things to type, each with what it does."""
        width = max(len(command) for command, _ in pairs) + 2
        for command, what in pairs:
            line = Text(_INDENT)
            line.append(command.ljust(width), style="bold")
            line.append(what, style="dim")
            self._console.print(line, soft_wrap=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
        """A table; numbers get thousands separators."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
        table.add_column("", width=0)
        for column in columns:
            name, side = (column, "left") if isinstance(column, str) else column
            table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
        for row in rows:
            table.add_row("", *(_cell(value) for value in row))
        table.show_header = any(column if isinstance(column, str) else column[0] for column in columns)
        self._console.print(table, width=self._width)

    def checks(self, rows: Sequence[tuple[bool, str]]) -> None:
        """Statements, each with whether it holds."""
        for holds, text in rows:
            mark = "ok" if holds else "NO"
            wrapped = textwrap.wrap(text, self._width - 1 - len(_INDENT) - 4, break_on_hyphens=False)
            for number, line in enumerate(wrapped):
                shown = Text(_INDENT)
                shown.append((mark if number == 0 else "").ljust(4), style="green" if holds else "bold red")
                shown.append(line)
                self._console.print(shown, soft_wrap=True)

    def json(self, value: object) -> None:
        """A JSON value on several lines."""
        text = textwrap.indent(json.dumps(value, indent=2, ensure_ascii=False), _INDENT)
        if self._console.is_terminal:
            code = Syntax(text, "json", theme="ansi_dark", background_color="default", word_wrap=True)
            self._console.print(code, width=self._width)
        else:
            self._console.print(Text(text), soft_wrap=True)

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Within, a terminal shows that something goes on, and what; call what it yields to say more."""
        with self._console.status(_INDENT + text, spinner="line") as status:
            yield lambda more: status.update(_INDENT + more)

    @contextlib.contextmanager
    def progress(self, text: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Within, a terminal shows a bar; call what it yields with so many more units done."""
        if not self._console.is_terminal:
            yield lambda _: None
            return
        with Progress(
            TextColumn(_INDENT + "{task.description}"),
            BarColumn(bar_width=24),
            TextColumn(f"{{task.completed:>9,.0f}} of {{task.total:,.0f}} {unit}"),
            _Rate(),
            console=self._console,
            transient=True,
        ) as progress:
            task = progress.add_task(text, total=total)
            yield lambda more: progress.advance(task, more)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


def _cell(value: Any) -> Text:
    match value:
        case None:
            return Text("-")
        case bool():
            return Text(str(value).lower())
        case int():
            return Text(f"{value:,}")
        case float():
            return Text(f"{value:,.1f}")
        case Text():
            return value
        case _:
            return Text(str(value))

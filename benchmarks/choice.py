"""What both benchmarks do with their scenarios: list them, choose among them, end them by SIGTERM."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from benchmarks.lab import BenchError

__all__ = ["Scenario", "chosen", "listing", "terminable"]

LabT = TypeVar("LabT")
RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Scenario(Generic[LabT, RowT]):
    """A part of a benchmark, with its name for --only."""

    name: str
    run: Callable[[LabT], Sequence[RowT]]

    @property
    def about(self) -> str:
        """What it is, in a line."""
        return (self.run.__doc__ or "").splitlines()[0]


def listing(scenarios: Sequence[Scenario[LabT, RowT]]) -> str:
    """The scenarios, for a command's help."""
    return "The scenarios:\n\n" + "\n\n".join(f"[bold]{one.name}[/]  {one.about}" for one in scenarios)


def chosen(scenarios: Sequence[Scenario[LabT, RowT]], only: str) -> list[Scenario[LabT, RowT]]:
    """The scenarios of the names in `only`, which commas separate; all for none.

    Raises:
        BenchError: there is none of a name.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {scenario.name for scenario in scenarios}
    if unknown := [name for name in names if name not in known]:
        there_are = ", ".join(scenario.name for scenario in scenarios)
        raise BenchError(f"there is no scenario {', '.join(unknown)}; there are {there_are}")
    return [scenario for scenario in scenarios if not names or scenario.name in names]


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that what was started is removed."""

    def end(_number: int, _frame: FrameType | None) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

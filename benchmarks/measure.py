"""Time by the clock and by the processor, and ratios of two ways of doing the same."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks.lab import Connection

__all__ = ["Ratio", "Sample", "Watch", "cpu_seconds", "ratios", "together"]


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process so far, user's and system's, in s; None where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """One measurement.

    Attributes:
        seconds: by the clock, from the first start to the last end.
        cpu: processor time of the backends, in s; None where it cannot be told.
        client_cpu: processor time of our own process, in s.
    """

    seconds: float
    cpu: float | None
    client_cpu: float


class Watch:
    """Measures what some backends do within its `with` block."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._sample: Sample | None = None

    @property
    def sample(self) -> Sample:
        """The measurement, once the block has ended."""
        assert self._sample is not None
        return self._sample

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The block to measure."""
        before = [cpu_seconds(pid) for pid in self._pids]
        client, start = time.process_time(), time.perf_counter()
        yield
        seconds, client = time.perf_counter() - start, time.process_time() - client
        spent = [
            after - first
            for first, pid in zip(before, self._pids, strict=True)
            if first is not None and (after := cpu_seconds(pid)) is not None
        ]
        self._sample = Sample(seconds, sum(spent) if len(spent) == len(self._pids) else None, client)


def together(connections: Sequence[Connection], work: Callable[[Connection], None]) -> Sample:
    """Does the work in every session at the same time."""
    watch = Watch([connection.info.backend_pid for connection in connections])
    if len(connections) == 1:
        with watch.running():
            work(connections[0])
        return watch.sample
    start = threading.Barrier(len(connections) + 1)

    def wait_and_work(connection: Connection) -> None:
        start.wait()
        work(connection)

    with ThreadPoolExecutor(len(connections)) as pool:
        running = [pool.submit(wait_and_work, connection) for connection in connections]
        with watch.running():
            start.wait()
            for one in running:
                one.result()
    return watch.sample


@dataclass(frozen=True)
class Ratio:
    """What the rounds gave: the middle one, the least and the greatest."""

    median: float
    least: float
    greatest: float

    def meets(self, limit: float, kind: Literal["at most", "at least"]) -> bool:
        """Whether the middle one is within a limit, as it is shown."""
        shown = round(self.median, 2)
        return shown <= limit if kind == "at most" else shown >= limit


def ratios(pairs: Sequence[tuple[float | None, float | None]]) -> Ratio | None:
    """Of the first to the second, round by round; None where one cannot be told or is too small to tell."""
    found = [a / b for a, b in pairs if a is not None and b]
    if not found or len(found) < len(pairs):
        return None
    return Ratio(median(found), min(found), max(found))

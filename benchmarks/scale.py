"""How much is measured."""

from dataclasses import dataclass
from typing import Final

__all__ = ["FULL", "QUICK", "TINY", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Sizes of a run of the benchmark.

    Attributes:
        name: for the report.
        rounds: pairs of measurements, beside one that warms up and compares what was written.
        items: leads, and as many bookings.
        overdue: of these.
        lead_batch: leads a batch.
        booking_batch: bookings a batch.
        idle: rows of the tables in which nothing is due, ascending.
        idle_claims: claims in a row, a round.
        idle_cycles: cycles in a row, a round.
        memory_batches: batches of the cycle during which the runner's memory is watched.
    """

    name: str
    rounds: int
    items: int
    overdue: int
    lead_batch: int
    booking_batch: int
    idle: tuple[int, ...]
    idle_claims: int
    idle_cycles: int
    memory_batches: int


FULL: Final = Scale("full", 7, 300_000, 100_000, 500, 200, (10_000, 1_000_000, 10_000_000), 1000, 100, 1000)
QUICK: Final = Scale("quick", 3, 90_000, 30_000, 500, 200, (10_000, 100_000, 1_000_000), 500, 50, 1000)
# for the tests: whether it works, not how fast
TINY: Final = Scale("tiny", 1, 900, 300, 50, 20, (300, 1_000, 3_000), 5, 2, 30)

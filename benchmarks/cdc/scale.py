"""How much is measured."""

from dataclasses import dataclass
from typing import Final

__all__ = ["FULL", "QUICK", "TINY", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Sizes of a run of the benchmark.

    Attributes:
        name: for the report.
        warm_up: events before anything is measured, so that Java has compiled what it will.
        latency_rounds: rounds of latency.
        latency_events: events a round.
        rate_rounds: rounds of the rate.
        rate_events: events a round.
        setting_rounds: pairs of measurements for each setting.
        setting_rate_events: events a measurement of the rate.
        setting_latency_events: events a measurement of the latency.
        every_setting: compare all settings; else just one that needs no other Connect, and one that does.
        freed: bookings whose property objects are freed.
        dropped: events that are published and dropped.
        dropped_days: partitions that they lie in.
        idle_seconds: how long an idle stack is watched.
        batch: events a transaction.
        per_second: events a second where latency is measured.
    """

    name: str
    warm_up: int
    latency_rounds: int
    latency_events: int
    rate_rounds: int
    rate_events: int
    setting_rounds: int
    setting_rate_events: int
    setting_latency_events: int
    every_setting: bool
    freed: int
    dropped: int
    dropped_days: int
    idle_seconds: float
    batch: int = 500
    per_second: int = 20


FULL: Final = Scale(
    name="full",
    warm_up=300_000,
    latency_rounds=3,
    latency_events=1_200,
    rate_rounds=7,
    rate_events=100_000,
    setting_rounds=2,
    setting_rate_events=100_000,
    setting_latency_events=200,
    every_setting=True,
    freed=200,
    dropped=1_000_000,
    dropped_days=10,
    idle_seconds=30,
)
QUICK: Final = Scale(
    name="quick",
    warm_up=100_000,
    latency_rounds=1,
    latency_events=400,
    rate_rounds=3,
    rate_events=50_000,
    setting_rounds=1,
    setting_rate_events=50_000,
    setting_latency_events=200,
    every_setting=True,
    freed=50,
    dropped=100_000,
    dropped_days=5,
    idle_seconds=10,
)
# for the tests: whether it works, not how fast
TINY: Final = Scale(
    name="tiny",
    warm_up=500,
    latency_rounds=1,
    latency_events=10,
    rate_rounds=1,
    rate_events=1_000,
    setting_rounds=1,
    setting_rate_events=500,
    setting_latency_events=5,
    every_setting=False,
    freed=2,
    dropped=2_000,
    dropped_days=3,
    idle_seconds=1,
    batch=100,
)

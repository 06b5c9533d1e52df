"""The exporter as Prometheus and a browser see it: `pyrunner serve` in a process of its own."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.commands import Process, started
from tests.servers import wait_until

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]


@dataclass(frozen=True)
class Exporter:
    """A `pyrunner serve` at work.

    Attributes:
        url: with the slash at its end.
        process: for its log lines and signals.
    """

    url: str
    process: Process

    def get(self, path: str = "", **headers: str) -> httpx.Response:
        """What it answers at a path below /."""
        # nothing is encrypted, and reading all certificates anew takes longer than the answer
        return httpx.get(self.url + path, headers=headers, timeout=60, verify=False)  # noqa: S501

    def scrape(self) -> Samples:
        """All samples of one scrape, by name and labels."""
        answer = self.get("metrics")
        assert answer.status_code == 200
        return samples_of(answer.text)

    def wait_until_up(self, up: float = 1, *, timeout: float = 60) -> Samples:
        """Scrapes until the database can be read, or with 0 until it cannot."""

        def seen() -> Samples | None:
            found = self.scrape()
            return found if values(found, "crm_exporter_up") == [up] else None

        found = wait_until(seen, timeout=timeout, what=lambda: f"up is {up}:\n{self.process.so_far.err}")
        assert found is not None
        return found


@contextlib.contextmanager
def serving(
    *dsns: str, arguments: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Iterator[Exporter]:
    """An exporter of these databases on a free port; killed at the block's end if it is still there."""
    given = [part for dsn in dsns for part in ("--dsn", dsn)]
    with started("serve", "--listen", "127.0.0.1:0", *given, *arguments, env=env) as process:
        (line,) = process.wait_for("serve started")
        (url,) = line["listen"]
        yield Exporter(url, process)


def samples_of(text: str) -> Samples:
    """The samples of a scrape; each must be there once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def values(samples: Samples, name: str, **labels: Any) -> list[float]:
    """The values of a series that has these labels among its own."""
    wanted = {(key, str(value)) for key, value in labels.items()}
    return [value for (one, has), value in samples.items() if one == name and wanted <= has]


def value(samples: Samples, name: str, **labels: Any) -> float:
    """As `values`, where there must be one."""
    (found,) = values(samples, name, **labels)
    return found

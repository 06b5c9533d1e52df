"""The benchmark of the way to Kafka runs from end to end, and notices what is wrong. Nothing is timed."""

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.cdc.reader import Reader
from benchmarks.cdc.scenarios import SCENARIOS, SETTINGS, distribution
from benchmarks.lab import BenchError
from pyrunner.stack.files import read
from tests.kafka import need_kafka
from tests.servers import PROJECT, Server, need


@pytest.mark.slow
@pytest.mark.kafka
# Connect is started anew four times, which on a busy machine takes its time
@pytest.mark.timeout(1200)
def test_it_runs_from_end_to_end(server: Server, tmp_path: Path) -> None:
    need_kafka()
    need(server.binaries, "the server is not ours, so there may be no binaries for the benchmark's own")
    tmp_path.chmod(0o711)
    figures, results = tmp_path / "figures.json", tmp_path / "results.md"
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.cdc", "--tiny", "--pg", str(server.major),
            "--json", str(figures), "--results", str(results), "--folder", str(tmp_path / "bench"),
        ],
        cwd=PROJECT, capture_output=True, text=True, timeout=1140, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "bench").exists()
    told = json.loads(figures.read_text())
    rows = [line for line in told["lines"] if "scenario" in line]
    compared = [line for line in told["lines"] if "setting" in line]
    assert {row["scenario"] for row in rows} | {"settings"} == {one.name for one in SCENARIOS}
    assert {one["measured"] for one in compared} == {"events/s", "p50, p99 in ms"}
    assert all(line["samples"] for line in told["lines"])
    assert {"PostgreSQL", "Kafka", "Debezium"} <= told["software"].keys()
    text = results.read_text()
    assert all(row["what"] in text for row in rows)
    assert all(f"`{one['setting']}`" in text for one in compared)
    # what took part was there, and was seen
    memory = {row["what"]: row["samples"][0] for row in rows if row["scenario"] == "memory"}
    assert len(memory) == 4
    assert all(sample["most"] >= sample["idle"] > 1_000_000 for sample in memory.values())
    (dropped,) = (row for row in rows if row["scenario"] == "dropped")
    before, full, after = (dropped["samples"][0][name]["database"] for name in ("before", "full", "after"))
    # the catalogs may have shrunk meanwhile
    assert max(before, after) < full
    assert "commit to consumer" in done.stdout


@pytest.mark.parametrize("arguments", [["--only", "latency,nonsense"], ["--pg", "9"]])
def test_what_cannot_be_measured_is_said_in_a_sentence(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.cdc", "--tiny", "--folder", str(tmp_path / "bench"),
            *arguments,
        ],
        cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) <= 2
    assert done.stderr.startswith("bench-cdc: ")
    assert not (tmp_path / "bench").exists()


def test_an_event_that_is_missing_doubled_or_foreign_fails_a_measurement() -> None:
    first, second, stranger = (uuid4().bytes for _ in range(3))

    def received(*ids: bytes) -> Reader:
        reader = Reader("", [], keep=False)
        reader._ids = list(ids)
        return reader

    received(second, first).check([first, second])
    for ids, problem in (
        ((first,), "1 missing, 0 too many"),
        ((first, second, second), "0 missing, 1 too many"),
        ((first, stranger), "1 missing, 1 too many"),
    ):
        with pytest.raises(BenchError, match=problem):
            received(*ids).check([first, second])


def test_percentiles_lie_between_their_neighbours() -> None:
    found = distribution([float(number) for number in range(1, 102)])
    assert (found.p50, found.p95, found.p99, found.greatest, found.events) == (51, 96, 100, 101, 101)


def test_every_setting_that_is_compared_differs_from_the_committed_one() -> None:
    connector = json.loads(read("connector.json"))
    lines = read("connect.properties").splitlines()
    worker = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    for setting in SETTINGS:
        ours = {**worker, **connector}.get(setting.name)
        assert ours != setting.instead
        assert setting.connector or setting.worker
        assert all(connector.get(name) != value for name, value in setting.connector.items()), setting
        assert all(worker.get(name) != value for name, value in setting.worker.items()), setting

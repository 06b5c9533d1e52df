"""A real Prometheus with the project's rules, beside a real exporter; and what their expressions measure."""

import contextlib
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import psutil
import yaml

from pyrunner.postgres import free_port
from tests.exporter import Exporter
from tests.servers import PROJECT, need, wait_until

MONITORING: Final = PROJECT / "monitoring"
FOLDER: Final = MONITORING / "prometheus"
RULE_FILES: Final = (FOLDER / "recording.yml", FOLDER / "alerts.yml")
# the labels that a scrape adds
INSTANCE: Final = "exporter"

Rule = dict[str, Any]


def need_prometheus() -> None:
    """Skips the test where prometheus or promtool is not installed."""
    for name in ("prometheus", "promtool"):
        need(shutil.which(name), f"no {name} on this machine")


def promtool(*arguments: str, code: int | None = 0) -> str:
    """Runs promtool; what it printed. Fails the test when it ends with another code."""
    need_prometheus()
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=500, check=False, cwd=FOLDER
    )
    said = done.stdout + done.stderr
    assert code is None or done.returncode == code, f"promtool {' '.join(arguments)} ended so:\n{said}"
    return said


# ------------------------------------------------------------------------------------------------------ rules


def groups() -> list[dict[str, Any]]:
    """The groups of all rule files, in order."""
    return [group for path in RULE_FILES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]


def rules(kind: str) -> list[Rule]:
    """All rules of a kind: record or alert."""
    return [rule for group in groups() for rule in group["rules"] if kind in rule]


_WORD: Final = re.compile(r"(?:and|or|unless)\b")
_COMPARISON: Final = re.compile(r"==|!=|>=|<=|>|<")
_MATCHING: Final = re.compile(
    r"\s*(?:bool\b)?\s*(?:(?:on|ignoring)\s*\([^)]*\))?\s*(?:group_(?:left|right)\b\s*(?:\([^)]*\))?)?"
)
_SCALAR: Final = re.compile(r"[\d.\s*+/()-]+")
_OPENING: Final = "({["
_CLOSING: Final = ")}]"


def operands(expression: str) -> list[str]:
    """The vectors that an expression compares or combines: what must return data while all is well, too.

    Comparisons, `and`, `or` and `unless` outside of functions are taken apart, numbers left out. `absent(x)`
    counts as x, and a look back by `offset` as a look at now: a test does not last that long.
    """
    expression = _bare(expression)
    parts = _split(expression)
    if len(parts) > 1:
        return [one for part in parts for one in operands(part)]
    if _SCALAR.fullmatch(expression):
        return []
    if expression.startswith("absent("):
        return operands(expression.removeprefix("absent").strip())
    return [re.sub(r"\s+offset\s+\w+", "", expression)]


def _bare(expression: str) -> str:
    """Without parentheses around the whole."""
    expression = expression.strip()
    while expression.startswith("(") and _end_of(expression, 0) == len(expression) - 1:
        expression = expression[1:-1].strip()
    return expression


def _end_of(expression: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth, at = 0, start
    while at < len(expression):
        sign = expression[at]
        if sign in "\"'`":
            at = _end_of_string(expression, at)
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise ValueError(f"unbalanced: {expression}")


def _end_of_string(expression: str, start: int) -> int:
    quote, at = expression[start], start + 1
    while expression[at] != quote:
        at += 2 if expression[at] == "\\" and quote != "`" else 1
    return at


def _split(expression: str) -> list[str]:
    parts, begin, at = [], 0, 0
    while at < len(expression):
        sign = expression[at]
        if sign in _OPENING:
            at = _end_of(expression, at) + 1
            continue
        if sign in "\"'`":
            at = _end_of_string(expression, at) + 1
            continue
        is_start = at == 0 or not re.match(r"[\w:]", expression[at - 1])
        found = _COMPARISON.match(expression, at) or (_WORD.match(expression, at) if is_start else None)
        if found is None:
            at += 1
            continue
        parts.append(expression[begin:at])
        matching = _MATCHING.match(expression, found.end())
        begin = at = matching.end() if matching else found.end()
    return [*parts, expression[begin:]]


# ------------------------------------------------------------------------------------------ what is scraped


def place_of(exporter: Exporter) -> str:
    """Its host and port, as Prometheus knows it."""
    return urlsplit(exporter.url).netloc


@dataclass(frozen=True)
class Scraped:
    """A series as it was scraped.

    Attributes:
        labels: name and labels.
        values: one a step; None where there was none.
    """

    labels: Mapping[str, str]
    values: Sequence[float | None]

    @property
    def name(self) -> str:
        """As PromQL writes it."""
        inner = ",".join(
            f'{key}="{_escaped(value)}"' for key, value in sorted(self.labels.items()) if key != "__name__"
        )
        return f"{self.labels['__name__']}{{{inner}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


class Prometheus:
    """A Prometheus of the test's own, with the example's configuration and the rules as they are."""

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        need_prometheus()
        self.port = free_port()
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
        (scrape,) = config["scrape_configs"]
        scrape["static_configs"] = [{"targets": list(targets)}]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [
                "prometheus", f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn", "--storage.tsdb.retention.time=1d",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        wait_until(self._is_ready, timeout=60, what=lambda: f"Prometheus is ready: {self._lines}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self._lines.extend(stream)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/-/ready").status_code == 200
        return False

    def close(self) -> None:
        """Ends it."""
        self._client.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()
        self._process.wait(10)
        self._reader.join(10)

    # ------------------------------------------------------------ asking

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of the API."""
        answer = self._client.get(f"/api/v1/{path}", params=parameters)
        body = answer.json()
        assert body["status"] == "success", f"{parameters}: {body}"
        return body["data"]

    def query(self, expression: str, **parameters: Any) -> list[dict[str, Any]]:
        """The vector that an expression yields now; a scalar counts as a vector of one."""
        data = self.ask("query", query=expression, **parameters)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        found: list[dict[str, Any]] = data["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The one value that an expression yields now; None when there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def wait_for(self, expression: str, *, timeout: float = 60) -> list[dict[str, Any]]:
        """Waits until an expression returns data."""
        return wait_until(lambda: self.query(expression), timeout=timeout, what=f"data of {expression}")

    def scraped(self, since: float, until: float) -> list[Scraped]:
        """Every series of the exporter as it was scraped, one value a second; its instance is INSTANCE."""
        data = self.ask("query_range", query='{job="pyrunner"}', start=since, end=until, step=1)["result"]
        found = []
        for one in data:
            labels = one["metric"]
            # what the rules made of it is made again
            if ":" in labels["__name__"] or labels["__name__"].startswith(("ALERTS", "scrape_")):
                continue
            at = {round(time - since): float(value) for time, value in one["values"]}
            steps = range(int(until - since) + 1)
            found.append(Scraped({**labels, "instance": INSTANCE}, [at.get(step) for step in steps]))
        return found


def continued(series: Scraped, seconds: int, *, tail: int) -> str:
    """Its values for a rule test, one a second; then what the last `tail` of them show, for `seconds` more.

    What was absent stays absent, what stood still stands still, what grew evenly (an age) goes on growing.
    """
    shown: list[str] = []
    before: float | None = None
    for value in series.values:
        # Prometheus ends a series by a marker; without it the last value would hold for five minutes
        shown.append(f"{value:.6f}" if value is not None else "stale" if before is not None else "_")
        before = value
    last = series.values[-1]
    if last is None:
        return " ".join([*shown, f"_x{seconds}"])
    step = growth(series.values[-tail:])
    return " ".join([*shown, f"{last + step:.6f}{step:+.6f}x{seconds}"])


def growth(values: Sequence[float | None]) -> float:
    """By how much a series grows from value to value, if it does so evenly; else 0."""
    known = [value for value in values if value is not None]
    if len(known) < 5:
        return 0
    step = (known[-1] - known[0]) / (len(known) - 1)
    # a scrape may come a little early or late
    is_even = all(abs(known[0] + step * number - value) < 2 for number, value in enumerate(known))
    return step if is_even and abs(step - 1) < 0.2 else 0


def rule_test(series: Sequence[Scraped], seconds: int, *, tail: int, firing: Sequence[str]) -> dict[str, Any]:
    """A test of the rules with these series, continued for so long: at its end exactly these alerts fire."""
    length = len(series[0].values) + seconds
    return {
        "rule_files": [str(path) for path in RULE_FILES],
        "evaluation_interval": "15s",
        "group_eval_order": [group["name"] for group in groups()],
        "tests": [
            {
                "interval": "1s",
                "input_series": [
                    {"series": one.name, "values": continued(one, seconds, tail=tail)} for one in series
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{length - length % 15}s",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
                    }
                ],
            }
        ],
    }


@contextlib.contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these targets every second."""
    server = Prometheus(folder, targets)
    try:
        yield server
    finally:
        server.close()

"""The status page: a document without outside assets; its style and script are allowed by their hashes."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import pyrunner
from pyrunner.output import count, moment, span
from pyrunner.serve.state import Finding, State, size
from pyrunner.times import FIRST, LAST, format_instant

__all__ = ["REFRESH_SECONDS", "headers", "render"]

REFRESH_SECONDS: Final = 5
# of the chart, in its own units
_WIDTH: Final = 480.0
_HEIGHT: Final = 100.0
_MOST_BARS: Final = 40
_LONG: Final = 200
_LOOKS: Final = {"completed": "good", "capped": "partly", "stopped": "partly"}


@dataclass(frozen=True)
class Bar:
    """A cycle in the chart.

    Attributes:
        look: good, partly (capped or stopped) or bad (failed or abandoned).
        title: what it was, in words.
    """

    x: float
    y: float
    width: float
    height: float
    look: str
    title: str


def headers() -> dict[str, str]:
    """The headers of the page: nothing may be loaded but what stands in it, and the page itself once more."""
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src '{_hash('status.css')}'; script-src '{_hash('status.js')}';"
            " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def render(states: Sequence[State], runbooks: frozenset[str]) -> str:
    """The page.

    Args:
        states: of each database.
        runbooks: those that can be read here.
    """
    findings = sorted(
        ((state.reading.label, finding) for state in states for finding in state.findings),
        key=lambda found: found[1].severity != "fault",
    )
    return (
        _templates()
        .get_template("status.html")
        .render(
            states=states,
            findings=findings,
            verdict=_verdict([finding for _, finding in findings]),
            look="good" if not findings else "bad" if findings[0][1].severity == "fault" else "partly",
            made_at=datetime.now(UTC),
            runbooks=runbooks,
            version=pyrunner.__version__,
            refresh=REFRESH_SECONDS,
            style=Markup(_asset("status.css")),  # noqa: S704 - ours
            script=Markup(_asset("status.js")),  # noqa: S704 - ours
        )
    )


def _verdict(findings: Sequence[Finding]) -> str:
    if not findings:
        return "All is well."
    faults = sum(finding.severity == "fault" for finding in findings)
    parts = [
        text
        for number, text in (
            (faults, count(faults, "fault")),
            (len(findings) - faults, count(len(findings) - faults, "warning")),
        )
        if number
    ]
    return f"{' and '.join(parts)}."


def _bars(cycles: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The last cycles, the newest at the right; as high as each took long."""
    longest = max((cycle["seconds"] for cycle in cycles), default=0.0) or 1.0
    step = _WIDTH / _MOST_BARS
    first = _MOST_BARS - len(cycles)
    bars = []
    for number, cycle in enumerate(cycles, first):
        height = max(3.0, _HEIGHT * cycle["seconds"] / longest)
        why = f", {cycle['sqlstate']}" if cycle["sqlstate"] else ""
        title = (
            f"{moment(cycle['started_at'])}: {cycle['status']}{why}, {_seconds(cycle['seconds'])},"
            f" {count(cycle['expired'], 'item')} expired"
        )
        look = _LOOKS.get(cycle["status"], "bad")
        bars.append(
            Bar(
                round(number * step + 1, 2),
                round(_HEIGHT - height, 2),
                round(step - 2, 2),
                round(height, 2),
                look,
                title,
            )
        )
    return bars


def _seconds(seconds: float) -> str:
    """A duration, the finer the shorter: "12 ms", "3.4 s", "2 min 5 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return span(timedelta(seconds=seconds))


def _time(instant: datetime | None) -> Markup:
    """A moment as an element that programs understand; nothing is "never"."""
    if instant is None:
        return Markup("never")
    if instant in (FIRST, LAST):
        return Markup(f"{format_instant(instant)}")  # noqa: S704 - a word
    machine = instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Markup('<time datetime="{}">{}</time>').format(machine, moment(instant))


def _since(instant: datetime | None, now: datetime) -> Markup:
    """A moment with its distance from now."""
    if instant is None or instant in (FIRST, LAST):
        return _time(instant)
    return Markup("{}, {} ago").format(_time(instant), span(now - instant))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("pyrunner.serve"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["bars"] = _bars
    environment.filters |= {
        "at": _time,
        "count": count,
        "number": lambda value: f"{value:,}",
        "seconds": _seconds,
        "since": _since,
        "size": size,
        "span": span,
    }
    environment.globals["long"] = _LONG
    return environment


@cache
def _asset(name: str) -> str:
    return (files("pyrunner.serve") / "templates" / name).read_text("utf-8")


@cache
def _hash(name: str) -> str:
    digest = hashlib.sha256(_asset(name).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

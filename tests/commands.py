"""Runs the command line as users do: a process of its own, with signals, exit codes and two streams."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.servers import Database, wait_until

PROGRAM = (sys.executable, "-m", "pyrunner")
OURS = ("PYRUNNER_", "PG", "CRM__", "BOOKINGEXPIRATIONOPTIONS__", "OTEL_")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without anything that the command line reads, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(OURS)}
    return kept | {"COLUMNS": "200", "TERM": "xterm"} | dict(extra or {})


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines on standard error."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    @property
    def events(self) -> list[str]:
        """The events of these lines, in order."""
        return [line["event"] for line in self.lines]


def pyrunner(
    *arguments: str,
    dsn: str | None = None,
    code: int | None = 0,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> Answer:
    """Runs a command to its end; fails the test when it ends with another code, or shows a traceback."""
    given = {**(env or {}), **({} if dsn is None else {"PYRUNNER_DSN": dsn})}
    done = subprocess.run(
        [*PROGRAM, *arguments], env=environment(given), input=stdin, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return _checked(arguments, Answer(done.returncode, done.stdout, done.stderr), code)


def _checked(arguments: tuple[str, ...], answer: Answer, code: int | None) -> Answer:
    shown = f"pyrunner {' '.join(arguments)} ended with {answer.code}:\n{answer.out}\n{answer.err}"
    if "Traceback" in answer.err + answer.out:
        pytest.fail(shown, pytrace=False)
    if code is not None and answer.code != code:
        pytest.fail(f"{shown}\nand {code} was expected", pytrace=False)
    return answer


class Process:
    """A command at work."""

    def __init__(
        self,
        *arguments: str,
        dsn: str | None,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.arguments = arguments
        given = {**(env or {}), **({} if dsn is None else {"PYRUNNER_DSN": dsn})}
        self._process = subprocess.Popen(
            [*program, *arguments], env=environment(given), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._out: list[str] = []
        self._err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self._process.stdout, self._out), (self._process.stderr, self._err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, into: list[str]) -> None:
        with stream:
            for line in stream:
                into.append(line)  # noqa: PERF402 - as they come

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def so_far(self) -> Answer:
        """What it has printed."""
        return Answer(-1, "".join(self._out), "".join(self._err))

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def wait(self, code: int | None = 0, timeout: float = 60) -> Answer:
        """Waits for its end."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            shown = self.so_far
            pytest.fail(f"pyrunner {self.arguments} has not ended:\n{shown.out}\n{shown.err}", pytrace=False)
        for reader in self._readers:
            reader.join(10)
        so_far = self.so_far
        return _checked(self.arguments, Answer(self._process.returncode, so_far.out, so_far.err), code)

    def wait_for(
        self, event: str, count: int = 1, *, timeout: float = 60, **fields: Any
    ) -> list[dict[str, Any]]:
        """Waits until it has logged that event so often, with these fields; the lines."""

        def seen() -> list[dict[str, Any]]:
            found = [
                line
                for line in self.so_far.lines
                if line["event"] == event and all(line.get(name) == value for name, value in fields.items())
            ]
            if len(found) < count and self._process.poll() is not None:
                pytest.fail(f"pyrunner has ended before {event}:\n{self.so_far.err}", pytrace=False)
            return found if len(found) >= count else []

        return wait_until(seen, timeout=timeout, what=lambda: f"{event} in:\n{self.so_far.err}")

    def close(self) -> None:
        """Kills it if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


@contextlib.contextmanager
def started(
    *arguments: str, dsn: str | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A command that is killed at the block's end if it has not ended by then."""
    process = Process(*arguments, dsn=dsn, env=env)
    try:
        yield process
    finally:
        process.close()


def on_terminal(*arguments: str, dsn: str, env: Mapping[str, str] | None = None) -> Answer:
    """Runs a command whose streams are a terminal; what it drew is in `err`, colours and all."""
    leader, follower = pty.openpty()
    given = environment({**(env or {}), "PYRUNNER_DSN": dsn})
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        env=given,
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
        close_fds=True,
    )
    os.close(follower)
    drawn = b""
    while process.poll() is None or select.select([leader], [], [], 0)[0]:
        if select.select([leader], [], [], 0.05)[0]:
            try:
                drawn += os.read(leader, 65536)
            except OSError:
                break
    assert process.stdout is not None
    with process.stdout:
        out = process.stdout.read().decode()
    process.wait(10)
    os.close(leader)
    return _checked(arguments, Answer(process.returncode, out, drawn.decode(errors="replace")), None)


def backend_of(database: Database, name: str) -> int:
    """The backend of the one connection with that application_name, as soon as it is there."""
    pid = database.wait_until(
        "select min(pid) from pg_stat_activity where datname = %s and application_name = %s"
        " having count(*) = 1",
        (database.name, name),
        what=f"one connection of {name}",
    )
    assert isinstance(pid, int)
    return pid

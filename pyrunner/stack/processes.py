"""Processes that go on when their starter ends, and are found, told from strangers and ended later.

A process is known by its id, its start and the machine's boot, so that another one that got the same id is
never taken for it.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["Daemon", "wait_for"]

_HAS_PROC: Final = Path("/proc/self/stat").exists()


class Daemon:
    """A program in the background; at most one process of it at a time.

    Args:
        record: the file that says which process it is.
        marks: the last arguments of its command, which no other process has. By them a process is found whose
            starter was killed before it could write the record.
    """

    def __init__(self, record: Path, marks: Sequence[str]) -> None:
        self._record = record
        self._marks = list(marks)
        # to be reaped by us when it ends
        self._child: int | None = None

    @property
    def pid(self) -> int | None:
        """The process, or None when it does not run."""
        self._reap()
        recorded = self._recorded()
        if recorded is not None and _identity(recorded[0]) == recorded[1]:
            return recorded[0]
        return self._unrecorded()

    @property
    def has_died(self) -> bool:
        """Whether it was started, and is gone without having been stopped."""
        return self._record.exists() and self.pid is None

    def start(
        self, command: Sequence[str], *, output: Path, folder: Path, environment: Mapping[str, str]
    ) -> int:
        """Starts the program, and returns its process.

        Args:
            command: the program and its arguments, the marks at their end.
            output: gets what it writes to its two outputs, in place of what stood there.
            folder: its working folder.
            environment: its variables.

        Raises:
            OSError: it cannot be run.
        """
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, cwd=folder,
                env=dict(environment), start_new_session=True, umask=0o077,
            )  # fmt: skip
        self._child = process.pid
        # it is meant to outlive us: nobody is to warn that it still runs
        process.returncode = 0
        self._remember(process.pid)
        return process.pid

    def stop(self, patience: float) -> None:
        """Asks it to end, kills it when it has not after `patience` seconds, and forgets it.

        Raises:
            TimeoutError: it survived even that.
        """
        if not self._send(signal.SIGTERM, patience):
            self.kill()
        self._record.unlink(missing_ok=True)

    def kill(self) -> None:
        """Ends it by SIGKILL; it counts as died.

        Raises:
            TimeoutError: it is still there; the kernel waits for something.
        """
        if not self._send(signal.SIGKILL, 30):
            raise TimeoutError(f"process {self.pid} cannot be killed")

    def _send(self, number: signal.Signals, patience: float) -> bool:
        """Sends a signal, and waits for the end; False when it still runs."""
        pid = self.pid
        if pid is None:
            return True
        identity = _identity(pid)
        with contextlib.ExitStack() as opened, contextlib.suppress(ProcessLookupError):
            if hasattr(os, "pidfd_open"):
                # stays with this very process, whoever gets its number
                handle = os.pidfd_open(pid)
                opened.callback(os.close, handle)
                if _identity(pid) == identity:
                    signal.pidfd_send_signal(handle, number)
            else:
                os.kill(pid, number)
        gone = wait_for(lambda: _identity(pid) != identity, patience)
        self._reap()
        return gone

    def _reap(self) -> None:
        if self._child is None:
            return
        try:
            ended, _ = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:
            ended = self._child
        if ended:
            self._child = None

    def _recorded(self) -> tuple[int, str] | None:
        try:
            found: dict[str, Any] = json.loads(self._record.read_text())
            return int(found["pid"]), str(found["identity"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _remember(self, pid: int) -> None:
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps({"pid": pid, "identity": _identity(pid)}))
        new.replace(self._record)

    def _unrecorded(self) -> int | None:
        if not _HAS_PROC:
            return None
        for entry in Path("/proc").glob("[0-9]*"):
            # others' processes come and go, or do not concern us
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
                if (
                    len(words) > len(self._marks)
                    and words[-len(self._marks) :] == self._marks
                    and entry.stat().st_uid == os.geteuid()
                    and _identity(int(entry.name))
                ):
                    self._remember(int(entry.name))
                    return int(entry.name)
        return None


def wait_for(condition: Callable[[], object], timeout: float, pause: float = 0.02) -> bool:
    """Whether the condition came true within so many seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _identity(pid: int) -> str:
    """The machine's boot and the process's start; "" when there is no such process, or only its remains."""
    if _HAS_PROC:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
        # fields 3, 20 and 22 of the line: state, threads, start; while threads are left, one that was killed
        # still has its ports and files open
        remains = fields[0] in ("Z", "X") and int(fields[17]) <= 1
        return "" if remains else f"{boot} {fields[19]}"
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, start = done.stdout.strip().partition(" ")
    return "" if state[:1] in ("", "Z") else start.strip()

"""One cycle of leads in a process of its own; prints its resident memory after each batch: bytes, as JSON."""

import contextlib
import importlib
import importlib.util
import io
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psutil

from pyrunner.cycle import Stop, run_cycle
from pyrunner.database import connect
from pyrunner.logs import LogObserver, make_log
from pyrunner.settings import Job, Overrides

__all__ = ["Nowhere", "main"]


class Nowhere(io.TextIOBase):
    """Takes lines and keeps none."""

    def write(self, text: str) -> int:
        return len(text)


class _Watched(LogObserver):
    """Writes a cycle's log lines, and looks at the memory after each batch."""

    def __init__(self, database: str) -> None:
        super().__init__(make_log("info", human=False), "info", database)
        self._process = psutil.Process()
        self.resident: list[int] = []

    def batch(self, report: Mapping[str, Any]) -> None:
        super().batch(report)
        self.resident.append(self._process.memory_info().rss)


def main() -> None:
    """Arguments: the connection string, as_of, the size of a batch."""
    dsn, as_of, size = sys.argv[1:]
    # what the command itself would have in memory
    if importlib.util.find_spec("pyrunner.cli"):
        importlib.import_module("pyrunner.cli")
    with contextlib.closing(connect(dsn)) as connection, contextlib.redirect_stderr(Nowhere()):
        observer = _Watched(connection.info.dbname)
        run_cycle(
            connection,
            Job.LEAD,
            instance="benchmark",
            pooled=False,
            overrides=Overrides(batch_size=int(size)),
            stop=Stop(),
            observer=observer,
            as_of=datetime.fromisoformat(as_of),
        )
    print(json.dumps(observer.resident))


if __name__ == "__main__":
    main()

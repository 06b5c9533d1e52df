"""How those who try again and again wait, and what they tell of it."""

import random
from typing import Any

from pyrunner.errors import CannotConnectError, PyrunnerError
from pyrunner.logs import Log

__all__ = ["Backoff"]


class Backoff:
    """How long to wait before the next try: 1 s, 2 s, 4 s ... and a little less by chance.

    By chance, so that several of one kind come back one after the other.

    Args:
        longest: seconds; it waits no longer.
        log: where a failure and its end are told.

    Attributes:
        longest: may be changed between two failures.
    """

    def __init__(self, longest: float, log: Log) -> None:
        self.longest = longest
        self._log = log
        self._failures = 0

    def after(self, event: str, error: PyrunnerError, **fields: Any) -> float:
        """Tells of a failure; the seconds to wait."""
        delay = self.next()
        self._log.error(
            "database unreachable" if isinstance(error, CannotConnectError) else event,
            error=error.message,
            **({"hint": error.hint} if error.hint else {}),
            **({"sqlstate": error.sqlstate} if error.sqlstate else {}),
            **fields,
            retryInSeconds=round(delay, 1),
        )
        return delay

    def next(self) -> float:
        """Counts a failure; the seconds to wait."""
        delay = min(self.longest, 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay * random.uniform(0.75, 1.0)  # noqa: S311

    def reset(self, event: str | None = None) -> None:
        """Forgets failures; tells of their end, if an event is named for that."""
        if self._failures and event:
            self._log.info(event)
        self._failures = 0

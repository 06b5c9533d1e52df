"""What can go wrong between the outbox and Kafka, as a user sees it."""

from collections.abc import Sequence

from pyrunner.errors import ExitCode, PyrunnerError

__all__ = [
    "BrokerAwayError",
    "ConnectAwayError",
    "ConnectError",
    "NotAllowedError",
    "ObstaclesError",
    "PasswordError",
    "UnfitError",
]


class ConnectAwayError(PyrunnerError):
    """Kafka Connect cannot be reached, or something else answers in its place."""

    exit_code = ExitCode.UNREACHABLE


class BrokerAwayError(PyrunnerError):
    """Kafka cannot be reached."""

    exit_code = ExitCode.UNREACHABLE


class PasswordError(PyrunnerError):
    """PostgreSQL does not let the connector's role in."""

    exit_code = ExitCode.UNREACHABLE


class ConnectError(PyrunnerError):
    """Connect refused a request, or the connector failed."""


class UnfitError(PyrunnerError):
    """A server is not set up as needed; nothing was changed."""

    exit_code = ExitCode.USAGE


class NotAllowedError(PyrunnerError):
    """A role lacks a right."""

    exit_code = ExitCode.NO_PRIVILEGE


class ObstaclesError(PyrunnerError):
    """Several things stand in the way; nothing was changed.

    Attributes:
        obstacles: all of them, the most fundamental first.
    """

    def __init__(self, obstacles: Sequence[PyrunnerError]) -> None:
        super().__init__(" ".join(obstacle.message for obstacle in obstacles), hint=obstacles[0].hint)
        self.obstacles = tuple(obstacles)

"""What `pyrunner traces` does."""

import contextlib
from collections.abc import Iterator

from pyrunner.cycle import Stop
from pyrunner.errors import UsageError
from pyrunner.logs import Log
from pyrunner.traces.exporter import Exporter, Sent
from pyrunner.traces.otlp import Receiver

__all__ = ["follow", "send_once"]


def send_once(dsn: str, endpoint: str | None, *, name: str, log: Log) -> tuple[Sent, str]:
    """Sends what is due.

    Returns:
        What was sent, and the receiver's address to show.

    Raises:
        UsageError: the address or a variable of OpenTelemetry's cannot be used.
        ReceiverError: nobody is there, or the spans were not taken.
        PyrunnerError: the database's fault.
    """
    with _exporter(dsn, endpoint, name=name, log=log, stop=Stop()) as (exporter, receiver):
        sent = exporter.send_due()
        if not sent.spans:
            # whoever sets it up wants to know at once
            receiver.send([])
        return sent, receiver.shown


def follow(dsn: str, endpoint: str | None, *, name: str, every: float, log: Log, stop: Stop) -> None:
    """Sends what is due, every so many seconds, until it is asked to stop.

    Raises:
        UsageError: the address or a variable of OpenTelemetry's cannot be used.
        PyrunnerError: nothing, or another version, is installed; a privilege is missing.
    """
    with _exporter(dsn, endpoint, name=name, log=log, stop=stop) as (exporter, _):
        exporter.follow(every)


@contextlib.contextmanager
def _exporter(
    dsn: str, endpoint: str | None, *, name: str, log: Log, stop: Stop
) -> Iterator[tuple[Exporter, Receiver]]:
    try:
        receiver = Receiver(endpoint, log=log)
        exporter = Exporter(dsn, receiver, name=name, log=log, stop=stop)
    except ValueError as error:
        # the SDK's limits: it names the variable
        raise UsageError(f"{error}.") from None
    with contextlib.closing(exporter):
        yield exporter, receiver

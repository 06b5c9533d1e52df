"""Notifications: the agent of an expired lead is told to extend it.

    python -m consumers.notifications --dsn 'dbname=crm' --bootstrap-servers kafka:9092 --webhook https://...

A notice is filed in schema notifications, once, and from there sent through the webhook, if there is one, by
a thread that consumption never waits for: at least once, with the event's id as Idempotency-Key.
"""

import math
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

import httpx
import typer

from consumers.command import (
    BootstrapOption,
    GroupOption,
    KafkaConfigOption,
    LevelOption,
    OnceOption,
    TopicOption,
    kafka_settings,
    log_at,
    main,
    stopping,
)
from consumers.consumer import Consumer, Stop
from consumers.effects import Database, Handler, Service
from pyrunner.backoff import Backoff
from pyrunner.database import Connection, rows
from pyrunner.errors import PyrunnerError, UsageError
from pyrunner.logs import Log
from pyrunner.options import DsnOption, dsn_from
from pyrunner.settings import parse_positive_duration
from pyrunner.times import format_instant

__all__ = ["NOTIFICATIONS", "Sender", "notifications"]

NOTIFICATIONS: Final = Service(
    name="notifications",
    role="crm_notifications",
    done="notice filed",
    handlers=[
        Handler(
            "LeadExpiredEvent",
            1,
            """
            notifications.file_notice(
                id,
                (payload ->> 'leadId')::uuid,
                (payload ->> 'tenantId')::uuid,
                (payload ->> 'agentUserId')::uuid,
                (payload ->> 'expiredAt')::timestamptz,
                topic
            )
            """,
        )
    ],
)

# failed notices fall due by the clock
_LOOK: Final = 1.0
_LONGEST_DELAY: Final = 30.0


def _duration(text: str | timedelta) -> timedelta:
    if isinstance(text, timedelta):
        return text
    try:
        return parse_positive_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} must be {error}.") from None


WebhookOption = Annotated[
    str | None,
    typer.Option(
        "--webhook",
        metavar="URL",
        envvar="PYRUNNER_WEBHOOK",
        help="Where notices are posted as JSON; without it they are only filed.",
        show_default=False,
    ),
]
WebhookTimeoutOption = Annotated[
    timedelta,
    typer.Option(
        "--webhook-timeout",
        metavar="TIME",
        parser=_duration,
        help="How long the webhook may take to connect, and then to answer.",
    ),
]


class Sender:
    """Sends notices through a webhook, one at a time; those of several instances share the notices.

    Args:
        dsn: the database.
        url: where to. It may hold a secret: only its host is ever shown.
        timeout: for connecting, and again for the answer.
        log: where to tell.
        stop: looked at between two notices.

    Raises:
        UsageError: the URL cannot be used.
    """

    def __init__(self, dsn: str, url: str, *, timeout: timedelta, log: Log, stop: Stop) -> None:
        try:
            # httpx takes a host for one that cannot be any
            parts = urlsplit(url)
            self._url = httpx.URL(url)
        except (ValueError, httpx.InvalidURL):
            raise _bad_url() from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _bad_url()
        self._log = log.bind(webhook=self._url.host)
        self._stop = stop
        seconds = timeout.total_seconds()
        # for connecting, for what is written, for the answer
        self._longest = 3 * seconds
        # the transaction that holds a notice is open while it is being sent
        self._database = Database(
            dsn, "notifications sender", NOTIFICATIONS.role, idle=math.ceil(self._longest) + 10
        )
        self._database_trouble = Backoff(_LONGEST_DELAY, self._log)
        self._webhook_trouble = Backoff(_LONGEST_DELAY, self._log)
        self._client = httpx.Client(timeout=seconds, headers={"User-Agent": "crm-notifications"})
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def __enter__(self) -> Self:
        """Begins to send."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends after the notice in hand."""
        self._stop.requested = True
        self.wake()
        self._thread.join(self._longest)

    def wake(self) -> None:
        """Says that a notice has been filed."""
        self._wake.set()

    def send_due(self) -> None:
        """Sends what is due at this moment, in the caller's thread; what fails stays for later.

        Raises:
            PyrunnerError: the database's fault.
        """
        while not self._stop.requested and self._database.transaction(self._send_one) is not None:
            pass

    def _run(self) -> None:
        while not self._stop.requested:
            self._wake.clear()
            try:
                pause = self._database.transaction(self._send_one)
                self._database_trouble.reset("database reachable")
            except PyrunnerError as error:
                pause = self._database_trouble.after("sending not possible", error)
            if pause is None:
                self._wake.wait(_LOOK)
            else:
                self._rest(pause)
        self._database.close()
        self._client.close()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stop.requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    def _send_one(self, connection: Connection) -> float | None:
        """Sends the notice that is due; for how many seconds to rest then, None where none is due."""
        self._database.limit(connection)
        found = rows(connection, "select * from notifications.take_unsent(1)")
        if not found:
            return None
        notice = found[0]
        told = {"eventId": str(notice["event_id"]), "attempt": notice["attempts"] + 1}
        problem, pause = self._post(notice)
        if problem is None:
            connection.execute("select notifications.mark_sent(%s)", (notice["event_id"],))
            self._log.debug("notice sent", **told)
        else:
            connection.execute(
                "select notifications.mark_failed(%s, %s)", (notice["event_id"], problem.replace("\0", ""))
            )
            self._log.warning("notice not sent", **told, error=problem)
        return pause

    def _post(self, notice: dict[str, Any]) -> tuple[str | None, float]:
        """Posts a notice; what went wrong, if anything, and for how long to spare a webhook in trouble."""
        event_id = str(notice["event_id"])
        body = {
            "eventId": event_id,
            "kind": notice["kind"],
            "tenantId": str(notice["tenant_id"]),
            "leadId": str(notice["lead_id"]),
            "agentUserId": str(notice["agent_user_id"]),
            "expiredAt": format_instant(notice["expired_at"]),
        }
        try:
            # the status is all: a long answer is not read
            with self._client.stream(
                "POST", self._url, json=body, headers={"Idempotency-Key": event_id}
            ) as answer:
                status = answer.status_code
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}", self._webhook_trouble.next()
        if httpx.codes.is_server_error(status) or status == httpx.codes.TOO_MANY_REQUESTS:
            return f"HTTP {status}", self._webhook_trouble.next()
        self._webhook_trouble.reset()
        return None if httpx.codes.is_success(status) else f"HTTP {status}", 0.0


def _bad_url() -> UsageError:
    # without the URL, which may hold a secret
    return UsageError(
        "The webhook's URL cannot be used.", hint="Write https://HOST/PATH or http://HOST/PATH."
    )


def notifications(
    dsn: DsnOption = None,
    bootstrap_servers: BootstrapOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    kafka_config: KafkaConfigOption = None,
    webhook: WebhookOption = None,
    webhook_timeout: WebhookTimeoutOption = timedelta(seconds=10),
    once: OnceOption = False,
    log_level: LevelOption = None,
) -> None:
    """File a notice to the agent of each expired lead, and send it, until SIGTERM.

    What is in hand is finished then: its transaction, its offsets, the notice being sent, the farewell to the
    group. A notice that could not be sent is tried again after 1 s, 2 s, 4 s ... at most 5 min. Start as many
    as you like, up to the partitions of the topic. Needs the privileges of crm_notifications.
    """
    with stopping() as stop:
        conninfo = dsn_from(dsn)
        log = log_at(log_level)
        sender = Sender(conninfo, webhook, timeout=webhook_timeout, log=log, stop=stop) if webhook else None
        consumer = Consumer(
            NOTIFICATIONS,
            dsn=conninfo,
            kafka=kafka_settings(bootstrap_servers, kafka_config),
            group=group,
            topics=topic or (),
            once=once,
            log=log,
            stop=stop,
            on_effect=sender.wake if sender else lambda: None,
        )
        if sender is None:
            consumer.run()
        elif once:
            consumer.run()
            sender.send_due()
        else:
            with sender:
                consumer.run()


if __name__ == "__main__":
    main("notifications", notifications)

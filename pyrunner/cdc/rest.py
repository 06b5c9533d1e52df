"""Kafka Connect by its REST interface."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

import httpx

from pyrunner.cdc.errors import ConnectAwayError, ConnectError
from pyrunner.cdc.setup import CONNECTOR_CLASS
from pyrunner.errors import UsageError, one_line

__all__ = ["Connect", "ConnectorState", "Task"]

_REBALANCING: Final = 409
# Connect itself answers within 90 s or not at all
_TIMEOUT: Final = 100.0


@dataclass(frozen=True)
class Task:
    """A task of a connector.

    Attributes:
        trace: why it failed, as Java tells it; "" when it did not.
    """

    id: int
    state: str
    trace: str


@dataclass(frozen=True)
class ConnectorState:
    """A connector and its tasks, as Connect sees them; RUNNING does not say that anything arrives."""

    state: str
    trace: str
    tasks: tuple[Task, ...]

    @property
    def is_running(self) -> bool:
        """Whether the connector and its one task say RUNNING."""
        return self.state == "RUNNING" and [task.state for task in self.tasks] == ["RUNNING"]

    @property
    def failure(self) -> str | None:
        """The trace of what has failed, connector or task; None when nothing has."""
        if self.state == "FAILED":
            return self.trace or "it gave no reason"
        return next(
            (task.trace or "it gave no reason" for task in self.tasks if task.state == "FAILED"), None
        )


class Connect:
    """Connect's REST interface; every method raises ConnectAwayError or ConnectError.

    Args:
        url: http://host:port, with the login where a proxy wants one.
        patience: seconds for which a request is tried again while the workers rebalance.
        timeout: seconds that an answer is waited for; Connect may wait for Kafka meanwhile.
    """

    def __init__(self, url: str, *, patience: float = 60, timeout: float = _TIMEOUT) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError("Connect's address cannot be understood.", hint="Write http://host:8083")
        # a login in it is nobody's business
        self.shown: Final = str(parsed.copy_with(username=None, password=None)).rstrip("/")
        self._patience = patience
        self._timeout = timeout
        self._client = httpx.Client(base_url=parsed, timeout=httpx.Timeout(timeout, connect=10))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # ------------------------------------------------------------ the worker

    def cluster_id(self) -> str:
        """The id of the Kafka that the workers use."""
        found = self._ask("GET", "/")
        if not isinstance(found, dict) or "kafka_cluster_id" not in found:
            raise self._stranger()
        return str(found["kafka_cluster_id"])

    def has_plugin(self) -> bool:
        """Whether the workers have Debezium's connector for PostgreSQL."""
        return any(
            plugin.get("class") == CONNECTOR_CLASS for plugin in self._ask("GET", "/connector-plugins")
        )

    def validate(self, configuration: Mapping[str, str]) -> dict[str, str]:
        """What is wrong with a configuration, by setting; the connector tries it out on the database."""
        answer = self._ask(
            "PUT",
            f"/connector-plugins/{CONNECTOR_CLASS.rpartition('.')[2]}/config/validate",
            body=configuration,
        )
        return {
            value["name"]: one_line(" ".join(value["errors"]))
            for value in (one["value"] for one in answer["configs"])
            # internal settings have none
            if value is not None and value["errors"]
        }

    # ------------------------------------------------------------ connectors

    def connectors(self) -> dict[str, dict[str, str]]:
        """The configuration of every connector."""
        found = self._ask("GET", "/connectors?expand=info")
        return {name: one["info"]["config"] for name, one in found.items()}

    def configuration(self, name: str) -> dict[str, str] | None:
        """The configuration of a connector, without its name; None when there is none such."""
        found = self._ask("GET", _path(name, "config"), missing=None)
        return None if found is None else {key: value for key, value in found.items() if key != "name"}

    def state(self, name: str) -> ConnectorState | None:
        """How a connector is; None when there is none such."""
        found = self._ask("GET", _path(name, "status"), missing=None)
        if found is None:
            return None
        return ConnectorState(
            found["connector"]["state"],
            found["connector"].get("trace", ""),
            tuple(Task(task["id"], task["state"], task.get("trace", "")) for task in found["tasks"]),
        )

    def create(
        self, name: str, configuration: Mapping[str, str], state: Literal["RUNNING", "STOPPED"] = "RUNNING"
    ) -> None:
        """Makes a connector."""
        body = {"name": name, "config": dict(configuration), "initial_state": state}
        self._ask("POST", "/connectors", body=body)

    def configure(self, name: str, configuration: Mapping[str, str]) -> None:
        """Gives a connector another configuration; its tasks start anew."""
        self._ask("PUT", _path(name, "config"), body=dict(configuration))

    def delete(self, name: str) -> bool:
        """Removes a connector; whether it was there. Its offsets stay."""
        return self._ask("DELETE", _path(name), missing=False) is not False

    def restart(self, name: str) -> None:
        """Starts the connector and its tasks again, as far as they have failed."""
        self._ask("POST", f"{_path(name, 'restart')}?includeTasks=true&onlyFailed=true")

    def stop(self, name: str) -> None:
        """Asks a connector to end its tasks; it keeps its configuration and offsets."""
        self._ask("PUT", _path(name, "stop"))

    def resume(self, name: str) -> None:
        """Asks a stopped or paused connector to go on."""
        self._ask("PUT", _path(name, "resume"))

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """The offsets of a connector: partition and offset of each."""
        found: list[dict[str, Any]] = self._ask("GET", _path(name, "offsets"))["offsets"]
        return found

    def set_offsets(self, name: str, offsets: Sequence[Mapping[str, Any]]) -> None:
        """Replaces offsets of a stopped connector; an offset of None removes it."""
        self._ask("PATCH", _path(name, "offsets"), body={"offsets": list(offsets)})

    # ------------------------------------------------------------ requests

    def _ask(self, method: str, path: str, *, body: Any = None, missing: Any = ...) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                answer = self._client.request(method, path, json=body)
            except httpx.ReadTimeout:
                raise ConnectAwayError(
                    f"Kafka Connect at {self.shown} has not answered {method} {path} for "
                    f"{self._timeout:g} s.",
                    hint="It may wait for Kafka: see to the broker, then to Connect's log.",
                ) from None
            except httpx.HTTPError as error:
                raise ConnectAwayError(
                    f"Kafka Connect at {self.shown} cannot be reached: "
                    f"{one_line(str(error) or type(error).__name__)}.",
                    hint="Start it, or name another by --connect or PYRUNNER_CONNECT_URL.",
                ) from None
            if answer.status_code == _REBALANCING and time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            break
        if answer.status_code == httpx.codes.NOT_FOUND and missing is not ...:
            return missing
        if answer.is_success:
            if not answer.content:
                return None
            try:
                return answer.json()
            except ValueError:
                raise self._stranger() from None
        raise self._refusal(method, path, answer)

    def _stranger(self) -> ConnectAwayError:
        return ConnectAwayError(
            f"What answers at {self.shown} is not Kafka Connect.",
            hint="Name Connect's REST interface by --connect or PYRUNNER_CONNECT_URL.",
        )

    def _refusal(self, method: str, path: str, answer: httpx.Response) -> ConnectError | ConnectAwayError:
        try:
            message = answer.json()["message"]
        except (ValueError, KeyError, TypeError):
            return self._stranger()
        said = one_line(str(message))
        what = f"{method} {path.partition('?')[0]}"
        hint = None
        if "Could not read properties from file" in said:
            hint = "Put the file with the password back where Connect reads it, or make a new one: "
            hint += "pyrunner cdc install --set-password"
        return ConnectError(f"Kafka Connect answered {what} with {answer.status_code}: {said}.", hint=hint)


def _path(name: str, rest: str = "") -> str:
    return f"/connectors/{quote(name, safe='')}{f'/{rest}' if rest else ''}"

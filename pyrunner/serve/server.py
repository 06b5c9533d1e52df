"""The web server: /metrics, /healthz, /readyz, and the status page at /."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from psycopg.pq import Conninfo
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

import pyrunner
from pyrunner.database import parse_dsn, session, target_of
from pyrunner.errors import CannotConnectError, ListenError
from pyrunner.logs import Log
from pyrunner.serve.address import Address
from pyrunner.serve.figures import SCRAPE, Figures
from pyrunner.serve.page import headers, render
from pyrunner.serve.reader import Reader, Reading
from pyrunner.serve.state import LOOK, READY, state_of

__all__ = ["serve"]

# seconds that answers under way are waited for at the end
_GOODBYE: Final = 1
_PLAIN: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Source:
    """A database: a connection for scrapes, another for people, so that neither waits for the other."""

    def __init__(self, dsn: str, label: str, log: Log) -> None:
        self.label = label
        self._log = log.bind(database=label)
        self._guard = threading.Lock()
        self._trouble: str | None = None
        self._missing: dict[str, str] = {}
        self.scrapes = Reader(dsn, label=label, name="pyrunner serve metrics", tell=self.tell)
        self.looks = Reader(dsn, label=label, name="pyrunner serve page", tell=self.tell)

    def tell(self, reading: Reading) -> None:
        """Writes a line when something has changed."""
        with self._guard:
            error = reading.error
            if error is not None:
                if error.message != self._trouble:
                    away = isinstance(error, CannotConnectError)
                    self._log.error(
                        "database unreachable" if away else "database not readable",
                        error=error.message,
                        **({"hint": error.hint} if error.hint else {}),
                        **({"sqlstate": error.sqlstate} if error.sqlstate else {}),
                    )
                self._trouble = error.message
                return
            if self._trouble is not None:
                self._trouble = None
                self._log.info("database readable again")
            for section, why in reading.failures.items():
                if self._missing.get(section) != why:
                    self._log.warning("section left out", section=section, error=why)
                self._missing[section] = why
            for section in reading.rows.keys() & self._missing.keys():
                del self._missing[section]


def serve(dsns: Sequence[str], *, address: Address, log: Log) -> None:
    """Serves until SIGTERM or SIGINT. A database that is away is read as soon as it is there again.

    Args:
        dsns: the databases, as connection strings.
        address: where to listen.
        log: where lines go.

    Raises:
        ListenError: nobody can listen there.
        NotInstalledError: a database that answers holds no installation of this version.
        MissingPrivilegeError: the login is not a member of crm_monitor.
    """
    # somebody who waits for the first answer shall not wait for long
    os.environ.setdefault("PGCONNECT_TIMEOUT", "5")
    labels = _labels(dsns)
    sources = [Source(dsn, label, log) for dsn, label in zip(dsns, labels, strict=True)]
    with _listening(address) as sockets:
        server = uvicorn.Server(
            uvicorn.Config(
                _application(sources, log),
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=200,
                timeout_graceful_shutdown=_GOODBYE,
            )
        )
        with _ends(server):
            _check(dsns, sources, server)
            log.info(
                "serve started",
                version=pyrunner.__version__,
                listen=[f"http://{Address(*one.getsockname()[:2])}/" for one in sockets],
                databases=labels,
            )
            server.run(sockets)
            log.info("serve stopped")


def _check(dsns: Sequence[str], sources: Sequence[Source], server: uvicorn.Server) -> None:
    """Refuses at the start what would not pass by itself; a signal ends the wait for it."""
    errors: list[Exception] = []

    def check(dsn: str, source: Source) -> None:
        try:
            with session(dsn, "serve", "crm_monitor", read_only=True):
                pass
        except CannotConnectError as error:
            source.tell(Reading(source.label, 0, error=error))
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            errors.append(error)

    threads = [
        threading.Thread(target=check, args=arguments, daemon=True)
        for arguments in zip(dsns, sources, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not server.should_exit:
        for thread in threads:
            thread.join(0.02)
    if errors and not server.should_exit:
        raise errors[0]


@contextlib.contextmanager
def _ends(server: uvicorn.Server) -> Iterator[None]:
    """A signal ends the server; it is the way to end it, and no interruption."""

    def end(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------------- addresses


@contextlib.contextmanager
def _listening(address: Address) -> Iterator[list[socket.socket]]:
    """The sockets of an address: a name may stand for several."""
    with contextlib.ExitStack() as stack:
        try:
            found = socket.getaddrinfo(
                address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except (OSError, UnicodeError):
            raise ListenError(
                f"{address} cannot be listened on: there is no host {address.host}.",
                hint="Give another by --listen.",
            ) from None
        sockets = []
        # with port 0 two sockets would have two ports
        for family, kind, protocol, _, where in found[:1] if address.port == 0 else dict.fromkeys(found):
            one = stack.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind(where)
                one.listen(128)
            except OSError as error:
                raise _listen_error(Address(*where[:2]), error) from None
            sockets.append(one)
        yield sockets


def _listen_error(address: Address, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"{address} cannot be listened on: another process has the port.",
            hint=f"Give another by --listen; whose it is says: ss -ltnp 'sport = :{address.port}'",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenError(
            f"{address} cannot be listened on: it is no address of this machine.",
            hint="Give another by --listen; :PORT takes all addresses.",
        )
    return ListenError(
        f"{address} cannot be listened on: {error.strerror}.", hint="Give another by --listen."
    )


def _labels(dsns: Sequence[str]) -> list[str]:
    """The databases' names; with their places where two have the same name."""
    names = [_name_of(dsn) for dsn in dsns]
    places = [target_of(dsn).rpartition(" at ")[2] for dsn in dsns]
    return [
        name if names.count(name) == 1 else f"{name} at {place}"
        for name, place in zip(names, places, strict=True)
    ]


def _name_of(dsn: str) -> str:
    """The name of a database as libpq finds it, whether it can be reached or not."""
    given = parse_dsn(dsn)
    with _environment("PGSERVICE", given.get("service")):
        defaults = {
            option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()
        }
    for values, key in ((given, "dbname"), (defaults, "dbname"), (given, "user"), (defaults, "user")):
        if name := values.get(key):
            return str(name)
    return "postgres"


@contextlib.contextmanager
def _environment(name: str, value: Any) -> Iterator[None]:
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = str(value)
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


# --------------------------------------------------------------------------------------------------- answers


def _application(sources: Sequence[Source], log: Log) -> Starlette:
    books = _runbooks()

    async def metrics(request: Request) -> Response:
        readings = await asyncio.gather(*(source.scrapes.read(SCRAPE) for source in sources))
        registry = CollectorRegistry()
        registry.register(Figures(readings, pyrunner.__version__))
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={**_PLAIN, "Content-Type": kind})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("This process is alive.\n", headers=_PLAIN)

    async def readyz(_request: Request) -> Response:
        readings = await asyncio.gather(*(source.looks.read(READY) for source in sources))
        lines = [
            f"{reading.label}: version {pyrunner.__version__} is installed and can be read.\n"
            if reading.error is None
            else f"{reading.label}: {reading.error.message}\n"
            for reading in readings
        ]
        is_ready = all(reading.error is None for reading in readings)
        return PlainTextResponse("".join(lines), 200 if is_ready else 503, headers=_PLAIN)

    async def page(_request: Request) -> Response:
        readings = await asyncio.gather(*(source.looks.read(LOOK) for source in sources))
        return HTMLResponse(
            render([state_of(reading) for reading in readings], frozenset(books)), headers=headers()
        )

    async def runbook(request: Request) -> Response:
        path = books.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return PlainTextResponse(path.read_text("utf-8"), headers=_PLAIN)

    async def failed(_request: Request, error: Exception) -> Response:
        log.error("internal error", error=repr(error))
        return PlainTextResponse("A fault of pyrunner itself; its log says more.\n", 500, headers=_PLAIN)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/docs/runbooks/{name}.md", runbook),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000)],
        exception_handlers={Exception: failed},
    )


def _runbooks() -> Mapping[str, Path]:
    """The runbooks by name: inside an installed wheel, beside the package in a checkout."""
    package = Path(str(files("pyrunner")))
    folders = (package / "runbooks", package.parent / "docs" / "runbooks")
    folder = next((place for place in folders if place.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in folder.glob("*.md")}

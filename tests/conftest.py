"""Fixtures: a real PostgreSQL and fresh databases in it."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyrunner.postgres import Binaries
from tests import servers
from tests.kafka import stack, stack_db, stack_server, wired
from tests.servers import Database, Provider, Server, UnavailableError, need

__all__ = ["stack", "stack_db", "stack_server", "wired"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of Kafka come first: they take long."""
    items.sort(key=lambda item: not _needs_stack(item.nodeid))


def _needs_stack(nodeid: str) -> bool:
    return re.search(r"/test_(\w*cdc\w*|consumers|stack)\.py", nodeid) is not None


PROVIDER = pytest.StashKey[Provider]()
FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pg",
        type=int,
        default=int(os.environ.get("PYRUNNER_TEST_PG", "0")) or None,
        metavar="MAJOR",
        help="run on this major version of PostgreSQL (default: PYRUNNER_TEST_PG, else whatever is there)",
    )


def pytest_configure(config: pytest.Config) -> None:
    stack = contextlib.ExitStack()
    config.stash[FOLDER] = stack.enter_context(servers.run_folder())
    config.add_cleanup(stack.close)
    try:
        config.stash[PROVIDER] = servers.choose(config.getoption("--pg"), config.stash[FOLDER])
    except UnavailableError as error:
        raise pytest.UsageError(f"no PostgreSQL for the tests: {error}") from None


def pytest_report_header(config: pytest.Config) -> str:
    return f"postgres: {config.stash[PROVIDER].source}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Every skipped test with its reason: skipped is not passed."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("skipped is not passed")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")


# ------------------------------------------------------------------------------------------------ servers


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The PostgreSQL of this run; nobody stops it."""
    try:
        server = pytestconfig.stash[PROVIDER].start()
    except UnavailableError as error:
        pytest.exit(f"no PostgreSQL for the tests: {error}", returncode=4)
    yield server
    server.close()


def binaries_of(major: int) -> Binaries:
    """The binaries of a major version; the test is skipped when they cannot be had."""
    try:
        return servers.find_binaries(major)
    except UnavailableError as error:
        need(False, str(error))
        raise


@pytest.fixture(scope="session")
def server_of(pytestconfig: pytest.Config, server: Server) -> Iterator[Callable[[int], Server]]:
    """`server_of(16)`: a server of that major version for the whole run, the run's own or a private one."""
    started: dict[int, Server] = {server.major: server}

    def get(major: int) -> Server:
        if major not in started:
            started[major] = servers.private_server(binaries_of(major), pytestconfig.stash[FOLDER])
        return started[major]

    yield get
    for other in started.values():
        if other is not server:
            other.close()


@pytest.fixture
def private_server(pytestconfig: pytest.Config, server: Server) -> Iterator[Callable[..., Server]]:
    """`private_server(major=None, **settings)`: one that the test may stop and kill; gone at the test's end.

    Of the version of the run's server unless another is named.
    """
    started = []

    def make(major: int | None = None, **settings: str) -> Server:
        binaries = server.binaries if major is None else None
        if binaries is None:
            binaries = binaries_of(major or server.major)
        started.append(servers.private_server(binaries, pytestconfig.stash[FOLDER], **settings))
        return started[-1]

    yield make
    for one in started:
        one.close()


# ------------------------------------------------------------------------------------------------ databases


@pytest.fixture(scope="session")
def template_db(server: Server) -> str:
    """The name of a database with everything installed, to make others from."""
    return server.template


@pytest.fixture
def db(server: Server) -> Iterator[Database]:
    """A fresh database with everything installed."""
    with server.database() as database:
        yield database


@pytest.fixture
def bare_db(server: Server) -> Iterator[Database]:
    """A fresh database with nothing in it."""
    with server.database(installed=False) as database:
        yield database


@pytest.fixture
def cron_db(server: Server) -> Iterator[Database]:
    """The database that pg_cron works in, made afresh with everything and the extension installed."""
    with server.cron_database_installed() as database:
        yield database


@pytest.fixture(params=servers.MAJORS, ids=lambda major: f"pg{major}")
def versioned_db(request: pytest.FixtureRequest, server_of: Callable[[int], Server]) -> Iterator[Database]:
    """A fresh database with everything installed, on every major version that we support in turn."""
    with server_of(request.param).database() as database:
        yield database

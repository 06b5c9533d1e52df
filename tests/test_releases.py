"""Releases: what a fresh installation makes is written down, and every earlier release can be brought to it.

`tests/schema.sql` is the dump of a fresh installation on PostgreSQL 15; in a review its change shows what a
change of the SQL does. `tests/releases/` holds the installation script of each release. `make schema` writes
the dump anew; at a release, `pyrunner sql > tests/releases/VERSION.sql`.
"""

import os
from pathlib import Path

import pytest

from pyrunner.migrations import migrate
from tests.installing import dump
from tests.servers import Database, Server, need

FOLDER = Path(__file__).parent
SCHEMA = FOLDER / "schema.sql"
RELEASES = sorted((FOLDER / "releases").glob("*.sql"))


def comparable(db: Database) -> str:
    """The dump without what differs from day to day and from server to server."""
    lines = (line for line in dump(db, "--exclude-table=outbox.event_2*").splitlines())
    return "\n".join(line for line in lines if line.strip() and not line.startswith("--")) + "\n"


def test_a_fresh_installation_is_what_the_committed_dump_says(db: Database) -> None:
    need(db.server.major == 15, "the committed dump is PostgreSQL 15's")
    now = comparable(db)
    if os.environ.get("PYRUNNER_WRITE_SCHEMA"):
        SCHEMA.write_text(now, encoding="utf-8")
    assert now == SCHEMA.read_text(encoding="utf-8"), "right? then: make schema"


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_migrating_from_a_release_gives_what_a_fresh_installation_gives(
    server: Server, bare_db: Database, release: Path
) -> None:
    bare_db.psql(file=release)
    bare_db.psql("call expiration.run_job('lead-expiration'); call expiration.run_upkeep();")
    migrate(bare_db.dsn)
    with server.database() as fresh:
        assert comparable(bare_db) == comparable(fresh)
    bare_db.psql("call expiration.run_job('lead-expiration'); call expiration.run_upkeep();")
    assert bare_db.value("select count(*) from expiration.run where status = 'completed'") == 2


def test_every_release_is_on_the_shelf() -> None:
    assert RELEASES, "at a release: pyrunner sql > tests/releases/VERSION.sql"

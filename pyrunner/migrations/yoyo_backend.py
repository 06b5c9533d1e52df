"""yoyo, working inside a transaction that we hold.

yoyo commits what a migration did and notes that it was applied in two transactions, so that a kill between
them leaves a migration that can be neither applied nor passed over. Here both are one.
"""

import contextlib
import io
import socket
import uuid
from datetime import UTC, datetime
from glob import escape
from typing import Final

from yoyo import read_migrations
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.exceptions import BadMigration
from yoyo.migrations import Migration as YoyoMigration

from pyrunner.migrations.session import Connection
from pyrunner.migrations.tree import SqlTree, SqlTreeError

__all__ = ["MIGRATION_TABLE", "YoyoBackend", "read_steps"]

MIGRATION_TABLE: Final = "_yoyo_migration"


class YoyoBackend(PostgresqlPsycopgBackend):  # type: ignore[misc] # yoyo has no types
    """yoyo's backend on a connection that is in a transaction, with yoyo's tables on its search path."""

    # record.sql makes its tables
    _internal_schema_updated = True

    def __init__(self, connection: Connection) -> None:
        self._given = connection
        super().__init__("", MIGRATION_TABLE)
        # so that yoyo sets savepoints instead of beginning and committing
        self._in_transaction = True

    def connect(self, _uri: str) -> Connection:
        """The connection that was given."""
        return self._given

    def apply_one(self, migration: YoyoMigration) -> None:
        """Executes a migration's statements and notes that it was applied; the caller commits."""
        # yoyo prints the rows that a statement returns
        with contextlib.redirect_stdout(io.StringIO()):
            migration.process_steps(self, "apply")
        self.log_migration(migration, "apply")
        self.mark_one(migration, log=False)

    def get_log_data(self, migration: YoyoMigration, operation: str = "apply") -> dict[str, object]:
        """A row for yoyo's log; yoyo's own way asks the name server, and fails for a user without a name."""
        return {
            "id": str(uuid.uuid1()),
            "migration_id": migration.id,
            "migration_hash": migration.hash,
            "username": self._given.info.user,
            "hostname": socket.gethostname(),
            "created_at_utc": datetime.now(UTC).replace(tzinfo=None),
            "operation": operation,
        }


def read_steps(tree: SqlTree) -> dict[str, YoyoMigration]:
    """The migrations as yoyo reads them, by id, in the order in which it would apply them.

    Raises:
        SqlTreeError: yoyo would do something else than the script for psql.
    """
    folder = tree.root / "migrations"
    steps: dict[str, YoyoMigration] = {}
    for migration in read_migrations(escape(str(folder))):
        try:
            migration.load()
        except BadMigration as error:
            raise SqlTreeError(f"The migration {migration.path} cannot be used: {error}.") from None
        if not migration.path.endswith(".sql") or not migration.use_transactions:
            raise SqlTreeError(f"The migration {migration.path} is not SQL that runs in a transaction.")
        if later := sorted(other.id for other in migration.depends if other.id > migration.id):
            raise SqlTreeError(
                f"The migration {migration.path} depends on {later[0]}, whose name comes later."
            )
        steps[migration.id] = migration
    return steps

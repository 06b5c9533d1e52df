"""What can go wrong, as a user sees it: one sentence, often a hint, and an exit code. No traceback.

Every error that the package raises on purpose is a `PyrunnerError`. An error of the database becomes one by
`from_database`, which looks for the class that claims the SQLSTATE, or the longest beginning of it:

    class DomainGuard(DatabaseError):
        sqlstates = ("XP1",)          # every SQLSTATE that begins with XP1
"""

from enum import IntEnum
from typing import ClassVar, Final, Self

import psycopg

__all__ = [
    "AppendOnlyError",
    "BadInputError",
    "BusyError",
    "CannotConnectError",
    "CronMissingError",
    "DatabaseError",
    "DomainError",
    "EngineError",
    "ExitCode",
    "ListenError",
    "LockedError",
    "MissingPrivilegeError",
    "NotInstalledError",
    "PyrunnerError",
    "ReadOnlyError",
    "RefusedError",
    "SchemaMismatchError",
    "UsageError",
    "from_database",
    "one_line",
]


class ExitCode(IntEnum):
    """Exit codes of the command line; --help and docs/exit-codes.md come from this table.

    Attributes:
        meaning: what the code says, for a person.
    """

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """A code with its meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "done; a cycle that was capped or asked to stop counts as done"
    FAILED = 1, "a cycle failed, or the database raised an error not named below"
    USAGE = 2, "a bad argument, option or setting; nothing was changed"
    UNREACHABLE = 3, "the database, Kafka or what takes traces cannot be reached, was lost, or takes nothing"
    NOT_INSTALLED = 4, "nothing, a part or another version is installed; or PostgreSQL is too old"
    NO_PRIVILEGE = 5, "the role lacks a privilege"
    REFUSED = 6, "refused: not confirmed, or it would destroy what is not ours"
    BUSY = 7, "others held locks for longer than we were willing to wait"
    SKIPPED = 8, "the cycle was skipped: job paused, or this instance is still at work"
    TROUBLE = 9, "doctor or a status found an error"
    WARNINGS = 10, "doctor or a status found warnings and no error"
    LISTEN = 11, "the address to listen on is taken, or is not this machine's"
    INTERNAL = 70, "a fault of pyrunner itself"
    INTERRUPTED = 130, "ended by a signal; what had been committed stays"


class PyrunnerError(Exception):
    """An error to show to the user.

    Args:
        message: one sentence: what happened, to what.
        hint: what to do about it, or None.
        sqlstate: the database's code, where the error is the database's.

    Attributes:
        exit_code: what the process should end with.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str | None = None, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.message: Final = message
        self.hint: Final = hint
        self.sqlstate: Final = sqlstate

    def __str__(self) -> str:
        return self.message


class UsageError(PyrunnerError):
    """An argument, option or setting cannot be used as given."""

    exit_code = ExitCode.USAGE


class NotInstalledError(PyrunnerError):
    """The database holds no installation, half of one, or one of another version."""

    exit_code = ExitCode.NOT_INSTALLED


class RefusedError(PyrunnerError):
    """The command would destroy or overwrite what is not ours, so nothing was changed."""

    exit_code = ExitCode.REFUSED


class BusyError(PyrunnerError):
    """Others held the locks that were needed for longer than we were willing to wait."""

    exit_code = ExitCode.BUSY


class ListenError(PyrunnerError):
    """Nobody can listen on the address that was given."""

    exit_code = ExitCode.LISTEN


class DatabaseError(PyrunnerError):
    """The database raised an error; subclasses claim their SQLSTATEs, whole or by their beginning."""

    sqlstates: ClassVar[tuple[str, ...]] = ()
    _claims: ClassVar[dict[str, type["DatabaseError"]]] = {}

    def __init_subclass__(cls) -> None:
        """Enters the class under the SQLSTATEs that it claims itself, not under those it inherits."""
        cls._claims.update(dict.fromkeys(cls.__dict__.get("sqlstates", ()), cls))

    @classmethod
    def for_sqlstate(cls, sqlstate: str | None) -> type["DatabaseError"]:
        """The class that claims the longest beginning of `sqlstate`; DatabaseError when none does."""
        code = sqlstate or ""
        lengths = range(len(code), 0, -1)
        return next((cls._claims[code[:n]] for n in lengths if code[:n] in cls._claims), DatabaseError)

    @classmethod
    def of(cls, error: psycopg.Error, *, doing: str | None = None) -> Self:
        """An error of this class out of psycopg's."""
        text = one_line(error.diag.message_primary or str(error))
        hint = " ".join(error.diag.message_hint.split()) if error.diag.message_hint else None
        return cls(f"While {doing}: {text}." if doing else f"{text}.", hint=hint, sqlstate=error.sqlstate)


class CannotConnectError(DatabaseError):
    """The server cannot be reached, lets nobody in, or broke the connection."""

    exit_code = ExitCode.UNREACHABLE
    sqlstates = ("08", "28", "3D000", "53300", "57P01", "57P02", "57P03")


class MissingPrivilegeError(DatabaseError):
    """The role lacks a privilege; the message or the hint says which."""

    exit_code = ExitCode.NO_PRIVILEGE
    sqlstates = ("42501",)


class ReadOnlyError(DatabaseError):
    """The database takes no changes: a standby, or set so by default_transaction_read_only."""

    exit_code = ExitCode.UNREACHABLE
    sqlstates = ("25006",)


class SchemaMismatchError(DatabaseError):
    """A table, column or function that we rely on is not there, or is another one."""

    exit_code = ExitCode.NOT_INSTALLED
    sqlstates = ("3F000", "42P01", "42703", "42883", "42804")


class LockedError(DatabaseError):
    """A lock could not be had in time, or two transactions waited for each other."""

    exit_code = ExitCode.BUSY
    sqlstates = ("55P03", "40P01", "40001")


class BadInputError(DatabaseError):
    """The database refused an argument or a setting: XP0xx of expiration.errors()."""

    exit_code = ExitCode.USAGE
    sqlstates = (
        "XP001", "XP002", "XP003", "XP004", "XP005", "XP006", "XP009", "XP012", "XP013", "XP014",
        "XP017", "XP018", "XP019", "XP020",
    )  # fmt: skip


class EngineError(DatabaseError):
    """The engine was called when or as it must not be: the rest of XP0xx."""

    sqlstates = ("XP0",)


class AppendOnlyError(EngineError):
    """A change of the outbox was refused."""

    exit_code = ExitCode.REFUSED
    sqlstates = ("XP010",)


class CronMissingError(EngineError):
    """pg_cron is not installed in this database."""

    exit_code = ExitCode.NOT_INSTALLED
    sqlstates = ("XP011",)


class DomainError(DatabaseError):
    """A guard of the domain said no: XP1xx."""

    sqlstates = ("XP1",)


def from_database(error: psycopg.Error, *, doing: str | None = None) -> DatabaseError:
    """The error to show for one that psycopg raised.

    Args:
        error: as caught.
        doing: what was being done, put before the database's own words: "expiring leads".
    """
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return CannotConnectError.of(error, doing=doing)
    return DatabaseError.for_sqlstate(error.sqlstate).of(error, doing=doing)


def one_line(text: str) -> str:
    """The text on one line, without the stop at its end."""
    return " ".join(text.split()).rstrip(".")

"""The file with the connector's password: `password=...`, as Java's properties are written."""

import os
import re
import secrets
from pathlib import Path
from typing import Final

from pyrunner.errors import UsageError

__all__ = ["PasswordFile"]

_LINE: Final = re.compile(r"\s*password\s*[=:\s]\s*(?P<value>.*?)\r?\n?", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PasswordFile:
    """A file that Connect reads the password from, and that we write at most once.

    Args:
        path: as we see it.
        seen_as: its path as Connect sees it; the same when None.
    """

    def __init__(self, path: Path, seen_as: str | None = None) -> None:
        self.path = path.expanduser().absolute()
        self.seen_as = seen_as or str(self.path)

    def read(self) -> str | None:
        """The password; None when there is no file.

        Raises:
            UsageError: the file cannot be read, or holds no password.
        """
        try:
            lines = self.path.read_text("utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise UsageError(f"The password's file {self.path} cannot be read: {reason}.") from None
        for line in lines:
            if (found := _LINE.fullmatch(line)) and (password := _unescaped(found["value"])):
                return password
        raise UsageError(
            f"The password's file {self.path} holds no password.", hint="It must have a line: password=..."
        )

    def check_place(self) -> None:
        """Refuses a path at which no file could be made.

        Raises:
            UsageError: the folder is missing, or may not be written to.
        """
        folder = self.path.parent
        if not folder.is_dir():
            raise UsageError(
                f"There is no folder {folder} for the password's file.", hint="Make it, or name another."
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"The password's file cannot be made: {folder} may not be written to.")

    def write(self, password: str) -> None:
        """Makes the file, readable by its owner alone.

        Raises:
            UsageError: it cannot be made.
        """
        escaped = password.replace("\\", "\\\\")
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(f"# of the connector's role; Kafka Connect reads it\npassword={escaped}\n")
        except OSError as error:
            raise UsageError(f"The password's file {self.path} cannot be made: {error.strerror}.") from None

    @staticmethod
    def new_password() -> str:
        """A password that nobody has to remember."""
        return secrets.token_urlsafe(32)


def _unescaped(value: str) -> str:
    def character(found: re.Match[str]) -> str:
        text = found.group(1)
        return chr(int(text[1:], 16)) if len(text) == 5 else _CONTROLS.get(text, text)

    return _ESCAPE.sub(character, value)

"""The demo's folder: its server, the file that points a shell at it, the lock that keeps two demos apart."""

import contextlib
import fcntl
import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyrunner.errors import BusyError, PyrunnerError, UsageError
from pyrunner.postgres import PrivateServer, find_binaries

__all__ = ["DATABASE", "DEFAULT_FOLDER", "Place", "check_folder", "forget_foreign_settings", "make_folder"]

DEFAULT_FOLDER: Final = Path(".pyrunner")
DATABASE: Final = "crm"
# what psql prints is then the same everywhere
_SETTINGS: Final = {"timezone": "UTC", "log_timezone": "UTC"}
_MARK: Final = "demo.lock"
# these would lead elsewhere, or ask more of the connection than the demo's server gives
_MISLEADING: Final = (
    "PYRUNNER_DSN", "PGHOSTADDR", "PGSERVICE", "PGPASSWORD", "PGOPTIONS", "PGSSLMODE", "PGSSLNEGOTIATION",
    "PGCHANNELBINDING", "PGGSSENCMODE", "PGREQUIREAUTH", "PGREQUIREPEER", "PGTARGETSESSIONATTRS",
)  # fmt: skip


class Place:
    """A folder with the demo's server in it.

    Args:
        folder: see `make_folder`.

    Raises:
        ServerError: there is no PostgreSQL to run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = PrivateServer(
            # initdb's own data needs no safe journey to the disk; what runs afterwards is as safe as ever
            find_binaries(), folder / "server", _SETTINGS, initdb_options=["--no-sync"]
        )  # fmt: skip

    @property
    def environment_file(self) -> Path:
        """The file to source in a shell."""
        return self.folder / "env"

    @property
    def environment_word(self) -> str:
        """That file as a shell's dot command takes it."""
        path = str(self.environment_file)
        return shlex.quote(path if "/" in path else f"./{path}")

    def command(self, option: str = "") -> str:
        """The command line of a demo in this folder."""
        folder = "" if self.folder == DEFAULT_FOLDER else f"--folder {shlex.quote(str(self.folder))}"
        return " ".join(part for part in ("pyrunner demo", option, folder) if part)

    @property
    def is_made(self) -> bool:
        """Whether a demo has been here: what is in it is ours to stop and to remove."""
        # where the server had to go elsewhere, the name of that place is the mark
        moved = self.server.notice is not None
        return (self.folder / _MARK).exists() or (moved and self.server.folder.exists())

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """Within, no other demo works in this folder.

        Raises:
            BusyError: one does.
        """
        try:
            handle = os.open(self.folder / _MARK, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _unusable(self.folder, error) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"Another demo is at work in {self.folder}.",
                    hint="Wait until it is done, or name another --folder.",
                ) from None
            yield
        finally:
            os.close(handle)

    def write_environment(self) -> None:
        """Writes the file that points psql and pyrunner of a shell at the demo's database."""
        ours = self.server.environment(DATABASE)
        lines = [
            "# Made by `pyrunner demo`: points this shell's psql and pyrunner at the demo's database.",
            f"unset {' '.join(_MISLEADING)}",
            *(f"export {name}={shlex.quote(value)}" for name, value in ours.items()),
        ]
        # our own programs first; the server's psql only where there is no other
        for programs in (Path(sys.argv[0]).absolute().parent, Path(sys.executable).parent):
            if (programs / "pyrunner").is_file():
                lines.append(_path_line(programs, '{}:"$PATH"'))
                break
        if shutil.which("psql") is None and (psql := self.server.binaries.program("psql")):
            lines.append(_path_line(psql.parent, '"$PATH":{}'))
        try:
            self.environment_file.write_text("\n".join(lines) + "\n")
        except OSError as error:
            raise _unusable(self.folder, error) from None

    def remove(self) -> None:
        """Stops the server and removes the folder with all that the demo has made."""
        self.server.destroy()
        try:
            for path in (self.environment_file, self.folder / _MARK):
                path.unlink(missing_ok=True)
            # whatever else is there is not ours
            with contextlib.suppress(FileNotFoundError):
                if not any(self.folder.iterdir()):
                    self.folder.rmdir()
        except OSError as error:
            raise _unusable(self.folder, error) from None


def check_folder(folder: Path) -> None:
    """Refuses a folder in which another user has a demo: only its owner finds the server and may stop it.

    Raises:
        UsageError: so it is, or nobody can tell.
    """
    try:
        owner = (folder / _MARK).stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unusable(folder, error) from None
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
        raise UsageError(
            f"The demo in {folder} is the user {name}'s.", hint=f"Go on as {name}, or name another --folder."
        )


def make_folder(folder: Path) -> None:
    """Makes the demo's folder.

    Raises:
        UsageError: there is something else, or it cannot be written.
    """
    mark = folder / _MARK
    try:
        # the stack's folder is in the same one by default
        others = folder.is_dir() and any(entry.name != "stack" for entry in folder.iterdir())
        if others and not mark.exists():
            raise UsageError(f"{folder} is not empty, and no demo made it.", hint="Name another --folder.")
        if not folder.exists():
            folder.mkdir(parents=True)
            # whatever the umask: the server's user has to pass through; secrets have modes of their own
            folder.chmod(0o755)
        mark.touch()
    except OSError as error:
        raise _unusable(folder, error) from None


def forget_foreign_settings() -> None:
    """Takes libpq's variables out of our environment: they speak of another server than the demo's."""
    for name in [name for name in os.environ if name.startswith("PG") and name.isupper()]:
        del os.environ[name]


def _path_line(folder: Path, path: str) -> str:
    quoted = shlex.quote(str(folder))
    return f'case ":$PATH:" in *:{quoted}:*) ;; *) export PATH={path.format(quoted)} ;; esac'


def _unusable(folder: Path, error: OSError) -> PyrunnerError:
    return UsageError(
        f"{folder} cannot be used: {error.strerror}: {error.filename}.",
        hint="Name another --folder.",
    )

"""`pyrunner demo` as a command."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pyrunner.demo.data import FEWEST_BOOKINGS, FEWEST_LEADS
from pyrunner.demo.place import DEFAULT_FOLDER, Place, check_folder, forget_foreign_settings, make_folder
from pyrunner.demo.screen import Screen
from pyrunner.demo.story import Size, Story
from pyrunner.errors import ExitCode
from pyrunner.output import print_json, say
from pyrunner.settings import parse_count

__all__ = ["demo"]


def _from(least: int) -> Callable[[str | int], int]:
    """A parser for a number; typer gives it the default as well."""

    def read(text: str | int) -> int:
        try:
            return parse_count(str(text), least=least)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} must be {error}.") from None

    return read


def demo(
    leads: Annotated[
        int,
        typer.Option(metavar="N", parser=_from(FEWEST_LEADS), help="How many leads to make up."),
    ] = 100_000,
    bookings: Annotated[
        int,
        typer.Option(metavar="N", parser=_from(FEWEST_BOOKINGS), help="How many bookings to make up."),
    ] = 20_000,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed makes up other rows.")] = 1,
    folder: Annotated[
        Path, typer.Option(metavar="PATH", file_okay=False, help="Where the server's files are.")
    ] = DEFAULT_FOLDER,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server, and keep its files.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Stop the server, and remove its files.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what happened as JSON; the story goes to standard error.")
    ] = False,
) -> None:
    """Start a PostgreSQL of its own, load a CRM, and watch its overdue leads and bookings expire.

    A second call makes the database afresh and tells the same story. The server goes on until --stop.

    It listens on 127.0.0.1 only, and asks for a password that others cannot read.
    """
    forget_foreign_settings()
    check_folder(folder)
    if stop or remove:
        _end(Place(folder), remove=remove)
        return
    make_folder(folder)
    place = Place(folder)
    story = Story(
        place,
        Size(leads, bookings, seed),
        Screen(Console(stderr=as_json, highlight=False, markup=False, emoji=False)),
    )
    try:
        with place.occupied():
            story.tell()
    except KeyboardInterrupt:
        say(f"Interrupted. `{place.command()}` begins anew; `{place.command('--stop')}` stops the server.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(story.result)
    if not story.holds:
        raise typer.Exit(ExitCode.FAILED)


def _end(place: Place, *, remove: bool) -> None:
    if not place.is_made:
        say(f"There is no demo in {place.folder}.")
        return
    pid = place.server.pid
    if remove:
        place.remove()
    else:
        place.server.stop()
    was = "No server was running" if pid is None else f"The demo's server, process {pid}, is stopped"
    kept = f"its files stay in {place.folder}, and go by `{place.command('--remove')}`"
    say(f"{was}; {f'{place.folder} is removed' if remove else kept}.")

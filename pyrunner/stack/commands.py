"""`pyrunner stack`: the stack as commands."""

import contextlib
import shlex
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from pyrunner.errors import ExitCode
from pyrunner.options import JsonOption, progress
from pyrunner.output import console, print_facts, print_json, print_table, say
from pyrunner.stack.stack import DATABASE, PARTS, Stack

__all__ = ["stack_app"]

DEFAULT_FOLDER: Final = Path(".pyrunner/stack")
_STYLES: Final = {"running": "green", "silent": "yellow", "died": "bold red", "stopped": "dim"}

stack_app = typer.Typer(
    no_args_is_help=True,
    help="A PostgreSQL with logical WAL, a Kafka broker and Kafka Connect, for development and a first look.",
)

FolderOption = Annotated[
    Path, typer.Option("--folder", metavar="PATH", help="Where data, logs and settings are.")
]


@stack_app.command()
def up(folder: FolderOption = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """Start what does not run, and install the engine into a database `crm`; what runs is left alone.

    All of it listens on 127.0.0.1 only, on ports that stay the same, and goes on until `pyrunner stack down`.
    Broker and Connect ask for no password: whoever can log in to this machine reaches them.
    """
    # the demo is not loaded for the sake of --help
    from pyrunner.demo.place import forget_foreign_settings

    forget_foreign_settings()
    stack = Stack(folder)
    with progress("") as tell:
        stack.up(on_progress=tell)
        stack.install(on_progress=tell)
    if as_json:
        print_json(_described(stack))
        return
    if stack.postgres.notice:
        say(stack.postgres.notice)
    print_facts(
        Text.assemble("the stack is up in ", (str(folder), "bold")),
        [
            (f"database {DATABASE}", stack.dsn()),
            ("broker", stack.bootstrap_servers),
            ("Connect", stack.connect_url),
            *((f"log of {part}", stack.log(part)) for part in PARTS),
        ],
    )
    out = console()
    out.print(Text("next"))
    for command, what in (
        (f". {shlex.quote(str(folder / 'env'))}", "points this shell's psql and pyrunner at it"),
        ("pyrunner cdc install", "the way from the outbox to Kafka"),
        (_command("status", folder), "is it well?"),
        (_command("down", folder), "stops it; --remove deletes its data, too"),
    ):
        out.print(Text.assemble("  ", (command, "bold"), "  ", (what, "dim")), soft_wrap=True)


@stack_app.command()
def status(folder: FolderOption = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """Show whether PostgreSQL, broker and Connect answer; exit code 9 unless all do."""
    stack = Stack(folder)
    parts = stack.status() if stack.is_made else []
    if as_json:
        print_json(_described(stack) if parts else {"folder": stack.folder, "parts": []})
    else:
        print_table(
            ["part", "state", "process", "address", "log"],
            [
                (
                    one.part, Text(one.state, style=_STYLES[one.state]), str(one.pid or ""), one.address,
                    one.log,
                )
                for one in parts
            ],
            empty=f"There is no stack in {folder}. Make one: {_command('up', folder)}",
        )  # fmt: skip
        if any(one.state == "died" for one in parts):
            say(f"What died says why in its log; {_command('up', folder)} starts it again, with its data.")
    if not parts or any(one.state != "running" for one in parts):
        raise typer.Exit(ExitCode.TROUBLE)


@stack_app.command()
def down(
    folder: FolderOption = DEFAULT_FOLDER,
    remove: Annotated[bool, typer.Option("--remove", help="Delete data, logs and settings, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop Connect, the broker and PostgreSQL of this stack, and nothing else; the data stay."""
    stack = Stack(folder)
    is_made = stack.is_made
    with progress("") as tell:
        stopped = (stack.destroy if remove else stack.down)(on_progress=tell)
    if remove and folder == DEFAULT_FOLDER:
        # made for the stack's sake, unless there is more in it
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
    if as_json:
        print_json({"folder": stack.folder, "stopped": stopped, "removed": is_made and remove})
    elif not is_made:
        say(f"There is no stack in {folder}.")
    else:
        what = f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running"
        say(f"{what}; {f'{folder} is removed' if remove else f'the data stay in {folder}'}.")


def _described(stack: Stack) -> dict[str, Any]:
    return {
        "folder": stack.folder,
        "dsn": stack.dsn(),
        "bootstrapServers": stack.bootstrap_servers,
        "connectUrl": stack.connect_url,
        "environmentFile": stack.environment_file,
        "secrets": stack.secrets,
        "parts": [vars(one) for one in stack.status()],
    }


def _command(name: str, folder: Path) -> str:
    option = "" if folder == DEFAULT_FOLDER else f" --folder {_quoted(folder)}"
    return f"pyrunner stack {name}{option}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))

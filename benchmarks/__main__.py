"""The command: measures, prints the table, and writes it for the README."""

import os
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from rich.console import Console

from benchmarks.choice import chosen, listing, terminable
from benchmarks.lab import FOLDER, BenchError, Lab
from benchmarks.report import RESULTS, Machine, as_json, as_markdown, show
from benchmarks.scale import FULL, QUICK, TINY
from benchmarks.scenarios import SCENARIOS, Row
from pyrunner.errors import PyrunnerError, one_line

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=listing(SCENARIOS))
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows, fewer rounds.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Just these scenarios, separated by commas.")
    ] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures of all rounds there.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the table there as Markdown; a full run writes benchmarks/results.md by itself.",
        ),
    ] = None,
    pg: Annotated[
        int | None,
        typer.Option(metavar="MAJOR", help="Version of PostgreSQL; without it 15, else what is installed."),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where the server's files go: some 12 GB for a while.",
            show_default=".cache/benchmarks",
        ),
    ] = FOLDER,
) -> None:
    """Measures the engine beside hand-written loops, on a PostgreSQL of its own, and prints the table."""
    console, progress = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    scale = TINY if tiny else QUICK if quick else FULL
    if scale is FULL and not only:
        results = results or RESULTS
    rows: list[Row] = []

    def say(text: str) -> None:
        progress.print(text, style="dim", highlight=False)

    try:
        scenarios = chosen(SCENARIOS, only)
        with terminable(), Lab(scale, major=pg, folder=folder, say=say) as lab:
            machine = Machine(lab.version)
            for scenario in scenarios:
                rows += scenario.run(lab)
    except (BenchError, PyrunnerError, psycopg.Error) as error:
        if rows:
            show(rows, console)
        progress.print(f"bench: {one_line(str(error))}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    show(rows, console)
    if results is not None:
        results.write_text(as_markdown(rows, scale, machine))
        console.print(f"written: {os.path.relpath(results)}")
    if json_file is not None:
        json_file.write_text(as_json(rows, scale, machine))


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")

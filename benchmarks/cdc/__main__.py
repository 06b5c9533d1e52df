"""The command: measures, prints the tables, and writes them for the README."""

import os
from pathlib import Path
from typing import Annotated

import httpx
import psycopg
import typer
from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks.cdc.lab import FOLDER, Lab
from benchmarks.cdc.report import RESULTS, Results
from benchmarks.cdc.scale import FULL, QUICK, TINY
from benchmarks.cdc.scenarios import SCENARIOS, Comparison, Row, warm_up
from benchmarks.choice import chosen, listing, terminable
from benchmarks.lab import BenchError
from benchmarks.report import Machine
from pyrunner.errors import PyrunnerError, one_line
from pyrunner.postgres import find_binaries

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=listing(SCENARIOS))
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer events, fewer rounds.")] = False,
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
            help="Write the tables there as Markdown; a full run writes benchmarks/results-cdc.md by itself.",
        ),
    ] = None,
    pg: Annotated[
        int | None,
        typer.Option(metavar="MAJOR", help="Version of PostgreSQL; by default what `pyrunner stack` takes."),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where the stack's files go: some 5 GB for a while.",
            show_default=".cache/bench-cdc",
        ),
    ] = FOLDER,
) -> None:
    """Measures the way from the outbox to a consumer, on a stack of its own, and prints the tables."""
    console, progress = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    scale = TINY if tiny else QUICK if quick else FULL
    if scale is FULL and not only:
        results = results or RESULTS
    lines: list[Row | Comparison] = []
    done: Results | None = None

    def say(text: str) -> None:
        progress.print(text, style="dim", highlight=False)

    try:
        scenarios = chosen(SCENARIOS, only)
        binaries = None if pg is None else find_binaries(pg, prefer=("local", "embedded"))
        with terminable(), Lab(scale, folder=folder, binaries=binaries, say=say) as lab:
            done = Results(lines, scale, Machine(lab.version), lab.software)
            warm_up(lab)
            for scenario in scenarios:
                lines += scenario.run(lab)
    except (BenchError, PyrunnerError, psycopg.Error, KafkaException, httpx.HTTPError) as error:
        if done is not None:
            done.show(console)
        progress.print(f"bench-cdc: {one_line(str(error))}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    done.show(console)
    if results is not None:
        results.write_text(done.as_markdown())
        console.print(f"written: {os.path.relpath(results)}")
    if json_file is not None:
        json_file.write_text(done.as_json())


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.cdc")

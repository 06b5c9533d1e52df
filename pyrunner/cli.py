"""The command line: commands read their arguments and print; what they do stands in the other modules."""

import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Annotated, Any, ClassVar, Final, TypeVar
from uuid import UUID

import psycopg
import typer
import typer.core
import typer.main
from psycopg import sql as composed
from rich.text import Text

import pyrunner
from pyrunner.cycle import CycleFailedError, Stop, instance_of_run, run_cycle
from pyrunner.database import is_pooled, query, rows, session, target_of
from pyrunner.errors import ExitCode, PyrunnerError, RefusedError, UsageError, from_database
from pyrunner.logs import LogObserver, emit, follow, make_log, read
from pyrunner.options import DsnOption, JsonOption, dsn_from, parse_id, parse_since, progress, reads
from pyrunner.output import (
    CycleProgress,
    ago,
    console,
    count,
    moment,
    print_error,
    print_facts,
    print_json,
    print_run,
    print_table,
    say,
    shown,
    span,
)
from pyrunner.serve.address import DEFAULT_ADDRESS, Address, parse_address
from pyrunner.settings import (
    Job,
    LogLevel,
    Overrides,
    effective,
    overrides_from,
    parse_count,
    parse_positive_duration,
    read_environment,
    read_own,
    setting_named,
)
from pyrunner.times import format_duration, parse_instant

T = TypeVar("T")

EXIT_CODES: Final = "\n".join(f"{code.value:>4}  {code.meaning}" for code in ExitCode)
_ISSUES: Final = "Please report it, with the command that you typed and PYRUNNER_TRACE=1 set."

app = typer.Typer(
    name="pyrunner",
    help="Expires leads and bookings inside PostgreSQL: installs the engine, runs its jobs, watches over it."
    "\n\nIt connects as psql does: by --dsn, PYRUNNER_DSN, or libpq's environment and service files. "
    "Keep passwords in a passfile or a service, out of the command line.",
    epilog=f"Exit codes:\n{EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
failed_app = typer.Typer(no_args_is_help=True, help="Items that failed alone (poison).")
config_app = typer.Typer(no_args_is_help=True, help="Settings of the jobs.")
cron_app = typer.Typer(no_args_is_help=True, help="The jobs in pg_cron.")


def _reflow(group: typer.Typer) -> None:
    """Typer keeps the line breaks of a docstring, which suit no other width."""
    for command in group.registered_commands:
        command.help = "\n\n".join(
            " ".join(paragraph.split())
            for paragraph in str(getattr(command.callback, "__doc__", "")).split("\n\n")
        )


def _import(module: str, command: str, extra: str) -> Any:
    """A module that needs the packages of one of our extras."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise UsageError(
            f"`pyrunner {command}` needs the package {package}, which is not installed.",
            hint=f"pip install 'pyrunner[{extra}]'",
        ) from None
    except ValueError as error:
        # OpenTelemetry reads its limits then, and names the variable
        raise UsageError(f"{error}.") from None


class _Lazy(typer.core.TyperGroup):
    """Commands in a module that is loaded when one of them is asked for: Kafka's client takes a while."""

    module: ClassVar[str]

    def _loaded(self) -> Any:
        module = _import(self.module, str(self.name), "cdc")
        group: typer.Typer = getattr(module, f"{self.name}_app")
        _reflow(group)
        return typer.main.get_command(group)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._loaded().list_commands(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._loaded().get_command(ctx, cmd_name)


class _Cdc(_Lazy):
    module = "pyrunner.cdc.commands"


class _Stack(_Lazy):
    module = "pyrunner.stack.commands"


cdc_app = typer.Typer(
    cls=_Cdc,
    no_args_is_help=True,
    help="From the outbox to Kafka: set up, watch, replay and mend the way by Debezium.",
)
stack_app = typer.Typer(
    cls=_Stack,
    no_args_is_help=True,
    help="PostgreSQL, Kafka and Kafka Connect on this machine, for a first look.",
)
app.add_typer(failed_app, name="failed")
app.add_typer(config_app, name="config")
app.add_typer(cron_app, name="cron")
app.add_typer(cdc_app, name="cdc")
app.add_typer(stack_app, name="stack")


# ------------------------------------------------------------------------------------------------- arguments


_JOBS: Final = " or ".join(Job)
JobArgument = Annotated[Job, typer.Argument(metavar="JOB", help=_JOBS, show_default=False)]
OneJobArgument = Annotated[
    Job | None, typer.Argument(metavar="[JOB]", help=f"Only this job: {_JOBS}.", show_default=False)
]
OneJobOption = Annotated[
    Job | None, typer.Option("--job", metavar="JOB", help=f"Only this job: {_JOBS}.", show_default=False)
]
InstanceOption = Annotated[
    str | None,
    typer.Option(
        "--instance",
        metavar="NAME",
        help="Beside the host's name: at most one run of a job and instance works at a time, others are "
        "skipped. Default: PYRUNNER_INSTANCE, else for `worker` none, for `run` its own process.",
        show_default=False,
    ),
]
LevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        help="Least level of log lines; debug has one for every item. "
        "Default: PYRUNNER_LOG_LEVEL, else info.",
        show_default=False,
    ),
]
DsnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Connection string; several for several databases. Default: PYRUNNER_DSN, else as psql.",
        show_default=False,
    ),
]
PatienceOption = Annotated[
    timedelta,
    typer.Option(
        "--patience",
        metavar="TIME",
        parser=reads(parse_positive_duration),
        help="How long locks of others may put off a step before it is given up.",
    ),
]
CronDatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--cron-database",
        metavar="NAME",
        help="The database that pg_cron lives in. Default: the server is asked.",
        show_default=False,
    ),
]


def _log_level(given: LogLevel | None) -> LogLevel:
    return given or read_own().log_level


def _dsns_from(given: list[str] | None) -> list[str]:
    return [dsn_from(one) for one in given] if given else [dsn_from(None)]


def _version(wanted: bool) -> None:
    if wanted:
        console().print(f"pyrunner {pyrunner.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    dsn: DsnOption = None,
    _version_wanted: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if dsn is not None:
        # before the command it says the same as behind it
        os.environ["PYRUNNER_DSN"] = dsn


# ---------------------------------------------------------------------------------------------- installation


@app.command()
def migrate(
    dsn: DsnOption = None, patience: PatienceOption = timedelta(minutes=2), as_json: JsonOption = False
) -> None:
    """Install the engine into a database, or bring it up to date.

    Safe while runners work, and safe to repeat: what was begun is finished, what is there stays. Needs a
    superuser, or CREATEROLE together with CREATE on the database.
    """
    from pyrunner.migrations import migrate as do

    conninfo = dsn_from(dsn)
    with progress("Connecting.") as tell:
        result = do(conninfo, on_progress=tell, patience=patience.total_seconds())
    if as_json:
        print_json(vars(result))
        return
    title = Text.assemble(
        ("version ", ""), (result.version, "bold"), f" is installed in {target_of(conninfo)}"
    )
    print_facts(
        title,
        [
            ("migrations applied", ", ".join(result.applied) or "none were pending"),
            ("functions, views, triggers", len(result.loaded)),
            ("dropped", ", ".join(result.dropped) or None),
            ("next", "pyrunner doctor"),
        ],
    )


@app.command()
def uninstall(
    dsn: DsnOption = None,
    drop_data: Annotated[
        bool,
        typer.Option(
            "--drop-data",
            help="Drop our schemas (crm, outbox, expiration, chessboard, notifications) with all their rows.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    patience: PatienceOption = timedelta(minutes=2),
    as_json: JsonOption = False,
) -> None:
    """Take the engine out of a database; its tables stay unless --drop-data is given.

    Functions, views, triggers and the entries in pg_cron go; `pyrunner migrate` puts them back.
    """
    from pyrunner.migrations import uninstall as do

    conninfo = dsn_from(dsn)
    target = target_of(conninfo)
    if not yes:
        what = (
            "the engine and ALL DATA in crm, outbox and expiration"
            if drop_data
            else "the engine, but no data,"
        )
        if not sys.stdin.isatty():
            raise RefusedError(
                f"This would take {what} out of {target}, and nobody can be asked.", hint="Give --yes."
            )
        if not typer.confirm(f"Take {what} out of {target}?", err=True):
            raise RefusedError("Nothing was changed.")
    with progress("Connecting.") as tell:
        result = do(conninfo, drop_data=drop_data, on_progress=tell, patience=patience.total_seconds())
    if as_json:
        print_json({**vars(result), "kept": [vars(kept) for kept in result.kept]})
        return
    print_facts(
        Text(f"taken out of {target}"),
        [
            ("dropped", count(len(result.dropped), "object")),
            ("unscheduled", ", ".join(result.unscheduled) or None),
            *(("kept", f"{kept.what}: {kept.why}") for kept in result.kept),
        ],
    )


@app.command("sql")
def print_sql() -> None:
    """Print the whole installation as one script, for a DBA who runs no Python: pyrunner sql | psql."""
    from pyrunner.migrations import install_script

    with _reader_may_leave():
        print(install_script(), end="", flush=True)  # noqa: T201


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """For much output: whoever reads it may have seen enough before its end."""
    try:
        yield
    except BrokenPipeError:
        # nobody is told at the end that the rest cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --------------------------------------------------------------------------------------------------- running


@app.command()
def run(
    job: JobArgument,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            parser=reads(parse_instant),
            help="Cut-off of the cycle, in UTC unless it says otherwise, or '2 h ago'; never ahead. "
            "Default: now.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", metavar="N", parser=reads(parse_count), help="Rows a batch.", show_default=False
        ),
    ] = None,
    max_batches: Annotated[
        int | None,
        typer.Option(
            "--max-batches",
            metavar="N",
            parser=reads(parse_count),
            help="Full batches a phase; the rest waits for the next cycle.",
            show_default=False,
        ),
    ] = None,
    max_duration: Annotated[
        timedelta | None,
        typer.Option(
            "--max-duration",
            metavar="TIME",
            parser=reads(parse_positive_duration),
            help="No batch is begun after so long.",
            show_default=False,
        ),
    ] = None,
    instance: InstanceOption = None,
    dsn: DsnOption = None,
    log_level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one cycle of a job, and print its result.

    Settings: command line, then environment (CRM__JOBS__LEADEXPIRATION__BATCHSIZE ...), then the database.
    Ctrl-C or SIGTERM ends it after the batch in hand; a second one cancels that batch, which is rolled back.
    """
    given = Overrides(batch_size=batch_size, max_batches_per_cycle=max_batches, max_duration=max_duration)
    overrides = overrides_from(read_environment(), job, given)
    level = _log_level(log_level)
    on_terminal = sys.stderr.isatty()
    if on_terminal and level == "info":
        # the bar shows what these lines would say
        level = "warning"
    log = make_log(level, human=on_terminal)
    stop = Stop(lambda: log.warning("stop requested", hint="Once more cancels the batch in hand."))
    with (
        _signals(stop),
        session(dsn_from(dsn), job.value, "crm_runner") as connection,
        contextlib.ExitStack() as stack,
    ):
        observer = LogObserver(log, level, connection.info.dbname)
        pooled = is_pooled(connection)
        connection.commit()
        try:
            done = run_cycle(
                connection,
                job,
                instance=instance_of_run(instance or read_own().instance),
                pooled=pooled,
                overrides=overrides,
                stop=stop,
                observer=stack.enter_context(CycleProgress(observer)) if on_terminal else observer,
                as_of=as_of,
            )
        except CycleFailedError as error:
            if not stop.cancelled:
                raise
            stack.close()
            print_error(error)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(
            {
                "runId": done.id,
                "job": done.job,
                "status": done.status,
                "reason": done.reason,
                "asOf": done.as_of,
                "failedItems": done.failed,
                "result": None if done.status == "skipped" else done.result,
                "error": done.error,
            }
        )
    else:
        print_run(done)
    if done.status == "skipped":
        raise typer.Exit(ExitCode.SKIPPED)
    if stop.requested:
        raise typer.Exit(ExitCode.INTERRUPTED)


@app.command()
def worker(
    dsn: DsnsOption = None,
    job: Annotated[
        list[Job] | None,
        typer.Option("--job", metavar="JOB", help=f"Only this job: {_JOBS}.", show_default=False),
    ] = None,
    instance: InstanceOption = None,
    upkeep: Annotated[
        bool, typer.Option(help="Keep house once an hour: partitions, history, dead runs.")
    ] = True,
    log_level: LevelOption = None,
) -> None:
    """Run the jobs on their periods until SIGTERM.

    A tick that a long cycle covers is skipped, not queued. A database that is away is tried again and again.
    The first SIGTERM or Ctrl-C ends it after the batches in hand, with exit code 0; a second cancels them.
    """
    from pyrunner.worker import Worker

    level = _log_level(log_level)
    stop = Stop()
    with _signals(stop):
        Worker(
            _dsns_from(dsn),
            list(dict.fromkeys(job or Job)),
            environment=read_environment(),
            instance=instance or read_own().instance,
            upkeep=upkeep,
            level=level,
            log=make_log(level, human=sys.stderr.isatty()),
            stop=stop,
        ).run()
    if stop.cancelled:
        raise typer.Exit(ExitCode.INTERRUPTED)


@contextlib.contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """SIGINT and SIGTERM ask to stop; after two of them a third ends the process at once."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    taken = 0

    def listen() -> None:
        while received := reader.recv(16):
            for number in received:
                if number in numbers:
                    stop.request()

    def take(_number: int, _frame: FrameType | None) -> None:
        nonlocal taken
        taken += 1
        if taken == 2:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)

    # a thread asks: a handler runs between any two instructions, also of whoever holds a lock that it needs
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        writer.close()
        thread.join(1)
        reader.close()


# --------------------------------------------------------------------------------------------------- looking


@app.command()
def status(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Show how the jobs are: last cycles, what is due, what failed, and why one does not run."""
    with session(dsn_from(dsn), "status", "crm_monitor", read_only=True) as connection:
        found = rows(
            connection, "select s.*, clock_timestamp() as now from expiration.status as s order by s.job desc"
        )
    if as_json:
        print_json([{key: value for key, value in row.items() if key != "now"} for row in found])
        return
    for row in found:
        print_facts(*_status_of(row))


def _status_of(row: dict[str, Any]) -> tuple[Text, list[tuple[str, Any]]]:
    now = row["now"]
    state = (
        ("paused", "yellow") if row["paused"] else ("running", "green") if row["running"] else ("idle", "dim")
    )
    title = Text.assemble((row["job"], "bold"), "  ", state, f", every {format_duration(row['period'])}")
    last = None
    if row["last_run_at"] is not None:
        last = f"{row['last_run_status']} ({row['last_run_reason']}), started {ago(row['last_run_at'], now)}"
    due = f"{row['due']:,}"
    if row["oldest_due_age"] is not None:
        due += f", the oldest for {span(row['oldest_due_age'])}"
    failed = f"{row['failed_items']:,}"
    if row["failed_items"]:
        failed += f"  see: pyrunner failed list {row['job']}"
    running = (
        f"{count(row['running'], 'run')}, since {ago(row['running_since'], now)}" if row["running"] else None
    )
    return title, [
        ("running", running),
        ("last run", last or "never"),
        ("last success", ago(row["last_success_at"], now)),
        ("due", due),
        ("failed items", failed),
        ("why not", Text(row["why_not"], style="yellow") if row["why_not"] else None),
    ]


@app.command()
def preview(
    job: JobArgument,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            parser=reads(parse_instant),
            help="What is due then; may lie ahead. Default: now.",
            show_default=False,
        ),
    ] = None,
    cycles: Annotated[
        int,
        typer.Option(
            "--cycles", metavar="N", parser=reads(parse_count), help="How many cycles to look ahead."
        ),
    ] = 1,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", parser=reads(parse_count), help="How many items to print.")
    ] = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the next cycle would take, in its order, changing nothing."""
    parameters = {"job": job.value, "as_of": as_of, "cycles": cycles, "limit": limit}
    with session(dsn_from(dsn), "preview", "crm_monitor", read_only=True) as connection:
        found = rows(connection, query("preview"), parameters)
    total = found[0].pop("total") if found else 0
    for row in found[1:]:
        del row["total"]
    if as_json:
        print_json({"job": job.value, "total": total, "items": found})
        return
    print_table(
        ["cycle", "batch", "expected", "phase", "step", "item", "tenant", "deadline"],
        [
            (
                row["cycle"], row["batch"], row["expected_at"], row["phase"], row["step"],
                row["item_id"], row["tenant_id"], row["deadline"],
            )
            for row in found
        ],
        empty=f"Nothing is due for {job}.",
    )  # fmt: skip
    if total > len(found):
        console().print(Text(f"{count(total, 'item')} in all; --limit prints more.", style="dim"))


@app.command()
def history(
    job: OneJobOption = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", parser=reads(parse_count), help="How many runs.")
    ] = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first, whoever drove them."""
    with session(dsn_from(dsn), "history", "crm_monitor", read_only=True) as connection:
        found = rows(connection, query("history"), {"job": job and job.value, "limit": limit})
    if as_json:
        print_json(found)
        return
    print_table(
        ["started", "job", "driver", "status", "reason", "took", "due", "expired", "failed", "locked", "run"],
        [
            (
                row["started_at"], row["job"], row["driver"], row["status"], row["reason"],
                timedelta(seconds=round(row["duration"].total_seconds(), 3)), row["due_before"],
                row["expired"], row["failed"], row["skipped_locked"], row["id"],
            )
            for row in found
        ],
        empty="There has been no run.",
    )  # fmt: skip
    for row in reversed(found):
        if row["error"] and row["status"] in ("failed", "abandoned"):
            code = f" {row['sqlstate']}" if row["sqlstate"] else ""
            console().print(Text(f"{moment(row['started_at'])} {row['status']}{code}: {row['error']}"))


@app.command()
def logs(
    follow_on: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is logged from now.")
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=reads(parse_since),
            help="A time, or how long ago: '2 h'.  Default: 1 h.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[
        LogLevel, typer.Option("--level", help="Least level; debug has one line an item.")
    ] = "info",
    job: OneJobOption = None,
    run_id: Annotated[
        UUID | None,
        typer.Option(
            "--run", metavar="ID", parser=reads(parse_id), help="Only this run.", show_default=False
        ),
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the log of all runs, of pg_cron's as well as of ours: JSON lines, readable on a terminal."""
    start = since or datetime.now(UTC) - timedelta(hours=1)
    log = make_log(level, human=sys.stdout.isatty() and not as_json, to_stdout=True)
    with session(dsn_from(dsn), "logs", "crm_monitor", read_only=True) as connection:
        events = (follow if follow_on else read)(connection, since=start, level=level, job=job, run_id=run_id)
        with _reader_may_leave():
            for event in events:
                emit(log, event, connection.info.dbname)


@app.command()
def serve(
    listen: Annotated[
        Address,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            parser=reads(parse_address),
            help="Where to listen; :PORT is all addresses of this machine.",
        ),
    ] = DEFAULT_ADDRESS,
    dsn: DsnsOption = None,
    log_level: LevelOption = None,
) -> None:
    """Serve the figures for Prometheus at /metrics, and a status page for people at /, until SIGTERM.

    /healthz says that the process lives, /readyz that the database can be read. Nothing can be changed by it,
    and whoever reaches it may read: put a proxy with a login before it where those are too many. A database
    that is away is read again as soon as it is back. Start as many as you like. Needs the extra `serve`, and
    the privileges of crm_monitor.
    """
    level = _log_level(log_level)
    dsns = _dsns_from(dsn)
    log = make_log(level, human=sys.stderr.isatty())
    _import("pyrunner.serve.server", "serve", "serve").serve(dsns, address=listen, log=log)


@app.command()
def traces(
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="The receiver of OTLP over HTTP. Default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, "
            "OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318.",
            show_default=False,
        ),
    ] = None,
    follow_on: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what ends from now, until SIGTERM.")
    ] = False,
    every: Annotated[
        timedelta,
        typer.Option(
            "--every", metavar="TIME", parser=reads(parse_positive_duration), help="With --follow: how often."
        ),
    ] = timedelta(seconds=5),
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="The destination; for each it is on record how far it has got."
        ),
    ] = "otlp",
    dsn: DsnOption = None,
    log_level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the runs that are over as traces to an OpenTelemetry receiver: each once, pg_cron's as well.

    A span a cycle, below it a span a batch, with an event an item; the outbox's traceparent names the batch.
    A new destination begins with the runs that end from then on. Start as many as you like. Needs the extra
    `trace`, and the privileges of crm_runner; headers and certificates come from OTEL_EXPORTER_OTLP_*.
    """
    if not name.strip():
        raise UsageError("--name may not be empty.")
    conninfo = dsn_from(dsn)
    level = _log_level(log_level)
    log = make_log(level, human=sys.stderr.isatty())
    do = _import("pyrunner.traces.command", "traces", "trace")
    if follow_on:
        stop = Stop()
        with _signals(stop):
            do.follow(conninfo, endpoint, name=name, every=every.total_seconds(), log=log, stop=stop)
        if stop.cancelled:
            raise typer.Exit(ExitCode.INTERRUPTED)
        return
    sent, receiver = do.send_once(conninfo, endpoint, name=name, log=log)
    if as_json:
        print_json({"receiver": receiver, "destination": name, **vars(sent)})
        return
    print_facts(
        Text(f"{count(sent.runs, 'run')} sent to {receiver}"),
        [
            ("spans", sent.spans),
            ("destination", name),
            ("new", "runs that end from now on will be sent" if sent.is_new else None),
        ],
    )


@app.command()
def doctor(
    dsn: DsnOption = None, cron_database: CronDatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Look for trouble: versions, privileges, columns, indexes, partitions, runs, pg_cron, sessions, slots.

    Each finding has its remedy, as a command to type. Works for every login; what it may not see is said.
    """
    from pyrunner.doctor import examine, exit_code_of

    findings = examine(dsn_from(dsn), cron_database=cron_database)
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        styles = {"ok": "green", "unseen": "blue", "warning": "yellow", "error": "bold red"}
        out = console()
        title = ""
        for finding in findings:
            if finding.check != title:
                title = finding.check
                out.print(Text(title, style="bold"))
            out.print(
                Text.assemble("  ", (f"{finding.severity:<8}", styles[finding.severity]), " ", finding.what),
                soft_wrap=True,
            )
            if finding.why:
                out.print(Text(f"           {finding.why}", style="dim"), soft_wrap=True)
            if finding.remedy:
                out.print(Text.assemble("           > ", (finding.remedy, "cyan")), soft_wrap=True)
        errors, warnings = (sum(f.severity == s for f in findings) for s in ("error", "warning"))
        out.print(Text(f"{count(errors, 'error')}, {count(warnings, 'warning')}.", style="bold"))
    raise typer.Exit(exit_code_of(findings))


# ------------------------------------------------------------------------------------------------- operating


def _operate(
    dsn: str | None, command: str, statement: composed.SQL | composed.Composed, parameters: Any
) -> list[Any]:
    with session(dsn_from(dsn), command, "crm_operator") as connection:
        found = rows(connection, statement, parameters)
        connection.commit()
    return found


@app.command()
def pause(
    job: JobArgument,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; others will see it.", show_default=False)
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a job, whoever drives it: a run at work ends after the batch in hand, no other starts."""
    (row,) = _operate(
        dsn, "pause", composed.SQL("select * from expiration.pause(%s, %s)"), (job.value, reason)
    )
    if as_json:
        print_json(row)
        return
    why = f": {row['paused_reason']}" if row["paused_reason"] else ""
    console().print(Text(f"{job} is paused by {row['paused_by']} since {moment(row['paused_at'])}{why}"))
    console().print(Text(f"resume it by: pyrunner resume {job}", style="dim"))


@app.command()
def resume(job: JobArgument, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """End a pause: the next tick of any driver runs the job again."""
    (row,) = _operate(dsn, "resume", composed.SQL("select * from expiration.resume(%s)"), (job.value,))
    print_json(row) if as_json else console().print(
        Text(f"{job} runs again, every {format_duration(row['period'])}")
    )


@app.command("stop")
def stop_runs(job: JobArgument, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Ask the runs of a job that are at work to end after the batch in hand; the next tick runs again."""
    found = _operate(dsn, "stop", composed.SQL("select * from expiration.stop(%s)"), (job.value,))
    if as_json:
        print_json(found)
        return
    print_table(
        ["run asked to stop", "driver", "instance", "started"],
        [(row["id"], row["driver"], row["instance"], row["started_at"]) for row in found],
        empty=f"No run of {job} is at work.",
    )


@failed_app.command("list")
def failed_list(
    job: OneJobArgument = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", parser=reads(parse_count), help="How many items.")
    ] = 50,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List failed items, longest waiting first: what each failed with, and what becomes of it."""
    with session(dsn_from(dsn), "failed", "crm_monitor", read_only=True) as connection:
        found = rows(connection, query("failed"), {"job": job and job.value, "limit": limit})
    if as_json:
        print_json(found)
        return
    print_table(
        ["phase", "item", "deadline", "attempts", "last failed", "state", "error"],
        [
            (
                row["phase"], row["item_id"], row["deadline"], row["attempts"], row["last_failed_at"],
                row["state"], f"{row['sqlstate']}: {row['message']}",
            )
            for row in found
        ],
        empty="No item has failed.",
    )  # fmt: skip


@failed_app.command("retry")
def failed_retry(
    job: JobArgument,
    item_id: Annotated[
        UUID | None,
        typer.Argument(metavar="[ITEM]", parser=reads(parse_id), help="One item.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All failed items of the job.")] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Free failed items for the next cycle. Not needed for rows that were mended: a change frees them."""
    if (item_id is None) != every:
        raise UsageError("Name one item, or all of them by --all.", hint=f"See: pyrunner failed list {job}")
    statement = composed.SQL("select * from expiration.retry_failed(%s, %s)")
    found = _operate(dsn, "failed", statement, (job.value, item_id))
    if as_json:
        print_json(found)
        return
    are = "is" if len(found) == 1 else "are"
    console().print(Text(f"{count(len(found), 'item')} of {job} {are} free for the next cycle"))


@config_app.command("show")
def config_show(
    job: OneJobArgument = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every setting in force here, its source, and its name in the documents."""
    environment = read_environment()
    with session(dsn_from(dsn), "config", "crm_monitor", read_only=True) as connection:
        stored = {row["name"]: row for row in rows(connection, "select * from expiration.job")}
    values = [
        value for one in ([job] if job else Job) for value in effective(environment, one, stored[one.value])
    ]
    if as_json:
        print_json(
            [
                {
                    "job": value.job.value,
                    "name": value.setting.name,
                    "column": value.setting.column,
                    "documentsName": value.setting.documents_name(value.job),
                    "value": value.value,
                    "source": value.source,
                    "stored": value.stored,
                }
                for value in values
            ]
        )
    else:
        print_table(
            ["job", "setting", "value", "source", "in the documents"],
            [
                (
                    value.job.value,
                    value.setting.name,
                    value.value,
                    value.source
                    + (f" (database: {shown(value.stored)})" if value.source != "database" else ""),
                    value.setting.documents_name(value.job) if value.setting.of_a_run else "",
                )
                for value in values
            ],
            empty="",
        )
    for variable in environment.unknown:
        say(f"{variable} is no setting of ours, and is not used.")


@config_app.command("set")
def config_set(
    job: JobArgument,
    name: Annotated[str, typer.Argument(help="The setting: BatchSize or batch_size.", show_default=False)],
    value: Annotated[
        str, typer.Argument(help="A number, or a time such as 01:00:00 or '90 s'.", show_default=False)
    ],
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a setting in the database, for every driver, from the next cycle on."""
    setting = setting_named(job, name)
    try:
        parsed = setting.parse(value)
    except ValueError as error:
        raise UsageError(f"{setting.name} is {value!r}, and must be {error}.") from None
    environment = read_environment()
    statement = composed.SQL("select * from expiration.set_job(job => %s, {} => %s)").format(
        composed.Identifier(setting.column)
    )
    (row,) = _operate(dsn, "config", statement, (job.value, parsed))
    if as_json:
        print_json(row)
    else:
        console().print(Text(f"{job}: {setting.name} is {shown(row[setting.column])}"))
    if over := environment.jobs[job].get(setting.column):
        say(f"{over.variable} goes before it in this environment, with {shown(over.value)}.")
    if setting.column == "period":
        say("Where pg_cron drives the job, schedule it anew: pyrunner cron install")


# --------------------------------------------------------------------------------------------------- pg_cron


@cron_app.command("install")
def cron_install(
    dsn: DsnOption = None, cron_database: CronDatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Schedule both jobs and upkeep by pg_cron, under this login; what is scheduled is kept or put right."""
    from pyrunner.cron import open_cron

    with open_cron(dsn_from(dsn), "cron", cron_database=cron_database) as cron:
        done = cron.install()
    _print_cron(done, ["jobname", "schedule", "command", "action"], as_json)


@cron_app.command("status")
def cron_status(
    dsn: DsnOption = None, cron_database: CronDatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Show our entries in pg_cron, with the last run of each as pg_cron saw it."""
    from pyrunner.cron import open_cron

    with open_cron(dsn_from(dsn), "cron", cron_database=cron_database, read_only=True) as cron:
        found = cron.jobs()
    columns = [
        "jobid",
        "jobname",
        "schedule",
        "command",
        "username",
        "active",
        "last_start",
        "last_status",
        "last_message",
    ]
    _print_cron(found, columns, as_json)


@cron_app.command("uninstall")
def cron_uninstall(
    dsn: DsnOption = None, cron_database: CronDatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Take our entries out of pg_cron; a run at work goes on to its end, unless `pyrunner stop` ends it."""
    from pyrunner.cron import open_cron

    with open_cron(dsn_from(dsn), "cron", cron_database=cron_database) as cron:
        done = cron.uninstall()
    _print_cron(done, ["jobname", "schedule", "command", "action"], as_json)


def _print_cron(found: list[dict[str, Any]], columns: list[str], as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_table(
            columns,
            [[row[column] for column in columns] for row in found],
            empty="pg_cron has no entry of ours.",
        )


# ------------------------------------------------------------------------------------------------------ demo


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def demo(context: typer.Context) -> None:
    """Start a PostgreSQL of its own, load a CRM, and watch its overdue leads and bookings expire."""
    do = importlib.import_module("pyrunner.demo").demo
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command()(do)
    one(args=context.args, prog_name="pyrunner demo")


for _group in (app, failed_app, config_app, cron_app):
    _reflow(_group)


# ----------------------------------------------------------------------------------------------------- entry


def main() -> None:
    """Runs the command line; whatever goes wrong becomes one sentence and an exit code."""
    # as Ctrl-C: what is being executed is cancelled in the server, and does not go on without us
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(prog_name="pyrunner")
    except PyrunnerError as error:
        _leave(error, error.exit_code)
    except psycopg.Error as error:
        known = from_database(error)
        _leave(known, known.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        if os.environ.get("PYRUNNER_TRACE"):
            raise
        _leave(PyrunnerError(f"A fault of pyrunner itself: {error!r}.", hint=_ISSUES), ExitCode.INTERNAL)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _leave(error: PyrunnerError, code: ExitCode) -> None:
    print_error(error)
    sys.exit(code)

"""The command lines of the consumers: what they share."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from consumers.consumer import OWNED, Stop
from pyrunner.errors import ExitCode, PyrunnerError, UsageError
from pyrunner.logs import Log, make_log
from pyrunner.options import kafka_file
from pyrunner.output import console
from pyrunner.settings import LogLevel, read_own

__all__ = [
    "BootstrapOption",
    "GroupOption",
    "KafkaConfigOption",
    "LevelOption",
    "OnceOption",
    "TopicOption",
    "kafka_settings",
    "log_at",
    "main",
    "stopping",
]

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        envvar="PYRUNNER_BOOTSTRAP_SERVERS",
        help="Brokers to begin with.",
        show_default=False,
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="Instances of one group share the partitions. Default: the consumer's name.",
        show_default=False,
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="In place of the contracts' topics.", show_default=False),
]
KafkaConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        envvar="PYRUNNER_KAFKA_CONFIG",
        help="Further settings of the Kafka client (librdkafka), a line each: name=value. "
        "Keep passwords there.",
        show_default=False,
    ),
]
OnceOption = Annotated[
    bool, typer.Option("--once", help="End when everything that is there has been consumed.")
]
LevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        help="Least level of log lines; debug has one for every event. "
        "Default: PYRUNNER_LOG_LEVEL, else info.",
        show_default=False,
    ),
]

_WAYS: Final = "Give --bootstrap-servers or PYRUNNER_BOOTSTRAP_SERVERS."


def kafka_settings(bootstrap_servers: str | None, file: Path | None) -> Mapping[str, Any]:
    """Settings for Kafka's client out of the options.

    Raises:
        UsageError: there are no brokers, or the file cannot be used.
    """
    settings: dict[str, Any] = {} if file is None else dict(kafka_file(file))
    for name in sorted({*OWNED, "group.id"} & settings.keys()):
        raise UsageError(
            f"{name} in {file} is not to be set.",
            hint="Its value is what keeps effects to one each; --group names the group.",
        )
    if bootstrap_servers:
        settings["bootstrap.servers"] = bootstrap_servers
    if not settings.get("bootstrap.servers"):
        raise UsageError("Nothing says where Kafka is.", hint=_WAYS)
    return settings


def log_at(level: LogLevel | None) -> Log:
    """The log: JSON lines on standard error, readable on a terminal."""
    return make_log(level or read_own().log_level, human=sys.stderr.isatty())


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """SIGTERM and SIGINT ask to stop; a second one ends the process at once, which loses nothing."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def take(_number: int, _frame: FrameType | None) -> None:
        stop.requested = True
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(name: str, command: Callable[..., None]) -> None:
    """Runs a command line; whatever goes wrong becomes one sentence and an exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(command)
    try:
        app(prog_name=f"python -m consumers.{name}")
    except PyrunnerError as error:
        _leave(name, error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        if os.environ.get("PYRUNNER_TRACE"):
            raise
        _leave(name, f"A fault of {name} itself: {error!r}.", None, ExitCode.INTERNAL)


def _leave(name: str, message: str, hint: str | None, code: ExitCode) -> None:
    err = console(stderr=True)
    err.print(Text.assemble((f"{name}: ", "bold red"), message), soft_wrap=True)
    if hint:
        err.print(Text(f"  {hint}", style="dim"), soft_wrap=True)
    sys.exit(code)

"""Settings: the documents' names, the environment's and the database's; where each value in force comes from.

Order: command line, then environment, then the row of the job in expiration.job.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from pyrunner.errors import UsageError
from pyrunner.times import DURATION, parse_duration

__all__ = [
    "SETTINGS",
    "Effective",
    "Environment",
    "Job",
    "LogLevel",
    "Overrides",
    "Own",
    "Setting",
    "Sourced",
    "effective",
    "overrides_from",
    "parse_count",
    "parse_period",
    "parse_positive_duration",
    "read_environment",
    "read_own",
    "setting_named",
]

LogLevel = Literal["debug", "info", "warning", "error"]
Value = int | timedelta
S = TypeVar("S", bound=BaseSettings)

_LARGEST: Final = 2**31 - 1


class Job(StrEnum):
    """The jobs, by their names in expiration.job."""

    LEAD = "lead-expiration"
    BOOKING = "booking-expiration"

    @property
    def section(self) -> str:
        """The documents' name below Crm:Jobs."""
        return {"lead-expiration": "LeadExpiration", "booking-expiration": "BookingExpiration"}[self.value]


def parse_count(text: str, *, least: int = 1) -> int:
    """Reads a whole number from `least` up.

    Raises:
        ValueError: it is none; the message says what is wanted.
    """
    wanted = f"a whole number {'greater than 0' if least == 1 else f'from {least} up'}"
    digits = text.strip().removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or int(digits[:11]) < least:
        raise ValueError(wanted)
    if int(digits[:11]) > _LARGEST:
        raise ValueError(f"{wanted} and below 2^31")
    return int(digits)


def parse_positive_duration(text: str) -> timedelta:
    """Reads a duration greater than 0.

    Raises:
        ValueError: it is none; the message says what is wanted.
    """
    if text.strip().startswith("-"):
        raise ValueError(f"greater than 0: {DURATION}")
    duration = parse_duration(text)
    if duration <= timedelta():
        raise ValueError(f"greater than 0: {DURATION}")
    return duration


def parse_period(text: str) -> timedelta:
    """Reads a period, which expiration.job bounds.

    Raises:
        ValueError: it is none; the message says what is wanted.
    """
    period = parse_positive_duration(text)
    if not timedelta(seconds=1) <= period <= timedelta(days=1):
        raise ValueError("from 1 second to 1 day")
    return period


@dataclass(frozen=True)
class Setting:
    """A setting of a job.

    Attributes:
        name: the documents' name, "BatchSize".
        column: the name in expiration.job and of the argument of expiration.set_job, "batch_size".
        parse: reads its value; raises ValueError that says what is wanted.
        of_a_run: the environment and the command line can set it for the runs that they start.
    """

    name: str
    column: str
    parse: Callable[[str], Value]
    of_a_run: bool = False

    def documents_name(self, job: Job) -> str:
        """The full name in the documents: "Crm:Jobs:LeadExpiration:BatchSize"."""
        if job is Job.BOOKING and self.name == "BatchSize":
            return "BookingExpirationOptions.BatchSize"
        return f"Crm:Jobs:{job.section}:{self.name}"


SETTINGS: Final = (
    Setting("Period", "period", parse_period, of_a_run=True),
    Setting("BatchSize", "batch_size", parse_count, of_a_run=True),
    Setting("MaxBatchesPerCycle", "max_batches_per_cycle", parse_count, of_a_run=True),
    Setting("MaxDuration", "max_duration", parse_positive_duration, of_a_run=True),
    Setting("RetryFailuresPerCycle", "retry_failures_per_cycle", partial(parse_count, least=0)),
    Setting("MaxTransientRetries", "max_transient_retries", partial(parse_count, least=0)),
    Setting("StaleAfter", "stale_after", parse_positive_duration),
    Setting("HistoryRetention", "history_retention", parse_positive_duration),
)


def setting_named(job: Job, name: str) -> Setting:
    """The setting of that name, in the documents' spelling, with or without its path, or the database's.

    Raises:
        UsageError: there is none.
    """
    wanted = name.replace("__", ":").replace(".", ":").lower()
    paths = [f"crm:jobs:{job.section}:".lower(), f"{job.section}options:".lower()]
    for path in paths:
        wanted = wanted.removeprefix(path)
    plain = wanted.replace("_", "").replace("-", "")
    for setting in SETTINGS:
        if plain == setting.name.lower():
            return setting
    raise UsageError(
        f"{job} has no setting {name}.",
        hint=f"The settings are {', '.join(setting.name for setting in SETTINGS)}.",
    )


# ---------------------------------------------------------------------------------------------- environment


def _wanted(parse: Callable[[str], Value]) -> BeforeValidator:
    def validate(value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    return BeforeValidator(validate)


_Count = Annotated[int, _wanted(parse_count)]
_Duration = Annotated[timedelta, _wanted(parse_positive_duration)]
_Period = Annotated[timedelta, _wanted(parse_period)]


class _JobVariables(BaseModel):
    model_config = ConfigDict(extra="ignore")

    period: _Period | None = None
    batchsize: _Count | None = None
    maxbatchespercycle: _Count | None = None
    maxduration: _Duration | None = None


class _Jobs(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CRM__JOBS__", env_nested_delimiter="__", env_ignore_empty=True, extra="ignore"
    )

    leadexpiration: _JobVariables = _JobVariables()
    bookingexpiration: _JobVariables = _JobVariables()


class _BookingOptions(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="BOOKINGEXPIRATIONOPTIONS__", env_ignore_empty=True, extra="ignore"
    )

    batchsize: _Count | None = None


class Own(BaseSettings):
    """The program's own variables: PYRUNNER_DSN, PYRUNNER_INSTANCE, PYRUNNER_LOG_LEVEL."""

    model_config = SettingsConfigDict(env_prefix="PYRUNNER_", env_ignore_empty=True, extra="ignore")

    dsn: SecretStr | None = None
    instance: str | None = None
    log_level: LogLevel = "info"


@dataclass(frozen=True)
class Sourced:
    """A value and the environment variable that gave it."""

    value: Value
    variable: str


@dataclass(frozen=True)
class Environment:
    """What the environment sets.

    Attributes:
        jobs: by job and column of expiration.job.
        unknown: variables under the documents' names that are no settings of ours.
    """

    jobs: Mapping[Job, Mapping[str, Sourced]]
    unknown: Sequence[str]


def read_own() -> Own:
    """Reads the program's own environment variables.

    Raises:
        UsageError: a value cannot be used.
    """
    return _read(Own, _spelled())


def _spelled() -> dict[str, str]:
    return {name.upper(): name for name in os.environ}


def read_environment() -> Environment:
    """Reads the jobs' environment variables; names do not depend on case, empty ones count as not set.

    Raises:
        UsageError: a value cannot be used; names the variable, the value and what is wanted.
    """
    spelled = _spelled()
    jobs = _read(_Jobs, spelled)
    options = _read(_BookingOptions, spelled)
    found: dict[Job, dict[str, Sourced]] = {}
    known = set()
    for job in Job:
        variables: _JobVariables = getattr(jobs, job.section.lower())
        found[job] = {}
        for setting in SETTINGS:
            if setting.of_a_run:
                name = f"CRM__JOBS__{job.section}__{setting.name}".upper()
                known.add(name)
                if (value := getattr(variables, setting.name.lower())) is not None:
                    found[job][setting.column] = Sourced(value, spelled.get(name, name))
    alias = "BOOKINGEXPIRATIONOPTIONS__BATCHSIZE"
    if options.batchsize is not None:
        one = Sourced(options.batchsize, spelled.get(alias, alias))
        other = found[Job.BOOKING].setdefault("batch_size", one)
        if other.value != one.value:
            raise UsageError(
                f"{one.variable} is {one.value}, and {other.variable} is {other.value}.",
                hint="They name the same setting: set one of them.",
            )
    paths = ("BOOKINGEXPIRATIONOPTIONS__", *(f"CRM__JOBS__{job.section}__".upper() for job in Job))
    unknown = [
        spelled[name] for name in sorted(spelled) if name.startswith(paths) and name not in {*known, alias}
    ]
    return Environment(found, unknown)


def _read(model: type[S], spelled: Mapping[str, str]) -> S:
    prefix = str(model.model_config.get("env_prefix"))
    try:
        return model()
    except ValidationError as error:
        first = error.errors()[0]
        name = prefix + "__".join(str(part) for part in first["loc"]).upper()
        cause = first.get("ctx", {}).get("error")
        wanted = str(cause) if cause is not None else first["msg"].removeprefix("Input should be ")
        raise UsageError(f"{spelled.get(name, name)} is {first['input']!r}, and must be {wanted}.") from None
    except SettingsError:
        wrong = [
            name for name in spelled if name.startswith(prefix) and "__" not in name.removeprefix(prefix)
        ]
        raise UsageError(
            f"{', '.join(wrong)} cannot be used as a setting.",
            hint=f"Set {prefix}LEADEXPIRATION__BATCHSIZE and the like, one variable a setting.",
        ) from None


# ------------------------------------------------------------------------------------------ values in force


@dataclass(frozen=True)
class Overrides:
    """What a run takes in place of the settings in expiration.job; None leaves the database's value."""

    period: timedelta | None = None
    batch_size: int | None = None
    max_batches_per_cycle: int | None = None
    max_duration: timedelta | None = None


def overrides_from(environment: Environment, job: Job, given: Overrides | None = None) -> Overrides:
    """The environment's settings for a job, those given on the command line before them."""
    given = given or Overrides()
    values = {column: sourced.value for column, sourced in environment.jobs[job].items()}
    for field in fields(Overrides):
        if (value := getattr(given, field.name)) is not None:
            values[field.name] = value
    return Overrides(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Effective:
    """A value in force.

    Attributes:
        source: "database", or the environment variable.
        stored: the database's value, in force or not.
    """

    job: Job
    setting: Setting
    value: Value
    source: str
    stored: Value


def effective(environment: Environment, job: Job, stored: Mapping[str, Any]) -> list[Effective]:
    """Every setting of a job as a worker started in this environment uses it.

    Args:
        environment: as read.
        job: the job.
        stored: its row of expiration.job.
    """
    result = []
    for setting in SETTINGS:
        sourced = environment.jobs[job].get(setting.column)
        value = stored[setting.column]
        result.append(
            Effective(
                job,
                setting,
                value if sourced is None else sourced.value,
                "database" if sourced is None else sourced.variable,
                value,
            )
        )
    return result

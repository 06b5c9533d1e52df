"""The commands `pyrunner cdc ...`: they read their arguments and print."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

import psycopg
import typer
from rich.text import Text

from pyrunner.cdc.connector import describe, wait_until_running
from pyrunner.cdc.errors import ObstaclesError
from pyrunner.cdc.install import RUNNING_PATIENCE, Step, require_ours
from pyrunner.cdc.install import install as do_install
from pyrunner.cdc.recover import Recovery
from pyrunner.cdc.recover import recover as do_recover
from pyrunner.cdc.rest import Connect
from pyrunner.cdc.secret import PasswordFile
from pyrunner.cdc.setup import Setup
from pyrunner.cdc.source import open_source
from pyrunner.cdc.status import Status, examine
from pyrunner.cdc.uninstall import undelivered
from pyrunner.cdc.uninstall import uninstall as do_uninstall
from pyrunner.cdc.verify import Verdict, findings_of
from pyrunner.cdc.verify import verify as do_verify
from pyrunner.database import connect as connect_to_database
from pyrunner.database import query, rows, session, target_of
from pyrunner.doctor import Finding, exit_code_of
from pyrunner.errors import ExitCode, PyrunnerError, RefusedError, UsageError
from pyrunner.options import (
    DsnOption,
    JsonOption,
    dsn_from,
    kafka_file,
    parse_id,
    parse_since,
    progress,
    reads,
)
from pyrunner.output import ago, console, count, print_error, print_facts, print_json, print_table, say, span
from pyrunner.settings import parse_count, parse_positive_duration
from pyrunner.times import parse_instant

T = TypeVar("T")

cdc_app = typer.Typer(
    no_args_is_help=True,
    help="From the outbox to Kafka: sets up Debezium, looks after it, mends it, sends events again.",
)

# --------------------------------------------------------------------------------------------- arguments


def _option(*names: str, help: str, metavar: str = "NAME", **more: Any) -> Any:  # noqa: A002 - typer's word
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **more)


ConnectOption = Annotated[
    str | None,
    _option(
        "--connect",
        metavar="URL",
        envvar="PYRUNNER_CONNECT_URL",
        help="Kafka Connect, such as http://host:8083.",
    ),
]
BootstrapOption = Annotated[
    str | None,
    _option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        envvar="PYRUNNER_BOOTSTRAP_SERVERS",
        help="Kafka, as clients write it.",
    ),
]
KafkaConfigOption = Annotated[
    Path | None,
    _option(
        "--kafka-config",
        metavar="FILE",
        envvar="PYRUNNER_KAFKA_CONFIG",
        help="Lines key=value with more of librdkafka's settings, where Kafka wants TLS or a login.",
    ),
]
NameOption = Annotated[str, _option("--name", help="The connector. Default: crm-outbox.")]
SlotOption = Annotated[str | None, _option("--slot", help="The replication slot. Default: crm_outbox.")]
PublicationOption = Annotated[
    str | None, _option("--publication", help="The publication. Default: crm_outbox.")
]
RoleOption = Annotated[
    str | None, _option("--role", help="What the connector logs in as. Default: debezium.")
]
PrefixOption = Annotated[
    str | None,
    _option("--topic-prefix", help="Debezium's name for this database; no other connector's. Default: crm."),
]
NamespaceOption = Annotated[
    str | None,
    _option("--namespace", metavar="TEXT", help="Put before the topics' names, where several share a Kafka."),
]
PartitionsOption = Annotated[
    int | None,
    _option("--partitions", metavar="N", parser=reads(parse_count), help="Of an event topic. Default: 6."),
]
ReplicationOption = Annotated[
    int | None,
    _option(
        "--replication-factor",
        metavar="N",
        parser=reads(parse_count),
        help="Of all topics; 3 in production. Default: 1.",
    ),
]
RetentionOption = Annotated[
    timedelta | None,
    _option(
        "--retention",
        metavar="TIME",
        parser=reads(parse_positive_duration),
        help="How long Kafka keeps an event. Default: 7 d.",
    ),
]
HostOption = Annotated[
    str | None,
    _option("--database-host", metavar="HOST", help="PostgreSQL as Connect sees it. Default: the DSN's."),
]
PortOption = Annotated[
    int | None,
    _option("--database-port", metavar="PORT", parser=reads(parse_count), help="The same of its port."),
]
PasswordOption = Annotated[
    Path | None,
    _option(
        "--password-file",
        metavar="FILE",
        envvar="PYRUNNER_CDC_PASSWORD_FILE",
        help="With the line password=..., from which Connect reads the role's password; made with a new one "
        "where neither file nor role is there.",
    ),
]
SeenOption = Annotated[
    str | None,
    _option(
        "--connect-password-file",
        metavar="FILE",
        help="That file's path as Connect sees it. Default: the same.",
    ),
]
SetPasswordOption = Annotated[
    bool, typer.Option("--set-password", help="Give an existing role the file's password, or a new one.")
]
WaitOption = Annotated[
    timedelta,
    typer.Option(
        "--wait",
        metavar="TIME",
        parser=reads(parse_positive_duration),
        help="How long the slot may lag behind what is compared.",
    ),
]
SinceOption = Annotated[
    datetime | None,
    _option(
        "--since",
        metavar="TIME",
        parser=reads(parse_since),
        help="Only events appended from then on: a time, or how long ago.",
    ),
]
ReasonOption = Annotated[str | None, _option("--reason", metavar="TEXT", help="Why; it stays on record.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
PatienceOption = Annotated[
    timedelta,
    typer.Option(
        "--patience",
        metavar="TIME",
        parser=reads(parse_positive_duration),
        help="How long the slot may wait for open transactions of others.",
    ),
]


def _given(
    *,
    dsn: DsnOption = None,
    connect: ConnectOption = None,
    bootstrap_servers: BootstrapOption = None,
    name: NameOption = "crm-outbox",
    slot: SlotOption = None,
    publication: PublicationOption = None,
    role: RoleOption = None,
    topic_prefix: PrefixOption = None,
    namespace: NamespaceOption = None,
    partitions: PartitionsOption = None,
    replication_factor: ReplicationOption = None,
    retention: RetentionOption = None,
    database_host: HostOption = None,
    database_port: PortOption = None,
    kafka_config: KafkaConfigOption = None,
) -> Setup:
    """The set-up that is meant: as given, else as the connector says, else the registry, else by default."""
    where = _where(connect=connect, bootstrap_servers=bootstrap_servers)
    conninfo = dsn_from(dsn)
    given: dict[str, Any] = {
        key: value
        for key, value in {
            "slot": slot, "publication": publication, "role": role, "topic_prefix": topic_prefix,
            "namespace": namespace, "partitions": partitions, "replication_factor": replication_factor,
            "retention": retention, "database_host": database_host, "database_port": database_port,
        }.items()
        if value is not None
    }  # fmt: skip
    settings = {} if kafka_config is None else kafka_file(kafka_config)
    # refuses what was given before anything is asked
    Setup(dsn=conninfo, connector=name, kafka_settings=settings, **where, **given)
    known = _registered(conninfo, name) | _configured(where["connect_url"], name)
    return Setup(dsn=conninfo, connector=name, kafka_settings=settings, **where, **{**known, **given})


def _where(*, connect: str | None, bootstrap_servers: str | None) -> dict[str, Any]:
    missing = [
        f"{option} or {variable}"
        for value, option, variable in (
            (connect, "--connect", "PYRUNNER_CONNECT_URL"),
            (bootstrap_servers, "--bootstrap-servers", "PYRUNNER_BOOTSTRAP_SERVERS"),
        )
        if not value
    ]
    if missing:
        who = "Connect and Kafka are" if len(missing) == 2 else "Kafka is" if connect else "Connect is"
        raise UsageError(f"It is not said where {who}.", hint=f"Give {' and '.join(missing)}.")
    return {"connect_url": str(connect), "bootstrap_servers": str(bootstrap_servers)}


def _configured(url: str, name: str) -> dict[str, Any]:
    """What the connector itself says; nothing where it cannot be asked: that will be said later."""
    with contextlib.suppress(PyrunnerError), Connect(url, patience=10) as connect:
        return Setup.told_by(connect.configuration(name) or {})
    return {}


def _registered(dsn: str, name: str) -> dict[str, Any]:
    """What the outbox says of the connector's slot; nothing where it cannot be asked."""
    with (
        contextlib.suppress(PyrunnerError, psycopg.Error),
        contextlib.closing(connect_to_database(dsn, name="pyrunner cdc", read_only=True)) as connection,
    ):
        statement = "select s.name as slot, s.publication from outbox.slot as s where s.connector = %s"
        found = rows(connection, statement, (name,))
        # several: whichever is meant must be said
        return dict(found[0]) if len(found) == 1 else {}
    return {}


def _with_setup(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `_given`, and passes the set-up as its first argument."""
    shared = inspect.signature(_given).parameters
    _, *own = inspect.signature(command).parameters.values()

    @functools.wraps(command)
    def call(**arguments: Any) -> None:
        setup = _given(**{name: arguments.pop(name) for name in shared})
        with _explained():
            command(setup, **arguments)

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
            *shared.values(),
        ]
    )
    call.__annotations__ = {one.name: one.annotation for one in (*own, *shared.values())}
    return call


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Of several obstacles each is a sentence of its own."""
    try:
        yield
    except ObstaclesError as error:
        for obstacle in error.obstacles:
            print_error(obstacle)
        raise typer.Exit(error.obstacles[0].exit_code) from None


def _password_file_of(given: Path | None, seen_as: str | None, setup: Setup) -> PasswordFile:
    if given is not None:
        return PasswordFile(given, seen_as)
    # the one that the connector has
    with contextlib.suppress(PyrunnerError), Connect(setup.connect_url, patience=10) as connect:
        says = (connect.configuration(setup.connector) or {}).get("database.password", "")
        if says.startswith("${file:") and says.endswith(":password}"):
            path = says.removeprefix("${file:").removesuffix(":password}")
            return PasswordFile(Path(path), seen_as or path)
    raise UsageError(
        "It is not said which file holds the password of the connector's role.",
        hint="Give --password-file: a path that Connect can read; it is made where it is not there.",
    )


# ---------------------------------------------------------------------------------------------- commands


@cdc_app.command()
@_with_setup
def install(
    setup: Setup,
    password_file: PasswordOption = None,
    connect_password_file: SeenOption = None,
    set_password: SetPasswordOption = False,
    patience: PatienceOption = timedelta(minutes=2),
    as_json: JsonOption = False,
) -> None:
    """Make publication, role, slot, topics and connector, and wait until events flow.

    Everything is looked at first; where something stands in the way, nothing is changed, and a step that
    fails takes back what was made before it. Safe to repeat: what is right is kept, what differs put right.
    """
    file = _password_file_of(password_file, connect_password_file, setup)
    with progress("Looking.") as tell:
        steps = do_install(
            setup, file, set_password=set_password, patience=patience.total_seconds(), tell=tell
        )
    _print_steps(steps, as_json)
    if not as_json:
        console().print(Text("next: pyrunner cdc status", style="dim"))


def _print_steps(steps: list[Step], as_json: bool) -> None:
    if as_json:
        print_json([vars(step) for step in steps])
        return
    print_table(
        ["what", "name", "", ""],
        [(step.what, step.name, step.action, step.note) for step in steps],
        empty="Nothing to do.",
    )


@cdc_app.command()
@_with_setup
def status(
    setup: Setup,
    max_age: Annotated[
        timedelta,
        typer.Option(
            "--max-age",
            metavar="TIME",
            parser=reads(parse_positive_duration),
            help="An event that waits longer for its delivery is an error.",
        ),
    ] = timedelta(minutes=1),
    as_json: JsonOption = False,
) -> None:
    """Show how the way to Kafka is, end to end; each trouble has its remedy.

    Exit code 0: events flow. 9: they do not, or will soon not. 10: something else is not as it should be.
    """
    found = examine(setup, max_age=max_age)
    if as_json:
        print_json(_status_json(setup, found))
    else:
        _print_status(setup, found)
    raise typer.Exit(exit_code_of(found.findings))


def _status_json(setup: Setup, found: Status) -> dict[str, Any]:
    state = found.connector
    return {
        "at": found.at,
        "healthy": exit_code_of(found.findings) is ExitCode.DONE,
        "connector": {
            "name": setup.connector,
            "state": state and state.state,
            "tasks": [{"id": task.id, "state": task.state} for task in state.tasks] if state else [],
        },
        "slot": {
            "name": setup.slot,
            **{key: value for key, value in (found.slot or {}).items() if key != "name"},
        },
        "publication": {"name": setup.publication, "right": found.publication},
        "lastEventAt": found.last_event_at,
        "lastHeartbeatAt": found.last_heartbeat_at,
        "parked": found.parked,
        "findings": [vars(finding) for finding in found.findings],
    }


def _print_status(setup: Setup, found: Status) -> None:
    now = datetime.now(UTC)
    slot = found.slot
    backlog = None
    if slot is not None and slot["backlog_events"] is not None:
        backlog = f"{count(slot['backlog_events'], 'event')}, {slot['lag_bytes']:,} bytes"
        if slot["backlog_seconds"] is not None:
            backlog += f", the oldest for {span(timedelta(seconds=slot['backlog_seconds']))}"
    is_well = exit_code_of(found.findings) is ExitCode.DONE
    print_facts(
        Text.assemble(
            (setup.connector, "bold"), "  ", ("healthy", "green") if is_well else ("not well", "red")
        ),
        [
            ("connector", describe(found.connector) if found.connector else None),
            ("slot", f"{setup.slot}: {slot['state']}" if slot else None),
            ("not delivered", backlog),
            (
                "log held back",
                f"{slot['retained_bytes']:,} bytes" if slot and slot["retained_bytes"] is not None else None,
            ),
            ("last event", ago(found.last_event_at, now)),
            ("last heartbeat", ago(found.last_heartbeat_at, now)),
        ],
    )
    print_findings([finding for finding in found.findings if finding.severity != "ok"])


def print_findings(findings: list[Finding]) -> None:
    """What is wrong, each with why it matters and what to type."""
    styles = {"ok": "green", "unseen": "blue", "warning": "yellow", "error": "bold red"}
    out = console()
    for finding in findings:
        out.print(
            Text.assemble((f"{finding.severity:<8}", styles[finding.severity]), " ", finding.what),
            soft_wrap=True,
        )
        if finding.why:
            out.print(Text(f"         {finding.why}", style="dim"), soft_wrap=True)
        if finding.remedy:
            out.print(Text.assemble("         > ", (finding.remedy, "cyan")), soft_wrap=True)


@cdc_app.command()
@_with_setup
def restart(setup: Setup, as_json: JsonOption = False) -> None:
    """Start a failed connector and its tasks again, let a paused or stopped one go on; wait until it runs."""
    name = setup.connector
    with Connect(setup.connect_url) as connect, open_source(setup, "restart") as source:
        require_ours(source, connect)
        state = connect.state(name)
        if state is None:
            raise RefusedError(f"Connect does not know connector {name}.", hint="pyrunner cdc install")
        if state.state in ("PAUSED", "STOPPED"):
            connect.resume(name)
            done = "resumed"
        elif state.failure is not None:
            connect.restart(name)
            done = "restarted"
        else:
            done = "kept"
        with progress("Looking.") as tell:
            tell(f"Connector {name} starts.")
            wait_until_running(connect, source, patience=RUNNING_PATIENCE)
    if as_json:
        print_json({"connector": name, "action": done})
    else:
        console().print(Text(f"{name} {'runs already' if done == 'kept' else f'was {done} and runs'}"))


@cdc_app.command()
@_with_setup
def verify(
    setup: Setup,
    since: SinceOption = None,
    wait: WaitOption = timedelta(minutes=1),
    as_json: JsonOption = False,
) -> None:
    """Compare outbox and Kafka, id by id: is every event there, and once?

    Events that runs appended by their own books, and that neither has, are found as well. Exit code 0: all is
    there, once. 9: it is not, or the slot lags behind so that nothing can be said yet.
    """
    with progress("Looking.") as tell:
        verdict = do_verify(setup, since=since, wait=wait.total_seconds(), tell=tell)
    findings = findings_of(verdict)
    if as_json:
        print_json({**_verdict_json(verdict), "findings": [vars(finding) for finding in findings]})
    else:
        _print_verdict(verdict)
        print_findings(findings)
    raise typer.Exit(exit_code_of(findings))


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "appended": verdict.appended,
        "arrived": verdict.arrived,
        "missing": verdict.missing,
        "decided": verdict.is_decided,
        "doubled": verdict.doubled,
        "lost": verdict.lost,
        "unjudged": verdict.unjudged,
        "doubtful": verdict.doubtful,
        "strangers": verdict.strangers,
        "unreadable": verdict.unreadable,
        "missingExamples": verdict.missing_examples,
        "doubledExamples": verdict.doubled_examples,
        "lostOf": verdict.lost_of,
    }


def _print_verdict(verdict: Verdict) -> None:
    whole = f"{verdict.arrived:,} of {count(verdict.appended, 'event')} of the outbox in Kafka"
    print_facts(
        Text(whole, style="bold"),
        [
            ("missing", verdict.missing),
            ("more than once", verdict.doubled),
            ("lost", verdict.lost or None),
            ("older than Kafka's memory", verdict.unjudged or None),
            ("in Kafka alone", verdict.strangers or None),
        ],
    )
    _print_events(verdict.missing_examples, verdict.missing)


def _print_events(events: list[Any], total: int) -> None:
    if not events:
        return
    print_table(
        ["seq", "event", "topic", "appended"],
        [(str(row["seq"]), row["id"], row["topic"], row["created_at"]) for row in events],
        empty="",
    )
    if total > len(events):
        console().print(Text(f"and {total - len(events):,} more", style="dim"))


@cdc_app.command()
@_with_setup
def recover(
    setup: Setup,
    new_slot: Annotated[
        bool,
        typer.Option(
            "--new-slot",
            help="Make the slot anew even where it can be used: it cannot get past an event, or its "
            "publication was away.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    reason: ReasonOption = None,
    password_file: PasswordOption = None,
    connect_password_file: SeenOption = None,
    set_password: SetPasswordOption = False,
    patience: PatienceOption = timedelta(minutes=2),
    wait: WaitOption = timedelta(minutes=1),
    as_json: JsonOption = False,
) -> None:
    """Send what was not delivered: compare outbox and Kafka, and publish exactly what is missing once more.

    A slot that is gone, lost or ahead of its connector is made anew first, and the connector goes on from it.
    Retention goes on when nothing is missing any more; exit code 9 where something is lost or in doubt.
    Consumers know repeats by the event id; in Kafka they have the header `replayed`.
    """
    with progress("Looking.") as tell:
        done = do_recover(
            setup,
            lambda: _password_file_of(password_file, connect_password_file, setup),
            set_password=set_password,
            new_slot=new_slot,
            dry_run=dry_run,
            reason=reason or "pyrunner cdc recover",
            patience=patience.total_seconds(),
            wait=wait.total_seconds(),
            tell=tell,
        )
    _print_recovery(done, dry_run=dry_run, as_json=as_json)


def _print_recovery(done: Recovery, *, dry_run: bool, as_json: bool) -> None:
    last = done.after or done.before
    assert last is not None
    is_whole = last.is_settled and not last.lost
    if as_json:
        print_json(
            {
                "slotMadeAnew": None if dry_run else bool(done.why_anew),
                "why": done.why_anew,
                "steps": [vars(step) for step in done.steps],
                "missingBefore": _verdict_json(done.before) if done.before else None,
                "replays": done.replays,
                "missingAfter": _verdict_json(done.after) if done.after else None,
                "complete": is_whole,
            }
        )
    else:
        if done.why_anew:
            verb = "would be" if dry_run else "was"
            console().print(Text(f"The slot {verb} made anew: {done.why_anew}."))
        if done.steps:
            _print_steps(done.steps, as_json=False)
        _print_verdict(last)
        if done.before and (dry_run or done.replays):
            verb = "would be" if dry_run else "were"
            console().print(Text(f"{count(done.before.missing, 'event')} {verb} sent once more."))
        if not dry_run:
            print_findings(findings_of(last))
    if not is_whole and not dry_run:
        raise typer.Exit(ExitCode.TROUBLE)


@cdc_app.command()
def replay(
    event: Annotated[
        list[UUID] | None,
        typer.Option(
            "--event",
            metavar="ID",
            parser=reads(parse_id),
            help="This event; several are possible.",
            show_default=False,
        ),
    ] = None,
    aggregate: Annotated[
        UUID | None,
        typer.Option(
            "--aggregate",
            metavar="ID",
            parser=reads(parse_id),
            help="Events of this lead or booking.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="Events of this topic.", show_default=False)
    ] = None,
    since: SinceOption = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            "--until",
            metavar="TIME",
            parser=reads(parse_instant),
            help="Appended before then.",
            show_default=False,
        ),
    ] = None,
    reason: ReasonOption = None,
    most: Annotated[
        int,
        typer.Option(
            "--max",
            metavar="N",
            parser=reads(parse_count),
            help="More than so many are refused, all of them.",
        ),
    ] = 1000,
    dry_run: DryRunOption = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish events once more, with the same ids and the header `replayed`; everything given must hold.

    Consumers that keep event ids do nothing with those that they have had. On record in outbox.replay_log.
    """
    criteria = {
        "event_ids": event or None,
        "aggregate_id": aggregate,
        "topic": topic,
        "since": since,
        "until": until,
    }
    if all(value is None for value in criteria.values()):
        raise UsageError(
            "It is not said which events.", hint="Give --event, --aggregate, --topic, --since or --until."
        )
    if not dry_run and not reason:
        raise UsageError(
            "It is not said why.", hint="Give --reason: it stays on record. Or look first, by --dry-run."
        )
    with session(dsn_from(dsn), "cdc replay", "crm_operator") as connection:
        if dry_run:
            found = rows(connection, query("cdc/preview_replay"), {**criteria, "limit": most + 1})
            _print_preview(found, most, as_json)
            return
        (done,) = rows(connection, query("cdc/replay"), {**criteria, "reason": reason, "max_events": most})
        connection.commit()
    if as_json:
        print_json(done)
    else:
        console().print(Text(f"{count(done['events'], 'event')} published once more, as replay {done['id']}"))


def _print_preview(found: list[Any], most: int, as_json: bool) -> None:
    shown = found[:most]
    if as_json:
        print_json({"events": shown, "tooMany": len(found) > most})
        return
    print_table(
        ["seq", "event", "type", "aggregate", "topic", "appended"],
        [
            (
                str(row["seq"]),
                row["id"],
                row["event_type"],
                row["aggregate_id"],
                row["topic"],
                row["created_at"],
            )
            for row in shown
        ],
        empty="No event of the outbox matches.",
    )
    if len(found) > most:
        say(f"There are more than {most:,}: without --dry-run they would be refused, unless --max is raised.")


@cdc_app.command()
@_with_setup
def uninstall(
    setup: Setup,
    drop_role: Annotated[bool, typer.Option("--drop-role", help="Drop the connector's role, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove connector, offsets, slot and publication; the topics stay with their events, as does the outbox.

    What is not delivered by then stays in the outbox: after another install, `pyrunner cdc recover` sends it.
    """
    if not yes:
        waiting = undelivered(setup)
        what = f"connector {setup.connector}, slot {setup.slot} and publication {setup.publication}"
        more = f"; {count(waiting, 'event')} would not be delivered" if waiting else ""
        if not sys.stdin.isatty():
            raise RefusedError(
                f"This would take {what} out of {target_of(setup.dsn)}{more}, and nobody can be asked.",
                hint="Give --yes.",
            )
        if not typer.confirm(f"Take {what} out of {target_of(setup.dsn)}{more}?", err=True):
            raise RefusedError("Nothing was changed.")
    with progress("Looking.") as tell:
        steps = do_uninstall(setup, drop_role=drop_role, tell=tell)
    _print_steps(steps, as_json)

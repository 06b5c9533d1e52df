"""The demo's story, told while it happens: a CRM, people at work in it, two jobs, poison, events, checks."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from pyrunner.cycle import Run, Stop, instance_of_run, run_cycle
from pyrunner.database import Connection, connect, query, rows
from pyrunner.demo.data import POISON_VERSION, Crm
from pyrunner.demo.place import DATABASE, Place
from pyrunner.demo.screen import Screen
from pyrunner.errors import BusyError
from pyrunner.migrations import migrate
from pyrunner.output import count, moment
from pyrunner.settings import Job, Overrides

__all__ = ["Size", "Story"]

_AGENT_KEEPS: Final = 15
_AGENT_RELEASES: Final = 5
_MANAGER_CONFIRMS: Final = 5
_MANAGER_EXTENDS: Final = 5
_BOOKING_CYCLES: Final = 3
# in the documents' order
_RESULTS: Final = (
    "ExpiredCount", "BatchesProcessed", "Elapsed", "CappedByMaxBatches",
    "ReserveExpiredCount", "BookingExpiredCount", "SkippedLockedCount", "DurationMs",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How large a CRM to make up, and from which seed."""

    leads: int
    bookings: int
    seed: int


class Story:
    """One telling of the story, on the screen and in `result`.

    Args:
        place: where the server is.
        size: of the CRM.
        screen: for a person.

    Attributes:
        result: what happened, for a program.
    """

    def __init__(self, place: Place, size: Size, screen: Screen) -> None:
        self._place = place
        self._size = size
        self._screen = screen
        self._parts = 0
        self.result: dict[str, Any] = {"cycles": []}

    @property
    def holds(self) -> bool:
        """Whether everything held that must hold."""
        return not any(check["violations"] for check in self.result["checks"])

    def tell(self) -> None:
        """All of it.

        Raises:
            PyrunnerError: what went wrong, in words.
        """
        began = time.monotonic()
        self._screen.title("Overdue leads and bookings expire inside PostgreSQL: a demonstration")
        self._start_server()
        self._make_database()
        with self._connected(autocommit=True) as self._watcher, self._connected("crm_runner") as self._runner:
            self._load()
            before = self._figures()
            with self._people(before) as people:
                self._expire_leads(people, _overdue(before, "leads"))
                self._expire_bookings(people)
            self._mend()
            self._show_figures(before, self._figures())
            self._show_outbox()
            self._check()
        self._place.write_environment()
        self.result["seconds"] = round(time.monotonic() - began, 1)
        self._say_what_next()

    def _part(self, title: str) -> None:
        self._parts += 1
        self._screen.heading(f"{self._parts}. {title}")

    @contextlib.contextmanager
    def _connected(self, role: str | None = None, *, autocommit: bool = False) -> Iterator[Connection]:
        dsn = self._place.server.dsn(DATABASE)
        if role is not None:
            dsn = make_conninfo(dsn, options=f"-c role={role}")
        with contextlib.closing(connect(dsn, name="pyrunner demo", autocommit=autocommit)) as connection:
            yield connection

    # ------------------------------------------------------------ a server, a database

    def _start_server(self) -> None:
        server = self._place.server
        self._part("A PostgreSQL of its own")
        is_running = server.is_running()
        with self._screen.working("Starting PostgreSQL ..."):
            server.start()
        self._screen.say(
            f"PostgreSQL {server.binaries.version} {'is running already' if is_running else 'was started'}: "
            f"{server.host}:{server.port}{'' if server.notice else f', files in {self._place.folder}'}."
        )
        if server.notice:
            self._screen.say(server.notice)
        self.result["server"] = {
            "version": server.binaries.version,
            "host": server.host,
            "port": server.port,
            "user": server.environment()["PGUSER"],
            "database": DATABASE,
            "passfile": str(server.passfile),
            "environmentFile": str(self._place.environment_file),
        }

    def _make_database(self) -> None:
        dsn = self._place.server.dsn(DATABASE)
        began = time.monotonic()
        with self._screen.working("Making the database ...") as say:
            ended = self._replace_database()
            done = migrate(dsn, on_progress=say)
            with contextlib.closing(connect(dsn, name="pyrunner demo", autocommit=True)) as connection:
                connection.execute("call expiration.run_upkeep()")
        routines = sum(not name.startswith("trigger ") for name in done.loaded)
        self._screen.say(
            f"Database {DATABASE} was made afresh in {time.monotonic() - began:.1f} s: "
            f"{count(len(done.applied), 'migration')}, {routines} functions and views."
        )
        if ended:
            self._screen.say(
                f"{count(ended, 'connection')} to the old one had to end; "
                "a worker that comes back takes part.",
                style="yellow",
            )

    def _replace_database(self) -> int:
        """Drops the demo's database and makes it anew; returns how many others were connected."""
        dsn = self._place.server.dsn()
        with contextlib.closing(connect(dsn, name="pyrunner demo", autocommit=True)) as connection:
            sessions = "select count(*) as n from pg_stat_activity where datname = %s"
            ended = rows(connection, sessions, (DATABASE,))[0]["n"]
            name = Identifier(DATABASE)
            try:
                connection.execute(SQL("drop database if exists {} with (force)").format(name))
            except psycopg.errors.ObjectInUse as error:
                remove = self._place.command("--remove")
                raise BusyError(
                    f"The demo's database {DATABASE} cannot be made afresh: {error.diag.message_primary}"
                    f" ({error.diag.message_detail}).",
                    hint=f"Drop the slot that reads it; or begin anew by `{remove}`.",
                ) from None
            connection.execute(SQL("create database {} template template0").format(name))
        return int(ended)

    # ------------------------------------------------------------ a CRM, and people at work in it

    def _load(self) -> None:
        now = rows(self._watcher, "select clock_timestamp() as now")[0]["now"]
        crm = Crm(self._size.leads, self._size.bookings, self._size.seed, now)
        self._part(f"A CRM of {crm.tenants} tenants")
        tables = crm.tables()
        total = sum(table.count for table in tables)
        began = time.monotonic()
        with self._connected() as connection, self._screen.progress("Loading", total, "rows") as advance:
            for table in tables:
                table.load(connection, advance)
            connection.commit()
        seconds = time.monotonic() - began
        with self._screen.working("Copying it, to compare with at the end ..."):
            self._watcher.execute("vacuum (analyze)")
            self._watcher.execute(query("demo/before"))
        self._screen.say(f"{total:,} rows came by COPY in {seconds:.1f} s, {total / seconds:,.0f} a second.")
        self.result["loaded"] = {table.name: table.count for table in tables}

    def _figures(self) -> list[dict[str, Any]]:
        return rows(self._watcher, query("demo/figures"))

    @contextlib.contextmanager
    def _people(self, figures: Sequence[Mapping[str, Any]]) -> Iterator["_People"]:
        with (
            self._connected("crm_app") as agent,
            self._connected("crm_app") as other_agent,
            self._connected("crm_app") as manager,
        ):
            people = _People(agent, other_agent, manager)
            people.begin()
            locked = {
                "leads": _AGENT_KEEPS + _AGENT_RELEASES,
                "bookings": _MANAGER_CONFIRMS + _MANAGER_EXTENDS,
            }
            poisoned = rows(self._watcher, query("demo/poisoned"), {"version": POISON_VERSION})[0]
            self._screen.table(
                ["", ("rows", "right"), ("overdue", "right"), ("poisoned", "right"), ("locked", "right")],
                [
                    (
                        name,
                        number,
                        _overdue(figures, name) or "",
                        poisoned.get(name, ""),
                        locked.get(name, ""),
                    )
                    for name, number in self.result["loaded"].items()
                ],
            )
            self._screen.say(
                f"Poisoned: the version is {POISON_VERSION}, and one more does not fit into an integer."
            )
            self._screen.say(
                f"Locked: people are at work in open transactions. One agent extends {_AGENT_KEEPS} "
                f"of the overdue leads, another {_AGENT_RELEASES}; a manager confirms {_MANAGER_CONFIRMS} "
                f"reserves, paid at the last moment, and extends {_MANAGER_EXTENDS} bookings. "
                "Nobody has committed yet."
            )
            yield people

    # ------------------------------------------------------------ cycles

    def _cycle(self, job: Job, on_batch: Callable[[int], None] = lambda _: None) -> Run:
        run = run_cycle(
            self._runner,
            job,
            instance=instance_of_run("demo"),
            pooled=False,
            overrides=Overrides(),
            stop=Stop(),
            observer=_Observer(on_batch),
        )
        self.result["cycles"].append(
            {
                "runId": run.id,
                "job": run.job,
                "status": run.status,
                "reason": run.reason,
                "failedItems": run.failed,
                "skippedLocked": run.skipped_locked,
                "result": run.result,
            }
        )
        return run

    def _expire_leads(self, people: "_People", overdue: int) -> None:
        self._part("lead-expiration: one cycle (in service one an hour)")
        with self._screen.progress("Expiring", overdue, "leads") as advance:
            run = self._cycle(Job.LEAD, advance)
        self._show_results([run])
        self._screen.say(
            f"{_rate(run)} leads a second, each with its event and its audit row, "
            f"{self._setting(Job.LEAD, 'batch_size')} a transaction. {run.skipped_locked} that the agents "
            f"hold were skipped without waiting. {run.failed} failed alone, and held up nobody."
        )
        if run.reason == "capped":
            self._screen.say("The cycle has reached its cap, which is no error: the next one takes the rest.")
        people.end_leads()
        self._screen.say(
            f"Then one agent commits, and {_AGENT_KEEPS} leads live on; the other gives up, and "
            f"{_AGENT_RELEASES} are due again."
        )

    def _expire_bookings(self, people: "_People") -> None:
        self._part(f"booking-expiration: {_BOOKING_CYCLES} cycles (in service one a minute)")
        runs = []
        overdue = []
        for number in range(_BOOKING_CYCLES):
            with self._screen.working(f"Cycle {number + 1} ..."):
                runs.append(self._cycle(Job.BOOKING))
            overdue.append(_overdue(self._figures(), "bookings"))
            if number == 0:
                people.end_bookings()
        self._show_results(runs, ("still overdue", overdue))
        self._screen.say(
            f"A cycle takes {self._setting(Job.BOOKING, 'batch_size')} a phase, oldest deadline first, and "
            f"leaves the rest to the next. The first one skipped {runs[0].skipped_locked} that the manager "
            "held. Then the manager committed: what was paid or extended does not expire."
        )

    def _show_results(self, runs: Sequence[Run], *more: tuple[str, Sequence[object]]) -> None:
        titles = [f"cycle {number + 1}" for number in range(len(runs))] if len(runs) > 1 else [""]
        table = [(name, *(run.result[name] for run in runs)) for name in _RESULTS if name in runs[0].result]
        table += [(name, *values) for name, values in more]
        self._screen.table(["", *((title, "right") for title in titles)], table)

    def _setting(self, job: Job, name: str) -> object:
        return rows(self._watcher, "select * from expiration.job where name = %s", (job.value,))[0][name]

    # ------------------------------------------------------------ poison

    def _mend(self) -> None:
        self._part("Poison: set apart, tried again, never lost")
        failed = self._failed()
        self._screen.table(
            ["phase", "id", "why"],
            [(item["phase"], item["item_id"], f"{item['sqlstate']} {item['message']}") for item in failed],
        )
        mended: UUID = next(item["item_id"] for item in failed if item["job"] == Job.LEAD)
        for name in ("demo/mend", "demo/mend_copy"):
            self._watcher.execute(query(name), {"id": mended})
        state = next(item["state"] for item in self._failed() if item["item_id"] == mended)
        self._screen.say(f"Somebody mends the first, which by that is {state}:")
        self._screen.verbatim("update crm.leads set version = 1")
        self._screen.verbatim(f"where id = '{mended}';")
        with self._screen.working("Next cycle ..."):
            run = self._cycle(Job.LEAD)
        status = rows(self._watcher, "select status from crm.leads where id = %s", (mended,))[0]["status"]
        left = self._failed()
        more = "what the first one left, " if run.expired > _AGENT_RELEASES + 1 else ""
        self._screen.say(
            f"The next cycle of lead-expiration expires {run.expired:,}: {more}the {_AGENT_RELEASES} that "
            f"the agent gave up, and the mended one, now {status}. {len(left)} still wait to be mended."
        )
        self.result["mended"] = {"lead": mended, "status": status}
        self.result["failed"] = left

    def _failed(self) -> list[dict[str, Any]]:
        return rows(self._watcher, query("demo/failed"))

    # ------------------------------------------------------------ what came of it

    def _show_figures(self, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> None:
        self._part("What changed")
        self._screen.table(
            ["", "", ("before", "right"), ("overdue", "right"), ("after", "right"), ("overdue", "right")],
            [
                (
                    new["entity"] if new["opens"] else "", new["status"],
                    old["items"], old["overdue"] or "", new["items"], new["overdue"] or "",
                )
                for old, new in zip(before, after, strict=True)
            ],
        )  # fmt: skip
        self.result["before"], self.result["after"] = before, after

    def _show_outbox(self) -> None:
        self._part("The outbox: what Debezium will send to Kafka")
        topics = rows(self._watcher, query("demo/outbox"))
        self._screen.table(
            ["topic", "event", ("events", "right")],
            [(topic["topic"], topic["event_type"], topic["events"]) for topic in topics],
        )
        sample = rows(self._watcher, query("demo/sample"))[0]
        self._screen.say(f"One to {sample['topic']}, key {sample['aggregate_id']}:")
        self._screen.json(sample["payload"])
        self._screen.say(f"Its run: correlation_id {sample['correlation_id']},")
        self._screen.say(f"traceparent {sample['traceparent']}.")
        self._screen.say(
            f"Card on its deal's timeline: {sample['kind']} ({sample['phase']}), "
            f"{moment(sample['occurred_at'])}."
        )
        self.result["outbox"] = topics

    def _check(self) -> None:
        self._part("What must hold, checked by SQL")
        with self._screen.working("Checking ..."):
            checks = rows(self._watcher, query("demo/checks"))
        self._screen.checks(
            [
                (
                    not check["violations"],
                    f"{check['examined']:,} {check['claim']}"
                    + (f" - NOT SO for {check['violations']:,}" if check["violations"] else ""),
                )
                for check in checks
            ]
        )
        self.result["checks"] = checks

    # ------------------------------------------------------------ what next

    def _say_what_next(self) -> None:
        self._part("What to type next")
        self._screen.say(f"All that took {self.result['seconds']} s. The server goes on running.")
        commands = [
            (f". {self._place.environment_word}", "point this shell at the demo"),
            ("psql", "look around: table expiration.status;"),
            ("pyrunner status", "how the jobs are doing"),
            ("pyrunner preview booking-expiration", "what its next cycle would take"),
            ("pyrunner run booking-expiration", "that next cycle"),
            ("pyrunner failed list", "the poison that is left"),
            ("pyrunner worker", "both jobs on their periods, until ctrl-C"),
            (self._place.command("--stop"), "stop the server"),
        ]
        self._screen.choices(commands)
        self._screen.say("Other clients connect by:")
        self._screen.verbatim(self._place.server.dsn(DATABASE))
        self.result["next"] = [command for command, _ in commands]


@dataclass(frozen=True)
class _People:
    """Transactions of others, open until they are told to end."""

    agent: Connection
    other_agent: Connection
    manager: Connection

    def begin(self) -> None:
        extend = query("demo/agent_extends")
        self.agent.execute(extend, {"skip": 0, "count": _AGENT_KEEPS})
        self.other_agent.execute(extend, {"skip": _AGENT_KEEPS, "count": _AGENT_RELEASES})
        self.manager.execute(query("demo/manager_confirms"), {"count": _MANAGER_CONFIRMS})
        self.manager.execute(query("demo/manager_extends"), {"count": _MANAGER_EXTENDS})

    def end_leads(self) -> None:
        self.agent.commit()
        self.other_agent.rollback()

    def end_bookings(self) -> None:
        self.manager.commit()


class _Observer:
    """Passes on how many items a batch has claimed."""

    def __init__(self, on_batch: Callable[[int], None]) -> None:
        self._on_batch = on_batch

    def wants(self, _level: str, /) -> bool:
        return False

    def started(self, run: Run) -> None:
        pass

    def batch(self, report: Mapping[str, Any]) -> None:
        self._on_batch(report["claimed"])

    def event(self, event: Mapping[str, Any]) -> None:
        pass


def _overdue(figures: Sequence[Mapping[str, Any]], entity: str) -> int:
    return sum(row["overdue"] for row in figures if row["entity"] == entity)


def _rate(run: Run) -> str:
    assert run.finished_at is not None
    return f"{run.expired / max((run.finished_at - run.started_at) / timedelta(seconds=1), 0.001):,.0f}"

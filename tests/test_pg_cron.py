"""pg_cron drives both jobs, in both of its modes. Its minutes are waited for once, by all servers at once."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pytest

from tests import servers
from tests.domain import BOOKINGS, JOBS, LEADS, add_bookings, add_leads, assert_consistent, refused, set_job
from tests.servers import Connection, Database

MODES: Final = {"connection": {}, "background worker": {"cron.use_background_workers": "on"}}
# a tick comes within a minute; starting a run takes pg_cron a moment
TICK: Final = 75


@dataclass
class Stage:
    """A private server with pg_cron, and what was seen there."""

    db: Database
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[Any]:
        """The runs so far, in order."""
        return self.db.rows(
            "select job, driver, status, reason, expired, sqlstate, error from expiration.run"
            " order by started_at, job"
        )

    def run(self, job: str, number: int = 0) -> tuple[str, str, str, int]:
        """Driver, status, reason and expired items of a run of a job."""
        driver, status, reason, expired = self.db.rows(
            "select driver, status, reason, expired from expiration.run where job = %s order by started_at",
            (job,),
        )[number]
        return driver, status, reason, expired


def cron_server(stack: contextlib.ExitStack, **settings: str) -> Stage:
    """A server of the version that pg_cron is installed for, with everything in pg_cron's database."""
    database = servers.own_cron_database(stack, **settings)
    set_job(database, LEADS, period="1 minute")
    return Stage(database)


def install(stage: Stage, role: str | None = "crm_runner") -> list[tuple[str, str, str]]:
    """Schedules the jobs by a login of the role: name, schedule, what was done."""
    with stage.db.connect(role) as connection:
        return connection.execute(
            "select jobname, schedule, action from expiration.cron_install()"
        ).fetchall()


def blocker(stage: Stage) -> Connection:
    """Holds a lock on which every batch waits as soon as it writes its audit rows."""
    connection = stage.db.connect(autocommit=False)
    connection.execute("lock table crm.audit_log in share mode")
    return connection


def waiting_for_lock(stage: Stage, job: str) -> Any:
    """Waits until a run of the job waits for a lock; its id."""
    return stage.db.wait_until(
        "select r.id from expiration.run as r inner join pg_stat_activity as a on r.backend_pid = a.pid"
        " where r.job = %s and r.status = 'running' and a.wait_event_type = 'Lock'",
        (job,),
        timeout=TICK,
        what=f"a run of {job} waits for a lock",
    )


@dataclass(frozen=True)
class Story:
    """All stages, when everything has happened."""

    plain: dict[str, Stage]
    overlap: dict[str, Stage]
    stopped: Stage
    dead: Stage


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """Two ticks of pg_cron on six servers side by side."""
    with contextlib.ExitStack() as stack:
        plain = {mode: cron_server(stack, **settings) for mode, settings in MODES.items()}
        overlap = {mode: cron_server(stack, **settings) for mode, settings in MODES.items()}
        stopped = cron_server(stack)
        # a socket where nobody listens: no connection comes about, so no procedure is ever called
        dead = cron_server(stack, **{"cron.host": "/nonexistent"})
        told = Story(plain, overlap, stopped, dead)

        for stage in plain.values():
            add_leads(stage.db, 30)
            add_bookings(stage.db, 20)
            add_bookings(stage.db, 10, phase="Booking")
            stage.db.rows("alter table crm.deal_timeline rename to deal_timeline_of_old")
        for stage in (*overlap.values(), stopped):
            set_job(stage.db, LEADS, batch_size=5)
            add_leads(stage.db, 30)
            stage.seen["blocker"] = stack.enter_context(blocker(stage))
        for stage in (*plain.values(), *overlap.values(), stopped, dead):
            install(stage)

        # the first tick
        for stage in plain.values():
            stage.db.wait_until(
                "select count(*) = 2 from expiration.run where status in ('completed', 'failed')",
                timeout=TICK,
            )
            stage.db.rows("alter table crm.deal_timeline_of_old rename to deal_timeline")
        for stage in (*overlap.values(), stopped):
            stage.seen["run"] = waiting_for_lock(stage, LEADS)
        dead.db.wait_until("select exists (select from cron.job_run_details)", timeout=TICK)

        # taken out and asked to stop while it works
        with stopped.db.connect("crm_runner") as runner:
            stopped.seen["uninstalled"] = runner.execute(
                "select jobname from expiration.cron_uninstall()"
            ).fetchall()
        stopped.seen["after uninstall"] = stopped.runs
        stopped.db.rows("select from expiration.stop(%s)", (LEADS,))
        stopped.seen["blocker"].rollback()

        # the second tick
        for stage in plain.values():
            stage.db.wait_until(
                "select exists (select from expiration.run where job = %s and status = 'completed')",
                (BOOKINGS,),
                timeout=TICK,
            )
        for stage in overlap.values():
            stage.db.wait_until(
                "select clock_timestamp() > date_trunc('minute', r.started_at) + interval '63 seconds'"
                " from expiration.run as r where r.id = %s",
                (stage.seen["run"],),
                timeout=TICK,
                what="the next minute has begun",
            )
            stage.seen["blocker"].rollback()
        for stage in overlap.values():
            stage.db.wait_until("select count(*) > 1 from expiration.run where job = %s", (LEADS,))
            stage.db.wait_until("select not exists (select from expiration.run where status = 'running')")
            stage.seen["details"] = stage.db.rows(
                "select d.status, d.command, d.start_time, d.end_time from cron.job_run_details as d"
                " order by d.runid"
            )
        yield told


pytestmark = pytest.mark.timeout(420)


@pytest.mark.slow
@pytest.mark.requirement("X2", "L1", "B1")
@pytest.mark.parametrize("mode", MODES)
def test_pg_cron_runs_both_jobs(story: Story, mode: str) -> None:
    stage = story.plain[mode]
    assert stage.run(LEADS) == ("pg_cron", "completed", "drained", 30)
    assert stage.run(BOOKINGS, 1) == ("pg_cron", "completed", "drained", 30)
    assert_consistent(stage.db)
    details = stage.db.rows("select distinct command, username <> 'postgres' from cron.job_run_details")
    assert sorted(details) == [(f"CALL expiration.run_job('{job}')", True) for job in sorted(JOBS)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_fails_is_failed_in_pg_crons_record_too(story: Story, mode: str) -> None:
    stage = story.plain[mode]
    assert stage.run(BOOKINGS)[:3] == ("pg_cron", "failed", "error")
    (failed,) = [run for run in stage.runs if run[2] == "failed"]
    assert failed[5] == "42P01"
    assert "deal_timeline" in failed[6]
    status, message = stage.db.rows(
        "select d.status, d.return_message from cron.job_run_details as d"
        " where d.command like %s order by d.runid limit 1",
        (f"%{BOOKINGS}%",),
    )[0]
    assert status == "failed"
    assert "deal_timeline" in message
    # nothing was expired by it, no item was blamed, and the next tick took everything
    assert stage.db.value("select count(*) from expiration.failed_item") == 0


@pytest.mark.slow
@pytest.mark.requirement("B1", "B3")
@pytest.mark.parametrize("mode", MODES)
def test_a_tick_that_an_overlong_run_covers_is_skipped_and_not_made_up_for(story: Story, mode: str) -> None:
    """pg_cron keeps the ticks that it missed and runs them one after the other (field case 3)."""
    stage = story.overlap[mode]
    assert stage.run(LEADS) == ("pg_cron", "completed", "drained", 30)
    assert stage.run(LEADS, 1)[:3] == ("pg_cron", "skipped", "overlap")
    assert_consistent(stage.db)


@pytest.mark.slow
def test_uninstalling_stops_no_run_and_stop_ends_it_after_the_batch_in_hand(story: Story) -> None:
    """Field case 7."""
    stage = story.stopped
    assert stage.seen["uninstalled"] == [(BOOKINGS,), ("expiration-upkeep",), (LEADS,)]
    assert [(job, status) for job, _, status, *_ in stage.seen["after uninstall"] if job == LEADS] == [
        (LEADS, "running")
    ]
    stage.db.wait_until("select status = 'stopped' from expiration.run where job = %s", (LEADS,))
    assert stage.run(LEADS) == ("pg_cron", "stopped", "stop requested", 5)
    assert stage.db.value("select count(*) from crm.leads where status = 'Expired'") == 5
    # and no tick came after it
    assert stage.db.value("select count(*) from expiration.run where job = %s", (LEADS,)) == 1


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_a_job_that_pg_cron_cannot_start_shows_in_the_status(story: Story) -> None:
    """Field case 4: nothing of ours runs, so nothing of ours can say so but the view."""
    stage = story.dead
    details = stage.db.rows("select distinct status from cron.job_run_details")
    assert details == [("failed",)]
    assert stage.runs == []
    add_bookings(stage.db, 3, due="10 minutes")
    rows = stage.db.rows(
        "select job, why_not, last_success_at, seconds_since_last_success from expiration.status"
    )
    assert [(why_not, last, age) for _, why_not, last, age in rows] == [
        ("it has never run: no driver has called it", None, None)
    ] * 2
    oldest = stage.db.value(
        "select extract(epoch from oldest_due_age) from expiration.status where job = %s", (BOOKINGS,)
    )
    assert oldest >= 599

    # it ran once, and then pg_cron could not start it any more
    stage.db.rows("call expiration.run_job('booking-expiration')")
    assert stage.db.value("select why_not from expiration.status where job = %s", (BOOKINGS,)) is None
    stage.db.rows(
        "update expiration.run"
        " set started_at = started_at - interval '1 hour', finished_at = finished_at - interval '1 hour'"
    )
    add_bookings(stage.db, 1)
    why_not = stage.db.value("select why_not from expiration.status where job = %s", (BOOKINGS,))
    assert why_not.startswith("no driver has called it since ")
    seconds = stage.db.value(
        "select seconds_since_last_success from expiration.status where job = %s", (BOOKINGS,)
    )
    assert 3600 <= seconds < 3700


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_upkeep_purges_pg_crons_record_of_our_jobs_alone(story: Story, mode: str) -> None:
    """Field case 5."""
    db = story.plain[mode].db
    assert db.value("select count(*) from cron.job_run_details") >= 3
    db.rows(
        "insert into cron.job_run_details"
        " (jobid, runid, job_pid, database, username, command, status, start_time, end_time)"
        " select d.jobid, c.runid, 1, d.database, d.username, c.command, 'succeeded',"
        " now() - interval '8 days', now() - interval '8 days'"
        " from cron.job_run_details as d"
        " cross join (values (1000001, 'CALL expiration.run_job(''lead-expiration'')'), (1000002, 'vacuum'))"
        " as c (runid, command)"
        " where d.runid = (select min(runid) from cron.job_run_details)"
    )
    with db.connect("crm_runner") as runner:
        runner.execute("call expiration.run_upkeep()")
    old = db.rows("select command from cron.job_run_details where end_time < now() - interval '7 days'")
    assert old == [("vacuum",)]
    assert (
        db.value("select count(*) from cron.job_run_details where end_time >= now() - interval '1 day'") >= 3
    )


@pytest.mark.requirement("B1", "B3")
@pytest.mark.parametrize(
    ("driver", "period", "began", "ended", "ending"),
    [
        ("pg_cron", "1 hour", "-1 second", "1 microsecond", ("skipped", "overlap")),
        ("pg_cron", "1 minute", "-30 minutes", "1 microsecond", ("skipped", "overlap")),
        # ended in time: this is the tick of this minute
        ("pg_cron", "1 minute", "-50 seconds", "-1 microsecond", ("completed", "drained")),
        # began in this minute: a second entry, or a tick of seconds
        ("pg_cron", "1 minute", "0 seconds", "1 microsecond", ("completed", "drained")),
        ("pg_cron", "30 seconds", "-1 second", "1 microsecond", ("completed", "drained")),
        # a person has meant it
        ("psql", "1 hour", "-1 second", "1 microsecond", ("completed", "drained")),
    ],
)
def test_a_run_of_pg_cron_is_skipped_when_the_one_before_was_at_work_at_the_full_minute(
    db: Database, driver: str, period: str, began: str, ended: str, ending: tuple[str, str]
) -> None:
    set_job(db, LEADS, period=period)
    connection = db.connect("crm_runner", application_name=driver)
    # not just before the minute is over
    db.wait_until("select extract(second from clock_timestamp()) < 57")
    for number in range(2):
        connection.execute("call expiration.run_job(%s)", (LEADS,))
        if number == 0:
            db.rows(
                "update expiration.run"
                " set started_at = m.minute + %s::interval, finished_at = m.minute + %s::interval"
                " from (select date_trunc('minute', clock_timestamp()) as minute) as m",
                (began, ended),
            )
    runs = db.rows("select status, reason, error from expiration.run order by finished_at")
    assert len(runs) == 2
    assert runs[1][:2] == ending
    if ending[0] == "skipped":
        assert "was at work at this tick" in runs[1][2]


# ------------------------------------------------------------------------------------------ entries


@pytest.fixture
def stage(cron_db: Database) -> Stage:
    """pg_cron's database of the run's server, where nothing waits for a tick."""
    cron_db.rows("grant usage on schema cron to crm_runner")
    return Stage(cron_db)


def entries(stage: Stage) -> list[Any]:
    return stage.db.rows("select jobname, schedule, command, active from cron.job order by jobname, jobid")


EXPECTED: Final = [
    ("booking-expiration", "* * * * *", "CALL expiration.run_job('booking-expiration')", True),
    ("expiration-upkeep", "7 * * * *", "CALL expiration.run_upkeep()", True),
    ("lead-expiration", "0 * * * *", "CALL expiration.run_job('lead-expiration')", True),
]


def test_a_runner_that_may_not_look_into_pg_cron_keeps_house_all_the_same(cron_db: Database) -> None:
    cron_db.psql("call expiration.run_upkeep()", role="crm_runner")
    with cron_db.connect("crm_runner") as runner:
        assert runner.execute("select * from expiration.cron_job()").fetchall() == []


def test_every_entry_is_one_call(stage: Stage) -> None:
    """Field case 1: with anything beside it, a procedure that commits dies in pg_cron."""
    install(stage)
    assert entries(stage) == EXPECTED
    assert not any(";" in command for _, _, command, _ in EXPECTED)
    with stage.db.connect() as connection, pytest.raises(psycopg.Error) as refusal:
        connection.execute("set work_mem = '8MB'; call expiration.run_job('lead-expiration')")
    assert refusal.value.sqlstate == "2D000"


def test_installing_twice_changes_nothing(stage: Stage) -> None:
    assert [action for _, _, action in install(stage)] == ["scheduled"] * 3
    before = stage.db.rows("select * from cron.job order by jobid")
    assert [action for _, _, action in install(stage)] == ["kept"] * 3
    assert stage.db.rows("select * from cron.job order by jobid") == before


def test_a_superuser_finds_and_keeps_what_a_runner_installed(stage: Stage) -> None:
    install(stage)
    runner = stage.db.value("select distinct username from cron.job")
    assert {action for _, _, action in install(stage, role=None)} == {f"kept: it belongs to {runner}"}
    assert entries(stage) == EXPECTED


def test_a_second_role_that_cannot_see_the_first_ones_entries_does_no_harm(stage: Stage) -> None:
    """pg_cron hides them from it: then there are two of each, and each item still expires once."""
    install(stage, role=None)
    install(stage)
    assert len(entries(stage)) in (3, 6)
    add_leads(stage.db, 20)
    commands = stage.db.rows("select command from cron.job where command like '%lead%'")

    def call(connection: Connection, number: int) -> None:
        connection.execute("set application_name = 'pg_cron'")
        connection.execute(commands[number][0].encode())

    stage.db.sessions(len(commands), call, role="crm_runner")
    assert stage.db.value("select count(*) from outbox.event") == 20
    assert {status for (_, _, status, *_) in stage.runs} <= {"completed", "skipped"}
    assert_consistent(stage.db)


def test_installing_again_brings_the_entries_to_the_jobs_periods(stage: Stage) -> None:
    install(stage)
    set_job(stage.db, LEADS, period="2 hours")
    set_job(stage.db, BOOKINGS, period="5 minutes")
    stage.db.rows("select cron.alter_job(jobid, active := false) from cron.job where jobname = %s", (LEADS,))
    assert install(stage) == [
        ("booking-expiration", "*/5 * * * *", "changed from * * * * *"),
        ("expiration-upkeep", "7 * * * *", "kept"),
        ("lead-expiration", "0 */2 * * *", "changed from 0 * * * *"),
    ]
    assert [(name, schedule, active) for name, schedule, _, active in entries(stage)] == [
        ("booking-expiration", "*/5 * * * *", True),
        ("expiration-upkeep", "7 * * * *", True),
        ("lead-expiration", "0 */2 * * *", True),
    ]


def test_entries_that_were_made_by_hand_under_another_name_are_ours_too(stage: Stage) -> None:
    stage.db.rows(
        "select cron.schedule('by hand', '*/3 * * * *', 'call  expiration.run_job(''lead-expiration'')')"
    )
    assert len(stage.db.rows("select * from expiration.cron_job()")) == 1
    stage.db.rows("select * from expiration.cron_uninstall()")
    assert entries(stage) == []


def test_uninstalling_takes_out_our_entries_alone(stage: Stage) -> None:
    stage.db.rows("select cron.schedule('theirs', '0 3 * * *', 'vacuum')")
    install(stage)
    assert stage.db.rows("select jobname, action from expiration.cron_uninstall()") == [
        (name, "unscheduled") for name, *_ in EXPECTED
    ]
    assert [name for name, *_ in entries(stage)] == ["theirs"]
    assert stage.db.rows("select * from expiration.cron_uninstall()") == []


@pytest.mark.requirement("L1")
@pytest.mark.parametrize(
    ("period", "nearest"),
    [
        ("7 minutes", "00:06:00 and 00:10:00"),
        ("90 seconds", "00:01:00 and 00:02:00"),
        ("30 seconds", "00:01:00"),
        ("5 hours", "04:00:00 and 06:00:00"),
        ("90 minutes", "01:00:00 and 02:00:00"),
    ],
)
def test_a_period_that_cron_cannot_express_is_refused_with_the_nearest(
    stage: Stage, period: str, nearest: str
) -> None:
    """Field case 6; this pg_cron knows no seconds."""
    install(stage)
    set_job(stage.db, BOOKINGS, period=period)
    with refused("XP012", nearest):
        install(stage)
    assert entries(stage) == EXPECTED


def test_seconds_are_used_where_pg_cron_knows_them(stage: Stage) -> None:
    set_job(stage.db, BOOKINGS, period="30 seconds")
    assert stage.db.rows(
        "select schedule from expiration.cron_plan(true) where jobname = %s", (BOOKINGS,)
    ) == [("30 seconds",)]
    with refused("XP012", "00:01:00 and 00:02:00"):
        stage.db.rows("select expiration.cron_schedule('x', '61 seconds', true)")


def test_without_pg_cron_installing_is_refused_and_uninstalling_does_nothing(db: Database) -> None:
    with refused("XP011", f"pg_cron is not installed in database {db.name}"):
        db.rows("select * from expiration.cron_install()")
    with refused("XP011", "pg_cron is not installed in database"), db.connect("crm_runner") as runner:
        runner.execute("select * from expiration.cron_install()")
    assert db.rows("select * from expiration.cron_uninstall()") == []
    assert db.value("select expiration.purge_cron_history()") == 0

"""Alerts: accepted by Prometheus, tested both ways, right about failures whose series were really scraped."""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests import servers
from tests.commands import started
from tests.domain import BOOKINGS, JOBS, LEADS, add_bookings, add_leads, run_job, set_job
from tests.exporter import Exporter, serving
from tests.prometheus import (
    FOLDER,
    RULE_FILES,
    Prometheus,
    Scraped,
    growth,
    need_prometheus,
    operands,
    place_of,
    prometheus,
    promtool,
    rule_test,
    rules,
)
from tests.servers import PROJECT, Database, Server
from tests.slots import reading, slot

ALERTS: Final = rules("alert")
NAMES: Final = [rule["alert"] for rule in ALERTS]
TESTS: Final = sorted((FOLDER / "tests").glob("*.yml"))
PAGE: Final = PROJECT / "docs" / "monitoring.md"


# ------------------------------------------------------------------------------------------------- the rules


@pytest.mark.requirement("L19", "B15")
def test_prometheus_accepts_the_rules_and_the_example() -> None:
    said = promtool("check", "rules", *(path.name for path in RULE_FILES))
    assert said.count("SUCCESS") == len(RULE_FILES)
    assert f"{len(ALERTS)} rules found" in said
    promtool("check", "config", "prometheus.yml")


@pytest.mark.requirement("L19", "B15")
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(path.relative_to(FOLDER)))


def cases() -> list[tuple[str, bool]]:
    """Each case of the rule tests: the alert, and whether it fires there."""
    return [
        (case["alertname"], bool(case["exp_alerts"]))
        for path in TESTS
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]
        for case in test["alert_rule_test"]
    ]


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "does not fire"])
def test_each_alert_is_seen_to_fire_and_not_to_fire(fires: bool) -> None:
    seen = {name for name, has_fired in cases() if has_fired == fires}
    assert seen == set(NAMES)


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
    records = [rule["record"] for rule in rules("record")]
    assert len(set(records)) == len(records)


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_each_alert_has_a_severity_a_sentence_and_a_page_that_is_there(rule: dict[str, Any]) -> None:
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "runbook"}
    summary = rule["annotations"]["summary"]
    # one sentence, which names what it is about
    assert summary.endswith(".")
    assert ". " not in summary
    assert rule["alert"] == "CrmFiguresAbsent" or "{{ $labels." in summary
    page = PROJECT / rule["annotations"]["runbook"]
    assert page.parent == PROJECT / "docs" / "runbooks"
    # the page says which alerts it is for
    assert f"`{rule['alert']}`" in page.read_text("utf-8").partition("\n## ")[0]


def test_each_page_names_only_alerts_that_lead_to_it() -> None:
    for page in (PROJECT / "docs" / "runbooks").glob("*.md"):
        head = page.read_text("utf-8").partition("\n## ")[0]
        named = {name for name in re.findall(r"`(\w+)`", head) if name in NAMES}
        assert named == {
            rule["alert"] for rule in ALERTS if rule["annotations"]["runbook"] == f"docs/runbooks/{page.name}"
        }, page.name


def test_the_documentation_has_each_alert_with_its_severity_and_page() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \| \[(.+)\]\(runbooks/(.+)\) \|$", text, re.MULTILINE)
    assert [(name, severity, page) for name, severity, _, _, page in rows] == [
        (rule["alert"], rule["labels"]["severity"], Path(rule["annotations"]["runbook"]).name)
        for rule in ALERTS
    ]
    for _, _, _, title, page in rows:
        assert page == f"{title}.md"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a > 1", ["a"]),
        ('a{x=">"} > 1', ['a{x=">"}']),
        ("a >= a offset 1h and (a offset 1h) >= b offset 2h", ["a", "a", "a", "b"]),
        ("(a > 1 or (b == bool on (x) group_left (y) c)) unless ignoring (z) d == 1", ["a", "b", "c", "d"]),
        ("max without (x) (a > 1 or b) > 2 * 0.05", ["max without (x) (a > 1 or b)"]),
        ("absent(last_over_time(a[1d]))", ["last_over_time(a[1d])"]),
        ("floor(a_or_b:and) < 1 or or_c", ["floor(a_or_b:and)", "or_c"]),
    ],
)
def test_expressions_are_taken_apart_at_their_comparisons(expression: str, expected: Sequence[str]) -> None:
    assert [one.strip() for one in operands(expression)] == expected


# ----------------------------------------------------------------------------- failures, as they were scraped

# seconds that are scraped before a failure and after it
CALM: Final = 8
FAILURE: Final = 15


@dataclass
class Watch:
    """A database, the exporter that reads it, and the Prometheus that scrapes that."""

    db: Database
    exporter: Exporter
    prometheus: Prometheus

    def scrape_failure(self, failure: Callable[[], object]) -> list[Scraped]:
        """Everything that is scraped while all is well, then while the failure lasts."""
        labels = f'database="{self.db.name}",task="{BOOKINGS}"'
        self.prometheus.wait_for(f"crm_expiration_last_success_timestamp_seconds{{{labels}}} > 0")
        since = time.time()
        self._scrape_until(since + CALM)
        failure()
        return self.prometheus.scraped(since, self._scrape_until(time.time() + FAILURE))

    def _scrape_until(self, moment: float) -> float:
        """Waits until there has been a scrape after that, be it a vain one; when it was."""

        def scraped_at() -> float | None:
            at = self.prometheus.value("timestamp(up)")
            return at if at is not None and at > moment else None

        at = servers.wait_until(scraped_at, timeout=120, what="Prometheus goes on scraping")
        assert at is not None
        return at


def assert_fires(
    tmp_path: Path, series: Sequence[Scraped], *alerts: str, after: str = "10 min", tail: int = FAILURE - 5
) -> None:
    """The rules, fed with what was scraped, at last fire exactly these alerts."""
    minutes = int(after.removesuffix(" min"))
    path = tmp_path / "scraped.yml"
    path.write_text(
        yaml.safe_dump(rule_test(series, minutes * 60, tail=tail, firing=alerts), width=10**9), "utf-8"
    )
    assert "SUCCESS" in promtool("test", "rules", str(path))


def last(series: Sequence[Scraped], name: str, **labels: str) -> float | None:
    """The last value of a series; None when it was no longer there."""
    (found,) = [
        one
        for one in series
        if one.labels["__name__"] == name
        and all(one.labels.get(key) == value for key, value in labels.items())
    ]
    return found.values[-1]


@contextlib.contextmanager
def watching(db: Database, folder: Path) -> Iterator[Watch]:
    with serving(db.role_dsn("crm_monitor")) as exporter, prometheus(folder, place_of(exporter)) as scraping:
        yield Watch(db, exporter, scraping)


def kill(exporter: Exporter) -> None:
    exporter.process.send(signal.SIGKILL)
    exporter.process.wait(-signal.SIGKILL)


@pytest.fixture
def watch(db: Database, tmp_path: Path) -> Iterator[Watch]:
    """Both jobs have just succeeded."""
    need_prometheus()
    add_leads(db, 3)
    add_bookings(db, 3, due="20 s")
    for job in JOBS:
        run_job(db, job)
    with watching(db, tmp_path / "prometheus") as one:
        yield one


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_pg_cron_whose_scheduler_is_gone_is_told_of(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    need_prometheus()
    with contextlib.ExitStack() as stack:
        db = servers.own_cron_database(stack)
        set_job(db, LEADS, period="1 minute")
        with db.connect("crm_runner") as runner:
            runner.execute("select from expiration.cron_install()")
        one = stack.enter_context(watching(db, tmp_path / "prometheus"))
        for job in JOBS:
            db.wait_until(
                "select exists (select from expiration.run where job = %s and driver = 'pg_cron'"
                " and status = 'completed')",
                (job,),
                timeout=75,
            )
        set_job(db, LEADS, period="1 hour")

        def failure() -> None:
            launcher = db.value("select pid from pg_stat_activity where backend_type = 'pg_cron launcher'")
            db.terminate(launcher)

        series = one.scrape_failure(failure)
    assert_fires(tmp_path, series, "BookingExpirationNotRunning")
    # until then nothing, and the leads' switch when their two hours are over
    assert_fires(tmp_path, series, after="3 min")
    assert_fires(tmp_path, series, "BookingExpirationNotRunning", "LeadExpirationNotRunning", after="125 min")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_a_runner_that_was_killed_is_told_of(watch: Watch, tmp_path: Path) -> None:
    set_job(watch.db, BOOKINGS, period="2 seconds")
    with started("worker", dsn=watch.db.role_dsn("crm_runner")) as worker:
        worker.wait_for("cycle completed", 2, job=BOOKINGS)
        series = watch.scrape_failure(lambda: worker.send(signal.SIGKILL))
        worker.wait(-signal.SIGKILL)
    since = last(series, "crm_expiration_seconds_since_last_success", task=BOOKINGS)
    assert since is not None
    assert since > FAILURE - 5
    assert_fires(tmp_path, series, "BookingExpirationNotRunning")
    assert_fires(tmp_path, series, after="3 min")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_a_runner_that_hangs_is_told_of(watch: Watch, tmp_path: Path) -> None:
    """It waits for a lock: its run is at work, and nothing expires."""
    set_job(watch.db, BOOKINGS, period="1 second")
    blocker = watch.db.connect(autocommit=False)
    with started("worker", "--job", BOOKINGS, dsn=watch.db.role_dsn("crm_runner")) as worker:

        def failure() -> None:
            blocker.execute("lock table crm.audit_log in share mode")
            add_bookings(watch.db, 150)

        worker.wait_for("cycle completed", job=BOOKINGS)
        series = watch.scrape_failure(failure)
        blocker.rollback()
    assert last(series, "crm_expiration_due_items", task=BOOKINGS, phase="Reserve") == 150
    assert_fires(tmp_path, series, "BookingExpirationNotRunning", "BookingExpirationBacklog")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_an_exporter_that_was_killed_is_told_of(watch: Watch, tmp_path: Path) -> None:
    series = watch.scrape_failure(lambda: kill(watch.exporter))
    assert last(series, "up") == 0
    assert last(series, "crm_expiration_seconds_since_last_success", task=BOOKINGS) is None
    # the switch of the bookings has nothing to go by: the series are absent
    assert_fires(tmp_path, series, "CrmExporterDown", "CrmFiguresGone")
    assert_fires(tmp_path, series, after="3 min")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_an_exporter_that_comes_again_is_no_trouble(watch: Watch, tmp_path: Path) -> None:
    place = place_of(watch.exporter)
    with contextlib.ExitStack() as stack:

        def failure() -> None:
            kill(watch.exporter)
            watch.prometheus.wait_for("up == 0")
            run_job(watch.db, BOOKINGS)
            dsn = watch.db.role_dsn("crm_monitor")
            stack.enter_context(serving(dsn, arguments=("--listen", place)))
            watch.prometheus.wait_for("up == 1")

        series = watch.scrape_failure(failure)
    assert None in next(one for one in series if one.labels["__name__"] == "crm_exporter_up").values
    assert_fires(tmp_path, series, after="3 min")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_a_database_that_is_away_is_told_of(private_server: Callable[..., Server], tmp_path: Path) -> None:
    need_prometheus()
    server = private_server()
    with contextlib.ExitStack() as stack:
        db = server.create_database(template=server.template)
        run_job(db, BOOKINGS)
        run_job(db, LEADS)
        one = stack.enter_context(watching(db, tmp_path / "prometheus"))
        db.close()
        series = one.scrape_failure(server.stop)
    assert last(series, "crm_exporter_up") == 0
    assert_fires(tmp_path, series, "CrmDatabaseUnreadable")
    assert_fires(tmp_path, series, after="1 min")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_a_pause_is_told_of_after_a_while_and_is_no_death(watch: Watch, tmp_path: Path) -> None:
    series = watch.scrape_failure(
        lambda: watch.db.rows("select from expiration.pause(%s, 'INC-42')", (BOOKINGS,))
    )
    assert_fires(tmp_path, series, after="20 min")
    assert_fires(tmp_path, series, "BookingExpirationPaused", after="40 min")


@pytest.mark.slow
@pytest.mark.requirement("L19", "B15")
def test_a_slot_that_is_read_and_confirms_nothing_any_more_is_told_of(watch: Watch, tmp_path: Path) -> None:
    """A reader that is connected to the slot and confirms nothing, not even a heartbeat."""
    with slot(watch.db) as name:
        # it is being read: confirmed position and all
        with reading(watch.db, name) as confirm:
            confirm()
            watch.prometheus.wait_for(f'crm_outbox_slot_state{{slot="{name}",state="active"}} == 1')
            add_leads(watch.db, 2)
            series = watch.scrape_failure(lambda: run_job(watch.db, LEADS))
        assert last(series, "crm_outbox_slot_state", slot=name, state="active") == 1
        assert last(series, "crm_outbox_backlog_events", slot=name) == 2
    # here nobody runs the bookings, either
    switch = "BookingExpirationNotRunning"
    assert_fires(tmp_path, series, switch, "OutboxStuck", "OutboxHeartbeatFrozen", after="20 min")


def test_what_was_scraped_goes_on_as_it_was() -> None:
    assert growth([3.0, 4.1, 4.9, 6.0, 7.0, 8.1]) == pytest.approx(1.02)
    assert growth([3.0] * 6) == 0
    assert growth([3.0, 9.0, 2.0, 7.0, 8.0, 5.0]) == 0

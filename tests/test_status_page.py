"""The status page in a real browser: what it says, who can read it, and that it keeps up.

PYRUNNER_TEST_SHOTS names a folder for screenshots of the states.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from psycopg import sql
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from pyrunner.postgres import embedded_binaries, local_binaries
from tests.commands import pyrunner
from tests.domain import (
    BOOKINGS,
    JOBS,
    LEADS,
    add_bookings,
    add_leads,
    add_poison,
    add_trigger,
    drop_trigger,
    gate,
    run_batch,
    run_job,
    set_job,
    start_run,
)
from tests.exporter import Exporter, serving
from tests.servers import Database, Server, need, wait_until

WIDE: Final = (1280, 900)
PHONE: Final = (360, 740)
SCHEMES: Final = ("light", "dark")
# what must neither do anything nor break the layout
WORST: Final = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"alert(1)\"> & ' \" \u202e " + "x" * 3000
)

# timers and requests that are not through yet, so that a test sees whether a refresh is to come
COUNT_TIMERS: Final = """
window.timers = new Set();
window.requests = 0;
const ask = window.fetch;
window.fetch = async (...given) => {
  window.requests += 1;
  try {
    const answer = await ask(...given), text = await answer.text();
    return { ok: answer.ok, status: answer.status, text: async () => text };
  } finally {
    window.requests -= 1;
  }
};
const set = window.setTimeout, clear = window.clearTimeout;
window.setTimeout = (work, delay) => {
  const timer = set(() => { window.timers.delete(timer); work(); }, delay);
  window.timers.add(timer);
  return timer;
};
window.clearTimeout = (timer) => { window.timers.delete(timer); clear(timer); };
"""


class Browser:
    """A headless Chromium."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def show(self, size: tuple[int, int], scheme: str) -> None:
        """A screen of that size whose owner prefers that colour scheme."""
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def open(self, url: str) -> None:
        """Goes there; forgets what the console said before."""
        # the page of the test before may be asking a server that is gone
        self.driver.get("about:blank")
        self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        self.driver.get(url)

    def script(self, text: str, *arguments: Any) -> Any:
        """Runs a function's body in the page."""
        return self.driver.execute_script(text, *arguments)

    def text(self, selector: str = "main") -> str:
        """What can be read there; "" where there is no such element at the moment."""
        return str(self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait_for(self, text: str, selector: str = "main") -> None:
        """Waits until it can be read there."""
        wait_until(lambda: text in self.text(selector), what=lambda: f"{text!r} in {self.text(selector)!r}")

    def press(self, *keys: str) -> None:
        """Presses keys on whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def complaints(self) -> list[str]:
        """What stands in the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def shoot(self, name: str) -> None:
        """A picture of the whole page, where somebody wants to see it."""
        if folder := os.environ.get("PYRUNNER_TEST_SHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            size = self.script("return [innerWidth, document.documentElement.scrollHeight]")
            self.driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500},
            )
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    binary, program = shutil.which("chromium"), shutil.which("chromedriver")
    need(binary and program, "Chromium and its driver are not installed")
    options = ChromeOptions()
    options.binary_location = str(binary)
    profile = tmp_path_factory.mktemp("chromium")
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
        f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(program)))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": COUNT_TIMERS})
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome) -> Browser:
    one = Browser(chromium)
    one.show(WIDE, "light")
    return one


@pytest.fixture
def db(db: Database) -> Database:
    """A job that has never run is measured from its installation, and the template's may be long ago."""
    db.rows("update expiration.job set created_at = now()")
    return db


@pytest.fixture
def exporter(db: Database) -> Iterator[Exporter]:
    with serving(db.role_dsn("crm_monitor")) as one:
        yield one


# --------------------------------------------------------------------------------------------------- states


@contextlib.contextmanager
def read_slot(db: Database) -> Iterator[str]:
    """A registered slot that somebody reads."""
    name = f"t_{uuid4().hex[:12]}"
    candidates = [db.server.binaries, embedded_binaries(), *local_binaries()]
    found = [one.program("pg_recvlogical") for one in candidates if one is not None]
    program = next(filter(None, found), None)
    need(program, "there is no pg_recvlogical on this machine")
    db.rows("select outbox.create_publication()")
    db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    db.rows("select outbox.register_slot(%s, 'crm_outbox', 'crm-outbox')", (name,))
    options = ("-o", "proto_version=1", "-o", "publication_names=crm_outbox", "--no-loop")
    reader = subprocess.Popen(
        [str(program), "-d", db.dsn, "-S", name, "--start", "-f", "/dev/null", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        db.wait_until("select active from pg_replication_slots where slot_name = %s", (name,))
        yield name
    finally:
        reader.send_signal(signal.SIGINT)
        reader.wait(20)
        db.wait_until("select not active from pg_replication_slots where slot_name = %s", (name,))
        db.rows("select pg_drop_replication_slot(%s)", (name,))


def make_history(db: Database) -> None:
    """Cycles of an hour or two, as they are: some capped, one stopped, all of different length."""
    for job in JOBS:
        run_job(db, job)
    seconds = {LEADS: 3600, BOOKINGS: 60}
    for job in JOBS:
        db.rows(
            "insert into expiration.run (job, driver, status, reason, as_of, started_at, finished_at,"
            " expired, batch_size, max_batches_per_cycle, max_duration, batches, due_before, skipped_locked)"
            " select %s, 'pg_cron', s.status, case s.status when 'completed' then 'drained' when 'capped'"
            " then 'capped' else 'stop requested' end, t.at, t.at,"
            " t.at + make_interval(secs => 0.02 + 0.9 * abs(sin(n))), (100 * abs(sin(n)))::bigint, 200, 1,"
            " '30 s', 1, (120 * abs(sin(n)))::bigint, n %% 3"
            " from generate_series(1, 45) as n"
            " cross join lateral (select now() - n * make_interval(secs => %s) as at) as t"
            " cross join lateral (select case when n %% 9 = 0 then 'capped' when n = 5 then 'stopped' else"
            " 'completed' end as status) as s",
            (job, seconds[job]),
        )


@contextlib.contextmanager
def busy(db: Database) -> Iterator[None]:
    """Both jobs have a history, one is at work, and somebody reads the outbox."""
    with read_slot(db):
        make_history(db)
        add_leads(db, 1234, due="20 minutes")
        add_bookings(db, 30, due="10 s")
        add_bookings(db, 12, phase="Booking", due="5 s")
        set_job(db, BOOKINGS, batch_size=10, max_batches_per_cycle=50)
        at_work = db.connect("crm_runner")
        run_batch(at_work, start_run(at_work, BOOKINGS)["id"])
        yield


def failed_run(db: Database, job: str, error: str) -> None:
    """A last cycle that failed with that message."""
    db.rows(
        "insert into expiration.run (job, driver, status, reason, as_of, started_at, finished_at, sqlstate,"
        " error, batch_size, max_batches_per_cycle, max_duration)"
        " select %s, 'pg_cron', 'failed', 'error', now(), now(), now(), '42501', %s, 200, 1, '30 s'",
        (job, error),
    )


@contextlib.contextmanager
def broken(db: Database) -> Iterator[None]:
    """Whatever can be wrong is wrong, in the worst words."""
    make_history(db)
    add_poison(db, "Lead", 12)
    add_poison(db, "Reserve", 2)
    # a message as long as one gets, and one with markup
    add_trigger(
        db,
        "crm.bookings",
        "raise exception using errcode = '23514', message = repeat('y', 1500) || '<b>bold</b>';",
        at="before update",
        name="long",
    )
    add_bookings(db, 3, phase="Booking", due="3 hours")
    run_job(db, LEADS)
    run_job(db, BOOKINGS)
    drop_trigger(db, "long")
    db.rows(
        "update expiration.failed_item set message = %s where item_id ="
        " (select item_id from expiration.failed_item where phase = 'Reserve' limit 1)",
        (WORST,),
    )
    failed_run(db, BOOKINGS, WORST)
    db.rows("select expiration.pause(%s, %s)", (LEADS, WORST[:400]))
    name = f"t_{uuid4().hex[:12]}"
    db.rows("select outbox.create_publication()")
    db.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    db.rows("select outbox.register_slot(%s, 'crm_outbox', 'crm-outbox')", (name,))
    db.rows("insert into outbox.slot (name, publication, connector) values ('gone', 'p', 'a connector')")
    db.rows(
        "insert into outbox.event (created_at, aggregate_type, aggregate_id, tenant_id, event_type, topic,"
        " payload) select now() + interval '1 year', 'Lead', gen_random_uuid(), gen_random_uuid(),"
        " 'LeadExpiredEvent', 'pin.crm.lead-expired.v1', '{}' from generate_series(1, 1100)"
    )
    for consumer in ("chessboard", "notifications"):
        db.rows(
            sql.SQL(
                "insert into {} (topic, partition, kafka_offset, headers, reason)"
                " values ('pin.crm.booking-expired.v1', 0, 7, '{{}}', 'it is no JSON')"
            ).format(sql.Identifier(consumer, "parked"))
        )
    try:
        yield
    finally:
        db.rows("select pg_drop_replication_slot(%s)", (name,))


@contextlib.contextmanager
def empty(db: Database) -> Iterator[None]:
    """Just installed."""
    yield


STATES: Final[dict[str, Callable[[Database], contextlib.AbstractContextManager[None]]]] = {
    "empty": empty,
    "busy": busy,
    "broken": broken,
}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest, db: Database) -> Iterator[str]:
    with STATES[request.param](db):
        yield request.param


# ------------------------------------------------------------------------------------------ what can be read


def test_an_empty_system_is_well(browser: Browser, db: Database, exporter: Exporter) -> None:
    browser.open(exporter.url)
    assert browser.text("#verdict") == "All is well."
    text = browser.text()
    for job in JOBS:
        assert job in text
    for phrase in (
        "There has been no cycle.", "No run.", "No replication slot is registered", "never",
        "7 of them ahead",
    ):  # fmt: skip
        assert phrase in text
    assert browser.driver.title.startswith("All is well.")
    assert browser.complaints() == []


def test_a_busy_system_says_what_is_due_what_runs_and_how_it_went(
    browser: Browser, db: Database, exporter: Exporter
) -> None:
    with busy(db):
        browser.open(exporter.url)
        assert browser.text("#verdict") == "All is well."
        text = browser.text()
        run_id = db.value("select id from expiration.run where status = 'running'")
        for phrase in (
            "1,000 or more, the oldest since", str(run_id), "1 batch, 10 items expired of 42 due",
            "at work, 1 run", "active", "crm-outbox", "of log", "completed (drained)",
        ):  # fmt: skip
            assert phrase in text, phrase
        limit = db.value("select current_setting('max_slot_wal_keep_size')")
        assert ("without limit" if limit == "-1" else "more until it is lost") in text
        bars = browser.driver.find_elements(By.CSS_SELECTOR, "svg rect")
        assert len(bars) == 80
        looks = {bar.get_attribute("class") for bar in bars}
        assert looks == {"good", "partly"}
        (table,) = browser.driver.find_elements(By.CSS_SELECTOR, "#d1-booking-expiration-table")
        browser.script("arguments[0].open = true", table)
        cells = browser.text("#d1-booking-expiration-table tbody tr:nth-child(1)")
        ((took, expired),) = db.rows(
            "select extract(epoch from finished_at - started_at)::float8, expired from expiration.run"
            " where job = %s and status <> 'running' order by started_at desc limit 1",
            (BOOKINGS,),
        )
        assert "completed" in cells
        assert (f"{took * 1000:.0f} ms" if took < 1 else f"{took:.1f} s") in cells
        assert str(expired) in cells
        assert browser.complaints() == []


def test_a_broken_system_says_what_is_wrong_worst_first_and_what_to_do(
    browser: Browser, db: Database, exporter: Exporter
) -> None:
    with broken(db):
        browser.open(exporter.url)
        assert browser.text("#verdict") == "3 faults and 7 warnings."
        findings = [item.text for item in browser.driver.find_elements(By.CSS_SELECTOR, ".findings > li")]
        severities = [finding.split(":")[0] for finding in findings]
        assert severities == sorted(severities) == ["Fault"] * 3 + ["Warning"] * 7
        for phrase, command, runbook in (
            ("booking-expiration failed with 42501", "--job booking-expiration", "booking-expiration"),
            ("Replication slot gone is missing", "pyrunner cdc recover --dry-run", "slot-lost"),
            ("Nobody reads replication slot t_", "pyrunner cdc status", "outbox-stuck"),
            ("lead-expiration is paused by", "pyrunner resume lead-expiration", None),
            ("12 items of lead-expiration", "failed list lead-expiration", "lead-expiration-poison-item"),
            ("5 items of booking-expiration fail", "failed list booking-expiration", "booking-expiration"),
            ("1,000 events or more in the outbox's", "expiration.run_upkeep()", "job-not-running"),
            ("chessboard has put aside 1 message of pin.crm", "from chessboard.parked", "outbox-backlog"),
            ("1,100 events wait for crm-outbox", "pyrunner cdc status", "outbox-backlog"),
        ):  # fmt: skip
            (finding,) = [one for one in findings if phrase in one]
            assert command in finding
            assert runbook is None or runbook in finding
        text = browser.text()
        failed = db.rows(
            "select item_id, sqlstate, attempts from expiration.failed_item where phase <> 'Lead'"
        )
        assert len(failed) == 5
        for item_id, sqlstate, attempts in failed:
            assert str(item_id) in text
            assert sqlstate in text
            assert attempts == 1
        assert "The last 10 of 12" in text
        assert "crossed: failed or abandoned" in text
        assert len(browser.driver.find_elements(By.CSS_SELECTOR, "svg rect.bad")) == 1


def test_markup_in_messages_is_text(browser: Browser, db: Database, exporter: Exporter) -> None:
    with broken(db):
        browser.open(exporter.url)
        assert "taken" not in browser.driver.title
        assert browser.script("return document.querySelectorAll('main script, main img, main b').length") == 0
        html = browser.script("return document.querySelector('main').textContent")
        assert "<script>document.title = 'taken'</script>" in html
        assert "<b>bold</b>" in html
        assert browser.complaints() == []


def test_no_personal_data_is_shown(db: Database, exporter: Exporter) -> None:
    with broken(db):
        page = exporter.get().text
        columns = {
            "crm.leads": ("tenant_id", "executor_agent_user_id", "primary_investor_user_id"),
            "crm.bookings": ("tenant_id", "deal_id", "property_object_id"),
        }
        for table, names in columns.items():
            for name in names:
                query = sql.SQL("select {0}::text from {1} where {0} is not null")
                where = sql.Identifier(*table.split("."))
                found = [row[0] for row in db.rows(query.format(sql.Identifier(name), where))]
                assert found
                assert not [one for one in found if one in page], name


# ------------------------------------------------------------------------------------------- what is wrong


def findings(exporter: Exporter) -> list[tuple[str, str]]:
    """What the page finds, in its order: severity and sentence."""
    pattern = r'<strong class="(\w+)">.*?<span class="message">(.*?)</span>'
    return [
        (severity, unescape(what)) for severity, what in re.findall(pattern, exporter.get().text, re.DOTALL)
    ]


@pytest.mark.requirement("L19", "B15")
def test_a_job_that_nobody_drives_is_a_fault_unless_it_is_paused(db: Database, exporter: Exporter) -> None:
    assert findings(exporter) == []
    db.rows("update expiration.job set created_at = created_at - interval '3 hours'")
    assert findings(exporter) == [
        ("fault", f"{job} has had no successful cycle for 3 h; it has never succeeded.") for job in JOBS
    ]
    run_job(db, LEADS)
    ((severity, what),) = findings(exporter)
    assert (severity, BOOKINGS in what) == ("fault", True)
    db.rows("select expiration.pause(%s)", (BOOKINGS,))
    ((severity, what),) = findings(exporter)
    assert (severity, "is paused by postgres since" in what) == ("warning", True)


@pytest.mark.requirement("L18", "B14", "B16")
def test_items_that_stay_due_and_a_cycle_that_hangs_are_faults(db: Database, exporter: Exporter) -> None:
    for job in JOBS:
        run_job(db, job)
    add_leads(db, 2, due="64 minutes")
    add_bookings(db, 1, due="60 s")
    assert findings(exporter) == []
    add_leads(db, 1, due="66 minutes")
    add_bookings(db, 1, due="10 minutes")
    assert [what.rpartition(" for ")[0] for _, what in findings(exporter)] == [
        f"3 items of {LEADS} are due, the oldest",
        f"2 items of {BOOKINGS} are due, the oldest",
    ]
    assert {severity for severity, _ in findings(exporter)} == {"fault"}
    run_job(db, BOOKINGS)
    (item,) = add_leads(db, 1)
    with gate(db, "Lead", item):
        hung = db.background(lambda connection: connection.execute("call expiration.run_job(%s)", (LEADS,)))
        db.wait_for_lock(hung.pid)
        db.rows(
            "update expiration.run set started_at = started_at - interval '3 hours' where status = 'running'"
        )
        faults = [what for _, what in findings(exporter)]
        assert len(faults) == 2
        assert f"A cycle of {LEADS} by psql has been at work since" in faults[1]
    hung.result()


def test_a_run_whose_driver_vanished_and_partitions_that_are_not_made_are_warnings(
    db: Database, exporter: Exporter
) -> None:
    with db.connect("crm_runner") as vanished:
        start_run(vanished, LEADS)
    db.rows("select expiration.reap_runs()")
    (name,) = db.rows(
        "select string_agg('outbox.' || name, ', ') from outbox.partition"
        " where from_time > now() + interval '2 days'"
    )[0]
    db.rows(sql.SQL("drop table {}").format(sql.SQL(name)))
    assert findings(exporter) == [
        ("warning", f"The last cycle of {LEADS} was abandoned: whoever drove it is gone."),
        ("warning", "Of the outbox only 2 partitions ahead of today are made."),
    ]


@pytest.mark.slow
def test_a_slot_that_is_lost_soon_is_a_fault(private_server: Callable[..., Server]) -> None:
    server = private_server(max_slot_wal_keep_size="64MB", min_wal_size="32MB", max_wal_size="64MB")
    with server.database() as db, serving(db.role_dsn("crm_monitor")) as one, read_slot(db) as name:
        # it is read, and nothing is confirmed
        assert findings(one) == []
        db.rows(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (name,)
        )
        fill = (
            "select pg_logical_emit_message(false, 'fill', repeat('x', 1000000)) from generate_series(1, 8)"
        )
        soon = "select safe_wal_size < 0.25 * (safe_wal_size + retained_bytes) from outbox.slot_figures"
        while not db.value(soon):
            db.rows(fill)
        said = [what for severity, what in findings(one) if severity == "fault"]
        assert [what for what in said if f"Replication slot {name} is lost after another" in what]


# -------------------------------------------------------------------------------------------- for everybody


# the least contrast of the texts that can be seen, each with what it stands on, and of the chart's shapes
CONTRASTS: Final = """
const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const ratio = (a, b) => {
  const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const ground = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
    if (colour[3] !== 0) throw new Error("a ground that shines through");
  }
  throw new Error("nothing has a ground");
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode()); ) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.checkVisibility() || element.closest("svg, script, style")) continue;
  found.push([ratio(parse(getComputedStyle(element).color), ground(element)), node.data.trim().slice(0, 40)]);
}
const shapes = [];
for (const shape of document.querySelectorAll("svg rect, svg path")) {
  const style = getComputedStyle(shape);
  const colour = style.fill === "none" ? style.stroke : style.fill;
  shapes.push([ratio(parse(colour), ground(shape.closest("figure"))), shape.getAttribute("class")]);
}
return [found, shapes];
"""


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_it_can_be_read_in_both_schemes_and_fits_its_screen(
    browser: Browser, exporter: Exporter, state: str, size: tuple[int, int]
) -> None:
    for scheme in SCHEMES:
        browser.show(size, scheme)
        browser.open(exporter.url)
        assert browser.script("return innerWidth") == size[0]
        ground = browser.script("return getComputedStyle(document.body).backgroundColor")
        assert ("255, 255, 255" in ground) == (scheme == "light")
        for opened in (False, True):
            browser.script(
                "for (const one of document.querySelectorAll('details')) one.open = arguments[0]", opened
            )
            needed = browser.script(
                "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert needed[0] <= needed[1], "it can be scrolled sideways"
            texts, shapes = browser.script(CONTRASTS)
            assert len(texts) > 20
            assert not [one for one in texts if one[0] < 4.5]
            assert not [one for one in shapes if one[0] < 3]
        assert browser.complaints() == []
        browser.script("for (const one of document.querySelectorAll('details')) one.open = false")
        browser.shoot(f"{state}-{'wide' if size == WIDE else 'phone'}-{scheme}")


# what a screen reader goes by
STRUCTURE: Final = """
const all = (selector) => [...document.querySelectorAll(selector)];
const trouble = [];
const ids = all("[id]").map((e) => e.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) trouble.push(`two are ${id}`);
for (const name of ["aria-labelledby", "aria-describedby"])
  for (const e of all(`[${name}]`))
    if (!document.getElementById(e.getAttribute(name))?.textContent.trim())
      trouble.push(`nothing is ${e.getAttribute(name)}`);
let before = 0;
for (const heading of all("h1, h2, h3, h4, h5, h6")) {
  const level = Number(heading.localName[1]);
  if (level > before + 1) trouble.push(`${heading.textContent} skips a level`);
  if (!heading.textContent.trim()) trouble.push("an empty heading");
  before = level;
}
for (const table of all("table")) {
  if (!table.caption?.textContent.trim()) trouble.push("a table without a caption");
  for (const th of table.querySelectorAll("th"))
    if (!th.scope) trouble.push(`${th.textContent} has no scope`);
  if (!table.closest("[role=region][aria-label][tabindex='0']"))
    trouble.push("a table that cannot be scrolled by keys");
}
for (const svg of all("svg"))
  if (svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label"))
    trouble.push("a picture without words");
for (const e of all("a, button, summary")) {
  if (!e.textContent.trim()) trouble.push(`${e.outerHTML} says nothing`);
  if (document.getElementById("main").contains(e) && !e.id)
    trouble.push(`${e.outerHTML} would lose the focus`);
}
for (const one of ["header", "main", "footer", "h1"])
  if (all(one).length !== 1) trouble.push(`not one ${one}`);
if (document.documentElement.lang !== "en") trouble.push("no language");
if (all("[style]").length || all("[onclick]").length) trouble.push("style or script in an attribute");
if (all("link[rel=stylesheet], script[src], img, iframe").length) trouble.push("an outside asset");
return trouble;
"""


def test_a_screen_reader_finds_its_way(browser: Browser, exporter: Exporter, state: str) -> None:
    browser.open(exporter.url)
    assert browser.script(STRUCTURE) == []


def test_everything_can_be_reached_by_keyboard_and_the_focus_is_seen(
    browser: Browser, exporter: Exporter, db: Database
) -> None:
    with broken(db):
        browser.open(exporter.url)
        browser.script("for (const one of document.querySelectorAll('details[id$=table]')) one.open = true")
        wanted = browser.script(
            "return [...document.querySelectorAll('a, button, summary, [tabindex=\"0\"]')]"
            ".filter((e) => e.checkVisibility()).map((e) => e.id || e.textContent)"
        )
        assert len(wanted) > 15
        reached = []
        for _ in wanted:
            browser.press(Keys.TAB)
            name, outline, left = browser.script(
                "const e = document.activeElement, style = getComputedStyle(e);"
                "return [e.id || e.textContent, style.outlineStyle + parseFloat(style.outlineWidth),"
                " e.getBoundingClientRect().left]"
            )
            reached.append(name)
            assert outline == "solid3", name
            assert left >= 0, name
        assert reached == wanted
        # the skip link is the first, and leads past the head
        browser.open(exporter.url)
        browser.press(Keys.TAB)
        assert browser.script("return document.activeElement.className") == "skip"
        browser.press(Keys.ENTER)
        assert browser.script("return document.activeElement.id") == "main"


def test_the_policy_allows_nothing_but_the_page_itself(exporter: Exporter) -> None:
    answer = exporter.get()
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for name in ("script-src", "style-src"):
        assert policy[name].startswith("'sha256-")
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[name] == "'none'"
    assert "unsafe" not in str(policy)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


# ----------------------------------------------------------------------------------------- it keeps up


def pause(db: Database, reason: str) -> None:
    db.rows("select expiration.pause(%s, %s)", (LEADS, reason))


def test_it_refreshes_itself_and_the_reader_keeps_the_place(
    browser: Browser, db: Database, exporter: Exporter
) -> None:
    make_history(db)
    browser.show(PHONE, "light")
    browser.open(exporter.url)
    browser.script("window.mark = true")
    table = "d1-booking-expiration-table"
    browser.script("document.getElementById(arguments[0]).open = true", table)
    browser.script("document.getElementById(arguments[0]).focus()", f"{table}-more")
    browser.script("document.getElementById('d1-booking-expiration-wide').scrollLeft = 50")
    browser.script("scrollTo(0, 400)")
    place = browser.script("return scrollY")
    assert place > 0
    browser.script("window.old = document.getElementById(arguments[0])", table)
    pause(db, "INC-42")
    browser.wait_for("INC-42")
    assert browser.text("#verdict") == "1 warning."
    assert browser.text("#live") == "1 warning."
    assert browser.driver.title.startswith("1 warning.")
    # it is the same page, with new contents
    assert browser.script("return window.mark") is True
    assert browser.script("return window.old.isConnected") is False
    assert browser.script("return document.getElementById(arguments[0]).open", table) is True
    assert browser.script("return document.activeElement.id") == f"{table}-more"
    assert browser.script("return document.getElementById('d1-booking-expiration-wide').scrollLeft") == 50
    # what grew above pushes it down, and the browser may follow
    assert abs(browser.script("return scrollY") - place) <= 250
    assert browser.complaints() == []


def test_the_pause_button_stops_refreshing_and_starts_it_again(
    browser: Browser, db: Database, exporter: Exporter
) -> None:
    browser.open(exporter.url)
    wait_until(lambda: browser.script("return timers.size") == 1)
    browser.press(Keys.TAB, Keys.TAB)
    assert browser.script("return document.activeElement.id") == "pause"
    browser.press(Keys.SPACE)
    assert browser.script("return document.activeElement.ariaPressed") == "true"
    assert browser.text("#note") == "paused"
    # nothing is to come any more
    wait_until(lambda: browser.script("return timers.size === 0 && requests === 0"))
    pause(db, "INC-43")
    browser.press(Keys.SPACE)
    browser.wait_for("INC-43")
    assert browser.script("return document.activeElement.ariaPressed") == "false"
    wait_until(lambda: browser.script("return timers.size") == 1)


def test_a_page_whose_server_is_gone_says_so(browser: Browser, exporter: Exporter) -> None:
    browser.open(exporter.url)
    exporter.process.send(signal.SIGTERM)
    exporter.process.wait(0)
    browser.wait_for("NOT refreshed", "header")
    assert "does not answer" in browser.text("#live")
    # the last state stays, with its time
    assert "As of" in browser.text("header")
    assert browser.text("#verdict") == "All is well."


def test_without_scripts_it_reloads_itself(browser: Browser, db: Database, exporter: Exporter) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.driver.get(exporter.url)
        assert "All is well." in browser.driver.page_source
        assert not browser.driver.find_element(By.ID, "pause").is_displayed()
        pause(db, "INC-44")
        wait_until(lambda: "INC-44" in browser.driver.page_source)
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_database_that_goes_away_is_the_first_fault(
    browser: Browser, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    with server.database() as db, serving(db.role_dsn("crm_monitor")) as one:
        browser.open(one.url)
        assert browser.text("#verdict") == "All is well."
        server.kill()
        browser.wait_for("cannot be reached")
        assert browser.text("#verdict") == "1 fault."
        assert "nothing is known of it at this moment" in browser.text()
        server.start()
        wait_until(lambda: browser.text("#verdict") == "All is well.")


def test_the_commands_that_the_page_names_are_commands(db: Database, exporter: Exporter) -> None:
    """Each says what it is for, so that nobody types one that is not there."""
    with broken(db):
        page = exporter.get().text
    commands = set(re.findall(r"<code>pyrunner ([^<]*)</code>", page))
    assert len(commands) >= 5
    for command in commands:
        words = [word for word in command.split() if not word.startswith("-") and word not in JOBS]
        pyrunner(*words, "--help")

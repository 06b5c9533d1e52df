"""The dashboard pin-crm: sane, provisioned, and every query of it and of the alerts returns data."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pyrunner.serve.figures import SERIES
from tests.domain import BOOKINGS, JOBS, add_bookings, add_leads, add_poison, run_job
from tests.exporter import serving
from tests.prometheus import MONITORING, Prometheus, need_prometheus, operands, place_of, prometheus, rules
from tests.servers import Database, Server, wait_until
from tests.slots import reading, slot

GRAFANA: Final = MONITORING / "grafana"
DASHBOARD: Final[dict[str, Any]] = json.loads((GRAFANA / "dashboards" / "pin-crm.json").read_text("utf-8"))
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
CHARTS: Final = [panel for panel in PANELS if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard with its panel's title, as Grafana would send it for all databases."""
    return [
        (panel["title"], target["expr"].replace("$database", ".*"))
        for panel in CHARTS
        for target in panel["targets"]
    ]


def measured() -> list[tuple[str, str]]:
    """What the alerts measure and what the rules record, with their names."""
    return [
        *((rule["record"], rule["expr"]) for rule in rules("record")),
        *((rule["alert"], one) for rule in rules("alert") for one in operands(rule["expr"])),
    ]


# --------------------------------------------------------------------------------------------- the dashboard


@pytest.mark.requirement("L20", "B12")
def test_it_is_pin_crm_with_the_row_background_jobs() -> None:
    assert DASHBOARD["uid"] == "pin-crm"
    assert DASHBOARD["id"] is None
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ["Background jobs"]
    assert PANELS[0]["type"] == "row"
    for about in ("Leads", "Bookings", "Outbox"):
        assert sum(panel["title"].startswith(about) for panel in CHARTS) >= 4


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies upon {taken[cell]}"
            taken[cell] = panel["title"]


@pytest.mark.parametrize("panel", CHARTS, ids=lambda panel: panel["title"])
def test_each_panel_says_what_it_shows_in_which_unit_for_the_chosen_databases(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "bytes", "Bps", "none"}
    assert panel["datasource"]["uid"] == "${datasource}"
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        assert target["legendFormat"]
        # however many exporters read the database, it is one line
        selectors = re.findall(r"crm_\w+\{([^}]*)\}", target["expr"])
        assert selectors
        assert all('database=~"$database"' in selector for selector in selectors)
        assert len(re.findall(r"crm_\w+", target["expr"])) == len(selectors)
        assert re.search(r"\b(max|min|sum) by \(database", target["expr"])


def test_the_variables_are_the_data_source_and_the_database() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "database"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["database"]["query"]["query"] == "label_values(crm_exporter_up, database)"
    assert variables["database"]["multi"] is variables["database"]["includeAll"] is True


def test_grafana_is_told_where_the_dashboard_and_prometheus_are() -> None:
    def read(path: Path) -> Any:
        return yaml.safe_load(path.read_text("utf-8"))

    (source,) = read(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    assert source["isDefault"] is True
    (provider,) = read(GRAFANA / "provisioning" / "dashboards" / "pin-crm.yml")["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"]


@pytest.mark.requirement("L16", "B12")
def test_every_series_is_on_the_dashboard_or_in_a_rule() -> None:
    used = " ".join(one for _, one in (*queries(), *measured()))
    unused = {name for name in SERIES if not re.search(rf"\b{name}(_bucket|_count|_sum)?\b", used)}
    # for whoever asks by hand
    assert unused == {"crm_exporter_build_info", "crm_expiration_last_success_timestamp_seconds"}


def test_no_query_asks_for_a_series_that_is_not_there() -> None:
    """An unknown name would be an empty panel; the test of data could be fooled by a disjunction."""
    for where, query in (*queries(), *measured()):
        for name in re.findall(r"\bcrm_\w+", query):
            assert re.sub(r"_(bucket|count|sum)$", "", name) in SERIES or name in SERIES, f"{where}: {name}"


# ----------------------------------------------------------------------------------- every query returns data


@pytest.fixture(scope="module")
def busy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the exporter while jobs ran, items failed, and a slot was read.

    The server's limit of log for slots is set, so that what is left of it is known.
    """
    need_prometheus()
    with contextlib.ExitStack() as stack:
        db = stack.enter_context(server.database())
        db.rows("alter system set max_slot_wal_keep_size = '1GB'")
        db.rows("select pg_reload_conf()")
        stack.callback(_unlimited, db)
        name = stack.enter_context(slot(db))
        confirm = stack.enter_context(reading(db, name))
        db.rows(
            "select chessboard.park('pin.crm.booking-expired.v1', 0, 7, null, null, null, 'x', 'no JSON')"
        )
        one = stack.enter_context(serving(db.role_dsn("crm_monitor")))
        scraping = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), place_of(one)))
        scraping.wait_for(f'crm_outbox_backlog_events{{database="{db.name}"}}')
        # counters and histograms have to be seen to move
        for number in range(3):
            add_leads(db, 3, due="2 h")
            add_bookings(db, 3, due="5 s")
            add_bookings(db, 3, phase="Booking", due="5 min")
            if number == 0:
                add_poison(db, "Reserve", 1)
            for job in JOBS:
                run_job(db, job)
            confirm()
            _wait_for_a_scrape(scraping, db)
        yield scraping


def _unlimited(db: Database) -> None:
    db.rows("alter system reset max_slot_wal_keep_size")
    db.rows("select pg_reload_conf()")


def _wait_for_a_scrape(scraping: Prometheus, db: Database) -> None:
    """Until Prometheus knows the newest run of the bookings, by the rules' figures as well."""
    runs = db.value(
        "select runs from expiration.run_total where job = %s and status = 'completed'", (BOOKINGS,)
    )
    labels = f'database="{db.name}",task="{BOOKINGS}"'
    wait_until(
        lambda: scraping.value(f'crm_expiration_runs_total{{{labels},status="completed"}}') == runs,
        what=f"{runs} runs are scraped",
    )
    items = db.value("select sum(expired)::int from expiration.batch_total where job = %s", (BOOKINGS,))
    wait_until(
        lambda: scraping.value(f'crm:booking_expiration_items:max{{database="{db.name}"}}') == items,
        what=f"{items} items are in the rules' figures",
    )


@pytest.mark.requirement("L20", "B12")
def test_every_query_of_the_dashboard_returns_data(busy: Prometheus) -> None:
    assert _without_data(busy, queries()) == []


@pytest.mark.requirement("L19", "B15")
def test_everything_that_rules_record_and_alerts_measure_returns_data(busy: Prometheus) -> None:
    assert _without_data(busy, measured()) == []


def test_whatever_label_a_rule_or_a_query_asks_for_is_there(busy: Prometheus) -> None:
    """Each selector by itself: what stands in `or` or in a function must not hide that it never matches."""
    for where, query in (*queries(), *measured()):
        for selector in re.findall(r"[a-z][\w:]*\{[^}]*\}", query):
            assert busy.query(selector), f"{where}: {selector}"


def test_a_query_that_returns_nothing_would_be_seen(busy: Prometheus) -> None:
    assert _without_data(busy, [("none", "crm_no_such_series")]) == ["none: crm_no_such_series"]


def _without_data(scraping: Prometheus, asked: list[tuple[str, str]]) -> list[str]:
    found = []
    for where, query in asked:
        values = [one["value"][1] for one in scraping.query(query)]
        # quantiles and quotients of nothing are no data either
        if not [value for value in values if value not in ("NaN", "+Inf", "-Inf")]:
            found.append(f"{where}: {query}")
    return found

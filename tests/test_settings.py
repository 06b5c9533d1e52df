"""Settings: the documents' names, the order of the sources, what is said of values that cannot be used."""

from datetime import timedelta

import pytest

from pyrunner.errors import UsageError
from pyrunner.settings import (
    SETTINGS,
    Job,
    parse_count,
    parse_positive_duration,
    read_environment,
    setting_named,
)
from pyrunner.times import format_duration, format_instant, parse_duration, parse_instant
from tests.commands import environment, pyrunner
from tests.domain import LEADS, last_run, set_job
from tests.servers import Database

NOWHERE = "host=127.0.0.1 port=1"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    kept = environment()
    for name in list(os.environ):
        if name not in kept:
            monkeypatch.delenv(name)


@pytest.mark.requirement("L1")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:00:00", 3600), ("00:01", 60), ("1.02:00:00", 93600), ("00:00:00.5", 0.5), ("90 s", 90),
        ("90s", 90), ("1 h 30 min", 5400), ("2d", 172800), ("250 ms", 0.25), ("1.5 hours", 5400),
        (" 5 Minutes ", 300),
    ],
)  # fmt: skip
def test_a_time_is_read_as_the_documents_write_it_and_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "90",
        "abc",
        "25:00:00",
        "00:61:00",
        "00:00:61",
        "-1 h",
        "1 fortnight",
        "1:2:3:4",
        "99999999999 d",
        "\u0661 h",
    ],
)
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="a time"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["01:00:00", "1.00:00:00", "30.00:00:00", "00:00:00.25", "00:00:00.000001"])
def test_a_time_is_written_as_it_is_read(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["0", "-1", "abc", "", "1.5", "1e3", "\u0663", "99999999999", "2147483648"])
def test_a_count_is_a_whole_number_greater_than_zero(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number greater than 0"):
        parse_count(text)


@pytest.mark.parametrize("text", ["0 s", "00:00:00", "-00:01:00"])
def test_a_duration_is_greater_than_zero(text: str) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        parse_positive_duration(text)


def test_an_instant_is_utc_unless_it_says_otherwise() -> None:
    assert format_instant(parse_instant("2026-01-02")) == "2026-01-02T00:00:00.000000Z"
    assert format_instant(parse_instant("2026-01-02T03:04:05+05:00")) == "2026-01-01T22:04:05.000000Z"
    with pytest.raises(ValueError, match="2 h ago"):
        parse_instant("yesterday")


@pytest.mark.requirement("L1", "L3", "B2")
@pytest.mark.parametrize(
    ("variable", "job", "column", "value"),
    [
        ("CRM__JOBS__LEADEXPIRATION__PERIOD", Job.LEAD, "period", timedelta(minutes=5)),
        ("CRM__JOBS__LEADEXPIRATION__MAXDURATION", Job.LEAD, "max_duration", timedelta(minutes=5)),
        ("CRM__JOBS__LEADEXPIRATION__BATCHSIZE", Job.LEAD, "batch_size", 7),
        ("CRM__JOBS__LEADEXPIRATION__MAXBATCHESPERCYCLE", Job.LEAD, "max_batches_per_cycle", 7),
        ("Crm__Jobs__LeadExpiration__BatchSize", Job.LEAD, "batch_size", 7),
        ("CRM__JOBS__BOOKINGEXPIRATION__BATCHSIZE", Job.BOOKING, "batch_size", 7),
        ("BOOKINGEXPIRATIONOPTIONS__BATCHSIZE", Job.BOOKING, "batch_size", 7),
        ("BookingExpirationOptions__BatchSize", Job.BOOKING, "batch_size", 7),
    ],
)
def test_the_environment_sets_the_documents_names(
    monkeypatch: pytest.MonkeyPatch, variable: str, job: Job, column: str, value: object
) -> None:
    monkeypatch.setenv(variable, "00:05:00" if isinstance(value, timedelta) else str(value))
    read = read_environment()
    found = {(one, name): sourced.value for one in Job for name, sourced in read.jobs[one].items()}
    assert found == {(job, column): value}
    assert read.jobs[job][column].variable == variable


def test_what_is_empty_or_somebody_elses_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM__JOBS__LEADEXPIRATION__BATCHSIZE", "")
    monkeypatch.setenv("CRM", "x")
    monkeypatch.setenv("CRM__JOBS__LEADEXPIRATION__ENABLED", "true")
    read = read_environment()
    assert not any(read.jobs.values())
    assert read.unknown == ["CRM__JOBS__LEADEXPIRATION__ENABLED"]


def test_two_names_of_one_setting_may_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKINGEXPIRATIONOPTIONS__BATCHSIZE", "7")
    monkeypatch.setenv("CRM__JOBS__BOOKINGEXPIRATION__BATCHSIZE", "7")
    assert read_environment().jobs[Job.BOOKING]["batch_size"].value == 7
    monkeypatch.setenv("CRM__JOBS__BOOKINGEXPIRATION__BATCHSIZE", "8")
    with pytest.raises(
        UsageError, match="BOOKINGEXPIRATIONOPTIONS__BATCHSIZE is 7, and CRM__JOBS__BOOKINGEXPIRATION"
    ):
        read_environment()


@pytest.mark.parametrize("spelling", ["BatchSize", "batchsize", "batch_size", "batch-size"])
@pytest.mark.parametrize(
    "path", ["", "Crm:Jobs:BookingExpiration:", "CRM__JOBS__BOOKINGEXPIRATION__", "BookingExpirationOptions."]
)
def test_a_setting_is_found_under_each_of_its_names(path: str, spelling: str) -> None:
    assert setting_named(Job.BOOKING, path + spelling).column == "batch_size"


def test_a_setting_of_another_job_is_not_found() -> None:
    with pytest.raises(UsageError, match="has no setting"):
        setting_named(Job.LEAD, "Crm:Jobs:BookingExpiration:BatchSize")


def test_every_setting_of_the_database_can_be_set(db: Database) -> None:
    names = db.value(
        "select p.proargnames from pg_proc as p inner join pg_namespace as n on p.pronamespace = n.oid"
        " where p.proname = 'set_job' and n.nspname = 'expiration'"
    )
    assert set(names) - {"job"} == {setting.column for setting in SETTINGS}


# ------------------------------------------------------------------------------------------ the command line


@pytest.mark.requirement("L7")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CRM__JOBS__LEADEXPIRATION__BATCHSIZE", "0", "a whole number greater than 0"),
        ("CRM__JOBS__LEADEXPIRATION__BATCHSIZE", "-5", "a whole number greater than 0"),
        ("CRM__JOBS__LEADEXPIRATION__MAXBATCHESPERCYCLE", "abc", "a whole number greater than 0"),
        ("CRM__JOBS__LEADEXPIRATION__PERIOD", "25:61:00", "hours up to 23"),
        ("CRM__JOBS__LEADEXPIRATION__PERIOD", "2 days", "from 1 second to 1 day"),
        ("CRM__JOBS__LEADEXPIRATION__MAXDURATION", "-00:01:00", "greater than 0"),
        ("BOOKINGEXPIRATIONOPTIONS__BATCHSIZE", "many", "a whole number greater than 0"),
        ("PYRUNNER_LOG_LEVEL", "loud", "'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_read(variable: str, value: str, said: str) -> None:
    # nobody listens there: whoever tried to read would end with another code
    answer = pyrunner("run", LEADS, dsn=NOWHERE, env={variable: value}, code=2)
    assert answer.out == ""
    assert answer.err.startswith(f"pyrunner: {variable} is '{value}', and must be ")
    assert said in answer.err


@pytest.mark.requirement("L7")
@pytest.mark.parametrize(
    "option",
    [("--batch-size", "0"), ("--max-batches", "-1"), ("--max-duration", "25:61:00"), ("--as-of", "soon")],
)
def test_a_bad_option_is_refused_before_anything_is_read(option: tuple[str, str]) -> None:
    answer = pyrunner("run", LEADS, *option, dsn=NOWHERE, code=2)
    assert option[0] in answer.err
    assert f"'{option[1]}' must be" in answer.err


@pytest.mark.requirement("L3", "L7")
def test_the_command_line_goes_before_the_environment_and_that_before_the_database(db: Database) -> None:
    set_job(db, LEADS, batch_size=11)
    env = {"CRM__JOBS__LEADEXPIRATION__BATCHSIZE": "7", "CRM__JOBS__LEADEXPIRATION__MAXDURATION": "00:10:00"}
    options = ("--batch-size", "3", "--max-batches", "2")

    def settings_of_a_run(*arguments: str, **variables: str) -> tuple[int, int, timedelta]:
        pyrunner("run", LEADS, *arguments, dsn=db.role_dsn("crm_runner"), env=variables)
        run = last_run(db, LEADS)
        return run["batch_size"], run["max_batches_per_cycle"], run["max_duration"]

    assert settings_of_a_run() == (11, 200, timedelta(minutes=55))
    assert settings_of_a_run(**env) == (7, 200, timedelta(minutes=10))
    assert settings_of_a_run(*options, **env) == (3, 2, timedelta(minutes=10))


@pytest.mark.requirement("L1", "L3", "B2")
def test_config_shows_each_value_with_its_source_and_its_name_in_the_documents(db: Database) -> None:
    env = {"CRM__JOBS__LEADEXPIRATION__PERIOD": "90 s", "CRM__JOBS__LEADEXPIRATION__BATCHSZE": "1"}
    answer = pyrunner("config", "show", "--json", dsn=db.role_dsn("crm_monitor"), env=env)
    values = {(value["job"], value["name"]): value for value in answer.json}
    assert len(values) == 16
    assert values[LEADS, "Period"] == {
        "job": LEADS, "name": "Period", "column": "period", "documentsName": "Crm:Jobs:LeadExpiration:Period",
        "value": "00:01:30", "source": "CRM__JOBS__LEADEXPIRATION__PERIOD", "stored": "01:00:00",
    }  # fmt: skip
    booking = values["booking-expiration", "BatchSize"]
    assert (booking["value"], booking["source"], booking["documentsName"]) == (
        200, "database", "BookingExpirationOptions.BatchSize",
    )  # fmt: skip
    assert "CRM__JOBS__LEADEXPIRATION__BATCHSZE is no setting of ours" in answer.err
    human = pyrunner("config", "show", LEADS, dsn=db.role_dsn("crm_monitor"), env=env).out
    assert "00:01:30" in human
    assert "(database: 01:00:00)" in human


@pytest.mark.requirement("L3", "B2")
def test_config_sets_a_value_in_the_database(db: Database) -> None:
    operator = db.role_dsn("crm_operator")
    pyrunner("config", "set", LEADS, "BatchSize", "250", dsn=operator)
    answer = pyrunner(
        "config",
        "set",
        LEADS,
        "period",
        "30 min",
        dsn=operator,
        env={"CRM__JOBS__LEADEXPIRATION__PERIOD": "1 h"},
    )
    assert "Period is 00:30:00" in answer.out
    assert "CRM__JOBS__LEADEXPIRATION__PERIOD goes before it" in answer.err
    assert db.rows("select batch_size, period from expiration.job where name = %s", (LEADS,)) == [
        (250, timedelta(minutes=30))
    ]


@pytest.mark.requirement("L7")
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BatchSize", "0", "BatchSize is '0', and must be a whole number greater than 0"),
        ("BatchSize", "100001", "BatchSize must be from 1 to 100000, and is 100001"),
        ("Period", "25:61:00", "Period is '25:61:00', and must be"),
        ("StaleAfter", "1 s", "StaleAfter must be at least 10 seconds"),
        ("Size", "1", "lead-expiration has no setting Size"),
    ],
)
def test_config_refuses_a_bad_value_and_changes_nothing(
    db: Database, name: str, value: str, said: str
) -> None:
    before = db.rows("select * from expiration.job order by name")
    answer = pyrunner("config", "set", LEADS, name, value, dsn=db.role_dsn("crm_operator"), code=2)
    assert said in answer.err
    assert db.rows("select * from expiration.job order by name") == before

"""LeadExpirationJob: what expires, how, and what is left alone."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.domain import (
    LEADS,
    add_leads,
    add_trigger,
    assert_consistent,
    drive,
    drop_trigger,
    events,
    expire_batch,
    finish_run,
    item,
    nothing_changes,
    refused,
    run_batch,
    run_job,
    set_job,
    start_run,
    statuses,
    transition,
)
from tests.servers import Database


@pytest.mark.requirement("L1", "L3", "L4")
def test_the_settings_are_the_documents_until_somebody_changes_them(db: Database) -> None:
    assert db.rows(
        "select period, batch_size, max_batches_per_cycle from expiration.job where name = %s", (LEADS,)
    ) == [(timedelta(hours=1), 500, 200)]


@pytest.mark.requirement("L22")
def test_an_empty_cycle_succeeds_and_leaves_nothing_but_its_run(db: Database) -> None:
    ahead = add_leads(db, 3, due="-1 day")
    run = run_job(db, LEADS)
    assert (run["status"], run["reason"], run["expired"], run["batches"]) == ("completed", "drained", 0, 0)
    assert statuses(db, "Lead", ahead) == {"Active": 3}
    for table in ("outbox.event", "crm.audit_log", "expiration.batch", "expiration.failed_item"):
        assert db.value(f"select count(*) from {table}") == 0  # type: ignore[arg-type,unused-ignore]


@pytest.mark.requirement("L6", "L9", "L10", "L22")
@pytest.mark.parametrize("investor", [True, False], ids=["with_investor", "without_investor"])
def test_an_overdue_lead_becomes_expired_with_one_event_and_one_audit_row(
    db: Database, investor: bool
) -> None:
    (lead_id,) = add_leads(db, investor=investor, version=1)
    before = item(db, "Lead", lead_id)
    run = run_job(db, LEADS)
    after = item(db, "Lead", lead_id)
    assert (run["status"], run["expired"], run["batches"]) == ("completed", 1, 1)
    assert after == before | {
        "status": "Expired", "expired_at": run["as_of"], "updated_at": run["as_of"], "version": 2,
    }  # fmt: skip

    (event,) = events(db)
    assert event["payload"] == {
        "leadId": str(lead_id),
        "tenantId": str(before["tenant_id"]),
        "agentUserId": str(before["executor_agent_user_id"]),
        "investorUserId": str(before["primary_investor_user_id"]) if investor else None,
        "expiredAt": db.value(
            "select to_char(%s at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')", (run["as_of"],)
        ),
    }
    assert (event["aggregate_type"], event["aggregate_id"], event["tenant_id"]) == (
        "Lead",
        lead_id,
        before["tenant_id"],
    )
    assert (event["event_type"], event["contract_version"]) == ("LeadExpiredEvent", 1)
    assert event["topic"] == "pin.crm.lead-expired.v1"
    assert (event["correlation_id"], event["occurred_at"]) == (run["id"], run["as_of"])

    assert db.rows(
        "select tenant_id, entity_type, entity_id, action, actor, from_status, to_status,"
        " correlation_id, occurred_at"
        " from crm.audit_log"
    ) == [
        (
            before["tenant_id"],
            "Lead",
            lead_id,
            "Expire",
            "system",
            "Active",
            "Expired",
            run["id"],
            run["as_of"],
        )
    ]
    assert_consistent(db)


@pytest.mark.requirement("L8")
@pytest.mark.parametrize(
    ("offset", "expected"),
    [(-1, "Expired"), (0, "Active"), (1, "Active")],
    ids=["a_microsecond_before", "equal", "a_microsecond_after"],
)
def test_only_a_deadline_strictly_before_the_cut_off_has_passed(
    db: Database, offset: int, expected: str
) -> None:
    as_of: datetime = db.value("select now() - interval '1 hour'")
    (lead_id,) = add_leads(db)
    db.rows("update crm.leads set expires_at = %s", (as_of + timedelta(microseconds=offset),))
    run_job(db, LEADS, as_of)
    assert item(db, "Lead", lead_id)["status"] == expected
    assert_consistent(db)


@pytest.mark.requirement("L8", "L22")
def test_leads_not_due_and_leads_expired_or_archived_are_not_touched(db: Database) -> None:
    add_leads(db, 2, due="-1 minute")
    add_leads(db, 2, status="Expired")
    add_leads(db, 2, status="Archived")
    db.rows(
        "insert into crm.leads (tenant_id, executor_agent_user_id, status) values (%s, %s, 'Archived')",
        [UUID(int=1)] * 2,
    )
    before = db.rows("select xmin::text, xmax::text, * from crm.leads order by id")
    (due,) = add_leads(db)
    run = run_job(db, LEADS)
    assert run["expired"] == 1
    assert (
        db.rows("select xmin::text, xmax::text, * from crm.leads where id <> %s order by id", (due,))
        == before
    )


@pytest.mark.requirement("L9", "L22")
def test_deals_and_fixations_of_an_expired_lead_stay_as_they_are(db: Database) -> None:
    leads = add_leads(db, 3)
    for lead_id in leads:
        db.rows("insert into crm.deals (tenant_id, lead_id) values (gen_random_uuid(), %s)", (lead_id,))
        db.rows("insert into crm.fixations (tenant_id, lead_id) values (gen_random_uuid(), %s)", (lead_id,))
    query = "select xmin::text, * from crm.deals union all select xmin::text, * from crm.fixations order by 2"
    before = db.rows(query)
    assert len(before) == 6
    run_job(db, LEADS)
    assert statuses(db, "Lead") == {"Expired": 3}
    assert db.rows(query) == before


@pytest.mark.requirement("L6")
def test_one_cycle_takes_the_leads_of_all_tenants(db: Database) -> None:
    leads = add_leads(db, 5)
    assert len({item(db, "Lead", lead_id)["tenant_id"] for lead_id in leads}) == 5
    assert run_job(db, LEADS)["expired"] == 5
    assert {event["tenant_id"] for event in events(db)} == {
        item(db, "Lead", lead_id)["tenant_id"] for lead_id in leads
    }


@pytest.mark.requirement("L3", "L8")
def test_a_cycle_goes_by_batches_oldest_deadline_first_until_nothing_is_left(db: Database) -> None:
    leads = add_leads(db, 25)
    set_job(db, LEADS, batch_size=10)
    run = run_job(db, LEADS)
    assert (run["status"], run["expired"], run["batches"]) == ("completed", 25, 3)
    assert db.rows(
        "select number, claimed, expired, failed, skipped_locked from expiration.batch order by number"
    ) == [
        (1, 10, 10, 0, 0),
        (2, 10, 10, 0, 0),
        (3, 5, 5, 0, 0),
    ]
    assert [event["aggregate_id"] for event in events(db)] == leads
    assert_consistent(db)


@pytest.mark.requirement("L8")
def test_a_batch_takes_the_oldest_deadlines_whatever_the_order_of_insertion(db: Database) -> None:
    young = add_leads(db, 10, due="1 hour")
    old = add_leads(db, 10, due="2 days")
    result = expire_batch(db, "Lead", batch_size=10)
    assert (result["claimed"], result["expired"], result["drained"]) == (10, 10, False)
    assert (statuses(db, "Lead", old), statuses(db, "Lead", young)) == ({"Expired": 10}, {"Active": 10})


@pytest.mark.requirement("L4", "L13", "L22")
def test_a_cycle_that_reaches_the_cap_says_so_and_the_next_takes_the_rest(db: Database) -> None:
    leads = add_leads(db, 35)
    set_job(db, LEADS, batch_size=10, max_batches_per_cycle=3)
    first = run_job(db, LEADS)
    assert (first["status"], first["reason"], first["expired"], first["batches"]) == (
        "capped",
        "capped",
        30,
        3,
    )
    assert first["sqlstate"] is None
    assert (
        db.value(
            "select result ->> 'CappedByMaxBatches' from expiration.history where id = %s", (first["id"],)
        )
        == "true"
    )
    assert statuses(db, "Lead", leads[:30]) == {"Expired": 30}
    assert statuses(db, "Lead", leads[30:]) == {"Active": 5}
    second = run_job(db, LEADS)
    assert (second["status"], second["reason"], second["expired"]) == ("completed", "drained", 5)
    assert_consistent(db)


@pytest.mark.requirement("L4")
def test_a_cycle_that_ends_exactly_at_the_cap_is_not_capped(db: Database) -> None:
    add_leads(db, 30)
    add_leads(db, 5, due="-1 hour")
    set_job(db, LEADS, batch_size=10, max_batches_per_cycle=3)
    run = run_job(db, LEADS)
    assert (run["status"], run["reason"], run["expired"], run["batches"]) == ("completed", "drained", 30, 3)


@pytest.mark.requirement("L13")
def test_the_result_of_a_cycle_has_the_documents_four_figures(db: Database) -> None:
    add_leads(db, 7)
    set_job(db, LEADS, batch_size=5)
    run = run_job(db, LEADS)
    (result, duration) = db.rows(
        "select result, duration from expiration.history where id = %s", (run["id"],)
    )[0]
    assert result == {
        "ExpiredCount": 7, "BatchesProcessed": 2, "CappedByMaxBatches": False, "Elapsed": result["Elapsed"],
    }  # fmt: skip
    assert (
        db.value("select %s::interval", (result["Elapsed"],))
        == duration
        == run["finished_at"] - run["started_at"]
    )
    assert duration > timedelta(0)


@pytest.mark.requirement("L6")
def test_the_cut_off_is_read_once_and_serves_every_batch_of_the_cycle(db: Database) -> None:
    add_leads(db, 20)
    driver = db.connect("crm_runner")
    run = start_run(driver, LEADS, driver="pyrunner", batch_size=10)
    assert run_batch(driver, run["id"])["expired"] == 10
    # due by the clock, and not by the cut-off
    (late,) = add_leads(db, due="0")
    db.rows(
        "update crm.leads set expires_at = %s + interval '1 microsecond' where id = %s", (run["as_of"], late)
    )
    assert run_batch(driver, run["id"])["expired"] == 10
    report = run_batch(driver, run["id"])
    assert report["state"] == "done"
    finish_run(driver, run["id"], report["reason"])
    assert db.rows("select distinct expired_at, updated_at from crm.leads where status = 'Expired'") == [
        (run["as_of"],) * 2
    ]
    assert {event["occurred_at"] for event in events(db)} == {run["as_of"]}
    assert item(db, "Lead", late)["status"] == "Active"
    assert drive(driver, LEADS, driver="pyrunner")["expired"] == 1
    assert_consistent(db)


@pytest.mark.requirement("L11")
def test_a_batch_commits_its_transitions_and_its_events_together_or_not_at_all(db: Database) -> None:
    add_leads(db, 10)
    driver = db.connect(autocommit=False)
    run = start_run(driver, LEADS)
    driver.commit()
    with nothing_changes(db, locks=False):
        assert run_batch(driver, run["id"])["expired"] == 10
        driver.rollback()
    assert run_batch(driver, run["id"])["expired"] == 10
    assert db.value("select count(*) from outbox.event") == 0, "seen before the commit"
    driver.commit()
    assert db.value("select count(*) from outbox.event") == 10
    finish_run(driver, run["id"], "drained")
    driver.commit()
    assert_consistent(db)


@pytest.mark.requirement("L12", "L22")
def test_an_error_in_a_batch_leaves_all_its_leads_active_and_the_next_cycle_takes_them(db: Database) -> None:
    leads = add_leads(db, 20)
    set_job(db, LEADS, batch_size=10)
    # the disk is full from the fifteenth event on
    add_trigger(db, "outbox.event", "if new.seq >= 15 then raise sqlstate '53100'; end if;")
    with refused("53100"):
        run_job(db, LEADS)
    assert statuses(db, "Lead", leads[:10]) == {"Expired": 10}
    assert statuses(db, "Lead", leads[10:]) == {"Active": 10}
    assert db.value("select count(*) from outbox.event") == 10
    assert db.rows("select status, sqlstate, expired, failed from expiration.run") == [
        ("failed", "53100", 10, 0)
    ]
    assert_consistent(db)
    drop_trigger(db)
    run = run_job(db, LEADS)
    assert (run["status"], run["expired"]) == ("completed", 10)
    assert_consistent(db)


@pytest.mark.requirement("L9")
def test_the_transition_leaves_alone_what_is_no_longer_active_or_due(db: Database) -> None:
    due, ahead, archived = (
        add_leads(db)[0],
        add_leads(db, due="-1 day")[0],
        add_leads(db, status="Archived")[0],
    )
    gone = UUID(int=7)
    assert transition(db, "Lead", [ahead, archived, gone, due]) == [due]
    assert transition(db, "Lead", [due]) == []
    assert [event["aggregate_id"] for event in events(db)] == [due]


@pytest.mark.requirement("L15", "L14")
def test_the_log_has_the_documents_events_whoever_drove_the_cycle(db: Database) -> None:
    leads = add_leads(db, 3)
    db.rows("update crm.leads set version = 2147483647 where id = %s", (leads[0],))
    by_call = run_job(db, LEADS)
    add_leads(db, 1)
    by_runner = drive(db.connect("crm_runner"), LEADS, driver="pyrunner", instance="one")
    for run, driver, size, batches in ((by_call, "psql", 2, 1), (by_runner, "pyrunner", 1, 2)):
        log = db.rows(
            "select driver, level, event, fields from expiration.log_event where run_id = %s order by"
            " at, ordinal",
            (run["id"],),
        )
        assert {line[0] for line in log} == {driver}
        run_id = str(run["id"])
        started, processed = log[0], log[1]
        assert started[1:3] == ("info", "job.started")
        assert started[3]["jobRunId"] == run_id
        assert db.value("select %s::timestamptz", (started[3]["Now"],)) == run["as_of"]
        assert processed[1:3] == ("info", "batch.processed")
        assert (processed[3]["jobRunId"], processed[3]["size"]) == (run_id, size)
        assert processed[3]["elapsedMs"] > 0
        failures = [line for line in log if line[2] == "item.failed"]
        assert [line[1] for line in failures] == ["error"]
        assert failures[0][3] == {
            "jobRunId": run_id, "LeadId": str(leads[0]), "error": "integer out of range", "sqlstate": "22003",
        }  # fmt: skip
        completed = log[-1]
        assert completed[1:3] == ("info", "job.completed")
        assert (
            completed[3].items()
            >= {
                "jobRunId": run_id,
                "ExpiredCount": size,
                "BatchesProcessed": batches,
                "cappedByMaxBatches": False,
            }.items()
        )
    assert db.rows("select event, fields from expiration.log_item(%s)", (by_call["id"],)) == [
        ("lead.expired", {"LeadId": str(lead_id), "TenantId": str(item(db, "Lead", lead_id)["tenant_id"])})
        for lead_id in leads[1:]
    ]


@pytest.mark.requirement("X2", "L2")
def test_a_batch_can_be_called_alone_in_anybodys_transaction(db: Database) -> None:
    leads = add_leads(db, 5)
    dba = db.connect("crm_runner", autocommit=False)
    result = expire_batch(dba, "Lead", batch_size=3)
    assert (result["claimed"], result["expired"], result["drained"]) == (3, 3, False)
    assert result["expired_ids"] == leads[:3]
    assert (result["last_id"], result["skipped_locked"]) == (leads[2], 0)
    dba.rollback()
    assert statuses(db, "Lead") == {"Active": 5}
    assert db.value("select count(*) from expiration.run") == 0
    first = expire_batch(dba, "Lead", batch_size=3)
    second = expire_batch(
        dba, "Lead", batch_size=3, after_deadline=first["last_deadline"], after_id=first["last_id"]
    )
    dba.commit()
    assert (first["expired_ids"], second["expired_ids"], second["drained"]) == (leads[:3], leads[3:], True)
    assert db.rows("select driver, status, expired, batches from expiration.run order by started_at") == [
        ("sql", "capped", 3, 1),
        ("sql", "completed", 2, 1),
    ]
    assert_consistent(db)

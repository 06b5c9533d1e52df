"""A team that has the domain's tables already keeps its own; the engine works on them."""

import pytest

from pyrunner.migrations import migrate
from tests.servers import Database

OWN_TABLES = """
create schema crm;
create table crm.leads (
    region text not null default 'north',
    id uuid primary key,
    tenant_id uuid not null,
    executor_agent_user_id uuid not null,
    primary_investor_user_id uuid,
    status varchar(20) not null,
    expires_at timestamptz not null,
    expired_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    version integer not null default 1
);
create index ix_leads_expires_at on crm.leads (expires_at) where status = 'Active';
create function crm.own() returns integer language sql return 1;
insert into crm.leads (id, tenant_id, executor_agent_user_id, status, expires_at)
select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Active', now() - make_interval(mins => n)
from generate_series(1, 1200) as n;
insert into crm.leads (id, tenant_id, executor_agent_user_id, status, expires_at)
values (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Active', '-infinity');
insert into crm.leads (id, tenant_id, executor_agent_user_id, status, expires_at)
values (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Active', 'infinity');
"""

DESCRIPTION = """
select array_agg(row (a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)::text order by a.attnum)
from pg_attribute as a
where a.attrelid = 'crm.leads'::regclass and a.attnum > 0
"""


@pytest.fixture
def own_tables(bare_db: Database) -> Database:
    bare_db.psql(OWN_TABLES)
    return bare_db


def test_a_table_that_is_there_stays_as_it_is_and_the_others_are_made(own_tables: Database) -> None:
    before = own_tables.value(DESCRIPTION)
    owner = own_tables.value("select relowner from pg_class where oid = 'crm.leads'::regclass")
    migrate(own_tables.dsn)
    migrate(own_tables.dsn)
    assert own_tables.value(DESCRIPTION) == before
    assert own_tables.value("select relowner from pg_class where oid = 'crm.leads'::regclass") == owner
    assert own_tables.value("select to_regclass('crm.bookings') is not null")
    assert own_tables.value("select has_function_privilege('public', 'crm.own()', 'execute')")


@pytest.mark.requirement("L8", "L9", "L10")
def test_the_engine_expires_rows_of_a_teams_own_table(own_tables: Database) -> None:
    migrate(own_tables.dsn)
    own_tables.psql("grant select, update on crm.leads to crm_owner")
    with own_tables.connect("crm_runner") as runner:
        runner.execute("call expiration.run_job('lead-expiration')")
    assert own_tables.rows("select status, reason, expired, failed from expiration.run") == [
        ("completed", "drained", 1201, 0)
    ]
    assert own_tables.value("select count(*) from crm.leads where status = 'Active'") == 1
    assert own_tables.value("select count(distinct aggregate_id) from outbox.event") == 1201


def test_without_a_grant_on_the_teams_table_the_run_fails_and_marks_nothing(own_tables: Database) -> None:
    migrate(own_tables.dsn)
    # reading alone is not enough for a claim
    own_tables.psql("grant select on crm.leads to crm_owner")
    done = own_tables.psql("call expiration.run_job('lead-expiration')", role="crm_runner", check=False)
    assert done.returncode != 0
    assert "permission denied for table leads" in done.stderr
    assert own_tables.rows("select status, sqlstate from expiration.run") == [("failed", "42501")]
    assert own_tables.value("select count(*) from expiration.failed_item") == 0
    assert own_tables.value("select count(*) from outbox.event") == 0

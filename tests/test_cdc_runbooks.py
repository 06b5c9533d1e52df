"""Runbooks about the way to Kafka: broken, cured by the page's commands, and the alert's condition clears."""

import pytest

from tests.cdc import Cdc, cdc
from tests.runbooks import Shell, figure
from tests.servers import wait_until
from tests.test_cdc_recovery import drop_slot

__all__ = ["cdc"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def shell(cdc: Cdc) -> Shell:
    """Where Connect and Kafka are stands in the environment; all else the commands find out by themselves."""
    cdc.install()
    cdc.arrived(cdc.expire_leads(2))
    return Shell(cdc.db, cdc.environment)


def state(cdc: Cdc, name: str) -> float | None:
    return figure(cdc.db, "crm_outbox_slot_state", slot=cdc.setup.slot, state=name)


@pytest.mark.requirement("L21", "B16", "L19", "B15")
def test_a_connector_that_somebody_has_stopped(cdc: Cdc, shell: Shell) -> None:
    cdc.stop()
    assert state(cdc, "inactive") == 1
    events = cdc.expire_leads(3)
    assert (figure(cdc.db, "crm_outbox_backlog_events", slot=cdc.setup.slot) or 0) >= 3
    assert not shell.says("stuck-over")
    shell.run("kafka-connector-cure", CONNECTOR=cdc.setup.connector)
    cdc.arrived(events)
    wait_until(lambda: shell.says("stuck-over"), timeout=60, what="the page says that it is over")
    assert state(cdc, "active") == 1
    wait_until(
        lambda: figure(cdc.db, "crm_outbox_backlog_events", slot=cdc.setup.slot) == 0,
        timeout=60,
        what="everything is confirmed",
    )


@pytest.mark.requirement("L21", "B16", "L19", "B15")
def test_a_slot_that_was_dropped(cdc: Cdc, shell: Shell) -> None:
    cdc.stop()
    drop_slot(cdc)
    gap = cdc.expire_leads(4)
    assert state(cdc, "missing") == 1
    assert not shell.says("lost-over")
    connector = cdc.setup.connector
    assert "4 events would be sent once more" in shell.run("kafka-recover-tell", CONNECTOR=connector)
    shell.run("kafka-recover-cure", CONNECTOR=connector)
    cdc.arrived(gap)
    shell.run("kafka-verify", CONNECTOR=connector)
    assert state(cdc, "missing") == 0
    assert shell.says("lost-over")

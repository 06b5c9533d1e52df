"""Runbooks about the way to Kafka: broken, cured by the page's commands, and the alert's condition clears."""

import pytest

from tests.cdc import Cdc, cdc
from tests.runbooks import Shell, figure
from tests.servers import wait_until
from tests.test_cdc_recovery import drop_slot

__all__ = ["cdc"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def usual(cdc: Cdc) -> Cdc:
    """Installed under the connector's usual name, which the pages leave out; the rest it knows itself."""
    usual = cdc.named(connector="crm-outbox")
    usual.install()
    usual.arrived(usual.expire_leads(2))
    return usual


@pytest.fixture
def shell(usual: Cdc) -> Shell:
    return Shell(usual.db, usual.environment)


def state(cdc: Cdc, name: str) -> float | None:
    return figure(cdc.db, "crm_outbox_slot_state", slot=cdc.setup.slot, state=name)


@pytest.mark.requirement("L21", "B16", "L19", "B15")
def test_a_connector_that_somebody_has_paused(usual: Cdc, shell: Shell) -> None:
    with usual.connect() as connect:
        connect.put(f"{usual.path}/pause").raise_for_status()
    wait_until(lambda: state(usual, "inactive") == 1, timeout=60, what="nobody reads the slot")
    events = usual.expire_leads(3)
    assert figure(usual.db, "crm_outbox_backlog_events", slot=usual.setup.slot) == 3
    assert not shell.says("stuck-over")
    shell.run("kafka-connector-cure")
    usual.arrived(events)
    wait_until(lambda: shell.says("stuck-over"), timeout=60, what="the page says that it is over")
    assert state(usual, "active") == 1
    wait_until(
        lambda: figure(usual.db, "crm_outbox_backlog_events", slot=usual.setup.slot) == 0,
        timeout=60,
        what="everything is confirmed",
    )


@pytest.mark.requirement("L21", "B16", "L19", "B15")
def test_a_slot_that_was_dropped(usual: Cdc, shell: Shell) -> None:
    usual.stop()
    drop_slot(usual)
    gap = usual.expire_leads(4)
    assert state(usual, "missing") == 1
    assert not shell.says("lost-over")
    assert "4 events would be sent once more" in shell.run("kafka-recover-tell")
    shell.run("kafka-recover-cure")
    usual.arrived(gap)
    shell.run("kafka-verify")
    assert state(usual, "missing") == 0
    assert shell.says("lost-over")

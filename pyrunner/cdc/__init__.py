"""From the outbox to Kafka: setting up, looking after, mending and replaying."""

from pyrunner.cdc.install import Step, install
from pyrunner.cdc.secret import PasswordFile
from pyrunner.cdc.setup import EVENT_TOPICS, Setup, Topic

__all__ = ["EVENT_TOPICS", "PasswordFile", "Setup", "Step", "Topic", "install"]

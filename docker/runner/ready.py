"""Whether this container can do its work: exit code 0, else a sentence and 1.

ready.py          the database has the engine, of the version of this image
ready.py GROUP    this consumer has joined its group, and may use its schema in the database
"""

import contextlib
import os
import socket
import sys

import psycopg

from pyrunner.database import connect, session
from pyrunner.errors import PyrunnerError


def check_worker() -> None:
    """The installation is there, and ours."""
    with session("", "health", "crm_runner", read_only=True):
        pass


def check_consumer(group: str) -> None:
    """A member of the group is this host's."""
    from confluent_kafka.admin import AdminClient

    with contextlib.closing(connect("", name="health", read_only=True)) as connection:
        connection.execute("select has_schema_privilege(%s, 'usage')", (group,))
    servers = os.environ["PYRUNNER_BOOTSTRAP_SERVERS"]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (described,) = admin.describe_consumer_groups([group], request_timeout=5).values()
    mine = f"{group}@{socket.gethostname()}-"
    if not any(member.client_id.startswith(mine) for member in described.result().members):
        raise PyrunnerError(f"It has not joined the group {group} yet.")


def main() -> int:
    """Checks; tells what is not as it should be."""
    from confluent_kafka import KafkaException

    try:
        if len(sys.argv) > 1:
            check_consumer(sys.argv[1])
        else:
            check_worker()
    except (PyrunnerError, psycopg.Error, KafkaException) as error:
        print(str(error).strip())  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

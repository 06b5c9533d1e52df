"""Whether this container can do its work: exit code 0, else a sentence and 1.

ready.py          the database has the engine, of the version of this image
ready.py GROUP    this start of the consumer has joined its group, and may use its schema in the database
"""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Final

import psycopg

from pyrunner.database import connect, rows, session
from pyrunner.errors import PyrunnerError
from pyrunner.options import kafka_file

# made by the entrypoint at each start
NAMED: Final = Path("/tmp/kafka.properties")  # noqa: S108


def check_worker() -> None:
    """The installation is there, and ours."""
    with session("", "health", "crm_runner", read_only=True):
        pass


def check_consumer(group: str) -> None:
    """A member of the group is the consumer that the entrypoint has named."""
    from confluent_kafka.admin import AdminClient

    with contextlib.closing(connect("", name="health", read_only=True)) as connection:
        (answer,) = rows(connection, "select has_schema_privilege(%s, 'usage') as may", (group,))
    if not answer["may"]:
        raise PyrunnerError(f"Its login may not use the schema {group}.")
    servers = os.environ["PYRUNNER_BOOTSTRAP_SERVERS"]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (described,) = admin.describe_consumer_groups([group], request_timeout=5).values()
    # one with settings of its own is known by its host alone
    mine = kafka_file(NAMED)["client.id"] if NAMED.exists() else f"{group}@{socket.gethostname()}-"
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

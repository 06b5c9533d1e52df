"""Chessboard: an expired booking's property object is for sale again.

    python -m consumers.chessboard --dsn 'dbname=crm' --bootstrap-servers kafka:9092

It writes in schema chessboard and nowhere else. Until it has, crm.reserve_property refuses the object.
"""

from typing import Final

from consumers.command import (
    BootstrapOption,
    GroupOption,
    KafkaConfigOption,
    LevelOption,
    OnceOption,
    TopicOption,
    kafka_settings,
    log_at,
    main,
    stopping,
)
from consumers.consumer import Consumer
from consumers.effects import Handler, Service
from pyrunner.options import DsnOption, dsn_from

__all__ = ["CHESSBOARD", "chessboard"]

CHESSBOARD: Final = Service(
    name="chessboard",
    role="crm_chessboard",
    done="property freed",
    handlers=[
        Handler(
            "BookingExpiredEvent",
            1,
            """
            chessboard.free_property(
                id,
                (payload ->> 'bookingId')::uuid,
                (payload ->> 'propertyObjectId')::uuid,
                (payload ->> 'tenantId')::uuid,
                payload ->> 'phase',
                (payload ->> 'expiredAt')::timestamptz,
                topic
            )
            """,
        )
    ],
)


def chessboard(
    dsn: DsnOption = None,
    bootstrap_servers: BootstrapOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    kafka_config: KafkaConfigOption = None,
    once: OnceOption = False,
    log_level: LevelOption = None,
) -> None:
    """Free the property objects of expired bookings until SIGTERM.

    What is in hand is finished then: its transaction, its offsets, the farewell to the group. Start as many
    as you like, up to the partitions of the topic. Needs the privileges of crm_chessboard.
    """
    with stopping() as stop:
        Consumer(
            CHESSBOARD,
            dsn=dsn_from(dsn),
            kafka=kafka_settings(bootstrap_servers, kafka_config),
            group=group,
            topics=topic or (),
            once=once,
            log=log_at(log_level),
            stop=stop,
        ).run()


if __name__ == "__main__":
    main("chessboard", chessboard)

"""The demo's CRM: rows made up from a seed, the same ones each time, streamed into the tables by COPY.

Deadlines are relative to one moment, the database's clock when loading begins. Nothing but the rows that are
overdue at that moment becomes overdue within the next ten minutes, so that the story is the same each time.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

import psycopg
from psycopg.sql import SQL, Identifier

__all__ = ["FEWEST_BOOKINGS", "FEWEST_LEADS", "POISON_VERSION", "Crm", "Table"]

POISON_VERSION: Final = 2**31 - 1
# below these there are too few overdue rows for everybody who takes part in the story
FEWEST_LEADS: Final = 200
FEWEST_BOOKINGS: Final = 500

_POISONED_LEADS: Final = 5
_POISONED_RESERVES: Final = 2
_POISONED_BOOKINGS: Final = 1
_TENANT_SHARES: Final = (38, 24, 16, 11, 7, 4)
_LINES_A_WRITE: Final = 1000
_NULL: Final = r"\N"

_MINUTE: Final = 60.0
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# (from, to) seconds after the moment of loading
_Span = tuple[float, float]
_SOON: Final = 10 * _MINUTE
_LEAD_OVERDUE: Final[_Span] = (-2 * _DAY, -2 * _MINUTE)
_LEAD_AHEAD: Final[_Span] = (_SOON, 30 * _DAY)
_BOOKING_OVERDUE: Final[_Span] = (-3 * _HOUR, -2 * _MINUTE)
_RESERVE_AHEAD: Final[_Span] = (_SOON, 20 * _HOUR)
_BOOKING_AHEAD: Final[_Span] = (_SOON, 7 * _DAY)
_LONG_AGO: Final[_Span] = (-90 * _DAY, -3 * _DAY)
# poison has the oldest deadlines, so that every batch would meet it first
_POISON: Final[_Span] = (-3 * _DAY, -3 * _DAY + _MINUTE)

# status, share in per cent, deadline
_LEADS: Final = (
    ("Active", 40, _LEAD_OVERDUE),
    ("Active", 45, _LEAD_AHEAD),
    ("Expired", 10, _LONG_AGO),
    ("Archived", 5, _LONG_AGO),
)
_BOOKINGS: Final = (
    ("Reserved", 4, _BOOKING_OVERDUE),
    ("AwaitingPayment", 2, _BOOKING_OVERDUE),
    ("Booked", 4, _BOOKING_OVERDUE),
    ("Reserved", 15, _RESERVE_AHEAD),
    ("AwaitingPayment", 10, _RESERVE_AHEAD),
    ("Booked", 35, _BOOKING_AHEAD),
    ("ReserveExpired", 10, _LONG_AGO),
    ("BookingExpired", 8, _LONG_AGO),
    ("Cancelled", 12, _LONG_AGO),
)


@dataclass(frozen=True)
class Table:
    """A table to be filled.

    Attributes:
        name: in schema crm.
        columns: in the order of `lines`.
        count: rows.
        lines: the rows in COPY's text format.
    """

    name: LiteralString
    columns: tuple[LiteralString, ...]
    count: int
    lines: Iterator[str]

    def load(self, connection: psycopg.Connection[Any], advance: Callable[[int], None]) -> None:
        """Copies all rows, in the transaction at hand; `advance` is told how many more, again and again."""
        statement = SQL("copy crm.{} ({}) from stdin").format(
            Identifier(self.name), SQL(", ").join(map(Identifier, self.columns))
        )
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            while lines := list(itertools.islice(self.lines, _LINES_A_WRITE)):
                copy.write("".join(lines))
                advance(len(lines))


@dataclass(frozen=True)
class Crm:
    """A CRM of that size.

    Attributes:
        leads: how many; a fifth of them has a fixation.
        bookings: how many; each has a deal, and each deal a lead.
        seed: the same seed makes the same rows.
        moment: what "overdue" is measured against.
    """

    leads: int
    bookings: int
    seed: int
    moment: datetime

    @property
    def tenants(self) -> int:
        """How many tenants share it."""
        return len(_TENANT_SHARES)

    def tables(self) -> list[Table]:
        """The tables, in the order in which their foreign keys want them filled."""
        return [
            Table(
                "leads",
                (
                    "id", "tenant_id", "executor_agent_user_id", "primary_investor_user_id", "status",
                    "expires_at", "expired_at", "created_at", "updated_at", "version",
                ),
                self.leads,
                self._lead_lines(),
            ),
            Table(
                "fixations",
                ("id", "tenant_id", "lead_id", "created_at", "updated_at"),
                -(-self.leads // 5),
                self._fixation_lines(),
            ),
            Table(
                "deals",
                ("id", "tenant_id", "lead_id", "created_at", "updated_at"),
                self.bookings,
                self._deal_lines(),
            ),
            Table(
                "bookings",
                (
                    "id", "tenant_id", "deal_id", "property_object_id", "status", "reserve_expires_at",
                    "booking_expires_at", "expired_at", "created_at", "updated_at", "version",
                ),
                self.bookings,
                self._booking_lines(),
            ),
        ]  # fmt: skip

    # ------------------------------------------------------------ rows

    def _lead_lines(self) -> Iterator[str]:
        make = self._random("leads")
        kinds = _mixed(_LEADS)
        poisoned = 0
        for (lead, tenant), (status, span) in zip(self._lead_keys(), kinds, strict=False):
            version = 1
            if span is _LEAD_OVERDUE and poisoned < _POISONED_LEADS:
                poisoned += 1
                span, version = _POISON, POISON_VERSION
            deadline = self._instant(make, span)
            expired_at = deadline + timedelta(minutes=make.uniform(1, 60)) if status == "Expired" else None
            created_at = deadline - timedelta(days=30)
            yield _line(
                lead, tenant, _uuid(make), _uuid(make) if make.random() < 0.8 else None, status, deadline,
                expired_at, created_at, expired_at or created_at, version,
            )  # fmt: skip

    def _fixation_lines(self) -> Iterator[str]:
        make = self._random("fixations")
        for lead, tenant in itertools.islice(self._lead_keys(), 0, None, 5):
            made_at = self._instant(make, _LONG_AGO)
            yield _line(_uuid(make), tenant, lead, made_at, made_at)

    def _deal_lines(self) -> Iterator[str]:
        make = self._random("deal times")
        for deal, tenant, lead in self._deal_keys():
            made_at = self._instant(make, _LONG_AGO)
            yield _line(deal, tenant, lead, made_at, made_at)

    def _booking_lines(self) -> Iterator[str]:
        make = self._random("bookings")
        kinds = _mixed(_BOOKINGS)
        reserves = bookings = 0
        for (deal, tenant, _), (status, span) in zip(self._deal_keys(), kinds, strict=False):
            version = 1
            is_reserve = status in ("Reserved", "AwaitingPayment", "ReserveExpired")
            if span is _BOOKING_OVERDUE:
                if is_reserve and reserves < _POISONED_RESERVES:
                    reserves += 1
                    span, version = _POISON, POISON_VERSION
                elif not is_reserve and bookings < _POISONED_BOOKINGS:
                    bookings += 1
                    span, version = _POISON, POISON_VERSION
            deadline = self._instant(make, span)
            reserve, booking = (deadline, None) if is_reserve else (deadline - timedelta(days=6), deadline)
            expired_at = deadline + timedelta(minutes=make.random()) if status.endswith("Expired") else None
            created_at = reserve - timedelta(days=1)
            yield _line(
                _uuid(make), tenant, deal, _uuid(make), status, reserve, booking, expired_at, created_at,
                expired_at or created_at, version,
            )  # fmt: skip

    # ------------------------------------------------------------ keys, made again wherever they are wanted

    def _lead_keys(self) -> Iterator[tuple[str, str]]:
        """Lead and tenant of each lead."""
        make = self._random("lead keys")
        shares = [tenant for share in _TENANT_SHARES for tenant in [_uuid(make)] * share]
        for _ in range(self.leads):
            yield _uuid(make), shares[int(make.random() * 100)]

    def _deal_keys(self) -> Iterator[tuple[str, str, str]]:
        """Deal, tenant and lead of each deal; where there are more deals than leads, leads have several."""
        make = self._random("deal keys")
        leads = itertools.chain.from_iterable(self._lead_keys() for _ in itertools.count())
        for lead, tenant in itertools.islice(leads, self.bookings):
            yield _uuid(make), tenant, lead

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed} {purpose}")  # noqa: S311 - made-up rows

    def _instant(self, make: random.Random, span: _Span) -> datetime:
        return self.moment + timedelta(seconds=make.uniform(*span))


def _mixed(kinds: tuple[tuple[str, int, _Span], ...]) -> Iterator[tuple[str, _Span]]:
    """Kinds without end, in exactly these shares of every hundred, mixed."""
    hundred = [(status, span) for status, share, span in kinds for _ in range(share)]
    random.Random(0).shuffle(hundred)  # noqa: S311 - made-up rows
    return itertools.cycle(hundred)


def _uuid(make: random.Random) -> str:
    """A random UUID (version 4)."""
    number = make.getrandbits(128)
    return f"{number & ~(0xF000 << 64 | 0xC000 << 48) | 0x4000 << 64 | 0x8000 << 48:032x}"


def _line(*values: str | int | datetime | None) -> str:
    return "\t".join([_NULL if value is None else str(value) for value in values]) + "\n"

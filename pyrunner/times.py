"""Durations and instants as people write and read them: 01:00:00, "90 s", ISO 8601; always UTC."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["FIRST", "LAST", "format_duration", "format_instant", "parse_duration", "parse_instant"]

_CLOCK: Final = re.compile(
    r"(?:(?P<days>\d{1,8})\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{1,2})"
    r"(?::(?P<seconds>\d{1,2})(?:\.(?P<fraction>\d{1,7}))?)?",
    re.ASCII,
)
_PART: Final = re.compile(
    r"\s*(?P<number>\d{1,12}(?:\.\d{1,9})?)\s*(?P<unit>[a-z]+)\s*", re.ASCII | re.IGNORECASE
)
_UNITS: Final = {
    name: seconds
    for names, seconds in (
        ("ms millisecond milliseconds", 0.001),
        ("s sec second seconds", 1),
        ("m min minute minutes", 60),
        ("h hour hours", 3600),
        ("d day days", 86400),
    )
    for name in names.split()
}
FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)
DURATION: Final = "a time such as 01:00:00, '90 s' or '1 h 30 min'"
INSTANT: Final = "a time such as 2026-11-29T12:00:00Z, or 'DURATION ago' such as '2 h ago'"


def parse_duration(text: str) -> timedelta:
    """Reads hh:mm[:ss[.f]], d.hh:mm:ss as .NET writes it, or numbers with units.

    Raises:
        ValueError: it is neither; the message says what is wanted.
    """
    text = text.strip()
    try:
        if clock := _CLOCK.fullmatch(text):
            days, hours, minutes, seconds = (
                int(clock[part] or 0) for part in ("days", "hours", "minutes", "seconds")
            )
            if hours > 23 or minutes > 59 or seconds > 59:
                raise ValueError("a time with hours up to 23, minutes and seconds up to 59")
            fraction = int((clock["fraction"] or "0").ljust(7, "0")) / 10
            return timedelta(days, seconds, fraction, minutes=minutes, hours=hours)
        total = timedelta()
        position = 0
        while position < len(text):
            part = _PART.match(text, position)
            if part is None or part["unit"].lower() not in _UNITS:
                raise ValueError(DURATION)
            total += timedelta(seconds=float(part["number"]) * _UNITS[part["unit"].lower()])
            position = part.end()
    except OverflowError:
        raise ValueError(DURATION) from None
    if not text:
        raise ValueError(DURATION)
    return total


def format_duration(duration: timedelta) -> str:
    """As the documents write it: 01:00:00, 1.00:00:00 for a day, 00:00:00.25."""
    seconds, microseconds = divmod(abs(duration) // timedelta(microseconds=1), 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (
        ("-" if duration < timedelta() else "")
        + (f"{days}." if days else "")
        + f"{hours:02}:{minutes:02}:{seconds:02}"
        + (f".{microseconds:06}".rstrip("0") if microseconds else "")
    )


def parse_instant(text: str) -> datetime:
    """Reads an ISO 8601 time, in UTC unless it says otherwise, or a duration followed by "ago".

    Raises:
        ValueError: it is neither; the message says what is wanted.
    """
    text = text.strip()
    try:
        if text.lower().endswith("ago"):
            return datetime.now(UTC) - parse_duration(text[:-3])
        instant = datetime.fromisoformat(text)
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(INSTANT) from None


def format_instant(instant: datetime) -> str:
    """In UTC by ISO 8601, with microseconds: 2026-11-29T12:00:00.000000Z; -infinity, infinity."""
    if instant in (FIRST, LAST):
        return "-infinity" if instant == FIRST else "infinity"
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

"""Writes numbers, lengths of time, money and times of day as texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from math import floor, log10

THIN = "\u202f"
"""A narrow space that does not break: between thousands, before units."""
WIDE = "\u00a0"
"""A space that does not break: within a length of time."""
SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£"}
SMALLEST = Decimal("1e-9")
BACKLOG_QUEUES = "/x-servicebus-transfer/"
"""Part of the path of every backlog queue."""

Local = Callable[[datetime], datetime]
"""Function that turns a time into that of the reader's clock, as `datetime.astimezone` does for this machine."""


def count(number: int) -> str:
    """Return a number with spaces between thousands: 1 204"""
    return f"{number:,}".replace(",", THIN)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 outage, 2 outages, no outage"""
    many = plural or f"{noun}s"
    return f"no {noun}" if number == 0 else f"{count(number)}{WIDE}{noun if number == 1 else many}"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Return names in a sentence: orders, payments and shipping; orders, payments, shipping and 4 more"""
    if len(names) > shown + 1:
        return f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def duration(seconds: float) -> str:
    """Return a length of time: 820 ms, 12.4 s, 8 min 24 s, 2 h 05 min, 3 d 4 h"""
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}{THIN}ms" if seconds else f"0{THIN}s"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + f"{THIN}s"
    whole = round(seconds)
    minutes, rest_s = divmod(whole, 60)
    if whole < 3600:
        return f"{minutes}{THIN}min" + (f"{WIDE}{rest_s}{THIN}s" if rest_s else "")
    hours, rest_min = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours}{THIN}h" + (f"{WIDE}{rest_min:02d}{THIN}min" if rest_min else "")
    days, rest_h = divmod(round(seconds / 3600), 24)
    return f"{days}{THIN}d" + (f"{WIDE}{rest_h}{THIN}h" if rest_h else "")


def percent(value: float) -> str:
    """Return a percentage, rounded down, with enough digits to tell 99.9987 from 100."""
    if value >= 100:
        return f"100{THIN}%"
    missing = Decimal(repr(100 - value))
    digits = min(max(1 - floor(log10(missing)), 1), 6)
    cut = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_DOWN)
    return f"{cut}{THIN}%"


def size(number: int) -> str:
    """Return a number of bytes in units of 1000, as bandwidth is sold: 1.2 MB"""
    value = float(number)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f}{THIN}{unit}" if unit == "bytes" or value >= 99.5 else f"{value:.3g}{THIN}{unit}"


def money(amount: Decimal, currency: str) -> str:
    """Return an amount: $1 204.50, $0.0123; two decimal places from one on, three significant digits below."""
    sign = "−" if amount < 0 else ""
    amount = abs(amount)
    if amount == 0:
        figures = "0"
    elif amount < SMALLEST:
        sign, figures = f"{sign}<", f"{SMALLEST:f}"
    elif amount >= Decimal("0.9995"):
        figures = f"{amount:,.2f}".replace(",", THIN)
    else:
        places = min(2 - amount.adjusted(), 9)
        figures = f"{amount:.{max(places, 2)}f}"
    symbol = SYMBOLS.get(currency, f"{currency}{THIN}")
    return f"{sign}{symbol}{figures}"


def share(part: Decimal | int, whole: Decimal | int) -> str:
    """Return a share in percent: 12 %, <1 %; 0 % when the whole is 0."""
    if not whole or not part:
        return f"0{THIN}%"
    value = float(100 * part / whole)
    return f"<1{THIN}%" if value < 1 else f"{value:.0f}{THIN}%"


def times(larger: Decimal, smaller: Decimal) -> str:
    """Return the ratio of two amounts: 66, 1.4, 12 000."""
    ratio = larger / smaller
    return count(round(ratio)) if ratio >= 10 else f"{ratio:.1f}"


def shortened(name: str, length: int = 48) -> str:
    """Return a name without its middle when it is long: backlog queues differ at their end."""
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def plain(words: str) -> str:
    """Return text for a terminal: one line with ordinary spaces, and without control characters of ids and reasons."""
    return "".join(char if char.isprintable() else "\ufffd" for char in words.replace(THIN, " ").replace(WIDE, " "))


def moment(text: str) -> datetime:
    """Parse a time of the ledger: 2026-03-01T12:00:05.000Z, 2026-03-01T12:00Z."""
    return datetime.fromisoformat(text).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The report's period; it decides how much of a time must be written."""

    begins: datetime
    ends: datetime
    local: Local | None = None
    "Function that returns the local time beside UTC; None: none is shown."

    @classmethod
    def of(cls, begins: str, ends: str, local: Local | None = None) -> Calendar:
        return cls(moment(begins), moment(ends), local)

    @property
    def seconds(self) -> float:
        return (self.ends - self.begins).total_seconds()

    def time(self, text: str) -> str:
        """Return a time as 12:00:05; with tenths in a period below five minutes, with the day in one of several
        days."""
        return self._written(moment(text))

    def both(self, text: str) -> str:
        """Return a time with its zone, and the local one if it differs: 12:00:05 UTC (13:00:05 CET)"""
        return f"{self.time(text)} UTC{self.local_of(text)}"

    def local_of(self, text: str) -> str:
        """Return the local time in brackets: ` (13:00:05 CET)`; empty when it is that of UTC."""
        at = self._local(moment(text))
        return "" if at is None else f" ({self._written(at)} {at.tzname()})"

    def _local(self, at: datetime) -> datetime | None:
        local = None if self.local is None else self.local(at)
        return local if local is not None and local.utcoffset() else None

    def _written(self, at: datetime) -> str:
        clock = f"{at:%H:%M:%S}" + (f".{at.microsecond // 100_000}" if self.seconds < 300 else "")
        days = {self.begins.date(), self.ends.date(), at.date()}
        return clock if len(days) == 1 else f"{at.day} {at:%b} {clock}"

    def between(self, window: Calendar) -> str:
        """Return a part of the period: 10:59:43 to 11:29:51 UTC"""
        return f"{self.time(window.begins.isoformat())} to {self.time(window.ends.isoformat())} UTC"

    def period(self) -> str:
        """Return the period: 1 March 2026, 09:00:00 to 15:00:00 UTC"""
        return f"{_period(self.begins, self.ends)} UTC"

    def local_period(self) -> str:
        """Return the period by the local clock, or an empty text: 1 March 2026, 10:00:00 to 16:00:00 CET"""
        first, last = self._local(self.begins), self._local(self.ends)
        return f"{_period(first, last)} {last.tzname()}" if first and last else ""


def _period(first: datetime, last: datetime) -> str:
    day = f"{first.day} {first:%B %Y}"
    if first.date() == last.date():
        return f"{day}, {first:%H:%M:%S} to {last:%H:%M:%S}"
    return f"{day}, {first:%H:%M} to {last.day} {last:%B %Y}, {last:%H:%M}"


def is_own(entity: str) -> bool:
    """Tell whether a path is pairing's own: a backlog queue, not an entity of the application."""
    return BACKLOG_QUEUES in entity

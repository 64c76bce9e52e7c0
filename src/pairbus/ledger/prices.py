"""Price sheets: prices of the service as data, and the arithmetic with them. Every amount of money is an estimate.

They are the files `price_sheets/*.toml`, and any file with the same fields; `docs/prices.md` explains the fields.
Money is `Decimal`, exact and never rounded here, except in `connections`, which divides by 744. A float is a TypeError.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal, localcontext
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from pairbus.errors import ConfigError

BasePer = Literal["subscription", "namespace", "none"]

GB_BYTES = 10**9
MONTH_HOURS = 744  # the service divides connection hours by this number in every month, also in shorter ones

_MILLION = 10**6
_EXACT = Context(prec=100)  # more digits than any sum of counts and prices has, whatever the caller's context is
_MONEY = re.compile(r"\d{1,9}(\.\d{1,12})?", re.ASCII)
_COUNT_MAX = 10**15
_SHEETS = "price_sheets"


@dataclass(frozen=True, slots=True)
class Tier:
    up_to: int | None
    "Number of the month's last operation or connection at this price, included ones counted. None: no end."
    price: Decimal
    "Price of a million operations, or of one connection."


@dataclass(frozen=True, slots=True)
class PriceSheet:
    """Prices of one tier of the service. All amounts that the methods return are estimates."""

    name: str
    currency: str
    date: str
    "Date of the newest dated source."
    source: str
    base_per_hour: Decimal
    base_per: BasePer
    "Payer of the base charge: the subscription, once, or every namespace."
    included_operations: int
    "Free operations of a month."
    tiers: tuple[Tier, ...]
    "Prices of operations; empty when operations are not charged."
    bandwidth_per_gb: Decimal
    "Price of a GB between the regions of the two namespaces."
    included_connections: int
    connection_tiers: tuple[Tier, ...]
    messaging_unit_per_hour: Decimal
    replication_per_gb: Decimal

    def charge(self, operations_before: int, operations: int) -> Decimal:
        """Return the price of operations after earlier ones of the month; prices of parts add up to the whole price."""
        before = _count(operations_before)
        after = before + _count(operations)
        with localcontext(_EXACT):
            first, last = (_price(count, self.included_operations, self.tiers) for count in (before, after))
            return (last - first) / _MILLION

    def base(self, hours: Decimal | int, namespaces: int, units: int = 1) -> Decimal:
        """Return the fixed cost of namespaces: the base charge, or the messaging units of each of them."""
        _count(namespaces)
        payers = {"subscription": min(namespaces, 1), "namespace": namespaces, "none": 0}[self.base_per]
        with localcontext(_EXACT):
            return self.base_per_hour * _exact(hours) * payers + self.capacity(hours, units, namespaces)

    def capacity(self, hours: Decimal | int, units: int, regions: int) -> Decimal:
        """Return the price of messaging units in each of some regions."""
        with localcontext(_EXACT):
            return self.messaging_unit_per_hour * _exact(hours) * _count(units) * _count(regions)

    def bandwidth(self, bytes_: int) -> Decimal:
        """Return the price of bytes between the regions; a GB is 10⁹ bytes."""
        with localcontext(_EXACT):
            return self.bandwidth_per_gb * _count(bytes_) / GB_BYTES

    def replication(self, bytes_: int) -> Decimal:
        """Return the price of bytes that geo-replication copies; a GB is 10⁹ bytes."""
        with localcontext(_EXACT):
            return self.replication_per_gb * _count(bytes_) / GB_BYTES

    def connections(self, peaks_per_hour: Sequence[int]) -> Decimal:
        """Return the price of a month's connections, from the peak number of open connections in each hour.

        The service charges the sum of the peaks divided by 744, less the included connections. Rounded to 28 digits.
        """
        hours = sum(map(_count, peaks_per_hour))
        scaled = tuple(
            Tier(None if tier.up_to is None else tier.up_to * MONTH_HOURS, tier.price) for tier in self.connection_tiers
        )
        with localcontext(_EXACT):
            money = _price(hours, self.included_connections * MONTH_HOURS, scaled)
        return Context(prec=28).divide(money, Decimal(MONTH_HOURS))


def load(name_or_path: str | PathLike[str]) -> PriceSheet:
    """Load a price sheet of `names()`, or a file. ConfigError names the file, the field and what was expected."""
    text = str(name_or_path)
    if text in names():
        return _parsed(_folder() / f"{text}.toml", text)
    path = Path(name_or_path)
    try:
        is_file = path.is_file()
    except OSError as error:  # its folder cannot be read, or the name is too long
        raise _unreadable(text, error) from None
    if not is_file:
        raise ConfigError(f"There is no price sheet {text!r}: give a file, or one of {', '.join(names())}.")
    return _parsed(path, text)


def names() -> tuple[str, ...]:
    """Return the names of the price sheets that come with Pairbus."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")))


def _folder() -> Traversable:
    return files("pairbus.ledger") / _SHEETS


# ── arithmetic ──


def _price(count: int, included: int, tiers: Sequence[Tier]) -> Decimal:
    """Return the price of the first `count` operations or connections of a month, in the unit of the tiers' prices."""
    money, priced = Decimal(0), included
    for tier in tiers:
        end = count if tier.up_to is None else min(count, tier.up_to)
        money += tier.price * max(end - priced, 0)
        priced = max(priced, end)
    return money


def _count(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    if value < 0:
        raise ValueError(f"{value} is negative")
    return value


def _exact(value: Decimal | int) -> Decimal:
    if not isinstance(value, Decimal | int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is neither a Decimal nor a whole number")
    if not Decimal(value).is_finite() or value < 0:
        raise ValueError(f"{value} is not a length of time")
    return Decimal(value)


# ── files ──


def _parsed(file: Traversable, name: str) -> PriceSheet:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(name, error) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The price sheet {name} is not text in UTF-8.") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, a number of thousands of digits, deep nesting
        raise ConfigError(f"The price sheet {name} is not TOML: {error}") from None
    try:
        sheet = PriceSheet(**_values(table, _FIELDS))
        _check_together(sheet)
    except ValueError as error:
        raise ConfigError(f"The price sheet {name}: {error}") from None
    return sheet


def _unreadable(name: str, error: OSError) -> ConfigError:
    return ConfigError(f"The price sheet {name} cannot be read: {error.strerror or error}")


def _values(table: dict[str, Any], readers: Mapping[str, Callable[[Any], Any]], place: str = "") -> dict[str, Any]:
    """Read every field. A missing or unknown field is a ValueError: a misspelt price must not become 0."""
    for name in table:
        if name not in readers:
            raise ValueError(f"{place}{name} is not a field of a price sheet; known are {', '.join(readers)}")
    values = {}
    for name, reader in readers.items():
        if name not in table and reader is not _up_to:
            raise ValueError(f"{place}{name} is missing")
        try:
            values[name] = reader(table.get(name))
        except ValueError as error:
            raise ValueError(f"{place}{name} {error}") from None
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"is {value!r}; it must be a text")
    return value


def _day(value: Any) -> str:
    try:
        return date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise ValueError(f'is {value!r}; it must be a day in quotes, such as "2026-09-20"') from None


def _money(value: Any) -> Decimal:
    if not isinstance(value, str) or _MONEY.fullmatch(value) is None:
        raise ValueError(f'is {value!r}; it must be an amount in quotes, such as "0.80"')
    return Decimal(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _COUNT_MAX:
        raise ValueError(f"is {value!r}; it must be a whole number from 0 to {_COUNT_MAX}")
    return value


def _up_to(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _base_per(value: Any) -> str:
    if value not in get_args(BasePer):
        raise ValueError(f"is {value!r}; it must be one of {', '.join(get_args(BasePer))}")
    return str(value)


def _tiers(price: str) -> Callable[[Any], tuple[Tier, ...]]:
    """Make a reader of tiers whose price field has this name."""

    def read(value: Any) -> tuple[Tier, ...]:
        if not isinstance(value, list) or not all(isinstance(tier, dict) for tier in value):
            raise ValueError(f"is {value!r}; it must be a list of tables with up_to and {price}")
        tiers = []
        for number, table in enumerate(value, 1):
            values = _values(table, {"up_to": _up_to, price: _money}, f"tier {number}: ")
            tiers.append(Tier(values["up_to"], values[price]))
        ends = [tier.up_to for tier in tiers]
        if tiers and ends[-1] is not None:
            raise ValueError(f"tier {len(tiers)}: up_to is {ends[-1]}; the last tier must have no up_to")
        for number, (end, above) in enumerate(pairwise([0, *ends[:-1]]), 1):
            if end is None or above is None or above <= end:
                raise ValueError(f"tier {number}: up_to is {above}; it must be more than {end}, where the tier begins")
        return tuple(tiers)

    return read


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "currency": _text,
    "date": _day,
    "source": _text,
    "base_per_hour": _money,
    "base_per": _base_per,
    "included_operations": _whole,
    "tiers": _tiers("per_million"),
    "bandwidth_per_gb": _money,
    "included_connections": _whole,
    "connection_tiers": _tiers("per_connection"),
    "messaging_unit_per_hour": _money,
    "replication_per_gb": _money,
}


def _check_together(sheet: PriceSheet) -> None:
    if sheet.base_per == "none" and sheet.base_per_hour:
        raise ValueError(f"base_per is none; base_per_hour must then be 0, not {sheet.base_per_hour}")
    included = (
        ("tiers", sheet.tiers, sheet.included_operations),
        ("connection_tiers", sheet.connection_tiers, sheet.included_connections),
    )
    for name, tiers, free in included:
        if tiers and tiers[0].up_to is not None and tiers[0].up_to <= free:
            raise ValueError(f"{name} tier 1: up_to is {tiers[0].up_to}; it must be more than the {free} included")

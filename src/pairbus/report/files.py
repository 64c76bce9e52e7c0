"""Writes a report as files: JSON that reads back to the same values, and Parquet for further analysis."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any

from pairbus.errors import LedgerNewer
from pairbus.report.model import (
    SCHEMA,
    Amount,
    BacklogPoint,
    BillLine,
    Damage,
    DeadLetters,
    EntityAvailability,
    EntityOutage,
    OutageBill,
    RatePoint,
    Report,
    StateSpan,
)

DECIMAL_DIGITS, DECIMAL_SCALE = 38, 9

# ── JSON ──


def write_json(report: Report, path: str | PathLike[str]) -> None:
    """Write a report as JSON. Money is text, because most readers read a number of JSON as a float."""
    Path(path).write_text(json.dumps(asdict(report), indent=1, default=_text) + "\n", encoding="utf-8")


def read_json(path: str | PathLike[str]) -> Report:
    """Load a report that `write_json` wrote. LedgerNewer when a newer version wrote it."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    if document["schema"] > SCHEMA:
        raise LedgerNewer(
            f"{path} has schema {document['schema']}, and this version of Pairbus knows {SCHEMA}: upgrade it"
        )
    report = _made(Report, document)
    assert isinstance(report, Report)
    return report


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"{value!r} has no form in JSON")


def _made(hint: Any, value: Any) -> Any:
    """Convert a value of JSON into a value of this type. Fields that a newer version added are left out; those that
    an older one did not have keep their default."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _made(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_made(kind, item) for kind, item in zip(kinds, value, strict=True))
    if origin is dict:
        return {name: _made(arguments[1], item) for name, item in value.items()}
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        names = [field.name for field in fields(hint) if field.name in value or field.default is MISSING]
        return hint(**{name: _made(hints[name], value[name]) for name in names})  # type: ignore[operator]
    return hint(value)


# ── Parquet ──


@dataclass(frozen=True, slots=True)
class _Part:
    part: str
    "Name of a part, or `total` or `alone`."
    amount: Amount


@dataclass(frozen=True, slots=True)
class _Bar:
    up_to_s: float
    messages: int


def write_parquet(report: Report, folder: str | PathLike[str]) -> None:
    """Write a file for each table of the report: `lines.parquet`, `entities.parquet` and so on. Money is decimal."""
    import pyarrow as pa
    from pyarrow import parquet

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, (kind, items) in _tables(report).items():
        columns = dict(_columns(kind))
        rows = [_flat(item) for item in items]
        arrays = [pa.array([row.get(column) for row in rows], type_) for column, type_ in columns.items()]
        parquet.write_table(pa.table(arrays, names=list(columns)), target / f"{name}.parquet")


def _tables(report: Report) -> dict[str, tuple[type, Sequence[Any]]]:
    bill, availability = report.bill, report.availability
    parts = {**bill.parts, "total": bill.total, "alone": bill.alone}
    return {
        "lines": (BillLine, bill.lines),
        "parts": (_Part, [_Part(name, amount) for name, amount in parts.items()]),
        "outage_bills": (OutageBill, bill.outages),
        "entities": (EntityAvailability, [*availability.entities, availability.total]),
        "outages": (EntityOutage, availability.outages),
        "states": (StateSpan, availability.states),
        "backlog": (BacklogPoint, availability.backlog),
        "dead_letters": (DeadLetters, availability.dead_letters),
        "delays": (_Bar, [_Bar(*bar) for bar in availability.delays]),
        "rates": (RatePoint, availability.rates),
        "damage": (Damage, report.source.damage),
    }


def _columns(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and types of columns; fields of a nested value have its name as a prefix."""
    import pyarrow as pa

    simple = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    simple[Decimal] = pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE)
    for name, hint in typing.get_type_hints(kind).items():
        inner = next((each for each in typing.get_args(hint) if each is not type(None)), hint)
        if is_dataclass(inner):
            assert isinstance(inner, type)
            yield from _columns(inner, f"{prefix}{name}_")
        else:
            yield prefix + name, simple[inner]


def _flat(item: Any, prefix: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in fields(item):
        value = getattr(item, field.name)
        if isinstance(value, Decimal):
            value = round(value, DECIMAL_SCALE)
        row |= _flat(value, f"{prefix}{field.name}_") if is_dataclass(value) else {prefix + field.name: value}
    return row

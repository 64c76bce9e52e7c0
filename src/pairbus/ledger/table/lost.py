"""Corrects rows of lost rows that name removed files: sums of files whose rows a table has are taken out.

A full folder of a ledger loses its oldest files, and a row gets their sums. When the rows of such a file are in a
table, these sums would be counted in addition. This file does not import Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pairbus.ledger.rows import LOST_ROWS, SETTLED, RemovedFile, lost_details, lost_settlements, removed_files

AMOUNTS = ("rows", "count", "billable_operations", "bytes")
"Fields of a row that a `RemovedFile` has, in its order; it has settlements too, which are in the details of a row."

NO_SUMS = RemovedFile(0, 0, 0, 0, 0)


def files_named(values: Mapping[str, Any]) -> dict[str, RemovedFile]:
    """Return the removed files that a row names; `details` is an object, or its text in a table."""
    return removed_files(_details(values))


def settlements_of(values: Mapping[str, Any]) -> int:
    """Return the settlements among the operations of a row of lost rows."""
    return min(lost_settlements(_details(values)), values.get("billable_operations") or 0)


def sums_of_row(values: Mapping[str, Any]) -> RemovedFile:
    """Return the sums that a row adds to those of its file; the sums of removed files that it names are left out."""
    sums = _sums(values)
    sums = sums._replace(rows=sums.rows or 1)
    if values["kind"] == SETTLED:
        sums = sums._replace(settlements=sums.billable_operations)
    for removed in files_named(values).values():
        sums = sums.minus(removed)
    return sums


def _sums(values: Mapping[str, Any]) -> RemovedFile:
    return RemovedFile(0, *(values.get(name) or 0 for name in AMOUNTS))._replace(settlements=settlements_of(values))


def _details(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    details = values.get("details")
    if values.get("kind") != LOST_ROWS or details is None:
        return None
    parsed: Mapping[str, Any] = json.loads(details) if isinstance(details, str) else details
    return parsed


def without(values: Mapping[str, Any], in_table: Mapping[str, RemovedFile]) -> dict[str, Any] | None:
    """Return a row of lost rows without the sums of files that are in a table; None when nothing is left of the row."""
    removed = files_named(values)
    both = {name: in_table[name] for name in removed if name in in_table}
    if not both:
        return dict(values)
    left = _sums(values)
    for sums in both.values():
        left = left.minus(sums)
    if not any(left[1:5]):
        return None
    files = {name: sums.minus(both[name]) if name in both else sums for name, sums in removed.items()}
    files = {name: sums for name, sums in files.items() if any(sums[1:])}
    details = lost_details(files, left.settlements)
    is_text = isinstance(values["details"], str)
    details_text = json.dumps(details, separators=(",", ":")) if details is not None and is_text else details
    return {**values, **dict(zip(AMOUNTS, left[1:5], strict=True)), "details": details_text}

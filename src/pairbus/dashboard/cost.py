"""Estimates the running cost by a price sheet, from the operations that the page can know of.

A broker with a meter counts every operation. Azure does not say how many operations a namespace had: for Azure the page
counts the operations of paired clients and syphons on this machine, and its own calls. The sum is a lower bound, and
shown as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from pairbus.ledger.prices import MONTH_HOURS, PriceSheet

CENT = Decimal("0.01")

# Operations that clients and syphons count: the billed namespace, the words for it, operations of each. Sizes are not
# known: each message is taken as one of at most 64 KB. Settlements are free, as documented.
_OF_CLIENTS = (
    ("sent", "primary", "sends of paired clients"),
    ("pings", "primary", "pings"),
    ("diverted", "secondary", "sends to the backlog"),
)
_OF_SYPHONS = (("secondary", "receives of syphons"), ("primary", "sends of syphons"))


def visible_operations(pair: Mapping[str, Any], unmetered: Mapping[str | None, int]) -> dict[str, int]:
    """Count the operations of namespaces without a meter. `unmetered`: role → calls that the page made to it.

    A namespace alone has the role None: the page does not know whether clients use it as primary or secondary.
    """
    operations = {"administration by this page": sum(unmetered.values())}
    for name, role, words in _OF_CLIENTS:
        if role in unmetered:
            operations[words] = sum(one.get(name, 0) for one in pair.get("entities", {}).values())
    for role, words in _OF_SYPHONS:
        if role in unmetered:
            operations[words] = sum(one.get("moved", 0) for one in pair.get("syphons", []))
    return {words: count for words, count in operations.items() if count}


def running_cost(
    meters: Sequence[dict[str, list[int]]],
    sheet: PriceSheet,
    visible: Mapping[str, int] | None = None,
    namespaces: int = 0,
) -> dict[str, Any] | None:
    """Price the operations that meters counted since the brokers started, and the visible ones of other namespaces.

    `visible`: None when every namespace is a broker. `namespaces`: how many of them are Azure's.
    """
    if not meters and visible is None:
        return None
    billable: dict[str, int] = {}
    for meter in meters:
        for kind, (_, count, _) in meter.items():
            billable[kind] = billable.get(kind, 0) + count
    for kind, count in (visible or {}).items():
        billable[kind] = billable.get(kind, 0) + count
    total = sum(billable.values())
    # The month's free operations are left out: most accounts have used them, and otherwise the cost would always be 0.
    money = sheet.charge(sheet.included_operations, total)
    cost = {
        "billable_operations": total,
        "by_kind": dict(sorted(billable.items(), key=lambda item: -item[1])),
        "amount": f"{money:.4f}",
        "currency": sheet.currency,
        "sheet": sheet.name,
        "is_partial": visible is not None,
    }
    if namespaces:
        base = sheet.base(MONTH_HOURS, namespaces).quantize(CENT, ROUND_HALF_EVEN)
        cost["base_per_month"] = str(base)
    return cost

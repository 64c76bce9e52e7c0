"""The figures of a report by plain Python: every row in a list, every question a loop. Slow, and easy to believe.

Written from `docs/report.md`, and sharing nothing with `pairbus.report` but the names of its values.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from pairbus.errors import LedgerNewer
from pairbus.ledger.prices import PriceSheet
from pairbus.ledger.rows import Row, decode

NEVER = math.inf


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@dataclass
class Read:
    rows: list[Row]
    damaged: list[tuple[str, int]]
    jumps: list[tuple[str, int]]

    @cached_property
    def messages(self) -> list[Message]:
        return messages(self.rows)

    @cached_property
    def dead(self) -> list[tuple[str, str, str, int]]:
        return dead_letters(self.rows)

    @cached_property
    def outages(self) -> list[list[View]]:
        return outages(self.rows)


def read(folder: Path) -> Read:
    found = Read([], [], [])
    for path in sorted(folder.glob("*.jsonl")):
        above = None
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
            try:
                row = decode(line)
                if len(row.time) != 24:
                    raise ValueError(row.time)
                at = ms(row.time)
                if any(not 0 <= (value or 0) <= 10**15 for value in (row.count, row.billable_operations, row.bytes)):
                    raise ValueError("not possible")
                json.dumps(asdict(row), ensure_ascii=False).encode()
            except (ValueError, LedgerNewer):
                found.damaged.append((str(path), number))
                continue
            if above is not None and at < above - 1000:
                found.jumps.append((str(path), number))
            above = at
            found.rows.append(_lower(row))
    return found


def _lower(row: Row) -> Row:
    values: dict[str, Any] = {name: (getattr(row, name) or "").lower() for name in ("namespace", "entity", "queue")}
    return replace(row, **values)


# ── messages ──


@dataclass
class Message:
    entity: str
    message_id: str
    diverted: int
    queue: str
    home: float = NEVER
    moved_from: str | None = None
    dead: float = NEVER

    @property
    def ended(self) -> float:
        return max(self.diverted, min(self.home, self.dead))


def dead_letters(rows: list[Row]) -> list[tuple[str, str, str, int]]:
    """Entity, message id, reason, time; each message once for a reason."""
    found: dict[Any, tuple[str, str, str, int]] = {}
    diverted = [row for row in rows if row.kind == "diverted" and row.message_id]
    key: Any
    for number, row in enumerate(rows):
        if row.event == "DeadLettered":
            same = [each for each in diverted if each.message_id == row.message_id]
            here = [each.entity for each in same if each.queue == row.queue]
            spooled = [each.entity for each in same if each.queue == "spool"]
            entity = min(here or spooled or [row.queue], key=str)
            reason = (row.details or {})["reason"]
            key = (row.queue, row.message_id, reason) if row.message_id else number
            at = min(ms(row.time), found[key][3] if key in found else ms(row.time))
            found[key] = (entity or "", row.message_id or "", reason, at)
        if row.event == "SpoolRefused":
            key = ("refused", row.entity, row.message_id)
            at = min(ms(row.time), found[key][3] if key in found else ms(row.time))
            found[key] = (row.entity or "", row.message_id or "", "refused, stays in the spool", at)
    return list(found.values())


def messages(rows: list[Row]) -> list[Message]:
    found: dict[tuple[str, str], Message] = {}
    for row in rows:
        key = (row.entity or "", row.message_id or "")
        if row.kind == "diverted" and row.message_id:
            new = Message(*key, ms(row.time), row.queue or "")
            old = found.get(key, new)
            found[key] = min(old, new, key=lambda each: (each.diverted, each.queue))
    for row in rows:
        message = found.get((row.entity or "", row.message_id or ""))
        if row.kind == "moved" and message is not None:
            at = ms(row.time)
            if (at, row.queue or "") < (message.home, message.moved_from or ""):
                message.home, message.moved_from = at, row.queue
    for entity, message_id, _, at in dead_letters(rows):
        message = found.get((entity, message_id))
        if message is not None:
            message.dead = min(message.dead, at)
    for row in filter(is_forwarded_home, rows):
        message = found.get((row.entity or "", row.message_id or ""))
        if message is not None:
            message.home = min(message.home, ms(row.time))
    for message in found.values():
        message.home = max(message.home, message.diverted)
    return list(found.values())


def is_forwarded_home(row: Row) -> bool:
    return row.event == "SpoolForwarded" and (row.details or {})["to"] == "primary"


def nearest_rank(values: list[int], percent: int) -> float:
    return sorted(values)[math.ceil(Fraction(percent * len(values), 100)) - 1] / 1000


# ── outages ──


@dataclass
class View:
    """Outage of one entity as one process saw it."""

    run: str
    entity: str
    begins: int
    reason: str
    over: int | None = None
    ends: int = 0
    recovered: bool = False
    forced: bool = False


def views(rows: list[Row]) -> list[View]:
    found = []
    for run in sorted({row.run for row in rows}):
        mine = sorted((row for row in rows if row.run == run), key=lambda row: row.time)
        for entity in sorted({row.entity or "" for row in mine}):
            view: View | None = None
            for row in (row for row in mine if row.event is not None):
                details = row.details or {}
                if row.event in ("Suspected", "FailedOver") and row.entity == entity:
                    view = view or View(run, entity, ms(row.time), details["reason"])
                    if row.event == "FailedOver":
                        view.over = view.over or ms(row.time)
                        view.forced |= details["forced"]
                ends = (row.event == "Recovered" and row.entity == entity) or row.event == "PairingCleared"
                if ends and view is not None:
                    view.ends, view.recovered = ms(row.time), True
                    found.append(view)
                    view = None
            if view is not None:
                view.ends = ms(mine[-1].time)
                found.append(view)
    return found


def outages(rows: list[Row]) -> list[list[View]]:
    """Groups of views that overlap, in any way, until nothing can be put together any more."""
    groups = [[view] for view in views(rows)]
    again = True
    while again:
        again = False
        for one in groups:
            for other in groups:
                touch = any(a.begins <= b.ends and b.begins <= a.ends for a in one for b in other)
                if one is not other and one[0].entity == other[0].entity and touch:
                    one += other
                    groups.remove(other)
                    again = True
                    break
            if again:
                break
    return sorted(groups, key=lambda group: (group[0].entity, begins(group)))


def begins(outage: list[View]) -> int:
    return min(view.begins for view in outage)


def recovered(outage: list[View]) -> int | None:
    last = max(outage, key=lambda view: (view.ends, view.recovered))
    return last.ends if last.recovered else None


def outage_of(all_outages: list[list[View]], entity: str, at: int) -> int | None:
    """The last one that began before, or in the same second."""
    found = [
        number
        for number, outage in enumerate(all_outages)
        if outage[0].entity == entity and begins(outage) // 1000 * 1000 <= at
    ]
    return found[-1] if found else None


def within(all_outages: list[list[View]], number: int, rows: list[Row], kind: str) -> list[Row]:
    end = recovered(all_outages[number])
    return [
        row
        for row in rows
        if row.kind == kind
        and outage_of(all_outages, row.entity or "", ms(row.time)) == number
        and (end is None or ms(row.time) <= end)
    ]


def state_at(rows_views: list[View], entity: str, at: float) -> str:
    mine = [view for view in rows_views if view.entity == entity and view.begins <= at < view.ends]
    if any(view.over is not None and view.over <= at for view in mine):
        return "FAILED_OVER"
    return "SUSPECT" if mine else ""


# ── the bill ──


def part(row: Row) -> str:
    match row.cause, row.kind, row.side:
        case ("pairing", _, _) | ("syphon", "empty receive", _):
            return "idle"
        case ("failover", _, _) | ("spool", _, "secondary"):
            return "during"
        case ("syphon", _, _):
            return "after"
    return "application"


def paid(rows: list[Row], counting: str) -> list[Row]:
    return [
        row
        for row in rows
        if row.billable_operations is not None
        and row.kind != "failed send"
        and (counting == "strict" or row.kind != "complete")
    ]


def is_diverted_send(row: Row) -> bool:
    return (row.kind, row.side, row.outcome) == ("send", "secondary", "ok") and row.cause in ("failover", "spool")


def is_way_back(row: Row) -> bool:
    return (row.kind, row.side, row.cause) == ("receive", "secondary", "syphon")


def operations(rows: Iterable[Row]) -> int:
    return sum(row.billable_operations or 0 for row in rows)


def size(rows: Iterable[Row]) -> int:
    return sum(row.bytes or 0 for row in rows)


def charge(sheet: PriceSheet, before: int, count: int) -> Fraction:
    """Operation by operation, in steps: the price of each is that of the tier in which its number lies."""
    money = Fraction(0)
    edges = [sheet.included_operations, *(tier.up_to for tier in sheet.tiers)]
    for tier, low, high in zip(sheet.tiers, edges, edges[1:], strict=False):
        top = before + count if high is None else min(before + count, high)
        money += Fraction(tier.price) * max(0, top - max(before, low or 0)) / 10**6
    return money


def lines(rows: list[Row], counting: str) -> dict[tuple[str, ...], tuple[int, int]]:
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for row in paid(rows, counting):
        key = (row.namespace or "", row.side or "", row.entity or "", row.kind, part(row), f"{row.time[:13]}:00Z")
        before = found.get(key, (0, 0))
        found[key] = (before[0] + (row.billable_operations or 0), before[1] + (row.bytes or 0))
    return {key: value for key, value in found.items() if value != (0, 0)}


def average(
    rows: list[Row], kind: str, side: str, entity: str | None, causes: tuple[str, ...]
) -> tuple[Fraction, Fraction]:
    mine = [
        row
        for row in rows
        if (row.kind, row.side, row.entity, row.outcome) == (kind, side, entity, "ok") and row.cause in causes
    ]
    count = sum(row.count or 0 for row in mine)
    return (Fraction(operations(mine), count), Fraction(size(mine), count)) if count else (Fraction(1), Fraction(0))


Sums = tuple[Fraction, Fraction, Fraction]
"Operations, bytes, bytes that cross from one region to another."


def outage_bill(read: Read, number: int, counting: str) -> tuple[Sums, Sums]:
    """During and after."""
    every, rows = read.outages, read.rows
    pings = within(every, number, rows, "ping")
    during, after = [(Fraction(operations(pings)), Fraction(size(pings)), Fraction(0))], []
    for message in read.messages:
        if outage_of(every, message.entity, message.diverted) != number:
            continue
        queue = message.moved_from if message.queue == "spool" else message.queue
        if queue is not None:
            during.append(_crossing(average(rows, "send", "secondary", queue, ("failover", "spool"))))
        if message.moved_from is not None:
            after.append(_crossing(average(rows, "receive", "secondary", message.moved_from, ("syphon",))))
            after.append((*average(rows, "send", "primary", message.entity, ("syphon",)), Fraction(0)))
            if counting == "strict":
                after.append((*average(rows, "complete", "secondary", message.moved_from, ("syphon",)), Fraction(0)))
    return _added(during), _added(after)


def _crossing(step: tuple[Fraction, Fraction]) -> Sums:
    return (*step, step[1])


def _added(steps: list[Sums]) -> Sums:
    first, second, third = (sum((step[index] for step in steps), Fraction(0)) for index in range(3))
    return first, second, third


def counts(read: Read, entity: str) -> Counter[str]:
    """Count by hand the whole numbers that the report shows for an entity."""
    found: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    maybe, forwarded = set(), set()
    for row in (row for row in read.rows if row.entity == entity):
        if (row.kind, row.side, row.cause, row.outcome) == ("send", "primary", "application", "ok"):
            found["sent"] += row.count or 0
        if row.kind == "failed send":
            found["failed"] += row.count or 0
        if row.kind == "ping":
            found["pings"] += row.count or 0
        if row.kind in ("diverted", "moved") and not row.message_id:
            found[row.kind] += 1
        if row.kind == "moved" and row.message_id:
            moved[row.message_id] += 1
        if is_forwarded_home(row):
            forwarded.add(row.message_id)
        if row.event == "MaybeDuplicated":
            maybe.add(row.message_id)
    mine = [message for message in read.messages if message.entity == entity]
    found["diverted"] += len(mine)
    home = {message.message_id for message in mine if message.home < NEVER}
    found["moved"] += len(home | set(moved) | forwarded)
    found["duplicated"] = sum(times > 1 for times in moved.values())
    found["maybe_duplicated"] = len(maybe)
    found["dead_lettered"] = sum(letter[0] == entity for letter in read.dead)
    return found


def rates(rows: list[Row], width_s: int) -> dict[int, tuple[int, int, int]]:
    """Beginning of a span in milliseconds → messages accepted directly, diverted, failed."""
    found: dict[int, list[int]] = {}
    for row in rows:
        is_direct = (row.kind, row.side, row.cause, row.outcome) == ("send", "primary", "application", "ok")
        here = (
            (row.count or 0) if is_direct else 0,
            1 if row.kind == "diverted" else 0,
            (row.count or 0) if row.kind == "failed send" else 0,
        )
        if any(here):
            sums = found.setdefault(ms(row.time) // (width_s * 1000) * width_s * 1000, [0, 0, 0])
            sums[:] = [before + more for before, more in zip(sums, here, strict=True)]
    return {time: (sums[0], sums[1], sums[2]) for time, sums in found.items()}

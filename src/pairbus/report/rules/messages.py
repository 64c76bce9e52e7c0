"""Finds for each diverted message when it was diverted, when and how its wait ended, and its outage. No Spark here.

A message may have several rows of one kind: it was spooled and then sent to a backlog queue, moved twice, or
dead-lettered twice. The first row of each kind counts. All steps with one id must be given together; a ledger with many
messages is cut by the hash of their ids.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.report.passes.records import LettersSum, MessagesSum, MessageStep, TroubleSum, Wait, WaySum
from pairbus.report.passes.tally import DEAD, DIVERTED, FORWARDED, MAYBE, MOVED, REFUSED
from pairbus.report.rules.availability import UnhealthyTime, floor_second

SPOOL = "spool"
REFUSED_REASON = "refused, stays in the spool"
"Reason of a message that the spool could not forward; it counts as dead-lettered."
NONE = -1
"Number of the outage of a message that belongs to none."


class Outages:
    """Beginnings and ends of outages by entity, to find that of a row."""

    def __init__(self, spans: Sequence[UnhealthyTime]) -> None:
        self._begins: dict[str, list[int]] = {}
        self._numbers: dict[str, list[int]] = {}
        self._ends_ms = [span.ends_ms if span.is_over else None for span in spans]
        for number, span in enumerate(spans):  # sorted by entity and beginning
            self._begins.setdefault(span.entity, []).append(floor_second(span.begins_ms))
            self._numbers.setdefault(span.entity, []).append(number)

    def of(self, entity: str | None, time_ms: int) -> int:
        """Return the number of the entity's last outage that began before `time_ms` or in its second; NONE when there
        is none.

        Metered rows have only their second.
        """
        begins = self._begins.get(entity) if entity is not None else None
        index = bisect_right(begins, time_ms) if begins else 0
        return self._numbers[entity or ""][index - 1] if index else NONE

    def has_within(self, number: int, time_ms: int) -> bool:
        ends_ms = self._ends_ms[number]
        return ends_ms is None or time_ms <= ends_ms


@dataclass(slots=True)
class _Message:
    diverted: tuple[int, str] | None = None
    "Time and queue."
    moved: tuple[int, str] | None = None
    forwarded_ms: int | None = None
    moves: int = 0
    dead_ms: int | None = None


class _Steps:
    """Steps sorted by their meaning."""

    def __init__(self, steps: Iterable[MessageStep], outages: Outages) -> None:
        self.messages: dict[tuple[str | None, str], _Message] = {}
        self.troubles: dict[tuple[str, int], list[int]] = {}
        self.maybe: set[tuple[str, str]] = set()
        self._letters: dict[tuple[str | None, str, str | None], int] = {}
        self._refused: dict[tuple[str | None, str | None], int] = {}
        self._sent: dict[str, set[tuple[str | None, str | None]]] = {}
        "Message id → queues and entities to which it was diverted."
        self._dead_ids: set[str] = set()
        self._outages = outages
        for step in steps:
            self._add(step)

    def _add(self, step: MessageStep) -> None:
        name, entity, queue, message_id, reason, time_ms, *amounts = step
        if name in (DIVERTED, MOVED, FORWARDED):
            if message_id:
                self._of_message(name, entity, queue, message_id, time_ms)
        elif name == MAYBE:
            self.maybe.add((entity or "", message_id or ""))
        elif name == DEAD:
            letter = queue, message_id or "", reason
            self._letters[letter] = min(time_ms, self._letters.get(letter, time_ms))
        elif name == REFUSED:
            refused = entity, message_id
            self._refused[refused] = min(time_ms, self._refused.get(refused, time_ms))
        else:
            number = self._outages.of(entity, time_ms)
            if number != NONE and self._outages.has_within(number, time_ms):
                sums = self.troubles.setdefault((name, number), [0, 0, 0])
                for index, amount in enumerate(amounts):
                    sums[index] += amount

    def _of_message(self, name: str, entity: str | None, queue: str | None, message_id: str, time_ms: int) -> None:
        message = self.messages.get((entity, message_id))
        if message is None:
            message = self.messages[entity, message_id] = _Message()
        step = time_ms, queue or ""
        if name == DIVERTED:
            message.diverted = step if message.diverted is None else min(message.diverted, step)
            self._sent.setdefault(message_id, set()).add((queue, entity))
        elif name == MOVED:
            message.moves += 1
            message.moved = step if message.moved is None else min(message.moved, step)
        else:
            message.forwarded_ms = _least(message.forwarded_ms, time_ms)

    def dead(self) -> Iterator[tuple[str | None, str | None, str | None, int]]:
        """Yield messages that a syphon dead-lettered or a spool keeps as refused: entity, message_id, reason, time_ms.

        The row of a dead letter names the backlog queue. Its entity is that of the message with this id that was
        diverted to the queue, or spooled; when there is none, the queue takes the entity's place.
        """
        for (queue, message_id, reason), time_ms in self._letters.items():
            sent = self._sent.get(message_id, ())
            entities = [entity for to, entity in sent if to == queue] or [entity for to, entity in sent if to == SPOOL]
            entity = min(entities, key=lambda each: each or "") if entities else None
            yield entity if entity is not None else queue, message_id, reason, time_ms
        for (entity, message_id_), time_ms in self._refused.items():
            yield entity, message_id_, REFUSED_REASON, time_ms


def sums_of(steps: Iterable[MessageStep], outages: Outages) -> Iterator[Any]:
    """Put steps together: MessagesSum, LettersSum, TroubleSum and WaySum, and a Wait for each diverted message."""
    grouped = _Steps(steps, outages)
    letters: dict[tuple[str, str], int] = {}
    for entity, message_id, reason, time_ms in grouped.dead():
        key = entity or "", reason or ""
        letters[key] = letters.get(key, 0) + 1
        message = grouped.messages.get((entity, message_id or ""))
        if message is not None:
            message.dead_ms = _least(message.dead_ms, time_ms)
    yield from (LettersSum(*key, count) for key, count in letters.items())
    yield from (TroubleSum(kind, number, *sums) for (kind, number), sums in grouped.troubles.items())
    counts: dict[str, list[int]] = {}
    for entity, _ in grouped.maybe:
        counts.setdefault(entity, [0, 0, 0, 0])[3] += 1
    ways: dict[tuple[Any, ...], list[Any]] = {}
    for (entity_, _), message in grouped.messages.items():
        count = counts.setdefault(entity_ or "", [0, 0, 0, 0])
        wait = _wait(entity_ or "", message)
        count[1] += wait.home_ms is not None
        count[2] += message.moves > 1
        if message.diverted is not None:
            count[0] += 1
            _count_way(ways, message, wait, outages.of(entity_, wait.diverted_ms))
            yield wait
    yield from (MessagesSum(name, *each) for name, each in counts.items())
    yield from (WaySum(*key, *sums) for key, sums in ways.items())


def _count_way(ways: dict[tuple[Any, ...], list[Any]], message: _Message, wait: Wait, outage: int) -> None:
    assert message.diverted is not None
    moved = message.moved
    key = wait.entity, message.diverted[1] or None, moved[1] or None if moved else None, outage, int(moved is not None)
    sums = ways.setdefault(key, [0, 0, None])
    sums[0] += 1
    if wait.ended_ms is None:
        sums[1] += 1
    elif sums[2] is None or wait.ended_ms > sums[2]:
        sums[2] = wait.ended_ms


def _wait(entity: str, message: _Message) -> Wait:
    """Return the times of a message. When clocks differ and it came home before it left, both times are made equal."""
    diverted_ms = message.diverted[0] if message.diverted else None
    home_ms = _not_before(diverted_ms, _least(message.moved[0] if message.moved else None, message.forwarded_ms))
    ended_ms = _not_before(diverted_ms, _least(home_ms, message.dead_ms))
    return Wait(entity, 0 if diverted_ms is None else diverted_ms, home_ms, ended_ms)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _not_before(begin_ms: int | None, time_ms: int | None) -> int | None:
    return time_ms if time_ms is None or begin_ms is None else max(begin_ms, time_ms)

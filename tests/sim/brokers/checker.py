"""Promises that must hold in the end, when everything has been received and completed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pairbus.broker.entities.entity import Entity
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.store import ACTIVE, DEFERRED, SCHEDULED, box_of, dead_box_of, entity_of
from tests.sim.brokers.disk import Platter
from tests.sim.brokers.ledger import Call, Copy, Doubt, Ledger, Sent, Told
from tests.sim.brokers.process import BrokerProcess

if TYPE_CHECKING:
    from pairbus.broker.store import StoredMessage


def violations(ledger: Ledger, now_ms: int) -> list[str]:
    """Return one line for each broken promise about the messages that were sent."""
    return _Reckoning(ledger, now_ms).found


class _Reckoning:
    def __init__(self, ledger: Ledger, now_ms: int) -> None:
        self.found: list[str] = []
        self._ledger = ledger
        self._now_ms = now_ms
        self._missing: dict[str, list[str]] = {}
        "Places where messages are missing, and their texts: receive-and-delete may explain some of them."
        self._copies: dict[tuple[str, str], list[Copy]] = {}
        for copy in ledger.copies.values():
            self._copies.setdefault((copy.home, copy.text), []).append(copy)
        for sent in ledger.sent.values():
            self._check(sent)
        for path, texts in self._missing.items():
            if len(texts) > self._unseen(path):
                self.found.append(f"lost: {', '.join(texts)} in {path}; taken unseen: {self._unseen(path)}")
        for call in ledger.calls:
            self._check_whole(call)
        for doubt in ledger.doubts:
            self._check_doubt(doubt)

    def _unseen(self, path: str) -> int:
        """Messages that receive-and-delete may have cost there."""
        grave = self._ledger.topology.places[path].forward_dead_to
        return self._ledger.taken_unseen[path] + (self._ledger.taken_unseen[grave] if grave else 0)

    def _check(self, sent: Sent) -> None:
        arrivals = self._ledger.topology.arrivals(sent.entry, sent.color)
        is_due = sent.told is Told.YES and sent.cancelled is Told.NO
        is_possible = sent.told in (Told.YES, Told.UNKNOWN) and sent.cancelled is not Told.YES
        for path, text in self._copies:
            if text == sent.text and path not in arrivals:
                self.found.append(f"misrouted: {text} for {sent.entry} is in {path}, not in {list(arrivals)}")
        for path, count in arrivals.items():
            gone = self._ledger.gone[path, sent.text]
            maybe = sum(copy.doubt is not None for copy in self._copies.get((path, sent.text), ()))
            if gone > (count if is_possible else 0):
                self.found.append(
                    f"duplicate: {sent.text} for {sent.entry} ended {gone} times in {path}, not {count};"
                    f" told {sent.told.name}, cancelled {sent.cancelled.name}"
                )
            is_present = gone + maybe > 0
            if (is_due or is_present) and gone + maybe < count and not self._is_expired(sent, path):
                self._missing.setdefault(path, []).append(sent.text)

    def _is_expired(self, sent: Sent, path: str) -> bool:
        """Return whether the message may have been dropped because its time to live was over."""
        places = self._ledger.topology.places
        drops = not places[path].buries_expired
        grave = places[path].forward_dead_to  # the time to live begins again in this entity
        if grave is not None and not places[grave].buries_expired:
            drops = True
        return drops and 0 < sent.ttl_ms <= self._now_ms - sent.began_ms

    def _check_whole(self, call: Call) -> None:
        """A send whose answer is missing happened for all of its messages and everywhere, or not at all."""
        if call.told is not Told.UNKNOWN:
            return
        there, missing = [], []
        for text in call.texts:
            sent = self._ledger.sent[text]
            if len(sent.calls) > 1 or sent.cancels:
                continue
            for path in self._ledger.topology.arrivals(sent.entry, sent.color):
                if (path, text) in self._copies:
                    there.append((path, text))
                elif not self._is_expired(sent, path) and not self._unseen(path):
                    missing.append((path, text))
        if there and missing:
            self.found.append(f"in part: of the send of {call.texts} there is {there}, and {missing} is not")

    def _check_doubt(self, doubt: Doubt) -> None:
        """A completion whose answer is missing happened for all of its messages, or for none."""
        away = [copy for copy in doubt.copies if copy.doubt is doubt and not self._may_be_away(copy)]
        if away and doubt.back:
            texts = [copy.text for copy in away], [copy.text for copy in doubt.back]
            self.found.append(f"in part: of one completion {texts[0]} is done, and {texts[1]} is not")

    def _may_be_away(self, copy: Copy) -> bool:
        sent = self._ledger.sent[copy.text]
        has_moved = (copy.home, copy.text) in self._copies and len(self._copies[copy.home, copy.text]) > 1
        return has_moved or self._unseen(copy.home) > 0 or self._is_expired(sent, copy.home)


# ── counts ──


def miscounts(process: BrokerProcess, platter: Platter) -> list[str]:
    """Name the counts of an administrator that differ from the rows that are there, while nothing is under way."""
    rows: dict[int, list[StoredMessage]] = {}
    for box, message in platter.rows:
        rows.setdefault(box, []).append(message)
    found = []
    for holder in process.namespace.catalog.holders():
        shown, there = _shown(holder), _there(holder, rows, platter)
        if shown != there:
            found.append(f"miscounted: {holder.path} shows {shown}, and there are {there}")
    return found


def _shown(holder: Entity) -> dict[str, int]:
    if not isinstance(holder, Receivable):
        return {"scheduled": holder.scheduled_count}
    shown = {
        "active": holder.active_count,
        "deferred": holder.deferred_count,
        "dead": holder.dead_count,
        "bytes": holder.size_bytes,
    }
    return shown | ({"scheduled": holder.scheduled_count} if isinstance(holder, Queue) else {})


def _there(holder: Entity, rows: dict[int, list[StoredMessage]], platter: Platter) -> dict[str, int]:
    number = holder.entity_id
    main, dead = rows.get(box_of(number), []), rows.get(dead_box_of(number), [])
    states = Counter(message.state for message in main)
    if not isinstance(holder, Receivable):
        return {"scheduled": states[SCHEDULED]}
    size = sum(each.size + (platter.payload_bytes(each.payload) if each.payload else 0) for each in main + dead)
    there = {
        "active": states[ACTIVE],
        "deferred": states[DEFERRED],
        "dead": len(dead),
        "bytes": size + platter.state_bytes(number),
    }
    return there | ({"scheduled": states[SCHEDULED]} if isinstance(holder, Queue) else {})


def leftovers(platter: Platter) -> list[str]:
    """List rows that are still in the store although everything was completed."""
    found = [f"left: {message} of entity {entity_of(box)}" for box, message in platter.rows]
    if platter.payload_count:
        found.append(f"left: {platter.payload_count} payloads that no message shares")
    return found

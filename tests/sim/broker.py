"""Namespaces in memory: queues with peek-lock, lock expiry, dead-lettering, duplicate detection, and a switch for each
answer that a real one may give. What a message looks like when it is delivered is the embedded broker's own code."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from pairbus.broker.store import StoredMessage
from pairbus.broker.wire.deliveries import encode_delivery
from pairbus.broker.wire.messages import draft_of
from pairbus.transport.errors import Refused
from tests.sim.loop import VirtualLoop

if TYPE_CHECKING:
    from tests.sim.links import Outlet

LOCK_S = 60.0
EPOCH_MS = 1_700_000_000_000  # what the wall clock shows when the virtual one shows 0
PING = b"application/vnd.ms-servicebus-ping"
MESSAGE_ID = re.compile(rb"sim-\d{5}")

CONDITIONS = {
    "busy": "com.microsoft:server-busy",
    "full": "amqp:resource-limit-exceeded",
    "internal": "amqp:internal-error",
    "unauthorized": "amqp:unauthorized-access",
    "disabled": "com.microsoft:entity-disabled",
    "missing": "amqp:not-found",
    "detach": "amqp:link:detach-forced",
    "small": "amqp:link:message-size-exceeded",
}

NEVER_OPEN = frozenset({"unauthorized", "disabled", "missing"})
"Troubles under which not even a link is opened."


def wall_ms(now: float) -> int:
    return EPOCH_MS + int(now * 1000)


def id_of(payload: bytes) -> str:
    found = MESSAGE_ID.search(payload)
    assert found is not None, payload
    return found[0].decode()


@dataclass(slots=True)
class Copy:
    """One message in one queue."""

    message_id: str
    payload: bytes
    "The payload as it was sent."
    at: float
    via: str
    "Process that sent the copy, and its role."
    number: int
    deliveries: int = 0
    "Deliveries that ended without a word."
    lock: UUID | None = None
    locked_until: float = 0.0
    reason: str = ""
    "Reason for which it was dead-lettered."
    patch: bytes = b""
    "Application properties that a receiver has changed."


@dataclass(slots=True)
class Queue:
    path: str
    loop: VirtualLoop
    dice: Random
    window_s: float | None = None
    "Window of duplicate detection; None: there is none."
    lock_s: float = LOCK_S
    trouble: str | None = None
    "A key of CONDITIONS: how sends, and attaches where that makes sense, are answered."
    stores_nothing: bool = False
    "Messages are handed out, and settlements that would be written are refused: a disk is full."
    copies: dict[int, Copy] = field(default_factory=dict)
    dead: list[Copy] = field(default_factory=list)
    history: list[Copy] = field(default_factory=list)
    "Every copy that was ever stored."
    outlets: list[Outlet] = field(default_factory=list)
    _seen: dict[str, float] = field(default_factory=dict)
    _locks: dict[UUID, Copy] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def refuse(self, *, attaching: bool) -> None:
        """Raise the error that an entity in trouble answers to a sender. A full or throttled entity lets links open."""
        if self.trouble is None or (attaching and self.trouble not in NEVER_OPEN):
            return
        # When a link is detached, the sender cannot know whether messages that it sent on the link were stored.
        unknown = self.trouble == "detach"
        raise Refused(CONDITIONS[self.trouble], f"{self.path} is in trouble", outcome_unknown=unknown)

    # ── in ──

    def store(self, payloads: list[bytes], via: str) -> list[str]:
        """Store all payloads, or raise Refused; return the ids of those that are no duplicates."""
        self.refuse(attaching=False)
        stored, now = [], self.loop.time()
        for payload in payloads:
            if PING in payload:
                continue
            message_id = id_of(payload)
            seen = self._seen.get(message_id)
            if self.window_s is not None and seen is not None and now - seen <= self.window_s:
                continue
            self._seen[message_id] = now
            number = next(self._numbers)
            copy = self.copies[number] = Copy(message_id, payload, now, via, number)
            self.history.append(copy)
            stored.append(message_id)
        if stored:
            self.dispatch()
        return stored

    # ── out ──

    def dispatch(self) -> None:
        """Give free messages to receivers that wait, in order; which receiver is chance."""
        takers = [outlet for outlet in self.outlets if outlet.credit > 0]
        if not takers or self.trouble in NEVER_OPEN:
            return
        now = self.loop.time()
        given: dict[int, list[tuple[UUID, bytes]]] = {}
        for copy in [copy for copy in self.copies.values() if copy.lock is None]:
            if not takers:
                break
            outlet = self.dice.choice(takers)
            copy.lock = UUID(int=self.dice.getrandbits(128))
            copy.locked_until = now + self.lock_s
            self._locks[copy.lock] = copy
            self.loop.call_at(copy.locked_until, self._expire, copy.lock)
            given.setdefault(self.outlets.index(outlet), []).append((copy.lock, _delivered(copy)))
            outlet.credit -= 1
            if not outlet.credit:
                takers.remove(outlet)
        for index, batch in given.items():
            self.outlets[index].deliver(batch)

    def _expire(self, lock: UUID) -> None:
        copy = self._locks.get(lock)
        if copy is None:
            return
        if copy.locked_until > self.loop.time():
            self.loop.call_at(copy.locked_until, self._expire, lock)
            return
        self.unlock(lock)

    def unlock(self, lock: UUID) -> None:
        copy = self._locks.pop(lock, None)
        if copy is not None:
            copy.lock = None
            copy.deliveries += 1
            self.dispatch()

    # ── settling ──

    def held(self, lock: UUID) -> Copy | None:
        return self._locks.get(lock)

    def remove(self, lock: UUID, *, reason: str | None = None) -> None:
        """Completed, or with a reason dead-lettered."""
        copy = self._locks.pop(lock)
        del self.copies[copy.number]
        if reason is not None:
            copy.reason = reason
            self.dead.append(copy)

    def renew(self, lock: UUID) -> int:
        copy = self._locks.get(lock)
        if copy is None:
            raise Refused("com.microsoft:message-lock-lost", self.path)
        copy.locked_until = self.loop.time() + self.lock_s
        return wall_ms(copy.locked_until)


def _delivered(copy: Copy) -> bytes:
    """Return the payload with the service's fields: sequence number, times, delivery count."""
    draft = draft_of(copy.payload)
    stored = StoredMessage(
        copy.number,
        draft.body,
        annotations=draft.annotations,
        enqueued_ms=wall_ms(copy.at),
        ttl_ms=draft.ttl_ms or 0,
        delivery_count=copy.deliveries,
        patch=copy.patch,
    )
    return encode_delivery(stored, wall_ms(copy.locked_until))


class Namespace:
    """One endpoint. `refuses`, `is_silent` and the rest are switched by faults; the wire looks at them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.refuses = False
        "No connection is taken."
        self.is_silent = False
        "No byte comes through, in either direction."
        self.drops_answers = False
        "Requests are carried out, and their answers are lost."
        self.slowness = 1.0

    def queue(self, path: str) -> Queue:
        found = self.queues.get(path.lower())
        if found is None:
            raise Refused("amqp:not-found", f"{self.name} has no {path}")
        return found

"""The queue of a history: peek-lock, scheduled messages, deferred ones, dead letters, a limit of deliveries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pairbus.amqp.message import Message
from pairbus.transport import Scheduled
from tests.sim.broker import Copy, Queue, id_of

DELIVERIES_MAX = 10


@dataclass(slots=True)
class WorkQueue(Queue):
    """A queue that processors take from."""

    deliveries_max: int = DELIVERIES_MAX
    scheduled: dict[int, bytes] = field(default_factory=dict)
    deferred: list[Copy] = field(default_factory=list)
    completed: list[Copy] = field(default_factory=list)
    on_lock_end: Callable[[UUID, Copy], None] = lambda lock, copy: None
    "Called when a lock has run out."
    _schedules: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ids: set[str] = field(default_factory=set)

    @property
    def locked(self) -> list[Copy]:
        return list(self._locks.values())

    def places(self, message_id: str) -> list[str]:
        """Return where a message is; nothing when it was completed, or never sent."""
        rest = {"waiting": self.copies.values(), "dead-lettered": self.dead, "deferred": self.deferred}
        found = [place for place, copies in rest.items() for copy in copies if copy.message_id == message_id]
        return found + ["scheduled" for payload in self.scheduled.values() if id_of(payload) == message_id]

    # ── in ──

    def store(self, payloads: list[bytes], via: str) -> list[str]:
        """Store messages. One with an id that was stored before is dropped: the queue detects duplicates."""
        fresh = []
        for payload in payloads:
            properties = Message.decode(payload).properties
            assert properties is not None and isinstance(properties.message_id, str)
            if properties.message_id not in self._ids:
                self._ids.add(properties.message_id)
                fresh.append(payload)
        return Queue.store(self, fresh, via)

    def schedule(self, messages: Sequence[Scheduled], after_s: Sequence[float], via: str) -> None:
        self.refuse(attaching=False)
        for message, wait_s in zip(messages, after_s, strict=True):
            number = next(self._schedules)
            self.scheduled[number] = message.payload
            self.loop.call_later(max(wait_s, 0.0), self._due, number, via)

    def _due(self, number: int, via: str) -> None:
        trouble, self.trouble = self.trouble, None  # it troubles clients, not what the queue has accepted
        try:
            self.store([self.scheduled.pop(number)], via)
        finally:
            self.trouble = trouble

    # ── out ──

    def _expire(self, lock: UUID) -> None:
        copy = self._locks.get(lock)
        Queue._expire(self, lock)
        if copy is not None and lock not in self._locks:
            self.on_lock_end(lock, copy)

    def unlock(self, lock: UUID, *, counts: bool = True) -> None:
        copy = self._locks.get(lock)
        if copy is None:
            return
        if not counts:
            copy.deliveries -= 1
        elif copy.deliveries + 1 >= self.deliveries_max:
            self.remove(lock, reason="MaxDeliveryCountExceeded: it was delivered too often")
            return
        Queue.unlock(self, lock)

    def complete(self, lock: UUID) -> None:
        self.completed.append(self._locks[lock])
        self.remove(lock)

    def defer(self, lock: UUID) -> None:
        self.deferred.append(self._locks[lock])
        self.remove(lock)

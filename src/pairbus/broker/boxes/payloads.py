"""Bodies that several messages share: how many messages share each, and how much of a topic's quota they take.

A large body is a payload also when one message has it: SQLite writes a row again as a whole when it moves or gets a
longer head, so a message that becomes active, is deferred or dead-lettered would cost its body each time.
"""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.broker.budget import PAYLOAD_COST, MemoryBudget, Share
from pairbus.broker.store import PayloadRow

LARGE_BODY_BYTES = 64 << 10
"Size from which a body is a payload. A second row costs each message about as much as the body of 1 KB."


class Payload:
    """One shared body."""

    __slots__ = ("copies", "count", "size", "topic_id")

    def __init__(self, topic_id: int, size: int) -> None:
        self.topic_id = topic_id
        self.size = size
        self.count = 0
        "Committed messages that share it."
        self.copies = 0
        "Copies among them: messages in subscriptions of the topic."


class Payloads:
    """The shared bodies of a namespace. A payload counts once towards its topic while one of its subscriptions has it.

    Messages that were forwarded to a queue share the payload too, and count towards the queue (`forwarded`). The store
    has reference counts of its own, which decide when a payload is deleted.
    """

    def __init__(self, index: Share | None = None) -> None:
        """Make an empty collection; `index` is where its memory counts."""
        self._index = index or MemoryBudget().index.share()
        self._payloads: dict[int, Payload] = {}
        self._sizes: dict[int, int] = {}
        "Bytes of payloads by topic."
        self._are_copies = True
        "True when messages that are held and released here are copies in subscriptions."

    def forwarded(self) -> Payloads:
        """Return the same payloads as queues use them: their messages do not count towards the topic."""
        shared = Payloads(self._index)
        shared._payloads, shared._sizes, shared._are_copies = self._payloads, self._sizes, False
        return shared

    def recover(self, rows: Iterable[PayloadRow]) -> None:
        for payload, topic_id, size in rows:
            self.add(payload, topic_id, size)

    def size_of(self, payload: int) -> int | None:
        """Return the size of a payload; None: it is not there."""
        shared = self._payloads.get(payload)
        return None if shared is None else shared.size

    def add(self, payload: int, topic_id: int, size: int) -> None:
        """Add a payload that is committed, and not shared yet."""
        self._payloads[payload] = Payload(topic_id, size)
        self._index.take(PAYLOAD_COST)

    def admit(self, payload: int, queue_id: int, size: int) -> None:
        """Add the payload of a message that a queue has accepted, unless it was forwarded with its payload."""
        if payload not in self._payloads:
            self.add(payload, queue_id, size)

    def add_sharer(self, payload: int) -> None:
        """Count one more message that shares the payload."""
        shared = self._payloads[payload]
        shared.count += 1
        if self._are_copies:
            if not shared.copies:
                self._sizes[shared.topic_id] = self._sizes.get(shared.topic_id, 0) + shared.size
            shared.copies += 1

    def release(self, payloads: Iterable[int]) -> None:
        """Count one message less for each of the payloads. A payload that was lost has no count."""
        find = self._payloads.get
        for payload in payloads:
            shared = find(payload)
            if shared is None:
                continue
            shared.count -= 1
            if not shared.count:
                del self._payloads[payload]
                self._index.give(PAYLOAD_COST)
            if self._are_copies:
                shared.copies -= 1
                if not shared.copies:
                    self._sizes[shared.topic_id] -= shared.size

    def leave_budget(self) -> None:
        """Count against the budget no more: the namespace is closed."""
        self._index.close()

    def bytes_of(self, topic_id: int) -> int:
        return self._sizes.get(topic_id, 0)

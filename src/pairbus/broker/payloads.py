"""Bodies that several messages share: how many messages share each, and how much of a topic's quota they take."""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.broker.store import PayloadRow


class Payload:
    """One shared body."""

    __slots__ = ("count", "size", "topic_id")

    def __init__(self, topic_id: int, size: int) -> None:
        self.topic_id = topic_id
        self.size = size
        self.count = 0
        "Committed messages that share it."


class Payloads:
    """The shared bodies of a namespace. A payload counts once towards its topic until its last message is gone.

    The store has reference counts of its own, which decide when a payload is deleted.
    """

    def __init__(self) -> None:
        self._payloads: dict[int, Payload] = {}
        self._sizes: dict[int, int] = {}
        "Bytes of payloads by topic."

    def recover(self, rows: Iterable[PayloadRow]) -> None:
        for payload, topic_id, size in rows:
            self._payloads[payload] = Payload(topic_id, size)

    def size_of(self, payload: int) -> int | None:
        """Return the size of a payload; None: it is not there."""
        known = self._payloads.get(payload)
        return None if known is None else known.size

    def add(self, payload: int, topic_id: int, size: int) -> None:
        """Add a payload that is committed, and not shared yet."""
        self._payloads[payload] = Payload(topic_id, size)

    def hold(self, payload: int) -> None:
        """Count one more message that shares the payload."""
        known = self._payloads[payload]
        if not known.count:
            self._sizes[known.topic_id] = self._sizes.get(known.topic_id, 0) + known.size
        known.count += 1

    def release(self, payloads: Iterable[int]) -> None:
        """Count one message less for each of the payloads. A payload that was lost has no count."""
        find = self._payloads.get
        for payload in payloads:
            known = find(payload)
            if known is None:
                continue
            known.count -= 1
            if not known.count:
                del self._payloads[payload]
                self._sizes[known.topic_id] -= known.size

    def bytes_of(self, topic_id: int) -> int:
        return self._sizes.get(topic_id, 0)

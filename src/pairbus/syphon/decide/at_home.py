"""Messages of backlog queues that are at home, because only their completion failed, or may be, because a send got no
answer.

A secondary that delivers messages but cannot store completions (a full disk) delivers the same message again after
every lock. A syphon that remembers the message then completes it, and does not send it again.

Law of this file. A message is known by its place in its queue (queue, sequence number, time of arrival) and its id:
never by the id alone, which an application may use twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.amqp.message import Message

AT_HOME_MAX = (
    50_000  # messages of one syphon; × 300 bytes = 15 MB. Beyond it the oldest are forgotten, and may be sent twice
)
_SEQUENCE_NUMBER = b"x-opt-sequence-number"
_HEAD_MAX = 512  # bytes before the sender's own annotations; there are far fewer

HomeIdentity = tuple[int | None, str | None, int | None]
"(sequence number, message id, time when the queue got the message in milliseconds since 1970)"


def sequence_number_of(payload: bytes) -> int | None:
    """Read the sequence number of a message as it was received."""
    at = payload.find(_SEQUENCE_NUMBER, 0, _HEAD_MAX) + len(_SEQUENCE_NUMBER)
    if at >= len(_SEQUENCE_NUMBER) and payload[at : at + 1] == b"\x81":
        return int.from_bytes(payload[at + 1 : at + 9], "big", signed=True)
    annotations = Message.decode(payload).annotations or {}
    number = annotations.get(_SEQUENCE_NUMBER.decode())
    return number if isinstance(number, int) else None


class AtHome:
    """Remembers the messages that are at home, for all queues of one syphon."""

    def __init__(self, most: int = AT_HOME_MAX) -> None:
        self._most = most
        self._messages: dict[tuple[str, HomeIdentity], None] = {}
        "(queue, identity), the oldest first."
        self._counts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<AtHome {len(self._messages)} of at most {self._most}>"

    def count(self, queue: str) -> int:
        """Return how many messages of the queue are known to be at home."""
        return self._counts.get(queue, 0)

    def remember(self, queue: str, messages: Iterable[HomeIdentity]) -> None:
        """Add messages whose destination has accepted them."""
        for message in messages:
            if (queue, message) not in self._messages:
                if len(self._messages) >= self._most:
                    self._drop(next(iter(self._messages)))
                self._messages[queue, message] = None
                self._counts[queue] = self._counts.get(queue, 0) + 1

    def knows(self, queue: str, message: HomeIdentity) -> bool:
        """Tell whether the destination has accepted this message before."""
        return (queue, message) in self._messages

    def forget(self, queue: str, messages: Iterable[HomeIdentity]) -> None:
        """Drop messages that are gone from their queue."""
        for message in messages:
            if (queue, message) in self._messages:
                self._drop((queue, message))

    def _drop(self, key: tuple[str, HomeIdentity]) -> None:
        del self._messages[key]
        left = self._counts[key[0]] - 1
        if left:
            self._counts[key[0]] = left
        else:
            del self._counts[key[0]]


class MaybeAtHome:
    """Messages that this syphon has sent without an answer: their destination may have each of them.

    When a message goes home later than its destination remembers its id, it may be there twice.
    """

    def __init__(self) -> None:
        self._since_ms: dict[tuple[str, HomeIdentity], int] = {}
        "(queue, identity) → time of the first send, the oldest first."

    def __len__(self) -> int:
        return len(self._since_ms)

    def note(self, queue: str, messages: Iterable[HomeIdentity], sent_ms: int) -> None:
        for message in messages:
            self._since_ms.setdefault((queue, message), sent_ms)
        while len(self._since_ms) > AT_HOME_MAX:
            del self._since_ms[next(iter(self._since_ms))]

    def take(self, queue: str, message: HomeIdentity) -> int | None:
        """Return the time of the first send, and forget the message: it is certainly at home now."""
        return self._since_ms.pop((queue, message), None)

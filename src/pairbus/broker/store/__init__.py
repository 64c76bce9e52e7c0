"""The durable contract of the broker: what a store keeps, and what it promises.

Words. A *box* is an ordered set of messages keyed by sequence number. Every queue owns two: its own
(`box_of(queue_id)`) and its dead-letter sub-queue's (`dead_box_of(queue_id)`); both draw their sequence numbers from
one counter, so a message keeps its number when it is dead-lettered.

Promises.
 1. Writes are applied in the order in which `write` was called. Everything written before one `after_commit` call is
    durable when its callback gets `None`, and survives SIGKILL and loss of power.
 2. A group of writes commits whole or not at all, and ends only at an `after_commit`: what is written between two of
    these calls, without returning to the event loop, is in one group, so a batch is atomic. When a group fails, every
    callback of it gets the `StoreError`, none of its writes happened, and the store goes on with the next group.
 3. Callbacks run on the thread that owns the store (the event loop), in the order of their `after_commit` calls.
 4. Reads see committed data only. A message whose checksum does not match is never returned; it is reported.
 5. `Recovered.last_seq` is never smaller than a sequence number that was ever committed, also when all messages and
    their rows are long gone.

Two implementations keep one contract test: `memory.MemoryStore` (the oracle, and `--data :memory:`) and
`sqlite.SqliteStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pairbus.errors import StoreError

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2  # also the wire values of x-opt-message-state


def box_of(queue_id: int) -> int:
    return queue_id * 2


def dead_box_of(queue_id: int) -> int:
    return queue_id * 2 + 1


class StoredMessage:
    """One message as it is kept. Plain slots, not a frozen dataclass: one is made for every message that passes."""

    __slots__ = (
        "annotations",
        "body",
        "delivery_count",
        "enqueued_ms",
        "expires_ms",
        "message_id",
        "patch",
        "scheduled_ms",
        "seq",
        "state",
        "ttl_ms",
    )

    def __init__(
        self,
        seq: int,
        body: bytes,
        *,
        annotations: bytes = b"",
        message_id: str = "",
        state: int = ACTIVE,
        enqueued_ms: int = 0,
        expires_ms: int = 0,
        scheduled_ms: int = 0,
        ttl_ms: int = 0,
        delivery_count: int = 0,
        patch: bytes = b"",
    ) -> None:
        self.seq = seq
        "Sequence number: the key within a box."
        self.body = body
        "The bare message as it came: properties, application properties, body, footer sections, never re-encoded."
        self.annotations = annotations
        "The sender's message annotations: encoded key/value pairs without the map's own header."
        self.message_id = message_id
        "Text form of the message id; empty when the sender gave none."
        self.state = state
        "ACTIVE, DEFERRED or SCHEDULED."
        self.enqueued_ms = enqueued_ms
        "Unix time of acceptance (of activation, once a scheduled message becomes active)."
        self.expires_ms = expires_ms
        "Unix time at which the time to live ends; 0 = never."
        self.scheduled_ms = scheduled_ms
        "Unix time of activation for SCHEDULED; 0 otherwise."
        self.ttl_ms = ttl_ms
        "Effective time to live; 0 = unlimited."
        self.delivery_count = delivery_count
        "Deliveries that ended without a settlement that keeps the count (abandon, lost lock)."
        self.patch = patch
        "Changes to application properties made by settlements (abandon, dead-letter): encoded key/value pairs."

    @property
    def size(self) -> int:
        return len(self.body) + len(self.annotations) + len(self.patch)

    def revised(self, **changes: Any) -> StoredMessage:
        """A copy with other values: messages are shared by queues, stores and connections, and never changed."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return StoredMessage(**(values | changes))

    def __repr__(self) -> str:
        return f"<StoredMessage {self.seq} state={self.state} {self.size} B>"


# ── writes ──


@dataclass(slots=True)
class Insert:
    box: int
    messages: Sequence[StoredMessage]


@dataclass(slots=True)
class Delete:
    box: int
    seqs: Sequence[int]


@dataclass(slots=True)
class Update:
    """Every field but the body is written again: state, delivery count, patch, times."""

    box: int
    message: StoredMessage


@dataclass(slots=True)
class Move:
    """The message leaves `box` (where it is `seq`) and enters `to_box` as `message`; the body moves along unread.

    Used for dead-lettering (same seq, other box) and for activating a scheduled message (same box, new seq).
    `message.body` is ignored and may be empty: only the stored body counts.
    """

    box: int
    seq: int
    to_box: int
    message: StoredMessage


@dataclass(slots=True)
class Remember:
    """Duplicate detection: (message id, Unix ms until which it counts) pairs of one queue."""

    queue_id: int
    ids: Sequence[tuple[str, int]]


@dataclass(slots=True)
class Forget:
    """Duplicate detection: ids of one queue whose time ended at or before `until_ms`."""

    queue_id: int
    until_ms: int


@dataclass(slots=True)
class PutQueue:
    """Create a queue or replace its description (JSON text, opaque to the store)."""

    queue_id: int
    description: str


@dataclass(slots=True)
class DropQueue:
    """The queue, both of its boxes, and its remembered ids are gone."""

    queue_id: int


Write = Insert | Delete | Update | Move | Remember | Forget | PutQueue | DropQueue


# ── reads ──


@dataclass(slots=True)
class RecoveredQueue:
    queue_id: int
    description: str
    last_seq: int
    "The highest sequence number ever committed for the queue; 0 = none."


@dataclass(slots=True)
class Recovered:
    """What a store held when it was opened."""

    queues: list[RecoveredQueue]
    damage: list[str]
    "One sentence for each thing that could not be read; empty when the store is intact."
    last_queue_id: int
    "The highest queue id ever used, also by queues that were dropped; 0 = none."


IndexRow = tuple[int, int, int, int, int]
"(seq, state, expires_ms, scheduled_ms, size): what the broker keeps of a waiting message."

Done = Callable[[StoreError | None], None]


class Store(Protocol):
    """See the module's text for the promises. All methods are called on the owning thread."""

    def recover(self) -> Recovered:
        """Read what is there. Called once, before anything else."""
        ...

    def index(self, box: int) -> Iterator[IndexRow]:
        """The rows of a box in ascending order of sequence number; only right after `recover`, before any write."""
        ...

    def remembered(self, queue_id: int) -> list[tuple[str, int]]:
        """The (message id, until_ms) pairs of a queue; only right after `recover`."""
        ...

    def write(self, op: Write) -> None:
        """Add one write to the current group. It is not durable until an `after_commit` made later has been called."""
        ...

    def after_commit(self, done: Done) -> None:
        """Call `done(None)` when everything written so far is durable, or `done(error)` when this group failed.

        With nothing written since the last commit it is still called, later, never from within this call.
        """
        ...

    def probe(self, done: Done) -> None:
        """Call `done(None)` when a small write became durable just now, or `done(error)` when a send would fail.

        It fails nobody else's writes, and is not part of their groups.
        """
        ...

    def load(self, box: int, seqs: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        """(the intact messages among `seqs`, ascending; the sequence numbers that are damaged).

        A number that is simply not in the box is in neither list.
        """
        ...

    def scan(self, box: int, from_seq: int, limit: int) -> list[StoredMessage]:
        """Up to `limit` intact messages with seq >= from_seq, ascending, of every state."""
        ...

    async def close(self) -> None:
        """Commit what was written, call its callbacks, release the files.

        What comes later fails like a commit or a read that fails: with a StoreError, and nothing is stored.
        """
        ...

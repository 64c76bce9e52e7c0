"""The durable contract of the broker: the data that a store keeps, and its promises.

Words. An *entity* is a queue, a topic or a subscription. It owns up to three *boxes*, ordered sets of messages: its own
(`box_of(entity_id)`), its dead letters (`dead_box_of`), its transfer dead letters (`transfer_box_of`). All messages of
a namespace are rows of one table. A row is known by its *number* `n`, which the store gives out (`number`), ascending
and never twice; the sequence number that clients see is a field of the row. Within an entity, over all its boxes, the
order by `n` is the order by sequence number: each new sequence number comes with a new `n`, in the same order. So a
message keeps its `n` when it moves to another box, and each box is in order. Stores that code of 0.4 wrote before its
release may have dead letters in another order: these are all received, but a peek page by page may leave some out.

A message has its body in its row, or shares a *payload* with other rows: a body that is kept once, under a number from
the same sequence as the rows'.

Promises.
 1. Writes are applied in the order in which `write` was called. All writes before one `after_commit` call are
    durable when its callback gets `None`, and survives SIGKILL and loss of power.
 2. A group of writes commits whole or not at all, and ends only at an `after_commit`: writes between two of
    these calls, without returning to the event loop, are in one group, so a batch is atomic. When a group fails, every
    callback of it gets the `StoreError`, none of its writes happened, and the store goes on with the next group.
    One exception: when the disk is full, a store may commit those batches of the group that only delete, update and
    move rows, or forget ids, without the others, and these in several commits. A callback is told of its own batch; a
    callback without writes of its own is told of the whole group.
 3. Callbacks run on the thread that owns the store (the event loop), in the order of their `after_commit` and `probe`
    calls.
 4. Reads see committed data only. A message whose checksum does not match is never returned; it is reported. A read
    that fails for another reason (an error of the disk, no memory) raises a StoreError, and may succeed later. A row
    that fails so for minutes, while another can be read, is treated as damaged until it can be read.
 5. `RecoveredEntity.last_seq` is never smaller than a sequence number that was ever committed for the entity, and
    `number` never gives out the number of a row that was ever committed, also when all rows are long gone.
 6. A payload is deleted in the commit that deletes the last row that shares it. Reference counts are in memory and
    counted again at each start; a payload that no row shares is deleted then.
 7. `DropEntity` costs the same whatever the entity holds. Its rows and states stay, and are listed after a restart,
    until the owner has deleted them, which it does in bounded steps, and writes `EraseEntity`.

The owner promises that a `Delete`, `Update` or `Move` names rows that exist, and their payloads.

Two implementations keep one contract test: `memory.MemoryStore` (the oracle, and `--data :memory:`) and
`sqlite.SqliteStore`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pairbus.broker.store.commit_times import CommitTimes
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.store.backup import Backup

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2  # also the wire values of x-opt-message-state


BOX_KINDS = 4
MAIN, DEAD, TRANSFER = 0, 1, 2


def box_of(entity_id: int) -> int:
    return entity_id * BOX_KINDS + MAIN


def dead_box_of(entity_id: int) -> int:
    return entity_id * BOX_KINDS + DEAD


def transfer_box_of(entity_id: int) -> int:
    return entity_id * BOX_KINDS + TRANSFER


def entity_of(box: int) -> int:
    return box // BOX_KINDS


class StoredMessage:
    """One message as it is stored. Plain slots, not a frozen dataclass: one is made for every message."""

    __slots__ = (
        "annotations",
        "body",
        "delivery_count",
        "enqueued_ms",
        "expires_ms",
        "hops",
        "message_id",
        "n",
        "origin_seq",
        "patch",
        "payload",
        "scheduled_ms",
        "seq",
        "session_id",
        "size",
        "state",
        "ttl_ms",
    )

    def __init__(  # noqa: PLR0913 - the columns of a row
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
        n: int = 0,
        payload: int = 0,
        origin_seq: int = 0,
        hops: int = 0,
        session_id: str = "",
    ) -> None:
        self.n = n
        "Number of the row: the key."
        self.seq = seq
        "Sequence number within the entity, as clients see it."
        self.payload = payload
        "Number of the payload that holds the body; 0: the row has its own."
        self.origin_seq = origin_seq
        "Sequence number in the entity to which the message was first sent; 0: in this one."
        self.hops = hops
        "Number of times that the message was forwarded."
        self.session_id = session_id
        "Session id; empty when the message names none, and for the session of the empty id."
        self.body = body
        "Bare message as it came: properties, application properties, body, footer sections, never re-encoded."
        self.annotations = annotations
        "Encoded pairs: header and delivery annotations of the sender, if any, then its message annotations."
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
        self.size = len(body) + len(annotations) + len(patch)
        "Bytes of body, annotations and patch: needed several times for each message."

    @property
    def is_whole(self) -> bool:
        """False when the body was dropped, or never read: then `body` is empty, and only the store has it."""
        return bool(self.body) or self.size == len(self.annotations) + len(self.patch)

    def drop_body(self) -> None:
        """Let go of the body once it has been delivered; `size` stays. Only for one who alone has the message."""
        self.body = b""

    def revised(self, **changes: Any) -> StoredMessage:
        """Return a copy with other values: messages are shared by queues, stores and connections, and never changed."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "size"}
        after = StoredMessage(**(values | changes))
        if "body" not in changes:
            after.size += self.size - len(self.body) - len(self.annotations) - len(self.patch)  # of a dropped body
        return after

    def __repr__(self) -> str:
        return f"<StoredMessage {self.seq} state={self.state} {self.size} B>"


# ── writes ──


@dataclass(slots=True)
class Insert:
    box: int
    messages: Sequence[StoredMessage]


@dataclass(slots=True)
class InsertPayload:
    """A body that rows of the same group share; `topic_id` is the topic whose quota it counts towards."""

    payload: int
    topic_id: int
    body: bytes


@dataclass(slots=True)
class Delete:
    """Deletion of rows of one box; `payloads`: the payload of each row that has one."""

    box: int
    numbers: Sequence[int]
    payloads: Sequence[int] = ()


@dataclass(slots=True)
class Update:
    """Rewrite of the row `message.n`: every field but the body; the row is in `box` from now on."""

    box: int
    message: StoredMessage


@dataclass(slots=True)
class Move:
    """Move of the row `n` of `box` to the row `message.n` of `to_box`; the body, or the payload, moves along unread.

    Used where a message gets a new sequence number: activation of a scheduled message, forwarding.
    """

    box: int
    n: int
    to_box: int
    message: StoredMessage


@dataclass(slots=True)
class RaiseSeq:
    """Sequence numbers up to `seq` are given out: those of a topic, whose messages are rows of its subscriptions."""

    entity_id: int
    seq: int


@dataclass(slots=True)
class Remember:
    """Ids for duplicate detection: (message id, Unix ms until which it counts) pairs of one entity."""

    entity_id: int
    ids: Sequence[tuple[str, int]]


@dataclass(slots=True)
class Forget:
    """Deletion of the ids of one entity whose time for duplicate detection ended at or before `until_ms`."""

    entity_id: int
    until_ms: int


@dataclass(slots=True)
class SetSessionState:
    """State of one session, in the row `n` of the states from now on; None: that row is deleted.

    A session keeps its row, whose number is from the same sequence as those of messages.
    """

    entity_id: int
    n: int
    session_id: str
    updated_ms: int
    state: bytes | None


@dataclass(slots=True)
class PutEntity:
    """Creation of an entity, or its new description (JSON text, opaque to the store)."""

    entity_id: int
    description: str


@dataclass(slots=True)
class DropEntity:
    """Drop of an entity; its rows and remembered ids are left to be deleted in steps."""

    entity_id: int


@dataclass(slots=True)
class EraseEntity:
    """End of a dropped entity, all of whose rows are deleted."""

    entity_id: int


Write = (
    Insert
    | InsertPayload
    | Delete
    | Update
    | Move
    | RaiseSeq
    | Remember
    | Forget
    | SetSessionState
    | PutEntity
    | DropEntity
    | EraseEntity
)


# ── reads ──


@dataclass(slots=True)
class RecoveredEntity:
    entity_id: int
    description: str
    last_seq: int
    "Highest sequence number ever committed for the entity; 0: none."


@dataclass(slots=True)
class RecoveredStore:
    """Contents of a store when it was opened."""

    entities: list[RecoveredEntity]
    damage: list[str]
    "One sentence for each part that could not be read; empty when the store is intact."
    last_entity_id: int
    "Highest entity id ever used, also by entities that were dropped; 0: none."
    dropped: list[int] = field(default_factory=list)
    "Entities that were dropped and not yet erased."


class IndexRow(NamedTuple):
    """Part of a waiting message that the broker keeps in memory."""

    n: int
    box: int
    seq: int
    state: int
    expires_ms: int
    scheduled_ms: int
    size: int
    "Bytes of the message, without the payload where it has one."
    payload: int
    session_id: str


class StateRow(NamedTuple):
    """The state of one session, without the state itself."""

    n: int
    entity_id: int
    session_id: str
    updated_ms: int
    size: int


class Loaded(NamedTuple):
    """Messages that were read."""

    messages: list[StoredMessage]
    "Intact messages, ascending."
    damaged: list[int]
    "Numbers of damaged ones."
    rest: list[int]
    "Numbers that were not looked at, because those before them have enough bytes; ascending."


PayloadRow = tuple[int, int, int]
"(payload, topic id, size)"

UNLIMITED = sys.maxsize

Done = Callable[[StoreError | None], None]


Hindrance = Callable[[bool, Done], None]
"(whether the group needs room, done): calls `done`, later, when the commit may go on, or with the error if it fails."


class Store(Protocol):
    """A store; see the module's text for its promises. All methods are called on the owning thread."""

    hindrance: Hindrance | None
    "Called before each commit; None: no hindrance."

    @property
    def commit_times(self) -> CommitTimes | None:
        """Durations of commits; None: there is no disk."""
        ...

    def recover(self) -> RecoveredStore:
        """Read the contents of the store. Called once, before any other method."""
        ...

    def index(self) -> Iterator[IndexRow]:
        """Yield the rows of every box, those of dropped entities too, in ascending order of `n`.

        The caller reads it to its end right after `recover`, before any write, because it counts the references of
        payloads.
        """
        ...

    def payloads(self) -> Iterator[PayloadRow]:
        """Yield the payloads, ascending; only right after `recover`."""
        ...

    def remembered(self, entity_id: int) -> list[tuple[str, int]]:
        """Return the (message id, until_ms) pairs of an entity; only right after `recover`."""
        ...

    def session_states(self) -> Iterator[StateRow]:
        """Yield the states of sessions, those of dropped entities too; only right after `recover`."""
        ...

    def load_state(self, n: int) -> bytes | None:
        """Return the committed state in this row; None: the row is not there. StoreError: it is damaged, or cannot be
        read now."""
        ...

    def number(self, count: int = 1) -> int:
        """Reserve `count` consecutive numbers for new rows or payloads, and return the first."""
        ...

    def write(self, op: Write) -> None:
        """Add one write to the current group. It is durable when the callback of a later `after_commit` is called."""
        ...

    def after_commit(self, done: Done) -> None:
        """Call `done(None)` when all writes so far are durable, or `done(error)` when this group failed.

        Without a write since the last commit `done` is still called, later, never from within this call.
        """
        ...

    def unit(self) -> AbstractContextManager[None]:
        """Return a context that makes one unit of all writes in it, which ends with the context.

        Its callbacks are told together, of the whole unit, before any other. When the context ends by an error, nothing
        was written, and the callbacks are told so at once.
        """
        ...

    def probe(self, done: Done) -> None:
        """Call `done(None)` when a write became durable after this call, or `done(error)` when a send would fail.

        Probes that wait together share one commit, with the writes of that time. A failed probe fails no writes.
        """
        ...

    def load(self, box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        """Return the messages of `box` among `numbers`, in ascending order, until they have `size_max` bytes: so at
        most one message is read beyond.

        Without bodies only the heads count and are read; the `size` of a message then lacks a payload that it shares.
        A number that no row of the box has is in no list. StoreError: the rows cannot be read now.
        """
        ...

    def seq_of(self, box: int, n: int) -> int:
        """Return the sequence number of a row of the box; 0 when it is not there or damaged. StoreError: it cannot be
        read now."""
        ...

    def payloads_of(self, numbers: Sequence[int]) -> list[int]:
        """Return the payload of each of these rows that has one; those of damaged rows are left out. StoreError: the
        rows cannot be read now."""
        ...

    async def back_up(self, backup: Backup) -> None:
        """Copy the store while writes go on: every write that was durable before the call is in the copy, and the
        copy is the store as it was after one commit. StoreError: the copy is incomplete, and the store as before.
        """
        ...

    async def close(self) -> None:
        """Commit the open writes, call their callbacks, release the files.

        Later calls fail like a failing commit or read: with a StoreError, and no write is stored.
        """
        ...

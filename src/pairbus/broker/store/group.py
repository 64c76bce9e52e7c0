"""The writes of one commit, put together so that SQLite is called as rarely as possible.

Why. Python's sqlite3 gives up the interpreter lock at every step of a statement, and beside a busy event loop each
return can cost a whole switch interval. So the unit of work is not the message but the statement, and a group of 500
inserts and 500 deletes is a handful of statements.

Law. Putting together may reorder writes only where no order can be told apart afterwards. The writes of a box collect
in an open `BoxStep`, which will be carried out as: all inserts, then all updates, then all deletes. A write that would
come out differently that way (an insert of a number that the step already updates or deletes) and everything that
involves two boxes or whole queues closes the step; what follows opens a new one.

Rows are packed here, on the owner's thread: a message that its owner changes later is stored as it was when written.
"""

from __future__ import annotations

from typing import Any

from pairbus.broker.store import (
    Delete,
    Done,
    DropQueue,
    Forget,
    Insert,
    Move,
    PutQueue,
    Remember,
    StoredMessage,
    Update,
    Write,
    box_of,
    dead_box_of,
)
from pairbus.broker.store.records import head_crc, pack_head, pack_rows, text_crc

LARGE = 200  # writes of one kind; below that the fixed price of a commit still counts
COLUMN_COUNT = 5


class BoxStep:
    """Inserts, then updates, then deletes of one box."""

    __slots__ = ("box", "deletes", "last_seq", "rows", "updates")

    def __init__(self, box: int) -> None:
        self.box = box
        self.rows: list[Any] = []
        "Flat columns of the inserted rows."
        self.last_seq = 0
        self.updates: dict[int, tuple[int, bytes, int]] = {}
        "seq → (seq, head, head_crc): of two updates of one message the later counts."
        self.deletes: set[int] = set()

    def takes(self, seqs: list[int]) -> bool:
        """May these be inserted before the updates and deletes that are already here?"""
        return (not self.deletes or self.deletes.isdisjoint(seqs)) and (
            not self.updates or self.updates.keys().isdisjoint(seqs)
        )


class MoveStep:
    """Moves from one box to another (or within one), none of which depends on another of them."""

    __slots__ = ("box", "moves", "targets", "to_box")

    def __init__(self, box: int, to_box: int) -> None:
        self.box = box
        self.to_box = to_box
        self.moves: dict[int, tuple[int, int, bytes, int]] = {}
        "seq → (seq, seq in the other box, head, head_crc)"
        self.targets: set[int] = set()

    def takes(self, op: Move) -> bool:
        if self.to_box != op.to_box or self.box != op.box or op.seq in self.moves:
            return False
        return op.box != op.to_box or (op.seq not in self.targets and op.message.seq not in self.moves)


class RememberStep:
    """Remembered ids of one queue; flat columns (queue_id, until_ms, crc, message_id)."""

    __slots__ = ("queue_id", "rows")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.rows: list[Any] = []


Step = BoxStep | MoveStep | RememberStep | Forget | PutQueue | DropQueue


class Group:
    """The writes and callbacks of one commit."""

    __slots__ = ("_open", "_remembering", "callbacks", "steps")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.callbacks: list[Done] = []
        self._open: dict[int, BoxStep | MoveStep] = {}
        self._remembering: dict[int, RememberStep] = {}

    @property
    def is_large(self) -> bool:
        """Worth a commit of its own: more writes would hardly make a message cheaper."""
        return any(
            type(step) is BoxStep and (len(step.rows) >= LARGE * COLUMN_COUNT or len(step.deletes) >= LARGE)
            for step in self.steps
        )

    @property
    def takes_room(self) -> bool:
        """Whether something new is stored: settlements and deletions only change or move what is there."""
        return any(
            (type(step) is BoxStep and bool(step.rows)) or type(step) is RememberStep or type(step) is PutQueue
            for step in self.steps
        )

    def add(self, op: Write) -> None:
        match op:
            case Insert():
                self._insert(op)
            case Delete():
                self._box_step(op.box).deletes.update(op.seqs)
            case Update():
                self._update(op.box, op.message)
            case Move() if op.box == op.to_box and op.seq == op.message.seq:
                self._update(op.box, op.message)  # it stays where it is
            case Move():
                self._move(op)
            case Remember():
                self._remember(op)
            case Forget():
                self._remembering.pop(op.queue_id, None)
                self.steps.append(op)
            case PutQueue() | DropQueue():
                self._remembering.pop(op.queue_id, None)
                self._open.pop(box_of(op.queue_id), None)
                self._open.pop(dead_box_of(op.queue_id), None)
                self.steps.append(op)

    def _box_step(self, box: int) -> BoxStep:
        step = self._open.get(box)
        if type(step) is BoxStep:
            return step
        return self._new_box_step(box)

    def _new_box_step(self, box: int) -> BoxStep:
        step = BoxStep(box)
        self._open[box] = step
        self.steps.append(step)
        return step

    def _insert(self, op: Insert) -> None:
        seqs = [message.seq for message in op.messages]
        if not seqs:
            return
        step = self._box_step(op.box)
        if not step.takes(seqs):
            step = self._new_box_step(op.box)
        step.rows += pack_rows(op.box, op.messages)
        step.last_seq = max(step.last_seq, *seqs)

    def _update(self, box: int, message: StoredMessage) -> None:
        head = pack_head(message)
        self._box_step(box).updates[message.seq] = (message.seq, head, head_crc(box, message.seq, head))

    def _move(self, op: Move) -> None:
        step = self._open.get(op.box)
        if type(step) is not MoveStep or self._open.get(op.to_box) is not step or not step.takes(op):
            step = MoveStep(op.box, op.to_box)
            self._open[op.box] = self._open[op.to_box] = step
            self.steps.append(step)
        to_seq = op.message.seq
        head = pack_head(op.message)
        step.moves[op.seq] = (op.seq, to_seq, head, head_crc(op.to_box, to_seq, head))
        step.targets.add(to_seq)

    def _remember(self, op: Remember) -> None:
        step = self._remembering.get(op.queue_id)
        if step is None:
            step = self._remembering[op.queue_id] = RememberStep(op.queue_id)
            self.steps.append(step)
        for message_id, until_ms in op.ids:
            step.rows += (op.queue_id, until_ms, text_crc(op.queue_id ^ until_ms, message_id.encode()), message_id)

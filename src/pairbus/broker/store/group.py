"""The writes of one commit, put together so that SQLite is called as rarely as possible.

Why. Python's sqlite3 gives up the interpreter lock at every step of a statement, and beside a busy event loop each
return can cost a whole switch interval. So the unit of work is not the message but the statement, and a group of 500
inserts and 500 deletes, of however many entities, is a handful of statements.

Law. Putting together may reorder writes only where no order can be told apart afterwards. The writes of rows collect in
an open `RowStep`, which will be carried out as: all payloads, all inserts, all moves, all updates, all deletes. A write
that would come out differently that way (an insert of a number that the step already moves, updates or deletes) closes
the step, as does a write to whole entities; the next write of a row opens a new step.

Rows are packed here, on the owner's thread: a message that its owner changes later is stored as it was when written.

A group consists of *units*, the writes up to one `after_commit`. On a full disk, the units that only settle, move and
delete rows are committed without the others (`without_sends`): otherwise senders that try again and again would keep
receivers from emptying their queues. Each of these writes names rows that were committed before, so none of them
depends on a unit that is left out. Where even these need more room than there is (a move writes the body again), they
are committed in parts (`halves`), down to single units: a unit that is too large fails alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from pairbus.broker.store import (
    Delete,
    Done,
    DropEntity,
    EraseEntity,
    Forget,
    Insert,
    InsertPayload,
    Move,
    PutEntity,
    RaiseSeq,
    Remember,
    SetSessionState,
    Update,
    Write,
    entity_of,
)
from pairbus.broker.store.records import COLUMN_COUNT, head_crc, pack_head, pack_rows, payload_crc, text_crc
from pairbus.broker.store.room_check import RoomCheck
from pairbus.errors import StoreError

LARGE = 200  # writes of one kind; with fewer the fixed cost of a commit still matters


class RowStep:
    """Payloads, then inserts, moves, updates and deletes of rows."""

    __slots__ = ("counts", "deletes", "highs", "last_n", "moves", "payloads", "rows", "shared", "targets", "updates")

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        "Flat columns of the new payloads."
        self.rows: list[Any] = []
        "Flat columns of the inserted rows."
        self.moves: dict[int, tuple[int, int, int, bytes, int]] = {}
        "n → (n, new n, new box, head, head_crc)"
        self.targets: set[int] = set()
        "New numbers of the moves."
        self.updates: dict[int, tuple[int, int, bytes, int]] = {}
        "n → (n, box, head, head_crc): of two updates of one row the later counts."
        self.deletes: set[int] = set()
        self.last_n = 0
        self.counts: dict[int, int] = {}
        "Change of the number of rows, by entity."
        self.highs: dict[int, int] = {}
        "Highest sequence number of a new row, by entity."
        self.shared: dict[int, int] = {}
        "Change of the number of rows that share a payload, by payload."

    def is_free(self, numbers: Iterable[int]) -> bool:
        """Return whether no step after the inserts touches these numbers."""
        if not (self.deletes or self.updates or self.moves):
            return True
        return not any(n in self.deletes or n in self.updates or n in self.moves or n in self.targets for n in numbers)

    def count(self, box: int, rows: int) -> None:
        entity_id = entity_of(box)
        self.counts[entity_id] = self.counts.get(entity_id, 0) + rows

    def share(self, payload: int, rows: int) -> None:
        self.shared[payload] = self.shared.get(payload, 0) + rows

    def note(self, box: int, seq: int, n: int) -> None:
        entity_id = entity_of(box)
        self.highs[entity_id] = max(self.highs.get(entity_id, 0), seq)
        self.last_n = max(self.last_n, n)


class RememberStep:
    """Remembered ids of any entities; flat columns (entity_id, until_ms, crc, message_id)."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Any] = []


CommitStep = RowStep | RememberStep | Forget | SetSessionState | PutEntity | DropEntity | EraseEntity


SETTLING = frozenset({Delete, Update, Move, RaiseSeq, Forget})
"Writes that take no room: a unit of them is committed on a full disk too."


class CommitGroup:
    """The writes and callbacks of one commit."""

    __slots__ = (
        "_failed",
        "_open",
        "_remembering",
        "_settling",
        "_unit",
        "_unit_errors",
        "callbacks",
        "is_durable",
        "room_check",
        "settles_only",
        "steps",
        "takes_room",
    )

    def __init__(self) -> None:
        self.takes_room = False
        "True when new data is stored: settlements and deletions only change or move existing data."
        self.settles_only = True
        "True when all writes are settlements, so that a full disk can commit each unit by itself."
        self.is_durable = False
        "True when the writes are committed; set by the writer."
        self.steps: list[CommitStep] = []
        self.callbacks: list[Done] = []
        self.room_check: RoomCheck | None = None
        "Question of the probes among the callbacks; None: there are no probes."
        self._open: RowStep | None = None
        self._remembering: RememberStep | None = None
        self._unit: list[Write] | None = []
        "Writes of the open unit; None: one of them is no settlement."
        self._settling: dict[int, list[Write]] = {}
        "Writes of each unit of settlements alone, by the place of its callback."
        self._failed: tuple[CommitGroup, StoreError] | None = None
        "Group whose settlements these are, and why it failed as a whole."
        self._unit_errors: dict[int, StoreError | None] = {}
        "Results of units that were committed in parts, by the place of their callbacks."

    @property
    def needs_commit(self) -> bool:
        """True when there is something to write, or a probe that asks for a write."""
        return bool(self.steps) or self.room_check is not None

    @property
    def is_large(self) -> bool:
        """True when the group is worth a commit of its own: more writes would hardly make a message cheaper."""
        step = self._open
        return step is not None and (len(step.rows) >= LARGE * COLUMN_COUNT or len(step.deletes) >= LARGE)

    def end_unit(self, done: Done) -> None:
        """End the writes that succeed or fail together; `done` is told of them."""
        if self._unit:
            self._settling[len(self.callbacks)] = self._unit
        self._unit = []
        self.callbacks.append(done)

    def probe(self, done: Done) -> None:
        """End the writes as `end_unit` does; `done` is also told when a send would fail."""
        check = self.room_check
        if check is None:
            check = self.room_check = RoomCheck()
        self.end_unit(partial(check.tell, done))

    def without_sends(self, error: StoreError) -> CommitGroup | None:
        """Return a group of the units that take no room, after a full disk failed this group; None: there are none.

        The new group tells the callbacks of this one too.
        """
        if not self.takes_room or not self._settling:
            return None
        if self.room_check is not None:
            self.room_check.error = error
        rest = self._group_of(list(self._settling))
        rest._failed = self, error
        return rest

    def halves(self) -> list[CommitGroup]:
        """Return two groups of the units that only settle, in their order; none where there is one unit, or none."""
        places = list(self._settling)
        middle = len(places) // 2
        return [self._group_of(places[:middle]), self._group_of(places[middle:])] if middle else []

    def _group_of(self, places: list[int]) -> CommitGroup:
        group = CommitGroup()
        for place in places:
            unit = group._settling[place] = self._settling[place]
            for op in unit:
                group.add(op)
        return group

    def note_part(self, part: CommitGroup, error: StoreError | None) -> None:
        """Note how the commit of some of the units ended."""
        self._unit_errors |= dict.fromkeys(part._settling, error)

    def results(self, error: StoreError | None) -> Iterator[tuple[Done, StoreError | None]]:
        """Yield each callback, in the order of the calls, with its result, when the commit has ended with `error`.

        A callback without writes of its own asked for all writes before it, so it is told of the whole group.
        """
        parts = self._unit_errors
        group_error = error
        if self._failed is not None:
            group, group_error = self._failed
            for place, done in enumerate(group.callbacks):
                yield done, parts.get(place, error) if place in group._settling else group_error
            parts = {}
        for place, done in enumerate(self.callbacks):
            yield done, parts.get(place, group_error)

    def add(self, op: Write) -> None:
        if type(op) not in SETTLING:
            self._unit = None
            self.settles_only = False
        elif self._unit is not None:
            self._unit.append(op)
        match op:
            case Insert():
                self._insert(op)
            case Delete():
                self._delete(op)
            case Update():
                self._update(op)
            case Move():
                self._move(op)
            case InsertPayload():
                step = self._row_step()
                crc = payload_crc(op.payload, op.topic_id, op.body)
                step.payloads += (op.payload, op.topic_id, crc, op.body)
                step.last_n = max(step.last_n, op.payload)
                self.takes_room = True
            case RaiseSeq():
                step = self._row_step()
                step.counts.setdefault(op.entity_id, 0)
                step.highs[op.entity_id] = max(step.highs.get(op.entity_id, 0), op.seq)
            case Remember():
                self._remember(op)
            case Forget():
                self._remembering = None
                self.steps.append(op)
            case SetSessionState():  # in a table of its own: no other write of the group can depend on its order
                self.steps.append(op)
                self.takes_room |= op.state is not None
            case PutEntity() | DropEntity() | EraseEntity():
                self._remembering = self._open = None
                self.steps.append(op)
                self.takes_room |= type(op) is PutEntity

    def _row_step(self) -> RowStep:
        return self._open or self._new_step()

    def _new_step(self) -> RowStep:
        step = self._open = RowStep()
        self.steps.append(step)
        return step

    def _insert(self, op: Insert) -> None:
        messages = op.messages
        if not messages:
            return
        step = self._row_step()
        rows = pack_rows(op.box, messages)
        numbers = rows[::COLUMN_COUNT]
        if not step.is_free(numbers):
            step = self._new_step()
        step.rows += rows
        step.count(op.box, len(messages))
        step.note(op.box, max([message.seq for message in messages]), max(numbers))
        for payload in [message.payload for message in messages if message.payload]:
            step.share(payload, 1)
        self.takes_room = True

    def _delete(self, op: Delete) -> None:
        step = self._row_step()
        step.deletes.update(op.numbers)
        step.count(op.box, -len(op.numbers))
        for payload in op.payloads:
            step.share(payload, -1)

    def _update(self, op: Update) -> None:
        message = op.message
        head = pack_head(message)
        self._row_step().updates[message.n] = (message.n, op.box, head, head_crc(op.box, message.n, head))

    def _move(self, op: Move) -> None:
        message = op.message
        step = self._row_step()
        if not step.is_free((op.n, message.n)):
            step = self._new_step()
        head = pack_head(message)
        step.moves[op.n] = (op.n, message.n, op.to_box, head, head_crc(op.to_box, message.n, head))
        step.targets.add(message.n)
        step.count(op.box, -1)
        step.count(op.to_box, 1)
        step.note(op.to_box, message.seq, message.n)

    def _remember(self, op: Remember) -> None:
        step = self._remembering
        if step is None:
            step = self._remembering = RememberStep()
            self.steps.append(step)
        self.takes_room = True
        entity_id = op.entity_id
        for message_id, until_ms in op.ids:
            step.rows += (entity_id, until_ms, text_crc(entity_id ^ until_ms, message_id.encode()), message_id)

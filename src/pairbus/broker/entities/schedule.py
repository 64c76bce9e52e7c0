"""Scheduled messages: until their time comes they can be cancelled; then they are activated, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pairbus.broker.boxes.box import CHUNK_MAX, Box
from pairbus.broker.boxes.due import Agenda
from pairbus.broker.budget import MOVE_BYTES, SCHEDULED_COST
from pairbus.broker.entities.entity import Entity, EntityDone
from pairbus.broker.refusal import messages_not_found, refusal_of
from pairbus.broker.store import Delete, IndexRow, StoredMessage
from pairbus.errors import StoreError


class WaitingMessage(NamedTuple):
    """One scheduled message that no write carries."""

    n: int
    at_ms: int
    size: int
    payload: int
    session_id: str


class Schedule:
    """The scheduled messages of an entity, known by their sequence numbers.

    `activate(messages, now_ms)` writes the activation of messages whose time has come; `activated` is to be called when
    that is committed or has failed.
    """

    def __init__(
        self,
        entity: Entity,
        box: Box,
        activate: Callable[[list[StoredMessage], int], None],
        *,
        with_bodies: bool,
    ) -> None:
        """Make a schedule. `with_bodies`: `activate` needs the bodies."""
        self._with_bodies = with_bodies
        self._index = entity.budget.index.share()
        self._entity = entity
        self._box = box
        self._activate = activate
        self._waiting: dict[int, WaitingMessage] = {}
        self._agenda: Agenda[int] = Agenda()
        self._moved_bytes = 0
        "Bytes of the batch that is under way."
        self.is_busy = False
        "True while a batch is under way: a million messages that fall due together are not loaded together."

    def __len__(self) -> int:
        return len(self._waiting)

    def numbers(self, session_id: str | None = None) -> Iterator[tuple[int, int]]:
        """Yield (sequence number, row number) of each scheduled message, of one session or of all."""
        for seq, waiting in self._waiting.items():
            if session_id is None or waiting.session_id == session_id:
                yield seq, waiting.n

    def leave_budget(self) -> None:
        """Count the messages against the budget no more."""
        self._index.close()

    def drain(self, limit: int) -> list[int]:
        """Return every row number, and forget them. Only for the end of the entity."""
        numbers = [waiting.n for waiting in self._waiting.values()]
        self._waiting.clear()
        self._index.close()
        return numbers

    def recover(self, row: IndexRow) -> bool:
        """Take a SCHEDULED row of the index; False: its payload is missing."""
        size_before = self._box.size_bytes
        if not self._box.recover_size(row):
            return False
        self._box.scheduled_count += 1
        size = self._box.size_bytes - size_before
        self._await(row.seq, WaitingMessage(row.n, row.scheduled_ms, size, row.payload, row.session_id))
        return True

    def add(self, message: StoredMessage) -> None:
        """Add a scheduled message that is committed."""
        self._box.scheduled_count += 1
        self.take_back(message)

    def take_back(self, message: StoredMessage) -> None:
        """Take back a message whose activation failed."""
        waiting = WaitingMessage(message.n, message.scheduled_ms, message.size, message.payload, message.session_id)
        self._await(message.seq, waiting)

    def _await(self, seq: int, waiting: WaitingMessage) -> None:
        self._waiting[seq] = waiting
        self._agenda.set(seq, waiting.at_ms)
        self._index.take(SCHEDULED_COST)

    # ── cancelling ──

    def cancel(self, seqs: Sequence[int], now_ms: int, done: EntityDone) -> None:
        """Cancel all of the messages or none."""
        self._entity.used_ms = now_ms
        seqs = list(dict.fromkeys(seqs))
        unknown = [seq for seq in seqs if self._entity.closed or seq not in self._waiting]
        if unknown or not seqs:
            refusal = messages_not_found(unknown, "scheduled", self._entity.path) if unknown else None
            self._entity.answer_later(refusal, done)
            return
        cancelled = [(seq, self._waiting.pop(seq)) for seq in seqs]
        for seq in seqs:
            self._agenda.set(seq, None)
        self._index.give(SCHEDULED_COST * len(seqs))
        numbers = [waiting.n for _, waiting in cancelled]
        payloads = [waiting.payload for _, waiting in cancelled if waiting.payload]
        self._entity.store.write(Delete(self._box.number, numbers, payloads))
        self._entity.store.after_commit(partial(self._cancelled, cancelled, done))

    def _cancelled(
        self, cancelled: list[tuple[int, WaitingMessage]], done: EntityDone, error: StoreError | None
    ) -> None:
        for seq, waiting in cancelled:
            if error is not None:
                self._await(seq, waiting)
                continue
            self._box.size_bytes -= waiting.size
            self._box.scheduled_count -= 1
            if waiting.payload:
                self._box.shared_bytes -= self._entity.payloads.size_of(waiting.payload) or 0
                self._entity.payloads.release((waiting.payload,))
        done(None if error is None else refusal_of(error))
        if error is not None:
            self._entity.announce(self._box)

    # ── activating ──

    def next_ms(self) -> int | None:
        return self._entity.look_again_ms if self.is_busy else self._agenda.next_ms()

    def run(self, now_ms: int) -> None:
        """Activate a batch of the messages whose time has come. StoreError: they cannot be read now, and still wait."""
        seqs = self._due(now_ms)
        if not seqs:
            return
        try:
            loaded = self._loaded([self._waiting[seq].n for seq in seqs])
        except StoreError:
            for seq in seqs:
                self._agenda.set(seq, self._waiting[seq].at_ms)
            raise
        size = sum([self._waiting.pop(seq).size for seq in seqs])
        self._index.give(SCHEDULED_COST * len(seqs))
        self._box.scheduled_count -= len(seqs) - len(loaded)  # damaged ones: the store reports them
        messages = [loaded[seq] for seq in seqs if seq in loaded]
        try:
            self._activate(messages, now_ms)
        except BaseException:  # a bug, which the loop reports; nothing was written, and the messages are tried again
            for message in messages:
                self.take_back(message)
            self._entity.pause(now_ms)
            raise
        self.is_busy = True
        self._moved_bytes = size
        self._entity.moving.take(size)

    def _due(self, now_ms: int) -> list[int]:
        """Take messages whose time has come from the agenda: the store writes their bodies again, so few large ones."""
        next_ms = self._agenda.next_ms()
        if self.is_busy or next_ms is None or next_ms > now_ms or not self._entity.may_move(self._box, now_ms):
            return []
        seqs: list[int] = []
        size = 0
        while len(seqs) < CHUNK_MAX and size < MOVE_BYTES and (due := self._agenda.pop_due(now_ms, 1)):
            seqs += due
            size += self._waiting[due[0]].size
        return seqs

    def _loaded(self, numbers: list[int]) -> dict[int, StoredMessage]:
        """Read messages by their row numbers; their sizes are limited already, those of their heads too."""
        if self._with_bodies:
            messages = self._entity.store.load(self._box.number, numbers).messages
        else:
            messages, rest = self._box.heads(numbers)
            while rest:
                more, rest = self._box.heads(rest)
                messages += more
        return {message.seq: message for message in messages}

    def activated(self, messages: list[StoredMessage], now_ms: int, error: StoreError | None) -> None:
        """End `activate`: the messages are no longer scheduled, or, after an error, scheduled again."""
        self.is_busy = False
        self._entity.moving.give(self._moved_bytes)
        self._entity.touch(now_ms)
        for message in messages:
            if error is None:
                self._box.scheduled_count -= 1
            else:
                self.take_back(message)

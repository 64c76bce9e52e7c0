"""The receiving half of a queue or a subscription: its boxes, and the work on the messages in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from pairbus.broker.boxes.box import Box
from pairbus.broker.entities.entity import Entity, Settings
from pairbus.broker.entities.expiry import Expiry
from pairbus.broker.entities.session_service import SessionService
from pairbus.broker.entities.settlement import Settlement
from pairbus.broker.store import ACTIVE, TRANSFER, UNLIMITED, StoredMessage, box_of, dead_box_of, transfer_box_of
from pairbus.broker.sweep import Drain
from pairbus.errors import StoreError

OtherNumbers = Callable[[str | None], Iterable[tuple[int, int]]]
"""(sequence number, row number) pairs of messages that are in the entity's own box and that the box does not know; of
one session, or None: of all."""


class ReceivingSettings(Settings, Protocol):
    """The settings of an entity that is received from."""

    @property
    def lock_duration_ms(self) -> int: ...
    @property
    def max_delivery_count(self) -> int: ...
    @property
    def dead_letter_on_expiration(self) -> bool: ...
    @property
    def requires_session(self) -> bool: ...


class Receiving:
    """Boxes of an entity, and the parts that settle and expire their messages."""

    def __init__(self, entity: Entity, settings: ReceivingSettings, scheduled: OtherNumbers) -> None:
        self._entity = entity
        self._scheduled = scheduled
        self.expiry = Expiry(entity)
        self.main = self._box(box_of(entity.entity_id), has_sessions=settings.requires_session)
        self.dead = self._box(dead_box_of(entity.entity_id))
        self.boxes: tuple[Box, ...] = (self.main, self.dead)
        "Boxes that exist: the box for transfer dead letters is made at its first use."
        self.settlement = Settlement(entity, self.main, self.dead)
        self.expiry.attach(self.main, self.dead, self.settlement)
        self.sessions: SessionService | None = None
        "Sessions of the entity; None where it has none."
        if settings.requires_session:
            self.sessions = SessionService(entity, self.main, self.expiry.run)
        self.describe(settings)

    def _box(self, number: int, *, has_sessions: bool = False) -> Box:
        entity = self._entity
        return Box(
            number,
            entity.store,
            entity.commits,
            entity.payloads,
            budget=entity.budget,
            on_expired=self.expiry.met,
            on_freed=entity.announce if has_sessions else None,
        )

    def describe(self, settings: ReceivingSettings) -> None:
        """Take the settings, after the entity itself has taken them."""
        self._settings = settings
        self.settlement.max_delivery_count = settings.max_delivery_count
        self.expiry.dead_letters = settings.dead_letter_on_expiration
        for box in self.boxes:
            box.locks.duration_ms = settings.lock_duration_ms
            box.receivable = self._entity.receivable

    @property
    def transfer(self) -> Box:
        """The box of transfer dead letters, made at its first use: without transactions no message gets there."""
        if len(self.boxes) == 2:
            self.boxes = (self.main, self.dead, self._box(transfer_box_of(self._entity.entity_id)))
            self.describe(self._settings)
        return self.boxes[2]

    @property
    def size_bytes(self) -> int:
        size = self.main.size_bytes + self.dead.size_bytes
        if self.sessions is not None:
            size += self.sessions.state_bytes
        return size if len(self.boxes) == 2 else size + self.boxes[2].size_bytes

    @property
    def shared_bytes(self) -> int:
        """The part of `size_bytes` that is in payloads."""
        return sum(box.shared_bytes for box in self.boxes)

    @property
    def accessed_ms(self) -> int:
        return max(box.accessed_ms for box in self.boxes)

    def box_of(self, number: int) -> Box:
        """Return the box of this number."""
        kind = number - self.main.number
        return self.transfer if kind == TRANSFER else self.boxes[kind]

    def announce_available(self, now_ms: int) -> None:
        for box in self.boxes:
            if box.available(now_ms):
                self._entity.announce(box)

    def state_rows(self) -> list[int]:
        """Return the rows of session states, for the sweep."""
        return [] if self.sessions is None else self.sessions.state_rows()

    def drains(self) -> list[tuple[int, Drain]]:
        """Return where the row numbers of each box come from when the entity has been dropped."""
        return [(box.number, box.drain) for box in self.boxes]

    def row_bytes(self) -> int:
        """Return the average size of a row, payloads included."""
        count = sum(box.active_count + box.deferred_count + box.scheduled_count for box in self.boxes)
        return self.size_bytes // (count + 1)

    # ── looking ──

    def peek(
        self,
        box: Box,
        from_seq: int,
        count: int,
        now_ms: int,
        *,
        session_id: str | None = None,
        size_max: int | None = None,
    ) -> list[StoredMessage]:
        """Return committed messages of every state, of one session or of all, without a lock; messages whose time to
        live is over and messages that a write carries now are left out.

        Reading stops when the messages found have `size_max` bytes. StoreError: messages cannot be read now.
        """
        self._entity.accessed_ms = now_ms
        scheduled = list(self._scheduled(session_id)) if box is self.main else []
        others = [n for _, n in scheduled]
        locked = {lock.message.n for lock in box.locks}
        seen: list[StoredMessage] = []
        size, from_n = 0, box.first_from(from_seq, scheduled, session_id)
        while from_n and len(seen) < count and (size_max is None or size < size_max):
            count_max = min(count - len(seen), box.chunk_size())
            numbers = box.numbers_from(from_n, count_max, others, session_id)
            if not numbers:
                break
            left = UNLIMITED if size_max is None else size_max - size
            messages, _, rest = self._entity.store.load(box.number, numbers, left)
            from_n = rest[0] if rest else numbers[-1] + 1
            for message in messages:
                over = message.state == ACTIVE and 0 < message.expires_ms <= now_ms
                if not over or message.n in locked:
                    seen.append(message)
                    size += message.size
        return seen

    # ── due work ──

    def shift(self, ms: int) -> None:
        """Move the ends of all locks: the clock was set."""
        for box in self.boxes:
            box.locks.shift(ms)
            box.accessed_ms += ms

    def next_due_ms(self) -> list[int | None]:
        lapses = [box.locks.next_lapse_ms() for box in self.boxes]
        if self.settlement.is_lapsing:
            lapses = [None if at_ms is None else max(at_ms, self._entity.look_again_ms) for at_ms in lapses]
        return [*lapses, self.expiry.next_ms()]

    @property
    def is_catching_up(self) -> bool:
        """True while a batch of due work is being committed; the next one follows by itself."""
        return self.expiry.is_busy or self.settlement.is_lapsing

    def recovered(self) -> None:
        for box in self.boxes:
            box.recovered()

    def discharge(self) -> None:
        for box in self.boxes:
            box.discharge()

    def lapse(self, now_ms: int) -> None:
        for box in self.boxes:
            if box.locks:
                self.settlement.lapse(box, now_ms)

    def run_due(self, now_ms: int, *others: Callable[[int], None]) -> None:
        """Do a bounded part of the due work: locks and times to live that end, and `others`."""
        self.lapse(now_ms)
        try:
            self.expiry.run(now_ms)
            for run in others:
                run(now_ms)
        except StoreError:
            # The messages cannot be read now, which the store itself reports: they are unchanged, and are tried again.
            self._entity.pause(now_ms)

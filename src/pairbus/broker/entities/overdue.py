"""Changes to messages that time causes: locks of messages and sessions that end, and times to live that are over."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pairbus.broker.boxes.box import CHUNK_MAX, Box, deletion
from pairbus.broker.budget import MOVE_BYTES
from pairbus.broker.store import StoredMessage
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.entities.receivable import MessageChange, Receivable


class Overdue:
    """Ends of locks and of times to live in the boxes of one entity, in batches.

    One batch of each kind is under way at a time: a million messages that fall due together are not loaded together,
    and the ends of a million locks are not written together.
    """

    def __init__(self, entity: Receivable) -> None:
        self._entity = entity
        self._is_lapsing = self._is_expiring = False

    @property
    def is_busy(self) -> bool:
        """True while a batch is being committed; the next one follows by itself."""
        return self._is_lapsing or self._is_expiring

    def times(self) -> list[int | None]:
        """Return times not later than the next ends; None: nothing ends."""
        entity = self._entity
        lapses = [box.locks.next_lapse_ms() for box in entity.boxes]
        if self._is_lapsing:
            lapses = [None if at_ms is None else max(at_ms, entity.look_again_ms) for at_ms in lapses]
        return [*lapses, entity.look_again_ms if self._is_expiring else entity.main.next_expiry_ms()]

    def run(self, now_ms: int) -> None:
        """Write a batch of what has ended. StoreError: messages cannot be read now, and still wait."""
        for box in self._entity.boxes:
            if box.locks:
                self._lapse(box, now_ms)
        self.expire(now_ms)

    # ── locks ──

    def _lapse(self, box: Box, now_ms: int) -> None:
        """Count some locks that have expired as deliveries, like abandoning: the store writes the bodies again."""
        entity, next_ms = self._entity, box.locks.next_lapse_ms()
        if self._is_lapsing or next_ms is None or next_ms > now_ms or not entity.may_move(box, now_ms):
            return
        locks = box.locks.lapse(now_ms, CHUNK_MAX, MOVE_BYTES)
        if locks:
            self._is_lapsing = True
            box.lapsed_count += len(locks)
            changes = [entity.abandon(box, lock.message) for lock in locks]
            entity.moving.take(sum([change[0].size for change in changes]))
            entity.store.after_commit(partial(self._lapsed, box, changes))

    def _lapsed(self, box: Box, changes: list[MessageChange], error: StoreError | None) -> None:
        entity = self._entity
        self._is_lapsing = False
        entity.moving.give(sum([change[0].size for change in changes]))
        for change in changes:
            if error is None:
                entity.apply(box, change)
            else:
                box.give_back(change[0])  # the lock is over in any case; only the count was not stored
        entity.announce(box)
        if any(to_box is not box for _, _, to_box in changes):
            entity.announce(entity.dead)

    # ── times to live ──

    def expire(self, now_ms: int) -> None:
        """Withdraw a batch of expired messages. StoreError: they cannot be read now, and still wait."""
        main = self._entity.main
        next_ms = main.next_expiry_ms()
        if self._is_expiring or next_ms is None or next_ms > now_ms or not self._entity.may_move(main, now_ms):
            return
        if expired := main.withdraw_expired(now_ms, MOVE_BYTES):
            self._is_expiring = True
            self._end(expired, now_ms, is_batch=True)

    def end(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Take expired messages that a receiver's search met."""
        self._end(messages, now_ms, is_batch=False)

    def _end(self, messages: list[StoredMessage], now_ms: int, *, is_batch: bool) -> None:
        """Drop expired messages, or dead-letter them where the settings say so."""
        entity = self._entity
        changes: list[MessageChange] | None = None
        if entity.description.dead_letter_on_expiration:
            changes = [entity.dead_letter_expired(message) for message in messages]
            entity.moving.take(sum([message.size for message in messages]))
        else:
            entity.store.write(deletion(entity.main, messages))
        entity.store.after_commit(partial(self._ended, messages, changes, is_batch, now_ms))

    def _ended(
        self,
        messages: list[StoredMessage],
        changes: list[MessageChange] | None,
        is_batch: bool,
        now_ms: int,
        error: StoreError | None,
    ) -> None:
        entity, main = self._entity, self._entity.main
        if changes is not None:
            entity.moving.give(sum([message.size for message in messages]))
        if error is not None:
            for message in messages:
                main.give_back(message)
        elif changes is None:
            main.forget(messages)
        else:
            for change in changes:
                entity.apply(main, change)
            entity.announce(entity.dead)
        if is_batch:
            self._is_expiring = False
            main.trim()
        entity.go_on(main, now_ms, error)

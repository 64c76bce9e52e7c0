"""Messages whose time to live is over: dropped, or dead-lettered where the settings say so."""

from __future__ import annotations

from pairbus.broker.boxes.box import Box, deletion
from pairbus.broker.budget import MOVE_BYTES
from pairbus.broker.entities.entity import Entity
from pairbus.broker.entities.settlement import MessageChange, Settlement, reason
from pairbus.broker.store import StoredMessage
from pairbus.errors import StoreError


class Expiry:
    """The ends of the times to live in an entity's own box."""

    def __init__(self, entity: Entity) -> None:
        self.dead_letters = False
        "True when expired messages are dead-lettered; set by the entity."
        self._entity = entity
        self.is_busy = False
        "True while a batch is under way: a million messages that fall due together are not loaded together."

    def attach(self, main: Box, dead: Box, settlement: Settlement) -> None:
        """Connect the boxes and this part. They call each other, so the boxes are made later."""
        self._main, self._dead, self._settlement = main, dead, settlement

    def next_ms(self) -> int | None:
        return self._entity.look_again_ms if self.is_busy else self._main.next_expiry_ms()

    def run(self, now_ms: int) -> None:
        """Withdraw a batch of expired messages. StoreError: they cannot be read now, and still wait."""
        next_ms = self._main.next_expiry_ms()
        if self.is_busy or next_ms is None or next_ms > now_ms or not self._entity.may_move(self._main, now_ms):
            return
        if expired := self._main.withdraw_expired(now_ms, MOVE_BYTES):
            self.is_busy = True
            self._expire(expired, now_ms, is_batch=True)

    def met(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Take expired messages that a receiver's search found."""
        self._expire(messages, now_ms, is_batch=False)

    def _expire(self, messages: list[StoredMessage], now_ms: int, *, is_batch: bool) -> None:
        changes: list[MessageChange] | None = None
        if self.dead_letters:
            patch = reason("TTLExpiredException", "The message expired and was dead lettered.")
            changes = [self._settlement.to_dead_letters(message, patch) for message in messages]
            self._entity.moving.take(sum([message.size for message in messages]))
        else:
            self._entity.store.write(deletion(self._main, messages))
        self._entity.commits.then(self._expired, (messages, changes, is_batch), now_ms)

    def _expired(
        self,
        subject: tuple[list[StoredMessage], list[MessageChange] | None, bool],
        now_ms: int,
        error: StoreError | None,
    ) -> None:
        messages, changes, is_batch = subject
        if changes is not None:
            self._entity.moving.give(sum([message.size for message in messages]))
        if error is not None:
            for message in messages:
                self._main.give_back(message)
        elif changes is None:
            self._main.forget(messages)
        else:
            for change in changes:
                self._settlement.apply(self._main, change)
            self._entity.announce(self._dead)
        if is_batch:
            self.is_busy = False
            self._main.trim()
        self._entity.go_on(self._main, now_ms, error)

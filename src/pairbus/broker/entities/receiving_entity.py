"""The part that queues and subscriptions have in common: the face of their receiving half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pairbus.broker.boxes.box import Box
from pairbus.broker.description import QueueDescription, SubscriptionDescription
from pairbus.broker.entities.entity import Entity
from pairbus.broker.entities.receiving import Receiving
from pairbus.broker.store import IndexRow

D = TypeVar("D", QueueDescription, SubscriptionDescription)


class ReceivingEntity(Generic[D]):
    """An entity from which messages are received. Its receivers call the receiving half directly."""

    description: D
    _entity: Entity
    _receiving: Receiving

    def _show(self, receiving: Receiving) -> None:
        """Give receivers the methods of the receiving half."""
        settlement = receiving.settlement
        self.main, self.dead = receiving.main, receiving.dead
        self.settle, self.complete_many = settlement.settle, settlement.complete_many
        self.delete_waiting, self.dead_letter = settlement.delete_waiting, settlement.dead_letter
        self.renew, self.receive_deferred = settlement.renew, settlement.receive_deferred
        self.peek, self.sessions = receiving.peek, receiving.sessions
        self.check_receive, self.touch = self._entity.check_receive, self._entity.touch

    @property
    def transfer(self) -> Box:
        return self._receiving.transfer

    @property
    def boxes(self) -> tuple[Box, ...]:
        return self._receiving.boxes

    @property
    def closed(self) -> bool:
        return self._entity.closed

    @property
    def last_seq(self) -> int:
        return self._entity.last_seq

    @property
    def active_count(self) -> int:
        return self.main.active_count

    @property
    def dead_count(self) -> int:
        return self.dead.active_count + self.dead.deferred_count

    @property
    def transfer_dead_count(self) -> int:
        return sum(box.active_count + box.deferred_count for box in self.boxes[2:])

    @property
    def deferred_count(self) -> int:
        return self.main.deferred_count

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages; those of a subscription include payloads that other subscriptions share."""
        return self._receiving.size_bytes

    @property
    def accessed_ms(self) -> int:
        return max(self._entity.accessed_ms, self._receiving.accessed_ms)

    def stop(self) -> None:
        """Stop `run_due`, before the store is closed; it then also does not go on by itself between two commits."""
        self._entity.is_stopping = True

    def discharge(self) -> None:
        """Count against the budget no more: the namespace is closed."""
        self._entity.moving.close()
        self._receiving.discharge()

    def shift(self, ms: int) -> None:
        """Move all that lasts, but no date, by a step of the clock."""
        self._entity.shift(ms)
        self._receiving.shift(ms)

    # ── start, change, end ──

    def taker(self, box: int) -> Callable[[IndexRow], bool]:
        """Return `recover` for the rows of one box."""
        return self._receiving.box_of(box).recover

    def recover(self, row: IndexRow) -> bool:
        """Take a row of the store's index; False: its payload is missing. Overdue work is left to the next
        `run_due`."""
        return self.taker(row.box)(row)

    def _describe(self, description: D) -> None:
        self.description = description
        self._entity.describe(description.path, description)
        self._receiving.describe(description)

    def update(self, description: D, now_ms: int) -> None:
        """Take new settings: they apply from now on; locks and times to live that exist stay as they are."""
        self._describe(description)
        self.touch(now_ms)
        self._receiving.announce_available(now_ms)

    def close(self) -> None:
        """Stop handing out and writing messages, before `DropEntity` is written. Answers that are due still come.

        Rows written behind the drop would stay in the store for ever.
        """
        self._entity.closed = True
        self._describe(self.description)

    def reopen(self, now_ms: int) -> None:
        """Undo `close`: the drop could not be committed."""
        self._entity.closed = False
        self.update(self.description, now_ms)

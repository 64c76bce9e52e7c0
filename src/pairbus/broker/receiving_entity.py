"""The part that queues and subscriptions have in common: the face of their receiving half."""

from __future__ import annotations

from pairbus.broker.box import Box
from pairbus.broker.entity import Entity
from pairbus.broker.receiving import Receiving


class ReceivingEntity:
    """An entity from which messages are received. Its receivers call the receiving half directly."""

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

"""A queue on the memory store with a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.queue import Draft, Outcome, Queue
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import PutEntity, entity_of
from pairbus.broker.store.memory import MemoryStore
from pairbus.errors import StoreFull
from tests.broker.locking import lock_next

DISK_FULL = StoreFull("the disk is full")
PENDING: Any = "pending"


class Answer:
    """A `done` callback that keeps the values it was called with, and fails when it is called twice."""

    def __init__(self) -> None:
        self.value: Any = PENDING

    def __call__(self, *values: Any) -> None:
        assert self.value is PENDING, f"answered twice: {self.value!r}, then {values!r}"
        self.value = values[0] if len(values) == 1 else values

    @property
    def condition(self) -> str:
        assert isinstance(self.value, Refusal), self.value
        return self.value.condition


class World:
    def __init__(self, **settings: Any) -> None:
        self.now = 1_000_000
        self.store = MemoryStore()
        self.description = QueueDescription("orders", **settings)
        self.store.write(PutEntity(1, self.description.to_json()))
        self.store.commit()
        self.ready: list[Box] = []
        self.queue = self._open(0, Payloads())

    def _open(self, last_seq: int, payloads: Payloads) -> Queue:
        return Queue(
            1,
            self.description,
            NamespaceParts(self.store, payloads, MemoryBudget(), lambda queue, box: self.ready.append(box)),
            now_ms=self.now,
            last_seq=last_seq,
        )

    def restart(self) -> None:
        """As after a kill: what was committed is there, locks and everything uncommitted are not."""
        self.store._writes.clear()
        self.store._callbacks.clear()
        recovered = self.store.recover()
        payloads = Payloads()
        payloads.recover(self.store.payloads())
        self.queue = self._open(recovered.entities[0].last_seq, payloads)
        for row in self.store.index():
            assert entity_of(row.box) == 1
            assert self.queue.recover(row)
        self.queue.recovered(self.now)
        self.settle_down()

    def settle_down(self) -> None:
        """Commit and do what is due until nothing is left to do."""
        for _ in range(1000):
            self.store.commit()
            due = self.queue.next_due_ms()
            if due is not None and due <= self.now:
                self.queue.run_due(self.now)
            elif not self.store._callbacks and not self.store._writes:
                return
        raise AssertionError("due work does not end")

    def pass_ms(self, ms: int) -> None:
        self.now += ms
        self.settle_down()

    def offer(self, *bodies: bytes, **fields: Any) -> Answer:
        answer = Answer()
        self.queue.send([Draft(body, **fields) for body in bodies], self.now, answer)
        return answer

    def send(self, *bodies: bytes, **fields: Any) -> None:
        for body in bodies:
            answer = self.offer(body, **fields)
            self.store.commit()
            assert answer.value is None

    def schedule(self, *bodies: bytes, at: int, **fields: Any) -> list[int]:
        answer = Answer()
        self.queue.schedule([Draft(body, scheduled_ms=at, **fields) for body in bodies], self.now, answer)
        self.store.commit()
        assert isinstance(answer.value, list)
        return answer.value

    def cancel(self, *seqs: int) -> Answer:
        answer = Answer()
        self.queue.cancel_scheduled(seqs, self.now, answer)
        return answer

    def lock(self, box: Box | None = None) -> Lock:
        lock = lock_next(box or self.queue.main, self.now)
        assert lock is not None, "nothing to lock"
        return lock

    def bodies(self, box: Box | None = None) -> list[bytes]:
        """Lock everything that waits."""
        found = []
        while (lock := lock_next(box or self.queue.main, self.now)) is not None:
            found.append(lock.message.body)
        return found

    def settle(self, lock: Lock, outcome: Outcome, *, dead: bool = False, patch: bytes = b"") -> Answer:
        answer = Answer()
        box = self.queue.dead if dead else self.queue.main
        self.queue.settle(box, lock.token, outcome, self.now, answer, patch=patch)
        return answer

    def settled(self, lock: Lock, outcome: Outcome, *, dead: bool = False, patch: bytes = b"") -> None:
        answer = self.settle(lock, outcome, dead=dead, patch=patch)
        self.store.commit()
        assert answer.value is None

    def receive_deferred(self, *seqs: int, lock: bool = True, dead: bool = False) -> Answer:
        answer = Answer()
        box = self.queue.dead if dead else self.queue.main
        self.queue.receive_deferred(box, seqs, self.now, lock, answer)
        return answer

    def delete_waiting(self, count: int, before_ms: int) -> Answer:
        answer = Answer()
        self.queue.delete_waiting(self.queue.main, count, before_ms, self.now, answer)
        return answer

    def peeked(self, *, dead: bool = False) -> list[bytes]:
        box = self.queue.dead if dead else self.queue.main
        return [message.body for message in self.queue.peek(box, 1, 1000, self.now)]

    def counts(self) -> tuple[int, int, int, int]:
        """(active, dead, scheduled, deferred)"""
        queue = self.queue
        return queue.active_count, queue.dead_count, queue.scheduled_count, queue.deferred_count

    def stored_bytes(self) -> int:
        return sum(row.size for row in self.store.index())

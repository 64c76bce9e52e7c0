"""The acts of handlers, and the book of their runs: it compares what a processor believes with the queue's locks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from azure.servicebus.exceptions import ServiceBusError

from pairbus import DeadLetter, Defer, Retry
from tests.sim.broker import Copy, id_of
from tests.sim.loop import VirtualLoop
from tests.sim.processors.entity import WorkQueue

TOLD_WITHIN_S = 0.1  # between the end of a lock and the word to its handler

FATES = {
    "return": 40,
    "take long": 14,
    "raise": 14,
    "retry": 5,
    "dead-letter": 4,
    "defer": 3,
    "complete": 5,
    "complete and raise": 2,
    "hang": 3,
    "resist": 4,
}
"Endings of handlers, and how often they come."


@dataclass(eq=False, slots=True)
class Run:
    """One run of a handler."""

    worker: str
    message: Any
    message_id: str
    number: int
    "Number of the copy in the queue."
    lock: UUID

    @property
    def believes_in_lock(self) -> bool:
        return not self.message.lock_lost


@dataclass
class Book:
    """All runs of a history."""

    queue: WorkQueue
    loop: VirtualLoop
    dice: Random
    tell: Callable[[str], None]
    running: list[Run] = field(default_factory=list)
    handled: Counter[str] = field(default_factory=Counter)
    "Message ids, and how often a handler has ended well under its lock."
    asked: set[str] = field(default_factory=set)
    "Ids that a handler wanted to be completed, whatever it was told."
    excused: set[str] = field(default_factory=set)
    "Ids that may be handled again: the processor has told why, or it died."
    late: set[UUID] = field(default_factory=set)
    "Locks that had ended when their message arrived: the processor takes these for clocks that differ."
    found: list[str] = field(default_factory=list)
    is_quiet: bool = False
    "True: every handler returns at once, so that the queue drains."

    def __post_init__(self) -> None:
        self.queue.on_lock_end = self._lock_ended

    async def handle(self, worker: str, message: Any) -> None:
        """Handle one message, as chance says."""
        run = self._begin(worker, message)
        fate = "return" if self.is_quiet else self.dice.choices(list(FATES), list(FATES.values()))[0]
        self.tell(f"{worker}: {run.message_id} attempt {message.attempt}: {fate}")
        try:
            await self._meet(fate, run)
        except BaseException as error:
            self.tell(f"{worker}: {run.message_id} ends with {error!r}")
            raise
        else:
            if run.believes_in_lock and not run.message._work.is_settled:
                self.handled[run.message_id] += 1
                self.tell(f"{worker}: {run.message_id} is handled")
        finally:
            if run in self.running:
                self.running.remove(run)

    async def _meet(self, fate: str, run: Run) -> None:
        dice, lock_s = self.dice, self.queue.lock_s
        match fate:
            case "return":
                await asyncio.sleep(dice.choice((0.0, 0.01, 0.5)))
            case "take long":
                await asyncio.sleep(dice.uniform(0.2, 3.0) * lock_s)
            case "raise":
                await asyncio.sleep(dice.random())
                raise ValueError("not today")
            case "retry":
                raise Retry(dice.choice((None, 0.0, 3.0, 2 * lock_s)))
            case "dead-letter":
                raise DeadLetter("NoOrder", "it can never be handled")
            case "defer":
                raise Defer
            case "complete" | "complete and raise":
                await asyncio.sleep(dice.random())
                await self._complete(run)
                if fate != "complete":
                    raise ValueError("after the completion")
            case "hang":
                await asyncio.sleep(2000.0)
            case "resist":
                try:
                    await asyncio.sleep(dice.uniform(0.5, 2.0) * lock_s)
                except asyncio.CancelledError:
                    await asyncio.sleep(dice.uniform(0.1, 2.0))

    async def _complete(self, run: Run) -> None:
        """Settle the message in its handler, which is told how that went."""
        self.asked.add(run.message_id)
        try:
            await run.message.complete()
        except (ServiceBusError, asyncio.CancelledError):
            self.excused.add(run.message_id)
            raise
        self.handled[run.message_id] += 1

    def _begin(self, worker: str, message: Any) -> Run:
        lock = message._work.incoming.locked.token
        run = Run(worker, message, id_of(message._work.payload), message.sequence_number, lock)
        for other in self.running:
            if other.number == run.number and other.worker == worker:
                self.found.append(f"two handlers: {worker} handles {run.message_id} twice at once")
            elif other.number == run.number and other.believes_in_lock and self.late.isdisjoint((other.lock, lock)):
                self.found.append(f"two handlers: {worker} and {other.worker} handle {run.message_id}")
        if not run.believes_in_lock:
            self.found.append(f"after its lock: {worker} handles {run.message_id}, whose lock it has lost")
        self.running.append(run)
        if self.queue.held(lock) is None:
            self.loop.call_later(TOLD_WITHIN_S, self._is_told, lock)
        return run

    # ── what the queue sees ──

    def arrived(self, locks: Iterable[UUID]) -> None:
        self.late.update(lock for lock in locks if self.queue.held(lock) is None)

    def settled(self, lock: UUID) -> None:
        """Note a settlement that arrives at the queue; while the handler runs only the handler may ask for it."""
        for run in self.running:
            if run.lock == lock and run.believes_in_lock and not run.message._work.is_settled:
                self.found.append(f"settled too early: the handler of {run.message_id} is still at work")

    def _lock_ended(self, lock: UUID, copy: Copy) -> None:
        self.tell(f"the lock of {copy.message_id} has ended")
        self.loop.call_later(TOLD_WITHIN_S, self._is_told, lock)

    def _is_told(self, lock: UUID) -> None:
        for run in self.running:
            if run.lock == lock and run.believes_in_lock and lock not in self.late and not run.message._work.is_settled:
                self.found.append(f"not told: the lock of {run.message_id} has ended under its handler")

    # ── ends of processes ──

    def died(self, worker: str, settling: list[str]) -> None:
        """A process is gone, with its handlers. Whatever it had under lock is handled again, or may be."""
        self.running = [run for run in self.running if run.worker != worker]
        self.excused.update(settling)
        self.excused.update(copy.message_id for copy in self.queue.locked)

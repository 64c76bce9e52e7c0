"""Requests over HTTP that wait for a message.

They stand in the same line as links (`broker/wire/dispatch.py`) and want one message each. A lock that a request was
given belongs to the request until its answer has left; whoever cannot answer releases the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.entities.entity import Entity
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.receivable import Outcome, Receivable
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.kit.reset import box_like
from pairbus.broker.refusal import SERVER_BUSY, Refusal
from pairbus.broker.wire.dispatch import Dispatcher
from pairbus.broker.wire.outlet import TURN_BYTES

WAITING_MAX = 1000  # requests of one namespace: 2 KB each, and one of its 5000 connections
LOOK_S = 0.5  # between two looks whether the client is still there


class Taken(NamedTuple):
    """A message that is locked for a request."""

    entity: Receivable
    "Where it is: not where the request began to wait, when a reset has replaced that."
    box: Box
    lock: Lock


class WaitingRequest:
    """One request: a `Taker` of one message."""

    hold: Hold | None = None

    def __init__(
        self, requests: WaitingRequests, entity: Receivable, box: Box, client_left: Callable[[], bool]
    ) -> None:
        self.entity = entity
        self.box = box
        self.answer: asyncio.Future[Lock | Refusal] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._client_left = client_left

    def __repr__(self) -> str:
        return f"<WaitingRequest {self.entity.path} done={self.answer.done()}>"

    @property
    def waits(self) -> bool:
        return not self.answer.done()

    @property
    def has_budget(self) -> bool:
        return self._requests.locked.room > 0

    @property
    def room(self) -> int:
        """1 while the client waits for a message and the budget has room for it."""
        if self.answer.done() or self._client_left():
            return 0
        if not self.has_budget:
            self._requests.locked.when_free(self._requests.wake)
            return 0
        return 1

    def take(self, box: Box, limit: int, now_ms: int) -> int:
        locks = box.lock_next(1, now_ms, None, self._requests.locked)
        if not locks:
            return 0
        self.answer.set_result(locks[0])
        return 1 + locks[0].message.size // TURN_BYTES

    def wake(self) -> None:
        dispatcher = self._requests.dispatcher_of(self.box)
        if dispatcher is not None:
            dispatcher.wake()

    def turn_away(self, refusal: Refusal) -> None:
        if not self.answer.done():
            self.answer.set_result(refusal)

    def lead_to(self, entity: Receivable, box: Box) -> None:
        """Wait for a message of another entity: the one that replaced the first in a reset."""
        self.entity, self.box = entity, box

    def end_drain(self) -> None:
        """Do nothing: a request does not drain."""

    def meter_deliveries(self) -> None:
        """Do nothing: a delivery is counted when it is answered."""


class WaitingRequests:
    """The requests of one namespace, and their shares of the memory budget: together they count as one client."""

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        now_ms: Callable[[], int],
        dispatcher_of: Callable[[Box], object],
        add: Callable[[WaitingRequest], None],
    ) -> None:
        self.locked = budget.locked.share()
        "Locks that were given to requests, and bodies on their way to clients."
        self.arriving = budget.arriving.share()
        "Bodies of requests, until their messages are committed."
        self._now_ms = now_ms
        self._dispatcher_of = dispatcher_of
        self._add = add
        self._requests: set[WaitingRequest] = set()
        self._over: Refusal | None = None
        "Refusal of every request, once the namespace is closed."

    def __len__(self) -> int:
        return len(self._requests)

    def dispatcher_of(self, box: Box) -> Dispatcher | None:
        """Return the dispatcher of a box; None: the box is gone."""
        found = self._dispatcher_of(box)
        return found if isinstance(found, Dispatcher) else None

    async def lock_next(
        self, entity: Receivable, box: Box, timeout_s: float, client_left: Callable[[], bool]
    ) -> Taken | None:
        """Wait for the next message of the box and lock it; None: none came in time, or the client left."""
        if self._over is not None:
            raise self._over
        if len(self._requests) >= WAITING_MAX:
            raise Refusal(SERVER_BUSY, f"{WAITING_MAX} requests wait for messages of this namespace; one more cannot.")
        request = WaitingRequest(self, entity, box, client_left)
        self._requests.add(request)
        self._add(request)
        request.wake()
        try:
            await self._answered(request, timeout_s, client_left)
        except asyncio.CancelledError:
            self._release(request)
            raise
        finally:
            self._requests.discard(request)
            dispatcher = self.dispatcher_of(request.box)
            if dispatcher is not None:
                dispatcher.remove(request)
        if not request.answer.done():
            return None
        answer = request.answer.result()
        if isinstance(answer, Refusal):
            raise answer
        return Taken(request.entity, request.box, answer)

    async def _answered(self, request: WaitingRequest, timeout_s: float, client_left: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        await asyncio.sleep(0)  # the dispatcher hands out before that: without any time a message is received too
        while not request.answer.done() and not client_left() and (left := ends - loop.time()) > 0:
            await asyncio.wait({request.answer}, timeout=min(left, LOOK_S))

    def _release(self, request: WaitingRequest) -> None:
        answer = request.answer.result() if request.answer.done() else None
        if isinstance(answer, Lock):
            self.end(Taken(request.entity, request.box, answer), Outcome.RELEASE)

    def end(self, taken: Taken, outcome: Outcome) -> None:
        """End a lock that could not be answered, unless it has ended. Nobody hears whether that could be stored: then
        the lock ends by its time. With the namespace all locks end."""
        if self._over is None:
            taken.entity.settle(taken.box, taken.lock.token, outcome, self._now_ms(), _ignore)

    def wake(self) -> None:
        """Wake everyone who waits: the budget has room again."""
        for request in list(self._requests):
            request.wake()

    def entities(self) -> set[Receivable]:
        """Return the entities at which requests wait."""
        return {request.entity for request in self._requests}

    def turn_away(self, holder: Entity, refusal: Refusal) -> None:
        """End the waits at an entity."""
        for request in self._requests:
            if request.entity is holder:
                request.turn_away(refusal)

    def lead(self, before: Entity, after: Entity) -> None:
        """Lead the waits at an entity to the empty one that has replaced it."""
        for request in self._requests:
            if request.entity is before and request.waits:
                assert isinstance(before, Queue | Subscription) and isinstance(after, Queue | Subscription)
                request.lead_to(after, box_like(request.box, before, after))
                self._add(request)

    def close(self, refusal: Refusal) -> None:
        """End all waits, and count against the budget no more: the namespace is closed."""
        self._over = refusal
        for request in self._requests:
            request.turn_away(refusal)
        self.locked.close()
        self.arriving.close()


def _ignore(_refusal: Refusal | None) -> None:
    """Take the answer to a settlement that no client waits for."""

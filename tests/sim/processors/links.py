"""The links of a processor on the simulated network: a receiver with credit of its own, and `$management`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from pairbus.amqp.message import Message
from pairbus.amqp.performatives import Composite, Modified, Rejected
from pairbus.broker.wire.deliveries import patch_of
from pairbus.transport import ReceivedMessage, Refused, Scheduled
from pairbus.transport.connection.steps import Hearing
from pairbus.transport.links.management import DispositionStatus
from tests.sim.broker import wall_ms
from tests.sim.links import SimManagement, SimReceiver
from tests.sim.processors.entity import WorkQueue
from tests.sim.processors.handlers import Book
from tests.sim.wire import SimCarrier, Wire

DUE = "x-opt-scheduled-enqueue-time"
_LOST = "com.microsoft:message-lock-lost"
_names = itertools.count(1)


class WorkReceiver(SimReceiver):
    """In the shape of `transport.Receiver`, as far as a processor uses it."""

    session_id = session_locked_until = None

    def __init__(self, wire: Wire, path: str, timeout_s: float, credit: int) -> None:
        super().__init__(wire, path, timeout_s, credit)
        self.name = f"link {next(_names)}"

    @property
    def work_queue(self) -> WorkQueue:
        return cast(WorkQueue, self.queue)

    def limit_bytes(self, bytes_max: int) -> None:
        """Every message of the simulation is small."""

    async def collect(self, timeout_s: float) -> list[ReceivedMessage]:
        if not self._buffer and self.over is None:
            assert self._arrival is None, "two tasks receive on one link"
            self._arrival = self.wire.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrival
            except TimeoutError:
                pass
            finally:
                self._arrival = None
        self.check()
        taken, self._buffer = self._buffer, []
        self.credit = max(self.credit - len(taken), 0)
        return taken

    def set_credit(self, credit: int) -> None:
        self.credit = credit
        self._top_up()

    def arrived(self, batch: list[tuple[UUID, bytes]]) -> None:
        if self.over is None:
            cast(WorkWire, self.wire).book.arrived(lock for lock, _ in batch)
        super().arrived(batch)

    def wake(self) -> None:
        self._wake()

    def leave(self) -> None:
        self._wake()

    # ── settling ──

    def settle_soon(self, deliveries: Iterable[Any], outcome: Composite, timeout_s: float) -> asyncio.Future[None]:
        self.check()
        if isinstance(outcome, Rejected):
            info: Mapping[Any, Any] = (outcome.error and outcome.error.info) or {}
            reason, description = info["DeadLetterReason"], info["DeadLetterErrorDescription"]
            work = self.dead_letter(deliveries, reason, description, timeout_s=timeout_s)
        elif not isinstance(outcome, Modified):
            work = self.complete(deliveries, timeout_s=timeout_s)
        elif outcome.undeliverable_here:
            work = self.defer(deliveries, timeout_s=timeout_s)
        else:
            work = self.abandon(deliveries, properties=outcome.message_annotations, timeout_s=timeout_s)
        return self.wire.loop.create_task(work)

    async def complete(self, deliveries: Iterable[Any], *, timeout_s: float | None = None) -> None:
        await self._settle_by(deliveries, self.work_queue.complete, timeout_s)

    async def dead_letter(
        self,
        deliveries: Iterable[Any],
        reason: str | None,
        description: str | None = "",
        *,
        timeout_s: float | None = None,
    ) -> None:
        text = f"{reason}: {description}"
        await self._settle_by(deliveries, lambda lock: self.queue.remove(lock, reason=text), timeout_s)

    async def defer(self, deliveries: Iterable[Any], *, timeout_s: float | None = None) -> None:
        await self._settle_by(deliveries, self.work_queue.defer, timeout_s)

    async def abandon(
        self,
        deliveries: Iterable[Any],
        *,
        properties: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        await self._settle_by(deliveries, lambda lock: abandon(self.work_queue, lock, properties), timeout_s)

    async def release(self, deliveries: Iterable[Any], *, timeout_s: float | None = None) -> None:
        await self._settle_by(deliveries, lambda lock: self.work_queue.unlock(lock, counts=False), timeout_s)

    async def _settle_by(self, deliveries: Iterable[Any], act: Callable[[UUID], None], timeout_s: float | None) -> None:
        watched = _watched(self.wire, act)
        ids = [item if isinstance(item, int) else item.delivery_id for item in deliveries]
        locks = {number: self._locks[number] for number in ids}
        try:
            await self._settle(ids, watched, timeout_s)
        finally:
            self._locks.update(locks)  # a settlement without an answer may be asked for again

    # ── ends ──

    async def give_back(self, timeout_s: float | None = None) -> None:
        """Release what has arrived and was not read."""
        unread, self._buffer = self._buffer, []
        if unread:
            await self.release(unread, timeout_s=timeout_s)


def abandon(queue: WorkQueue, lock: UUID, properties: Mapping[str, Any] | None) -> None:
    copy = queue.held(lock)
    assert copy is not None
    copy.patch += patch_of({**properties} if properties else {})  # type: ignore[dict-item]
    queue.unlock(lock)


def _watched(wire: Wire, act: Callable[[UUID], None]) -> Callable[[UUID], None]:
    """The queue's end of a settlement, which the book sees first."""
    book = cast(WorkWire, wire).book

    def seen(lock: UUID) -> None:
        book.settled(lock)
        act(lock)

    return seen


class WorkNode(SimManagement):
    """The requests of `transport.Management` that a processor makes."""

    @property
    def _queue(self) -> WorkQueue:
        return cast(WorkQueue, self.wire.namespace.queue(self.path))

    async def renew_lock(self, tokens: Sequence[UUID], timeout_s: float | None = None) -> list[int]:
        queue = self._queue

        def renew() -> list[int]:
            if any(queue.held(token) is None for token in tokens):
                raise Refused(_LOST, self.path)
            return [queue.renew(token) for token in tokens]

        return cast("list[int]", await self._ask(renew, timeout_s))

    async def schedule(
        self, messages: Sequence[Scheduled], timeout_s: float | None = None, silence_s: float | None = None
    ) -> list[int]:
        queue, wire = self._queue, self.wire

        def schedule() -> list[int]:
            now_ms = wall_ms(wire.loop.time())
            due = [int((Message.decode(each.payload).annotations or {})[DUE]) for each in messages]
            queue.schedule(messages, [(at - now_ms) / 1000 for at in due], wire.owner)
            wire.net.stored(wire.owner)
            return [0] * len(messages)

        return cast("list[int]", await self._ask(schedule, timeout_s))

    async def update_disposition(
        self,
        status: DispositionStatus,
        tokens: Sequence[UUID],
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        queue = self._queue
        acts: dict[str, Callable[[UUID], None]] = {
            "completed": queue.complete,
            "abandoned": lambda lock: abandon(queue, lock, properties),
            "defered": queue.defer,
            "suspended": lambda lock: queue.remove(lock, reason=f"{reason}: {description}"),
        }
        act = _watched(self.wire, acts[status])

        def settle() -> None:
            if queue.stores_nothing:
                raise Refused("amqp:internal-error", "No space left")
            if any(queue.held(token) is None for token in tokens):
                raise Refused(_LOST, self.path)
            for token in tokens:
                act(token)

        await self._ask(settle, timeout_s)

    async def _ask(self, act: Callable[[], Any], timeout_s: float | None) -> Any:
        self.check()
        return await self.within(self.wire.ask(act, doubtful=True), timeout_s, "request", outcome_unknown=True)


class WorkWire(Wire):
    """A connection of a worker."""

    book: Book
    _node: WorkNode | None = None

    async def receiver(self, path: str, *, credit: int, timeout_s: float, **_: Any) -> SimReceiver:
        link = WorkReceiver(self, path, timeout_s, credit)
        await self._attach(link, timeout_s, link.opened)
        return link

    async def management(self, path: str, *, timeout_s: float, silence_s: float) -> SimManagement:
        if self._node is None or self._node.over is not None:
            node = WorkNode(self, path, timeout_s)
            await self._attach(node, timeout_s, lambda: self.namespace.queue(path).refuse(attaching=True))
            self._node = node
        return self._node


class WorkCarrier(SimCarrier):
    """The genuine carrier of a worker, on the simulated network."""

    wire_class = WorkWire
    book: Book

    async def _dial(self, hearing: Hearing) -> Wire:
        wire = await super()._dial(hearing)
        cast(WorkWire, wire).book = self.book
        return wire

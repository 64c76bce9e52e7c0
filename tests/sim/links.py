"""Senders and receivers of the simulated network, which promise what those of `pairbus.transport` promise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from pairbus.amqp.message import BATCH_FORMAT, DATA, sections
from pairbus.amqp.types import decode
from pairbus.broker.wire.deliveries import patch_of
from pairbus.pairing.policy import Silence
from pairbus.transport import ConnectionLost, ReceivedMessage, Refused, Timeout, TransportError
from pairbus.transport.links.management import DispositionStatus
from tests.sim.broker import Queue

if TYPE_CHECKING:
    from tests.sim.wire import Act, Wire


class SimLink:
    def __init__(self, wire: Wire, path: str, timeout_s: float) -> None:
        self.wire = wire
        self.path = path
        self.timeout_s = timeout_s
        self.over: TransportError | None = None
        self.when_over: Callable[[], None] | None = None

    async def attach(self, timeout_s: float, act: Act) -> None:
        await self.within(self.wire.ask(act, doubtful=False), timeout_s, "attach", outcome_unknown=False)
        if self.wire.loss is not None:
            raise self.wire.loss.again(outcome_unknown=False)
        self.wire.links.append(self)

    def end(self, reason: TransportError) -> None:
        if self.over is None:
            self.over = reason
            if self.when_over is not None:
                self.when_over()

    def check(self) -> None:
        if self.over is not None:
            raise self.over.again(outcome_unknown=False)

    def unlock_unread(self) -> None:
        """The link is about to be closed in an orderly way."""

    async def close(self, timeout_s: float = 2.0) -> None:
        if self.over is None:
            self.unlock_unread()
            self.end(ConnectionLost(f"{self.path} was closed by this client"))
            if self in self.wire.links:
                self.wire.links.remove(self)

    async def within(
        self, future: asyncio.Future[Any], timeout_s: float | None, what: str, *, outcome_unknown: bool
    ) -> Any:
        began = self.wire.loop.time()
        try:
            async with asyncio.timeout(self.timeout_s if timeout_s is None else timeout_s):
                return await future
        except TimeoutError:
            silence = Silence(self.wire.loop.time() - began, math.inf)
            raise Timeout(
                f"{self.path}: the {what} was not answered", silence, outcome_unknown=outcome_unknown
            ) from None


class SimSender(SimLink):
    """In the shape of `transport.Sender`."""

    max_message_size = batch_limit = 262_144
    max_batch_size = 0
    large: tuple[()] = ()
    "Large messages under way: none, every message of the simulation is small."

    def __init__(self, wire: Wire, path: str, timeout_s: float) -> None:
        super().__init__(wire, path, timeout_s)
        self.when_silent: Callable[[], None] | None = None
        self._sends: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}

    @property
    def in_flight(self) -> int:
        return len(self._sends)

    @property
    def is_idle(self) -> bool:
        return not self._sends

    @property
    def sendable(self) -> bool:
        return self.over is None

    def is_taken_up(self, by: object) -> bool:
        return False

    async def ready(self, timeout_s: float | None = None) -> None:
        self.check()

    async def send(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        by: object = None,
    ) -> None:
        await self.send_soon(payload, message_format=message_format, timeout_s=timeout_s, silence_s=silence_s)

    async def send_batch(self, payloads: list[bytes], *, timeout_s: float | None = None) -> None:
        await self._transmit(payloads, timeout_s, None)

    def send_nowait(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        by: object = None,
    ) -> asyncio.Future[None]:
        payloads = _batched(payload) if message_format == BATCH_FORMAT else [payload]
        return self._transmit(payloads, timeout_s, silence_s)

    send_soon = send_nowait

    def _transmit(self, payloads: list[bytes], timeout_s: float | None, silence_s: float | None) -> asyncio.Future[Any]:
        self.check()
        wire, path = self.wire, self.path

        def store() -> None:
            wire.net.history.in_doubt(future, wire.namespace.queue(path).store(payloads, wire.owner))
            wire.net.stored(wire.owner)

        future = wire.ask(store, doubtful=True)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        allowed_s = math.inf if silence_s is None else silence_s
        silence = Silence(min(limit_s, allowed_s), allowed_s)  # there is one answer, and no other sign of life
        self._sends[future] = wire.loop.call_later(silence.lasted_s, self._late, future, silence)
        future.add_done_callback(self._ended)
        return future

    def _late(self, future: asyncio.Future[Any], silence: Silence) -> None:
        if not future.done():
            future.set_exception(Timeout(f"{self.path}: not answered in time", silence, outcome_unknown=True))
            if self.when_silent is not None:
                self.when_silent()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        timer = self._sends.pop(future, None)
        if timer is not None:
            timer.cancel()
        if not future.cancelled():
            error = future.exception()
            if isinstance(error, Refused) and error.condition == "amqp:link:detach-forced":
                self.end(error)

    def end(self, reason: TransportError) -> None:
        super().end(reason)
        for future in list(self._sends):
            if not future.done():
                future.set_exception(reason.again(outcome_unknown=True))


def _batched(payload: bytes) -> list[bytes]:
    return [decode(payload, value_at)[0] for code, _, value_at, _ in sections(payload) if code == DATA]


class SimManagement(SimLink):
    """The requests of `transport.Management` that a syphon makes."""

    async def update_disposition(
        self, status: DispositionStatus, tokens: Sequence[UUID], *, timeout_s: float | None = None
    ) -> None:
        """Abandon messages by their lock tokens; a lock that has ended refuses the request, which changes nothing."""
        assert status == "abandoned", "nothing else is settled by a lock token here"
        self.check()
        queue = self.wire.namespace.queue(self.path)

        def abandon() -> None:
            if any(queue.held(token) is None for token in tokens):
                raise Refused("com.microsoft:message-lock-lost", self.path)
            for token in tokens:
                queue.unlock(token)

        await self.within(self.wire.ask(abandon, doubtful=True), timeout_s, "request", outcome_unknown=True)


class Outlet:
    """The namespace's end of a receiver."""

    def __init__(self, queue: Queue, receiver: SimReceiver) -> None:
        self.queue = queue
        self.receiver = receiver
        self.credit = 0
        self._given = 0

    def grant(self, until: int) -> None:
        """Credit as AMQP counts it: up to which delivery, whatever is under way."""
        self.credit = max(until - self._given, 0)
        self.queue.dispatch()

    def deliver(self, batch: list[tuple[UUID, bytes]]) -> None:
        self._given += len(batch)
        self.receiver.wire.down(lambda: self.receiver.arrived(batch))


class SimReceiver(SimLink):
    """In the shape of `transport.Receiver`."""

    def __init__(self, wire: Wire, path: str, timeout_s: float, credit: int) -> None:
        super().__init__(wire, path, timeout_s)
        self.credit = credit
        self._outlet: Outlet | None = None
        self._buffer: list[ReceivedMessage] = []
        self._count = 0
        self._granted = 0
        self._granted_at: int | None = None
        self._empty = 0
        self._locks: dict[int, UUID] = {}
        "Unsettled."
        self._arrival: asyncio.Future[None] | None = None

    def opened(self) -> None:
        queue = self.wire.namespace.queue(self.path)
        queue.refuse(attaching=True)
        self._outlet = Outlet(queue, self)
        queue.outlets.append(self._outlet)

    @property
    def queue(self) -> Queue:
        assert self._outlet is not None
        return self._outlet.queue

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    async def receive(self, max_count: int, timeout_s: float) -> list[ReceivedMessage]:
        self._top_up()
        if not self._buffer and self.over is None:
            assert self._arrival is None, "two tasks receive on one link"
            self._arrival = self.wire.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrival
            except TimeoutError:
                return []
            finally:
                self._arrival = None
        self.check()
        taken, self._buffer = self._buffer[:max_count], self._buffer[max_count:]
        self._top_up()
        return taken

    def _top_up(self) -> None:
        until = self._count + self.credit - len(self._buffer)
        if self.over is None and until > self._granted:
            self._granted = until
            self._ask_is_over()
            self._granted_at = self._count
            outlet = self._outlet
            assert outlet is not None
            self.wire.up(lambda: outlet.grant(until))

    async def pause(self, timeout_s: float | None = None) -> None:
        self.check()
        outlet = self._outlet
        assert outlet is not None

        def drain() -> None:
            outlet.credit = 0

        self._granted = 0
        self._ask_is_over()
        await self.within(self.wire.ask(drain, doubtful=False), timeout_s, "drain", outcome_unknown=False)

    def take_empty(self) -> int:
        empty, self._empty = self._empty, 0
        return empty

    def _ask_is_over(self) -> None:
        self._empty += self._granted_at == self._count
        self._granted_at = None

    def arrived(self, batch: list[tuple[UUID, bytes]]) -> None:
        if self.over is not None:
            return
        for lock, payload in batch:
            delivery = SimpleNamespace(
                delivery_id=self._count, tag=lock.bytes_le, payload=payload, message_format=0, settled=False
            )
            self._locks[self._count] = lock
            self._count += 1
            self._buffer.append(ReceivedMessage(cast(Any, delivery)))
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # ── settling ──

    async def complete(self, deliveries: Iterable[Any], *, timeout_s: float | None = None) -> None:
        await self._settle(deliveries, self.queue.remove, timeout_s)

    async def dead_letter(
        self, deliveries: Iterable[Any], reason: str, description: str = "", *, timeout_s: float | None = None
    ) -> None:
        text = f"{reason}: {description}"
        await self._settle(deliveries, lambda lock: self.queue.remove(lock, reason=text), timeout_s)

    async def abandon(
        self,
        deliveries: Iterable[Any],
        *,
        properties: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        changes: dict[object, object] = {**properties} if properties else {}  # type: ignore[dict-item]
        queue, patch = self.queue, patch_of(changes)

        def change(lock: UUID) -> None:
            copy = queue.held(lock)
            assert copy is not None
            copy.patch += patch
            queue.unlock(lock)

        await self._settle(deliveries, change, timeout_s)

    async def release(self, deliveries: Iterable[Any], *, timeout_s: float | None = None) -> None:
        await self._settle(deliveries, self.queue.unlock, timeout_s, writes=False)

    async def renew(self, messages: Iterable[ReceivedMessage], *, timeout_s: float | None = None) -> list[int]:
        self.check()
        locks, queue = [message.lock_token for message in messages], self.queue
        future = self.wire.ask(lambda: [queue.renew(lock) for lock in locks], doubtful=True)
        return cast("list[int]", await self.within(future, timeout_s, "renewal", outcome_unknown=True))

    async def _settle(
        self, deliveries: Iterable[Any], act: Callable[[UUID], None], timeout_s: float | None, *, writes: bool = True
    ) -> None:
        self.check()
        ids = [item if isinstance(item, int) else item.delivery_id for item in deliveries]
        if not ids:
            return
        locks, queue = {number: self._locks[number] for number in ids}, self.queue

        def settle() -> None:
            lost = []
            if writes and queue.stores_nothing:
                self.wire.net.history.uncompleted.update(self._ids_of(locks.values()))
                raise Refused("amqp:internal-error", "No space left", delivery_ids=tuple(locks))
            for number, lock in locks.items():
                if queue.held(lock) is None:
                    lost.append(number)
                else:
                    act(lock)
            if lost:
                raise Refused("com.microsoft:message-lock-lost", self.path, delivery_ids=tuple(lost))

        future = self.wire.ask(settle, doubtful=True)
        self.wire.net.history.in_doubt(future, self._ids_of(locks.values()))
        try:
            await self.within(future, timeout_s, "settlement", outcome_unknown=True)
        finally:
            for number in ids:
                self._locks.pop(number, None)

    def _ids_of(self, locks: Iterable[UUID]) -> list[str]:
        held = (self.queue.held(lock) for lock in locks)
        return [copy.message_id for copy in held if copy is not None]

    # ── ends ──

    def unlock_unread(self) -> None:
        queue, locks = self.queue, [self._locks.pop(message.delivery_id) for message in self._buffer]
        self._buffer.clear()

        def unlock() -> None:
            for lock in locks:
                queue.unlock(lock)

        self.wire.up(unlock)

    def end(self, reason: TransportError) -> None:
        super().end(reason)
        if self._outlet is not None:
            # Locks stay until they end. The receiver can no longer settle messages, whatever it has done with them.
            self.wire.net.history.excuse(self._ids_of(self._locks.values()))
            self.queue.outlets.remove(self._outlet)
            self.wire.net.history.lost_links += self.wire.loss is not None
        self._wake()

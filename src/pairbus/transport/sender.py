"""Sending: one message at a time, or hundreds in flight.

    await sender.send(payload)                      # accepted, or an exception

    await sender.ready()                            # credit, session window and socket have room
    future = sender.send_nowait(payload)            # resolves when the peer has accepted

Every send has a deadline, also those whose future nobody awaits: one timer per sender looks after all of them, so a
send in flight costs no timer of its own.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED
from pairbus.amqp.events import Disposed
from pairbus.amqp.link import MASK, SenderLink
from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.amqp.performatives import Accepted, Attach, Rejected
from pairbus.transport.errors import NotReady, Refused, Timeout, TransportError
from pairbus.transport.links import LinkEnd

if TYPE_CHECKING:
    from pairbus.transport.wire import Wire

IN_FLIGHT_MAX = 65_536  # sends without an answer, given-up ones included: a peer that grants and never answers


class Sender(LinkEnd):
    """Sends to one entity. Made by `Connection.sender`; safe to share between tasks of one event loop."""

    _link: SenderLink

    def __init__(self, wire: Wire, link: SenderLink, what: str, timeout_s: float) -> None:
        super().__init__(wire, link, what)
        self.timeout_s = timeout_s
        "How long a send may take unless the call says otherwise."
        self.max_message_size = 0
        "What the peer takes at most; 0 when it did not say."
        self._session = link.session
        self._sends: dict[int, tuple[asyncio.Future[None], float]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tag = 0
        self._sweep_at = math.inf
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def sendable(self) -> bool:
        """`send_nowait` would be taken now."""
        return (
            self.over is None
            and self._wire.writable
            and self._link.sendable
            and self._session.sent_unsettled < IN_FLIGHT_MAX
        )

    @property
    def batch_limit(self) -> int:
        return min(self.max_message_size or 262144, 1048576)

    @property
    def in_flight(self) -> int:
        return len(self._sends)

    async def ready(self, timeout_s: float | None = None) -> None:
        """Return when one more send is possible; Timeout when that takes too long, with nothing sent."""
        deadline = self._loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        while not self.sendable:
            await self._room(deadline)

    async def send(self, payload: bytes, *, message_format: int = 0, timeout_s: float | None = None) -> None:
        """Send one encoded message and return when the peer has accepted it."""
        deadline = self._loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        while not self.sendable:
            await self._room(deadline)
        await self._transmit(payload, message_format, deadline)

    def send_nowait(
        self, payload: bytes, *, message_format: int = 0, timeout_s: float | None = None
    ) -> asyncio.Future[None]:
        """Send one encoded message; the future ends as `send` would. NotReady when there is no room: see `ready`."""
        if not self.sendable:
            if self.over is not None:
                raise self.over.again(outcome_unknown=False)
            raise NotReady(f"{self._what}: credit {self._link.credit}, {len(self._sends)} in flight")
        deadline = self._loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        return self._transmit(payload, message_format, deadline)

    async def send_batch(self, payloads: list[bytes], *, timeout_s: float | None = None) -> None:
        """Send encoded messages as one batch: all are accepted, or none."""
        await self.send(encode_batch(payloads), message_format=BATCH_FORMAT, timeout_s=timeout_s)

    def _transmit(self, payload: bytes, message_format: int, deadline: float) -> asyncio.Future[None]:
        if 0 < self.max_message_size < len(payload):
            raise Refused(MESSAGE_SIZE_EXCEEDED, f"{len(payload)} bytes, the peer takes {self.max_message_size}")
        self._tag = tag = (self._tag + 1) & MASK
        delivery_id = self._link.send(payload, tag.to_bytes(4, "big"), message_format=message_format)
        future: asyncio.Future[None] = self._loop.create_future()
        self._sends[delivery_id] = (future, deadline)
        self._wire.queued(len(payload))
        if deadline < self._sweep_at:
            self._sweep_from(deadline)
        return future

    # ── room ──

    async def _room(self, deadline: float) -> None:
        if self.over is not None:
            raise self.over.again(outcome_unknown=False)
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        woken = False
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
            woken = True
        except TimeoutError:
            raise Timeout(f"{self._what}: no credit in time; nothing was sent") from None
        finally:
            if not woken:
                self._waiting = deque(other for other in self._waiting if other is not waiter)
                self.on_room()  # this task may have been woken and cancelled in one turn: the room is another's

    def on_room(self) -> None:
        """Wake as many as could send now; each looks again when it runs."""
        for _ in range(min(self._link.credit, len(self._waiting)) if self.sendable else 0):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def on_flow(self) -> None:
        self.on_room()
        if self._link.drain and not self._waiting:
            self._link.drained()

    # ── outcomes ──

    def on_attached(self, attach: Attach) -> None:
        self.max_message_size = attach.max_message_size or 0
        super().on_attached(attach)

    def on_disposed(self, event: Disposed) -> None:
        take, state = self._sends.pop, event.state
        refused = None if type(state) is Accepted else _refusal(state)
        for delivery in event.deliveries:
            entry = take(delivery.delivery_id, None)  # None: given up at its deadline
            if entry is not None and not entry[0].done():
                if refused is None:
                    entry[0].set_result(None)
                else:
                    entry[0].set_exception(refused.again(outcome_unknown=refused.outcome_unknown))
        if not event.settled:
            for delivery in event.deliveries:
                self._session.settle_sent(delivery.delivery_id, delivery.delivery_id, state.encode())
        if self._waiting:
            self.on_room()

    def on_over(self, reason: TransportError) -> None:
        super().on_over(reason)
        if self._sweep is not None:
            self._sweep.cancel()
        sends, self._sends = self._sends, {}
        for future, _ in sends.values():
            if not future.done():
                future.set_exception(reason.again(outcome_unknown=True))
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(reason.again(outcome_unknown=False))

    # ── deadlines ──

    def _sweep_from(self, deadline: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep_at = deadline
        self._sweep = self._loop.call_at(deadline, self._give_up_late_sends)

    def _give_up_late_sends(self) -> None:
        # The loop may call a little early, by the resolution of its clock.
        now, earliest = max(self._loop.time(), self._sweep_at), math.inf
        for delivery_id, (future, deadline) in list(self._sends.items()):
            if deadline > now and not future.done():
                earliest = min(earliest, deadline)
                continue
            del self._sends[delivery_id]
            if not future.done():
                text = f"{self._what}: delivery {delivery_id} was sent and not answered in time"
                future.set_exception(Timeout(text, outcome_unknown=True))
        self._sweep, self._sweep_at = None, math.inf
        if earliest < math.inf:
            self._sweep_from(earliest)


def _refusal(state: object) -> Refused:
    if isinstance(state, Rejected):
        error = state.error
        return Refused(error.condition, error.description) if error else Refused("amqp:rejected", "without a reason")
    if state is None:
        return Refused("amqp:unknown-outcome", "the peer settled without saying how", outcome_unknown=True)
    name = getattr(state, "NAME", type(state).__name__)
    return Refused(f"amqp:{name}", "the peer did not take the message")

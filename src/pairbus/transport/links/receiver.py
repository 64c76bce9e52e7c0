"""The receiver: it receives messages from one entity, and settles them.

Credit. The first `receive` grants credit for `credit` messages; it stays open across calls and is topped up as messages
are taken, so that buffered + granted never exceed `credit`, which limits the memory. With peek-lock, the locks of
messages in the buffer run: give a small `credit`, or take it back with `pause`, after which no message arrives until
the next `receive`. `limit_bytes` bounds the buffer by bytes as well. Closing releases unread messages and waits for the
answer. In receive-and-delete mode it cannot: `pause`, then `receive` until empty, then close.

An empty receive is a flow of credit after which no message came until the next flow or drain. Both ends can count them
and get the same number, because a flow contains its delivery count.

Settlement. Deliveries are settled as ranges of consecutive ids. The peer is asked (unsettled) and its answer awaited;
only `settle_nowait` does not ask. Settlements are sent at the end of the loop's turn: those of different tasks with the
same outcome often have consecutive ids together.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pairbus.amqp.events import Delivery, SettlementAnswered
from pairbus.amqp.link import MASK, ReceiverLink, ranges
from pairbus.amqp.performatives import ACCEPTED_BYTES, RELEASED_BYTES, Composite, Released
from pairbus.pairing.policy import Silence
from pairbus.transport.errors import Timeout, TransportError
from pairbus.transport.links.byte_room import ByteRoom
from pairbus.transport.links.link_end import LinkEnd
from pairbus.transport.links.session_filter import locked_until_of, session_of
from pairbus.transport.links.settlement import (
    COMPLETED,
    DEFERRED,
    Deliveries,
    ReceivedMessage,
    Settlements,
    abandoned,
    dead_lettered,
    ids_of,
)

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire


class Receiver(LinkEnd):
    """A receiver of one entity, from `Connection.receiver`; one task receives, any task may settle."""

    _link: ReceiverLink

    def __init__(
        self,
        wire: Wire,
        link: ReceiverLink,
        what: str,
        timeout_s: float,
        credit: int,
        renewer: Callable[[list[UUID], float], Awaitable[list[int]]],
    ) -> None:
        super().__init__(wire, link, what)
        self.timeout_s = timeout_s
        "Default time-out of a settlement, a pause or a renewal."
        self.credit = credit
        self._renewer = renewer
        self._buffer: deque[ReceivedMessage] = deque()
        self._room: ByteRoom | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._settlements = Settlements(wire.loop, what)
        self._asks_soon = False
        "True: what this turn of the loop settles is sent at its end."
        self._granted_at: int | None = None
        "The delivery count when credit was last given; None: no credit is open."
        self._empty = 0

    @property
    def session_id(self) -> str | None:
        """The session that this receiver has; None on an entity without sessions."""
        return session_of(self._link.remote_attach)

    @property
    def session_locked_until(self) -> float | None:
        """End of the lock of the session in seconds since 1970, when the link was opened; None when it is not known."""
        return locked_until_of(self._link.remote_attach)

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def limit_bytes(self, bytes_max: int) -> None:
        """Bound the bytes of messages that have arrived and wait for `receive`; called before the first credit."""
        self._room = ByteRoom(bytes_max)

    def unread(self) -> list[ReceivedMessage]:
        """Return the messages that have arrived and wait for `receive`; the locks of these run already."""
        return list(self._buffer)

    @property
    def arrived_bytes(self) -> int:
        """Bytes of a message that has arrived in part: a large one may take longer than one `receive` waits."""
        return self._link.arrived_bytes

    async def receive(self, max_count: int, timeout_s: float) -> list[ReceivedMessage]:
        """Return messages as soon as there is one; at most `max_count`, or `credit`; none at the time-out."""
        self._top_up()
        await self._arrive(timeout_s)
        taken = self._taken(max_count)
        self._top_up()
        return taken

    async def take(self, max_count: int, timeout_s: float, drain_s: float) -> list[ReceivedMessage]:
        """Return the messages that are there, as soon as there is one, at most `max_count`; none at the time-out.

        Credit is granted for this call alone. What is not used is taken back within `drain_s`, so that no message
        arrives after the call; Timeout when the peer does not answer this, and no message has come.
        """
        self.credit = max_count
        try:
            self._top_up()
            await self._arrive(timeout_s)
        finally:
            self.credit = 0
        more = 0
        if self._room is not None and self._buffer:  # credit was given before the sizes of messages were known
            more = self._room.credit(max_count - len(self._buffer))
        if max(self._link.credit, more) > 0 and self.over is None:
            try:
                await self.pause(drain_s, more)
            except Timeout:
                if not self._buffer:
                    raise
        return self._taken(max_count)

    async def collect(self, timeout_s: float) -> list[ReceivedMessage]:
        """Return all messages that have arrived, as soon as there is one; none at the time-out.

        Their credit is spent: `set_credit` gives more, when the caller knows how much it has room for.
        """
        await self._arrive(timeout_s)
        taken = self._taken(len(self._buffer))
        self.credit = max(self.credit - len(taken), 0)
        return taken

    def set_credit(self, credit: int) -> None:
        """Change the limit of messages that are buffered or granted. Credit that was granted stays granted."""
        self.credit = credit
        self._top_up()

    def wake(self) -> None:
        """Let the call that waits for messages go on as if its time were over."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def _arrive(self, timeout_s: float) -> None:
        """Wait until a message has arrived, or the link is over; for `timeout_s` at most."""
        if self._buffer or self.over is not None:
            return
        assert self._arrival is None, "one task receives"
        self._arrival = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrival
        except TimeoutError:
            pass
        finally:
            self._arrival = None

    def _taken(self, max_count: int) -> list[ReceivedMessage]:
        buffer = self._buffer
        if self.over is not None and not (buffer and buffer[0].settled):
            # The locks ended with the link; only messages that the peer has deleted already are still useful.
            raise self.over.again(outcome_unknown=False)
        taken = [buffer.popleft() for _ in range(min(max_count, len(buffer)))]
        if self._room is not None:
            self._room.left(sum(len(message.payload) for message in taken))
        return taken

    def take_empty(self) -> int:
        """Return the number of empty receives since the last call."""
        empty, self._empty = self._empty, 0
        return empty

    async def pause(self, timeout_s: float | None = None, last: int = 0) -> None:
        """Take the credit back: when this returns, no message arrives until the next `receive`.

        `last`: the peer may send so many messages before, if it has them.
        """
        self._check()
        credit = max(self._link.credit, last)
        if credit <= 0:
            return
        assert self._drained is None, "one task receives and pauses"
        self._drained = self._loop.create_future()
        self._ask_is_over()
        self._link.grant(credit, drain=True)
        self._wire.queued(0)
        began = self._loop.time()
        try:
            async with asyncio.timeout(self.timeout_s if timeout_s is None else timeout_s):
                await self._drained
        except TimeoutError:
            silence = Silence(self._loop.time() - began, math.inf)
            raise Timeout(f"{self._what}: the drain was not answered in time", silence) from None
        finally:
            self._drained = None

    def _top_up(self) -> None:
        """Grant again when half of the credit is used, so that a flow frame serves many messages."""
        link = self._link
        if link.drain and link.credit > 0:
            return  # a drain without an answer yet: the answer would silently take new credit away
        if self.over is None and link.credit <= self.credit >> 1:
            room = self.credit - len(self._buffer)
            if self._room is not None:
                room = self._room.credit(room)
                if link.credit > room >> 1:
                    return
            if room > link.credit:
                self._grant(room)

    def _grant(self, credit: int) -> None:
        self._ask_is_over()
        self._granted_at = self._link.delivery_count
        self._link.grant(credit)
        self._wire.queued(0)

    def _ask_is_over(self) -> None:
        self._empty += self._granted_at == self._link.delivery_count
        self._granted_at = None

    # ── settling ──

    async def complete(self, deliveries: Deliveries, *, timeout_s: float | None = None) -> None:
        """Complete messages: the queue removes them. Refused, with the ids, when locks were lost."""
        await self._settle(deliveries, COMPLETED, timeout_s)

    async def abandon(
        self, deliveries: Deliveries, *, properties: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> None:
        """Return messages to the queue, counted as failed deliveries; `properties` change application properties."""
        await self._settle(deliveries, abandoned(properties), timeout_s)

    async def defer(self, deliveries: Deliveries, *, timeout_s: float | None = None) -> None:
        """Defer messages: from now on they are received only by sequence number."""
        await self._settle(deliveries, DEFERRED, timeout_s)

    async def dead_letter(
        self,
        deliveries: Deliveries,
        reason: str | None,
        description: str | None = "",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Move messages to the dead-letter queue, with reason and description as application properties."""
        await self._settle(deliveries, dead_lettered(reason, description), timeout_s)

    async def release(self, deliveries: Deliveries, *, timeout_s: float | None = None) -> None:
        """Release messages, as if they had never been delivered."""
        await self._settle(deliveries, Released(), timeout_s)

    def settle_nowait(self, deliveries: Deliveries, outcome: bytes = ACCEPTED_BYTES) -> None:
        """Send the outcome (encoded) without waiting: the caller does not learn whether the peer could do it."""
        self._check()
        for first, last in ranges(ids_of(deliveries)):
            self._link.settle(first, last, outcome, ((last - first) & MASK) + 1)
        self._wire.queued(0)

    async def renew(self, messages: Iterable[ReceivedMessage], *, timeout_s: float | None = None) -> list[int]:
        """Renew the locks; return the new expiry of each, in milliseconds since 1970."""
        tokens = [message.lock_token for message in messages]
        return await self._renewer(tokens, self.timeout_s if timeout_s is None else timeout_s)

    async def _settle(self, deliveries: Deliveries, outcome: Composite, timeout_s: float | None) -> None:
        await self.settle_soon(deliveries, outcome, self.timeout_s if timeout_s is None else timeout_s)

    def settle_soon(self, deliveries: Deliveries, outcome: Composite, timeout_s: float) -> asyncio.Future[None]:
        """Ask the peer at the end of this turn; the future has its answer, or the error of `complete` and the others.

        A future that is cancelled before is not asked for.
        """
        self._check()
        done = self._settlements.add(ids_of(deliveries), outcome, timeout_s)
        if not self._asks_soon:
            self._asks_soon = True
            self._loop.call_soon(self._ask)
        return done

    def _ask(self) -> None:
        self._asks_soon = False
        for state, first, last in self._settlements.unsent():
            self._link.settle(first, last, state, ((last - first) & MASK) + 1, settled=False)
        self._wire.queued(0)

    def on_answered(self, event: SettlementAnswered) -> None:
        if event.settled:  # otherwise it is an intermediate state; the peer's final answer is settled
            self._settlements.answered(event)

    # ── calls of the wire ──

    def on_delivery(self, delivery: Delivery) -> None:
        self._buffer.append(ReceivedMessage(delivery))
        if self._room is not None:
            self._room.arrived(len(delivery.payload))
            if not self._link.drain and (room := self._room.credit(self._link.credit)) < self._link.credit:
                self._grant(room)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        if self._link.credit <= 0 and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)  # messages have used all credit: no answer to the drain will come

    def on_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._arrival is not None:
            self._top_up()  # the answer to a drain that was given up, while a caller waits for messages again

    async def give_back(self, timeout_s: float) -> None:
        """Release unread messages, and wait for the peer's answer: a detach must not overtake it.

        Messages that arrive meanwhile are released without waiting.
        """
        unread = self._take_unread()
        if unread:
            with suppress(TransportError):  # if this fails, the locks run out by themselves
                await self.release(unread, timeout_s=timeout_s)
            late = self._take_unread()
            if late and self.over is None:
                self.settle_nowait(late, RELEASED_BYTES)

    def _take_unread(self) -> list[ReceivedMessage]:
        """Take the unread messages that are locked; those that the peer has deleted already can still be read."""
        unread = [message for message in self._buffer if not message.settled]
        if unread:
            self._buffer.clear()
            if self._room is not None:
                self._room.held = 0
        return unread

    def on_over(self, reason: TransportError) -> None:
        super().on_over(reason)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)  # `receive` then looks at `over`
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(reason.again(outcome_unknown=False))
        self._settlements.end(reason)

    def _check(self) -> None:
        if self.over is not None:
            raise self.over.again(outcome_unknown=False)

"""Links, as far as senders and receivers share them: attach, detach, loss. Every data link has its own session.

A session of its own makes the delivery ids of a receiver consecutive, so that a whole batch is settled as one range,
and the window of a slow link does not stop another. Begin and attach are sent together: a link costs one round trip.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.amqp.errors import DETACH_FORCED, ProtocolError
from pairbus.amqp.events import Delivery, Disposed, SettlementAnswered
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.link import Link
from pairbus.amqp.performatives import Attach, Error
from pairbus.amqp.session import Session
from pairbus.pairing.policy import Silence
from pairbus.transport.errors import ConnectionLost, Exhausted, Refused, Timeout, TransportError
from pairbus.transport.times import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire


class LinkEnd:
    """Our end of a link. `over` is the reason why it can no longer be used; None while it can."""

    def __init__(self, wire: Wire, link: Link, what: str) -> None:
        self._wire = wire
        self._link = link
        self._loop = wire.loop
        self._what = what
        self._attached: asyncio.Future[None] = wire.loop.create_future()
        self._ended: asyncio.Future[None] = wire.loop.create_future()
        self.over: TransportError | None = None
        self.when_over: Callable[[], None] | None = None
        link.context = self
        wire.links.add(self)

    @property
    def name(self) -> str:
        return self._link.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._what} credit={self._link.credit} {self.over or 'open'}>"

    async def attached(self, deadline: float) -> None:
        """Wait for the peer's attach. After a refusal, a time-out or a cancellation the link is given up."""
        began = self._loop.time()
        self._wire.queued(0)
        try:
            async with asyncio.timeout_at(deadline):
                await self._attached
        except TimeoutError:
            silence = Silence(self._loop.time() - began, math.inf)
            raise Timeout(f"{self._what}: the peer did not answer the attach", silence) from None
        finally:
            if self.over is None and (not self._attached.done() or self._attached.cancelled()):
                self._give_up(ConnectionLost(f"{self._what}: never attached"))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Detach. Callers that wait on this link get an error; the peer's answer is awaited, within limits."""
        deadline = self._loop.time() + timeout_s
        if self.over is None:
            await self.give_back(timeout_s)
        self.leave()
        if self._wire.loss is None:
            ends, left_s = [self._ended, self._wire.ended], max(deadline - self._loop.time(), 0.0)
            await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def leave(self) -> None:
        """Detach without waiting for the peer's answer. Callers that wait on this link get an error."""
        if self.over is None:
            self._give_up(ConnectionLost(f"{self._what} was closed by this client"))

    def _give_up(self, reason: TransportError) -> None:
        self.on_over(reason)
        if self._wire.loss is None:
            self._wire.links.discard(self)
            self._end()

    def _end(self) -> None:
        link, session = self._link, self._link.session
        if session.state in (EndpointState.OPEN, EndpointState.OPENING):
            if link.state in (EndpointState.OPEN, EndpointState.OPENING, EndpointState.CLOSE_ASKED):
                link.detach()
            session.end()
        self._wire.queued(0)

    # ── calls of the wire ──

    def on_attached(self, attach: Attach) -> None:
        # A refusal is an attach without the terminus that we asked for, followed by a detach with the reason.
        terminus = attach.source if self._link.role else attach.target
        if terminus is not None and not self._attached.done():
            self._attached.set_result(None)

    def on_detached(self, error: Error | None) -> None:
        """Handle the peer's detach or end of the session, or the answer to ours."""
        if self.over is None:
            self._wire.links.discard(self)
            if error is not None:
                self.on_over(Refused(error.condition, error.description))
            else:
                self.on_over(Refused(DETACH_FORCED, f"{self._what}: the peer detached the link without a reason"))
            self._end()
        if self._link.session.state is EndpointState.CLOSED and not self._ended.done():
            self._ended.set_result(None)

    def on_over(self, reason: TransportError) -> None:
        """End the link: wake all callers that wait."""
        if self.over is not None:
            return
        self.over = reason
        if not self._attached.done():
            self._attached.set_exception(reason.again(outcome_unknown=False))
            self._attached.exception()
        if self._wire.loss is not None and not self._ended.done():
            self._ended.set_result(None)
        if self.when_over is not None:
            self.when_over()

    def on_room(self) -> None:
        """Handle that the socket takes more bytes."""

    def on_window(self) -> None:
        """Handle that the session takes more transfers."""

    def on_flow(self) -> None:
        """Handle a change of credit on a link on which we send."""

    async def give_back(self, timeout_s: float) -> None:
        """Release held messages before the link is closed; the peer's answer is awaited, within limits."""

    def on_delivery(self, delivery: Delivery) -> None:
        raise AssertionError(f"{self!r} receives nothing")

    def on_disposed(self, event: Disposed) -> None:
        raise AssertionError(f"{self!r} sends nothing")

    def on_answered(self, event: SettlementAnswered) -> None:
        """Handle the peer's answer to settlements."""

    def on_drained(self) -> None:
        """Handle that the peer has used or returned all credit."""


def end_of(link: Link) -> LinkEnd | None:
    """Return our end of a link; None: the peer began the link, and it is refused."""
    return link.context  # type: ignore[return-value]  # nothing else is set in this package


def new_session(wire: Wire) -> Session:
    """Begin a session, or raise the error that ended the connection."""
    if wire.loss is not None:
        raise wire.loss.again(outcome_unknown=False)
    try:
        session = wire.core.new_session()
    except ProtocolError as error:
        raise Exhausted(error.description) from None
    session.begin()
    return session

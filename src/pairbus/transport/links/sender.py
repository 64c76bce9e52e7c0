"""Sending: one message at a time, or hundreds in flight.

    await sender.send(payload)                      # accepted, or an exception

    future = sender.send_soon(payload)              # takes its place in the line; resolves when the peer has accepted

    await sender.ready()                            # credit, session window and socket have room
    future = sender.send_nowait(payload)            # the same, or NotReady

Laws of this file.
 1. Sends go out in the order in which they were begun. Sends that must wait stand in one line, and the first one gets
    the credit; a send that is given up leaves the line.
 2. A send ends by an answer, by its deadline (`timeout_s`), or because the peer was silent for `silence_s`: see
    `patience.py`. One timer per sender watches all of them, so a send in flight costs no timer of its own.
 3. A message whose last frame was not written has a known outcome: the peer cannot have accepted it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED
from pairbus.amqp.events import Disposed
from pairbus.amqp.link import MASK, SenderLink
from pairbus.amqp.message import BATCH_FORMAT, DATA, encode_batch, sections
from pairbus.amqp.performatives import Accepted, Attach, Rejected
from pairbus.pairing.policy import Silence
from pairbus.transport.errors import NotReady, Refused, Timeout, TooLarge, TransportError, leaves_open
from pairbus.transport.links.link_end import LinkEnd
from pairbus.transport.links.patience import FIRST_LOOK, Patience, Sent, WaitingSend

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire

BATCH_MAX_STANDARD, BATCH_MAX_PREMIUM = 256 * 1024, 1024 * 1024
LARGE = 131_072  # bytes of a message for which others should not wait: a tenth of a second on a thin line
IN_FLIGHT_MAX = 65_536  # sends without an answer, given-up ones included: the peer may grant credit and never answer
NOBODY: deque[WaitingSend] = deque()
"Empty line, shared by all senders for which no caller waits; a deque takes 0.7 KB."
MAX_BATCH_SIZE = "com.microsoft:max-message-batch-size"


class Sender(LinkEnd):
    """A sender to one entity, from `Connection.sender`; safe to share between tasks of one event loop."""

    _link: SenderLink

    def __init__(self, wire: Wire, link: SenderLink, what: str, timeout_s: float) -> None:
        super().__init__(wire, link, what)
        self.timeout_s = timeout_s
        "Default time-out of a send."
        self.max_message_size = 0
        "Largest message that the peer takes; 0 when the peer did not tell."
        self.max_batch_size = 0
        "Largest batch that the peer takes; 0 when the peer did not tell."
        self._checked_from = 0
        "Size above which a payload is checked before it is sent."
        self.large: list[tuple[asyncio.Future[None], object]] = []
        "Large messages in the line or without an answer, some perhaps done, each with its caller."
        self.when_silent: Callable[[], None] | None = None
        "Function that is called when the peer may have lost its end of the link, although the link is not over."
        self._session = link.session
        self._sends: dict[int, Sent] = {}
        self._waiting = NOBODY
        self._turn_is_given = False
        "True: a caller of `ready` has been woken and goes before the others that wait."
        self._tag = 0
        self._patience = Patience(self)

    @property
    def sendable(self) -> bool:
        """True when `send_nowait` would succeed now."""
        return self._has_room and (not self._waiting or self._turn_is_given)

    @property
    def _has_room(self) -> bool:
        return (
            self._link.sendable
            and self._wire.writable
            and self.over is None
            and self._session.sent_unsettled < IN_FLIGHT_MAX
        )

    @property
    def batch_limit(self) -> int:
        """Return the largest size of a batch, found as in the SDKs: from the peer's limit, or else from its tier."""
        if self.max_batch_size:
            return self.max_batch_size
        return BATCH_MAX_PREMIUM if self.max_message_size >= BATCH_MAX_PREMIUM else BATCH_MAX_STANDARD

    def is_taken_up(self, by: object) -> bool:
        """Return True when a large message of another caller is under way, and no earlier send of this caller waits."""
        self.large = [entry for entry in self.large if not entry[0].done()]
        if not self.large or any(caller is by for _, caller in self.large):
            return False
        return all(entry.by is not by for entry in self._waiting)

    @property
    def in_flight(self) -> int:
        return len(self._sends)

    @property
    def is_idle(self) -> bool:
        """True when no send is in flight or in the line."""
        return not self._sends and not self._waiting

    async def ready(self, timeout_s: float | None = None) -> None:
        """Wait until one more send is possible; Timeout when that takes too long."""
        deadline = self._loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        while not self.sendable:
            await self._wait(None, 0, deadline, math.inf)

    async def send(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
    ) -> None:
        """Send one encoded message and return when the peer has accepted it.

        `timeout_s` limits the call. `silence_s` limits the silence of the peer on this link. Timeout when one
        of the two is over.
        """
        if self._waiting or not self._has_room:
            await self._line_up(payload, message_format, timeout_s, silence_s)
        else:
            await self._send_now(payload, message_format, timeout_s, silence_s)

    def send_soon(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        by: object = None,
    ) -> asyncio.Future[None]:
        """Send one encoded message now, or after those that wait already; the future ends as `send` would.

        `by` is the caller, for `is_taken_up`.
        """
        if self._waiting or not self._has_room:
            return self._line_up(payload, message_format, timeout_s, silence_s, by)
        return self._send_now(payload, message_format, timeout_s, silence_s, by)

    def send_nowait(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
    ) -> asyncio.Future[None]:
        """Send one encoded message; the future ends as `send` would. NotReady when there is no room: see `ready`."""
        if not self.sendable:
            if self.over is not None:
                raise self.over.again(outcome_unknown=False)
            raise NotReady(f"{self._what}: credit {self._link.credit}, {len(self._sends)} in flight")
        return self._send_now(payload, message_format, timeout_s, silence_s)

    async def send_batch(self, payloads: list[bytes], *, timeout_s: float | None = None) -> None:
        """Send encoded messages as one batch: all are accepted, or none."""
        await self.send(encode_batch(payloads), message_format=BATCH_FORMAT, timeout_s=timeout_s)

    def _send_now(
        self, payload: bytes, message_format: int, timeout_s: float | None, silence_s: float | None, by: object = None
    ) -> asyncio.Future[None]:
        future = self._loop.create_future()
        if len(payload) > self._checked_from:
            self._check(payload, message_format)
            self._note_size(payload, future, by)
        now = self._loop.time()
        deadline = now + (self.timeout_s if timeout_s is None else timeout_s)
        silence = math.inf if silence_s is None else silence_s
        return self._transmit(payload, message_format, future, deadline, silence, now)

    def _check(self, payload: bytes, message_format: int) -> None:
        """Refuse a payload that is too large for the peer. As in the SDKs, the envelope of a batch does not count."""
        if message_format == BATCH_FORMAT:
            first_at = next((start for code, start, _, _ in sections(payload) if code == DATA), 0)
            limit = min(self.batch_limit, self.max_message_size or self.batch_limit)
            if len(payload) - first_at > limit:
                text = f"ServiceBusMessageBatch has reached its size limit: {limit}"  # the text of the SDK's own error
                raise TooLarge(MESSAGE_SIZE_EXCEEDED, text)
        elif 0 < self.max_message_size < len(payload):
            raise TooLarge(MESSAGE_SIZE_EXCEEDED, f"{len(payload)} bytes, the peer takes {self.max_message_size}")

    def _note_size(self, payload: bytes, future: asyncio.Future[None], by: object) -> None:
        if len(payload) > LARGE:
            self.large = [entry for entry in self.large if not entry[0].done()]
            self.large.append((future, by))

    def _transmit(
        self,
        payload: bytes,
        message_format: int,
        future: asyncio.Future[None],
        deadline: float,
        silence: float,
        since: float,
    ) -> asyncio.Future[None]:
        wire, patience = self._wire, self._patience
        self._tag = tag = (self._tag + 1) & MASK
        delivery_id = self._link.send(payload, tag.to_bytes(4, "big"), message_format=message_format)
        self._sends[delivery_id] = future, deadline, silence, since, wire.progress.flushes
        wire.queued(len(payload) if len(payload) <= LARGE else 0)  # a large message is written piece by piece
        first_look = since + silence * FIRST_LOOK
        if first_look < patience.look_at or deadline < patience.look_at:
            patience.look_from(min(first_look, deadline))
        return future

    # ── the line ──

    def _line_up(
        self, payload: bytes, message_format: int, timeout_s: float | None, silence_s: float | None, by: object = None
    ) -> asyncio.Future[None]:
        self._check(payload, message_format)
        deadline = self._loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        future = self._wait(payload, message_format, deadline, math.inf if silence_s is None else silence_s, by)
        self._note_size(payload, future, by)
        return future

    def _wait(
        self, payload: bytes | None, message_format: int, deadline: float, silence: float, by: object = None
    ) -> asyncio.Future[None]:
        if self.over is not None:
            raise self.over.again(outcome_unknown=False)
        now = self._loop.time()
        if self._waiting is NOBODY:
            self._waiting = deque()
        entry = WaitingSend(self._loop.create_future(), payload, message_format, deadline, silence, now, by)
        self._waiting.append(entry)
        self._wire.hungry[self] = None
        self._patience.look_from(min(deadline, now + silence * FIRST_LOOK))
        return entry.future

    def on_room(self) -> None:
        """Send those in the line, in their order, as far as there is room."""
        waiting = self._waiting
        while waiting and not self._turn_is_given:
            if waiting[0].future.done():  # given up
                waiting.popleft()
            elif not self._has_room:
                break
            else:
                entry = waiting.popleft()
                if entry.payload is None:
                    self._give_turn(entry)
                else:
                    self._transmit(
                        entry.payload, entry.message_format, entry.future, entry.deadline, entry.silence, entry.since
                    )
        if not waiting:
            self._waiting = NOBODY
            self._wire.hungry.pop(self, None)
        if self._link.drain and self.over is None and (not waiting or self._link.credit <= 0):
            self._link.drained()
            self._wire.queued(0)

    def close_ranks(self) -> None:
        """Remove the sends from the line that were given up."""
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if not entry.future.done())
        self.on_room()

    def _give_turn(self, entry: WaitingSend) -> None:
        """Wake a caller of `ready`, and hold the others until it has run."""
        entry.future.set_result(None)
        if self._waiting:
            self._turn_is_given = True
            self._loop.call_soon(self._take_turn_back)

    def _take_turn_back(self) -> None:
        self._turn_is_given = False
        self.on_room()

    def on_flow(self) -> None:
        self._patience.heard()
        self.on_room()

    def on_window(self) -> None:
        self._patience.heard()
        self.on_room()

    # ── outcomes ──

    def on_attached(self, attach: Attach) -> None:
        self.max_message_size = attach.max_message_size or 0
        batch_size = (attach.properties or {}).get(MAX_BATCH_SIZE, 0)
        self.max_batch_size = batch_size if isinstance(batch_size, int) else 0
        self._checked_from = min(self.max_message_size or self.batch_limit, self.batch_limit, LARGE)
        super().on_attached(attach)

    def on_disposed(self, event: Disposed) -> None:
        self._patience.heard_at = self._wire.core.now
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
        outgoing = self._session.outgoing_ids()
        super().on_over(reason)
        self._patience.stop()
        self._wire.hungry.pop(self, None)
        sends, self._sends = self._sends, {}
        for delivery_id, entry in sends.items():
            if not entry[0].done():
                entry[0].set_exception(reason.again(outcome_unknown=delivery_id not in outgoing))
        waiting, self._waiting = self._waiting, NOBODY
        for waiter in waiting:
            if not waiter.future.done():
                waiter.future.set_exception(reason.again(outcome_unknown=False))

    # ── decisions of `Patience` ──

    def give_up_sent(self, delivery_id: int, silence: Silence) -> None:
        """End a send without an answer. A message that is not wholly written is taken back: its outcome is known."""
        future = self._sends.pop(delivery_id)[0]
        taken_back = self._session.abort(delivery_id)
        if taken_back:
            self._wire.queued(0)
        if not future.done():
            done = "was not wholly sent" if taken_back else "was sent and not answered"
            why = "the peer is silent" if silence.is_too_long else "its time is over"
            text = f"{self._what}: delivery {delivery_id} {done}, and {why}"
            future.set_exception(Timeout(text, silence, outcome_unknown=not taken_back))

    def give_up_waiting(self, entry: WaitingSend, silence: Silence) -> None:
        if not entry.future.done():
            entry.future.set_exception(Timeout(f"{self._what}: no credit in time; nothing was sent", silence))


def _refusal(state: object) -> Refused:
    if isinstance(state, Rejected):
        error = state.error
        if error is None:
            return Refused("amqp:rejected", "without a reason")
        return Refused(error.condition, error.description, outcome_unknown=leaves_open(error.condition))
    if state is None:
        return Refused("amqp:unknown-outcome", "the peer settled without saying how", outcome_unknown=True)
    name = getattr(state, "NAME", type(state).__name__)
    return Refused(f"amqp:{name}", "the peer did not take the message")

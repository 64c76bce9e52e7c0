"""One receiver's link inside one engine: opened when it is needed, opened again after a loss, never left with locks.

Laws of this file.
 1. No call outlives its deadline. Until then a lost connection, silence and throttling are waited out; what will not go
    away is raised at once, as the error of the SDK.
 2. Without prefetch no message arrives outside of a call: credit that a call did not use is taken back before it ends.
 3. A message is settled on the link over which it came; when that is gone, by its lock token. The lock of a session
    ends with its link, and a receiver of a session is not opened again.
 4. `close` gives back what nobody has read. A call that is cancelled leaves nothing locked either.
 5. Pings are completed, and never returned.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, SessionLockLostError

from pairbus.client.receiving import trouble
from pairbus.client.receiving.incoming import Incoming, is_ping, sequence_number_of
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.receiving.settling import OUTCOMES, DeliveryPlace, Locked, Settlement, settle_by_token
from pairbus.client.receiving.shared import Receiving
from pairbus.client.receiving.trouble import (
    failure_for,
    may_go_away,
    may_succeed_by_token,
    outcome_of,
    sdk_error,
    unknown,
    was_short,
)
from pairbus.ledger.rows import MeterKind
from pairbus.pairing.policy import Failure, Kind
from pairbus.sdk.failures import failure_of_transport
from pairbus.syphon.decide.pace import Pauses
from pairbus.transport import (
    ConnectionLost,
    Deferred,
    Management,
    NextSession,
    Receiver,
    Refused,
    TransportError,
)
from pairbus.transport.links.session_filter import Wanted
from pairbus.transport.links.settlement import DeliveryIds

OPEN_S = 15.0  # for opening the link, where no call limits it
WAIT_S = 60.0  # for the next session, and of a receive or a request without a time-out, as in the SDK
SETTLE_S = 28.0  # limit of a settlement or a renewal
DRAIN_S = 2.0  # for the peer's answer when unused credit is taken back
ANSWER_S = 1.0  # for the refusal of a link whose wait for a session is over: the peer answers at the end of the wait
IDLE_S = 1.0  # a link that ends sooner was not idle
LEAST_WAIT_S = 0.001  # for the next session
T = TypeVar("T")


class EntityReceiver:
    """One receiver in one engine, from `Engine.new_receiver`. One call receives at a time; any number settle."""

    def __init__(self, receiving: Receiving, options: ReceiverOptions) -> None:
        self.options = options
        self.session_id = options.session_id
        self.session_locked_until: float | None = None
        "End of the session's lock in seconds since 1970, as far as it is known."
        self.outage: str | None = None
        "The reason why nothing comes; None while all is well."
        self.outage_began = 0.0
        "Time of `time.monotonic` at which it began."
        self.is_session_lost = False
        self.when_interrupted: Callable[[str | None], None] | None = None
        "Function that is told why nothing comes, and None when messages can come again; it tells the events then."
        self._receiving = receiving
        self._credit = 0
        "Messages that `fetch` may have on their way."
        self._loop = receiving.loop
        self._link: Receiver | None = None
        self._opened_at = -math.inf
        self._opening: asyncio.Timeout | None = None
        "Limit of the opening under way, by which it is ended."
        self._turn = asyncio.Lock()
        "Held by the call that opens, receives or closes."
        self._returned: deque[Incoming] = deque()
        "Messages that were deleted by their delivery, and given back."
        self._left = asyncio.Event()
        "Set when this receiver is closed, or ends with its client."
        receiving.add(self)

    def __repr__(self) -> str:
        return f"<EntityReceiver {self.options.path} {self.state}>"

    @property
    def state(self) -> str:
        """The state in few words; during an outage the reason why nothing comes."""
        if self._left.is_set():
            return "closed"
        return f"interrupted: {self.outage}" if self.outage else "open" if self.is_open else "not open"

    @property
    def is_here(self) -> bool:
        """True when the running loop is the one of this receiver."""
        return asyncio.get_running_loop() is self._loop

    @property
    def is_open(self) -> bool:
        return self._link is not None and self._link.over is None

    @property
    def has_left(self) -> bool:
        """True when this receiver was closed, or has ended with its client."""
        return self._left.is_set()

    # ── receiving ──

    async def open(self, timeout_s: float = OPEN_S) -> None:
        """Open the link. OperationTimeoutError when no session came in time."""
        await self._open(self._loop.time() + timeout_s, math.inf)

    async def _open(self, deadline: float, session_wait_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            raise OperationTimeoutError(message="Timed out waiting for the AMQP link to open.") from None
        try:
            await self._until(deadline, lambda left_s: self._opened(left_s, session_wait_s))
        finally:
            self._turn.release()

    async def receive(self, count: int, wait_s: float) -> list[Incoming]:
        """Return messages as soon as there is one, at most `count`; none when the entity stays empty for `wait_s`.

        None as well when the receiver is closed meanwhile; an endless wait (`math.inf`) has no other end without a
        message. Trouble that lasts until the end of `wait_s` is raised, because the entity may have messages; only the
        silence of an open link is told as an outage and gives none, as with the SDK.
        """
        deadline = self._loop.time() + wait_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            return []
        try:
            if self._returned:
                return [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
            while not self._left.is_set():
                try:
                    received = await self._until(deadline, lambda left_s: self._received(count, left_s))
                except ServiceBusError as error:
                    self._receiving.check()
                    is_silent = self.is_open and isinstance(error, OperationTimeoutError)
                    if self._left.is_set() or is_silent:
                        return []
                    raise
                wanted = self._without_pings(received)
                if wanted or not received or self._loop.time() >= deadline:
                    return wanted
            return []
        finally:
            self._turn.release()

    async def fetch(self, wait_s: float = math.inf) -> list[Incoming]:
        """Return all messages that have arrived, as soon as there is one; none when none comes for `wait_s`.

        The credit of `grant` stays open between calls: `rest` takes it back. Trouble that may go away is waited out.
        """
        deadline, pauses = self._loop.time() + wait_s, Pauses(trouble.FIRST_PAUSE_S)
        async with self._turn:
            while not self._left.is_set():
                link = await self._until(math.inf, lambda left_s: self._opened(left_s))
                link.set_credit(self._credit)
                try:
                    taken = await link.collect(deadline - self._loop.time())
                except TransportError:
                    if not self._was_idle(self._loop.time()):
                        await self._pause(pauses.after(delivered=False))
                    continue  # `_opened` sees the end of the link
                finally:
                    self._count_empty(link)
                self._receiving.count_received(self.options.path, [len(message.payload) for message in taken])
                self._credit = link.credit
                wanted = self._without_pings([Incoming(each, link.name, self.options) for each in taken])
                if wanted or self._loop.time() >= deadline:
                    return wanted
        return []

    def grant(self, credit: int) -> None:
        """Let so many messages be on their way to `fetch`, also to one that waits."""
        self._credit = credit
        if self._link is not None and self._link.over is None:
            self._link.set_credit(credit)

    async def rest(self) -> None:
        """Take back the credit of `fetch`, and release what has arrived. No `fetch` may wait."""
        self._credit = 0
        async with self._turn:
            link = self._link
            if link is not None and link.over is None:
                link.credit = 0
                with suppress(TransportError):  # the link is gone, or silent: its locks run out
                    await link.pause(DRAIN_S)
                    await link.give_back(DRAIN_S)

    async def _received(self, count: int, left_s: float) -> list[Incoming]:
        until = self._loop.time() + left_s
        link = await self._opened(left_s, left_s)
        left_s = max(until - self._loop.time(), 0.0)
        try:
            if self.options.prefetch_count:
                taken = await link.receive(count, left_s)
            else:
                taken = await link.take(count, left_s, DRAIN_S)
        except asyncio.CancelledError:
            self._receiving.tasks.start(self._rest(link), "giving back what a cancelled receive has fetched")
            raise
        finally:
            self._count_empty(link)
        self._receiving.count_received(self.options.path, [len(message.payload) for message in taken])
        return [Incoming(message, link.name, self.options) for message in taken]

    def _count_empty(self, link: Receiver) -> None:
        if empty := link.take_empty():
            self._receiving.count(self.options.path, "empty receive", empty)

    async def _rest(self, link: Receiver) -> None:
        """Take back the credit of a receive that was cancelled, and release what has arrived."""
        async with self._turn:
            if self.options.prefetch_count or not self.options.locks:
                return  # the next call has use for the messages
            with suppress(TransportError):
                await link.pause(DRAIN_S)
                await link.give_back(DRAIN_S)

    def _without_pings(self, received: list[Incoming]) -> list[Incoming]:
        pings = [each for each in received if each.is_ping]
        if not pings:
            return received
        if self.options.locks and self._link is not None and self._link.over is None:
            for ping in pings:
                assert ping.locked.place is not None
                number = ping.locked.place.delivery_id
                self._link.settle_nowait(range(number, number + 1))
            self._receiving.count(self.options.path, "complete", len(pings))
        return [each for each in received if each not in pings]

    # ── the link ──

    async def _opened(self, left_s: float, session_wait_s: float = math.inf) -> Receiver:
        """Return the link, opened if needed; the next session is waited for as long as both limits allow."""
        if self.is_session_lost:
            raise SessionLockLostError()
        link = self._link
        if link is not None:
            if link.over is None:
                return link
            self._lose(link.over)
        options = self.options
        wanted: Wanted | None = options.session_id
        if options.any_session:
            wait_s = min(options.max_wait_time or WAIT_S, max(session_wait_s, LEAST_WAIT_S))
            wanted = NextSession(wait_s)
            left_s = max(left_s, wait_s + ANSWER_S)
        opening = self._receiving.carrier.receiver(
            options.path,
            mode=options.mode,
            credit=options.prefetch_count,
            timeout_s=left_s if options.any_session else min(left_s, OPEN_S),
            session=wanted,
            identifier=options.client_identifier,
        )
        self._link = link = await self._unless_left(opening)
        link.limit_bytes(options.prefetch_bytes)
        self._opened_at = self._loop.time()
        self._resumed()  # now, and not when the next message comes
        if options.has_session:
            self.session_id = link.session_id or options.session_id
            self.session_locked_until = link.session_locked_until
        return link

    async def _unless_left(self, opening: Awaitable[Receiver]) -> Receiver:
        """Await the opening of a link, which may wait for a session for a minute; `close` ends the wait."""
        try:
            async with asyncio.timeout(None) as self._opening:
                return await opening
        except TimeoutError:
            raise ConnectionLost(f"{self.options.path}: the receiver was closed while its link was opened") from None
        finally:
            self._opening = None

    def _lose(self, reason: TransportError) -> None:
        """Forget a link that is over. The error is raised where the session is lost with it."""
        self._link = None
        if self.options.has_session:
            self.is_session_lost = True
            raise reason.again(outcome_unknown=False)

    # ── trouble ──

    async def _until(self, deadline: float, attempt: Callable[[float], Awaitable[T]]) -> T:
        """Make attempts, each with the seconds that are left, until one succeeds or its failure will stay."""
        pauses, tries = Pauses(trouble.FIRST_PAUSE_S), 0
        while True:
            self._receiving.check()
            began = self._loop.time()
            try:
                result = await attempt(max(deadline - began, 0.0))
            except TransportError as error:
                tries += 1
                failure = failure_for(error, any_session=self.options.any_session)
                if self.is_session_lost or not may_go_away(failure, error, tries):
                    raise sdk_error(failure) from None
                is_idle_end = tries == 1 and failure.kind is Kind.COMMUNICATION and self._was_idle(began)
                pause_s = 0.0 if is_idle_end else trouble.pause_s(failure, pauses)
                if not is_idle_end and not was_short(error):
                    self._interrupted(failure)
                await self._pause(min(pause_s, max(deadline - self._loop.time(), 0.0)))
                self._receiving.check()
                if self._loop.time() >= deadline or self._left.is_set():
                    raise sdk_error(failure) from None
            else:
                self._resumed()
                return result

    def _was_idle(self, began: float) -> bool:
        """Tell whether the call met a link that had been open for a while: services end idle links."""
        return IDLE_S <= began - self._opened_at < math.inf

    def _interrupted(self, failure: Failure) -> None:
        if self.outage is None:
            self.outage_began = time.monotonic()
        self.outage = failure.text
        if self.when_interrupted is None:
            self._receiving.interrupted(self, failure.text)
        else:
            self.when_interrupted(failure.text)

    def _resumed(self) -> None:
        if self.outage is not None:
            self.outage = None
            if self.when_interrupted is None:
                self._receiving.resumed(self)
            else:
                self.when_interrupted(None)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._left.wait()

    # ── settling ──

    async def settle(self, locked: Locked, said: Settlement, timeout_s: float | None = None) -> None:
        """Settle one message; returns after the service's answer. OperationTimeoutError with an unknown outcome."""
        timeout_s, began = SETTLE_S if timeout_s is None else timeout_s, self._loop.time()
        try:
            await self.settle_on_link(locked, said, timeout_s)
        except TransportError as error:
            await self.settle_otherwise(locked, said, error, timeout_s - (self._loop.time() - began))

    def settle_on_link(self, locked: Locked, said: Settlement, timeout_s: float) -> asyncio.Future[None]:
        """Ask to settle a message on the link over which it came; the future has the service's answer.

        After a TransportError, raised or in the future, `settle_otherwise` goes on.
        """
        self._receiving.check()
        link, place = self._link, locked.place
        if link is None or place is None or not self._has_link(place):
            raise ConnectionLost(f"{self.options.path}: the link over which the message came is gone")
        numbers = range(place.delivery_id, place.delivery_id + 1)
        # Half of the time: a link that does not answer leaves the other half for the way by lock token.
        answer = link.settle_soon(numbers, OUTCOMES[said.operation](said), timeout_s / 2)
        if self._receiving.is_metered:
            answer.add_done_callback(self._count_answer)
        return answer

    def _count_answer(self, answer: asyncio.Future[None]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._receiving.count(self.options.path, "complete")

    async def settle_otherwise(
        self, locked: Locked, said: Settlement, failed: TransportError, timeout_s: float
    ) -> None:
        """Settle a message that was not settled on its link, for the reason `failed`."""
        outcome = "ok"
        try:
            await self._settle_by_token(locked, said, failed, self._loop.time() + timeout_s)
        except ServiceBusError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self._receiving.count(self.options.path, "complete", outcome=outcome)

    async def _settle_by_token(self, locked: Locked, said: Settlement, failed: TransportError, deadline: float) -> None:
        if not may_succeed_by_token(failed):
            raise sdk_error(failure_of_transport(failed)) from None
        place = locked.place
        if self.options.has_session and place is not None and not self._has_link(place):
            self.is_session_lost = True
            raise unknown(failed) if failed.outcome_unknown else SessionLockLostError()
        assert locked.token is not None, "it was received under lock"
        token, session_id = locked.token, self.session_id
        try:
            await self._ask(lambda node, left_s: settle_by_token(node, token, said, session_id, left_s), deadline)
        except ServiceBusError as error:
            if failed.outcome_unknown:
                raise unknown(failed) from error
            raise

    def _has_link(self, place: DeliveryPlace) -> bool:
        """Tell whether the link over which a message came is still open."""
        return self._link is not None and self._link.over is None and self._link.name == place.link_name

    async def complete_all(self, every: Sequence[Locked], timeout_s: float = SETTLE_S) -> list[Locked]:
        """Complete messages of this link with one request; return those that must be settled one by one."""
        link = self._link
        if link is None or link.over is not None:
            return list(every)
        by_id = {
            each.place.delivery_id: each for each in every if each.place is not None and self._has_link(each.place)
        }
        others = [each for each in every if each.place is None or not self._has_link(each.place)]
        try:
            await link.complete(DeliveryIds(by_id), timeout_s=timeout_s / 2)
        except Refused as error:
            refused = [by_id.pop(one) for one in error.delivery_ids if one in by_id]
            others += refused
        except TransportError:
            return list(every)
        self._receiving.count(self.options.path, "complete", len(by_id))
        return others

    def may_release(self, locked: Locked) -> bool:
        """Tell whether a message can be released: its link is open."""
        return locked.place is not None and self._has_link(locked.place)

    async def release(self, received: Sequence[Incoming]) -> None:
        """Give messages back, without counting a delivery; those of a link that is gone come back by themselves.

        In receive-and-delete the next call returns them: the entity has them no more.
        """
        if not self.options.locks:
            self._returned.extend(received)
            return
        link = self._link
        if link is None or link.over is not None:
            return
        places = [each.locked.place for each in received if each.locked.place is not None]
        ids = [place.delivery_id for place in places if place.link_name == link.name]
        with suppress(TransportError):  # their locks run out
            await asyncio.gather(*(link.release(range(number, number + 1), timeout_s=DRAIN_S) for number in ids))

    # ── requests ──

    async def renew(self, tokens: Sequence[UUID], timeout_s: float = SETTLE_S) -> list[float]:
        """Renew the locks of messages; return the new end of each, in seconds since 1970."""
        ends = await self.ask("renew", lambda node, left_s: node.renew_lock(tokens, left_s), timeout_s)
        return [end / 1000 for end in ends]

    async def renew_session(self, timeout_s: float = SETTLE_S) -> float:
        """Renew the lock of the session; return its new end, in seconds since 1970."""
        end = await self.ask("renew", lambda node, left_s: node.renew_session(self._session, left_s), timeout_s)
        self.session_locked_until = end / 1000
        return self.session_locked_until

    async def get_state(self, timeout_s: float = WAIT_S) -> bytes | None:
        return await self.ask("management", lambda node, left_s: node.session_state(self._session, left_s), timeout_s)

    async def set_state(self, state: bytes | None, timeout_s: float = WAIT_S) -> None:
        await self.ask(
            "management", lambda node, left_s: node.set_session_state(self._session, state, left_s), timeout_s
        )

    async def peek(self, from_sequence: int, count: int, timeout_s: float = WAIT_S) -> list[bytes]:
        """Return messages from this sequence number on; behind pings it looks for others."""
        deadline = self._loop.time() + timeout_s
        while True:
            found = await self._peek(from_sequence, count, max(deadline - self._loop.time(), 0.0))
            wanted = [payload for payload in found if not is_ping(payload)]
            if wanted or not found:
                return wanted
            from_sequence = sequence_number_of(found[-1]) + 1

    async def _peek(self, first: int, count: int, timeout_s: float) -> list[bytes]:
        return await self.ask(
            "peek", lambda node, left_s: node.peek(first, count, left_s, session_id=self.session_id), timeout_s
        )

    async def receive_deferred(self, sequence_numbers: Sequence[int], timeout_s: float = WAIT_S) -> list[Deferred]:
        mode = self.options.mode
        found = await self.ask(
            "receive",
            lambda node, left_s: node.receive_deferred(sequence_numbers, mode, left_s, session_id=self.session_id),
            timeout_s,
        )
        self._receiving.count_received(self.options.path, [len(each.payload) for each in found])
        return found

    @property
    def _session(self) -> str:
        assert self.session_id is not None, "the link is open"
        return self.session_id

    async def ask(
        self,
        kind: MeterKind,
        request: Callable[[Management, float], Awaitable[T]],
        timeout_s: float,
        size_bytes: int = 0,
    ) -> T:
        """Make a request to the `$management` node of the entity, within the time. `size_bytes` is what it sends."""
        deadline, outcome = self._loop.time() + timeout_s, "ok"
        if self.options.has_session and not self.is_open:
            await self._open(deadline, timeout_s)
        try:
            return await self._ask(request, deadline)
        except ServiceBusError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self._receiving.count(self.options.path, kind, size_bytes=size_bytes, outcome=outcome)

    async def _ask(self, request: Callable[[Management, float], Awaitable[T]], deadline: float) -> T:
        async def attempt(left_s: float) -> T:
            ends = self._loop.time() + left_s
            node = await self._receiving.carrier.management(self.options.path, left_s)
            return await request(node, max(ends - self._loop.time(), 0.0))

        return await self._until(deadline, attempt)

    # ── the end ──

    async def close(self) -> None:
        """Close the link; nothing stays locked that nobody has read. The call under way returns what it has."""
        self._left.set()
        self._end_opening()
        if self._link is not None:
            self._link.wake()
        async with self._turn:
            link, self._link = self._link, None
            if link is not None:
                with suppress(TransportError):  # a peer that is gone has lost the link, and its locks run out
                    await link.pause(DRAIN_S)
                await link.close()
        self._receiving.discard(self)

    def close_soon(self) -> None:
        """Close without waiting; any thread may call this, at any line."""
        self._soon(lambda: self._receiving.tasks.start(self.close(), f"closing {self!r}"))

    def release_soon(self, received: Sequence[Incoming]) -> None:
        """Release messages without waiting; any thread may call this, at any line."""
        self._soon(lambda: self._receiving.tasks.start(self.release(received), f"{self!r} gives messages back"))

    def _soon(self, begin: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has been closed, and the links with it
            self._loop.call_soon_threadsafe(begin)

    def leave(self) -> None:
        """End at once, with the client: calls that wait are woken."""
        self._left.set()
        self._end_opening()
        if self._link is not None:
            self._link.leave()
        self._receiving.discard(self)

    def _end_opening(self) -> None:
        if self._opening is not None and not self._opening.expired():
            self._opening.reschedule(self._loop.time())

"""The messages of one link of a processor: those of its entity, or those of one session.

Laws of this file.
 1. A message is in one of four states: waiting, in a handler, held until its next attempt, being settled. `room` counts
    it from its arrival until it is settled, or held.
 2. In a session the next message is handled when the one before is settled: this keeps the order.
 3. A message is settled once. When its lock is lost, nothing is done with it: the entity has it.
 4. Two handlers of one process never have the same message: one that was delivered again, because its lock was lost,
    waits until the handler of the earlier delivery has ended.
 5. `leave` gives back what waits; `finished` is set when nothing is locked any more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    ServiceBusError,
    SessionLockLostError,
)

from pairbus.client.processing.decide.copies import ATTEMPTS, copy_of, locked_until_ms, stored_ms
from pairbus.client.processing.decide.endings import WAYS, Act, Decision, Ending, FeedKind, HandlerEnd, RetryWay, decide
from pairbus.client.processing.decide.locks import rest_s
from pairbus.client.processing.decide.room import HELD_BYTES_MAX, Room
from pairbus.client.processing.events import HandlerFailed, LockLost, NotSettled
from pairbus.client.processing.held import EndReport, HeldMessage
from pairbus.client.receiving.entity_receiver import SETTLE_S, EntityReceiver
from pairbus.client.receiving.settling import Settle, Settlement
from pairbus.errors import PairbusError
from pairbus.pairing.policy import Kind
from pairbus.sdk.failures import condition_of, failure_of
from pairbus.syphon.decide.pace import Pauses
from pairbus.telemetry import processing as telemetry
from pairbus.transport import Scheduled

if TYPE_CHECKING:
    from pairbus.client.processing.processing import Processing

FETCH_S = 600.0  # one wait for messages
FIRST_PAUSE_S = 0.25
PAUSE_MAX_S = 15.0  # between tries, where the entity refuses its receiver
RENEW_TOGETHER = 100  # locks in one request
RENEW_S = 10.0  # limit of one request to renew
HELD_MAX, HELD_RETRY_BYTES_MAX = 100, 16 * 1024 * 1024  # messages that are held until their next attempt; 16 MiB
STOP_S = 5.0  # for handlers that were cancelled
WAITED_OUT = {Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.BUSY}
LOST = (MessageLockLostError, MessageNotFoundError, SessionLockLostError)
OPERATIONS = {
    Act.ABANDON: Settle.ABANDON,
    Act.DEFER: Settle.DEFER,
    Act.DEAD_LETTER: Settle.DEAD_LETTER,
    Act.COMPLETE: Settle.COMPLETE,
}
COMPLETE = Settlement(Settle.COMPLETE)


class Feed:
    """One link with its messages, in the engine's loop. A processor has one for its entity, or one for each session."""

    def __init__(self, processing: Processing, receiver: EntityReceiver, source: FeedKind, slots: int) -> None:
        self._processing = processing
        self.receiver = receiver
        self.loop = processing.loop
        self.path = receiver.options.path
        self._source = source
        self._slots = slots
        self._is_ordered = source is FeedKind.SESSION
        self.session: Any = processing.runner.session_kind(self) if self._is_ordered else None
        "The session as handlers see it; None on an entity without sessions."
        self.is_lost = False
        "True: the lock of the session is lost."
        sessions = processing.options.max_concurrent_sessions if self._is_ordered else 1
        self.room = Room(slots, HELD_BYTES_MAX // sessions)
        self._waiting: deque[HeldMessage] = deque()
        self._active: set[HeldMessage] = set()
        "Messages that hold a slot."
        self._held: dict[HeldMessage, asyncio.TimerHandle] = {}
        "Messages that wait for their next attempt."
        self._settling: set[HeldMessage] = set()
        self._following: set[HeldMessage] = set()
        "Messages that wait until the handler of their earlier delivery has ended."
        self._completing: list[HeldMessage] = []
        self._is_leaving = self._has_left = False
        self._taking: asyncio.Task[None] | None = None
        self._idle_at = math.inf
        self._may_be_refused = True
        "True until the link was open once: the entity may need sessions, or have none."
        self.finished = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Feed {self.path} waiting={len(self._waiting)} active={len(self._active)} held={len(self._held)}>"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> int:
        return len(self._active)

    # ── taking ──

    async def run(self) -> None:
        """Take messages until `leave` is called, or the session is lost or idle."""
        if self._is_ordered:
            self._processing.locks.add(
                self,
                rest_s(self.receiver.session_locked_until, self._processing.clock.now(time.time())),
                self.loop.time(),
            )
            self._processing.arm()
            self._stir()
        self._taking = asyncio.create_task(self._take())
        try:
            await asyncio.wait([self._taking])
        finally:
            self._taking.cancel()
        if not self._taking.cancelled():
            self._taking.result()

    async def _take(self) -> None:
        pauses = Pauses(FIRST_PAUSE_S)
        while not self.is_lost:
            self.receiver.grant(self._credit)
            try:
                received = await self.receiver.fetch(self._wait_s)
            except ServiceBusError as error:
                if self._is_ordered and self.receiver.is_session_lost:
                    self.lose_all(str(error))
                    return
                if self._may_be_refused and condition_of(error) == "amqp:not-allowed":
                    raise
                self.receiver.outage = str(error)
                self._processing.interrupted(str(error))
                await asyncio.sleep(min(pauses.after(delivered=False), PAUSE_MAX_S))
                continue
            if self.receiver.has_left:
                self._processing.check()
                raise PairbusError(f"{self.path}: the client ended under its processor")
            pauses = Pauses(FIRST_PAUSE_S)
            self._may_be_refused = False
            for incoming in received:
                self._arrived(HeldMessage(self, incoming))
            self._start_waiting()
            if not received and self._idle_at <= self.loop.time():
                return

    @property
    def _wait_s(self) -> float:
        """Return the longest wait; a session that becomes idle meanwhile is seen after half of its time."""
        if not self._is_ordered:
            return FETCH_S
        half_s = self._processing.options.session_idle_timeout / 2
        return min(max(self._idle_at - self.loop.time(), 0.0), half_s)

    @property
    def _credit(self) -> int:
        return 0 if self._is_leaving else self.room.credit

    def _stir(self) -> None:
        """Begin to count the idle time of the session, or stop it while there is something to do."""
        if not self._is_ordered or self._waiting or self._active or self._settling or self._following:
            self._idle_at = math.inf
        elif self._idle_at == math.inf:
            self._idle_at = self.loop.time() + self._processing.options.session_idle_timeout

    def _arrived(self, work: HeldMessage) -> None:
        self.room.take(work.size)
        wall_s, clock = time.time(), self._processing.clock
        at_ms = stored_ms(work.payload)
        if at_ms is not None:
            clock.saw(at_ms / 1000, wall_s)
        if not self._is_ordered:
            until_ms = locked_until_ms(work.payload)
            left_s = rest_s(None if until_ms is None else until_ms / 1000, clock.now(wall_s))
            self._processing.locks.add(work, left_s, self.loop.time())
            self._processing.arm()
        self._waiting.append(work)

    def _start_waiting(self) -> None:
        processing = self._processing
        while self._waiting and len(self._active) < self._slots and not self._is_leaving:
            work = self._waiting.popleft()
            if work.is_lost:
                self._free(work)
                continue
            earlier = None if work.sequence is None else processing.handling.get(work.sequence)
            if earlier is not None:
                earlier.feed.lose(earlier, "it was delivered again")
                replaced, earlier.successor = earlier.successor, work
                self._following.add(work)
                if self._is_ordered:
                    self._active.add(work)  # it keeps its slot: no later message passes it
                if replaced is not None:
                    replaced.feed.forget(replaced)  # last: this may start the next ones that wait
                continue
            self._start(work)
        self._stir()

    def _start(self, work: HeldMessage) -> None:
        self._active.add(work)
        if work.sequence is not None:
            self._processing.handling[work.sequence] = work
        work.is_handled, work.began_at = True, self.loop.time()
        self._limit_renewals(work)
        self._processing.runner.start(work)

    def _limit_renewals(self, work: HeldMessage) -> None:
        """Let the lock be renewed as long as the handler may take."""
        renewal_s = self._processing.options.renewal_s
        if self._is_ordered:
            began = min((each.began_at for each in self._active if each.began_at is not None), default=math.inf)
            self._processing.locks.limit(self, began + renewal_s)
        else:
            began = math.inf if work.began_at is None else work.began_at
            self._processing.locks.limit(work, began + renewal_s)
        self._processing.arm()

    # ── the ends of handlers ──

    def ended(self, report: EndReport) -> None:
        """Decide about a message whose handler has ended. `after_ends` follows when all of a turn are decided."""
        work, ending = report.work, report.ending
        counts, options = self._processing.counts, self._processing.options
        work.is_handled, work.began_at = False, None
        self.room.handled(report.duration_s)
        if work.sequence is not None and self._processing.handling.get(work.sequence) is work:
            del self._processing.handling[work.sequence]
        if work.successor is not None:
            work.successor.feed.follow(work.successor)
            work.successor = None
        if not self._is_ordered:
            self._active.discard(work)
        counts.handled += 1
        if work.is_lost and ending.end is not HandlerEnd.SETTLED:
            ending = Ending(HandlerEnd.LOCK_LOST, ending.error)
        if ending.end is HandlerEnd.RETURNED:
            self._settling.add(work)
            self._completing.append(work)
            return
        delay_s = None if options.retry is None else options.retry.delay_s(work.attempt, self._processing.chance())
        decision = decide(ending, attempt=work.attempt, max_attempts=options.attempts_max, delay_s=delay_s)
        self._tell_end(work, ending, decision)
        self._settling.add(work)
        self._processing.tasks.start(self._carry_out(work, decision), f"{decision.act.value} {work.name}")

    def follow(self, work: HeldMessage) -> None:
        """Handle a message whose earlier delivery was still in a handler."""
        self._following.discard(work)
        if self._is_leaving or work.is_lost:
            self._settling.add(work)
            self._processing.tasks.start(self._give_back([work]), f"giving back {work.name}")
        elif self._is_ordered:
            self._start(work)
        else:
            self._waiting.appendleft(work)
            self._start_waiting()

    def forget(self, work: HeldMessage) -> None:
        """Forget a message that was delivered once more before its turn came."""
        self._following.discard(work)
        self._free(work)

    def after_ends(self) -> None:
        completing, self._completing = self._completing, []
        if completing:
            self._processing.tasks.start(self._complete(completing), f"completing {len(completing)} messages")
        self._start_waiting()
        self.receiver.grant(self._credit)

    def _tell_end(self, work: HeldMessage, ending: Ending, decision: Decision) -> None:
        if ending.end is HandlerEnd.SETTLED and ending.error is None:
            return
        if ending.end in (HandlerEnd.FAILED, HandlerEnd.LEFT, HandlerEnd.UNREADABLE, HandlerEnd.SETTLED):
            self._processing.counts.failed += 1
            then = {
                Act.RETRY: f"again in {decision.delay_s:.1f} s",
                Act.ABANDON: "abandoned, it comes again at once",
                Act.DEAD_LETTER: f"dead-lettered as {decision.reason}",
                Act.NOTHING: "the handler has settled it before",
            }[decision.act]
            session_id = self.receiver.session_id if self._is_ordered else None
            event = HandlerFailed(self.path, work.name, work.attempt, ending.error, then, session_id)
            self._processing.tell(event)

    async def _carry_out(self, work: HeldMessage, decision: Decision) -> None:
        counts = self._processing.counts
        match decision.act:
            case Act.NOTHING:
                self._free(work)
            case Act.RELEASE:
                await self._give_back([work])
            case Act.RETRY:
                await self._retry(work, decision.delay_s)
            case act:
                said = Settlement(OPERATIONS[act], decision.reason, decision.description)
                if await self._settle(work, said):
                    counts.settled(act)
                self._free(work)

    # ── settling ──

    async def _complete(self, works: Sequence[HeldMessage]) -> None:
        with telemetry.settle(self.path, "complete", [work.payload for work in works]):
            left = await self.receiver.complete_all([work.incoming.locked for work in works])
        again = {id(locked) for locked in left}
        for work in works:
            if id(work.incoming.locked) in again:
                self._processing.tasks.start(
                    self._carry_out(work, Decision(Act.COMPLETE)), f"completing {work.name} alone"
                )
            else:
                self._processing.counts.settled(Act.COMPLETE)
                self._free(work)
        self.receiver.grant(self._credit)

    async def _settle(self, work: HeldMessage, said: Settlement) -> bool:
        """Settle a message; wait out trouble as long as its lock is renewed. Failure is told, and the message left."""
        is_unknown, last = False, None
        self._limit_renewals(work)  # the handler has ended: from now on the lock is renewed without a limit
        while not work.is_lost:
            try:
                with telemetry.settle(self.path, said.operation.value, [work.payload]):
                    await self.receiver.settle(work.incoming.locked, said)
            except ServiceBusError as error:
                is_unknown |= bool(getattr(error, "outcome_unknown", False))
                failure = failure_of(error)
                may_pass = failure is not None and failure.kind in WAITED_OUT and not self.receiver.is_session_lost
                if may_pass and not self._processing.is_forced:
                    last = error
                    continue
                if isinstance(error, LOST):
                    self._processing.counts.locks_lost += 1
                self._tell_not_settled(work, said.operation.value, error, is_unknown=is_unknown)
                return False
            except PairbusError as error:  # the client was faulted or closed
                self._tell_not_settled(work, said.operation.value, error, is_unknown=is_unknown)
                return False
            return True
        lost = MessageLockLostError(message=f"The lock was lost before the message could be settled: {last}")
        self._tell_not_settled(work, said.operation.value, lost, is_unknown=is_unknown)
        return False

    def _tell_not_settled(self, work: HeldMessage, operation: str, error: Exception, *, is_unknown: bool) -> None:
        if work in self._settling:  # otherwise `force` has told it
            self._processing.tell(NotSettled(self.path, work.name, operation, error, is_unknown))

    async def settle_for_handler(self, work: HeldMessage, said: Settlement) -> None:
        """Settle a message for its handler, which gets the error."""
        try:
            with telemetry.settle(self.path, said.operation.value, [work.payload]):
                await self.receiver.settle(work.incoming.locked, said)
        except ServiceBusError as error:
            work.is_settled = bool(getattr(error, "outcome_unknown", False))
            raise
        self._processing.locks.discard(work)
        self._processing.counts.settled(next(act for act, each in OPERATIONS.items() if each is said.operation))

    def _free(self, work: HeldMessage) -> None:
        """Forget a message that is settled, lost or given back."""
        self._settling.discard(work)
        self._active.discard(work)
        self._processing.locks.discard(work)
        self.room.free(work.size)
        if self._is_ordered:
            self._limit_renewals(work)
        if self._is_leaving:
            self._look_whether_finished()
        else:
            self._start_waiting()
            self.receiver.grant(self._credit)

    # ── another attempt ──

    async def _retry(self, work: HeldMessage, delay_s: float) -> None:
        if WAYS[self._source] is RetryWay.COPY and await self._schedule_copy(work, delay_s):
            self._processing.counts.retried += 1
            if await self._settle(work, COMPLETE):
                self._processing.counts.settled(Act.COMPLETE)
            self._free(work)
        elif self._may_hold(work):
            self._processing.counts.retried += 1
            self._hold(work, delay_s)
        else:
            await self._abandon(work, work.held_attempts)

    async def _schedule_copy(self, work: HeldMessage, delay_s: float) -> bool:
        """Schedule the copy; True when the service has accepted it."""
        facts = work.facts
        due_ms = int((time.time() + delay_s) * 1000)
        message_id, payload = copy_of(work.payload, facts, attempts=work.attempt, due_ms=due_ms)
        entry = Scheduled(message_id, payload, facts.session_id, facts.partition_key)
        try:
            await self.receiver.ask(
                "send", lambda node, left_s: node.schedule([entry], left_s), SETTLE_S, size_bytes=len(payload)
            )
        except ServiceBusError as error:
            self._processing.tell(NotSettled(self.path, work.name, "scheduling its next attempt", error))
            return False
        return True

    def _may_hold(self, work: HeldMessage) -> bool:
        if work.is_lost or self._is_leaving:
            return False
        if self._is_ordered:
            return True  # it keeps its slot
        held_bytes = sum(each.size for each in self._held)
        return len(self._held) < HELD_MAX and held_bytes + work.size <= HELD_RETRY_BYTES_MAX

    def _hold(self, work: HeldMessage, delay_s: float) -> None:
        self._held[work] = self.loop.call_later(delay_s, self._again, work)
        self._settling.discard(work)
        self._limit_renewals(work)
        if not self._is_ordered:
            self.room.free(work.size)
            self.receiver.grant(self._credit)

    def _again(self, work: HeldMessage) -> None:
        """Begin the next attempt of a message that was held."""
        del self._held[work]
        work.held_attempts += 1
        if self._is_ordered:
            self._start(work)
        else:
            self.room.take(work.size)
            self._waiting.appendleft(work)
            self._start_waiting()

    async def _abandon(self, work: HeldMessage, held_attempts: int) -> None:
        """Abandon a message; the attempts that no delivery counts are written into it."""
        before = work.facts.attempts_before + held_attempts
        said = Settlement(Settle.ABANDON, properties={ATTEMPTS: before} if held_attempts else None)
        if await self._settle(work, said):
            self._processing.counts.settled(Act.ABANDON)
        self._free(work)

    # ── locks ──

    async def renew(self, works: Sequence[HeldMessage]) -> None:
        """Renew the locks of messages, together as far as that succeeds."""
        tokens = [work.incoming.locked.token for work in works]
        assert None not in tokens, "they were received under lock"
        try:
            ends = await self.receiver.renew([token for token in tokens if token is not None], RENEW_S)
        except ServiceBusError as error:
            if len(works) > 1 and isinstance(error, LOST):
                await asyncio.gather(*(self.renew([work]) for work in works))
            elif isinstance(error, LOST):
                if works[0] in self._processing.locks:  # otherwise it was settled meanwhile
                    self.lose(works[0], str(error))
            else:
                for work in works:
                    self._processing.locks.not_renewed(work, self.loop.time())
            return
        finally:
            self._processing.arm()
        now, wall_s = self.loop.time(), self._processing.clock.now(time.time())
        self._processing.counts.renewals += len(ends)
        for work, end_s in zip(works, ends, strict=True):
            work.lock_ends_s = end_s
            self._processing.locks.renewed(work, rest_s(end_s, wall_s), now)
        self._processing.arm()

    async def renew_session(self) -> None:
        try:
            end_s = await self.receiver.renew_session(RENEW_S)
        except ServiceBusError as error:
            if isinstance(error, LOST) or self.receiver.is_session_lost:
                self.lose_all(str(error))
            else:
                self._processing.locks.not_renewed(self, self.loop.time())
        else:
            self._processing.counts.renewals += 1
            self._processing.locks.renewed(
                self, rest_s(end_s, self._processing.clock.now(time.time())), self.loop.time()
            )
        self._processing.arm()

    def lose(self, work: HeldMessage, reason: str) -> None:
        """Note that the lock of a message is lost. Its handler is cancelled, where it can be."""
        if work.is_lost:
            return
        work.is_lost = True
        self._processing.locks.discard(work)
        self._processing.counts.locks_lost += 1
        timer = self._held.pop(work, None)
        if timer is not None:
            timer.cancel()
            if self._is_ordered:
                self._free(work)
            elif self._is_leaving:
                self._look_whether_finished()
        if work.is_handled:
            session_id = self.receiver.session_id if self._is_ordered else None
            self._processing.tell(LockLost(self.path, work.name, reason, session_id))
            self._processing.runner.cancel(work)

    def lose_all(self, reason: str) -> None:
        """Note that the lock of the session is lost, and with it those of its messages."""
        if self.is_lost:
            return
        self.is_lost = True
        self._processing.locks.discard(self)
        for work in [*self._active, *self._waiting]:
            self.lose(work, reason)
        if self._taking is not None:
            self._taking.cancel()

    # ── the end ──

    async def leave(self) -> None:
        """Take no further messages, and give back those that wait. Handlers go on."""
        if self._is_leaving:
            return
        self._is_leaving = True
        if self._taking is not None and not self._taking.done():
            self._taking.cancel()
            await asyncio.wait([self._taking])
        await self.receiver.rest()
        waiting, self._waiting = list(self._waiting), deque()
        held = list(self._held)
        for work in held:
            self._held.pop(work).cancel()
            if not self._is_ordered:
                self.room.take(work.size)
            self._settling.add(work)
        await self._give_back(waiting)
        # The attempt of a held message has ended: the abandon counts it, and its properties those before.
        await asyncio.gather(*(self._abandon(work, work.held_attempts) for work in held))
        self._has_left = True
        self._look_whether_finished()

    def _look_whether_finished(self) -> None:
        if self._has_left and not (self._active or self._settling or self._held or self._following):
            self.finished.set()

    async def force(self) -> None:
        """End without the handlers: cancel those that can be, and give back the messages of the others.

        Answers to settlements are waited for a moment.
        """
        for work in list(self._active):
            work.is_stopped = True
            if work.is_handled:
                self._processing.runner.cancel(work)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S if self._processing.can_cancel or self._settling else 0.0):
                await self.finished.wait()
        unsettled, self._settling = self._settling, set()
        for work in unsettled:
            error = PairbusError("the processor was stopped before the service had answered")
            self._processing.tell(NotSettled(self.path, work.name, "settling", error, outcome_unknown=True))
        stuck = [work for work in self._active if work.is_handled and not work.is_lost]
        for work in stuck:
            self.lose(work, "the processor was stopped before its handler had ended")
        await self._release(stuck)

    async def _give_back(self, works: Sequence[HeldMessage]) -> None:
        await self._release([work for work in works if not work.is_lost])
        for work in works:
            self._free(work)

    async def _release(self, works: Iterable[HeldMessage]) -> None:
        """Release messages, or abandon them where their link is gone: that counts as a delivery."""
        direct = [work for work in works if self.receiver.may_release(work.incoming.locked)]
        if direct:
            await self.receiver.release([work.incoming for work in direct])
            self._processing.counts.released += len(direct)
        known = set(direct)
        for work in works:
            if work not in known and not self._is_ordered:
                with suppress(ServiceBusError):  # the lock runs out
                    await self.receiver.settle(work.incoming.locked, Settlement(Settle.ABANDON), STOP_S)

    async def close(self) -> None:
        """Close the link. The lock of a session ends with it."""
        self._processing.locks.discard(self)
        await self.receiver.close()

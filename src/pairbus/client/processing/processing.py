"""One processor at work in the loop of an engine: its feeds, its locks, its outages, its end.

Laws of this file.
 1. A processor never ends by itself: trouble is told once and waited out. Only the fault or the end of its client, or
    the end of the application's event loop, ends it.
 2. On an entity with sessions each slot has one session at a time. The kind of an entity is found out by its refusal.
 3. When `stop` returns nothing is locked: handlers have ended and their messages are settled, or the messages were
    given back.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, SessionCannotBeLockedError

from pairbus.client.processing.decide.endings import Act, FeedKind
from pairbus.client.processing.decide.locks import HeldLocks, ServiceClock
from pairbus.client.processing.decide.turns import SessionTurns
from pairbus.client.processing.events import HookFailed
from pairbus.client.processing.feed import FIRST_PAUSE_S, PAUSE_MAX_S, RENEW_TOGETHER, Feed
from pairbus.client.processing.held import EndReport, HeldMessage, Inbox
from pairbus.client.processing.options import ProcessorOptions
from pairbus.client.processing.runners import Runner
from pairbus.client.receiving.entity_receiver import EntityReceiver
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.receiving.shared import Receiving
from pairbus.errors import PairbusError
from pairbus.pairing.events import Event, ReceivingInterrupted, ReceivingResumed
from pairbus.sdk.failures import condition_of
from pairbus.syphon.decide.pace import Pauses
from pairbus.transport.tasks import Tasks

NEXT_SESSION_S = 30.0  # one wait for the next session
LOOK_S = 1.0  # between two looks at the application's event loop
TURN_S = 1.0  # between two looks for a named session that is free


@dataclass(slots=True)
class ProcessorCounts:
    """Numbers of one processor since it was started."""

    handled: int = 0
    "Handlers that have ended."
    failed: int = 0
    "Handlers that raised an exception, or did not settle."
    completed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    deferred: int = 0
    abandoned: int = 0
    released: int = 0
    locks_lost: int = 0
    renewals: int = 0

    def settled(self, act: Act) -> None:
        match act:
            case Act.COMPLETE:
                self.completed += 1
            case Act.DEAD_LETTER:
                self.dead_lettered += 1
            case Act.DEFER:
                self.deferred += 1
            case Act.ABANDON:
                self.abandoned += 1


class Processing:
    """One processor, from `start` to `stop`. Belongs to one event loop, that of its `receiving`."""

    def __init__(
        self,
        receiving: Receiving,
        place: ReceiverOptions,
        options: ProcessorOptions,
        runner: Runner,
        publish: Callable[[Event], None],
        *,
        is_queue: bool,
        can_cancel: bool,
    ) -> None:
        self.loop = receiving.loop
        self.options = options
        self.place = place
        self.runner = runner
        self._cancels = can_cancel
        self.counts = ProcessorCounts()
        self.tasks = Tasks()
        self.clock = ServiceClock()
        self.locks: HeldLocks[HeldMessage | Feed] = HeldLocks()
        self.handling: dict[int, HeldMessage] = {}
        "Sequence number → the message of a handler that runs."
        self.chance = random.random
        self.is_forced = False
        "True: the processor ends without waiting for anything."
        self.outage: str | None = None
        "The reason why nothing comes; None while all is well."
        self.failure: BaseException | None = None
        "The error that ended the processor."
        self.ended = asyncio.Event()
        self.state = "new"
        self._receiving = receiving
        self._publish = publish
        self._is_queue = is_queue
        self._has_sessions = options.wants_sessions
        self._turns = None if options.session_ids is None else SessionTurns(options.session_ids)
        self._feeds: list[Feed] = []
        self._outage_began = 0.0
        self._halted = asyncio.Event()
        "Set while nothing may be taken: paused, or stopping."
        self._is_stopping = False
        self._forget: Callable[[], None] = lambda: None
        self._slots: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = math.inf
        "Time of the timer."
        inbox: Inbox[EndReport] = Inbox(self.loop, self._ended)
        runner.report = inbox.put

    @property
    def path(self) -> str:
        return self.place.path

    @property
    def can_cancel(self) -> bool:
        """True when handlers can be cancelled."""
        return self._cancels and not self.runner.is_over

    @property
    def active(self) -> int:
        return sum(feed.active for feed in list(self._feeds))

    @property
    def waiting(self) -> int:
        return sum(feed.waiting for feed in list(self._feeds))

    @property
    def held_bytes(self) -> int:
        return sum(feed.room.held_bytes for feed in list(self._feeds))

    @property
    def sessions(self) -> list[str]:
        return [feed.receiver.session_id or "" for feed in list(self._feeds) if feed.session is not None]

    def _numbers(self) -> tuple[str, dict[str, int]]:
        """Return the numbers for metrics; any thread may ask."""
        now = {"active": self.active, "waiting": self.waiting}
        return self.path, {**now, **{name: getattr(self.counts, name) for name in self.counts.__slots__}}

    def describe(self) -> dict[str, Any]:
        """Return the facts for the control socket; any thread may ask."""
        outage = self.outage
        return {
            "path": self.path,
            "state": self.state,
            "sessions": len(self.sessions),
            "outage": outage,
            "outage_s": None if outage is None else self.loop.time() - self._outage_began,
            **self._numbers()[1],
        }

    # ── begin, pause, end ──

    def start(self) -> None:
        assert self.state == "new"
        state = self._receiving.state
        self._forget = state.counters.add_processor(self._numbers)
        state.processors.append(self.describe)
        if self._cancels:
            self.tasks.start(self._watch_runner(), f"{self.path}: looking after the application", failed=self._fail)
        self._run()

    def _run(self) -> None:
        self.state = "running"
        self._halted.clear()
        if self._has_sessions:
            count = self.options.max_concurrent_sessions
            ids = self.options.session_ids
            self._start_slots(self._session_slot, count if ids is None else min(count, len(ids)))
        else:
            self._start_slots(self._plain_slot, 1)

    def _start_slots(self, slot: Callable[[], Any], count: int) -> None:
        self._slots += [
            self.tasks.start(slot(), f"{self.path}: taking messages", failed=self._fail) for _ in range(count)
        ]

    async def pause(self) -> None:
        """Take nothing any more. Returns when nothing arrives; handlers go on, and their messages are settled."""
        if self.state != "running":
            return
        self.state = "paused"
        self._halted.set()
        await asyncio.gather(*(feed.leave() for feed in list(self._feeds)))

    async def resume(self) -> None:
        """Take messages again; waits for the handlers from before the pause."""
        if self.state != "paused":
            return
        await self._slots_ended()
        if self.state == "paused":
            self._run()

    async def stop(self, *, drain: bool, timeout_s: float | None) -> None:
        """End. With `drain` wait for the handlers, for `timeout_s` at most; then cancel them, or leave them alone."""
        self._is_stopping = True
        if self.state != "ended":
            self.state = "stopping"
        self._halted.set()
        leaving = [self.tasks.start(feed.leave(), "giving back what waits") for feed in self._feeds]
        if leaving:
            await asyncio.wait(leaving)
        if drain:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._slots_ended()
        if any(not slot.done() for slot in self._slots):
            self.is_forced = True
            await asyncio.gather(*(feed.force() for feed in list(self._feeds)))
            for feed in self._feeds:
                feed.finished.set()
            await self._slots_ended()
        self._end()

    def _end(self) -> None:
        if self.state == "ended":
            return
        self.state = "ended"
        if self._timer is not None:
            self._timer.cancel()
        self._receiving.state.processors.remove(self.describe)
        self._forget()
        self.runner.close()
        self.ended.set()

    async def _slots_ended(self) -> None:
        slots = [slot for slot in self._slots if not slot.done()]
        if slots:
            await asyncio.wait(slots)
        self._slots = [slot for slot in self._slots if not slot.done()]

    def _fail(self, error: BaseException) -> None:
        """End because of an error that will stay: the client was faulted, or closed under the processor."""
        if self.failure is None:
            self.failure = error
            self.tasks.start(self.stop(drain=False, timeout_s=None), f"{self.path}: ending the processor")

    # ── slots ──

    async def _plain_slot(self) -> None:
        """Have one feed until the processor halts, or the entity turns out to have sessions."""
        source = FeedKind.QUEUE if self._is_queue else FeedKind.SUBSCRIPTION
        receiver = self._new_receiver(self.place)
        feed = Feed(self, receiver, source, self.options.max_concurrent_calls)
        try:
            await self._have(feed)
        except ServiceBusError as error:
            if condition_of(error) != "amqp:not-allowed" or self._halted.is_set():
                raise
            self._has_sessions = True
            self._start_slots(self._session_slot, self.options.max_concurrent_sessions)

    async def _session_slot(self) -> None:
        """Have one session after the other."""
        pauses = Pauses(FIRST_PAUSE_S)
        while not self._halted.is_set():
            session_id = None
            if self._turns is not None:
                session_id = self._turns.take(self.loop.time())
                if session_id is None:
                    await self._wait(min(self._turns.wait_s(self.loop.time()), TURN_S))
                    continue
            try:
                feed = await self._next_session(session_id, pauses)
                if feed is not None:
                    pauses = Pauses(FIRST_PAUSE_S)
                    await self._have(feed)
            finally:
                if self._turns is not None and session_id is not None:
                    self._turns.give_back(session_id, self.loop.time())

    async def _next_session(self, session_id: str | None, pauses: Pauses) -> Feed | None:
        """Open a session; None when there was none, or it failed."""
        any_session = session_id is None
        place = replace(self.place, session_id=session_id, any_session=any_session, max_wait_time=NEXT_SESSION_S)
        receiver = self._new_receiver(place)
        opening, halted = asyncio.create_task(receiver.open(NEXT_SESSION_S)), asyncio.create_task(self._halted.wait())
        try:
            await asyncio.wait([opening, halted], return_when=asyncio.FIRST_COMPLETED)
        finally:
            halted.cancel()
            opening.cancel()
        await asyncio.wait([opening])
        error = None if opening.cancelled() else opening.exception()
        if not opening.cancelled() and error is None:
            return Feed(self, receiver, FeedKind.SESSION, self.options.max_concurrent_calls_per_session)
        await receiver.close()
        if isinstance(error, SessionCannotBeLockedError) or (any_session and isinstance(error, OperationTimeoutError)):
            return None  # another receiver has it, or no session has messages
        if isinstance(error, ServiceBusError):
            self.interrupted(str(error))
            await self._wait(min(pauses.after(delivered=False), PAUSE_MAX_S))
        elif error is not None:
            raise error
        return None

    async def _wait(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._halted.wait()

    async def _have(self, feed: Feed) -> None:
        """Run one feed to its end; then nothing of it is locked."""
        if feed.session is not None:
            self.interrupted(None)
            await self._hook("on_session_open", feed)
        self._feeds.append(feed)
        try:
            if not self._halted.is_set():
                await feed.run()
        finally:
            await feed.leave()
            await feed.finished.wait()
            if feed.session is not None:
                await self._hook("on_session_close", feed)
            self._feeds.remove(feed)
            await feed.close()

    async def _hook(self, name: str, feed: Feed) -> None:
        hook = getattr(self.options, name)
        if hook is None:
            return
        try:
            await self.runner.call(hook, feed.session)
        except Exception as error:  # an error of the application's hook is told, and ends no processor
            self.tell(HookFailed(self.path, feed.session.session_id, name, error))

    def _new_receiver(self, place: ReceiverOptions) -> EntityReceiver:
        receiver = EntityReceiver(self._receiving, place)
        receiver.when_interrupted = self.interrupted
        return receiver

    async def _watch_runner(self) -> None:
        """End when the application's event loop has ended: nobody would call the handlers of what is held."""
        while not self.ended.is_set():
            await self._wait_for_end(LOOK_S)
            if self.runner.is_over and not self._is_stopping:
                raise PairbusError("the event loop of the application has ended, so no handler can run any more")

    async def _wait_for_end(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.ended.wait()

    # ── calls of feeds ──

    def check(self) -> None:
        """Raise when the client was faulted."""
        self._receiving.check()

    def _ended(self, reports: list[EndReport]) -> None:
        """Take the ends of handlers, which have gathered while the loop was at work."""
        feeds: dict[Feed, None] = {}
        try:
            for report in reports:
                feeds[report.work.feed] = None
                report.work.feed.ended(report)
            for feed in feeds:
                feed.after_ends()
        except Exception as error:  # a bug of ours: better no processor than one that stands still in silence
            self._fail(error)
            raise

    def interrupted(self, reason: str | None) -> None:
        """Note why nothing comes, or with None that messages can come again. Each is told once."""
        if reason is not None and self.outage is None:
            self._outage_began = self.loop.time()
            self._tell_all(ReceivingInterrupted(self.path, reason))
        elif reason is None and self.outage is not None:
            self._tell_all(ReceivingResumed(self.path, self.loop.time() - self._outage_began))
        self.outage = reason

    def _tell_all(self, event: Event) -> None:
        self._publish(event)
        if self.options.on_error is not None:
            self.runner.tell(event)

    def tell(self, event: Event) -> None:
        self.runner.tell(event)

    # ── locks ──

    def arm(self) -> None:
        """Look after the locks when the next one needs it."""
        next_at = self.locks.next_at
        if next_at == math.inf or self.state == "ended":
            return
        if self._timer is not None:
            if self._look_at <= next_at:
                return
            self._timer.cancel()
        self._look_at = next_at
        self._timer = self.loop.call_at(next_at, self._look_after_locks)

    def _look_after_locks(self) -> None:
        self._timer = None
        due = self.locks.due(self.loop.time())
        for key in due.lost:
            reason = "its lock ended before it could be renewed"
            if isinstance(key, Feed):
                key.lose_all(reason)
            else:
                key.feed.lose(key, reason)
        by_feed: dict[Feed, list[HeldMessage]] = {}
        for key in due.renew:
            if isinstance(key, Feed):
                self.tasks.start(key.renew_session(), f"renewing {key!r}")
            else:
                by_feed.setdefault(key.feed, []).append(key)
        for feed, works in by_feed.items():
            for first in range(0, len(works), RENEW_TOGETHER):
                self.tasks.start(feed.renew(works[first : first + RENEW_TOGETHER]), f"renewing locks of {feed!r}")
        self.arm()

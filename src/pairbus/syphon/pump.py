"""Passes over one backlog queue: a long poll, batch after batch while there are any, a pause.

A pass ends when nothing more comes, when every destination should get another chance, or when something is wrong with
the queue or with the whole primary. Between passes the link is closed: no lock runs while the pump pauses, except of
messages that wait for their destination.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

from pairbus import telemetry
from pairbus.amqp.link import ranges
from pairbus.ledger.rows import alike
from pairbus.pairing.envelope import enqueued_ms_of
from pairbus.pairing.events import PumpPaused
from pairbus.pairing.pace import BatchSize, Pauses
from pairbus.pairing.policy import BUSY_WAIT_S, Kind
from pairbus.pairing.relay import NOTHING_KNOWN, PASS_MAX_S, Item, moment_of
from pairbus.syphon.loads import AHEAD, Loads
from pairbus.syphon.mover import Held, Mover, Opened, Pass, Shared, Trip
from pairbus.transport import Received, Receiver, TransportError
from pairbus.transport.errors import Refused, Timeout
from pairbus.wire_failures import failure_of

logger = logging.getLogger("pairbus.syphon")

LINGER_S = 1.0  # for more of a queue that has just given some
HELD_MAX = 2000  # deliveries left unsettled on one link before it is replaced: a service bounds them
LINK_LIFE_MIN_S = 1.0  # a link that the peer closes sooner was not idle
CLOSE_TIMEOUT_S = 0.5  # for each of three answers of a peer that may be silent
LOCK_LOST = "com.microsoft:message-lock-lost"
LOOK_S = 0.02  # between two looks at how far the other queues are

T = TypeVar("T")


class Pump:
    """One queue. `moved` and the like only grow."""

    def __init__(
        self,
        shared: Shared,
        queue: str,
        stopping: asyncio.Event,
        sub_queue: Literal["dead-letter"] | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """`is_new`: the queue has just been created, and nobody had a link to it before."""
        self.queue = queue
        self.errors = 0
        self._held: list[Held] = []
        "By the passes until now."
        self._looks = False
        "Whether it would see what comes back when its locks are over: not while it rests, nor as a single drain."
        self._parked: list[Receiver] | None = None
        "Of a single drain: links on which messages are held, which go back when it is over."
        self._moved = 0
        self._dead_lettered = 0
        self._this: Pass | None = None
        self._shared = shared
        self._sub_queue = sub_queue
        self._stopping = stopping
        self._mover = Mover(shared, queue)
        self._size = BatchSize(shared.settings.batch_max, batches=AHEAD + 2)  # one gathers, one is fetched
        self._pauses = Pauses(shared.settings.retry_interval_s)
        self._receiver: Receiver | None = None
        self._poll_ends: float | None = None
        self._linger_s = LINGER_S
        self._last = NOTHING_KNOWN
        "No message of a lane that is still to be seen came to the queue before, unless it comes back from a lock."
        self._until_ms: int | None = None
        "Of a single drain: when it began, by the clock of the queue."
        self._hidden_since = shared.clock() if shared.may_follow and not is_new else float("-inf")
        "Whoever had a link before may have left messages under their locks: the queue may only seem empty."

    def __repr__(self) -> str:
        return f"<Pump {self.queue} moved={self.moved} blocked={self.blocked} errors={self.errors}>"

    @property
    def _hidden_until(self) -> float:
        return self._hidden_since + self._size.lock_longest_s

    @property
    def moved(self) -> int:
        return self._moved + (self._this.delivered if self._this is not None else 0)

    @property
    def dead_lettered(self) -> int:
        return self._dead_lettered + (self._this.buried if self._this is not None else 0)

    @property
    def blocked(self) -> int:
        """Messages that wait for their destination; of a single drain, in any of its passes."""
        return _count_of(self._still_held()) + (0 if self._this is None else _count_of(self._this.held))

    def _still_held(self) -> list[Held]:
        now = self._shared.clock()
        return [held for held in self._held if held.locks_end > now or not self._looks]

    async def run(self) -> None:
        """Pass after pass, until told to stop."""
        try:
            while not self._stopping.is_set():
                self._looks = True
                await self._pass_and_pause()
        finally:
            await self._close_link()

    async def _pass_and_pause(self) -> None:
        drained = busy = False
        try:
            done = await self._pass(self._poll)
            if done is None:
                return  # a poll that ended without a message is followed by the next
            drained, busy = done.drained, done.busy
            reason = done.over or next(iter(done.skipped.values()), "nothing was delivered")
            delivered = done.delivered + done.buried > 0
            self._shared.tide.reached(self.queue, self._last)  # what comes during the pause is not seen
        except TransportError as error:
            self.errors += 1
            reason, delivered = str(error), False
            kind = failure_of(error).kind
            busy = kind is Kind.BUSY
            if kind is Kind.NOT_FOUND:
                self._shared.tide.empty(self.queue)
            else:  # lanes of the other queues wait: what lies here unread may be earlier
                self._shared.tide.reached(self.queue, self._last)
        pause_s = max(self._pauses.after(delivered), BUSY_WAIT_S if busy else 0.0)
        if (busy or not delivered) and not self._stopping.is_set():
            self._shared.publish(PumpPaused(self.queue, reason, pause_s))
        await self._rest(pause_s, for_all=busy or not drained)

    async def _rest(self, pause_s: float, *, for_all: bool) -> None:
        """Unless `for_all`, only until lanes of other queues wait for a look at this one: what lies here is blocked."""
        tide, self._looks = self._shared.tide, False
        tide.was_awaited(self.queue)  # until now
        while pause_s > 0 and not self._stopping.is_set():
            step_s = pause_s if for_all else min(pause_s, LINGER_S)
            await self._unless_stopping(asyncio.sleep(step_s))
            pause_s -= step_s
            if not for_all and tide.was_awaited(self.queue):
                return

    async def run_once(self, wait_s: float, *, later: bool = False) -> None:
        """What is there now, until nothing comes for `wait_s`; what is blocked stays, and is locked no longer when this
        returns. Raises TransportError.

        With `later`, also what comes to the queue meanwhile. Without it the end comes however fast others fill it. What
        is blocked stays locked then: there will be another drain.
        """
        self._linger_s, self._until_ms = wait_s, None
        self._hidden_since = float("-inf")  # it ends when nothing comes: what others hold is not waited for
        self._held, self._looks, self._parked = [], False, None if later else []
        began_ms = self._shared.wall_ms()

        async def take() -> list[Received]:
            receiver = await self._link()
            batch = await self._unless_stopping(receiver.receive(self._next_size(), wait_s)) or []
            if self._until_ms is None and not later:
                # What comes first was there, whatever our clock says about it.
                self._until_ms = max([began_ms, *[enqueued_ms_of(message.payload) or 0 for message in batch]])
            return self._metered(receiver, batch)

        try:
            while not self._stopping.is_set():
                done = await self._pass(take)
                if done is None or done.drained or done.caught_up:
                    return
                if done.delivered + done.buried == 0 or done.over is not None:
                    return
        finally:
            self._shared.tide.empty(self.queue)
            await self._close_link()
            parked, self._parked = self._parked or [], None
            await asyncio.gather(*[self._release_held(receiver) for receiver in parked])

    # ── one pass ──

    async def _pass(self, first: Callable[[], Awaitable[list[Received]]]) -> Pass | None:
        """None when no message came at all."""
        batch = await first()
        if not batch:
            return None
        with telemetry.span("syphon", {telemetry.DESTINATION: self.queue}):
            return await self._pass_from(batch)

    async def _pass_from(self, batch: list[Received]) -> Pass:
        self._this = this = Pass()
        loads = Loads(lambda trip, items: self._move(trip, items, this), self._size)
        this.began = self._shared.clock()
        try:
            while batch:
                await self._start(batch, this, loads)
                over = this.over is not None or this.caught_up or self._stopping.is_set()
                if over or (not this.early and self._shared.clock() - this.began >= PASS_MAX_S):
                    break
                batch = await self._more(this, loads)
            await loads.all_home()
        finally:
            await loads.cancel()
            if this.early and (self._stopping.is_set() or self._shared.clock() >= self._hidden_until):
                await self._give_back(this)
            this.hold_early()
            # Where nothing can be delivered, the same messages would be fetched again by the next pass.
            released = this.delivered or this.caught_up or self._stopping.is_set()
            await self._close_link(held_by=None if released else this)
            self._count(this)
        return this

    async def _start(self, batch: list[Received], this: Pass, loads: Loads) -> None:
        receiver = self._receiver  # before anything is awaited: delivery ids mean nothing on another link
        assert receiver is not None
        if self._until_ms is not None:
            batch = await self._without_later(receiver, batch, this, self._until_ms)
        opened = self._mover.open(batch)
        if opened.locked_until_ms is not None:
            self._size.locked_for((opened.locked_until_ms - self._shared.wall_ms()) / 1000)
        locks_end = self._shared.clock() + self._size.lock_s
        trip = Trip(self._shared, self.queue, batch, receiver, this, locks_end)
        too_early = bool(opened.lanes) and (bool(this.early) or self._shared.clock() < self._hidden_until)
        self._saw(opened, too_early=too_early)
        if opened.spoiled:
            await trip.bury_spoiled(opened.spoiled)  # first: others of their lanes may wait for them
        if opened.items:
            await loads.add(trip, opened.items)
        if too_early:
            this.early.append((trip, opened.lanes))
            this.held_on_link += len(opened.lanes)
        elif opened.lanes:
            await loads.all_home()
            await self._move_in_order(trip, opened.lanes, locks_end)
        if not this.delivered:
            await loads.all_home()  # where nothing can be delivered, receiving ahead would only cost receives

    async def _without_later(
        self, receiver: Receiver, batch: list[Received], this: Pass, until_ms: int
    ) -> list[Received]:
        """What came too late for a single drain goes back. It is over when nothing else comes: of a partitioned queue
        the parts may be mixed."""
        later = [message for message in batch if (enqueued_ms_of(message.payload) or 0) > until_ms]
        if not later:
            return batch
        this.caught_up = len(later) == len(batch)
        try:
            await self._release(receiver, later)
        except TransportError as error:
            logger.debug("%s: what came too late comes back when its locks run out: %s", self.queue, error)
        ids = {message.delivery_id for message in later}
        return [message for message in batch if message.delivery_id not in ids]

    async def _give_back(self, this: Pass) -> None:
        """What is hidden may be earlier messages of the same lanes. When its locks are over, all of them are there, and
        come in their order to whoever asks then: also what the link has fetched meanwhile goes back."""
        receiver = self._receiver
        if receiver is not None:
            early = [message for trip, items in this.early for message in trip.received_on(receiver, items)]
            try:
                await self._release(receiver, early + await self._rest_of(receiver))
                this.early = [(trip, items) for trip, items in this.early if not trip.received_on(receiver, items)]
            except TransportError as error:
                logger.debug("%s: what was received too early comes back when its locks run out: %s", self.queue, error)
                if not (isinstance(error, Refused) and error.condition == LOCK_LOST):  # those are back already
                    self._hidden_since = self._shared.clock()
        this.hold_early()
        await self._close_link()
        this.held_on_link, this.began = 0, self._shared.clock()

    async def _move(self, trip: Trip, items: list[Item], this: Pass) -> None:
        began, before = self._shared.clock(), this.delivered
        await self._mover.move(trip, self._mover.in_turns(items))
        self._size.moved(this.delivered - before, self._shared.clock() - began)

    async def _move_in_order(self, trip: Trip, items: list[Item], locks_end: float) -> None:
        """Piece by piece, as far as no other queue can have an earlier message of the same lane."""
        shared = self._shared
        if shared.pumps > 1:
            await asyncio.sleep(LOOK_S)  # what another queue has got in this moment is told before
        while items:
            self._reached(items)
            count = shared.tide.may_go(self.queue, items)
            if count:
                await self._mover.move(trip, self._mover.in_turns(items[:count]))
                items = items[count:]
            elif shared.clock() >= locks_end or self._stopping.is_set():
                trip.stop("an earlier message may be in another queue, and the locks of the later ones ran out")
                trip.hold(items)
                return
            else:
                await asyncio.sleep(LOOK_S)

    def _reached(self, lanes: list[Item]) -> None:
        self._last = moment_of(lanes[0].home)
        self._shared.tide.reached(self.queue, self._last)

    def _saw(self, opened: Opened, *, too_early: bool) -> None:
        """Messages without order only tell the time, and never an earlier one: those that wait come back."""
        tide = self._shared.tide
        for item in opened.lanes or opened.items[-1:]:
            tide.saw(moment_of(item.home))
        if opened.lanes and not too_early:
            self._reached(opened.lanes)
        elif opened.lanes or opened.items:  # there may be others behind them, and where some are hidden before them
            if not too_early and self._shared.clock() >= self._hidden_until:
                self._last = max(self._last, moment_of(opened.items[0].home))
            tide.reached(self.queue, self._last)

    def _count(self, this: Pass) -> None:
        self._this = None
        self._moved += this.delivered
        self._dead_lettered += this.buried
        self.errors += this.errors
        self._held = self._still_held() + this.held

    # ── receiving ──

    async def _poll(self) -> list[Received]:
        """The rest of a long poll. A link that is lost meanwhile is opened again, which is not another receive."""
        shared = self._shared
        if self._poll_ends is None:
            self._poll_ends = shared.clock() + shared.settings.poll_s
        while not self._stopping.is_set():
            opened_at = shared.clock()
            try:
                receiver = await self._link()
                batch = await self._unless_stopping(self._take(receiver, self._poll_ends))
            except TransportError as error:
                await self._close_link()
                shared.tide.reached(self.queue, self._last)  # no longer empty: it may have fetched something
                was_idle = shared.clock() - opened_at >= LINK_LIFE_MIN_S and not isinstance(error, Timeout)
                if not was_idle or failure_of(error).kind is Kind.BUSY:
                    raise
                logger.info("%s: the link ended within a poll and is opened again: %s", self.queue, error)
                continue
            if batch is None:
                break
            self._poll_ends = None
            if not batch:
                await self._end_poll(receiver)
            return self._metered(receiver, batch)
        return []

    async def _end_poll(self, receiver: Receiver) -> None:
        """Take the credit back: to ask again is another receive, and a peer that does not answer is not there."""
        try:
            await receiver.pause(CLOSE_TIMEOUT_S)
        except TransportError as error:
            await self._close_link()
            if failure_of(error).kind is Kind.BUSY:
                raise
            logger.info("%s: the link ended with a poll and will be opened again: %s", self.queue, error)

    async def _take(self, receiver: Receiver, until: float) -> list[Received]:
        """The first messages; a queue that has none for a moment is empty, which others may be waiting to hear."""
        clock = self._shared.clock
        for moment in (clock() + self._linger_s, self._hidden_until, until):
            batch = await receiver.receive(self._next_size(), max(min(moment, until) - clock(), 0.0))
            if batch:
                return batch
            self._seems_empty()
        return []

    async def _more(self, this: Pass, loads: Loads) -> list[Received]:
        """What comes shortly; nothing when the link is lost, for what is on its way is worth waiting for."""
        try:
            while True:
                if this.early and self._shared.clock() >= self._hidden_until:
                    await loads.all_home()  # they are settled on the link that this closes
                    await self._give_back(this)
                if this.held_on_link >= HELD_MAX:
                    if self._receiver is not None and (rest := await self._rest_of(self._receiver)):
                        return rest  # given back, they would be received a second time
                    await loads.all_home()
                    this.hold_early()
                    await self._close_link()
                    this.held_on_link = 0
                receiver = await self._link()
                wait_s = self._linger_s
                if this.early:  # locks of our own must not run out while we wait for those of others
                    wait_s = min(wait_s, max(self._hidden_until - self._shared.clock(), 0.0))
                batch = await receiver.receive(self._next_size(), wait_s)
                if batch or not this.early or self._stopping.is_set():
                    break
        except TransportError as error:
            this.over = this.over or str(error)
            this.busy = this.busy or failure_of(error).kind is Kind.BUSY
            this.errors += 1
            return []
        if not batch and not this.early:
            this.drained = True
            self._seems_empty()
        return self._metered(receiver, batch)

    def _seems_empty(self) -> None:
        if self._shared.clock() >= self._hidden_until:
            self._last = max(self._last, self._shared.tide.now)
            self._shared.tide.empty(self.queue)
        else:
            self._shared.tide.reached(self.queue, self._last)

    def _metered(self, receiver: Receiver, batch: list[Received]) -> list[Received]:
        meter, queue = self._shared.meter, self.queue
        if empty := receiver.take_empty():
            meter("secondary", queue, "empty receive", empty, 0, "ok")
        for count, size_bytes in alike([len(message.payload) for message in batch]):
            meter("secondary", queue, "receive", count, size_bytes, "ok")
        return batch

    def _next_size(self) -> int:
        shared = self._shared
        rate = shared.budget.rate_per_s(shared.clock())
        size = self._size.next(None if rate is None else rate / shared.pumps)
        if self._receiver is not None:
            self._receiver.credit = size
        return size

    async def _link(self) -> Receiver:
        if self._receiver is not None and self._receiver.over is not None:
            self._lost()
        if self._receiver is None:
            self._receiver = await self._shared.secondary.receiver(
                self.queue, credit=self._next_size(), sub_queue=self._sub_queue
            )
        return self._receiver

    async def _close_link(self, *, held_by: Pass | None = None) -> None:
        """What was fetched ahead goes back, or is held like everything that the pass has left under its locks."""
        if self._receiver is not None and self._receiver.over is not None:
            self._lost()
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        try:
            fetched = await self._rest_of(receiver)
            if held_by is None:
                await self._release(receiver, fetched)
            elif fetched:
                locks_end = self._shared.clock() + self._size.lock_s
                trip = Trip(self._shared, self.queue, fetched, receiver, held_by, locks_end)
                opened = self._mover.open(fetched)
                trip.hold(opened.items + opened.lanes)
                trip.keep([place for place, _ in opened.spoiled])
        except TransportError as error:
            logger.debug("%s: what was fetched ahead comes back when its locks run out: %s", self.queue, error)
            self._lost()
        else:
            if self._parked is not None:
                self._parked = await self._needed([*self._parked, receiver])
                return
        await receiver.close(CLOSE_TIMEOUT_S)

    async def _needed(self, links: list[Receiver]) -> list[Receiver]:
        """Those on which messages are held; the others are closed, a connection has a thousand at most."""
        now, held = self._shared.clock(), self._held + ([] if self._this is None else self._this.held)
        needed = {id(each.receiver) for each in held if each.locks_end > now}
        for link in links:
            if id(link) not in needed:
                await link.close(CLOSE_TIMEOUT_S)
        return [link for link in links if id(link) in needed]

    async def _release_held(self, receiver: Receiver) -> None:
        """And close the link. Only places are known: of ten thousand blocked messages nobody keeps the bytes."""
        now = self._shared.clock()
        held = [held.places for held in self._held if held.receiver is receiver and held.locks_end > now]
        places = sorted({place for places in held for place in places})
        releases = [self._release(receiver, range(first, last + 1)) for first, last in ranges(places)]
        for error in await asyncio.gather(*releases, return_exceptions=True):
            if isinstance(error, TransportError):
                logger.debug("%s: what was held comes back when its locks run out: %s", self.queue, error)
            elif error is not None:
                raise error
        await receiver.close(CLOSE_TIMEOUT_S)

    async def _rest_of(self, receiver: Receiver) -> list[Received]:
        """What a link has fetched ahead; nothing more comes on it."""
        receiver.credit = 0
        await receiver.pause(CLOSE_TIMEOUT_S)
        return self._metered(receiver, await receiver.receive(receiver.buffered, 0.0) if receiver.buffered else [])

    async def _release(self, receiver: Receiver, fetched: list[Received] | range) -> None:
        outcome = "ok"
        try:
            await receiver.release(fetched, timeout_s=CLOSE_TIMEOUT_S)
        except TransportError as error:
            outcome = failure_of(error).kind.value
            raise
        finally:
            if fetched:
                self._shared.meter("secondary", self.queue, "complete", len(fetched), 0, outcome)

    def _lost(self) -> None:
        self._receiver = None
        self._hidden_since = self._shared.clock()

    async def _unless_stopping(self, wait: Coroutine[Any, Any, T]) -> T | None:
        """The result, or None as soon as the pump is told to stop."""
        task, stop = asyncio.create_task(wait), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.wait([task, stop])


def _count_of(held: list[Held]) -> int:
    return sum(len(each.places) for each in held)

"""Passes over one backlog queue: a long poll, batch after batch while there are messages, a pause.

A pass ends when no more messages arrive, when every destination should get another chance, or when the queue or the
whole primary has a failure. Between passes no message is received: while the pump pauses, only messages that wait for
their destination are locked.

Laws of this file.
 1. While the primary as a whole is away the pump receives and holds no messages.
 2. A queue that cannot store completions is not read for a pause that doubles, and no message of it is held.
 3. A pump that ends leaves no message locked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

from pairbus import telemetry
from pairbus.backlog.envelope import enqueued_ms_of
from pairbus.pairing.events import NotCompleted, PumpPaused
from pairbus.pairing.policy import BUSY_WAIT_S, Kind
from pairbus.syphon.decide.pace import BatchSize, Pauses
from pairbus.syphon.decide.relay import CHANCE_S, PASS_MAX_S, Item
from pairbus.syphon.intake import Intake
from pairbus.syphon.link import LOCK_LOST, MeteredLink
from pairbus.syphon.loads import AHEAD, Loads
from pairbus.syphon.mover import Mover
from pairbus.syphon.order import QueueOrder
from pairbus.syphon.poll import LINGER_S, Poll, first_of
from pairbus.syphon.shared import Held, Pass, SyphonState, Trust, count_of
from pairbus.syphon.trip import Trip
from pairbus.transport import ReceivedMessage, TransportError
from pairbus.transport.errors import Refused
from pairbus.transport.failures import failure_of

logger = logging.getLogger("pairbus.syphon")

FIRST_WAIT_S = 1.0  # for the first message of a drain
HELD_MAX = 2000  # deliveries left unsettled on one link before it is replaced: a service limits them

T = TypeVar("T")


class Pump:
    """Pump of one queue. `moved`, `dead_lettered` and `errors` only grow."""

    def __init__(
        self,
        shared: SyphonState,
        queue: str,
        stopping: asyncio.Event,
        sub_queue: Literal["dead-letter"] | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Begin; with `is_new` the queue has just been created, and no syphon had a link to it before."""
        self.queue = queue
        self.errors = 0
        self._held: list[Held] = []
        "Messages that earlier passes left locked."
        self._looks = False
        "True while polling, when messages whose locks expired would be received again."
        self._moved = 0
        self._dead_lettered = 0
        self._this: Pass | None = None
        self._shared = shared
        self._stopping = stopping
        self._mover = Mover(shared, queue)
        self._size = BatchSize(shared.settings.batch_max, batches=AHEAD + 2)  # + 2: one gathers, one is fetched
        self._order = QueueOrder(shared, queue, self._size, is_new=is_new)
        self._intake = Intake(shared, queue, sub_queue, self._size, self._order)
        self._trust = Trust(proven=shared.trusts)
        self._told_uncompleted = False
        self._pauses = Pauses(shared.settings.retry_interval_s)
        self._poll = Poll(shared, queue, self._intake, self._order, stopping)
        self._linger_s = LINGER_S
        self._until_ms: int | None = None
        "Time at which a single drain began, by the clock of the queue."

    def __repr__(self) -> str:
        return f"<Pump {self.queue} moved={self.moved} blocked={self.blocked} errors={self.errors}>"

    @property
    def moved(self) -> int:
        return self._moved + (self._this.delivered if self._this is not None else 0)

    @property
    def dead_lettered(self) -> int:
        return self._dead_lettered + (self._this.dead_lettered if self._this is not None else 0)

    @property
    def uncompleted(self) -> int:
        """Number of messages that are at home and still in the queue."""
        return self._shared.at_home.count(self.queue)

    @property
    def blocked(self) -> int:
        """Number of messages that wait for their destination; in a single drain, those of all its passes."""
        return count_of(self._still_held()) + (0 if self._this is None else count_of(self._this.held))

    def _still_held(self) -> list[Held]:
        now = self._shared.clock()
        return [held for held in self._held if held.locks_end > now or not self._looks]

    # ── until stopped ──

    async def run(self) -> None:
        """Make pass after pass, until told to stop."""
        presence = self._shared.presence
        try:
            while not self._stopping.is_set():
                if presence.is_away:
                    await self._intake.give_all_back()
                    self._held = []
                    await self._until_stop(presence.back())
                    continue
                self._looks = True
                await self._pass_and_pause()
        finally:
            await self._intake.give_all_back()

    async def _pass_and_pause(self) -> None:
        may_be_asked = busy = False
        try:
            done = await self._pass(self._poll.wait)
            if done is None:
                return  # the poll ended without a message: the next poll follows
            may_be_asked, busy = done.drained or done.out_of_turn, done.busy
            reason = done.over or next(iter(done.skipped.values()), "nothing was delivered")
            # Queues that wait for each other have not failed: longer pauses would only delay both.
            progressed = done.progressed or (done.out_of_turn and not done.uncompleted)
            self._order.unread()  # messages that arrive during the pause are not seen
        except TransportError as error:
            self.errors += 1
            reason, progressed = str(error), False
            kind = failure_of(error).kind
            busy = kind is Kind.BUSY
            if kind is Kind.NOT_FOUND:
                self._order.is_gone()
            else:  # lanes of the other queues wait: unread messages here may be earlier
                self._order.unread()
        if self._shared.presence.is_away:
            return  # `Presence.watch` makes the pauses
        pause_s = max(self._pauses.after(progressed), BUSY_WAIT_S if busy else 0.0)
        if (busy or not progressed) and not self._stopping.is_set():
            self._shared.publish(PumpPaused(self.queue, reason, pause_s))
        await self._rest(pause_s, for_all=busy or not may_be_asked)

    async def _rest(self, pause_s: float, *, for_all: bool) -> None:
        """Pause; unless `for_all`, only until lanes of other queues wait for a look at this one."""
        self._looks = False
        self._order.is_awaited()  # forget earlier waits
        while pause_s > 0 and not self._stopping.is_set():
            step_s = pause_s if for_all else min(pause_s, LINGER_S)
            await self._until_stop(asyncio.sleep(step_s))
            pause_s -= step_s
            if not for_all and self._order.is_awaited():
                return

    async def _until_stop(self, wait: Coroutine[Any, Any, T]) -> T | None:
        return await first_of(wait, self._stopping.wait())

    # ── a single drain ──

    async def run_once(self, wait_s: float, *, later: bool = False) -> None:
        """Move the messages that are there now, until none arrives for `wait_s`. Raises TransportError.

        The first message may take longer, FIRST_WAIT_S: the link is new, and the peer may be far away or busy.
        Blocked messages stay in the queue, and are no longer locked when this returns. With `later`, messages that
        arrive meanwhile are moved too, and blocked ones stay locked: there will be another drain. Without `later` the
        drain ends however fast others fill the queue.
        """
        self._linger_s, self._until_ms = wait_s, None
        self._order.hides_nothing()
        self._held, self._looks = [], False
        began_ms = self._shared.wall_ms()
        waits_s = iter([max(wait_s, FIRST_WAIT_S)])

        async def take() -> list[ReceivedMessage]:
            link = await self._intake.open()
            batch = await self._until_stop(self._intake.receive(link, next(waits_s, wait_s))) or []
            if self._until_ms is None and not later:
                # The first messages were there before the drain, even if by our clock they came later.
                self._until_ms = max([began_ms, *[enqueued_ms_of(message.payload) or 0 for message in batch]])
            return batch

        try:
            while not (self._stopping.is_set() or self._shared.presence.is_away):
                done = await self._pass(take)
                if done is None or done.drained or done.caught_up or done.over is not None or not done.progressed:
                    return
        finally:
            self._order.is_gone()
            if later and not self._shared.presence.is_away:
                await self._intake.leave()
            else:
                await self._intake.give_all_back()

    # ── one pass ──

    async def _pass(self, first: Callable[[], Awaitable[list[ReceivedMessage]]]) -> Pass | None:
        """Make one pass; None when no message arrived."""
        batch = await first()
        if not batch:
            return None
        with telemetry.span("syphon", {telemetry.DESTINATION: self.queue}):
            return await self._pass_from(batch)

    async def _pass_from(self, batch: list[ReceivedMessage]) -> Pass:
        self._this = this = Pass()
        loads = Loads(lambda trip, items: self._move(trip, items, this), self._size)
        this.began = self._shared.clock()
        try:
            while batch:
                await self._start(batch, this, loads)
                over = this.over is not None or this.caught_up or self._stopping.is_set()
                long_s = CHANCE_S if this.skipped else PASS_MAX_S
                if (
                    over
                    or self._shared.presence.is_away
                    or (not this.early and self._shared.clock() - this.began >= long_s)
                ):
                    break
                batch = await self._more(this, loads)
            await loads.all_home()
        finally:
            await loads.cancel()
            await self._end_pass(this)
        return this

    async def _end_pass(self, this: Pass) -> None:
        if this.early and (self._stopping.is_set() or not self._order.may_hide):
            await self._give_early_back(this)
        this.hold_early()
        if this.uncompleted or self._shared.presence.is_away:
            await self._intake.give_all_back()
            if self._looks:
                self._held, this.held = [], []
        else:
            # When no message could be delivered, the next pass would only fetch the same messages again.
            kept = not (this.delivered or this.caught_up or self._stopping.is_set())
            link = self._intake.link
            fetched = await self._intake.close(keep_fetched=kept)
            if fetched and link is not None:
                self._hold_fetched(fetched, link, this)
        self._count(this)

    def _hold_fetched(self, fetched: list[ReceivedMessage], link: MeteredLink, this: Pass) -> None:
        trip, opened = self._trip(fetched, link, this), self._mover.open(fetched)
        trip.hold(opened.items + opened.lanes)
        trip.keep([place for place, _ in opened.spoiled] + [item.place for item in opened.at_home])

    def _trip(self, batch: list[ReceivedMessage], link: MeteredLink, this: Pass) -> Trip:
        locks_end = self._shared.clock() + self._size.lock_s
        link.locked(batch, locks_end)
        return Trip(self._shared, self.queue, batch, link, this, locks_end, self._trust)

    async def _start(self, batch: list[ReceivedMessage], this: Pass, loads: Loads) -> None:
        link = self._intake.link  # read before the first await: delivery ids are valid on this link only
        assert link is not None
        if self._until_ms is not None:
            batch = await self._without_later(link, batch, this, self._until_ms)
        opened = self._mover.open(batch)
        if opened.locked_until_ms is not None:
            self._size.locked_for((opened.locked_until_ms - self._shared.wall_ms()) / 1000)
        locks_end = self._shared.clock() + self._size.lock_s
        trip = self._trip(batch, link, this)
        too_early = self._order.are_too_early(this, opened)
        self._order.saw(opened, too_early=too_early)
        if opened.spoiled:
            await trip.dead_letter_spoiled(opened.spoiled)  # first: other messages of their lanes may wait for them
        if opened.at_home:
            await trip.complete_known(opened.at_home)  # first: when this fails, no message is sent
        if opened.items:
            await loads.add(trip, opened.items)
        if too_early:
            this.early.append((trip, opened.lanes))
            this.held_on_link += len(opened.lanes)
        elif opened.lanes:
            await loads.all_home()
            in_turn = await self._order.move(self._mover, trip, opened.lanes, locks_end, self._stopping)
            this.out_of_turn = this.out_of_turn or not in_turn
        if not this.delivered:
            await loads.all_home()  # while no message can be delivered, receiving ahead would only cost operations

    async def _without_later(
        self, link: MeteredLink, batch: list[ReceivedMessage], this: Pass, until_ms: int
    ) -> list[ReceivedMessage]:
        """Release messages that arrived too late for a single drain, and return the others.

        The drain is over when a whole batch arrived too late: a partitioned queue may mix early and late messages.
        """
        later = [message for message in batch if (enqueued_ms_of(message.payload) or 0) > until_ms]
        if not later:
            return batch
        this.caught_up = len(later) == len(batch)
        try:
            await link.give_back(later)
        except TransportError as error:
            logger.debug("%s: late messages come back when their locks run out: %s", self.queue, error)
        ids = {message.delivery_id for message in later}
        return [message for message in batch if message.delivery_id not in ids]

    async def _give_early_back(self, this: Pass) -> None:
        """Release early messages, and those that the link has fetched meanwhile.

        When the locks of hidden messages have ended, all messages are received again in their order.
        """
        link = self._intake.link
        if link is not None:
            early = [message for trip, items in this.early for message in trip.received_on(link, items)]
            try:
                await link.give_back(early + await self._intake.rest())
                this.early = [(trip, items) for trip, items in this.early if not trip.received_on(link, items)]
            except TransportError as error:
                logger.debug("%s: early messages come back when their locks run out: %s", self.queue, error)
                if not (isinstance(error, Refused) and error.condition == LOCK_LOST):  # then they are back already
                    self._order.hides()
        this.hold_early()
        await self._intake.close()
        this.held_on_link, this.began = 0, self._shared.clock()

    async def _move(self, trip: Trip, items: list[Item], this: Pass) -> None:
        began, before = self._shared.clock(), this.delivered
        await self._mover.move(trip, self._mover.in_turns(items))
        self._size.moved(this.delivered - before, self._shared.clock() - began)

    def _count(self, this: Pass) -> None:
        self._this = None
        self._moved += this.delivered
        self._dead_lettered += this.dead_lettered
        self.errors += this.errors
        self._held = self._still_held() + this.held
        if this.uncompleted and not self._told_uncompleted:
            self._told_uncompleted = True
            self._shared.publish(NotCompleted(self.queue, self.uncompleted, this.uncompleted_because))
        elif self._trust.proven:
            self._told_uncompleted = False

    # ── receiving ──

    async def _more(self, this: Pass, loads: Loads) -> list[ReceivedMessage]:
        """Return the next messages of a pass; an empty list when it is over."""
        try:
            batch = await self._next(this, loads)
        except TransportError as error:
            this.over = this.over or str(error)
            this.busy = this.busy or failure_of(error).kind is Kind.BUSY
            this.errors += 1
            return []
        if not batch and not this.early:
            this.drained = True
            self._order.seems_empty()
        return batch

    async def _next(self, this: Pass, loads: Loads) -> list[ReceivedMessage]:
        """Receive the next messages; while early messages are held, wait until none can be hidden before them."""
        while True:
            if this.early and not self._order.may_hide:
                await loads.all_home()  # loads are settled on the link that is closed now
                await self._give_early_back(this)
            if this.held_on_link >= HELD_MAX:
                if rest := await self._intake.rest():
                    return rest  # releasing and receiving them again would be billed again
                await loads.all_home()
                this.hold_early()
                await self._intake.close()
                this.held_on_link = 0
            link = await self._intake.open()
            wait_s = self._linger_s
            if this.early:  # our own locks must not end while we wait for those of others
                wait_s = min(wait_s, max(self._order.hidden_until - self._shared.clock(), 0.0))
            batch = await self._intake.receive(link, wait_s)
            if batch or not this.early or self._stopping.is_set() or self._shared.presence.is_away:
                return batch

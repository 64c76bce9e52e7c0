"""Makes passes over one backlog queue: a long poll, batch after batch while there are messages, a pause.

Each batch takes four steps: receive (`receive.py`) → decide (`decide/batch.py`) → send (`send.py`) → settle
(`settle.py`). A pass ends when no more messages arrive, when every destination should get another chance, or when the
queue or the whole primary has a failure. While the pump pauses, only messages that wait for their destination are
locked.

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
from pairbus.syphon.decide.batch import Opened, open_batch
from pairbus.syphon.decide.pace import CHANCE_S, PASS_MAX_S, BatchSize, Pauses
from pairbus.syphon.metered_link import MeteredLink
from pairbus.syphon.order import LaneOrder
from pairbus.syphon.receive import LINGER_S, Intake, first_of
from pairbus.syphon.send import AHEAD, Sending, Shipments
from pairbus.syphon.settle import Settling
from pairbus.syphon.shared import Batch, Held, LaneKeeper, Pass, SyphonState, count_of
from pairbus.transport import ReceivedMessage, TransportError
from pairbus.transport.errors import failure_of

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
        self._results: Pass | None = None
        self._shared = shared
        self._stopping = stopping
        self._opener = shared.new_opener()
        self._size = BatchSize(shared.settings.batch_max, batches=AHEAD + 2)  # + 2: one gathers, one is fetched
        self._intake = Intake(shared, queue, sub_queue, self._size, stopping, is_new=is_new)
        shared.intakes[queue] = self._intake
        self._settling = Settling(shared, queue)
        self._sending = Sending(shared, queue, self._settling)
        self._told_uncompleted = False
        self._pauses = Pauses(shared.settings.retry_interval_s)
        self._linger_s = LINGER_S
        self._until_ms: int | None = None
        "Time at which a single drain began, by the clock of the queue."

    def __repr__(self) -> str:
        return f"<Pump {self.queue} moved={self.moved} blocked={self.blocked} errors={self.errors}>"

    @property
    def moved(self) -> int:
        return self._moved + (self._results.delivered if self._results is not None else 0)

    @property
    def dead_lettered(self) -> int:
        return self._dead_lettered + (self._results.dead_lettered if self._results is not None else 0)

    @property
    def uncompleted(self) -> int:
        """Number of messages that are at home and still in the queue."""
        return self._shared.at_home.count(self.queue)

    @property
    def blocked(self) -> int:
        """Number of messages that wait for their destination; in a single drain, those of all its passes."""
        return count_of(self._still_held()) + (0 if self._results is None else count_of(self._results.held))

    @property
    def _is_ending(self) -> bool:
        """True when no more messages are wanted: the syphon stops, or the primary is away."""
        return self._stopping.is_set() or self._shared.presence.is_away

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
                    await self._give_all_back()
                    await self._until_stop(presence.back())
                    continue
                self._looks = True
                await self._pass_and_pause()
        finally:
            await self._intake.give_all_back()

    async def _give_all_back(self) -> None:
        await self._intake.give_all_back()
        self._held = []

    async def _pass_and_pause(self) -> None:
        may_be_asked = busy = False
        try:
            results = await self._pass(self._intake.poll)
            if results is None:
                return  # the poll ended without a message: the next poll follows
            may_be_asked, busy = results.drained or results.out_of_turn, results.busy
            reason = results.over or next(iter(results.skipped.values()), "nothing was delivered")
            # Queues that wait for each other, or for old locks, have not failed: longer pauses would only delay them.
            waited = results.out_of_turn or (results.too_early and results.over is None)
            progressed = results.progressed or (waited and not results.uncompleted)
            if results.too_early and results.over is None and not self._intake.may_hide:
                return  # its messages were released, and are received again in their order
        except TransportError as error:
            self.errors += 1
            reason, progressed = str(error), False
            kind = failure_of(error).kind
            busy = kind is Kind.BUSY
            self._intake.is_gone = kind is Kind.NOT_FOUND
        if self._shared.presence.is_away:
            return  # `Presence.watch` makes the pauses
        pause_s = max(self._pauses.after(progressed), BUSY_WAIT_S if busy else 0.0)
        if (busy or not progressed) and not self._stopping.is_set():
            self._shared.publish(PumpPaused(self.queue, reason, pause_s))
        await self._rest(pause_s, for_all=busy or not may_be_asked, is_asked_for=busy)

    async def _rest(self, pause_s: float, *, for_all: bool, is_asked_for: bool) -> None:
        """Pause; unless `for_all`, only until lanes of other queues wait for a look at this one.

        A pause that the secondary asked for lasts when another pump finds the primary away; any other ends then.
        """
        time, presence = asyncio.get_running_loop().time, self._shared.presence
        self._looks = False
        self._is_awaited()  # forget earlier waits
        ends = time() + pause_s
        while (left_s := ends - time()) > 0 and not self._stopping.is_set():
            if presence.is_away:
                if is_asked_for:
                    await self._give_all_back()
                    await self._until_stop(asyncio.sleep(ends - time()))
                return
            step_s = left_s if for_all else min(left_s, LINGER_S)
            await first_of(asyncio.sleep(step_s), self._stopping.wait(), presence.gone())
            if not for_all and self._is_awaited():
                return

    def _is_awaited(self) -> bool:
        return self._shared.order is not None and self._shared.order.is_awaited(self.queue)

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
        self._intake.hidden_since = float("-inf")  # a single drain does not wait for locks of others
        self._held, self._looks = [], False
        began_ms = self._shared.wall_ms()
        waits_s = iter([max(wait_s, FIRST_WAIT_S)])

        async def take() -> list[ReceivedMessage]:
            link = await self._intake.open()
            received = await self._until_stop(self._intake.receive(link, next(waits_s, wait_s))) or []
            if self._until_ms is None and not later:
                # The first messages were there before the drain, even if by our clock they came later.
                self._until_ms = max([began_ms, *[enqueued_ms_of(message.payload) or 0 for message in received]])
            return received

        try:
            while not self._is_ending:
                results = await self._pass(take)
                if (
                    results is None
                    or results.drained
                    or results.caught_up
                    or results.over is not None
                    or not results.progressed
                ):
                    return
        finally:
            self._intake.is_gone = True
            if later and not self._shared.presence.is_away:
                await self._intake.leave()
            else:
                await self._intake.give_all_back()

    # ── one pass ──

    async def _pass(self, first: Callable[[], Awaitable[list[ReceivedMessage]]]) -> Pass | None:
        """Make one pass; None when no message arrived."""
        received = await first()
        if not received:
            return None
        with telemetry.span("syphon", {telemetry.DESTINATION: self.queue}):
            return await self._pass_from(received)

    async def _pass_from(self, received: list[ReceivedMessage]) -> Pass:
        self._results = results = Pass()
        shipments, began = Shipments(self._sending, self._size), self._shared.clock()
        try:
            while received:
                await self._move(received, results, shipments)
                if results.over is not None or results.caught_up or self._is_ending:
                    break
                long_s = CHANCE_S if results.skipped else PASS_MAX_S
                if not results.too_early and self._shared.clock() - began >= long_s:
                    break
                received = await self._receive_more(results, shipments)
            await shipments.all_home()
        finally:
            await shipments.cancel()
            await self._end_pass(results)
        return results

    async def _move(self, received: list[ReceivedMessage], results: Pass, shipments: Shipments) -> None:
        """Take one batch through decision, sends and settlements."""
        shared, link = self._shared, self._intake.link  # read before the first await: a place is valid on this link
        assert link is not None
        if self._until_ms is not None:
            received = await self._without_later(link, received, results, self._until_ms)
        opened = self._open(received)
        if opened.locked_until_ms is not None:
            self._size.locked_for((opened.locked_until_ms - shared.wall_ms()) / 1000)
        batch = self._batch_of(received, link, results)
        order = self._order_of(opened)
        lanes = [] if order is None else order.saw(self.queue, opened, batch)
        if opened.marked:
            self._sending.failures.note_marks(opened.marked)
        if opened.spoiled:
            await self._settling.dead_letter_spoiled(batch, opened.spoiled)  # first: their lanes may wait for them
        if opened.at_home:
            await self._settling.complete_known(batch, opened.at_home)  # first: when this fails, no message is sent
        if opened.items:
            await shipments.add(batch, opened.items)
        if order is not None and lanes:
            await shipments.all_home()
            if not await order.send_in_order(self.queue, self._sending, batch, lanes, self._stopping.is_set):
                results.out_of_turn = True
        if not results.delivered:
            await shipments.all_home()  # while no message can be delivered, receiving ahead would only cost operations

    def _open(self, received: list[ReceivedMessage]) -> Opened:
        shared, queue = self._shared, self.queue
        at_home, ttl_policy = shared.at_home, shared.settings.ttl_policy
        is_at_home = (lambda identity: at_home.knows(queue, identity)) if at_home.count(queue) else None
        return open_batch(received, self._opener, ttl_policy, shared.wall_ms(), is_at_home)

    def _batch_of(self, received: list[ReceivedMessage], link: MeteredLink, results: Pass) -> Batch:
        locks_end = self._shared.clock() + self._size.lock_s
        link.locked(received, locks_end)
        return Batch(link, results, {message.delivery_id: message for message in received}, locks_end)

    def _order_of(self, opened: Opened) -> LaneKeeper | None:
        if self._shared.order is None and opened.lanes:
            self._shared.order = LaneOrder(self._shared)
        return self._shared.order

    async def _without_later(
        self, link: MeteredLink, received: list[ReceivedMessage], results: Pass, until_ms: int
    ) -> list[ReceivedMessage]:
        """Release messages that arrived too late for a single drain, and return the others.

        The drain is over when a whole batch arrived too late: a partitioned queue may mix early and late messages.
        """
        later = [message for message in received if (enqueued_ms_of(message.payload) or 0) > until_ms]
        if not later:
            return received
        results.caught_up = len(later) == len(received)
        try:
            await link.give_back(later)
        except TransportError as error:
            logger.debug("%s: late messages come back when their locks run out: %s", self.queue, error)
        ids = {message.delivery_id for message in later}
        return [message for message in received if message.delivery_id not in ids]

    # ── receiving more, and the end of a pass ──

    async def _receive_more(self, results: Pass, shipments: Shipments) -> list[ReceivedMessage]:
        """Return the next messages of a pass; an empty list when it is over."""
        try:
            received = await self._next(results, shipments)
        except TransportError as error:
            results.over = results.over or str(error)
            results.busy = results.busy or failure_of(error).kind is Kind.BUSY
            results.errors += 1
            return []
        if not received and not results.too_early:
            results.drained = self._intake.is_empty = True
            if self._shared.order is not None:
                self._shared.order.read_to_end(self.queue)
        return received

    async def _next(self, results: Pass, shipments: Shipments) -> list[ReceivedMessage]:
        """Receive the next messages. When it is too early for lanes, wait until no message can be hidden."""
        intake = self._intake
        if results.too_early and not intake.may_hide:
            return []
        if results.held_on_link >= HELD_MAX:
            if fetched := await intake.rest():
                return fetched  # releasing and receiving them again would be billed again
            await shipments.all_home()
            await intake.close()
            results.held_on_link = 0
        while True:
            link, wait_s = await intake.open(), self._linger_s
            if results.too_early:  # our own locks must not end while we wait for those of others
                wait_s = min(wait_s, max(intake.hidden_until - self._shared.clock(), 0.0))
            received = await intake.receive(link, wait_s)
            if received or self._is_ending or not (results.too_early and intake.may_hide):
                return received

    async def _end_pass(self, results: Pass) -> None:
        if results.too_early or results.uncompleted or self._shared.presence.is_away:
            await self._intake.give_all_back()
            if self._looks:
                self._held, results.held = [], []
        else:
            # When no message could be delivered, the next pass would only fetch the same messages again.
            keeps_fetched = not (results.delivered or results.caught_up or self._stopping.is_set())
            link = self._intake.link
            fetched = await self._intake.close(keep_fetched=keeps_fetched)
            if fetched and link is not None:
                self._hold_fetched(fetched, link, results)
        self._count(results)

    def _hold_fetched(self, fetched: list[ReceivedMessage], link: MeteredLink, results: Pass) -> None:
        batch, opened = self._batch_of(fetched, link, results), self._open(fetched)
        self._settling.hold_places(batch, [message.delivery_id for message in fetched])
        order = self._order_of(opened)
        if order is not None:
            order.hold(batch, opened.lanes)

    def _count(self, results: Pass) -> None:
        self._results = None
        self._moved += results.delivered
        self._dead_lettered += results.dead_lettered
        self.errors += results.errors
        self._held = self._still_held() + results.held
        if results.uncompleted and not self._told_uncompleted:
            self._told_uncompleted = True
            self._shared.publish(NotCompleted(self.queue, self.uncompleted, results.uncompleted_because))
        elif self._settling.is_proven:
            self._told_uncompleted = False

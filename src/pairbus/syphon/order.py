"""Order (`ordered=True`): the state of one queue, for the other queues, and messages that may be hidden by locks.

A lane is a sender's messages of one session. Its messages may be in several queues, and a syphon that was killed may
have left earlier ones locked. Until these locks end, the first visible message may not be the first one, and a queue
that seems empty may not be empty.
"""

from __future__ import annotations

import asyncio

from pairbus.syphon.decide.pace import BatchSize
from pairbus.syphon.decide.relay import NOTHING_KNOWN, Item, moment_of
from pairbus.syphon.mover import Mover, Opened
from pairbus.syphon.shared import Pass, SyphonState
from pairbus.syphon.trip import Trip

LOOK_S = 0.02  # between two looks at the state of the other queues


class QueueOrder:
    """State of one queue in the order of all queues. A queue without ordered messages only tells its position."""

    def __init__(self, shared: SyphonState, queue: str, size: BatchSize, *, is_new: bool) -> None:
        """Begin; with `is_new` the queue has just been created, and no syphon had a link to it before."""
        self._shared = shared
        self._queue = queue
        self._size = size
        self._last = NOTHING_KNOWN
        "Lower bound for the time of lane messages that are still to be received, except locked ones."
        self._hidden_since = shared.clock() if shared.may_follow and not is_new else float("-inf")
        "Time at which a link to the queue was last lost with locked messages."

    @property
    def hidden_until(self) -> float:
        """Time until which another syphon or a lost link may hold earlier messages locked."""
        return self._hidden_since + self._size.lock_longest_s

    @property
    def may_hide(self) -> bool:
        return self._shared.clock() < self.hidden_until

    def hides(self) -> None:
        """Note that messages of this queue stay locked where this pump cannot settle them."""
        self._hidden_since = self._shared.clock()

    def hides_nothing(self) -> None:
        """Do not wait for locks of others: a single drain ends when no message arrives."""
        self._hidden_since = float("-inf")

    # ── state for the other queues ──

    def unread(self) -> None:
        """Tell that messages may arrive in the queue that this pump does not see for a while."""
        self._shared.tide.reached(self._queue, self._last)

    def is_gone(self) -> None:
        """Tell that other queues need not wait for this one: it is read to its end, or does not exist."""
        self._shared.tide.empty(self._queue)

    def seems_empty(self) -> None:
        if self.may_hide:
            self.unread()
        else:
            self._last = max(self._last, self._shared.tide.now)
            self.is_gone()

    def is_awaited(self) -> bool:
        """Tell whether lanes of other queues have waited for a look at this queue since the last call."""
        return self._shared.tide.was_awaited(self._queue)

    def saw(self, opened: Opened, *, too_early: bool) -> None:
        """Tell the time of a batch. Messages without order never set the time back: they may be received again."""
        tide = self._shared.tide
        for item in opened.lanes or opened.items[-1:]:
            tide.saw(moment_of(item.home))
        if opened.lanes and not too_early:
            self._reached(opened.lanes)
        elif opened.lanes or opened.items:  # there may be messages of lanes behind them, and hidden ones before them
            if not too_early and not self.may_hide:
                self._last = max(self._last, moment_of(opened.items[0].home))
            self.unread()

    def _reached(self, lanes: list[Item]) -> None:
        self._last = moment_of(lanes[0].home)
        self.unread()

    # ── messages in order ──

    def are_too_early(self, this: Pass, opened: Opened) -> bool:
        """Tell whether earlier messages of the same lanes may be hidden."""
        return bool(opened.lanes) and (bool(this.early) or self.may_hide)

    async def move(
        self, mover: Mover, trip: Trip, items: list[Item], locks_end: float, stopping: asyncio.Event
    ) -> bool:
        """Move messages piece by piece, while no other queue can have an earlier message of the same lane; False when
        some are left to wait for another queue."""
        shared = self._shared
        if shared.pumps > 1:
            await asyncio.sleep(LOOK_S)  # so that other queues can tell first what they have just received
        while items:
            self._reached(items)
            count = shared.tide.may_go(self._queue, items)
            if count:
                await mover.move(trip, mover.in_turns(items[:count]))
                items = items[count:]
            elif shared.clock() >= locks_end or stopping.is_set() or shared.presence.is_away:
                trip.stop("an earlier message may be in another queue, and the locks of the later ones ran out")
                trip.hold(items)
                return False
            else:
                await asyncio.sleep(LOOK_S)
        return True

"""Order (`ordered=True`): moves messages of lanes home in the order in which they were sent. A lane is a sender's
messages of one session. The object exists from the first such message on; a syphon without one has no order.

Laws of this file.
 1. While messages may be hidden by locks of another syphon or of a lost link, no message of a lane is sent: the first
    visible one may not be the first. The pass ends when nothing can be hidden, and releases all messages; they are
    received again in their order.
 2. A message of a lane is sent when no other queue can still have an earlier one: a sender whose backlog queue failed
    goes on with another one.
 3. A message of a lane that stays in its queue keeps later ones of its lane there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairbus.syphon.decide.batch import Item, Opened
from pairbus.syphon.decide.lanes import Lanes, Tide
from pairbus.syphon.send import Sending
from pairbus.syphon.shared import Batch, SyphonState

LOOK_S = 0.02  # between two looks at the state of the other queues


class LaneOrder:
    """Order of the lanes of all queues of one syphon."""

    def __init__(self, shared: SyphonState) -> None:
        self._shared = shared
        self._lanes = Lanes()
        self._tide = Tide()

    def saw(self, queue: str, opened: Opened, batch: Batch) -> list[Item]:
        """Note a batch; return its messages of lanes, unless it is too early for them."""
        may_hide = self._shared.intakes[queue].may_hide
        self._tide.saw(opened.lanes or opened.items[-1:])
        for _, spoiled in opened.spoiled:
            if spoiled.home is not None:
                self._lanes.gone(spoiled.home)  # messages of its lane need not wait for it
        if not opened.lanes:
            if opened.items and not may_hide:
                self._tide.passed(queue, opened.items[0])
            return []
        if batch.results.too_early or may_hide:
            batch.results.too_early = True
            batch.results.held_on_link += len(opened.lanes)
            return []
        self._tide.read_to(queue, opened.lanes[0])
        return opened.lanes

    async def send_in_order(
        self, queue: str, sending: Sending, batch: Batch, items: list[Item], is_over: Callable[[], bool]
    ) -> bool:
        """Send messages piece by piece, while no other queue can have an earlier message of the same lane."""
        shared = self._shared
        if len(shared.intakes) > 1:
            await asyncio.sleep(LOOK_S)  # so that other queues can tell first what they have just received
        while items:
            self._tide.read_to(queue, items[0])
            count = self._tide.may_go(items, queue, self._others(queue))
            if count:
                await self._send(sending, batch, items[:count])
                items = items[count:]
            elif shared.clock() >= batch.locks_end or is_over() or shared.presence.is_away:
                reason = "an earlier message may be in another queue, and the locks of the later ones ran out"
                sending.settling.stop(batch, reason)
                sending.settling.hold(batch, items)
                self.hold(batch, items)
                return False
            else:
                await asyncio.sleep(LOOK_S)
        return True

    async def _send(self, sending: Sending, batch: Batch, items: list[Item]) -> None:
        """Send messages whose lanes have no earlier one that waits. The outcome says for which later ones wait."""
        ready = self._lanes.ready(items, self._shared.clock())
        if len(ready) < len(items):
            places = {item.place for item in ready}
            sending.settling.hold(batch, [item for item in items if item.place not in places])
        if ready:
            await sending.send_home(batch, ready)
        self.hold(batch, [item for item in items if item.place in batch.waiting])
        for item in ready:
            if item.place not in batch.waiting:
                self._lanes.gone(item.home)

    def hold(self, batch: Batch, items: list[Item]) -> None:
        """Let later messages of the same lanes wait for messages that stay locked."""
        now = self._shared.clock()
        for item in items:
            self._lanes.waits(item.home, batch.locks_end, now)

    def _others(self, queue: str) -> list[str]:
        """Return the queues that may have an earlier message: all but the empty ones."""
        return [
            other
            for other, intake in self._shared.intakes.items()
            if other != queue and not (intake.is_gone or (intake.is_empty and not intake.may_hide))
        ]

    def read_to_end(self, queue: str) -> None:
        if not self._shared.intakes[queue].may_hide:
            self._tide.read_to_end(queue)

    def is_awaited(self, queue: str) -> bool:
        return self._tide.was_awaited(queue)

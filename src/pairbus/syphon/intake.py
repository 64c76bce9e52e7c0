"""The links over which one pump receives from its queue: opened, replaced, and ended with no message left locked."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from pairbus.syphon.decide.pace import BatchSize
from pairbus.syphon.link import MeteredLink
from pairbus.syphon.order import QueueOrder
from pairbus.syphon.shared import SyphonState
from pairbus.transport import ReceivedMessage, TransportError

logger = logging.getLogger("pairbus.syphon")

GIVE_BACK_S = 5.0  # to release all messages that a pump holds, when it ends or the primary is away


class Intake:
    """The present link of a pump, and earlier ones on which messages are still locked."""

    def __init__(
        self,
        shared: SyphonState,
        queue: str,
        sub_queue: Literal["dead-letter"] | None,
        size: BatchSize,
        order: QueueOrder,
    ) -> None:
        self._shared = shared
        self._queue = queue
        self._sub_queue = sub_queue
        self._size = size
        self._order = order
        self.link: MeteredLink | None = None
        self._parked: list[MeteredLink] = []

    @property
    def is_open(self) -> bool:
        return self.link is not None

    def next_size(self) -> int:
        """Return the number of messages to take, and allow the link to fetch as many ahead."""
        shared = self._shared
        rate = shared.budget.rate_per_s(shared.clock())
        size = self._size.next(None if rate is None else rate / shared.pumps)
        if self.link is not None:
            self.link.allow(size)
        return size

    async def open(self) -> MeteredLink:
        """Return the present link, or a new one when there is none or it was lost."""
        if self.link is not None and self.link.over is not None:
            self._lost()
        if self.link is None:
            receiver = await self._shared.secondary.receiver(
                self._queue, credit=self.next_size(), sub_queue=self._sub_queue
            )
            self.link = MeteredLink(self._shared, self._queue, receiver)
        return self.link

    async def receive(self, link: MeteredLink, timeout_s: float) -> list[ReceivedMessage]:
        return await link.receive(self.next_size(), timeout_s, self._size.lock_s)

    async def rest(self) -> list[ReceivedMessage]:
        """Return the messages that the present link has fetched ahead; no more will arrive on it."""
        return [] if self.link is None else await self.link.rest(self._size.lock_s)

    async def close(self, *, keep_fetched: bool = False) -> list[ReceivedMessage]:
        """End the present link. Messages that were fetched ahead are released, or returned and stay locked."""
        if self.link is not None and self.link.over is not None:
            self._lost()
        link, self.link = self.link, None
        if link is None:
            return []
        self._parked.append(link)  # where `give_all_back` finds it when this call is cancelled
        fetched: list[ReceivedMessage] = []
        try:
            fetched = await link.rest(self._size.lock_s)
            if not keep_fetched:
                await link.give_back(fetched)
                fetched = []
        except TransportError as error:
            logger.debug("%s: messages fetched ahead come back when their locks run out: %s", self._queue, error)
            self._order.hides()
            self._parked.remove(link)
            await link.close()
        else:
            await self._close_unused()
        return fetched

    async def _close_unused(self) -> None:
        """Keep links on which messages are locked, so that these can be released; close the others."""
        now, links = self._shared.clock(), self._parked
        self._parked = [each for each in links if each.holds(now)]
        for each in links:
            if each not in self._parked:
                await each.close()

    async def give_all_back(self) -> None:
        """End every link. No message stays locked, if the secondary answers in time.

        A call that is cancelled keeps the links, so that the next one, when the pump ends, releases the rest.
        """
        if self.link is not None and self.link.over is not None:
            self._lost()
        self._parked, self.link = [*self._parked, *([self.link] if self.link else [])], None
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                ended = await asyncio.gather(*[link.end() for link in self._parked])
        except TimeoutError:
            ended = [False]
            await asyncio.gather(*[link.close() for link in self._parked])
        self._parked = []
        if not all(ended):
            self._order.hides()

    async def leave(self) -> None:
        """End every link; held messages stay locked."""
        await self.close()
        parked, self._parked = self._parked, []
        await asyncio.gather(*[link.close() for link in parked])

    def _lost(self) -> None:
        self.link = None
        self._order.hides()

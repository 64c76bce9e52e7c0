"""Step 1, receive: the links over which one pump receives from its queue, and the long poll on them.

A link is opened, replaced when it is lost or has too many held messages, and ended with no message left locked. The
messages go to the pump, which has `decide/batch.py` decide about them; `metered_link.py` has the law of what is locked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

from pairbus.pairing.policy import Kind
from pairbus.syphon.decide.pace import BatchSize
from pairbus.syphon.metered_link import MeteredLink
from pairbus.syphon.shared import SyphonState
from pairbus.transport import ReceivedMessage, TransportError
from pairbus.transport.errors import failure_of

logger = logging.getLogger("pairbus.syphon")

GIVE_BACK_S = 5.0  # to release all messages that a pump holds, when it ends or the primary is away
LINGER_S = 1.0  # wait for further messages of a queue that has just given some
LINK_LIFE_MIN_S = 1.0  # a link that the peer closes sooner was not idle

T = TypeVar("T")


class Intake:
    """The present link of a pump, earlier ones on which messages are still locked, and what can be seen on them."""

    def __init__(
        self,
        shared: SyphonState,
        queue: str,
        sub_queue: Literal["dead-letter"] | None,
        size: BatchSize,
        stopping: asyncio.Event,
        *,
        is_new: bool,
    ) -> None:
        """Begin; with `is_new` the queue has just been created, and no syphon had a link to it before."""
        self._shared = shared
        self._queue = queue
        self._sub_queue = sub_queue
        self._size = size
        self._stopping = stopping
        self.link: MeteredLink | None = None
        self._parked: list[MeteredLink] = []
        self._poll_ends: float | None = None
        self.is_empty = False
        "True while a link waits for messages, and none came for a moment."
        self.is_gone = False
        "True when the queue does not exist, or a single drain of it is over."
        self.hidden_since = shared.clock() if shared.may_follow and not is_new else float("-inf")
        "Time at which messages were last left locked where this pump cannot settle them."

    @property
    def hidden_until(self) -> float:
        """Time until which another syphon or a lost link may hold messages locked."""
        return self.hidden_since + self._size.lock_longest_s

    @property
    def may_hide(self) -> bool:
        return self._shared.clock() < self.hidden_until

    # ── receiving ──

    async def open(self) -> MeteredLink:
        """Return the present link, or a new one when there is none or it was lost."""
        if self.link is not None and self.link.over is not None:
            self._lose()
        if self.link is None:
            receiver = await self._shared.secondary.receiver(
                self._queue, credit=self.next_size(), sub_queue=self._sub_queue
            )
            self.link = MeteredLink(self._shared, self._queue, receiver)
            self.is_gone = False
        return self.link

    def next_size(self) -> int:
        """Return the number of messages to take, and allow the link to fetch as many ahead."""
        shared = self._shared
        rate = shared.budget.rate_per_s(shared.clock())
        size = self._size.next(None if rate is None else rate / shared.pumps)
        if self.link is not None:
            self.link.allow(size)
        return size

    async def receive(self, link: MeteredLink, timeout_s: float) -> list[ReceivedMessage]:
        received = await link.receive(self.next_size(), timeout_s, self._size.lock_s)
        if received:
            self.is_empty = False
        return received

    async def poll(self) -> list[ReceivedMessage]:
        """Wait for messages for the rest of a long poll, until told to stop, or until the primary is away.

        A lost link is opened again, which does not count as another receive.
        """
        shared = self._shared
        if self._poll_ends is None:
            self._poll_ends = shared.clock() + shared.settings.poll_s
        while not self._stopping.is_set():
            opened_at = shared.clock()
            try:
                link = await self.open()
                received = await first_of(
                    self._first(link, self._poll_ends), self._stopping.wait(), shared.presence.gone()
                )
            except TransportError as error:
                await self.close()
                was_idle = shared.clock() - opened_at >= LINK_LIFE_MIN_S and error.silence is None
                if not was_idle or failure_of(error).kind is Kind.BUSY:
                    raise
                logger.info("%s: the link ended within a poll and is opened again: %s", self._queue, error)
                continue
            self._poll_ends = None
            if received is None:
                break
            if not received:
                await self._end_poll(link)
            return received
        return []

    async def _first(self, link: MeteredLink, until: float) -> list[ReceivedMessage]:
        """Return the first messages. A queue that has none for a moment counts as empty."""
        clock = self._shared.clock
        for moment in (min(clock() + LINGER_S, until), until):
            received = await self.receive(link, max(moment - clock(), 0.0))
            if received:
                return received
            self.is_empty = True
        return []

    async def _end_poll(self, link: MeteredLink) -> None:
        """Take the credit back; the next poll is another receive. A peer that does not answer has lost the link."""
        try:
            await link.pause()
        except TransportError as error:
            await self.close()
            if failure_of(error).kind is Kind.BUSY:
                raise
            logger.info("%s: the link ended with a poll and will be opened again: %s", self._queue, error)
        link.meter_empty()

    async def rest(self) -> list[ReceivedMessage]:
        """Return the messages that the present link has fetched ahead; no more will arrive on it."""
        return [] if self.link is None else await self.link.rest(self._size.lock_s)

    # ── ending links ──

    async def close(self, *, keep_fetched: bool = False) -> list[ReceivedMessage]:
        """End the present link. Messages that were fetched ahead are released, or returned and stay locked."""
        if self.link is not None and self.link.over is not None:
            self._lose()
        link, self.link, self.is_empty = self.link, None, False
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
            self.hidden_since = self._shared.clock()
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
            self._lose()
        if self.link is not None:
            self._parked.append(self.link)
        self.link, self.is_empty = None, False
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                ended = await asyncio.gather(*[link.end() for link in self._parked])
        except TimeoutError:
            ended = [False]
            await asyncio.gather(*[link.close() for link in self._parked])
        self._parked = []
        if not all(ended):
            self.hidden_since = self._shared.clock()

    async def leave(self) -> None:
        """End every link; held messages stay locked."""
        await self.close()
        parked, self._parked = self._parked, []
        await asyncio.gather(*[link.close() for link in parked])

    def _lose(self) -> None:
        self.link, self.is_empty = None, False
        self.hidden_since = self._shared.clock()


async def first_of(wait: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, Any]) -> T | None:
    """Return the result of `wait`, or None when one of the `ends` comes first."""
    task, others = asyncio.create_task(wait), [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, *others):
            each.cancel()
        await asyncio.wait([task, *others])

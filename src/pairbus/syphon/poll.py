"""The long poll of one pump: it ends with messages, with its time, when the primary is away, or when told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from pairbus.pairing.policy import Kind
from pairbus.syphon.intake import Intake
from pairbus.syphon.link import MeteredLink
from pairbus.syphon.order import QueueOrder
from pairbus.syphon.shared import SyphonState
from pairbus.transport import ReceivedMessage, TransportError
from pairbus.transport.failures import failure_of

logger = logging.getLogger("pairbus.syphon")

LINGER_S = 1.0  # wait for further messages of a queue that has just given some
LINK_LIFE_MIN_S = 1.0  # a link that the peer closes sooner was not idle

T = TypeVar("T")


class Poll:
    """The wait for the first messages of a pass."""

    def __init__(
        self, shared: SyphonState, queue: str, intake: Intake, order: QueueOrder, stopping: asyncio.Event
    ) -> None:
        self._shared = shared
        self._queue = queue
        self._intake = intake
        self._order = order
        self._stopping = stopping
        self._ends: float | None = None

    async def wait(self) -> list[ReceivedMessage]:
        """Wait for the rest of a long poll. A lost link is opened again, which does not count as another receive."""
        shared = self._shared
        if self._ends is None:
            self._ends = shared.clock() + shared.settings.poll_s
        while not self._stopping.is_set():
            opened_at = shared.clock()
            try:
                link = await self._intake.open()
                batch = await first_of(self._take(link, self._ends), self._stopping.wait(), shared.presence.gone())
            except TransportError as error:
                await self._intake.close()
                self._order.unread()  # no longer empty: the link may have fetched messages
                was_idle = shared.clock() - opened_at >= LINK_LIFE_MIN_S and error.silence is None
                if not was_idle or failure_of(error).kind is Kind.BUSY:
                    raise
                logger.info("%s: the link ended within a poll and is opened again: %s", self._queue, error)
                continue
            self._ends = None
            if batch is None:
                break
            if not batch:
                await self._end(link)
            return batch
        return []

    async def _end(self, link: MeteredLink) -> None:
        """Take the credit back; the next poll is another receive. A peer that does not answer has lost the link."""
        try:
            await link.pause()
        except TransportError as error:
            await self._intake.close()
            if failure_of(error).kind is Kind.BUSY:
                raise
            logger.info("%s: the link ended with a poll and will be opened again: %s", self._queue, error)
        link.meter_empty()

    async def _take(self, link: MeteredLink, until: float) -> list[ReceivedMessage]:
        """Return the first messages. A queue that has none for a moment counts as empty, for lanes of other queues."""
        clock = self._shared.clock
        for moment in (clock() + LINGER_S, self._order.hidden_until, until):
            batch = await self._intake.receive(link, max(min(moment, until) - clock(), 0.0))
            if batch:
                return batch
            self._order.seems_empty()
        return []


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

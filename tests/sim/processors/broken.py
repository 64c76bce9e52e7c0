"""Two ways for a processor to be wrong, each a small change of the genuine code, to see that the simulation notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pairbus.client.processing.decide.locks import Due, HeldLocks
from pairbus.client.processing.feed import COMPLETE, Feed
from pairbus.client.processing.held import HeldMessage


@contextmanager
def completes_first() -> Iterator[None]:
    """The original is completed before its copy for the next attempt is accepted."""

    async def retry(feed: Feed, work: HeldMessage, delay_s: float) -> None:
        await feed._settle(work, COMPLETE)
        await feed._schedule_copy(work, delay_s)
        feed._free(work)

    with patch.object(Feed, "_retry", retry):
        yield


@contextmanager
def believes_in_locks() -> Iterator[None]:
    """A lock counts as held until a renewal is refused, however long nobody has answered."""
    genuine = HeldLocks.due

    def due(locks: HeldLocks[Any], now: float) -> Due[Any]:
        found = genuine(locks, now)
        return Due(found.renew, [])

    with patch.object(HeldLocks, "due", due):
        yield


BROKEN = {
    "completes first": (completes_first, "lost"),
    "believes in locks": (believes_in_locks, "not told"),
}
"Wrong code, and the promise that it breaks."

"""Tells over HTTP whether a store can write now: by a real write, at most one a second."""

from __future__ import annotations

import asyncio

from pairbus.broker.store import Store
from pairbus.errors import StoreError

FRESH_S = 1.0
WAIT_S = 5.0  # clients have time-outs too, and a disk that takes so long cannot be sent to


class Health:
    """Health of one store; all requests within a second get one answer."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._asked_at = 0.0
        self._answer: asyncio.Future[StoreError | None] | None = None

    async def trouble(self) -> str | None:
        """Return why messages cannot be stored now; None when they can."""
        answer = self._answer
        if answer is None or (answer.done() and self._loop.time() - self._asked_at >= FRESH_S):
            answer = self._answer = self._loop.create_future()
            self._asked_at = self._loop.time()
            self._store.probe(answer.set_result)
        left_s = self._asked_at + WAIT_S - self._loop.time()
        await asyncio.wait([answer], timeout=max(left_s, 0.0))
        if not answer.done():
            return f"The store has not written anything for {self._loop.time() - self._asked_at:.0f} seconds."
        error = answer.result()
        return None if error is None else str(error)

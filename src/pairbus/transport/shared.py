"""Work for which several callers wait: it runs once, and each caller gets the result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from pairbus.transport.errors import ConnectionLost, Timeout, TransportError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


async def _until_done(task: asyncio.Task[Any], deadline: float) -> None:
    """Wait for the task or the deadline. A thousand callers may wait: `asyncio.wait` takes a kilobyte more for each."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    wake = partial(_wake, over)
    timer = None if deadline == math.inf else loop.call_at(deadline, wake)
    task.add_done_callback(wake)
    try:
        await over
    finally:
        task.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()


def _wake(over: asyncio.Future[None], _: object = None) -> None:
    if not over.done():
        over.set_result(None)


class Shared(Generic[K]):
    """Tasks by key. A caller that gives up, by deadline or cancellation, leaves the task to the others."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._tasks: dict[K, asyncio.Task[Any]] = {}

    def __iter__(self) -> Any:
        return iter(list(self._tasks))

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    def begin(self, key: K, start: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task that is under way under the key, or begin it."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(start())
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    async def run(
        self, key: K, start: Callable[[], Coroutine[Any, Any, T]], what: str, deadline: float = math.inf
    ) -> T:
        """Return the result of the task. Timeout at the caller's deadline, ConnectionLost when it was cancelled."""
        task = self.begin(key, start)
        await _until_done(task, deadline)
        if not task.done():
            raise Timeout(f"{self._where}: {what} was not there in time")
        if task.cancelled():
            raise ConnectionLost(f"{self._where}: {what} was abandoned")
        error = task.exception()
        if isinstance(error, TransportError):
            # One instance raised to several callers would mix tracebacks.
            raise error.again(outcome_unknown=False) from error.__cause__
        return task.result()

    def cancel(self, key: K) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for key in self:
            self.cancel(key)

    def _ended(self, key: K, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # asked here, because all callers may have given up

"""Long tasks: the one place that starts a task for whose end nobody waits.

    tasks = Tasks()
    tasks.start(self._read(), "reading the web socket", failed=self._broke)
    tasks.start(kept(self._run_syphon, "the syphon"), "the syphon")

Laws of this file.
 1. A task that ends with an exception is reported when it ends: in the log, with the traceback, and to `failed`. No
    error waits for the garbage collector, and none for a caller who has left.
 2. After the report somebody acts: `kept` begins the work again, or `failed` ends what depended on the task.
 3. An owner keeps its tasks until they have ended: an event loop holds them by weak references only.

A caller that waits for a task itself, and so gets its error, may start it with asyncio. `tests/test_tidy.py` has a list
of these places.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from pairbus.transport.times import BEGIN_AGAIN_S

logger = logging.getLogger("pairbus")


Failed = Callable[[BaseException], object]


class Tasks:
    """The tasks of one owner, which belong to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._tasks))

    def start(self, work: Coroutine[Any, Any, Any], what: str, *, failed: Failed | None = None) -> asyncio.Task[Any]:
        """Start a task. `what` names it in the log; `failed` gets its exception, but not its cancellation."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, what, failed))
        return task

    def _ended(self, what: str, failed: Failed | None, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            report(what, error)
            if failed is not None:
                failed(error)

    def cancel(self) -> None:
        for task in self:
            task.cancel()

    async def ended(self) -> None:
        """Wait until every task has ended; their errors were reported."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def report(what: str, error: BaseException) -> None:
    logger.error("%s ended: %s: %s", what, type(error).__name__, error, exc_info=error)


async def kept(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Do the work to its end; when a bug or a broken disk ends it, log the error and begin again."""
    while True:
        try:
            return await work()
        except Exception as error:
            logger.exception("%s ended: %s; it begins again in %g s", what, error, BEGIN_AGAIN_S)
        await asyncio.sleep(BEGIN_AGAIN_S)

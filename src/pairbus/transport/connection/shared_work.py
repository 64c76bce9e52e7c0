"""Work for which several callers wait: it runs once, and each caller gets the result."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from pairbus.errors import PairbusError
from pairbus.transport.connection.steps import Hearing, given_up, until_done
from pairbus.transport.errors import ConnectionLost, TransportError
from pairbus.transport.tasks import report

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class SharedWork(Generic[K]):
    """Tasks by key. A caller that gives up, by deadline or cancellation, leaves the task to the others."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._tasks: dict[K, asyncio.Task[Any]] = {}
        self._hearings: dict[asyncio.Task[Any], Hearing] = {}
        self._callers: Counter[K] = Counter()

    def __iter__(self) -> Any:
        return iter(list(self._tasks))

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    def begin(self, key: K, start: Callable[[Hearing], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task that is under way under the key, or begin it. Its `Hearing` is told of the peer's silence."""
        task = self._tasks.get(key)
        if task is None:
            hearing = Hearing()
            task = self._tasks[key] = asyncio.create_task(start(hearing))
            self._hearings[task] = hearing
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    async def run(
        self,
        key: K,
        start: Callable[[Hearing], Coroutine[Any, Any, T]],
        what: str,
        deadline: float = math.inf,
        *,
        silence_s: float = math.inf,
        hearing: Hearing | None = None,
    ) -> T:
        """Return the result of the task. ConnectionLost when it was cancelled; Timeout at the caller's deadline, or
        when the peer is silent for `silence_s`. `hearing`: that of the work that waits here for this one."""
        task = self.begin(key, start)
        own = self._hearings.get(task) or Hearing()  # it is gone when the task is done already
        self._callers[key] += 1
        try:
            with (hearing or Hearing()).awaiting(lambda: own.silent_since()):
                silence = await until_done(task, lambda: own.silent_since(), silence_s, deadline)
        finally:
            self._callers[key] -= 1
            if not self._callers[key]:
                del self._callers[key]
        if silence is not None:
            raise given_up(self._where, what, silence)
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
        del self._hearings[task]
        if self._tasks.get(key) is task:
            del self._tasks[key]
        error = None if task.cancelled() else task.exception()  # asked here: all callers may have given up
        if error is not None and not isinstance(error, PairbusError) and key not in self._callers:
            report(f"{self._where}: an opening", error)

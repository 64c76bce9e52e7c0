"""An asyncio event loop whose clock jumps and whose order is a seed's.

When nothing is ready the clock stands at the next timer at once: an hour of waiting costs nothing. Among callbacks that
are ready at the same moment dice choose the next, so that a seed finds orders that a real loop shows once a year.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

STEPS_MAX = 400_000  # callbacks in one history; a usual one has some thousands
THREAD_DELAY_MAX_S = 0.02  # before work handed to a thread begins, and before its end is heard of


class Stuck(Exception):
    """No callback is ready or will ever be, or callbacks follow each other without end."""


class _Future(asyncio.Future[Any]):
    """Hashed by its number within its loop: sets of futures are walked in the same order in every run."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: VirtualLoop, context: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs in one thread, without a selector: the world has no outside."""

    _ready: deque[asyncio.Handle]  # an attribute of the base class

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._now = 0.0
        self._dice = dice
        self.steps = 0
        self.numbers = itertools.count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.complaints: list[str] = []
        "Exceptions that no task retrieved, which asyncio tells to the loop's exception handler only."
        self.set_task_factory(self._new_task)
        self.set_exception_handler(self._complain)

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, context: Any = None) -> asyncio.Task[Any]:
        return _Task(coro, loop=self, context=context)

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def time(self) -> float:
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.numbers), timer))  # tuples compare faster than handles
        return timer

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing will ever happen again")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        if len(ready) > 1:
            ready.rotate(self._dice.randrange(len(ready)))
        handle = ready.popleft()
        if not handle.cancelled():
            handle._run()
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"more than {STEPS_MAX} callbacks; the clock stands at {self._now:.3f}")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run as a thread: a little later, with a result a little later still, also if its caller has given up."""
        future = self.create_future()

        def work() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            self.call_later(self._thread_delay_s(), _end, future, result, error)

        self.call_later(self._thread_delay_s(), work)
        return future

    def submit(self, func: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
        """Run as a thread of an executor does: work that was cancelled before it began is not done."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = func(*args)
            except Exception as raised:
                self.call_later(self._thread_delay_s(), future.set_exception, raised)
            else:
                self.call_later(self._thread_delay_s(), future.set_result, result)

        self.call_later(self._thread_delay_s(), work)
        return future

    def _thread_delay_s(self) -> float:
        return self._dice.random() * THREAD_DELAY_MAX_S

    def _write_to_self(self) -> None:
        """`call_soon_threadsafe` wakes the selector of a real loop."""

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there is no selector")


def _end(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

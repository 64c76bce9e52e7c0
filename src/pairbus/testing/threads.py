"""Tools of tests live on an event loop; a test of the sync client stands outside of it. What is here joins the two."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

CALL_S = 20.0  # for the loop of another thread to answer; it never does more than a few milliseconds of work at once

P = ParamSpec("P")
R = TypeVar("R")


class OnLoop:
    """What lives on one event loop. `_changed` is called there when something happened that `until` may wait for."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._news = asyncio.Event()

    def _settle_on_this_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()

    def _changed(self) -> None:
        self._news.set()

    async def until(self, holds: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until something that peers do has made `holds` true; TimeoutError when it takes too long."""
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._news.clear()
                await self._news.wait()


S = TypeVar("S", bound=OnLoop)


def switch(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that runs on the loop, whichever thread calls it; it has taken effect when the call returns."""

    @functools.wraps(method)
    def thrown(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        loop = self._loop
        if loop is None or threading.get_ident() == self._thread_id:
            return method(self, *args, **kwargs)

        async def there() -> R:
            return method(self, *args, **kwargs)

        return asyncio.run_coroutine_threadsafe(there(), loop).result(CALL_S)

    return thrown


class LoopThread:
    """An event loop in a thread of its own, from the making of the object to `close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float = CALL_S) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

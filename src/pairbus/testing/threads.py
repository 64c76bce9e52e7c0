"""Tools of tests live on an event loop; a test of the sync client stands outside of it. What is here joins the two."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

CALL_S = 20.0  # for the loop of another thread to answer; it never does more than a few milliseconds of work at once

P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    """Runs a coroutine on the loop of another thread, and waits for its result."""

    def __call__(self, work: Coroutine[Any, Any, R]) -> R: ...


class OnLoop:
    """A server on one event loop, from `start` to `stop` or from `__aenter__` to `__aexit__`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._news = asyncio.Event()

    async def start(self, port: int = 0) -> None:
        """Listen on the loopback; 0: on any free port. Subclasses do it."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()

    async def stop(self) -> None:
        """Subclasses first end what they began."""
        await asyncio.sleep(0)  # for the sockets to be told that they are gone
        self._loop = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def changed(self) -> None:
        """Something happened that `until` may wait for. Called on the loop."""
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


class InThread(OnLoop):
    """The same on an event loop of its own, in a thread of its own, for tests that block: `with … as …:`."""

    _loop_thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self._loop_thread = LoopThread(type(self).__name__)
        self._loop_thread.run(self.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop_thread is not None
        self._loop_thread.run(self.stop())
        self._loop_thread.close()

    def wait_until(self, holds: Callable[[], object], timeout_s: float = 10.0) -> None:
        """`until` for callers outside of the loop; `holds` is looked at inside of it."""
        assert self._loop_thread is not None
        self._loop_thread.run(self.until(holds, timeout_s), timeout_s + 1)


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

"""The bridge between tools of tests, which run on an event loop, and tests of the sync client, which run outside."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

CALL_S = 20.0  # wait for the loop of another thread, which never works more than a few milliseconds at once

P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    """A function that runs a coroutine on the loop of another thread, and waits for its result."""

    def __call__(self, work: Coroutine[Any, Any, R]) -> R: ...


class OnLoop:
    """A server on one event loop, from `start` to `stop` or from `__aenter__` to `__aexit__`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._news = asyncio.Event()

    async def start(self, port: int = 0) -> None:
        """Listen on the loopback; 0: on any free port. Subclasses implement it."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()

    async def stop(self) -> None:
        """Stop the server. Subclasses first end their own parts."""
        await asyncio.sleep(0)  # lets the event loop tell the sockets that they are closed
        self._loop = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def changed(self) -> None:
        """Wake `until`: its condition may have changed. Called on the loop."""
        self._news.set()

    async def until(self, holds: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until `holds` is true because of something that peers do; TimeoutError when it takes too long."""
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._news.clear()
                await self._news.wait()


S = TypeVar("S", bound=OnLoop)


def switch(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method run on the loop, whichever thread calls it; it has taken effect when the call returns."""

    @functools.wraps(method)
    def thrown(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        loop = self._loop
        if loop is None or threading.get_ident() == self._thread_id:
            return method(self, *args, **kwargs)

        async def call() -> R:
            return method(self, *args, **kwargs)

        return asyncio.run_coroutine_threadsafe(call(), loop).result(CALL_S)

    return thrown


class InThread(OnLoop):
    """A server on an event loop of its own, in a thread of its own, for tests that block: `with … as …:`."""

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
        """Wait as `until` does, outside of the loop; `holds` is called inside of it."""
        assert self._loop_thread is not None
        self._loop_thread.run(self.until(holds, timeout_s), timeout_s + 1)


class LoopThread:
    """An event loop in a thread of its own, from the construction of the object to `close`."""

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

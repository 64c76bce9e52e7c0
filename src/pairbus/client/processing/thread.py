"""A thread with an event loop for the processors of an asyncio client.

Everything but the handlers happens in it: receiving, renewing, settling. A handler that blocks the application's event
loop thereby loses no lock and no connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from pairbus.amqp.sasl import SaslClient
from pairbus.client.life import end_with_process
from pairbus.client.receiving.shared import Receiving
from pairbus.client.state import PairState
from pairbus.transport.loops import new_event_loop
from pairbus.transport.tokens.credential import AzureToken, Token

T = TypeVar("T")
STOP_S = 5.0


class ProcessingThread:
    """The loop, and the connection, of all processors of one asyncio client."""

    def __init__(self, state: PairState, application: asyncio.AbstractEventLoop) -> None:
        self._pid = os.getpid()
        self._application = application
        self._loop = new_event_loop()
        self._receiving: Receiving | None = None
        self._state = state
        self._thread = threading.Thread(target=self._main, name="pairbus-processing", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        return self._pid == os.getpid() and self._thread.is_alive()

    async def call(self, work: Callable[[Receiving], Coroutine[Any, Any, T]]) -> T:
        """Do work in the thread's loop, for the application's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._do(work), self._loop))

    async def _do(self, work: Callable[[Receiving], Coroutine[Any, Any, T]]) -> T:
        if self._receiving is None:
            primary = self._state.primary
            credential = primary.credential
            if isinstance(credential, AzureToken):
                credential = _TokenOfApplication(credential, self._application)
            self._receiving = Receiving(self._state, credential)
        return await work(self._receiving)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def end(self) -> None:
        """End the receivers of a faulted client at once."""
        if self._receiving is not None and self.is_usable:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._receiving.end)

    async def close(self) -> None:
        """Close the connection, and end the thread."""
        if not self.is_usable:
            return
        if self._receiving is not None:
            await self.call(lambda receiving: receiving.close(STOP_S))
        self.stop(0.0)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End the thread, without closing anything."""
        if self._pid != os.getpid():
            return
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._loop.stop)
        if timeout_s and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)


class _TokenOfApplication:
    """A credential that asks the application's one in the application's event loop, to which it belongs."""

    per_audience = False

    def __init__(self, credential: AzureToken, loop: asyncio.AbstractEventLoop) -> None:
        self._credential = credential
        self._loop = loop

    def __repr__(self) -> str:
        return f"<{self._credential!r} of the application>"

    def sasl(self, hostname: str) -> SaslClient:
        return self._credential.sasl(hostname)

    async def token(self, audience: str) -> Token:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._credential.token(audience), self._loop))


def new_thread(state: PairState) -> ProcessingThread:
    """Start the thread for the processors of a client; the running loop is that of its handlers."""
    thread = ProcessingThread(state, asyncio.get_running_loop())
    end_with_process(thread)
    return thread

"""The processor for asyncio: handlers are tasks of the application's event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from pairbus.client.processing.face import ProcessorFace
from pairbus.client.processing.processing import Processing
from pairbus.client.processing.runners import LoopRunner
from pairbus.client.processing.thread import ProcessingThread
from pairbus.client.receiving.shared import Receiving
from pairbus.pairing.events import Event

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ServiceBusProcessor(ProcessorFace):
    """Calls a coroutine function for each message, and settles it; from `get_queue_processor` of a client.

    Its loop is that in which it was started. Everything but the handlers happens in a thread of the client, so that a
    handler that blocks the event loop loses no lock.
    """

    AIO = True
    _thread: ProcessingThread | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to take messages; returns at once, also while the namespace is away."""
        self._check_startable()
        loop, options = asyncio.get_running_loop(), self._options
        runner = LoopRunner(
            self._handler,
            options.on_error,
            auto_complete=options.auto_complete,
            loop=loop,
        )

        def publish(event: Event) -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody hears it any more
                loop.call_soon_threadsafe(self._state.events.tell, event)

        async def begin(receiving: Receiving) -> Processing:
            processing = Processing(
                receiving, self._place, options, runner, publish, is_queue=self._is_queue, can_cancel=True
            )
            processing.start()
            return processing

        self._thread = self._client._processing_thread()
        self._client._processors.add(self)
        self._processing = await self._thread.call(begin)

    async def run_forever(self) -> None:
        """Return after SIGTERM, SIGINT or `stop`, when handlers have ended and nothing is locked.

        A second signal ends it without waiting for handlers. In a thread that is not the main one there are no signals.
        Raises the error that ended the processor, when the client was faulted or closed.
        """
        processing = self._started()
        asked = asyncio.Event()
        with _signals(asked):
            ended = asyncio.create_task(self._call(processing.ended.wait))
            wanted = asyncio.create_task(asked.wait())
            try:
                await asyncio.wait([ended, wanted], return_when=asyncio.FIRST_COMPLETED)
                if asked.is_set():
                    asked.clear()
                    stopping, again = asyncio.create_task(self.stop()), asyncio.create_task(asked.wait())
                    try:
                        await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
                        if not stopping.done():
                            await self.stop(drain=False)
                        await stopping
                    finally:
                        again.cancel()
            finally:
                ended.cancel()
                wanted.cancel()
        self._raise_failure()

    async def pause(self) -> None:
        """Take no messages until `resume`. Returns when none arrives any more; handlers that run go on."""
        await self._call(self._started().pause)

    async def resume(self) -> None:
        await self._call(self._started().resume)

    async def stop(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no messages any more, and return when nothing is locked. May be repeated.

        With `drain` it waits until the handlers have ended, for `timeout` seconds at most. Otherwise, and afterwards,
        handlers are cancelled and their messages released.
        """
        processing = self._running
        if processing is None or self._thread is None or not self._thread.is_usable:
            return
        await self._call(lambda: processing.stop(drain=drain, timeout_s=timeout))
        self._client._processors.discard(self)

    async def _call(self, work: Callable[[], Any]) -> Any:
        assert self._thread is not None, "it is started"
        return await self._thread.call(lambda _: work())


@contextmanager
def _signals(asked: asyncio.Event) -> Iterator[None]:
    """Let the signals that end a service set the event, and put their handlers back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(asked.set))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

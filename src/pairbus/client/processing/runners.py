"""The two ways to call a handler: in a thread of a bounded pool, and as a task of the application's event loop.

A runner belongs to the engine's loop, which alone calls `start`, `cancel` and `call`. The ends of handlers come back
through `report`, from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from time import perf_counter
from typing import Any, Protocol

from pairbus.client.engine_thread import ListenerThread
from pairbus.client.event_outbox import call_listener
from pairbus.client.processing.decide.endings import Ending, HandlerEnd, ending_of
from pairbus.client.processing.events import level_of
from pairbus.client.processing.held import EndReport, HeldMessage, Inbox
from pairbus.client.processing.message import AioProcessorMessage, ProcessorMessage, new_message
from pairbus.client.processing.session import AioProcessorSession, ProcessorSession
from pairbus.pairing.events import Event
from pairbus.telemetry.processing import process
from pairbus.transport.threads import in_thread

logger = logging.getLogger("pairbus")

Handler = Callable[[Any], Any]


class Runner(Protocol):
    """One of the two ways. `report` is set before the first `start`."""

    report: Callable[[EndReport], None]
    session_kind: type[Any]

    @property
    def is_over(self) -> bool:
        """True when no handler can be called any more."""

    def start(self, work: HeldMessage) -> None: ...

    def cancel(self, work: HeldMessage) -> bool:
        """Ask a handler to end; False when it cannot be asked."""

    async def call(self, hook: Handler, argument: Any) -> None:
        """Call a hook and wait for it."""

    def tell(self, event: Event) -> None: ...

    def close(self) -> None: ...


class ThreadRunner:
    """Calls handlers in daemon threads: as many as there are handlers at once, started when they are needed."""

    session_kind = ProcessorSession
    is_over = False

    def __init__(self, handler: Handler, on_error: Handler | None, *, auto_complete: bool) -> None:
        self._handler = handler
        self._auto_complete = auto_complete
        self._works: queue.SimpleQueue[HeldMessage | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._lock = threading.Lock()
        self._listener = None if on_error is None else ListenerThread(on_error)
        self.report: Callable[[EndReport], None] = _unset

    def start(self, work: HeldMessage) -> None:
        with self._lock:
            self._under_way += 1
            is_short = self._under_way > len(self._threads)
        if is_short:
            name = f"pairbus-handler-{len(self._threads) + 1}"
            self._threads.append(threading.Thread(target=self._main, name=name, daemon=True))
            self._threads[-1].start()
        self._works.put(work)

    def cancel(self, work: HeldMessage) -> bool:
        return False

    async def call(self, hook: Handler, argument: Any) -> None:
        await in_thread("pairbus-hook", hook, argument)

    def tell(self, event: Event) -> None:
        if self._listener is None:
            _log(event)
        else:
            self._listener.put(event)

    def close(self) -> None:
        for _ in self._threads:
            self._works.put(None)
        if self._listener is not None:
            self._listener.end()

    def _main(self) -> None:
        while (work := self._works.get()) is not None:
            began = perf_counter()
            ending = self._handled(work)
            with self._lock:
                self._under_way -= 1
            self.report(EndReport(work, ending, perf_counter() - began))
            del work, ending  # a thread that waits must not keep the last message alive

    def _handled(self, work: HeldMessage) -> Ending:
        try:
            message = new_message(ProcessorMessage, work)
        except Exception as error:  # bytes of strangers: the message is dead-lettered with the error
            return Ending(HandlerEnd.UNREADABLE, error)
        try:
            with process(work.feed.path, work.payload):
                self._handler(message)
        except BaseException as error:  # decided about and told: a thread of the pool has no caller that could see it
            return work.raised(error) or ending_of(error)
        return work.returned(auto_complete=self._auto_complete)


class LoopRunner:
    """Calls handlers as tasks of the application's event loop."""

    session_kind = AioProcessorSession

    def __init__(
        self,
        handler: Handler,
        on_error: Handler | None,
        *,
        auto_complete: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._handler = handler
        self._on_error = on_error
        self._auto_complete = auto_complete
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._works: Inbox[HeldMessage] = Inbox(loop, self._begin)
        self.report: Callable[[EndReport], None] = _unset

    @property
    def is_over(self) -> bool:
        return self._loop.is_closed()

    def start(self, work: HeldMessage) -> None:
        try:
            self._works.put(work)
        except RuntimeError:  # the application's loop was closed
            self.report(EndReport(work, Ending(HandlerEnd.STOPPED), 0.0))

    def cancel(self, work: HeldMessage) -> bool:
        try:
            self._loop.call_soon_threadsafe(_cancel, work)
        except RuntimeError:
            return False
        return True

    async def call(self, hook: Handler, argument: Any) -> None:
        async def called() -> None:
            result = hook(argument)
            if isawaitable(result):
                await result

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self._loop))

    def tell(self, event: Event) -> None:
        if self._on_error is None:
            _log(event)
            return
        try:
            self._loop.call_soon_threadsafe(self._hear, event)
        except RuntimeError:
            _log(event)

    def close(self) -> None:
        """Do nothing: handlers that still run belong to the application's loop."""

    # ── in the application's loop ──

    def _begin(self, works: list[HeldMessage]) -> None:
        for work in works:
            if work.is_lost or work.is_stopped:
                self.report(EndReport(work, Ending(HandlerEnd.STOPPED), 0.0))
                continue
            task = work.task = self._loop.create_task(self._handled(work))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, work, perf_counter()))

    def _ended(self, work: HeldMessage, began: float, task: asyncio.Task[Ending]) -> None:
        """Report the end of a task, also of one that was cancelled before its first step."""
        self._tasks.discard(task)
        work.task = None
        ending = Ending(HandlerEnd.STOPPED) if task.cancelled() or task.exception() is not None else task.result()
        self.report(EndReport(work, ending, perf_counter() - began))

    async def _handled(self, work: HeldMessage) -> Ending:
        try:
            message = new_message(AioProcessorMessage, work)
        except Exception as error:  # bytes of strangers: the message is dead-lettered with the error
            return Ending(HandlerEnd.UNREADABLE, error)
        try:
            with process(work.feed.path, work.payload):
                await self._handler(message)
        except asyncio.CancelledError as error:
            task = work.task
            if task is not None and task.cancelling():
                return work.raised(error) or Ending(HandlerEnd.STOPPED)
            return work.raised(error) or ending_of(error)  # of another task, for which the handler waited
        except Exception as error:  # decided about and told
            return work.raised(error) or ending_of(error)
        return work.returned(auto_complete=self._auto_complete)

    def _hear(self, event: Event) -> None:
        assert self._on_error is not None
        if asyncio.iscoroutinefunction(self._on_error):
            task = self._loop.create_task(self._told(event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            call_listener(self._on_error, event)

    async def _told(self, event: Event) -> None:
        assert self._on_error is not None
        try:
            await self._on_error(event)
        except Exception:  # an error of the application's listener must not end the processor
            logger.exception("on_error failed for %s", event)


def _cancel(work: HeldMessage) -> None:
    if work.task is not None and not work.task.done():
        work.task.cancel()


def _log(event: Event) -> None:
    error = getattr(event, "error", None)
    logger.log(level_of(event), "%s", event, exc_info=error if isinstance(error, BaseException) else None)


def _unset(report: EndReport) -> None:
    raise AssertionError("the processor sets it")

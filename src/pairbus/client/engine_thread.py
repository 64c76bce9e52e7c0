"""An engine in a thread: the sync client hands it work and waits.

Laws of this file.
 1. A call waits on a lock of its own, in slices of at most a second; between two slices it looks at its deadline, at
    the thread and at the process id, and wakes the engine again. No call outlives its thread or a fork.
 2. An exception in the waiting caller (KeyboardInterrupt, a soft time limit) cancels the call and is raised unchanged.
 3. The thread is a daemon: a process that does not close its client ends as if there were none.
 4. Listeners run in a thread of their own, in the order of the events, and may call the client.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.engine import Engine
from pairbus.client.errors import ClientClosed, tell_outcome
from pairbus.client.event_outbox import Listener, call_listener
from pairbus.client.outgoing import Outgoing
from pairbus.client.state import PairState
from pairbus.errors import PairbusError
from pairbus.pairing.events import Event
from pairbus.transport.loops import new_event_loop

logger = logging.getLogger("pairbus")

SLICE_S = 1.0
LATE_S = 2.0  # an engine may be so late with the answer to a call whose time is over
STOP_S = 0.5
EVENTS_MAX = 10_000  # events that a listener may be behind; older ones are dropped then

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
Work = Callable[[Engine], Coroutine[Any, Any, T] | asyncio.Future[T]]
"Work for the engine: a coroutine becomes a task; a future costs none, for calls that only wait for an answer."


class _Call:
    """One piece of work for the engine, and the lock on which its caller waits."""

    __slots__ = ("context", "done", "error", "future", "is_abandoned", "outgoing", "result", "work")

    def __init__(self, work: Work[Any], outgoing: Outgoing | None) -> None:
        self.work = work
        self.outgoing = outgoing
        self.is_abandoned = False
        self.context = contextvars.copy_context()
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.future: asyncio.Future[Any] | None = None
        "The task of the call in the engine, or the future that its work returned."

    def abandon(self) -> None:
        """Stop the work for this call: its caller was interrupted."""
        self.is_abandoned = True
        if self.outgoing is not None:
            self.outgoing.is_cancelled = True

    def refuse(self, error: BaseException) -> None:
        self.error = error
        self.done.release()

    async def run(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.result = await work
        except BaseException as error:
            self.error = error
        finally:
            self.done.release()

    def answer(self, future: asyncio.Future[Any]) -> None:
        """Take the result of the future that the work returned."""
        if future.cancelled():
            self.error = asyncio.CancelledError()
        else:
            self.error = future.exception()
            self.result = None if self.error is not None else future.result()
        self.done.release()


_REAL_MODULES = {
    "threading": "thread",
    "socket": "socket",
    "select": "select",
    "subprocess": "subprocess",
    "queue": "queue",
}
"Modules that gevent must not patch, each with its argument of `monkey.patch_all`."


class EngineThread:
    """A daemon thread with an event loop and one engine."""

    def __init__(self, state: PairState) -> None:
        _refuse_gevent()
        self._pid = os.getpid()
        self._loop = new_event_loop()
        self._engine: Engine | None = None
        self._state = state
        self._waiting: deque[_Call] = deque()
        self._asking: set[_Call] = set()
        "Calls that wait for a future without a task."
        self._is_woken = False
        self._has_ended = False
        self._failure: BaseException | None = None
        "Error that prevented the engine."
        self._free: Callable[[], object] | None = None
        "Function that frees what a forgotten client holds, called when the engine has ended."
        self._thread = threading.Thread(target=self._main, name="pairbus-engine", daemon=True)
        self._thread.start()  # and does not wait: a signal handler may make a call meanwhile, which would wait as well

    @property
    def is_usable(self) -> bool:
        return not self._has_ended and self._pid == os.getpid()

    def run(self, work: Work[T], *, outgoing: Outgoing | None = None, timeout_s: float | None = None) -> T:
        """Run work in the engine and return its result, or raise its error."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("The client was called from its own thread, by a logging handler perhaps.")
        call = _Call(work, outgoing)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s + LATE_S
        try:
            self._waiting.append(call)
            if not self._is_woken:
                self._is_woken = True
                self._wake()
            while not call.done.acquire(timeout=SLICE_S):
                self._look(deadline)
        except BaseException:
            call.abandon()
            if self.is_usable:
                self._loop.call_soon_threadsafe(self._drop, call)
            raise
        if isinstance(call.error, asyncio.CancelledError):  # the thread was stopped during the call
            raise ClientClosed(self._state.primary.name, self._state.places)
        if call.error is not None:
            try:
                raise call.error
            finally:
                del call  # the error's traceback holds this frame
        return cast(T, call.result)

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:  # the loop has been closed; the call never begins
            raise self._ended_error() from None

    def _ended_error(self) -> BaseException:
        """Return the error of a call that did not begin."""
        if self._failure is not None:
            return self._failure
        if self._state.is_closed:
            return ClientClosed(self._state.primary.name)
        return PairbusError("The client's thread has ended before this call began. Nothing was sent.")

    def _look(self, deadline: float | None) -> None:
        if not self.is_usable:
            text = "The client's thread has ended, so the outcome of this call is not known."
            raise self._unknown(PairbusError(text))
        if deadline is not None and time.monotonic() > deadline:
            text = "The client's thread did not answer in time; the outcome is not known."
            raise self._unknown(OperationTimeoutError(message=text))
        with suppress(RuntimeError):  # a call that a signal handler interrupted may be about to wake the engine
            self._loop.call_soon_threadsafe(self._begin)

    def _unknown(self, error: E) -> E:
        tell_outcome(error, self._state.places)
        return error

    # ── in the thread ──

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.call_soon(self._make_engine)
            self._loop.run_forever()
        finally:
            self._end()
            if self._free is not None:
                self._free()

    def _make_engine(self) -> None:
        try:
            self._engine = Engine(self._state)
        except BaseException as error:
            self._failure = error
            self._loop.stop()
        self._begin()

    def _begin(self) -> None:
        """Start the calls that wait. The flag is cleared first: a call that is added later wakes the loop again."""
        if self._engine is None:
            return  # `_make_engine` begins them, or `_end` refuses them
        self._is_woken = False
        while self._waiting:
            call = self._waiting.popleft()
            if not call.is_abandoned:
                self._begin_call(call, self._engine)

    def _begin_call(self, call: _Call, engine: Engine) -> None:
        try:
            work = call.context.run(call.work, engine)
        except Exception as error:
            call.refuse(error)
            return
        if isinstance(work, asyncio.Future):
            call.future = work
            self._asking.add(call)
            work.add_done_callback(lambda _: self._answered(call, work))
        else:  # the caller keeps the call alive, and the call its task, until the task ends
            call.future = self._loop.create_task(call.run(work), context=call.context)

    def _answered(self, call: _Call, future: asyncio.Future[Any]) -> None:
        self._asking.discard(call)
        call.answer(future)

    def _drop(self, call: _Call) -> None:
        """Cancel the call of an interrupted caller, which perhaps had not yet woken the engine for calls that wait."""
        self._begin()
        if call.future is not None:
            call.future.cancel()

    def _end(self) -> None:
        try:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._has_ended = True
            self._loop.close()
            while self._waiting:
                self._waiting.popleft().refuse(self._ended_error())
            while self._asking:
                self._asking.pop().refuse(asyncio.CancelledError())

    # ── the end ──

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End the thread; calls under way are cancelled."""
        self.abandon()
        if self.is_usable and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def abandon(self, free: Callable[[], object] | None = None) -> None:
        """Let the thread end soon: its client is closed, or was forgotten. `free` is called then, in the thread."""
        self._free = free
        if self.is_usable:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._loop.stop)


class ListenerThread:
    """A thread that calls the application's listener, event by event, outside the engine's thread."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._events: queue.SimpleQueue[Event | threading.Event | None] = queue.SimpleQueue()
        "Events, waits for what came before them, and None at the end."
        self._thread: threading.Thread | None = None
        self._is_behind = False
        self._is_over = False

    def put(self, event: Event) -> None:
        """Give an event to the thread. Only the engine calls this."""
        if self._is_over:
            return
        if self._events.qsize() >= EVENTS_MAX:
            self._events.get()
            if not self._is_behind:
                self._is_behind = True
                logger.warning("on_event is %d events behind: the oldest are dropped", EVENTS_MAX)
        self._events.put(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="pairbus-events", daemon=True)
            self._thread.start()

    def flush(self, timeout_s: float) -> None:
        """Wait until the listener has heard all events; does not wait when the listener itself calls."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        if self._is_over:
            self._thread.join(timeout_s)
        else:
            heard = threading.Event()
            self._events.put(heard)
            heard.wait(timeout_s)

    def end(self) -> None:
        """Let the thread end when it has told the events so far; later ones are dropped."""
        self._is_over = True
        self._events.put(None)

    def _main(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, threading.Event):
                event.set()
            else:
                call_listener(self._listener, event)


def _refuse_gevent() -> None:
    """Refuse to start where gevent has replaced a module that the engine's thread and its event loop need."""
    monkey = sys.modules.get("gevent.monkey")
    patched = [] if monkey is None else [name for name in _REAL_MODULES if monkey.is_module_patched(name)]
    if patched:
        left_out = ", ".join(f"{argument}=False" for argument in _REAL_MODULES.values())
        raise RuntimeError(
            f"A sync client of pairbus runs an event loop in a real thread, and gevent has patched"
            f" {', '.join(patched)}: start the process without gevent's monkey patching, or patch with"
            f" `monkey.patch_all({left_out})`."
        )

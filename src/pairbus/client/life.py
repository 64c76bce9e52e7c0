"""The life of a client: open, close, forgotten, fork, and the end of the process. This file alone begins and frees what
a client holds:

| held                            | begins with        | `close`              | forgotten    | in a forked child    |
| ------------------------------- | ------------------ | -------------------- | ------------ | -------------------- |
| engine: connections, tasks      | the first call     | in 5 s, sends end    | at once      | another one          |
| thread of the engine (sync)     | the first call     | after the engine     | at once      | another one          |
| thread of the listener (sync)   | the first event    | after the last event | at once      | another one          |
| spool: the lock of its folder   | pairing            | in 5 s               | the same     | another folder       |
| threads for the disk            | opening a spool    | with the spool       | the same     | other ones           |
| ledger: a file, a thread        | the first row      | rows written in 2 s  | the same     | another file         |
| control socket, its thread      | construction       | removed              | the same     | with `True`, another |
| counters for metrics            | construction       | not shown any more   | the same     | go on                |
| clients of the SDK              | construction       | closed               | left alone   | connect again        |

At the end of the process the threads of engines are stopped and ledgers written; all other threads are daemons, and the
lock of a folder ends with its process. "Forgotten" is a client that was collected without `close`.

Laws of this file.
 1. `PairState.is_closed` is set once, before anything is freed. From then on no engine begins; one that began while a
    signal handler closed the client, in the same thread, ends at once.
 2. No code here waits for a lock that the same thread may hold: a signal handler or the garbage collector may call
    `close`, or forget a client, between any two lines.
 3. This file holds no client: only clients, their senders and receivers keep a client alive.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from pairbus.client.engine import Engine
from pairbus.client.engine_thread import EngineThread, ListenerThread
from pairbus.client.state import PairState
from pairbus.host.forks import call_in_forked_child
from pairbus.sdk.clients import keep
from pairbus.transport.threads import in_thread

logger = logging.getLogger("pairbus")

LISTENER_CLOSE_S = 2.0  # time for the listener to hear the last events when a client is closed


class SyncLife:
    """The life of a client for threads."""

    def __init__(self, state: PairState) -> None:
        self._state = state
        self.thread: EngineThread | None = None
        self.listener: ListenerThread | None = None
        self.unwatch: Callable[[], object] = _nothing
        self._is_released = False
        self._renew()

    def _renew(self) -> None:
        self._opening = threading.RLock()
        "Held while an engine begins, and while closing begins."
        self._closing = threading.Lock()
        "Held by the caller that closes; never waited for."
        listener = self._state.options.on_event
        self.listener = None if listener is None else ListenerThread(listener)
        if self.listener is not None:
            self._state.events.listener = self.listener.put

    # ── open ──

    @property
    def has_engine(self) -> bool:
        return self.thread is not None and self.thread.is_usable

    def engine(self) -> EngineThread:
        """Return the thread of the engine, started at the first call. Raises when the client was closed."""
        thread = self.thread
        return thread if thread is not None and thread.is_usable else self._open()

    def _open(self) -> EngineThread:
        with self._opening:
            if self._state.is_closed:
                self._state.check()
            if self.thread is None or not self.thread.is_usable:
                keep(self.thread)
                self._state.after_loop()
                thread = EngineThread(self._state)
                _threads.add(thread)
                self.thread = thread
            if self._state.is_closed:  # by a signal handler, between two of the lines above
                self.thread.stop()
                self._free()
                self._state.check()
            return self.thread

    # ── close ──

    def close(self, close_sides: Callable[[], object]) -> None:
        """Close everything; a call that was interrupted is completed by the next one."""
        if self._is_released or not self._closing.acquire(blocking=False):
            return
        try:
            with self._opening:
                self._state.is_closed = True
                thread = self.thread
            if thread is not None and thread.is_usable:
                thread.run(Engine.close)
                thread.stop()
            else:
                self._state.closed()
            close_sides()
            if self.listener is not None:
                self.listener.flush(LISTENER_CLOSE_S)
            self._free()
            self._is_released = True
            self.unwatch()
        finally:
            self._closing.release()

    def _free(self) -> None:
        if self.listener is not None:
            self.listener.end()
        self._state.release()

    # ── forgotten, fork ──

    def forget(self) -> None:
        """Free everything, for a client that was collected. The garbage collector may call this in any thread."""
        if self._is_released:
            return
        self._state.is_closed = True
        thread = self.thread
        if thread is not None and thread.is_usable:
            thread.abandon(self._free)
        else:
            _free_in_thread(self._free)

    def after_fork(self) -> None:
        """Leave the parent's threads to it."""
        keep(self.thread)
        self.thread = None
        self._renew()


class AioLife:
    """The life of a client for asyncio."""

    def __init__(self, state: PairState) -> None:
        self._state = state
        self.engine: Engine | None = None
        self.ending: asyncio.Task[None] | None = None
        self.unwatch: Callable[[], object] = _nothing

    def engine_here(self) -> Engine:
        """Return the engine of the running loop; another loop is refused while the client's loop lives."""
        engine, loop = self.engine, asyncio.get_running_loop()
        if engine is not None and engine.loop is loop:
            return engine
        if engine is not None:
            if not engine.loop.is_closed():
                raise RuntimeError("This client belongs to another event loop, which is not closed: make one for each.")
            self._state.after_loop()
        self.engine = Engine(self._state)
        return self.engine

    async def close(self, close_sides: Callable[[], Awaitable[object]]) -> None:
        """Close everything; goes on when the caller is cancelled, and a later call waits for its end."""
        if not self._state.is_closed:
            engine = self.engine_here()
            self._state.is_closed = True
            self.unwatch()
            self._begin_end(engine, close_sides, "closing the client")
        ending = self.ending
        if ending is not None and not ending.done() and ending.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([ending])
            ending.result()

    def _begin_end(self, engine: Engine, close_sides: Callable[[], Awaitable[object]] | None, what: str) -> None:
        self.ending = engine.tasks.start(self._end(engine, close_sides), what)
        self.ending.add_done_callback(self._ended)

    def _ended(self, ending: asyncio.Task[None]) -> None:
        if ending.cancelled():  # perhaps before its first step, as `asyncio.run` does when its function returns
            _free_in_thread(self._state.release)

    async def _end(self, engine: Engine, close_sides: Callable[[], Awaitable[object]] | None) -> None:
        try:
            await engine.close()
            if close_sides is not None:
                await close_sides()
        finally:  # also when the event loop ends: the folder of the spool would stay locked
            await in_thread("pairbus-release", self._state.release)

    # ── forgotten, fork ──

    def forget(self) -> None:
        """Free everything, for a client that was collected. The garbage collector may call this in any thread."""
        if self._state.is_closed:
            return
        self._state.is_closed = True
        engine = self.engine
        is_running = engine is not None and engine.loop.is_running()
        if engine is not None:
            with suppress(RuntimeError):  # the loop was closed
                engine.loop.call_soon_threadsafe(self._end_forgotten, engine)
        if not is_running:
            _free_in_thread(self._state.release)

    def _end_forgotten(self, engine: Engine) -> None:
        self._begin_end(engine, None, "closing a client that was forgotten")

    def after_fork(self) -> None:
        """Leave the parent's connections to it."""
        keep((self.engine, self.ending))
        self.engine = self.ending = None


def _nothing() -> None:
    """Stand in for `unwatch` until the watch begins."""


def _free_in_thread(free: Callable[[], object]) -> None:
    """Free in a thread of its own: the garbage collector must not wait for a disk."""
    with suppress(RuntimeError):  # the interpreter is ending, and starts no thread any more
        threading.Thread(target=free, name="pairbus-release", daemon=True).start()


# ── every client of the process ──


class _Forgettable(Protocol):
    unwatch: Callable[[], object]
    "Function that ends the watch over a closed client: the watch holds `forget`, and with it the client's listener."

    def forget(self) -> None: ...


class _Forking(Protocol):
    def _after_fork(self) -> None: ...


class _Stoppable(Protocol):
    def stop(self) -> None: ...


_clients: weakref.WeakSet[Any] = weakref.WeakSet()
_threads: weakref.WeakSet[_Stoppable] = weakref.WeakSet()


def begin(client: _Forking, life: _Forgettable) -> None:
    """Watch over a new client: it may be forgotten, and its process may be forked."""
    _clients.add(client)
    watch = weakref.finalize(client, life.forget)
    watch.atexit = False
    life.unwatch = watch.detach


def end_with_process(thread: _Stoppable) -> None:
    """End a thread of a client before the process ends, so that none of its tasks is reported as forgotten."""
    _threads.add(thread)


def _after_fork() -> None:
    for client in list(_clients):
        try:
            client._after_fork()
        except Exception:  # an error of one client must not leave the others on the parent's sockets
            logger.exception("after a fork %r cannot be used", client)


call_in_forked_child(_after_fork)


@atexit.register
def _stop_threads() -> None:
    """End the threads of clients that were not closed, so that none of their tasks is reported as forgotten.

    Registered when this module is imported, so that it runs after the application's own functions, which may send.
    """
    for thread in list(_threads):
        thread.stop()

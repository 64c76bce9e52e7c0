"""Daemon threads that wait for a disk, so that an event loop need not, and so that a hung disk keeps no process alive.

The executor of the standard library refuses work as soon as the interpreter begins to end. But a message that is sent
by an `atexit` function may have no other place than the disk.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Piece = tuple["Future[Any]", Callable[[], Any]]


class DiskThreads(Executor):
    """Executor with up to `threads_max` threads; a thread starts when there is work and all others are busy."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._is_shut = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function in a thread; RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError("The threads for the disk have ended with their client.")
            self._pieces.put((future, partial(function, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._main, name=f"pairbus-disk-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end when their work is done; does not wait for that, whatever `wait` is."""
        with self._lock:
            self._is_shut = True
            self._pieces.put(None)

    def _main(self) -> None:
        while True:
            try:
                piece = self._pieces.get_nowait()
            except queue.Empty:
                self._idle.release()
                piece = self._pieces.get()
            if piece is None:
                self._pieces.put(None)  # for the next thread
                return
            _do(*piece)
            del piece  # its arguments may be large


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)

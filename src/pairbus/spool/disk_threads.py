"""Daemon threads that wait for a disk, so that an event loop need not, and so that a hung disk keeps no process alive.

The executor of the standard library refuses work as soon as the interpreter begins to end. But a message that is sent
by an `atexit` function may have no other place than the disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DiskThreads(Executor):
    """Executor with up to `threads_max` threads; a thread starts when there is work and all others are busy.

    A piece of work that is cancelled before it has begun is dropped at once: while a disk hangs, the messages of sends
    that have given up must not fill the memory.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._changed = threading.Condition()
        self._pieces: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        "Work that no thread has begun, oldest first."
        self._threads = 0
        self._idle = 0
        "Threads that wait for work."
        self._is_shut = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function in a thread; RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_shut:
                raise RuntimeError("The threads for the disk have ended with their client.")
            if self._idle <= len(self._pieces) and self._threads < self._threads_max:
                self._start()
            self._pieces[future] = partial(function, *args, **kwargs)
            self._changed.notify()
        future.add_done_callback(self._drop)
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end when their work is done; does not wait for that, whatever `wait` is."""
        with self._changed:
            self._is_shut = True
            self._changed.notify_all()

    def _start(self) -> None:
        """Start one more thread. RuntimeError: the interpreter is ending, and there is no thread yet."""
        try:
            threading.Thread(target=self._main, name=f"pairbus-disk-{self._threads + 1}", daemon=True).start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _drop(self, future: Future[Any]) -> None:
        if future.cancelled():
            with self._changed:
                self._pieces.pop(future, None)

    def _main(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._pieces and not self._is_shut:
                    self._changed.wait()
                self._idle -= 1
                if not self._pieces:
                    return
                future, call = self._pieces.popitem(last=False)
            _do(future, call)
            del future, call  # the arguments may be large


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        del future, call  # the traceback of the error holds this frame: they would wait for the garbage collector
    else:
        future.set_result(result)

"""The watchdog of sync receivers: none of their calls outlives its deadline.

The sync SDK blocks for ever on a peer that accepts TCP and stays silent, whatever time-outs it is given (measured).
When its socket is broken, such a call ends in the same second: one thread for the process watches all calls that are
under way, and breaks the socket of a late one.

Where the SDK hides its socket (another version), a call runs in a thread of its own, which is left behind instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.host.forks import call_in_forked_child
from pairbus.sdk.sockets import CAN_BREAK, break_socket

logger = logging.getLogger("pairbus.watchdog")

AGAIN_S = 0.1  # pause before a call that was broken off without effect is broken off again
LOOK_MAX_S = 3600.0  # stands for endless, which a condition does not take
GRACE_S = 0.25  # the SDK's own time-out gets this long to end the call with a better error
NEVER = float("inf")

T = TypeVar("T")


def guarded(call: Callable[[], T], owner: object, deadline: float) -> T:
    """Make one call of an SDK object; OperationTimeoutError when it had to be broken off at its deadline.

    The deadline is one of `time.monotonic`. After the error it is not known whether the peer did the operation.
    """
    late_at = deadline + GRACE_S
    if not CAN_BREAK:
        return _call_in_thread(call, late_at)
    watched = _Watched(owner, late_at)
    try:
        _watchdog.watch(watched)
        return call()
    except Exception as error:
        if watched.is_late:
            raise OperationTimeoutError(message="no answer in time; the connection was broken off") from error
        raise
    finally:
        _watchdog.release(watched)


@dataclass(eq=False, slots=True)
class _Watched:
    """A call under way: the SDK object whose socket to break, and when to break it."""

    owner: object
    late_at: float
    is_late: bool = False


class _Watchdog:
    """A thread that looks at the calls under way, and breaks off late ones. It starts with the first call."""

    def __init__(self) -> None:
        self._calls: set[_Watched] = set()
        self._changed = threading.Condition()
        self._looks_at = NEVER
        "Time of the next look; a call with an earlier deadline must wake the thread."
        self._thread: threading.Thread | None = None

    def watch(self, call: _Watched) -> None:
        with self._changed:
            self._calls.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pairbus-watchdog", daemon=True)
                self._thread.start()
            elif call.late_at < self._looks_at:
                self._changed.notify()

    def release(self, call: _Watched) -> None:
        with self._changed:
            self._calls.discard(call)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                late = [call for call in self._calls if call.late_at <= now]
                for call in late:
                    call.is_late, call.late_at = True, now + AGAIN_S
                    self._break(call.owner)  # under the lock: until it is released no call follows on the same socket
                if not late:
                    self._looks_at = min((call.late_at for call in self._calls), default=NEVER)
                    self._changed.wait(min(self._looks_at - now, LOOK_MAX_S))

    def _break(self, owner: object) -> None:
        try:
            break_socket(owner)
        except Exception:  # reading stacks of running threads may fail; without this thread calls have no deadline
            logger.exception("a late call could not be broken off; it is tried again")


_watchdog = _Watchdog()


def _after_fork() -> None:
    """Forget the watchdog in a forked child, which has no threads; the child starts one when it needs one."""
    global _watchdog  # noqa: PLW0603 - one watchdog for the process
    _watchdog = _Watchdog()


call_in_forked_child(_after_fork)


def _call_in_thread(call: Callable[[], T], late_at: float) -> T:
    """Make the call in a thread of its own, which is left behind when it is late."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="pairbus-call", daemon=True).start()
    try:
        return outcome.result(max(late_at - time.monotonic(), 0.0))
    except TimeoutError:
        if outcome.done():  # the error is the call's own
            raise
        raise OperationTimeoutError(message="no answer in time; the call was given up") from None

"""The watchdog of sync receivers: no call of theirs outlives its deadline.

The sync SDK blocks for ever on a peer that accepts TCP and stays silent, whatever time-outs it is given (measured).
Breaking the socket under such a call frees it in the same second: one thread for the process looks after all calls
that are under way, and breaks the socket of one that is late.

Where the SDK hides its socket (another version), a call runs in a thread of its own that is given up instead.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.process.forks import call_in_forked_child
from pairbus.sdk.sockets import CAN_BREAK, break_socket

logger = logging.getLogger("pairbus.watchdog")

AGAIN_S = 0.1  # before a call that was broken off, and did not notice, is broken off again
LOOK_MAX_S = 3600.0  # `wait` takes no endless time
GRACE_S = 0.25  # the SDK's own time-out gets this long to end the call with a better error

T = TypeVar("T")


class Late(Exception):
    """The deadline passed, and the call was broken off. Whether the peer did what was asked is not known."""

    def timeout_error(self) -> OperationTimeoutError:
        """What the SDK would have raised, had it a time-out here."""
        error = OperationTimeoutError(message=str(self))
        error.__cause__ = self
        return error


class Guard:
    """Looks after the calls of one user, which makes one at a time.

    A call is armed by storing `owner`, then `late_at`, and by `rouse()` when there is no watch or it looks later than
    that; it is disarmed by storing NEVER. That is all that a healthy call pays.
    """

    __slots__ = ("__weakref__", "is_late", "late_at", "owner", "watch")

    def __init__(self) -> None:
        self.late_at = NEVER
        "By `time.monotonic`."
        self.owner: object = None
        "The SDK object whose socket to break."
        self.is_late = False
        "The call was broken off."
        self.watch: _Watch | None = None

    def rouse(self) -> None:
        """Have somebody look."""
        if self.watch is None:
            self.watch = _watcher()
            with _start:
                self.watch.guards.add(self)
        self.watch.wake.set()

    def call(self, what: Callable[..., T], owner: object, deadline: float, *arguments: Any) -> T:
        """Make one SDK call of `owner`; Late when it had to be broken off at its deadline (of `time.monotonic`)."""
        if not CAN_BREAK:
            return _given_up(lambda: what(*arguments), deadline)
        self.owner, self.late_at = owner, deadline + GRACE_S
        if self.watch is None or self.late_at < self.watch.looks_at:
            self.rouse()
        try:
            return what(*arguments)
        except Exception as error:
            raise self.told(error) from error
        finally:
            self.disarm()

    def told(self, error: Exception) -> Exception:
        """What to raise for the error of a call: Late when it is what breaking it off has brought about."""
        if not self.is_late:
            return error
        return Late("no answer in time; the connection was broken off")

    def disarm(self) -> None:
        self.late_at, self.is_late = NEVER, False


class _Watch(threading.Thread):
    """Looks at the calls under way, and breaks those that are late."""

    def __init__(self) -> None:
        super().__init__(name="pairbus-watchdog", daemon=True)
        self.guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self.looks_at = NEVER
        "When it looks by itself: who arms a call that is late sooner must wake it."
        self.wake = threading.Event()

    def run(self) -> None:
        while True:
            self.looks_at = NEVER  # before the look: a call that is armed after it wakes this thread
            self.wake.clear()
            now = time.monotonic()
            dues = [self._due(guard, now) for guard in self._armed()]
            self.looks_at = due = min(dues, default=NEVER)
            self.wake.wait(min(max(due - time.monotonic(), 0.0), LOOK_MAX_S))

    def _due(self, guard: Guard, now: float) -> float:
        """When to look at this call again; it is broken off if it is late."""
        late_at = guard.late_at
        if now < late_at:
            return late_at
        guard.is_late = True
        self._break(guard.owner)
        return now + AGAIN_S

    def _armed(self) -> list[Guard]:
        with _start:
            return [guard for guard in self.guards if guard.late_at < NEVER]

    def _break(self, owner: object) -> None:
        try:
            break_socket(owner)
        except Exception:  # it looks into frames of running threads; without this thread no call would have a deadline
            logger.exception("a late call could not be broken off; it is tried again")


NEVER = float("inf")
_watch: _Watch | None = None
_start = threading.Lock()


def _watcher() -> _Watch:
    global _watch  # noqa: PLW0603 - one for the process, made when first needed
    with _start:
        if _watch is None:
            _watch = _Watch()
            _watch.start()
        return _watch


def _after_fork() -> None:
    """Threads do not survive a fork: the child makes its own when it needs one."""
    global _watch, _start
    _watch, _start = None, threading.Lock()


call_in_forked_child(_after_fork)


def guarded(call: Callable[[], T], owner: object, deadline: float) -> T:
    """One call of an SDK object that has no guard of its own, with the SDK's own error when it was broken off."""
    try:
        return Guard().call(call, owner, deadline)
    except Late as late:
        raise late.timeout_error() from late


def _given_up(call: Callable[[], T], deadline: float) -> T:
    """Make the call in a thread of its own, which is left behind when it is late."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work, name="pairbus-call", daemon=True)
    worker.start()
    worker.join(max(deadline + GRACE_S - time.monotonic(), 0.0))
    if worker.is_alive():
        raise Late("no answer in time; the call was given up")
    if errors:
        raise errors[0]
    return results[0]

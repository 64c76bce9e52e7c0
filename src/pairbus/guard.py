"""No call of the sync SDK outlives its deadline.

The sync SDK blocks for ever on a peer that accepts TCP and stays silent, whatever time-outs it is given (measured).
What frees it in the same second is breaking the socket under it: one thread for the process looks after all calls that
are under way, and breaks the socket of one that is late. Arming costs two stores.

Where the SDK hides its socket (another version), a call runs in a thread of its own that is given up instead.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import sdk

logger = logging.getLogger("pairbus.guard")

AGAIN_S = 0.1  # before a call that was broken off, and did not notice, is broken off again
LOOK_MAX_S = 3600.0  # `wait` takes no endless time
BURIAL_S = 2.0  # for a connection that is thrown away to say good-bye
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
        if not sdk.CAN_BREAK:
            return given_up(lambda: what(*arguments), deadline)
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
        super().__init__(name="pairbus-guard", daemon=True)
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
            sdk.break_socket(owner)
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


os.register_at_fork(after_in_child=_after_fork)


def guarded(call: Callable[[], T], owner: object, deadline: float) -> T:
    """One call of an SDK object that has no guard of its own, with the SDK's own error when it was broken off."""
    try:
        return Guard().call(call, owner, deadline)
    except Late as late:
        raise late.timeout_error() from late


def given_up(call: Callable[[], T], deadline: float, ended: Callable[[], bool] | None = None) -> T:
    """In a thread of its own; when it is late it is left behind, with the SDK object it hangs in.

    `ended` says when nobody wants the result any more; it is asked ten times a second.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work, name="pairbus-call", daemon=True)
    worker.start()
    while worker.is_alive() and not (ended is not None and ended()):
        left_s = deadline + GRACE_S - time.monotonic()
        if left_s <= 0:
            break
        worker.join(left_s if ended is None else min(left_s, AGAIN_S))
    if worker.is_alive():
        raise Late("no answer in time; the call was given up")
    if errors:
        raise errors[0]
    return results[0]


_burials: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def bury(owner: Any) -> None:
    """Close an SDK object away from any caller: its peer may be silent, and closing waits for it."""

    def work() -> None:
        try:
            Guard().call(owner.close, owner, time.monotonic() + BURIAL_S)
        except Exception as error:
            logger.debug("closing %r: %s", owner, error)

    thread = threading.Thread(target=work, name="pairbus-burial", daemon=True)
    with _start:  # whoever waits for burials sees this one started, or not at all
        _burials.add(thread)
        thread.start()


def burials() -> None:
    """Wait for what is being closed: the SDK's client must not close it a second time at the same moment."""
    deadline = time.monotonic() + BURIAL_S + GRACE_S + AGAIN_S
    with _start:
        threads = list(_burials)
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))

"""Clocks of silence for the steps of an opening: a slow peer gets more time, a dead one does not.

    steps = Steps("contoso.servicebus.windows.net:5671", silence_s=3.0, deadline=deadline)
    addresses = await steps.step("the name", resolve(host))         # 3 s
    sock = await steps.step("the TCP connection", reach(addresses))    # another 3 s
    await steps.step("the open", wire.opened, heard=wire_heard)     # 3 s after the last byte

Laws of this file.
 1. Each step has the whole of `silence_s`; a sign of life during the step starts its clock again.
 2. The deadline limits all steps together, also with signs of life.
 3. When a timer fires late, the loop was blocked or the process stopped, and bytes that arrived meanwhile may not have
    been read. The missed time does not count as silence, and the wait looks again before it is given up; after a long
    pause the peer has the whole of `silence_s` again.
 4. A wait that is given up tells how long the peer had been silent, whichever limit came first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pairbus.pairing.policy import Silence
from pairbus.transport.errors import Timeout
from pairbus.transport.times import AGAIN_S, STEP_LATE_S

LONG = 1 / 6  # part of the silence: after a pause of this process that was longer, the peer has all of it again

T = TypeVar("T")


def _never() -> float:
    return -math.inf


def _owes_nothing() -> float:
    return math.inf


class Hearing:
    """The silence of the peer in one piece of work, for all callers that wait for it."""

    __slots__ = ("silent_since",)

    def __init__(self) -> None:
        self.silent_since: Callable[[], float] = _owes_nothing
        """Function for the time of the peer's last sign of life, or since when it owes one; infinity while it owes
        none, because a credential is asked for example."""

    @contextmanager
    def awaiting(self, silent_since: Callable[[], float]) -> Iterator[None]:
        """Let the peer owe a sign of life, inside of the block."""
        before, self.silent_since = self.silent_since, silent_since
        try:
            yield
        finally:
            self.silent_since = before


class Steps:
    """The time limits of one opening."""

    def __init__(
        self, where: str, silence_s: float, deadline: float = math.inf, hearing: Hearing | None = None
    ) -> None:
        self.where = where
        self.silence_s = silence_s
        self.deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._hearing = hearing or Hearing()
        self._sign_at = -math.inf

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline, not below 0."""
        return max(self.deadline - self._loop.time(), 0.0)

    def sign(self) -> None:
        """Note a sign of life of the peer now."""
        self._sign_at = self._loop.time()

    async def step(
        self,
        what: str,
        work: Awaitable[T],
        *,
        heard: Callable[[], float] = _never,
        silence_s: float | None = None,
        since: float | None = None,
    ) -> T:
        """Return the result of `work`. When its time is over, `work` is cancelled and Timeout is raised.

        `heard` returns the time of the peer's last sign of life, on the clock of the loop. `since`: time since when the
        peer owes one, when that was before this step.
        """
        silence_s = self.silence_s if silence_s is None else silence_s
        task = asyncio.ensure_future(work)
        began = self._loop.time() if since is None else since
        try:
            with self._hearing.awaiting(lambda: max(began, self._sign_at, heard())):
                silence = await until_done(task, self._hearing.silent_since, silence_s, self.deadline)
            if silence is None:
                return task.result()
            raise given_up(self.where, what, silence)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # read here, so that asyncio does not log it: the cancelled caller does not get it


def given_up(where: str, what: str, silence: Silence) -> Timeout:
    """Return the error of a wait that was given up."""
    if silence.is_too_long:
        return Timeout(f"{where}: nothing was heard for {silence.lasted_s:.3g} s while {what} was awaited", silence)
    return Timeout(f"{where}: the time was over before {what} was there", silence)


async def until_done(
    task: asyncio.Future[Any], silent_since: Callable[[], float], silence_s: float, deadline: float
) -> Silence | None:
    """Wait until the task is done; None then. Otherwise return the silence of the peer: it has lasted for `silence_s`,
    or the deadline has passed. The task is not cancelled. This wait itself lasts `silence_s` at least."""
    loop = asyncio.get_running_loop()
    began, floor, is_second_look = loop.time(), -math.inf, False
    wake_at = min(deadline, began + silence_s)
    while True:
        await _until(task, wake_at)
        if task.done():
            return None
        now = loop.time()
        late_s = now - wake_at
        since = max(silent_since(), floor)
        if late_s > STEP_LATE_S and not is_second_look:
            is_second_look = True
            floor = now if late_s > silence_s * LONG else min(since + late_s, now)
            wake_at = now + AGAIN_S
            continue
        is_second_look = False
        silent_at = max(since, began) + silence_s
        if silent_at <= now:
            return Silence(max(now - since, silence_s), silence_s)
        if deadline <= now:
            return Silence(max(now - since, 0.0), silence_s)
        wake_at = min(deadline, silent_at, now + silence_s)


async def _until(task: asyncio.Future[Any], when: float) -> None:
    """Wait for the task, or this time. A thousand callers may wait: `asyncio.wait` takes a kilobyte more for each."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    wake = partial(_wake, over)
    timer = None if when == math.inf else loop.call_at(when, wake)
    task.add_done_callback(wake)
    try:
        await over
    finally:
        task.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()


def _wake(over: asyncio.Future[None], _: object = None) -> None:
    if not over.done():
        over.set_result(None)

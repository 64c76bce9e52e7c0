"""Clocks of silence for the steps of an opening: a slow peer gets more time, a dead one does not.

    steps = Steps("contoso.servicebus.windows.net:5671", silence_s=3.0, deadline=deadline)
    addresses = await steps.step("the name", resolve(host))         # 3 s
    sock = await steps.step("the TCP connection", reach(addresses))    # another 3 s
    await steps.step("the open", wire.opened, heard=wire_heard)     # 3 s after the last byte

Laws of this file.
 1. Each step has the whole of `silence_s`; a sign of life during the step starts its clock again.
 2. The deadline limits all steps together, also with signs of life.
 3. When a timer fires late, the loop was blocked or the process stopped, and bytes that arrived meanwhile may not have
    been read. The missed time, at most `silence_s`, is given again before the step is judged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pairbus.transport.errors import Silence, Timeout

FAR_S = 3600.0  # deadline of a wait that its clock of silence limits
LATE_S = 0.05  # a timer of a loop that has other work to do fires this much later

T = TypeVar("T")


def _never() -> float:
    return -math.inf


class Steps:
    """The time limits of one opening."""

    def __init__(self, where: str, silence_s: float, deadline: float = math.inf) -> None:
        self.where = where
        self.silence_s = silence_s
        self.deadline = deadline
        self._loop = asyncio.get_running_loop()
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
    ) -> T:
        """Return the result of `work`. When its time is over, `work` is cancelled and Silence, or Timeout, is raised.

        `heard` returns the time of the peer's last sign of life, on the clock of the loop.
        """
        silence_s = self.silence_s if silence_s is None else silence_s
        task = asyncio.ensure_future(work)
        since = self._loop.time()
        due = since + silence_s
        try:
            while True:
                await asyncio.wait([task], timeout=max(min(due, self.deadline) - self._loop.time(), 0.0))
                if task.done():
                    return task.result()
                now = self._loop.time()
                if now >= self.deadline:
                    raise Timeout(f"{self.where}: the time was over before {what} was there")
                heard_until = max(since, self._sign_at, heard()) + silence_s
                if heard_until > max(due, now):
                    due = heard_until
                elif now - due > LATE_S:
                    due = now + min(now - due, silence_s)
                elif now >= due:
                    raise Silence(f"{self.where}: nothing was heard for {silence_s:g} s while {what} was awaited")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # read here, so that asyncio does not log it: the cancelled caller does not get it

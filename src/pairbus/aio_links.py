"""An asyncio SDK sender that is opened when it is needed, serialised, and thrown away after trouble.

The SDK's sender fails when tasks use it before it is open, and slows down to a fraction when they share it (measured):
here one call is under way at a time. A call that is cut off, by its deadline or by cancellation, leaves the sender in a
state that nobody knows, so it is thrown away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import sdk
from pairbus.links import BROKEN
from pairbus.pairing.policy import Failure, Kind

logger = logging.getLogger("pairbus.aio")

T = TypeVar("T")
NEVER = float("inf")
GRACE_S = 0.25  # the SDK's own time-out gets this long to end the call with a better error
BURIAL_S = 2.0  # for a connection that is thrown away to say good-bye

_burials: set[asyncio.Task[None]] = set()


class Alarm:
    """Cancels the task whose call is under way when that is late. There is one call at a time, and one timer for many.

    `asyncio.timeout` makes and cancels a timer for each call, which costs as much as all the rest of a healthy send.
    """

    __slots__ = ("_timer", "cancelling", "ends", "has_rung", "rings_at", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.ends = 0.0
        "When its call is late."
        self.cancelling = 0
        "Requests to cancel the task that were there before."
        self.has_rung = False
        "The task was cancelled by this alarm."
        self._timer: asyncio.TimerHandle | None = None
        self.rings_at = NEVER
        "When it looks by itself: a call that is late sooner must `arm` it."

    def set(self, seconds: float) -> None:
        """For a call of the current task."""
        self.task = task = asyncio.current_task()
        assert task is not None
        self.ends, self.cancelling, self.has_rung = time.monotonic() + seconds, task.cancelling(), False
        if self.ends < self.rings_at:
            self.arm(seconds)

    @property
    def is_cancelled_by_others(self) -> bool:
        """Somebody else wants the task to end. The SDK turns a cancellation into errors of its own, or forgets it."""
        return self.task is not None and self.task.cancelling() > self.cancelling + self.has_rung

    def clear(self) -> bool:
        """The call has ended. True when this alarm has cancelled it, and nobody else did."""
        task, self.task = self.task, None
        return self.has_rung and task is not None and task.uncancel() <= self.cancelling

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.rings_at = None, NEVER

    def arm(self, seconds: float) -> None:
        self.stop()
        self.rings_at = self.ends
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer, self.rings_at = None, NEVER
        if self.task is None:
            return
        left_s = self.ends - time.monotonic()
        if left_s > 0:
            self.arm(left_s)  # this was the time of an earlier call
        else:
            self.has_rung = True
            self.task.cancel()


class Line:
    """First come, first served; who waits too long goes away. A turn is handed over, so that nobody gets in between.

    One timer for all who wait: a timer for each costs more than the waiting itself.
    """

    __slots__ = ("_timer", "_timer_ends", "is_taken", "waiting")

    def __init__(self) -> None:
        self.is_taken = False
        self.waiting: deque[tuple[asyncio.Future[bool], float]] | tuple[()] = ()
        "Those who stand in line, and until when. Most lines never have any, and an empty deque takes 600 bytes."
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ends = 0.0

    async def enter(self, timeout_s: float) -> bool:
        """False when the time was over first."""
        if not self.is_taken:
            self.is_taken = True
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        ends = loop.time() + timeout_s
        if not isinstance(self.waiting, deque):
            self.waiting = deque()
        self.waiting.append((turn, ends))
        if self._timer is None or ends < self._timer_ends:
            self._arm(loop, ends)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                self.leave()  # the turn came in the same moment
            raise

    def leave(self) -> None:
        while self.waiting:
            turn, _ = self.waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self.is_taken = False

    def _arm(self, loop: asyncio.AbstractEventLoop, ends: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ends = loop.call_at(ends, self._ring, loop), ends

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now = None, loop.time()
        for turn, ends in self.waiting:
            if ends <= now and not turn.done():
                turn.set_result(False)
        left = [ends for turn, ends in self.waiting if not turn.done()]
        if left:
            self._arm(loop, min(left))


class AsyncLink:
    """One sender of the SDK. Whoever uses it has entered the line, and leaves it again."""

    def __init__(self, client: ServiceBusClient, path: str, **sender_options: Any) -> None:
        self.line = Line()
        "Whoever uses the link has it; `enter` takes it within a time, `leave` gives it back."
        self.is_retired = False
        self._client = client
        self.path = path
        self._options = sender_options
        self.sender: ServiceBusSender | None = None
        self._limits = (0, 0)
        self.alarm = Alarm()

    async def enter(self, timeout_s: float) -> bool:
        """Stand in line; False when the time was over first."""
        return await self.line.enter(timeout_s)

    def leave(self) -> None:
        if self.is_retired:
            self.drop()
        if self.line.waiting:
            self.line.leave()
        else:
            self.line.is_taken = False

    def retire(self) -> None:
        """Not needed any more: its connection is closed as soon as nobody uses it."""
        self.is_retired = True
        if not self.line.is_taken:
            self.drop()

    @property
    def limits(self) -> tuple[int, int]:
        """(largest message, largest batch) that the link takes, or took when it was last open; 0: not known yet."""
        known = self._limits if self.sender is None else sdk.link_limits(self.sender)
        return known if known[0] else self._limits

    async def send(self, what: Any, timeout_s: float) -> Failure | None:
        """One attempt; the failure, or None when the namespace has accepted it."""
        return (await self.call(lambda sender, left_s: _send(sender, what, left_s), timeout_s))[1]

    async def call(
        self, use: Callable[[ServiceBusSender, float], Awaitable[T]], timeout_s: float, *, sending: bool = True
    ) -> tuple[T | None, Failure | None]:
        """One use of the sender within the time given. Errors that are not a namespace's are raised."""
        sender = self.sender
        if sender is None:
            sender = self.sender = sdk.new_sender(self._client, self.path, **self._options)
        self.alarm.set(timeout_s + GRACE_S)
        try:
            result = await use(sender, timeout_s)
        except (Exception, asyncio.CancelledError) as error:
            return None, self.failure(error, timeout_s, sending=sending)
        self.ended_well()
        return result, None

    def ended_well(self) -> None:
        cancelled = self.alarm.is_cancelled_by_others
        self.alarm.clear()
        if cancelled:
            raise asyncio.CancelledError

    def failure(self, error: BaseException, timeout_s: float, *, sending: bool = True) -> Failure:
        """What went wrong with a use of the sender; raises what is not a namespace's error."""
        cancelled = self.alarm.is_cancelled_by_others
        late = self.alarm.clear()
        if cancelled and not isinstance(error, asyncio.CancelledError):
            self.drop()
            raise asyncio.CancelledError from error
        failure: Failure | None = None
        if late:
            told = OperationTimeoutError(message=f"{self.path}: no answer within {timeout_s:.1f} s")
            failure = Failure(Kind.TIMEOUT, str(told), sending, told)
        elif isinstance(error, Exception):
            failure = sdk.failure_of(error, sending=sending)
        if failure is None:
            self.drop()
            raise error
        if failure.kind in BROKEN:
            self.drop()
        return failure

    def abandon(self) -> None:
        """After a fork, or when the event loop has ended: nothing may be said to its sockets and timers."""
        self.sender = None
        self.line = Line()
        self.alarm = Alarm()

    def drop(self) -> None:
        """The next use opens a new connection."""
        self._limits = self.limits
        sender, self.sender = self.sender, None
        self.alarm.stop()
        if sender is not None:
            task = asyncio.get_running_loop().create_task(_bury(sender))
            _burials.add(task)
            task.add_done_callback(_burials.discard)


async def _send(sender: ServiceBusSender, what: Any, timeout_s: float) -> None:
    """A list goes as one batch. The SDK would do the same, but converts every message twice on the way."""
    if type(what) is list:
        messages, what = what, await sender.create_message_batch()
        for message in messages:
            what.add_message(message)
    await sender.send_messages(what, timeout=timeout_s)


async def _bury(sender: ServiceBusSender) -> None:
    try:
        async with asyncio.timeout(BURIAL_S):
            await sender.close()
    except Exception as error:
        logger.debug("closing a sender: %s", error)


async def burials() -> None:
    """Wait for what was thrown away in this event loop: another one may never end what it has begun."""
    loop = asyncio.get_running_loop()
    ours = {task for task in _burials if task.get_loop() is loop}
    if ours:
        await asyncio.wait(ours)

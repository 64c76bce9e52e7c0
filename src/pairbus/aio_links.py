"""An asyncio SDK sender that is opened when it is needed, serialised, and thrown away after trouble.

The SDK's sender fails when tasks use it before it is open, and slows down to a fraction when they share it (measured):
here one call is under way at a time. A call that is cut off, by its deadline or by cancellation, leaves the sender in a
state that nobody knows, so it is thrown away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import sdk
from pairbus.links import BROKEN
from pairbus.pairing.policy import Failure, Kind

logger = logging.getLogger("pairbus.aio")

T = TypeVar("T")
GRACE_S = 0.25  # the SDK's own time-out gets this long to end the call with a better error
BURIAL_S = 2.0  # for a connection that is thrown away to say good-bye

_burials: set[asyncio.Task[None]] = set()


class AsyncLink:
    """One sender of the SDK. Whoever uses it has entered the line, and leaves it again."""

    def __init__(self, client: ServiceBusClient, path: str, **sender_options: Any) -> None:
        self._line = asyncio.Lock()
        self._retired = False
        self._client = client
        self.path = path
        self._options = sender_options
        self._sender: ServiceBusSender | None = None

    async def enter(self, timeout_s: float) -> bool:
        """Stand in line; False when the time was over first."""
        if not self._line.locked():
            await self._line.acquire()
            return True
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await self._line.acquire()
        except TimeoutError:
            return False
        return True

    def leave(self) -> None:
        if self._retired:
            self.drop()
        self._line.release()

    def retire(self) -> None:
        """Not needed any more: its connection is closed as soon as nobody uses it."""
        self._retired = True
        if not self._line.locked():
            self.drop()

    @property
    def limits(self) -> tuple[int, int]:
        """(largest message, largest batch) that the link takes; 0 while that is not known."""
        return (0, 0) if self._sender is None else sdk.link_limits(self._sender)

    async def send(self, what: Any, timeout_s: float) -> Failure | None:
        """One attempt; the failure, or None when the namespace has accepted it."""
        return (await self.call(lambda sender, left_s: sender.send_messages(what, timeout=left_s), timeout_s))[1]

    async def call(
        self, use: Callable[[ServiceBusSender, float], Awaitable[T]], timeout_s: float, *, sending: bool = True
    ) -> tuple[T | None, Failure | None]:
        """One use of the sender within the time given. Errors that are not a namespace's are raised."""
        sender = self._sender
        if sender is None:
            sender = self._sender = sdk.new_sender(self._client, self.path, **self._options)
        deadline = time.monotonic() + timeout_s + GRACE_S
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                return await use(sender, timeout_s), None
        except asyncio.CancelledError:
            self.drop()
            raise
        except Exception as error:
            late = isinstance(error, TimeoutError) and time.monotonic() >= deadline - 0.01
            if late:
                told = OperationTimeoutError(message=f"{self.path}: no answer within {timeout_s:.1f} s")
                failure: Failure | None = Failure(Kind.TIMEOUT, str(told), sending, told)
            else:
                failure = sdk.failure_of(error, sending=sending)
            if failure is None or failure.kind in BROKEN:
                self.drop()
            if failure is None:
                raise
            return None, failure

    def drop(self) -> None:
        """The next use opens a new connection."""
        sender, self._sender = self._sender, None
        if sender is not None:
            task = asyncio.get_running_loop().create_task(_bury(sender))
            _burials.add(task)
            task.add_done_callback(_burials.discard)


async def _bury(sender: ServiceBusSender) -> None:
    try:
        async with asyncio.timeout(BURIAL_S):
            await sender.close()
    except Exception as error:
        logger.debug("closing a sender: %s", error)


async def burials() -> None:
    """Wait for what was thrown away."""
    if _burials:
        await asyncio.wait(set(_burials))

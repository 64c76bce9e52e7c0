"""Calls a namespace again while the trouble may pass; its errors have the words of the user's request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pairbus.errors import ConfigError, EntityError, EntityNotFound, PairbusError
from pairbus.pairing.policy import BUSY_WAIT_S, Kind
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import failure_of

PATIENCE_S = 30.0  # time in which a verb that had reached the namespace tries again
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 5.0
_PASSING = frozenset({Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.BUSY})

ON_A_TOPIC = "is not possible on the topic"  # a broker's refusal to look into one, or to receive from it

T = TypeVar("T")


class Unreachable(PairbusError):
    """The namespace cannot be reached, or no longer. Messages that were handled before stay handled."""


class RetryPatience:
    """Decides how long a failed call is tried again: until PATIENCE_S have passed without a success.

    A namespace that was never reached is not tried again: its name may be wrong.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause_s = PAUSE_MIN_S
        self._has_succeeded = False

    def succeeded(self) -> None:
        """Note a success: the time begins anew."""
        self._has_succeeded = True
        self._since, self._pause_s = None, PAUSE_MIN_S

    async def failed(self, error: TransportError) -> None:
        """Wait before the next try, or raise the error: it will not pass, or the time is over."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        busy = failure_of(error).kind is Kind.BUSY
        pause_s = BUSY_WAIT_S if busy else self._pause_s
        if not self._has_succeeded or not is_passing(error) or now + pause_s > self._since + PATIENCE_S:
            raise error
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        await asyncio.sleep(pause_s)


def is_passing(error: TransportError) -> bool:
    """Return True for trouble that may be over in a moment, False when the entity, key or message is wrong."""
    return failure_of(error).kind in _PASSING


async def persevere(call: Callable[[], Awaitable[T]], patience: RetryPatience) -> T:
    """Repeat a call, which must be harmless to repeat, until it succeeds or cannot succeed."""
    while True:
        try:
            result = await call()
        except TransportError as error:
            await patience.failed(error)
        else:
            patience.succeeded()
            return result


def explained(error: TransportError, carrier: Carrier, path: str) -> PairbusError:
    """Return the error in the words of a user who gave a namespace and an entity."""
    kind, authority = failure_of(error).kind, carrier.endpoint.authority
    if kind is Kind.NOT_FOUND:
        return EntityNotFound(f"{path} does not exist in {authority}")
    if kind is Kind.UNAUTHORIZED:
        return ConfigError(f"{authority} refuses the key or token for {path}: {error}")
    if kind is Kind.COMMUNICATION and not carrier.is_connected:
        reason = str(error).removeprefix(f"no connection to {carrier.endpoint.host}:{carrier.endpoint.port}: ")
        return Unreachable(f"cannot reach {authority}: {reason}")
    if kind is Kind.TIMEOUT and not carrier.is_connected:
        return Unreachable(f"{authority} does not answer: {error}")
    if ON_A_TOPIC in str(error):
        return EntityError(f"{path} is a topic; its messages are in its subscriptions: {path}/Subscriptions/NAME")
    return EntityError(f"{path} of {authority}: {error}")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Do the work to its end also when the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled() and task.exception() is not None:
            raise asyncio.CancelledError from task.exception()
        raise asyncio.CancelledError
    return task.result()

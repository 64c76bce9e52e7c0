"""A sync SDK sender that is opened when it is needed, serialised, and thrown away after trouble.

The SDK's sender hangs and loses messages when threads share it, and blocks for ever on a silent peer (measured): here
one call is under way at a time, each with a deadline, and a new connection is first probed over the same path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusSender

from pairbus import sdk
from pairbus.guard import Guard, Late, bury
from pairbus.pairing.policy import Failure, Kind
from pairbus.sides import Side

T = TypeVar("T")

BROKEN = frozenset({Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.UNAUTHORIZED})
"After these the next attempt begins with a new connection."


class Link:
    """One sender of the SDK. Whoever uses it has entered the line, and leaves it again."""

    def __init__(
        self, client: ServiceBusClient, side: Side, path: str, connect_timeout_s: float, **sender_options: Any
    ) -> None:
        self.line = threading.Lock()
        "Whoever uses the link has it; `enter` takes it within a time, `leave` gives it back."
        self.is_retired = False
        self._client = client
        self._side = side
        self.path = path
        self._connect_timeout_s = connect_timeout_s
        self._options = sender_options
        self.sender: ServiceBusSender | None = None
        self._limits = (0, 0)
        self.guard = Guard()

    def enter(self, timeout_s: float) -> bool:
        """Stand in line; False when the time was over first."""
        return self.line.acquire(timeout=max(timeout_s, 0))

    def leave(self) -> None:
        if self.is_retired:
            self.drop()
        self.line.release()

    def retire(self) -> None:
        """Not needed any more: its connection is closed as soon as nobody uses it."""
        self.is_retired = True
        if self.line.acquire(blocking=False):
            self.leave()

    @property
    def limits(self) -> tuple[int, int]:
        """(largest message, largest batch) that the link takes, or took when it was last open; 0: not known yet."""
        sender = self.sender
        known = self._limits if sender is None else sdk.link_limits(sender)
        return known if known[0] else self._limits

    def send(self, what: Any, timeout_s: float) -> Failure | None:
        """One attempt; the failure, or None when the namespace has accepted it."""
        return self.call(lambda sender, left_s: _send(sender, what, left_s), timeout_s)[1]

    def call(
        self, use: Callable[[ServiceBusSender, float], T], timeout_s: float, *, sending: bool = True
    ) -> tuple[T | None, Failure | None]:
        """One use of the sender within the time given. Errors that are not a namespace's are raised."""
        deadline = time.monotonic() + timeout_s
        try:
            sender = self.sender or self._open(deadline)
        except (OSError, TimeoutError) as error:
            return None, sdk.failure_of(error, sending=False)
        try:
            left_s = max(deadline - time.monotonic(), 0.001)
            return self.guard.call(use, sender, deadline, sender, left_s), None
        except Exception as error:
            return None, self.failure(error, sending=sending)
        except BaseException:
            self.drop()  # it was interrupted somewhere: what the next one would read there is not its own answer
            raise

    def failure(self, error: Exception, *, sending: bool = True) -> Failure:
        """What went wrong with a use of the sender; raises what is not a namespace's error."""
        if isinstance(error, Late):
            failure: Failure | None
            failure = Failure(Kind.TIMEOUT, f"{self.path}: {error}", sending, error.timeout_error())
        else:
            failure = sdk.failure_of(error, sending=sending)
        if failure is None:
            self.drop()
            raise error
        if failure.kind in BROKEN:
            self.drop()
        return failure

    def _open(self, deadline: float) -> ServiceBusSender:
        if self._side.supports_probe:
            self._side.probe(min(self._connect_timeout_s, max(deadline - time.monotonic(), 0.001)))
        self.sender = sdk.new_sender(self._client, self.path, **self._options)
        return self.sender

    def drop(self) -> None:
        """The next use opens a new connection."""
        self._limits = self.limits
        sender, self.sender = self.sender, None
        if sender is not None:
            bury(sender)

    def abandon(self) -> None:
        """After a fork: the socket is the parent's, and nothing may be said on it."""
        self.sender = None
        self.line = threading.Lock()
        self.guard = Guard()


def _send(sender: ServiceBusSender, what: Any, timeout_s: float) -> None:
    """A list goes as one batch. The SDK would do the same, but converts every message twice on the way."""
    if type(what) is list:
        messages, what = what, sender.create_message_batch()
        for message in messages:
            what.add_message(message)
    sender.send_messages(what, timeout=timeout_s)

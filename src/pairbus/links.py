"""A sync SDK sender that is opened when it is needed, serialised, and thrown away after trouble.

The SDK's sender hangs and loses messages when threads share it, and blocks for ever on a silent peer (measured): here
one call is under way at a time, each with a deadline, and a new connection is first probed over the same path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender

from pairbus import sdk
from pairbus.guard import Late, bury, guarded
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
        self._line = threading.Lock()
        self._retired = False
        self._client = client
        self._side = side
        self.path = path
        self._connect_timeout_s = connect_timeout_s
        self._options = sender_options
        self._sender: ServiceBusSender | None = None
        self._limits = (0, 0)

    def enter(self, timeout_s: float) -> bool:
        """Stand in line; False when the time was over first."""
        return self._line.acquire(timeout=max(timeout_s, 0))

    def leave(self) -> None:
        if self._retired:
            self.drop()
        self._line.release()

    def retire(self) -> None:
        """Not needed any more: its connection is closed as soon as nobody uses it."""
        self._retired = True
        if self._line.acquire(blocking=False):
            self.leave()

    @property
    def limits(self) -> tuple[int, int]:
        """(largest message, largest batch) that the link takes, or took when it was last open; 0: not known yet."""
        sender = self._sender
        known = self._limits if sender is None else sdk.link_limits(sender)
        return known if known[0] else self._limits

    def send(self, what: Any, timeout_s: float) -> Failure | None:
        """One attempt; the failure, or None when the namespace has accepted it."""
        if type(what) is list:
            return self.call(lambda sender, left_s: _send_list(sender, what, left_s), timeout_s)[1]
        return self.call(lambda sender, left_s: sender.send_messages(what, timeout=left_s), timeout_s)[1]

    def call(
        self, use: Callable[[ServiceBusSender, float], T], timeout_s: float, *, sending: bool = True
    ) -> tuple[T | None, Failure | None]:
        """One use of the sender within the time given. Errors that are not a namespace's are raised."""
        deadline = time.monotonic() + timeout_s
        try:
            sender = self._sender or self._open(deadline)
        except (OSError, TimeoutError) as error:
            return None, sdk.failure_of(error, sending=False)
        try:
            left_s = max(deadline - time.monotonic(), 0.001)
            return guarded(use, sender, deadline, sender, left_s), None
        except Late as error:
            self.drop()
            return None, Failure(Kind.TIMEOUT, f"{self.path}: {error}", sending, error.timeout_error())
        except Exception as error:
            failure = sdk.failure_of(error, sending=sending)
            if failure is None:
                self.drop()
                raise
            if failure.kind in BROKEN:
                self.drop()
            return None, failure

    def _open(self, deadline: float) -> ServiceBusSender:
        if self._side.supports_probe:
            self._side.probe(min(self._connect_timeout_s, max(deadline - time.monotonic(), 0.001)))
        self._sender = sdk.new_sender(self._client, self.path, **self._options)
        return self._sender

    def drop(self) -> None:
        """The next use opens a new connection."""
        self._limits = self.limits
        sender, self._sender = self._sender, None
        if sender is not None:
            bury(sender)

    def abandon(self) -> None:
        """After a fork: the socket is the parent's, and nothing may be said on it."""
        self._sender = None
        self._line = threading.Lock()


def _send_list(sender: ServiceBusSender, messages: list[ServiceBusMessage], timeout_s: float) -> None:
    """As one batch. The SDK would do the same, but converts every message twice on the way."""
    batch = sender.create_message_batch()
    for message in messages:
        batch.add_message(message)
    sender.send_messages(batch, timeout=timeout_s)

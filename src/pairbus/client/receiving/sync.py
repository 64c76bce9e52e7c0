"""The receiver for threads: it hands each call to the engine's thread, and waits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Self

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus import ServiceBusSession as SdkSession

from pairbus.client.receiving import entity_receiver
from pairbus.client.receiving.entity_receiver import DRAIN_S, OPEN_S, WAIT_S
from pairbus.client.receiving.face import (
    SHUT_DOWN,
    Handover,
    Messages,
    ReceiverFace,
    ReceiverWork,
    Request,
    now_ns,
    renewed,
    settlement,
)
from pairbus.sdk import received as sdk
from pairbus.telemetry import operations
from pairbus.transport import TransportError
from pairbus.transport.times import CLOSE_TIMEOUT_S


class ServiceBusReceiver(ReceiverFace):
    """A receiver of one queue or subscription, or of their dead letters. Any number of threads may share it."""

    def __enter__(self) -> Self:
        if self._closed:
            raise ValueError(SHUT_DOWN)
        self._check_live()
        wait_s = (self._options.max_wait_time or WAIT_S) if self._options.any_session else 0.0
        self._run(lambda receiver: receiver.open(), OPEN_S + wait_s)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        """Iterate over messages until none has come for `max_wait_time`, or without it until `close`."""
        while found := self._receive_next():
            yield found[0]

    def __next__(self) -> ServiceBusReceivedMessage:
        found = self._receive_next()
        if not found:
            raise StopIteration
        return found[0]

    next = __next__

    @property
    def session(self) -> ServiceBusSession:
        """The session; None on an entity without sessions."""
        return self._session  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the receiver: messages that nobody has read are given back, a call that waits returns."""
        receiver = self._closing()
        if receiver is not None and self._client._life.has_engine:
            self._run(lambda receiver: receiver.close(), 2 * DRAIN_S + CLOSE_TIMEOUT_S)

    # ── receiving ──

    @operations.receive
    def receive_messages(self, max_message_count: int | None = 1, max_wait_time: float | None = None) -> Messages:
        """Return messages as soon as there is one, at most `max_message_count`; none when none came in time."""
        count, wait_s = self._check_receive(max_message_count, max_wait_time)
        return self._receive(count, wait_s)

    @operations.receive
    def _receive_next(self) -> Messages:
        self._check_live()
        return self._receive(1, self._options.max_wait_time or math.inf)

    def _receive(self, count: int, wait_s: float) -> Messages:
        if not count:
            return []
        began_ns, handover = now_ns(), Handover()
        try:
            incoming = self._run(
                lambda receiver: handover.take(receiver, count, wait_s),
                None if wait_s == math.inf else wait_s + DRAIN_S,
            )
            return self._delivered(incoming, began_ns)
        except BaseException:
            handover.is_abandoned = True
            if self._present.receiver is not None:
                handover.give_back(self._present.receiver)
            raise

    def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> Messages:
        began_ns, request = now_ns(), self._receiving_deferred(sequence_numbers, timeout, kwargs)
        return [] if request is None else self._deferred(self._ask(request.name, request), began_ns)

    def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0, timeout: float | None = None, **kwargs: Any
    ) -> Messages:
        """Return messages without locking them, from a sequence number on, or behind the last one that was seen."""
        began_ns, request = now_ns(), self._peeking(max_message_count, sequence_number, timeout, kwargs)
        return self._peeked(self._ask(request.name, request), began_ns)

    # ── settling ──

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Complete a message: the queue removes it. Like every settlement it returns after the service's answer."""
        self._settle(message, "complete")

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give a message back to the queue; the delivery counts."""
        self._settle(message, "abandon")

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Set a message aside: from now on it is received by its sequence number only."""
        self._settle(message, "defer")

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move a message to the dead-letter queue."""
        self._settle(message, "dead-letter", reason, error_description)

    @operations.settle
    def _settle(self, message: Any, operation: str, reason: str | None = None, description: str | None = None) -> None:
        locked, said = self._check_settling(message, operation), settlement(operation, reason, description)
        with self._span_of(message, operation):
            began, timeout_s = time.monotonic(), entity_receiver.SETTLE_S
            try:
                self._client._run(
                    lambda engine: self._in_engine(engine).settle_on_link(locked, said, timeout_s), timeout_s=timeout_s
                )
            except TransportError as error:
                failed, left_s = error, timeout_s - (time.monotonic() - began)
                self._run(lambda receiver: receiver.settle_otherwise(locked, said, failed, left_s), left_s)
            sdk.mark_settled(message)

    def renew_message_lock(
        self, message: ServiceBusReceivedMessage, *, timeout: float | None = None, **kwargs: Any
    ) -> datetime:
        """Renew the lock of a message; return its new end."""
        request = self._renewing(message, timeout, kwargs)
        return renewed(message, self._ask(request.name, request))

    # ── the engine ──

    @operations.ask
    def _ask(self, name: str, request: Request) -> Any:
        return self._run(request.work, request.timeout_s)

    def _run(self, work: ReceiverWork, timeout_s: float | None) -> Any:
        try:
            return self._client._run(self._in(work), timeout_s=timeout_s)
        finally:
            self._note_session()

    def _new_session(self, session_id: Any) -> ServiceBusSession:
        return ServiceBusSession(session_id, self)  # type: ignore[arg-type]


class ServiceBusSession(SdkSession):
    """The session of a receiver: its id, its state, its lock."""

    _receiver: Any

    def get_state(self, *, timeout: float | None = None, **kwargs: Any) -> bytes:
        request = self._receiver._getting_state(timeout, kwargs)
        return self._receiver._ask(request.name, request)  # type: ignore[no-any-return]

    def set_state(self, state: str | bytes | bytearray | None, *, timeout: float | None = None, **kwargs: Any) -> None:
        request = self._receiver._setting_state(state, timeout, kwargs)
        self._receiver._ask(request.name, request)

    def renew_lock(self, *, timeout: float | None = None, **kwargs: Any) -> datetime:
        request = self._receiver._renewing_session(timeout, kwargs)
        self._receiver._ask(request.name, request)
        assert self.locked_until_utc is not None
        return self.locked_until_utc

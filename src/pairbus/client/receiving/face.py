"""The parts of every receiver that need no event loop: checks, messages and sessions, the same for asyncio and threads.

A face outlives engines: in another event loop, and in a forked child, it has another receiver inside the new engine.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import SessionLockLostError

from pairbus.client.receiving.entity_receiver import SETTLE_S, WAIT_S, EntityReceiver
from pairbus.client.receiving.incoming import Incoming
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.receiving.settling import Locked, Settle, Settlement
from pairbus.sdk import received as sdk
from pairbus.sdk import tracing
from pairbus.transport import Deferred

if TYPE_CHECKING:
    from pairbus.client.engine import Engine
    from pairbus.client.face import ClientFace

SHUT_DOWN = "The handler has already been shutdown. Please use ServiceBusClient to create a new instance."

PLAIN = {operation.value: Settlement(operation) for operation in Settle}
"Settlements that say nothing about the message."

Messages = list[ServiceBusReceivedMessage]
ReceiverWork = Callable[[EntityReceiver], Awaitable[Any]]


class Request(NamedTuple):
    """One request to the management of an entity."""

    name: str
    "Name of the operation for telemetry."
    work: ReceiverWork
    timeout_s: float


class PresentReceiver:
    """The receiver inside the present engine, which outlives neither the engine nor the face."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self.receiver: EntityReceiver | None = None

    def of(self, engine: Engine, options: ReceiverOptions) -> EntityReceiver:
        """Return the receiver of this engine, in whose loop this is called."""
        if self._engine is not engine or self.receiver is None:
            self.receiver = engine.new_receiver(options)
            self._engine, self._pid = engine, os.getpid()
        return self.receiver

    def forget(self) -> None:
        """Close the receiver of a face that was collected; the garbage collector may call this in any thread."""
        if self.receiver is not None and self._pid == os.getpid():
            self.receiver.close_soon()


class Handover:
    """Messages on their way to a caller, who may have been interrupted when they come."""

    def __init__(self) -> None:
        self.is_abandoned = False
        self._incoming: list[Incoming] = []

    async def take(self, receiver: EntityReceiver, count: int, wait_s: float) -> list[Incoming]:
        self._incoming = incoming = await receiver.receive(count, wait_s)
        if self.is_abandoned:
            self.give_back(receiver)
        return incoming

    def give_back(self, receiver: EntityReceiver) -> None:
        """Release what has come for nobody; any thread may call this."""
        incoming, self._incoming = self._incoming, []
        if incoming:
            receiver.release_soon(incoming)


class ReceiverFace:
    """A receiver of one entity, with the surface of the SDK's. Any number of callers may settle; calls that receive
    take turns."""

    def __init__(self, client: ClientFace[Any, Any], options: ReceiverOptions) -> None:
        self._client: Any = client  # the receiver keeps its client at work
        self._state = client._state
        self._options = options
        self._closed = False
        self._present = PresentReceiver()
        self._accepted_by: EntityReceiver | None = None
        "The receiver whose session was made known to the lock renewer."
        self._last_sequence_number: int | None = None
        self._session: Any = None
        self.entity_path = options.path
        self.fully_qualified_namespace: str = client._primary.fully_qualified_namespace
        self.client_identifier = options.client_identifier
        if options.has_session:
            self._session = self._new_session(NEXT_AVAILABLE_SESSION if options.any_session else options.session_id)
        weakref.finalize(self, self._present.forget).atexit = False

    def __repr__(self) -> str:
        receiver = self._present.receiver
        ended = self._state.ended or ("closed" if self._closed else "")
        state = ended or ("not open" if receiver is None else receiver.state)
        session = "" if self._session is None else f" session={self._session.session_id}"
        return f"<{type(self).__name__} {self.entity_path}{session} {state}>"

    def __str__(self) -> str:
        return f"Receiver client id: {self.client_identifier}, entity: {self.entity_path}"

    @property
    def receive_mode(self) -> ServiceBusReceiveMode:
        return self._options.receive_mode

    # ── names that the SDK's messages, sessions and lock renewers ask for ──

    @property
    def _running(self) -> bool:
        return not (self._closed or self._state.ended)

    _handler = None

    # ── checks, in the order of the SDK ──

    def _check_live(self) -> None:
        self._state.check_receiver()
        if self._closed or self._state.is_closed:
            raise ValueError(SHUT_DOWN)
        if self._session is not None and (self._is_session_lost or sdk.is_session_over(self._session)):
            raise SessionLockLostError(error=self._session.auto_renew_error)

    @property
    def _is_session_lost(self) -> bool:
        return self._present.receiver is not None and self._present.receiver.is_session_lost

    def _check_receive(self, max_message_count: int | None, max_wait_time: float | None) -> tuple[int, float]:
        """Return the number of messages (0: none are asked for) and the seconds to wait for the first."""
        self._check_live()
        if max_wait_time is not None and max_wait_time <= 0:
            raise ValueError("The max_wait_time must be greater than 0.")
        if max_message_count is not None and max_message_count <= 0:
            raise ValueError("The max_message_count must be greater than 0")
        wait_s = max_wait_time or self._options.max_wait_time or WAIT_S
        return max_message_count or self._options.prefetch_count, wait_s

    def _check_settling(self, message: Any, operation: str) -> Locked:
        self._check_live()
        sdk.check_message(message)
        sdk.check_alive(message, operation, self._options.receive_mode, is_open=self._running)
        if self._session is None:
            sdk.check_lock(message)
        return Locked(sdk.place_of(message), message.lock_token)

    # ── work for the engine ──

    def _in_engine(self, engine: Engine) -> EntityReceiver:
        return self._present.of(engine, self._options)

    def _in(self, work: ReceiverWork) -> Callable[[Engine], Coroutine[Any, Any, Any]]:
        """Return work for the engine that is done by the receiver inside it."""

        async def run(engine: Engine) -> Any:
            return await work(self._in_engine(engine))

        return run

    def _note_session(self) -> None:
        """Tell the session what the engine knows of it, and the lock renewer when it was accepted."""
        receiver = self._present.receiver
        if receiver is None or self._session is None:
            return
        sdk.note_session(self._session, receiver.session_id, receiver.session_locked_until)
        if receiver.is_open and self._accepted_by is not receiver:
            self._accepted_by = receiver
            sdk.begin_session(self._session)
            if self._options.auto_lock_renewer:
                self._options.auto_lock_renewer.register(self, self._session)

    def _closing(self) -> EntityReceiver | None:
        """Return what is to be closed; None when there is nothing, or no longer an engine that has it."""
        was_closed, self._closed = self._closed, True
        return None if was_closed or self._state.ended else self._present.receiver

    # ── messages ──

    def _delivered(self, incoming: Sequence[Incoming], began_ns: int) -> Messages:
        messages = [each.message(self) for each in incoming]
        if messages:
            self._last_sequence_number = messages[-1].sequence_number
        return self._handed_out(messages, tracing.RECEIVE, began_ns)

    def _deferred(self, found: Sequence[Deferred], began_ns: int) -> Messages:
        mode = self._options.receive_mode
        messages = [sdk.deferred(each.payload, each.lock_token, mode, self) for each in found]
        return self._handed_out(messages, tracing.RECEIVE_DEFERRED, began_ns)

    def _handed_out(self, messages: Messages, name: str, began_ns: int) -> Messages:
        self._tell_received(name, messages, began_ns)
        renewer = self._options.auto_lock_renewer
        if renewer and self._session is None and self._options.locks:
            for message in messages:
                renewer.register(self, message)
        return messages

    def _peeked(self, payloads: Sequence[bytes], began_ns: int) -> Messages:
        messages = [sdk.peeked(payload, self) for payload in payloads]
        if messages:
            self._last_sequence_number = messages[-1].sequence_number
        self._tell_received(tracing.PEEK, messages, began_ns)
        return messages

    # ── requests ──

    def _peeking(self, count: int, sequence_number: int, timeout: float | None, unknown: Mapping[str, Any]) -> Request:
        _warn(unknown)
        self._check_live()
        timeout_s = timeout_of(timeout)
        first = sequence_number or (self._last_sequence_number or 0) + 1
        if int(count) < 0:
            raise ValueError("max_message_count must be 1 or greater.")
        return Request("peek", lambda receiver: receiver.peek(first, count, timeout_s), timeout_s)

    def _receiving_deferred(
        self, sequence_numbers: int | list[int], timeout: float | None, unknown: Mapping[str, Any]
    ) -> Request | None:
        """Return the request; None when no message is asked for."""
        _warn(unknown)
        self._check_live()
        timeout_s = timeout_of(timeout)
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        if not numbers:
            return None
        return Request("receive_deferred", lambda receiver: receiver.receive_deferred(numbers, timeout_s), timeout_s)

    def _renewing(self, message: Any, timeout: float | None, unknown: Mapping[str, Any]) -> Request:
        _warn(unknown)
        if self._session is not None:
            raise TypeError(
                "Renewing message lock is an invalid operation when working with sessions."
                "Please renew the session lock instead."
            )
        self._check_live()
        sdk.check_alive(message, sdk.RENEW, self._options.receive_mode, is_open=self._running)
        token = message.lock_token
        if not token:
            raise ValueError("Unable to renew lock - no lock token found.")
        timeout_s = timeout_of(timeout, SETTLE_S)
        return Request("renew_lock", lambda receiver: receiver.renew([token], timeout_s), timeout_s)

    def _of_session(
        self,
        name: str,
        work: Callable[[EntityReceiver, float], Awaitable[Any]],
        timeout: float | None,
        default_s: float,
    ) -> Request:
        self._check_live()
        timeout_s = timeout_of(timeout, default_s)
        return Request(name, lambda receiver: work(receiver, timeout_s), timeout_s)

    def _getting_state(self, timeout: float | None, unknown: Mapping[str, Any]) -> Request:
        _warn(unknown)
        return self._of_session("get_state", EntityReceiver.get_state, timeout, WAIT_S)

    def _setting_state(self, state: Any, timeout: float | None, unknown: Mapping[str, Any]) -> Request:
        _warn(unknown)
        encoded = state.encode() if isinstance(state, str) else state if state is None else bytes(state)

        def set_state(receiver: EntityReceiver, timeout_s: float) -> Awaitable[None]:
            return receiver.set_state(encoded, timeout_s)

        return self._of_session("set_state", set_state, timeout, WAIT_S)

    def _renewing_session(self, timeout: float | None, unknown: Mapping[str, Any]) -> Request:
        _warn(unknown)
        return self._of_session("renew_session_lock", EntityReceiver.renew_session, timeout, SETTLE_S)

    # ── spans ──

    @property
    def _traced_as(self) -> tuple[str, str]:
        """The namespace and the entity, as the SDK writes them into spans."""
        path = self._options.path
        topic, _, subscription = path.partition("/Subscriptions/")
        return self.fully_qualified_namespace, path if "/" in subscription else topic

    def _tell_received(self, name: str, messages: Messages, began_ns: int) -> None:
        if tracing.is_on():
            tracing.tell_received(*self._traced_as, name, messages, began_ns)

    def _span_of(self, message: Any, operation: str) -> AbstractContextManager[None]:
        return tracing.settling(*self._traced_as, operation, message) if tracing.is_on() else tracing.NO_SPAN

    def _new_session(self, session_id: Any) -> Any:
        raise NotImplementedError


def settlement(operation: str, reason: str | None, description: str | None) -> Settlement:
    if reason is None and description is None:
        return PLAIN[operation]
    return Settlement(Settle(operation), reason, description)


def timeout_of(timeout: float | None, default_s: float = WAIT_S) -> float:
    if timeout is None:
        return default_s
    if timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")
    return timeout


def renewed(message: Any, ends_s: Sequence[float]) -> datetime:
    return sdk.mark_renewed(message, ends_s[0])


def now_ns() -> int:
    return time.time_ns()


def _warn(unknown: Mapping[str, Any]) -> None:
    if unknown:
        warnings.warn(f"Unsupported keyword args: {dict(unknown)}", stacklevel=4)

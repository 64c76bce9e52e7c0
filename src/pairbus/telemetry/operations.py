"""Operations of clients by OpenTelemetry's messaging conventions: the duration of each, and delivered messages.

This file has decorators for the few functions through which every operation goes. Without OpenTelemetry they return the
function as it is; without a meter provider or a metrics reader, an operation only reads the clock once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, wraps
from inspect import iscoroutinefunction
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pairbus.telemetry import (
    DESTINATION,
    DISPOSITION,
    ERROR,
    OPERATION,
    PLACE,
    SUBSCRIPTION,
    SYSTEM,
    TYPE,
    Attribute,
    available,
    failed,
    is_traced,
    span,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram

Function = TypeVar("Function", bound=Callable[..., Any])

# Seconds, as in the conventions.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
ATTRIBUTES_KEPT = 4096
LOOK_S = 1.0  # between two looks for a metrics reader
RECORDED = (
    ("messaging.client.operation.duration", "histogram", "s", "Duration of one operation of a client"),
    ("messaging.client.consumed.messages", "counter", "{message}", "Messages that were delivered to the application"),
)
"Name, kind, unit and description of the instruments that record each operation when it ends."

_REQUESTS = {"peek": "receive", "receive_deferred": "receive", "renew_lock": None, "renew_session_lock": None}
"Requests of a receiver that are measured, each with the type of the operation."


class OperationStart(NamedTuple):
    """Facts about an operation that are known when it begins."""

    name: str
    type: str | None
    path: str
    disposition: str | None = None


class OperationEnd(NamedTuple):
    """Facts about an operation that are known when it has ended."""

    messages: int = 0
    "Messages that were delivered to the application."
    place: str | None = None


BeginOperation = Callable[..., OperationStart | None]
"Function of the arguments of the call; returns None when the call is not measured."
EndOperation = Callable[[OperationStart | None, Any], OperationEnd]
"Function of the operation and the result of the call."


class Recording:
    """State of recording: on as soon as a metrics reader takes the records, for which it looks once a second."""

    def __init__(self) -> None:
        self._is_on = False
        self._look_at = 0.0

    def is_on(self) -> bool:
        if not self._is_on and (now := monotonic()) >= self._look_at:
            self._look_at = now + LOOK_S
            self._is_on = _has_reader()
        return self._is_on


_recording = Recording()


def is_recording() -> bool:
    """Return True when somebody reads what is recorded."""
    return available() and _recording.is_on()


def _has_reader() -> bool:
    from opentelemetry import metrics

    provider = metrics.get_meter_provider()
    if type(provider).__module__.startswith("opentelemetry.metrics"):  # providers of the API itself drop all records
        return False
    readers = getattr(provider, "_metric_readers", None)  # an older SDK has them in its configuration
    if readers is None:
        readers = getattr(getattr(provider, "_sdk_config", None), "metric_readers", None)
    return readers is None or bool(readers)  # unknown in another SDK: it gets all records


def _measured(
    begin: BeginOperation, end: EndOperation = lambda operation, returned: OperationEnd()
) -> Callable[[Function], Function]:
    """Make a decorator that records each call of a function or a coroutine function."""

    def decorate(function: Function) -> Function:
        if not available():
            return function

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if not _recording.is_on():
                return function(*args, **kwargs)
            operation, began = begin(*args, **kwargs), perf_counter()
            try:
                returned = function(*args, **kwargs)
            except BaseException as error:
                _record(operation, began, OperationEnd(), error)
                raise
            _record(operation, began, end(operation, returned), None)
            return returned

        @wraps(function)
        async def measured_async(*args: Any, **kwargs: Any) -> Any:
            if not _recording.is_on():
                return await function(*args, **kwargs)
            operation, began = begin(*args, **kwargs), perf_counter()
            try:
                returned = await function(*args, **kwargs)
            except BaseException as error:
                _record(operation, began, OperationEnd(), error)
                raise
            _record(operation, began, end(operation, returned), None)
            return returned

        return measured_async if iscoroutinefunction(function) else measured  # type: ignore[return-value]

    return decorate


def _record(operation: OperationStart | None, began: float, ended: OperationEnd, error: BaseException | None) -> None:
    if operation is None:
        return
    if isinstance(error, StopIteration | StopAsyncIteration):  # the end of an iteration: no message arrived
        error = None
    duration, consumed = _instruments()
    attributes = _attributes(operation, ended.place, None if error is None else type(error).__qualname__)
    duration.record(perf_counter() - began, attributes)
    if ended.messages:
        consumed.add(ended.messages, attributes)


@lru_cache(ATTRIBUTES_KEPT)
def _attributes(operation: OperationStart, place: str | None, error: str | None) -> Mapping[str, Attribute]:
    topic, _, subscription = operation.path.partition("/Subscriptions/")
    attributes = {
        SYSTEM: "servicebus",
        OPERATION: operation.name,
        TYPE: operation.type,
        DESTINATION: topic,
        SUBSCRIPTION: subscription or None,
        DISPOSITION: operation.disposition,
        PLACE: place,
        ERROR: error,
    }
    return {name: value for name, value in attributes.items() if value is not None}


@cache
def _instruments() -> tuple[Histogram, Counter]:
    """Create the instruments once per process; they follow the meter provider that is set later."""
    from opentelemetry import metrics

    from pairbus import __version__

    meter = metrics.get_meter("pairbus", __version__)
    (name, _, unit, text), (consumed, _, consumed_unit, consumed_text) = RECORDED
    try:
        duration = meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=BOUNDS)
    except TypeError:  # an API before 1.30: then only views of the application can set the bounds
        duration = meter.create_histogram(name, unit, text)
    return duration, meter.create_counter(consumed, consumed_unit, consumed_text)


# ── sends ──


def _send(_: Any, origin: Any, *__: Any) -> OperationStart:
    return OperationStart("send", "send", origin.path)


def _request(_: Any, origin: Any, outgoing: Any, *__: Any) -> OperationStart:
    """Begin the operation of a request: with messages it schedules, without messages it cancels."""
    return (
        OperationStart("cancel_scheduled", None, origin.path)
        if outgoing is None
        else OperationStart("schedule", "send", origin.path)
    )


send = _measured(_send, lambda _, receipt: OperationEnd(place=receipt.where.value))
"Decorator of a coroutine `(self, origin, …)` that returns a receipt."
request = _measured(_request)
"Decorator of a coroutine `(self, origin, messages or None, …)`."


def divert(function: Function) -> Function:
    """Put a span around an attempt at a backlog queue, `(self, origin, outgoing, …)`, with links to its messages."""
    if not available():
        return function

    @wraps(function)
    async def diverted(self: Any, origin: Any, outgoing: Any, attempt: Any) -> Any:
        if not is_traced():
            return await function(self, origin, outgoing, attempt)
        facts: dict[str, Attribute] = {TYPE: "send", DESTINATION: origin.path}
        with span("divert", facts, list(outgoing.payloads)) as current:
            reply = await function(self, origin, outgoing, attempt)
            if reply.failure is not None:
                failed(current, reply.failure.text, reply.failure.error)
            return reply

    return diverted  # type: ignore[return-value]


# ── receivers ──


def _settle(receiver: Any, message: Any, settlement: str, *_: Any, **__: Any) -> OperationStart:
    status = settlement.replace("-", "_")
    return OperationStart(status, "settle", receiver.entity_path, status)


def _ask(receiver: Any, name: str, *_: Any, **__: Any) -> OperationStart | None:
    return OperationStart(name, _REQUESTS[name], receiver.entity_path) if name in _REQUESTS else None


def _receive(receiver: Any, *_: Any, **__: Any) -> OperationStart:
    return OperationStart("receive", "receive", receiver.entity_path)


def _delivered(operation: OperationStart | None, returned: Any) -> OperationEnd:
    """Count delivered messages; those of a peek are not delivered."""
    if operation is None or operation.name not in ("receive", "receive_deferred"):
        return OperationEnd()
    return OperationEnd(len(returned))


receive = _measured(_receive, _delivered)
"Decorator of a receiver's method that returns messages."
settle = _measured(_settle)
"Decorator of a receiver's method `(self, message, settlement, …)`."
ask = _measured(_ask, _delivered)
"Decorator of a receiver's method `(self, name of an operation, …)`."

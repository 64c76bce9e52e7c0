"""Spans and durations of the handlers of processors, by OpenTelemetry's messaging conventions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING

from pairbus.telemetry import (
    BATCH,
    DISPOSITION,
    ERROR,
    OPERATION,
    SYSTEM,
    TYPE,
    Attribute,
    is_traced,
    place_of,
    span,
    tracer,
)
from pairbus.telemetry.context import links_to
from pairbus.telemetry.operations import BOUNDS, is_recording

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram

DURATION = ("messaging.process.duration", "histogram", "s", "Duration of one handler of a processor")
"Name, kind, unit and description of the instrument."
STATUSES = {"complete": "completed", "abandon": "abandoned", "defer": "deferred", "dead-letter": "dead_lettered"}
_NOTHING: AbstractContextManager[None] = nullcontext()


def process(path: str, payload: bytes) -> AbstractContextManager[None]:
    """Return the span around one handler, linked to the span of the send. Its duration is recorded too."""
    return _NOTHING if not (is_recording() or is_traced()) else _process(path, payload)


@contextmanager
def _process(path: str, payload: bytes) -> Iterator[None]:
    facts: dict[str, Attribute] = {OPERATION: "process", TYPE: "process", **place_of(path)}
    error: BaseException | None = None
    began = perf_counter()
    try:
        with _span(path, facts, payload):
            yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if is_recording():
            failure = {} if error is None else {ERROR: type(error).__qualname__}
            _duration().record(perf_counter() - began, {SYSTEM: "servicebus", **facts, **failure})


def _span(path: str, facts: dict[str, Attribute], payload: bytes) -> AbstractContextManager[object]:
    if not is_traced():
        return _NOTHING
    from opentelemetry.trace import SpanKind

    return tracer().start_as_current_span(
        f"process {path}",
        kind=SpanKind.CONSUMER,
        attributes={SYSTEM: "servicebus", **facts},
        links=links_to([payload]),
    )


def settle(path: str, operation: str, payloads: Sequence[bytes]) -> AbstractContextManager[object]:
    """Return the span around the settlement of messages, linked to the spans of their sends."""
    if not is_traced():
        return _NOTHING
    facts: dict[str, Attribute] = {TYPE: "settle", **place_of(path)}
    facts |= {DISPOSITION: STATUSES[operation], BATCH: len(payloads)}
    return span(operation.replace("-", "_"), facts, payloads)


@cache
def _duration() -> Histogram:
    """Create the instrument once per process; it follows the meter provider that is set later."""
    from opentelemetry import metrics

    from pairbus import __version__

    meter = metrics.get_meter("pairbus", __version__)
    name, _, unit, text = DURATION
    try:
        return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=BOUNDS)
    except TypeError:  # an API before 1.30: then only views of the application can set the bounds
        return meter.create_histogram(name, unit, text)

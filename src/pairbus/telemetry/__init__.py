"""Counters of clients, as metrics and spans of OpenTelemetry, where its API is installed, and as pages of Prometheus.

Metrics are read from counters when a metrics reader asks, so a send does no work for them. Names follow
OpenTelemetry's messaging conventions where those have one; `docs/telemetry.md` lists all names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Literal

from pairbus.telemetry.context import links_to
from pairbus.telemetry.counters import FAILED_OVER, HEALTHY, HELD_OVER, SUSPECT, Snapshot

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Tracer

SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
OPERATION = "messaging.operation.name"
TYPE = "messaging.operation.type"
SUBSCRIPTION = "messaging.destination.subscription.name"
DISPOSITION = "messaging.servicebus.disposition_status"
BATCH = "messaging.batch.message_count"
QUEUE = "pairbus.backlog.queue"
CLIENT = "messaging.client.id"
PLACE = "pairbus.place"
ERROR = "error.type"

STATES = {HEALTHY: 0, SUSPECT: 1, FAILED_OVER: 2, HELD_OVER: 2}

Attribute = str | int | float | bool
Point = tuple[int, Mapping[str, Attribute]]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    description: str
    points: Callable[[Snapshot], Iterator[Point]]


def _sent(snapshot: Snapshot) -> Iterator[Point]:
    for path, counts in snapshot["entities"].items():
        for place, field in (("primary", "sent"), ("backlog", "diverted"), ("spool", "spooled")):
            yield int(counts[field]), {OPERATION: "send", DESTINATION: path, PLACE: place}
        # The conventions count failed messages in the same metric; the events tell which error it was.
        yield int(counts["failed"]), {OPERATION: "send", DESTINATION: path, ERROR: "_OTHER"}


def _entity_points(field: str) -> Callable[[Snapshot], Iterator[Point]]:
    return lambda snapshot: ((int(counts[field]), {DESTINATION: path}) for path, counts in snapshot["entities"].items())


def _queue_points(field: str) -> Callable[[Snapshot], Iterator[Point]]:
    return lambda snapshot: ((int(counts[field]), {DESTINATION: path}) for path, counts in snapshot["queues"].items())


def _states(snapshot: Snapshot) -> Iterator[Point]:
    for path, counts in snapshot["entities"].items():
        yield STATES[str(counts["state"])], {DESTINATION: path}


SETTLED = {
    "completed": "completed",
    "abandoned": "abandoned",
    "deferred": "deferred",
    "dead_lettered": "dead_lettered",
    "released": "released",
}
"Counter of a processor → disposition status of its messages."


def _processor_points(field: str) -> Callable[[Snapshot], Iterator[Point]]:
    return lambda snapshot: ((counts[field], place_of(path)) for path, counts in snapshot["processors"].items())


def _settled(snapshot: Snapshot) -> Iterator[Point]:
    for path, counts in snapshot["processors"].items():
        for field, status in SETTLED.items():
            yield counts[field], {OPERATION: "settle", **place_of(path), DISPOSITION: status}


def place_of(path: str) -> dict[str, str]:
    """Return the attributes that name a queue or a subscription."""
    topic, _, subscription = path.partition("/Subscriptions/")
    return {DESTINATION: topic, SUBSCRIPTION: subscription} if subscription else {DESTINATION: topic}


METRICS = (
    Metric("messaging.client.sent.messages", "counter", "{message}", "Messages by where they were stored", _sent),
    Metric("pairbus.pings", "counter", "{ping}", "Pings of entities that are failed over", _entity_points("pings")),
    Metric("pairbus.failovers", "counter", "{failover}", "Failovers of entities", _entity_points("failovers")),
    Metric("pairbus.recoveries", "counter", "{recovery}", "Failovers that ended", _entity_points("recovered")),
    Metric("pairbus.moved.messages", "counter", "{message}", "Messages moved home", _queue_points("moved")),
    Metric("pairbus.dead_lettered.messages", "counter", "{message}", "Dead-lettered", _queue_points("dead_lettered")),
    Metric("pairbus.entity.state", "gauge", "1", "0 healthy, 1 suspect, 2 failed over", _states),
    Metric(
        "pairbus.backlog.out_of_rotation",
        "gauge",
        "{queue}",
        "Backlog queues that failed and are not used for a while",
        lambda snapshot: iter([(snapshot["out_of_rotation"], {})]),
    ),
    Metric(
        "pairbus.spool.messages",
        "gauge",
        "{message}",
        "Messages that wait in the local spool",
        lambda snapshot: iter([(snapshot["spool_depth"], {})]),
    ),
    Metric("pairbus.processor.active", "gauge", "{handler}", "Handlers that run", _processor_points("active")),
    Metric(
        "pairbus.processor.waiting",
        "gauge",
        "{message}",
        "Messages that wait for a handler",
        _processor_points("waiting"),
    ),
    Metric("pairbus.processor.settled.messages", "counter", "{message}", "Messages that processors settled", _settled),
    Metric("pairbus.processor.failures", "counter", "{handler}", "Handlers that failed", _processor_points("failed")),
    Metric(
        "pairbus.processor.retries",
        "counter",
        "{message}",
        "Further attempts after a delay",
        _processor_points("retried"),
    ),
    Metric(
        "pairbus.processor.lock_losses", "counter", "{lock}", "Locks that were lost", _processor_points("locks_lost")
    ),
    Metric("pairbus.processor.renewals", "counter", "{lock}", "Locks that were renewed", _processor_points("renewals")),
)

_sources: dict[int, tuple[str, Callable[[], Snapshot]]] = {}
_source_ids = count()


def register(client: str, counters: Callable[[], Snapshot]) -> Callable[[], None]:
    """Show the counters of a client to metrics readers, under the name `client`. Return a function that ends this.

    A reader's thread calls `counters` some times a minute.
    """
    if not available():
        return _nothing
    _make_instruments()
    source_id = next(_source_ids)
    _sources[source_id] = (client, counters)

    def unregister() -> None:
        _sources.pop(source_id, None)

    return unregister


def span(
    operation: str, attributes: Mapping[str, Attribute], messages: Iterable[bytes] = ()
) -> AbstractContextManager[object]:
    """Return a span around a rare operation: a diverted send, a ping, a pass of the syphon.

    Its name is the operation and, where the attributes have one, the destination. It has links to the spans of
    `messages`, encoded messages that are read only when the application traces. An exception that passes through is
    recorded and marks the span as failed; for an error that is returned call `failed`.
    """
    if not is_traced():
        return _NO_SPAN
    from opentelemetry.trace import SpanKind

    destination = attributes.get(DESTINATION)
    return tracer().start_as_current_span(
        operation if destination is None else f"{operation} {destination}",
        kind=SpanKind.CLIENT,
        attributes={SYSTEM: "servicebus", OPERATION: operation, **attributes},
        links=links_to(messages),
    )


def failed(span: object, reason: str, error: BaseException | None) -> None:
    """Mark a span of `span` as failed, for code that returns an error and does not raise it."""
    if not available():
        return
    from opentelemetry.trace import Span, Status, StatusCode

    if isinstance(span, Span):
        if error is not None:
            span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, reason))


_NO_SPAN: AbstractContextManager[object] = nullcontext()


def _nothing() -> None:
    pass


@cache
def available() -> bool:
    """Return True when the API of OpenTelemetry is installed."""
    try:
        return find_spec("opentelemetry.metrics") is not None and find_spec("opentelemetry.trace") is not None
    except ModuleNotFoundError:  # no package of OpenTelemetry is installed
        return False


def is_traced() -> bool:
    """Return True when the application has OpenTelemetry and a tracer provider; without one spans would be dropped."""
    if not available():
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@cache
def tracer() -> Tracer:
    from opentelemetry import trace

    from pairbus import __version__

    return trace.get_tracer("pairbus", __version__)


@cache
def _make_instruments() -> None:
    """Create the instruments once per process for all clients: a second one of the same name would hide the first."""
    from opentelemetry import metrics

    from pairbus import __version__

    meter = metrics.get_meter("pairbus", __version__)
    for metric in METRICS:
        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(metric.name, callbacks=[_callback(metric)], unit=metric.unit, description=metric.description)


def _callback(metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
    from opentelemetry.metrics import Observation

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for client, counters in list(_sources.values()):
            for value, attributes in metric.points(counters()):
                yield Observation(value, {SYSTEM: "servicebus", CLIENT: client, **attributes})

    return observe

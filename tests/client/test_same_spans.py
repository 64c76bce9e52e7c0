"""Tracing: the spans of our senders are those of the plain SDK, and its messages carry the same context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, cast

import pytest
from azure.core.settings import settings
from azure.core.tracing import Link, SpanKind
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from opentelemetry import context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pairbus.amqp.message import Message
from tests.client.plain import Caller, Who
from tests.client.world import Stage
from tests.scripted import Reject
from tests.sdk.flavours import Flavour

QUEUE = "orders"
LATER = datetime.now(UTC) + timedelta(hours=1)
EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
TRACER = PROVIDER.get_tracer("tests")
KINDS = {SpanKind.CLIENT: trace.SpanKind.CLIENT, SpanKind.PRODUCER: trace.SpanKind.PRODUCER}


class Span:
    """azure-core's span on OpenTelemetry, as far as a sender needs it: the plugin that has it is another package."""

    def __init__(self, name: str, kind: SpanKind, links: list[Link] | None = None, **_: Any) -> None:
        linked = [trace.get_current_span(propagate.extract(link.headers)).get_span_context() for link in links or ()]
        self._span = TRACER.start_span(name, kind=KINDS[kind], links=[trace.Link(one) for one in linked])
        self._token: Any = None

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.detach(self._token)
        self._span.end()

    def to_header(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        propagate.inject(headers, trace.set_span_in_context(self._span))
        return headers

    def add_attribute(self, key: str, value: Any) -> None:
        self._span.set_attribute(key, value)


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    settings.tracing_implementation.set_value(cast(Any, Span))
    yield
    settings.tracing_implementation.unset_value()
    EXPORTER.clear()


def message(message_id: str = "a") -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=message_id, application_properties={"own": 1})


async def batch(caller: Caller, sender: Any) -> Any:
    made = await caller.call(sender.create_message_batch)
    for one in "ab":
        made.add_message(message(one))
    return made


async def one(caller: Caller, sender: Any) -> None:
    await caller.call(sender.send_messages, message())


async def annotated(caller: Caller, sender: Any) -> None:
    given = AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": "a"})
    await caller.call(sender.send_messages, given)


async def several(caller: Caller, sender: Any) -> None:
    await caller.call(sender.send_messages, [message("a"), message("b"), message("c")])


async def batched(caller: Caller, sender: Any) -> None:
    await caller.call(sender.send_messages, await batch(caller, sender))


async def scheduled(caller: Caller, sender: Any) -> None:
    await caller.call(sender.schedule_messages, [message("a"), message("b")], LATER)


async def failing(caller: Caller, sender: Any) -> None:
    with pytest.raises(Exception, match="by the script"):
        await caller.call(sender.send_messages, message("refused"))


def told(spans: tuple[ReadableSpan, ...]) -> list[Any]:
    """Turn spans into comparable values, with links by the position of the span that they name."""
    places = {span.context.span_id: place for place, span in enumerate(spans)}
    return [
        (
            span.name,
            span.kind,
            dict(span.attributes or {}),
            [places[link.context.span_id] for link in span.links],
            None if span.parent is None else places.get(span.parent.span_id),
        )
        for span in spans
    ]


def contexts(payloads: list[bytes], spans: tuple[ReadableSpan, ...]) -> list[Any]:
    """The names of the properties of each message in their order, and the place of the span that they name."""
    places = {f"{span.context.span_id:016x}": place for place, span in enumerate(spans)}
    found = []
    for payload in payloads:
        properties = {
            key.decode() if isinstance(key, bytes) else str(key): value.decode() if isinstance(value, bytes) else value
            for key, value in (Message.decode(payload).application_properties or {}).items()
        }
        assert properties["traceparent"] == properties["Diagnostic-Id"]
        found.append((list(properties), places[properties["traceparent"].split("-")[2]]))
    return found


@pytest.mark.parametrize("work", [one, annotated, several, batched, scheduled, failing])
async def test_spans_and_contexts_are_those_of_the_plain_sdk(
    stage: Stage, flavour: Flavour, work: Callable[[Caller, Any], Any]
) -> None:
    """Names, kinds, attributes, links, parents; `traceparent` and `Diagnostic-Id` in the messages."""
    if work is failing:
        stage.primary.on("transfer", Reject("amqp:not-allowed", "by the script"), path=QUEUE)
    seen = []
    who: Who
    for who in ("plain", "paired", "single"):
        caller = Caller(stage, who, flavour)
        sender = caller.client.get_queue_sender(QUEUE)
        before = len(stage.primary.received), len(stage.primary.scheduled(QUEUE))
        EXPORTER.clear()
        with TRACER.start_as_current_span("request"):
            await work(caller, sender)
        spans = EXPORTER.get_finished_spans()
        payloads = [each for received in stage.primary.received[before[0] :] for each in received.messages]
        payloads += stage.primary.scheduled(QUEUE)[before[1] :]
        seen.append((told(spans), contexts(payloads, spans)))
        if who == "plain":
            await caller.close()
    plain, *ours = seen
    assert len(plain[1]) > 0 and plain[0][0][0] == "ServiceBus.message"
    assert ours == [plain, plain]

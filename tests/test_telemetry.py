"""Spans and metrics of a client in an application's OpenTelemetry; an application without it pays nothing.

Providers are global and can be set once in a process: each case is a process of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pairbus.amqp.message import Message
from pairbus.telemetry import METRICS, operations
from pairbus.telemetry.context import parent_of
from pairbus.telemetry.operations import RECORDED
from pairbus.telemetry.processing import DURATION as PROCESS_DURATION

PAGE = (Path(__file__).parents[1] / "docs" / "telemetry.md").read_text(encoding="utf-8")
CHILD_S = 30.0

WITH = """
import asyncio, json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pairbus import telemetry
from pairbus.telemetry.counters import Counters
from pairbus.pairing import events

def points():
    found = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else []:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "pairbus"
            for metric in scope.metrics:
                found[metric.name] = [metric.unit, [[p.value, dict(p.attributes)] for p in metric.data.data_points]]
    return found

orders, other = Counters(lambda: 4), Counters()
unregister = telemetry.register("orders-api", orders.snapshot)   # before the application has set its providers
reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(tracers)

orders.entity("orders").sent += 5
orders.entity("orders").failed += 2
queue = "contoso/x-servicebus-transfer/3"
for event in (
    events.Suspected("orders", "refused", 10.0),
    events.FailedOver("orders", 10.0, 4, "refused"),
    events.PingSent("orders", False, "refused"),
    events.Diverted("orders", queue, 3, ("a", "b", "c"), False),
    events.Spooled("orders", 1, 1),
    events.Moved("orders", queue, 2, ("a", "b")),
    events.DeadLettered(queue, "c", "TooLarge", "too large"),
    events.BacklogQueueFailed(queue, "full", 60.0),
):
    orders.note(event)
first = points()
other.entity("invoices").sent += 1
telemetry.register("other", other.snapshot)
both = points()
unregister()
after = points()

async def passes():
    with telemetry.span("syphon", {"pairbus.moved": 2}):
        await asyncio.sleep(0)
        with telemetry.span("ping", {"messaging.destination.name": "orders"}):
            pass
asyncio.run(passes())
try:
    with telemetry.span("divert", {"messaging.destination.name": "orders"}):
        raise OSError("no queue left")
except OSError:
    pass
spans = [
    {"name": s.name, "attributes": dict(s.attributes), "ok": s.status.is_ok, "parent": s.parent and s.parent.span_id,
     "id": s.context.span_id}
    for s in exporter.get_finished_spans()
]
print(json.dumps({"first": first, "both": both, "after": after, "spans": spans}))
"""

DIVERTED = """
import asyncio, json, sys
from azure.servicebus import ServiceBusMessage
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import pairbus, pairbus.aio
from tests.scripted import Reject, ScriptedThread

exporter = InMemorySpanExporter()
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(tracers)
options = {"primary_name": "stage", "create_backlog_queues": False, "backlog_queue_count": 2}

async def answer_of(answer):
    return await answer if asyncio.iscoroutine(answer) else answer

async def send(kind, primary, secondary):
    client = kind.from_connection_strings(primary.connection_string, secondary.connection_string, **options)
    client.force_failover("orders")
    sender = client.get_queue_sender("orders")
    await answer_of(sender.send_messages(ServiceBusMessage("hello")))
    await answer_of(client.close())

with ScriptedThread() as primary, ScriptedThread() as secondary:
    secondary.on("transfer", Reject("amqp:resource-limit-exceeded"), times=1)
    kind = {"sync": pairbus, "aio": pairbus.aio}[sys.argv[1]].PairedServiceBusClient
    asyncio.run(send(kind, primary, secondary))
spans = [span for span in exporter.get_finished_spans() if span.name == "divert orders"]
print(json.dumps([[span.status.status_code.name, span.status.description, [event.name for event in span.events]]
    for span in spans]))
"""

OPERATIONS = """
import asyncio, json, sys
from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import pairbus, pairbus.aio
from pairbus.testing import BrokerThread
from tests.client.test_same_spans import Span, TRACER

reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(tracers)
settings.tracing_implementation.set_value(Span)

async def answer_of(answer):
    return await answer if asyncio.iscoroutine(answer) else answer

async def play(kind, home, away):
    options = {"primary_name": "stage", "backlog_queue_count": 1, "create_backlog_queues": False, "enable_syphon": True}
    client = kind.from_connection_strings(home.connection_string, away.connection_string, **options)
    sender = client.get_queue_sender("orders")
    await answer_of(sender.send_messages(ServiceBusMessage("direct")))
    receiver = client.get_queue_receiver("orders")
    [direct] = await answer_of(receiver.receive_messages(1, max_wait_time=10))
    await answer_of(receiver.complete_message(direct))
    client.force_failover("orders")
    await answer_of(sender.send_messages(ServiceBusMessage("diverted")))
    client.force_healthy("orders")
    [moved] = await answer_of(receiver.receive_messages(1, max_wait_time=20))
    await answer_of(receiver.dead_letter_message(moved, reason="Broken"))
    try:
        await answer_of(client.get_queue_sender("missing").send_messages(ServiceBusMessage("lost")))
    except Exception:
        pass
    await answer_of(receiver.close())
    await answer_of(client.close())
    return moved.application_properties[b"traceparent"].decode()

with BrokerThread() as broker:
    home, away = broker.add_namespace("home"), broker.add_namespace("away")
    home.create_queue("orders")
    away.create_queue("stage/x-servicebus-transfer/0")
    kind = {"sync": pairbus, "aio": pairbus.aio}[sys.argv[1]].PairedServiceBusClient
    parent = asyncio.run(play(kind, home, away))

durations, consumed = {}, {}
for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
    for metric in scope.metrics if scope.scope.name == "pairbus" else ():
        for point in metric.data.data_points:
            facts = {name.removeprefix("messaging."): value for name, value in point.attributes.items()}
            if metric.name == "messaging.client.operation.duration":
                durations[json.dumps(facts, sort_keys=True)] = [point.count, point.sum, list(point.explicit_bounds)]
            elif metric.name == "messaging.client.consumed.messages":
                consumed[json.dumps(facts, sort_keys=True)] = point.value
spans = [
    {"name": s.name, "kind": s.kind.name, "attributes": dict(s.attributes), "ok": s.status.is_ok,
     "links": [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in s.links]}
    for s in exporter.get_finished_spans()
]
print(json.dumps({"durations": durations, "consumed": consumed, "spans": spans, "parent": parent}))
"""

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None   # as if it were not installed: importing it fails
from pairbus import telemetry
from pairbus.telemetry import operations
from pairbus.telemetry.counters import Counters

def plain(receiver): pass
for decorate in (operations.receive, operations.settle, operations.ask, operations.divert, operations.send):
    assert decorate(plain) is plain
asked = []
unregister = telemetry.register("c", lambda: asked.append(1) or Counters().snapshot())
with telemetry.span("ping", {"messaging.destination.name": "orders"}), telemetry.span("syphon", {}):
    pass
unregister()
assert not asked
assert not [name for name in sys.modules if name.startswith("opentelemetry.")]
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "already" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(WITH))
    return found


def values(points: dict[str, Any], name: str) -> dict[str, int]:
    """Value by the attributes that tell the points of a metric apart."""
    return {
        attributes.get("pairbus.place")
        or attributes.get("error.type")
        or attributes.get("messaging.destination.name", ""): value
        for value, attributes in points[name][1]
    }


def test_every_number_arrives(seen: dict[str, Any]) -> None:
    """The client was made before the application set up its telemetry."""
    points, queue = seen["first"], "contoso/x-servicebus-transfer/3"
    assert {name: values(points, name) for name in points} == {
        "messaging.client.sent.messages": {"primary": 5, "backlog": 3, "spool": 1, "_OTHER": 2},
        "pairbus.pings": {"orders": 1},
        "pairbus.failovers": {"orders": 1},
        "pairbus.recoveries": {"orders": 0},
        "pairbus.moved.messages": {queue: 2},
        "pairbus.dead_lettered.messages": {queue: 1},
        "pairbus.entity.state": {"orders": 2},
        "pairbus.backlog.out_of_rotation": {"": 1},
        "pairbus.spool.messages": {"": 4},
    }
    for _, of_metric in points.values():
        for _, attributes in of_metric:
            assert attributes["messaging.system"] == "servicebus" and attributes["messaging.client.id"] == "orders-api"


def test_two_clients_are_told_apart_and_a_closed_one_is_gone(seen: dict[str, Any]) -> None:
    """One instrument serves all clients; a second of the same name would be refused."""

    def clients(moment: str) -> set[str]:
        return {attributes["messaging.client.id"] for _, attributes in seen[moment]["pairbus.pings"][1]}

    assert clients("first") == {"orders-api"}
    assert clients("both") == {"orders-api", "other"}
    assert clients("after") == {"other"}


def test_spans_are_named_by_operation_and_destination_and_tell_failures(seen: dict[str, Any]) -> None:
    """Spans nest, also over an await."""
    ping, syphon, divert = seen["spans"]
    assert [span["name"] for span in (ping, syphon, divert)] == ["ping orders", "syphon", "divert orders"]
    assert ping["attributes"] == {
        "messaging.system": "servicebus",
        "messaging.operation.name": "ping",
        "messaging.destination.name": "orders",
    }
    assert ping["parent"] == syphon["id"] and ping["ok"] and not divert["ok"]


@pytest.mark.parametrize("flavour", ["sync", "aio"])
def test_an_attempt_at_a_backlog_queue_that_failed_is_marked_as_failed(flavour: str) -> None:
    """The sender answers its failure and does not raise it. The next queue takes the message: that span is well."""
    (code, reason, told), stored = json.loads(run(DIVERTED, flavour))
    assert code == "ERROR" and "resource-limit-exceeded" in reason and told == ["exception"]
    assert stored == ["UNSET", None, []]


@pytest.fixture(scope="module", params=["sync", "aio"])
def played(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Play a program: a message goes home, one is diverted and moved, one is refused; received ones are settled."""
    found: dict[str, Any] = json.loads(run(OPERATIONS, request.param))
    return found


def facts(found: dict[str, Any], **wanted: str) -> list[Any]:
    """Values of the points that have these attributes."""
    return [value for key, value in found.items() if wanted.items() <= json.loads(key).items()]


def test_operations_are_timed_by_name_type_and_outcome(played: dict[str, Any]) -> None:
    """Bounds are those of the conventions; a send says where its messages are, a settlement has its outcome."""
    durations, orders = played["durations"], {"destination.name": "orders", "system": "servicebus"}
    named = {name: {"operation.name": name, **orders} for name in ("send", "receive", "complete", "dead_letter")}
    for place in ("primary", "backlog"):
        [[count, seconds, bounds]] = facts(
            durations, **named["send"], **{"pairbus.place": place, "operation.type": "send"}
        )
        assert count == 1 and 0 < seconds < CHILD_S
        assert bounds[:2] == [0.005, 0.01] and bounds[-1] == 10.0
    assert sum(count for count, *_ in facts(durations, **named["receive"], **{"operation.type": "receive"})) == 2
    for name in ("complete", "dead_letter"):
        settled = {"operation.type": "settle", "servicebus.disposition_status": name}
        assert [count for count, *_ in facts(durations, **named[name], **settled)] == [1]
    [failed] = [json.loads(key) for key in durations if "error.type" in key]
    assert failed["destination.name"] == "missing" and failed["error.type"] == "ServiceBusAuthenticationError"


def test_delivered_messages_are_counted(played: dict[str, Any]) -> None:
    """Each message is counted once."""
    assert sum(facts(played["consumed"], **{"operation.name": "receive", "destination.name": "orders"})) == 2


def test_spans_of_diversion_and_syphon_link_to_the_message(played: dict[str, Any]) -> None:
    """The link is the context in the message: the way of a diverted message is one click in a trace view."""
    _, trace_id, span_id, _ = played["parent"].split("-")
    by_name = {span["name"]: span for span in played["spans"]}
    queue = "stage/x-servicebus-transfer/0"
    for name in ("divert orders", "move orders", f"complete {queue}"):
        assert by_name[name]["links"] == [f"{trace_id}-{span_id}"], name
        assert by_name[name]["kind"] == "CLIENT" and by_name[name]["ok"]
    assert by_name["move orders"]["attributes"]["pairbus.backlog.queue"] == queue
    settled = by_name[f"complete {queue}"]["attributes"]
    assert settled["messaging.servicebus.disposition_status"] == "complete"
    assert (settled["messaging.operation.type"], settled["messaging.batch.message_count"]) == ("settle", 1)


CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARENT = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 1)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message(application_properties={"traceparent": CONTEXT}, data=[b"x"]).encode(), PARENT),
        (Message(application_properties={"a": 1, "Diagnostic-Id": CONTEXT}, data=[b"x"]).encode(), PARENT),
        (Message(application_properties={"traceparent": "no context"}, data=[b"x"]).encode(), None),
        (Message(data=[Message(application_properties={"traceparent": CONTEXT}, data=[b"x"]).encode()]).encode(), None),
        (b"no message", None),
    ],
    ids=["traceparent", "older SDKs", "no context", "in the body", "no message"],
)
def test_context_is_read_from_the_properties_alone(message: bytes, expected: tuple[int, int, int] | None) -> None:
    """A body that looks like one says nothing about its message."""
    assert parent_of(message) == expected


@pytest.mark.parametrize(
    ("provider", "expected"),
    [(NoOpMeterProvider(), False), (MeterProvider([]), False), (MeterProvider([InMemoryMetricReader()]), True)],
)
def test_nothing_is_recorded_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, provider: metrics.MeterProvider, expected: bool
) -> None:
    """Recording costs some microseconds; a provider that comes later is noticed within a second."""
    recording = operations.Recording()
    assert not recording.is_on()
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    assert not recording.is_on()
    monkeypatch.setattr(operations, "monotonic", lambda: time.monotonic() + operations.LOOK_S)
    assert recording.is_on() is expected


def test_without_opentelemetry_nothing_is_imported_and_nothing_asked() -> None:
    """Most applications have none."""
    run(WITHOUT)


def test_the_page_has_every_metric_with_its_kind_and_unit() -> None:
    """The page has no others."""
    documented = re.findall(r"^\| `([\w.]+)` \| (\w+) \| `([^`]+)` \|", PAGE, re.MULTILINE)
    observed = [(metric.name, metric.kind, metric.unit) for metric in METRICS]
    assert documented == [*observed, *((name, kind, unit) for name, kind, unit, _ in (PROCESS_DURATION, *RECORDED))]

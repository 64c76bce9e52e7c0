"""What an application's OpenTelemetry sees of a client, and that an application without it sees and pays nothing.

Providers are global and can be set once in a process: each case is a process of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pairbus.telemetry import METRICS

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

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None   # as if it were not installed: importing it fails
from pairbus import telemetry
from pairbus.telemetry.counters import Counters

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
    """Value by what tells the points of a metric apart."""
    return {
        attributes.get("pairbus.place")
        or attributes.get("error.type")
        or attributes.get("messaging.destination.name", ""): value
        for value, attributes in points[name][1]
    }


def test_every_number_arrives(seen: dict[str, Any]) -> None:
    """Also of a client that was made before the application set up its telemetry."""
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
    """They nest, also over an await."""
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


def test_without_opentelemetry_nothing_is_imported_and_nothing_asked() -> None:
    """Most applications have none."""
    run(WITHOUT)


def test_the_page_has_every_metric_with_its_kind_and_unit() -> None:
    """And no other."""
    documented = re.findall(r"^\| `([\w.]+)` \| (\w+) \| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert documented == [(metric.name, metric.kind, metric.unit) for metric in METRICS]

"""A processor is seen: in metrics, spans, the ledger and `pairbus status`."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

import pairbus
import pairbus.aio
from pairbus.cli.pair.status_clients import lines_of_processors, processors_of
from pairbus.host.control.asking import ask
from pairbus.ledger import read
from pairbus.testing.broker_thread import BrokerThread
from tests.processing.desk import Desk, until

TRACED = """
import asyncio, json, sys
from azure.servicebus import ServiceBusMessage
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import pairbus.aio

reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(tracers)

async def main():
    ended = asyncio.Event()
    async def handle(message):
        if str(message) == "bad":
            ended.set()
            raise pairbus.aio.DeadLetter("Bad")
    async with pairbus.aio.ServiceBusClient.from_connection_string(sys.argv[1]) as client:
        sender = client.get_queue_sender("traced")
        parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        for body in ("good", "bad"):
            await sender.send_messages(ServiceBusMessage(body, application_properties={"traceparent": parent}))
        async with client.get_queue_processor("traced", handle) as processor:
            await ended.wait()
        found = {}
        for resource in reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = [
                        [getattr(p, "count", None) or getattr(p, "value", None), dict(p.attributes)]
                        for p in metric.data.data_points
                    ]
    spans = [
        [s.name, s.kind.name, dict(s.attributes), [format(l.context.trace_id, "x") for l in s.links]]
        for s in exporter.get_finished_spans()
    ]
    print(json.dumps([found, spans]))

asyncio.run(main())
"""


@pytest.fixture
def flavour() -> str:
    return "aio"


def test_handlers_and_settlements_have_spans_with_links_and_durations(broker: BrokerThread) -> None:
    broker.create_queue("traced")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TRACED), broker.connection_string()],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    metrics, spans = json.loads(done.stdout)
    processed = [span for span in spans if span[0] == "process traced"]
    assert [(kind, links) for _, kind, _, links in processed] == [("CONSUMER", ["a" * 32])] * 2
    settled = {span[2]["messaging.servicebus.disposition_status"]: span[3] for span in spans if span not in processed}
    assert settled == {"completed": ["a" * 32], "dead_lettered": ["a" * 32]}
    durations = metrics["messaging.process.duration"]
    assert {attributes.get("error.type"): count for count, attributes in durations} == {None: 1, "DeadLetter": 1}
    by_status = {
        attributes["messaging.servicebus.disposition_status"]: value
        for value, attributes in metrics["pairbus.processor.settled.messages"]
    }
    assert (by_status["completed"], by_status["dead_lettered"]) == (1, 1)
    assert metrics["pairbus.processor.failures"][0][0] == 0, "to dead-letter is no failure"


async def test_ledger_counts_receives_and_settlements(desk: Desk, broker: BrokerThread, tmp_path: Path) -> None:
    queue = desk.queue()
    client = pairbus.aio.ServiceBusClient.from_connection_string(broker.connection_string(), ledger=tmp_path)
    await desk.send(queue, "a", "b", "c")
    async with client, client.get_queue_processor(queue, desk.handler(lambda message: None)) as processor:
        await until(lambda: processor.counts.completed == 3, "all are completed")
    counted: dict[str, int] = {}
    for row in read(tmp_path):
        if row.entity == queue:
            counted[row.kind] = counted.get(row.kind, 0) + (row.count or 0)
    assert (counted["receive"], counted["complete"]) == (3, 3)


async def test_status_tells_a_processor_that_gets_no_messages(
    desk: Desk, broker: BrokerThread, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through the control socket of the client."""
    folder = tmp_path_factory.mktemp("s")
    socket = folder / f"{uuid.uuid4().hex[:6]}.sock"
    queue = desk.queue()
    client = pairbus.aio.ServiceBusClient.from_connection_string(broker.connection_string(), control_socket=socket)
    async with client, client.get_queue_processor(queue, desk.handler(lambda message: None)) as processor:
        outage = broker.namespace().outage("refuse")
        await until(lambda: processor.outage is not None, "the outage is noticed")
        status, said = ask(socket, "GET", "/", None, 10.0)
        assert status == 200
        outage.end()
        (seen,) = processors_of([said])
        assert (seen.path, seen.state) == (queue, "running")
        assert seen.outage
        head, line = lines_of_processors([seen], 1e9)
        assert head == "processors on this machine: 1, 1 of them get no messages"
        assert f"{queue}: no messages since" in line
        await until(lambda: processor.outage is None, "the outage ends", within_s=30)
        (seen,) = processors_of([ask(socket, "GET", "/", None, 10.0)[1]])
        assert seen.outage is None
    assert client.counters["processors"][queue]["active"] == 0

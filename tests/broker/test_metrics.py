"""`GET /metrics` of a namespace, from a real broker, read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import pairbus.broker
from pairbus.amqp.message import Message, Properties
from pairbus.auth.sas import SharedAccessKey, sign
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY, Broker, NamespaceOptions
from pairbus.broker.config.entity_settings import SubscriptionConfig
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.monitoring.metrics import namespace_families
from pairbus.telemetry.metrics.text import CONTENT_TYPE, render_all
from pairbus.transport import connect

LISTENER = SharedAccessKey("listener", "only listens", rights=frozenset({"Listen"}))
SENDER = SharedAccessKey("sender", "only sends", rights=frozenset({"Send"}))
FAR_S = 4_000_000_000
PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
Samples = dict[tuple[str, ...], float]
"(name, values of the labels in the order of their names) → value."


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    options = NamespaceOptions(
        "contoso",
        queues=(QueueDescription("orders", lock_duration_ms=5_000, max_size_mb=2),),
        topics=(TopicDescription("events"),),
        subscriptions=(SubscriptionConfig(SubscriptionDescription("events", "audit"), None),),
        keys=(LISTENER, SENDER),
    )
    async with Broker([options], data=tmp_path / "data") as running:
        yield running


def address(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker._ports['contoso'].number}"


async def get(broker: Broker, path: str, key: SharedAccessKey | None = None, **headers: str) -> tuple[int, str, str]:
    if key is not None:
        headers["Authorization"] = sign(f"{address(broker)}/", key.name, key.key, FAR_S)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{address(broker)}/{path}", headers=headers) as answer,
    ):
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def scraped(broker: Broker) -> Samples:
    status, kind, text = await get(broker, "metrics")
    assert (status, kind) == (200, CONTENT_TYPE)
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = (one.name, *(value for _, value in sorted(one.labels.items())))
            assert key not in found, f"{key} comes twice"
            found[key] = one.value
    return found


def message(name: str) -> bytes:
    return Message(properties=Properties(message_id=name), data=[name.encode()]).encode()


async def test_counts_have_the_names_of_the_known_exporters(broker: Broker) -> None:
    """Dashboards and alerts that were made for these exporters work."""
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("orders")).send_batch([message("a"), message("b")])
        await (await connection.sender("events")).send(message("c"))
        receiver = await connection.receiver("orders", credit=1)
        await receiver.dead_letter(await receiver.receive(1, 5.0), "Broken", "")
        found = await scraped(broker)
    assert found["servicebus_up", "contoso"] == 1
    for name, expected in (
        ("active_messages", 1),
        ("dead_letter_messages", 1),
        ("scheduled_messages", 0),
        ("transfer_messages", 0),
        ("transfer_dead_letter_messages", 0),
        ("max_size_bytes", 2 << 20),
    ):
        assert found[f"servicebus_queue_{name}", "orders", "contoso"] == expected
    assert found["servicebus_queue_size_bytes", "orders", "contoso"] > 0
    assert found["servicebus_topic_size_bytes", "events", "contoso"] > 0
    assert found["servicebus_subscription_active_messages", "audit", "contoso", "events"] == 1
    assert found["pairbus_operations_total", "orders", "send", "contoso", "ok"] == 2
    assert found["pairbus_operations_total", "orders", "complete", "contoso", "ok"] == 1
    assert found["pairbus_connections", "contoso", "amqp"] == 1
    assert found["pairbus_connections", "contoso", "http"] >= 1
    assert found["pairbus_connections_opened_total", "contoso"] >= 2
    assert found["pairbus_links", "contoso"] == 3


async def test_commits_are_timed(broker: Broker) -> None:
    """A send that was accepted was committed; the fault that slows the disk down is in the time, as for clients."""
    before = await scraped(broker)
    broker.namespace("contoso").faults.add("slow-disk", delay_s=0.2, count=1)
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("orders")).send(message("a"))
    after = await scraped(broker)
    count, total = (
        ("pairbus_commit_duration_seconds_count", "contoso"),
        ("pairbus_commit_duration_seconds_sum", "contoso"),
    )
    assert after[count] > before[count]
    assert after[total] - before[total] > 0.19
    assert after["pairbus_commit_failures_total", "contoso"] == 0
    assert after["pairbus_commit_under_way_seconds", "contoso"] == 0
    assert after["pairbus_commit_duration_seconds_bucket", "+Inf", "contoso"] == after[count]


async def test_lock_that_runs_out_is_a_lock_loss(broker: Broker) -> None:
    """A lock whose message is settled in time is not a lock loss."""
    namespace = broker.namespace("contoso")
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("orders")).send_batch([message("a"), message("b")])
        receiver = await connection.receiver("orders", credit=2)
        received = await receiver.receive(1, 5.0)
        while len(received) < 2:
            received += await receiver.receive(1, 5.0)
        await receiver.complete(received[:1])
        await namespace.clock.advance(6)
        assert (await scraped(broker))["pairbus_lock_losses_total", "orders", "contoso"] == 1


async def test_faults_are_told_and_change_no_count(broker: Broker) -> None:
    """A namespace that refuses every operation still tells the truth, and that a fault is on."""
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("orders")).send(message("a"))
    namespace = broker.namespace("contoso")
    for kind in ("throttle", "internal-error"):
        namespace.faults.add(kind)
    found = await scraped(broker)
    assert found["servicebus_queue_active_messages", "orders", "contoso"] == 1
    assert found["pairbus_faults", "throttle", "contoso"] == found["pairbus_faults", "internal-error", "contoso"] == 1
    assert (await get(broker, "$metrics", LISTENER))[0] == 200
    namespace.faults.clear()
    assert not [key for key in await scraped(broker) if key[0] == "pairbus_faults"]


async def test_queue_may_be_called_metrics(broker: Broker) -> None:
    """Every administration client shows a token; whoever shows none asks for the page, as with `/health`."""
    root = SharedAccessKey(ROOT_KEY_NAME, WELL_KNOWN_KEY)
    assert (await get(broker, "metrics", root))[0] == 404
    await broker.namespace("contoso").create(QueueDescription("metrics"))
    assert "<QueueDescription" in (await get(broker, "metrics", root))[2]
    assert ("servicebus_queue_active_messages", "metrics", "contoso") in await scraped(broker)


async def test_reading_metrics_is_no_operation(broker: Broker) -> None:
    """If reading counted, the metrics would show the monitoring itself."""
    await get(broker, "$metrics", LISTENER)
    await scraped(broker)
    assert not [key for key in await scraped(broker) if key[0].startswith("pairbus_operation")]


async def test_beyond_the_loopback_a_key_with_listen_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names all entities. A broker that believes to listen elsewhere stands in for one that does."""
    monkeypatch.setattr(pairbus.broker, "is_loopback", lambda host: False)
    root = SharedAccessKey(ROOT_KEY_NAME, "own")
    async with Broker([NamespaceOptions("contoso", keys=(LISTENER, SENDER))], data=None, key="own") as broker:
        status, _, text = await get(broker, "metrics")
        assert status == 401 and "/$metrics" in text
        for key, expected in ((LISTENER, 200), (root, 200), (SENDER, 401)):
            assert (await get(broker, "$metrics", key))[0] == expected
        assert (await get(broker, "$metrics"))[0] == 401
        assert (await get(broker, "metrics", LISTENER))[0] == 401  # an entity of that name, which needs Manage


@pytest.mark.timed
async def test_thousand_entities_cost_little(tmp_path: Path) -> None:
    """Less than 50 ms of CPU, with three kinds of operations for each: others wait for the event loop meanwhile."""
    queues = tuple(QueueDescription(f"queue-{number:04}") for number in range(1_000))
    async with Broker([NamespaceOptions("contoso", queues=queues)], data=None) as broker:
        namespace = broker.namespace("contoso")
        assert namespace.meter is not None
        for queue in queues:
            for kind in ("send", "receive", "complete"):
                namespace.meter.count(queue.path, kind)
        took = []
        for _ in range(5):
            began = time.process_time()
            text = "".join(render_all(namespace_families(namespace, {"amqp": 1}, 1)))
            took.append(time.process_time() - began)
            await asyncio.sleep(0)
        assert text.count("\n") > 11_000
        assert min(took) < 0.05, took


async def test_page_of_the_documents_has_every_name(broker: Broker) -> None:
    """With its kind; and no other."""
    documented = set(re.findall(r"^\| `((?:servicebus|pairbus)_\w+)` \| (\w+) \| broker ", PAGE, re.MULTILINE))
    broker.namespace("contoso").faults.add("throttle", count=1)
    text = (await get(broker, "metrics"))[2]
    shown = set(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    found = {(re.sub(r"^servicebus_(topic|subscription)_", "servicebus_queue_", name), kind) for name, kind in shown}
    assert found == documented

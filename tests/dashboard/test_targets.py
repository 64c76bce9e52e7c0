"""Namespaces as the dashboard reaches them: the same facts by every way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pairbus.broker import Broker, NamespaceOptions, SubscriptionDescription, TopicDescription
from pairbus.client.sides import Side
from pairbus.dashboard.api import Page
from pairbus.dashboard.guard import Guard
from pairbus.dashboard.server import DashboardServer
from pairbus.dashboard.targets import AzureTarget, BrokerTarget, WatchedNamespace
from pairbus.dashboard.watch import Pairing, Watch
from pairbus.errors import ConfigError, FaultNotFound, PairbusError
from pairbus.explorer import Address, encoded, peek, send
from pairbus.ledger.prices import load
from pairbus.transport import Carrier
from tests.dashboard.world import API, CHANGING, PATIENCE_S, QUEUES


async def test_every_way_tells_the_same_counts(tmp_path: Path) -> None:
    """A namespace of Azure is asked by its administration, which our broker speaks too."""
    news = TopicDescription("news", requires_duplicate_detection=True, duplicate_window_ms=600_000)
    namespace = NamespaceOptions("contoso", queues=QUEUES, topics=(news,))
    async with Broker([namespace], data=tmp_path / "bus") as broker:
        await broker.namespace("contoso").create(SubscriptionDescription("news", "all"))
        text = broker.connection_string("contoso")
        async with Carrier(text) as carrier:
            await send(carrier, "orders", [encoded({"body": "x"})] * 3)
        side = Side.from_connection_string(text)
        targets: list[WatchedNamespace] = [
            BrokerTarget("contoso", side, text),
            BrokerTarget("contoso", side, text, control=tmp_path / "bus"),
            AzureTarget("contoso", side),
        ]
        for target in targets:
            entities = (await target.overview())["entities"]
            assert (entities["orders"]["active"], entities["orders"]["kind"]) == (3, "queue")
            assert entities["meetings"]["sessions"] is True
            assert entities["news/Subscriptions/all"]["kind"] == "subscription"
            assert entities["orders"]["max_bytes"] == 1 << 30
            assert "duplicate_window_s" not in entities["orders"]
            assert (entities["news"]["duplicate_window_s"], entities["news"]["status"]) == (600.0, "Active")
            await target.close()


async def test_control_socket_answers_when_the_port_does_not(tmp_path: Path) -> None:
    """The switch that began an outage must be able to end it."""
    async with Broker([NamespaceOptions("contoso", queues=QUEUES)], data=tmp_path / "bus") as broker:
        text = broker.connection_string("contoso")
        side = Side.from_connection_string(text)
        port, socket = (
            BrokerTarget("contoso", side, text),
            BrokerTarget("contoso", side, text, control=tmp_path / "bus"),
        )
        fault = await socket.switch("POST", "faults", {"kind": "refuse"})
        with pytest.raises(PairbusError, match="cannot be reached"):
            await port.overview()
        assert [one["kind"] for one in (await socket.overview())["faults"]] == ["refuse"]
        assert await socket.switch("DELETE", f"faults/{fault['id']}", None) == {"cleared": 1}
        assert (await port.overview())["faults"] == []
        with pytest.raises(FaultNotFound):
            await socket.switch("DELETE", f"faults/{fault['id']}", None)
        with pytest.raises(ConfigError):
            await socket.switch("POST", "faults", {"kind": "nonsense"})
        for target in (port, socket):
            await target.close()


async def test_namespace_without_switches_says_so() -> None:
    side = Side.from_connection_string("Endpoint=sb://contoso.example;SharedAccessKeyName=a;SharedAccessKey=b")
    with pytest.raises(ConfigError, match="no broker of Pairbus"):
        await AzureTarget("contoso", side).switch("POST", "faults", {"kind": "refuse"})


async def test_broker_without_a_ledger_counts_its_operations() -> None:
    """The page shows the running cost of every broker; the option for a ledger only decides what is written."""
    async with Broker([NamespaceOptions("contoso", queues=QUEUES)], data=None) as broker:
        text = broker.connection_string("contoso")
        async with Carrier(text) as carrier:
            await send(carrier, "orders", [encoded({"body": "x"})])
        target = BrokerTarget("contoso", Side.from_connection_string(text), text)
        overview = await target.overview()
        await target.close()
        assert overview["meter"]["send"][0] == 1


class WithoutSettings(AzureTarget):
    """A namespace that tells which entities there are, and not how they are set up."""

    async def overview(self) -> dict[str, Any]:
        return {"entities": {"news": {"kind": "topic"}, "news/Subscriptions/all": {"kind": "subscription"}}}


@pytest.mark.parametrize("kind", [AzureTarget, WithoutSettings])
async def test_redrive_keeps_letters_that_the_topic_would_drop(kind: type[AzureTarget]) -> None:
    """A topic that detects duplicates drops a message whose id it remembers: completed then, the letter is lost."""
    news = TopicDescription("news", requires_duplicate_detection=True, duplicate_window_ms=600_000)
    letters = Address.parse("news/Subscriptions/all", dead_letter=True)
    async with Broker([NamespaceOptions("contoso", topics=(news,))], data=None) as broker:
        await broker.namespace("contoso").create(SubscriptionDescription("news", "all"))
        text = broker.connection_string("contoso")
        target = kind("contoso", Side.from_connection_string(text))
        page = Page(Watch("contoso", [target], Pairing(lambda said: False), load("standard")), Guard(None))
        async with (
            Carrier(text) as carrier,
            DashboardServer(page, "127.0.0.1", 0) as server,
            aiohttp.ClientSession(server.url, headers=CHANGING) as browser,
        ):
            await send(carrier, "news", [encoded({"body": "x", "message_id": "m"})])
            receiver = await carrier.receiver(letters.owner, credit=1)
            await receiver.dead_letter(await receiver.receive(1, 5.0), "bad")
            await receiver.close()
            async with browser.post(f"{API}namespaces/contoso/redrive", json={"path": letters.owner}) as answer:
                job = await answer.json()
            async with asyncio.timeout(PATIENCE_S):
                while job["state"] == "running":
                    async with browser.get(f"{API}jobs/{job['number']}") as answer:
                        job = await answer.json()
            assert (job["state"], job["done"], job["left"]) == ("done", 0, 1), job
            assert len(await peek(carrier, letters)) == 1

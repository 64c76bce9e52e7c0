"""Namespaces as the dashboard reaches them: the same facts by every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.broker import Broker, NamespaceOptions, SubscriptionDescription, TopicDescription
from pairbus.client.sides import Side
from pairbus.dashboard.targets import AzureTarget, BrokerTarget, WatchedNamespace
from pairbus.errors import ConfigError, FaultNotFound, PairbusError
from pairbus.explorer import encoded, send
from pairbus.transport import Carrier
from tests.dashboard.world import QUEUES


async def test_every_way_tells_the_same_counts(tmp_path: Path) -> None:
    """A namespace of Azure is asked by its administration, which our broker speaks too."""
    namespace = NamespaceOptions("contoso", queues=QUEUES, topics=(TopicDescription("news"),))
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

"""`GET /metrics` of `pairbus dashboard`: entities of both sides, states, and who may read them."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client.parser import text_string_to_metric_families

from pairbus.aio import PairedServiceBusClient, ProcessorMessage
from pairbus.broker import Broker, NamespaceOptions, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.cli.serve.dashboard_page import Given, PageOptions, make_page
from pairbus.client.sides import Side
from pairbus.dashboard.metrics import look_families
from pairbus.dashboard.server import DashboardServer
from pairbus.errors import ConfigError
from pairbus.telemetry.metrics.serving import TOKEN_VARIABLE

DOCUMENT = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
BACKLOG = "contoso/x-servicebus-transfer/0"
Page = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the control sockets of this test apart; the path of a socket must be short."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        monkeypatch.setenv("PAIRBUS_CONTROL_DIR", f"{folder}/run")
        yield


@asynccontextmanager
async def served(broker: Broker, **options: Any) -> AsyncIterator[tuple[str, str | None]]:
    """Serve the dashboard of the pair; yield the address of its metrics, and the token of its page."""
    texts = [broker.connection_string(name) for name in ("contoso", "fabrikam")]
    given = [Given(Side.from_connection_string(text), text) for text in texts]
    page, token = await make_page(PageOptions(given, primary_name="contoso", rotation=1, **options))
    async with DashboardServer(page, "127.0.0.1", 0) as server:
        yield f"{server.url}metrics", token


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[Broker]:
    home = NamespaceOptions("contoso", queues=(QueueDescription("orders"),), topics=(TopicDescription("news"),))
    away = NamespaceOptions("fabrikam", queues=(QueueDescription(BACKLOG),))
    async with Broker([home, away], data=None, **options) as broker:
        await broker.namespace("contoso").create(SubscriptionDescription("news", "all"))
        yield broker


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def scraped(url: str) -> tuple[Page, str]:
    """Read the page as Prometheus does: samples by name and by the values of their labels."""
    status, text = await get(url)
    assert status == 200, text
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }, text


def has_all(page: Page) -> bool:
    """True when the look has the fault, both messages of the backlog, and the state of the client."""
    states = [value for key, value in page.items() if key[0] == "pairbus_entity_state"]
    diverted = [v for key, v in page.items() if key[0].startswith("messaging_client_sent") and "backlog" in key]
    is_on = ("pairbus_faults", "throttle", "contoso") in page and diverted == [2]
    return is_on and page["pairbus_backlog_messages", "fabrikam"] == 2 and states == [2]


async def test_entities_of_both_sides_and_states_are_on_the_page() -> None:
    """One target of Prometheus has the whole pair; the documents have every name, and no other."""
    async with pair() as broker, served(broker) as (url, _):
        client = PairedServiceBusClient.from_connection_strings(
            broker.connection_string("contoso"),
            broker.connection_string("fabrikam"),
            primary_name="contoso",
            backlog_queue_count=1,
            control_socket=True,
        )

        async def handle(message: ProcessorMessage) -> None: ...

        processor = client.get_subscription_processor("news", "all", handle)
        async with client, client.get_queue_sender("orders") as sender, processor:
            await sender.send_messages(ServiceBusMessage("to the primary"))
            client.force_failover("orders")
            await sender.send_messages([ServiceBusMessage("to the backlog")] * 2)
            broker.namespace("contoso").faults.add("throttle", entity="orders")
            async with asyncio.timeout(20):  # a scrape may get a look that is a moment old
                page, text = await scraped(url)
                while not has_all(page):
                    page, text = await scraped(url)
        assert page["servicebus_up", "contoso"] == page["servicebus_up", "fabrikam"] == 1
        assert page["servicebus_queue_active_messages", "orders", "contoso"] == 1
        assert page["servicebus_queue_active_messages", BACKLOG, "fabrikam"] == 2
        assert page["servicebus_subscription_active_messages", "all", "contoso", "news"] == 0
        assert page["servicebus_topic_max_size_bytes", "news", "contoso"] == 1 << 30
        assert page["pairbus_faults", "throttle", "contoso"] == 1
        assert page["pairbus_backlog_messages", "fabrikam"] == 2
        states = {key[-1]: value for key, value in page.items() if key[0] == "pairbus_entity_state"}
        assert states == {"orders": 2}
        diverted = [v for key, v in page.items() if key[0].startswith("messaging_client_sent") and "backlog" in key]
        assert diverted == [2]
        documented = set(re.findall(r"^\| `(\w+)` \| (\w+) \| dashboard", DOCUMENT, re.MULTILINE))
        shown = set(re.findall(r"^# TYPE ((?:pairbus|messaging)_\w+) (\w+)$", text, re.MULTILINE))
        assert shown == documented


async def test_namespace_that_is_away_has_no_counts() -> None:
    """The last counts would be taken for those of now."""
    async with pair() as broker, served(broker) as (url, _):
        assert ("servicebus_queue_size_bytes", "orders", "contoso") in (await scraped(url))[0]
        broker.namespace("contoso").faults.add("refuse")
        async with asyncio.timeout(20):
            while (page := (await scraped(url))[0])["servicebus_up", "contoso"]:
                pass
        assert page["servicebus_up", "fabrikam"] == 1
        assert not any(key[0].startswith("servicebus_queue") and "contoso" in key for key in page)


@pytest.mark.parametrize("is_asked_by_socket", [True, False])
def test_faults_are_told_while_they_have_shut_the_port(is_asked_by_socket: bool) -> None:
    """The control socket answers during every fault; without it the last faults would be taken for those of now."""
    one = {"reachable": False, "faults": [{"id": 1, "kind": "refuse"}], "entities": {}}
    if not is_asked_by_socket:
        one["counts_as_of_ms"] = 1
    names = [family.name for family in look_families({"namespaces": {"contoso": one}}, [])]
    assert ("pairbus_faults" in names) is is_asked_by_socket


async def test_loopback_is_open_and_names_nothing_to_web_pages() -> None:
    """/metrics is open also with a key of one's own, which closes the page itself: as on the port of a broker."""
    async with pair(key="a key of my own") as broker, served(broker) as (url, token):
        assert token is not None
        assert (await get(url))[0] == 200
        assert (await get(url, Host="evil.example"))[0] == 421
        assert (await get(url, Origin="http://evil.example"))[0] == 403


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"hosts": frozenset({"bus.example"})}])
async def test_elsewhere_the_token_is_needed(options: dict[str, Any]) -> None:
    """A DNS name means that a proxy may bring strangers to the loopback."""
    async with pair(key="a key of my own") as broker, served(broker, **options) as (url, token):
        assert (await get(url))[0] == 401
        assert (await get(url, Authorization="Bearer wrong"))[0] == 401
        assert (await get(url, Authorization=f"Bearer {token}"))[0] == 200
        if "hosts" in options:
            assert (await get(url, Authorization=f"Bearer {token}", Host="bus.example"))[0] == 200


async def test_token_of_the_environment_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of the page changes with every start, and a scraper's configuration does not."""
    async with pair() as broker:
        monkeypatch.setenv(TOKEN_VARIABLE, "mine")
        async with served(broker) as (url, _):
            assert (await get(url))[0] == 401
            assert (await get(url, Authorization="Bearer mine"))[0] == 200
        monkeypatch.setenv(TOKEN_VARIABLE, "")
        with pytest.raises(ConfigError, match="is empty"):
            async with served(broker):
                pass

"""Two namespaces that the environment names: what is made in them has a prefix of its own and is deleted.

PAIRBUS_AZURE_PRIMARY and PAIRBUS_AZURE_SECONDARY are connection strings with the Manage claim, or hosts; hosts are
asked with azure-identity's DefaultAzureCredential.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.client.sides import Side
from pairbus.pairing.events import Event
from tests.azure import NAMES
from tests.client.world import Client
from tests.sdk.flavours import Flavour

RECEIVE_S = 30.0
BACKLOG_QUEUES = 2
SideName = Literal["primary", "secondary"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without `--azure` these tests are not there."""
    return None if config.getoption("azure") else True


class Pair:
    """The two namespaces, as one test module uses them."""

    def __init__(self) -> None:
        self.prefix = f"pairbus-{uuid.uuid4().hex[:8]}"
        "Prefix of every entity name that is made here; also the primary's name, with which its backlog queues begin."
        self._sides = {side: self._side(side) for side in ("primary", "secondary")}
        self._admins = {
            name: cast(ServiceBusAdministrationClient, side.new_admin()) for name, side in self._sides.items()
        }

    def _side(self, name: str, *, aio: bool = False) -> Side:
        given = os.environ[NAMES[name == "secondary"]]
        if given.startswith("Endpoint="):
            return Side.from_connection_string(given, aio=aio)
        return Side.from_credential(given, _credential(aio), aio=aio)

    def admin(self, side: SideName = "primary") -> ServiceBusAdministrationClient:
        return self._admins[side]

    def make_queue(self, **settings: Any) -> str:
        name = f"{self.prefix}/q-{uuid.uuid4().hex[:8]}"
        self.admin().create_queue(name, **settings)
        return name

    def make_topic(self) -> str:
        """Make a topic with a subscription `all`."""
        name = f"{self.prefix}/t-{uuid.uuid4().hex[:8]}"
        self.admin().create_topic(name)
        self.admin().create_subscription(name, "all")
        return name

    def set_status(self, queue: str, status: str) -> None:
        described = self.admin().get_queue(queue)
        described.status = status
        self.admin().update_queue(described)

    def client(self, flavour: Flavour, **options: Any) -> Client:
        """Return a client that is not paired yet: failover at once, a ping and a look of the syphon each second."""
        events: list[Event] = []
        settings = {
            "primary_name": self.prefix,
            "backlog_queue_count": BACKLOG_QUEUES,
            "failover_interval": 0,
            "ping_primary_interval": 1,
            "syphon_retry_interval": 1,
            "on_event": events.append,
            **options,
        }
        kind: Any = pairbus.aio.PairedServiceBusClient if flavour == "aio" else pairbus.PairedServiceBusClient
        primary, secondary = (os.environ[name] for name in NAMES)
        if primary.startswith("Endpoint="):
            return Client(flavour, kind.from_connection_strings(primary, secondary, **settings), events)
        credential = _credential(flavour == "aio")
        return Client(flavour, kind.from_credential(primary, secondary, credential, **settings), events)

    def plain(self) -> ServiceBusClient:
        """Return a client of the SDK for the primary, to look with."""
        return cast(ServiceBusClient, self._side("primary", aio=True).client)

    async def take(self, count: int, **entity: Any) -> list[Any]:
        """Take exactly so many messages from a queue, subscription or session of the primary."""
        async with self.plain() as client:
            kind: Any = client.get_queue_receiver if "queue_name" in entity else client.get_subscription_receiver
            async with kind(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, **entity) as receiver:
                found: list[Any] = []
                while len(found) < count:
                    page = await receiver.receive_messages(count - len(found), max_wait_time=RECEIVE_S)
                    assert page, f"{len(found)} of {count} messages came"
                    found += page
                assert await receiver.receive_messages(max_wait_time=1) == [], "more messages came than were sent"
                return found

    def close(self) -> None:
        """Delete whatever has the prefix, backlog queues included."""
        for admin in self._admins.values():
            for queue in [queue.name for queue in admin.list_queues() if queue.name.startswith(self.prefix)]:
                with contextlib.suppress(ResourceNotFoundError):
                    admin.delete_queue(queue)
            for topic in [topic.name for topic in admin.list_topics() if topic.name.startswith(self.prefix)]:
                with contextlib.suppress(ResourceNotFoundError):
                    admin.delete_topic(topic)
            admin.close()


def _credential(aio: bool) -> Any:
    return importlib.import_module("azure.identity.aio" if aio else "azure.identity").DefaultAzureCredential()


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture(params=["sync", "aio"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return "aio" if request.param == "aio" else "sync"


@pytest.fixture
async def client(pair: Pair, flavour: Flavour) -> AsyncIterator[Client]:
    client = pair.client(flavour, enable_syphon=True)
    yield client
    await client.close()

"""The pair of `pairbus demo`: two namespaces in processes of their own, their entities, and the applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus.exceptions import ServiceBusError

from pairbus.aio import PairedServiceBusClient
from pairbus.cli.admin.admin_client import administration
from pairbus.cli.serve.children import ChildBroker

PRIMARY, SECONDARY = "contoso", "fabrikam"
BACKLOG_QUEUES = 4
SEND_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class DemoEntity:
    """A queue, or a topic with subscriptions that want every message."""

    name: str
    has_sessions: bool = False
    subscriptions: tuple[str, ...] = ()
    "Names of the subscriptions of a topic; empty for a queue."

    @property
    def places(self) -> list[str]:
        """Paths at which each message of the entity is found."""
        return [f"{self.name}/Subscriptions/{each}" for each in self.subscriptions] or [self.name]

    def sender(self, client: PairedServiceBusClient) -> Any:
        return client.get_topic_sender(self.name) if self.subscriptions else client.get_queue_sender(self.name)


ORDERS, PAYMENTS = DemoEntity("orders"), DemoEntity("payments")
SHIPMENTS = DemoEntity("shipments", has_sessions=True)
INVOICES = DemoEntity("invoices", subscriptions=("archive", "audit"))
ENTITIES = (ORDERS, PAYMENTS, SHIPMENTS, INVOICES)
IN_WORDS = "2 queues, a queue with sessions and a topic"
APPLICATIONS = {"shop": (ORDERS, PAYMENTS), "warehouse": (ORDERS, SHIPMENTS), "finance": (PAYMENTS, INVOICES)}
ROUTES = [(application, entity) for application, entities in APPLICATIONS.items() for entity in entities]


@dataclass(frozen=True, slots=True)
class DemoPair:
    """Two brokers that run."""

    primary: ChildBroker
    secondary: ChildBroker

    @property
    def connection_strings(self) -> tuple[str, str]:
        """Connection strings of the primary and of the secondary."""
        return self.primary.connection_strings[PRIMARY], self.secondary.connection_strings[SECONDARY]

    @asynccontextmanager
    async def clients(
        self, options_of: Callable[[str], dict[str, Any]]
    ) -> AsyncIterator[dict[str, PairedServiceBusClient]]:
        """Open a paired client for each application, with the options that its name is given."""
        async with AsyncExitStack() as ends:
            yield {
                name: await ends.enter_async_context(
                    PairedServiceBusClient.from_connection_strings(
                        *self.connection_strings,
                        primary_name=PRIMARY,
                        backlog_queue_count=BACKLOG_QUEUES,
                        **options_of(name),
                    )
                )
                for name in APPLICATIONS
            }


@asynccontextmanager
async def running_pair(folder: Path, *, meter: bool = False) -> AsyncIterator[DemoPair]:
    """Run two brokers, each in a process that can be killed, with the entities of the demo in the first one."""

    def broker(name: str) -> ChildBroker:
        options = ("--meter", str(folder / f"{name}-meter")) if meter else ()
        return ChildBroker([name], folder / name, folder / f"{name}.stderr", options)

    async with broker(PRIMARY) as primary, broker(SECONDARY) as secondary:
        pair = DemoPair(primary, secondary)
        await asyncio.to_thread(_create_entities, pair.connection_strings[0])
        yield pair


def _create_entities(connection_string: str) -> None:
    """Create the entities, with duplicate detection, because a send without an answer is repeated."""
    with administration(connection_string) as client:
        for entity in ENTITIES:
            if not entity.subscriptions:
                sessions = entity.has_sessions
                client.create_queue(entity.name, requires_duplicate_detection=True, requires_session=sessions)
                continue
            client.create_topic(entity.name, requires_duplicate_detection=True)
            for name in entity.subscriptions:
                client.create_subscription(entity.name, name)


async def send(sender: Any, message: Any, refused: Callable[[ServiceBusError], object]) -> None:
    """Send a message as a careful application does: a refused send is repeated with the same message id."""
    while True:
        try:
            await sender.send_messages(message, timeout=SEND_TIMEOUT_S)
            return
        except ServiceBusError as error:
            refused(error)
        await asyncio.sleep(RETRY_PAUSE_S)

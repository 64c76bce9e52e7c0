"""The pair of `pairbus demo`: two namespaces in processes of their own, their entities, and paired clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.cli.child_broker import ChildBroker
from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from azure.servicebus.exceptions import ServiceBusError

    from pairbus.aio import PairedServiceBusClient

PRIMARY, SECONDARY = "contoso", "fabrikam"
BACKLOG_QUEUES = 4
APPLICATIONS = {
    "shop": ("orders", "payments"),
    "warehouse": ("orders", "shipments"),
    "finance": ("payments", "invoices"),
}
SEND_TIMEOUT_S = 10.0
EMPTY_S = 0.5  # wait without a message, before asking whether the entity is empty, or for another session
PAGE = 500


@dataclass(frozen=True, slots=True)
class DemoEntity:
    """A queue, or a topic with subscriptions that want every message."""

    name: str
    has_sessions: bool = False
    subscriptions: tuple[str, ...] = ()
    "Names of the subscriptions of a topic; empty for a queue."

    @property
    def places(self) -> list[str]:
        """Paths from which each message of the entity is received."""
        return [f"{self.name}/Subscriptions/{each}" for each in self.subscriptions] or [self.name]

    def sender(self, client: PairedServiceBusClient) -> Any:
        return client.get_topic_sender(self.name) if self.subscriptions else client.get_queue_sender(self.name)


ENTITIES = {
    entity.name: entity
    for entity in (
        DemoEntity("orders"),
        DemoEntity("payments"),
        DemoEntity("shipments", has_sessions=True),
        DemoEntity("invoices", subscriptions=("archive", "audit")),
    )
}
IN_WORDS = "2 queues, a queue with sessions and a topic"


async def start_pair(ends: AsyncExitStack, folder: Path, *, meter: bool = False) -> tuple[ChildBroker, ChildBroker]:
    """Start the two brokers, so that one can be killed, and create the entities; `ends` stops the brokers."""
    brokers = []
    for name in (PRIMARY, SECONDARY):
        options = ("--meter", str(folder / f"{name}-meter")) if meter else ()
        brokers.append(ChildBroker([name], folder / name, folder / f"{name}.stderr", options))
        ends.push_async_callback(brokers[-1].stop)
    await asyncio.gather(*(broker.start() for broker in brokers))
    await asyncio.to_thread(_create, brokers[0].connection_strings[PRIMARY])
    return brokers[0], brokers[1]


def _create(connection_string: str) -> None:
    """Create the entities, with duplicate detection, because a send without an answer is repeated."""
    from pairbus.cli.admin_client import administration

    with administration(connection_string) as client:
        for entity in ENTITIES.values():
            if entity.subscriptions:
                client.create_topic(entity.name, requires_duplicate_detection=True)
                for name in entity.subscriptions:
                    client.create_subscription(entity.name, name)
            else:
                sessions = entity.has_sessions
                client.create_queue(entity.name, requires_duplicate_detection=True, requires_session=sessions)


async def new_client(ends: AsyncExitStack, home: str, away: str, **options: Any) -> PairedServiceBusClient:
    """Open the paired client of one application; `ends` closes it."""
    from pairbus.aio import PairedServiceBusClient

    options |= {"primary_name": PRIMARY, "backlog_queue_count": BACKLOG_QUEUES}
    return await ends.enter_async_context(PairedServiceBusClient.from_connection_strings(home, away, **options))


async def refusal_of(sender: Any, message: Any) -> ServiceBusError | None:
    """Send a message once; returns the error of a refused send, which the caller repeats with the same message id."""
    from azure.servicebus.exceptions import ServiceBusError

    try:
        await sender.send_messages(message, timeout=SEND_TIMEOUT_S)
    except ServiceBusError as error:
        return error
    finally:
        heed_cancellation()
    return None


async def empty(
    client: PairedServiceBusClient, place: str, home: str, found: Callable[[Any], None], patience_s: float
) -> None:
    """Receive all messages as an application does: through the paired client, which skips pings."""
    entity = ENTITIES[place.partition("/")[0]]
    give_up_s = time.monotonic() + patience_s
    # The count is asked first: an empty receive may only mean a slow machine, and the SDK waits long for a session.
    # A message that is on its way while nobody waits for it is still counted, because only a completion removes it.
    while await asyncio.to_thread(_held, home, place):
        async with _receiver(client, entity, place) as receiver:
            while receiver is not None:
                page = await receiver.receive_messages(max_message_count=PAGE, max_wait_time=EMPTY_S)
                heed_cancellation()
                for message in page:
                    await receiver.complete_message(message)
                    found(message)
                if page:
                    give_up_s = time.monotonic() + patience_s
                elif entity.has_sessions or not await asyncio.to_thread(_held, home, place):
                    break  # a session gives back what it has not completed; a queue would keep it locked
                elif time.monotonic() > give_up_s:
                    break
        if time.monotonic() > give_up_s:
            raise PairbusError(f"{place} still holds messages, but gave none for {patience_s:.0f} s")


@asynccontextmanager
async def _receiver(client: PairedServiceBusClient, entity: DemoEntity, place: str) -> AsyncIterator[Any]:
    """Open a receiver of the place, or of its next session if it has sessions; None when no session has messages."""
    from azure.servicebus import NEXT_AVAILABLE_SESSION
    from azure.servicebus.exceptions import OperationTimeoutError

    given: dict[str, Any] = {}
    if entity.has_sessions:
        given = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": EMPTY_S}
    if entity.subscriptions:
        receiver = client.get_subscription_receiver(entity.name, place.rpartition("/")[2], **given)
    else:
        receiver = client.get_queue_receiver(entity.name, **given)
    try:
        try:
            await receiver.__aenter__()
        except OperationTimeoutError:
            yield None
        else:
            yield receiver
    finally:
        await receiver.close()


def _held(connection_string: str, place: str) -> int:
    """Count messages of every kind."""
    from pairbus.cli.admin_client import administration

    name, _, subscription = place.partition("/Subscriptions/")
    with administration(connection_string) as client:
        if subscription:
            counts: Any = client.get_subscription_runtime_properties(name, subscription)
        else:
            counts = client.get_queue_runtime_properties(name)
    return int(counts.total_message_count or 0)


def heed_cancellation() -> None:
    """Raise a cancellation that the SDK has swallowed: while it reads a socket, it takes one for an empty read."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError

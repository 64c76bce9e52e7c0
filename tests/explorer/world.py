"""A namespace in this process, with messages in it, for the explorer's verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pairbus.amqp.message import Message, Properties
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.explorer import Address, described, peek, send
from pairbus.transport import Carrier

ORDERS, OTHER, MEETINGS = Address("orders"), Address("other"), Address("meetings")
REMEMBERING = Address("remembering")
LETTERS = Address("orders", is_dead_letter=True)


def message(number: int, body: bytes | None = None, **properties: Any) -> bytes:
    """Encode a message as an application sends it."""
    application = properties.pop("application", {"number": number})
    return Message(
        properties=Properties(message_id=f"m{number}", **properties),
        application_properties=application,
        data=[b"body %d" % number if body is None else body],
    ).encode()


@dataclass
class World:
    broker: Broker
    carrier: Carrier
    elsewhere: Carrier

    async def put(self, *payloads: bytes, path: str = "orders") -> None:
        await send(self.carrier, path, payloads)

    async def ids(self, address: Address = ORDERS, carrier: Carrier | None = None) -> list[str]:
        """Message ids of an entity, locked ones included, in the order of their numbers."""
        return [described(one)["message_id"] for one in await peek(carrier or self.carrier, address, count=10_000)]

    async def dead_letter(self, count: int, reason: str, address: Address = ORDERS) -> None:
        receiver = await self.carrier.receiver(address.path, credit=count)
        left = count
        while left:
            got = await receiver.receive(left, 5.0)
            assert got
            await receiver.dead_letter(got, reason, f"because of {reason}")
            left -= len(got)
        await receiver.close()

    async def receivable(self, address: Address = ORDERS) -> list[str]:
        """Message ids that can be received now, given back at once: locked ones are not among them."""
        receiver = await self.carrier.receiver(address.path)
        got = []
        # Asked twice: on a busy machine the first wait may end before the broker, in this event loop, had its turn.
        while batch := await receiver.receive(100, 0.3) or await receiver.receive(100, 0.5):
            got += batch
        await receiver.pause()  # otherwise released messages come back to this link
        await receiver.release(got)
        await receiver.close()
        return [described(one.payload)["message_id"] for one in got]


@asynccontextmanager
async def world(*, lock_s: float = 60.0, **options: Any) -> AsyncIterator[World]:
    lock_ms = int(lock_s * 1000)
    queues = (
        QueueDescription("orders", lock_duration_ms=lock_ms),
        QueueDescription("other"),
        QueueDescription("meetings", requires_session=True),
        QueueDescription("remembering", requires_duplicate_detection=True, duplicate_window_ms=600_000),
    )
    namespaces = [
        NamespaceOptions("contoso", queues=queues, **options),
        NamespaceOptions("fabrikam", queues=(QueueDescription("orders"),)),
    ]
    async with (
        Broker(namespaces, data=None, strict=True) as broker,
        Carrier(broker.connection_string("contoso"), timeout_s=5.0) as carrier,
        Carrier(broker.connection_string("fabrikam"), timeout_s=5.0) as elsewhere,
    ):
        yield World(broker, carrier, elsewhere)

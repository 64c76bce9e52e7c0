"""From NATS to Service Bus: FastStream has no broker for Service Bus, so a handler sends through a paired client.

faststream run faststream_app:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from azure.servicebus import ServiceBusMessage
from faststream import Context, ContextRepo, FastStream
from faststream.nats import NatsBroker

from pairbus.aio import PairedServiceBusClient

broker = NatsBroker()


@asynccontextmanager
async def lifespan(context: ContextRepo) -> AsyncIterator[None]:
    pair = os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"]
    async with (
        PairedServiceBusClient.from_connection_strings(*pair, failover_interval=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        context.set_global("sender", sender)
        yield


app = FastStream(broker, lifespan=lifespan)


@broker.subscriber("orders")
async def forward(order: str, sender: Annotated[Any, Context()]) -> None:
    await sender.send_messages(ServiceBusMessage(order))  # an exception here leaves the message to NATS

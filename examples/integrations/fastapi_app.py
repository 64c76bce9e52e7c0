"""Orders over HTTP. A request is answered with 202 when its order is stored: in the primary, or in a backlog queue.
The application also handles the orders that have arrived in the primary.

uvicorn fastapi_app:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from azure.servicebus import ServiceBusMessage
from fastapi import FastAPI, Request

from pairbus.aio import PairedServiceBusClient, ProcessorMessage

shipped: list[str] = []


async def ship(message: ProcessorMessage) -> None:
    shipped.append(str(message))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    pair = os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"]
    async with (
        PairedServiceBusClient.from_connection_strings(*pair, failover_interval=0) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_processor("orders", ship, max_concurrent_calls=8),  # stopped before the sender is closed
    ):
        app.state.sender = sender  # one for all requests: their sends share a connection
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place_order(request: Request) -> dict[str, str]:
    await request.app.state.sender.send_messages(ServiceBusMessage(await request.body()))
    return {"order": "stored"}

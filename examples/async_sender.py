"""Fifty tasks share one sender of the asyncio client, and the events of the pair are an async iterator.

With PAIRBUS_PRIMARY and PAIRBUS_SECONDARY it uses two namespaces of your own. The example sends to a queue of
its own, which it creates in the primary and deletes at the end. So the key of the primary needs the Manage claim too,
and no other queue gets a message.
"""

import asyncio
import time

from azure.servicebus import ServiceBusMessage
from namespaces import namespaces

from pairbus.aio import PairedServiceBusClient

TASKS = 50


async def tell(client: PairedServiceBusClient) -> None:
    async for event in client.events():  # ends when the client is closed
        print(f"event: {event}")


async def main(primary: str, secondary: str, queue: str) -> None:
    client = PairedServiceBusClient.from_connection_strings(primary, secondary, failover_interval=10)
    told = asyncio.create_task(tell(client))
    await asyncio.sleep(0)  # lets `tell` begin to listen before the first event
    async with client, client.get_queue_sender(queue) as sender:
        began = time.monotonic()
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(f"order {n}")) for n in range(TASKS)))
        print(f"{TASKS} tasks sent through one sender in {time.monotonic() - began:.2f} s: {sender}")
        print(client.counters["total"])
    await told


if __name__ == "__main__":
    with namespaces() as pair, pair.own_queue("orders") as own:
        asyncio.run(main(pair.primary, pair.secondary, own))

"""A worker that handles orders until SIGTERM or SIGINT, as a service of systemd or in a container.

With PAIRBUS_PRIMARY and PAIRBUS_SECONDARY, `python worker.py orders` handles the queue `orders` of your primary.
Without an argument it shows itself: it fills a queue of its own, handles it, and sends SIGTERM to itself at the end.
"""

import asyncio
import os
import signal
import sys

from azure.servicebus import ServiceBusMessage
from namespaces import namespaces

from pairbus.aio import Backoff, DeadLetter, PairedServiceBusClient, ProcessorMessage

ORDERS = 20


async def handle(message: ProcessorMessage) -> None:
    order = str(message)
    if not order.startswith("order "):
        raise DeadLetter("NoOrder", f"{order!r} is no order")  # no further attempt can help
    if order.endswith("7") and message.attempt == 1:
        raise ConnectionError("the warehouse did not answer")  # it is tried again after a delay
    await asyncio.sleep(0.01)


async def work(client: PairedServiceBusClient, queue: str) -> None:
    processor = client.get_queue_processor(
        queue, handle, max_concurrent_calls=8, retry=Backoff(first=0.2), on_error=print
    )
    async with processor:
        await processor.run_forever()  # returns after SIGTERM or SIGINT; nothing is locked then
    print(processor.counts)


async def show(primary: str, secondary: str, queue: str) -> None:
    async with PairedServiceBusClient.from_connection_strings(primary, secondary) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(f"order {n}") for n in range(ORDERS)])
            await sender.send_messages(ServiceBusMessage("a letter"))
        asyncio.get_running_loop().call_later(2.0, os.kill, os.getpid(), signal.SIGTERM)
        await work(client, queue)


async def serve(queue: str) -> None:
    ends = os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"]
    async with PairedServiceBusClient.from_connection_strings(*ends, control_socket=True) as client:
        await work(client, queue)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve(sys.argv[1]))
    else:
        with namespaces() as pair, pair.own_queue("orders") as own:
            asyncio.run(show(pair.primary, pair.secondary, own))

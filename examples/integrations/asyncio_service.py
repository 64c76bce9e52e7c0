"""A plain asyncio service: it handles orders until SIGTERM or SIGINT, and leaves nothing locked.

python asyncio_service.py
"""

import asyncio
import os

from pairbus.aio import DeadLetter, PairedServiceBusClient, ProcessorMessage


async def handle(message: ProcessorMessage) -> None:
    if not str(message):
        raise DeadLetter("EmptyOrder", "an order without a text is none")
    print(f"shipped {message}", flush=True)  # an exception here: it is tried again after a delay


async def main() -> None:
    pair = os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"]
    async with (
        PairedServiceBusClient.from_connection_strings(*pair) as client,
        client.get_queue_processor("orders", handle, max_concurrent_calls=8) as processor,
    ):
        await processor.run_forever()  # an outage does not end it; it goes on by itself


if __name__ == "__main__":
    asyncio.run(main())

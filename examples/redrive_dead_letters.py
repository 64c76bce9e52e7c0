"""Dead letters go back to their queue, by the pump that the syphon uses: raw, so that nothing of them is altered.

It needs a queue `payments`. `pairbus redrive payments` does the same from the command line.
With PAIRBUS_PRIMARY and PAIRBUS_SECONDARY it runs on two namespaces of yours.
"""

import asyncio

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from namespaces import namespaces

from pairbus.syphon import redrive
from pairbus.transport import Carrier

QUEUE = "payments"


async def main(connection_string: str) -> None:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage(f"{n} euro") for n in (10, 20, 30)])
        async with client.get_queue_receiver(QUEUE, max_wait_time=2) as receiver:
            async for message in receiver:
                await receiver.dead_letter_message(message, reason="PriceMissing", error_description="no price list")
        async with Carrier(connection_string) as carrier:
            # The queue detects no duplicates. One that does would drop what it remembers: see `new_ids`.
            moved = (await redrive(carrier, QUEUE, publish=print, duplicate_window_s=0).run_once()).moved
        print(f"{moved} dead letters went back to {QUEUE}")
        async with client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            print(f"{len(await dead.peek_messages())} are left in the dead-letter queue")
        async with client.get_queue_receiver(QUEUE, max_wait_time=2) as receiver:
            async for message in receiver:
                print("received again:", message)
                await receiver.complete_message(message)


if __name__ == "__main__":
    with namespaces(QUEUE) as pair:
        asyncio.run(main(pair.primary))

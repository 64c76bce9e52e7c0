"""The syphon's pump sends dead letters back to their queue, without the properties that dead-lettering added.

`pairbus redrive QUEUE` does the same from the command line. With PAIRBUS_PRIMARY and PAIRBUS_SECONDARY the
example uses two namespaces of your own. A re-drive takes every dead letter of its queue, so the example has a queue of
its own, which it creates in the primary and deletes at the end. So the key of the primary needs the Manage claim too,
and messages of others are not touched.
"""

import asyncio

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from namespaces import namespaces

from pairbus.syphon import redrive
from pairbus.transport import Carrier


async def main(connection_string: str, queue: str) -> None:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(f"{n} euro") for n in (10, 20, 30)])
        async with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
            async for message in receiver:
                await receiver.dead_letter_message(message, reason="PriceMissing", error_description="no price list")
        async with Carrier(connection_string) as carrier:
            # This queue detects no duplicates. One that does would drop messages whose ids it remembers: see `new_ids`.
            moved = (await redrive(carrier, queue, publish=print, duplicate_window_s=0).run_once()).moved
        print(f"{moved} dead letters went back to {queue}")
        async with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            print(f"{len(await dead.receive_messages(max_wait_time=1))} are left in the dead-letter queue")
        async with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
            async for message in receiver:
                print("received again:", message)
                await receiver.complete_message(message)


if __name__ == "__main__":
    with namespaces() as pair, pair.own_queue("payments") as own:
        asyncio.run(main(pair.primary, own))

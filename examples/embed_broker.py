"""A durable Service Bus namespace inside this process, used through the genuine SDK. Run it twice: messages stay."""

import asyncio
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.broker import Broker, NamespaceOptions, QueueDescription


async def main() -> None:
    namespace = NamespaceOptions("contoso", queues=(QueueDescription("orders", lock_duration_ms=30_000),))
    async with Broker([namespace], data=Path("bus")) as broker:
        connection_string = broker.connection_string("contoso")  # a free port of the loopback
        async with (
            ServiceBusClient.from_connection_string(connection_string) as client,
            client.get_queue_sender("orders") as sender,
        ):
            await sender.send_messages(ServiceBusMessage("a book"))  # returns when the message is on disk
        orders = broker.namespace("contoso").queue_info("orders")
        print(f"{orders.active} orders wait in ./bus; they will be there at the next start")


if __name__ == "__main__":
    asyncio.run(main())

"""The smallest change to a sender: two connection strings instead of one.

python examples/send_with_failover.py                                          # two brokers on this machine
PAIRBUS_PRIMARY=… PAIRBUS_SECONDARY=… python examples/send_with_failover.py    # two namespaces of your own

The example sends to and receives from a queue of its own, which it creates in the primary and deletes at the end. So
the key of the primary needs the Manage claim too, and messages of others are not touched.
"""

from azure.servicebus import ServiceBusMessage
from namespaces import namespaces

from pairbus import PairedServiceBusClient, SendAvailabilityBacklogError


def main() -> None:
    with (
        namespaces() as pair,
        pair.own_queue("orders") as queue,
        PairedServiceBusClient.from_connection_strings(pair.primary, pair.secondary, failover_interval=10) as client,
        client.get_queue_sender(queue) as sender,
    ):
        print(client)
        try:
            sender.send_messages([ServiceBusMessage(f"order {n}") for n in range(3)], timeout=30)
        except SendAvailabilityBacklogError as error:
            print(f"neither namespace took the messages, they are still ours: {error}")
        print(sender)
        with client.get_queue_receiver(queue, max_wait_time=2) as receiver:  # receives from the primary
            for message in receiver:
                print("received", message)
                receiver.complete_message(message)


if __name__ == "__main__":
    main()

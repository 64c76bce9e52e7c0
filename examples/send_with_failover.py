"""The smallest change to a sender: two connection strings instead of one.

python examples/send_with_failover.py                                          # two brokers on this machine
PAIRBUS_PRIMARY=… PAIRBUS_SECONDARY=… python examples/send_with_failover.py    # two namespaces of yours

It sends to and receives from a queue of its own, which it creates in the primary and deletes again: that key needs the
Manage claim too, and nobody else's messages are touched.
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
            print(f"neither namespace took it, it is still ours: {error}")
        print(sender)
        with client.get_queue_receiver(queue, max_wait_time=2) as receiver:  # receivers are the primary's
            for message in receiver:
                print("received", message)
                receiver.complete_message(message)


if __name__ == "__main__":
    main()

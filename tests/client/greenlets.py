"""A program under gevent's monkey patching that sends with a sync client.

    python -m tests.client.greenlets PRIMARY SECONDARY [MODULE …]

`patch_all` leaves the modules alone that are named. It prints how many sends were made, or the error that refused them.
"""

import sys

from gevent import monkey

monkey.patch_all(**dict.fromkeys(sys.argv[3:], False))

import gevent  # noqa: E402
from azure.servicebus import ServiceBusMessage  # noqa: E402

from pairbus import PairedServiceBusClient  # noqa: E402

COUNT = 10


def main(primary: str, secondary: str) -> None:
    client = PairedServiceBusClient.from_connection_strings(
        primary, secondary, create_backlog_queues=False, primary_name="stage"
    )
    with client, client.get_queue_sender("orders") as sender:
        sends = [gevent.spawn(sender.send_messages, ServiceBusMessage("x")) for _ in range(COUNT)]
        gevent.joinall(sends, raise_error=True)
    print(COUNT)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except RuntimeError as refusal:
        print(refusal)

"""Orders over HTTP from pre-forked workers, which share the code that the parent has loaded and nothing else.

gunicorn --preload --workers 2 gunicorn_app:application
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient

# Made before the fork, it opens nothing. Each worker has connections of its own from its first send on.
client = PairedServiceBusClient.from_connection_strings(
    os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"], failover_interval=0
)
sender = client.get_queue_sender("orders")


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    sender.send_messages(ServiceBusMessage(body))
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [f"stored by process {os.getpid()}\n".encode()]

"""Celery tasks on Service Bus, published by a paired client: a task that is published during an outage comes later.

celery --app celery_app worker --pool solo --without-gossip --without-mingle --without-heartbeat
"""

import os
from typing import Any

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import azureservicebus as service_bus

from pairbus import PairedServiceBusClient

client = PairedServiceBusClient.from_connection_strings(
    os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"], failover_interval=0
)


class PairedChannel(service_bus.Channel):
    """kombu's own channel for Service Bus, on a paired client.

    The queues must exist already: creating them would need the primary.
    """

    queue_service = client  # senders divert, receivers are the primary's

    def _try_parse_connection_string(self) -> None:
        """The client has its connection strings."""

    def _new_queue(self, queue: str, **_: Any) -> Any:
        return self._add_queue_to_cache(self.entity_name(self.queue_name_prefix + queue))

    def _size(self, queue: str) -> int:
        return 0  # asked for when a queue is declared, and used by nobody


class PairedTransport(service_bus.Transport):
    Channel = PairedChannel

    @classmethod
    def as_uri(cls, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri  # for the banner of the worker; it has no key


TRANSPORT_ALIASES["pairbus"] = f"{__name__}:PairedTransport"
app = Celery("orders", broker="pairbus://")
app.conf.update(task_default_queue="tasks", worker_enable_remote_control=False)


@app.task
def ship(order: str) -> str:
    return f"shipped {order}"

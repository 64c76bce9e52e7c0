"""Send availability for Azure Service Bus: applications keep sending while their namespace is down.

with PairedServiceBusClient.from_connection_strings(primary, secondary) as client:
    client.get_queue_sender("orders").send_messages(ServiceBusMessage("hello"))

`pairbus.aio` has the same for asyncio, `pairbus.broker` a Service Bus namespace for this process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.client.errors import (
        BacklogMessageTooLarge,
        ClientClosed,
        PairedMessagingFactoryError,
        PartlySent,
        ReservedPropertyError,
        ScheduleWhileFailedOver,
        SendAvailabilityBacklogError,
    )
    from pairbus.client.processing.decide.backoff import Backoff
    from pairbus.client.processing.decide.endings import DeadLetter, Defer, Retry
    from pairbus.client.processing.message import ProcessorMessage
    from pairbus.client.processing.session import ProcessorSession
    from pairbus.client.processing.sync import ServiceBusProcessor
    from pairbus.client.sync import PairedSender, PairedServiceBusClient, ServiceBusClient, ServiceBusSender
    from pairbus.errors import PairbusError, PairingError
    from pairbus.pairing.failover import State
    from pairbus.pairing.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions
    from pairbus.pairing.policy import REACTIONS, Failure, FailurePolicy, Kind, Reaction

__version__ = "0.4.0"

__all__ = [
    "REACTIONS",
    "BacklogMessageTooLarge",
    "Backoff",
    "ClientClosed",
    "DeadLetter",
    "Defer",
    "Failure",
    "FailurePolicy",
    "Kind",
    "PairbusError",
    "PairedMessagingFactoryError",
    "PairedNamespaceOptions",
    "PairedSender",
    "PairedServiceBusClient",
    "PairingError",
    "PartlySent",
    "ProcessorMessage",
    "ProcessorSession",
    "Reaction",
    "ReservedPropertyError",
    "Retry",
    "ScheduleWhileFailedOver",
    "SendAvailabilityBacklogError",
    "SendAvailabilityPairedNamespaceOptions",
    "ServiceBusClient",
    "ServiceBusProcessor",
    "ServiceBusSender",
    "State",
]

_HOMES = {
    "pairbus.client.processing.decide.backoff": ("Backoff",),
    "pairbus.client.processing.decide.endings": ("DeadLetter", "Defer", "Retry"),
    "pairbus.client.processing.message": ("ProcessorMessage",),
    "pairbus.client.processing.session": ("ProcessorSession",),
    "pairbus.client.processing.sync": ("ServiceBusProcessor",),
    "pairbus.client.sync": ("PairedSender", "PairedServiceBusClient", "ServiceBusClient", "ServiceBusSender"),
    "pairbus.errors": ("PairbusError", "PairingError"),
    "pairbus.pairing.failover": ("State",),
    "pairbus.pairing.options": ("PairedNamespaceOptions", "SendAvailabilityPairedNamespaceOptions"),
    "pairbus.pairing.policy": ("REACTIONS", "Failure", "FailurePolicy", "Kind", "Reaction"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the broker and the command line start without the SDK."""
    if name not in __all__:
        raise AttributeError(f"module 'pairbus' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF.get(name, "pairbus.client.errors")), name)

"""The paired client for asyncio, as `azure.servicebus.aio` is the SDK's."""

from pairbus.client.client import PairedServiceBusClient
from pairbus.client.sender import PairedSender

__all__ = ["PairedSender", "PairedServiceBusClient"]

"""The paired client for asyncio, as `azure.servicebus.aio` is the SDK's."""

from pairbus.client.client import PairedSender, PairedServiceBusClient

__all__ = ["PairedSender", "PairedServiceBusClient"]

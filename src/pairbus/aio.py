"""The clients for asyncio, as `azure.servicebus.aio` has those of the SDK."""

from pairbus.client.client import PairedSender, PairedServiceBusClient, ServiceBusClient, ServiceBusSender

__all__ = ["PairedSender", "PairedServiceBusClient", "ServiceBusClient", "ServiceBusSender"]

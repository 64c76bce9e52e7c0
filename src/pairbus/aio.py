"""The clients for asyncio, as `azure.servicebus.aio` has those of the SDK."""

from pairbus.client.client import PairedSender, PairedServiceBusClient, ServiceBusClient, ServiceBusSender
from pairbus.client.processing.aio import ServiceBusProcessor
from pairbus.client.processing.decide.backoff import Backoff
from pairbus.client.processing.decide.endings import DeadLetter, Defer, Retry
from pairbus.client.processing.message import AioProcessorMessage as ProcessorMessage
from pairbus.client.processing.session import AioProcessorSession as ProcessorSession

__all__ = [
    "Backoff",
    "DeadLetter",
    "Defer",
    "PairedSender",
    "PairedServiceBusClient",
    "ProcessorMessage",
    "ProcessorSession",
    "Retry",
    "ServiceBusClient",
    "ServiceBusProcessor",
    "ServiceBusSender",
]

"""Our own asyncio AMQP 1.0 client; `client.py` shows its use."""

from pairbus.transport.carrier import Carrier
from pairbus.transport.cbs import TokenRefused
from pairbus.transport.client import ClientConnection, connect
from pairbus.transport.credential import Anonymous, AzureToken, Plain, SasKey, SasSignature
from pairbus.transport.endpoint import Endpoint
from pairbus.transport.errors import ConnectionLost, Exhausted, NotReady, Refused, Timeout, TransportError
from pairbus.transport.management import Deferred, Management, Scheduled
from pairbus.transport.receiver import Receiver
from pairbus.transport.sender import Sender
from pairbus.transport.session_filter import SESSION_TIMEOUT, NextSession
from pairbus.transport.settlement import ReceivedMessage
from pairbus.transport.trace import log_frames

__all__ = [
    "SESSION_TIMEOUT",
    "Anonymous",
    "AzureToken",
    "Carrier",
    "ClientConnection",
    "ConnectionLost",
    "Deferred",
    "Endpoint",
    "Exhausted",
    "Management",
    "NextSession",
    "NotReady",
    "Plain",
    "ReceivedMessage",
    "Receiver",
    "Refused",
    "SasKey",
    "SasSignature",
    "Scheduled",
    "Sender",
    "Timeout",
    "TokenRefused",
    "TransportError",
    "connect",
    "log_frames",
]

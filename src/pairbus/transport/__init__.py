"""Our own asyncio AMQP 1.0 client; `connection/client_connection.py` shows its use."""

from pairbus.transport.carrier.carrier import Carrier
from pairbus.transport.connection.client_connection import ClientConnection, connect
from pairbus.transport.connection.endpoint import Endpoint
from pairbus.transport.connection.trace import log_frames
from pairbus.transport.errors import ConnectionLost, Exhausted, NotReady, Refused, Timeout, TransportError
from pairbus.transport.links.management import Deferred, Management, Scheduled
from pairbus.transport.links.receiver import Receiver
from pairbus.transport.links.sender import Sender
from pairbus.transport.links.session_filter import SESSION_TIMEOUT, NextSession
from pairbus.transport.links.settlement import ReceivedMessage
from pairbus.transport.tokens.cbs import TokenRefused
from pairbus.transport.tokens.credential import Anonymous, AzureToken, Plain, SasKey, SasSignature

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

"""Pings on the wire: pings that are due together share one connection, which is opened for them.

A connection that is open already does not prove that a new one can be opened. One that was opened within the last two
seconds does, for every entity that is pinged then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from pairbus.amqp.message import Header, Message, Properties
from pairbus.pairing.pings import CONTENT_TYPE, TIME_TO_LIVE_S
from pairbus.transport import Carrier

SHARED_S = 2.0  # age up to which a connection takes the pings of more entities
CLOSE_S = 0.5


def ping_payload() -> bytes:
    """Encode a ping: empty, gone in a second, with a session so that entities that require sessions accept it."""
    properties = Properties(message_id=str(uuid4()), content_type=CONTENT_TYPE, group_id=str(uuid4()))
    return Message(header=Header(ttl=int(TIME_TO_LIVE_S * 1000)), properties=properties, data=[b""]).encode()


PING_BYTES = len(ping_payload())


class Pinger:
    """The pings of one client. `new_carrier` makes a carrier to the primary that is not connected yet; `how` is the
    option `ping`."""

    def __init__(self, new_carrier: Callable[[], Carrier], how: str) -> None:
        self._new_carrier = new_carrier
        self._asks_broker = how == "auto"
        self.is_probe = how == "attach"
        "True: a ping only opens a link, which proves less than a message that was accepted."
        self._shared: _SharedCarrier | None = None

    async def ping(self, path: str, timeout_s: float) -> None:
        """Ping an entity once; TransportError or TimeoutError when it did not accept the ping."""
        async with self._join() as carrier, asyncio.timeout(timeout_s):
            if self._asks_broker:
                self.is_probe = not await carrier.hides_pings(timeout_s)
            sender = await carrier.sender(path, timeout_s)
            if not self.is_probe:
                await sender.send(ping_payload(), timeout_s=timeout_s)

    @asynccontextmanager
    async def _join(self) -> AsyncIterator[Carrier]:
        now = asyncio.get_running_loop().time()
        if self._shared is None or now - self._shared.began_at > SHARED_S:
            self._shared = _SharedCarrier(self._new_carrier(), now)
        joined = self._shared
        joined.pings += 1
        try:
            yield joined.carrier
        finally:
            joined.pings -= 1
            if not joined.pings:
                if self._shared is joined:
                    self._shared = None
                await joined.carrier.close(CLOSE_S)


class _SharedCarrier:
    def __init__(self, carrier: Carrier, began_at: float) -> None:
        self.carrier = carrier
        self.began_at = began_at
        self.pings = 0
        "Pings under way."

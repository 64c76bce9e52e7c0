"""Two sockets that are joined, and operations on both: reset, cut, swallow."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from pairbus.faults.play.cable import CableFaults
from pairbus.proxy.conversation import DOWN, UP, Direction
from pairbus.proxy.wire import ProxyWire

LINGER_S = 1.0  # wait for the peer's FIN after ours
HANDSHAKE_S = 10.0
REACH_S = 20.0  # wait for the target to answer
logger = logging.getLogger("pairbus.proxy")


class ProxyTarget(NamedTuple):
    """The endpoint that a proxy stands before."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    "TLS to the target; None: the client's bytes are passed on as they are."


class Joint:
    """One client and one connection to the target. `arrived` gets the bytes, and writes those that pass."""

    def __init__(
        self,
        faults: CableFaults,
        arrived: Callable[[Direction, bytes], None],
        changed: Callable[[], None],
        *,
        is_late_both_ways: bool,
    ) -> None:
        """Make both ends. `changed`: called when bytes passed or one ended.

        `is_late_both_ways`: faults that delay bytes do so in both directions; otherwise only on the way to the client.
        """
        self.is_ending = False
        self.has_lost_bytes = False
        "True when bytes were dropped: then the connection cannot go on after the fault."
        self._arrived = arrived
        self._changed = changed
        self._wires = {
            UP: ProxyWire(self, UP, faults, faults.late),
            DOWN: ProxyWire(self, DOWN, faults, faults.late if is_late_both_ways else []),
        }
        self._is_swallowing = False
        self._is_cut_off = False

    @property
    def is_gone(self) -> bool:
        return self.is_ending and not any(each.is_open for each in self._wires.values())

    def end(self, direction: Direction) -> ProxyWire:
        """Return the socket whose bytes go in that direction."""
        return self._wires[direction]

    async def open(self, client: socket.socket, target: ProxyTarget | None, tls: ssl.SSLContext | None = None) -> None:
        """Join an accepted client with the target; reset it when the target cannot be reached. None: no target.

        `tls`: the proxy is the end of the client's TLS.
        """
        loop = asyncio.get_running_loop()
        self._wires[UP].pause("opening")
        try:
            deadline = {} if tls is None else {"ssl_handshake_timeout": HANDSHAKE_S}
            await loop.connect_accepted_socket(lambda: self._wires[UP].cable, client, ssl=tls, **deadline)
            if target is not None and not self.is_ending:
                name = None if target.tls is None else target.host
                async with asyncio.timeout(REACH_S):
                    await loop.create_connection(
                        lambda: self._wires[DOWN].cable,
                        target.host,
                        target.port,
                        ssl=target.tls,
                        server_hostname=name,
                    )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            if not self._wires[UP].is_open:
                logger.info("a client did not begin TLS as it should: %s", error or "it was silent")
                client.close()
            else:
                logger.warning("target %s:%d cannot be reached: %s", *(target or ("", 0))[:2], error or "no answer")
            self.reset()
        except BaseException:
            self.reset()
            raise
        if self._is_cut_off:  # a fault was quicker than the sockets
            self.cut()
        elif self.is_ending:
            self.reset()
        self._wires[UP].resume("opening")

    # ── operations on the whole connection ──

    def reset(self) -> None:
        """End both sockets with RST."""
        self.is_ending = True
        for each in self._wires.values():
            each.reset()

    def cut(self) -> None:
        """End both sockets with FIN."""
        self._is_swallowing = self.is_ending = self._is_cut_off = True
        for each in self._wires.values():
            each.finish()
            asyncio.get_running_loop().call_later(LINGER_S, each.close)

    def swallow(self, is_swallowing: bool = True) -> None:
        """Drop all bytes of both directions from now on, or stop that; a connection that lost bytes is then reset."""
        self._is_swallowing = is_swallowing
        if not is_swallowing and self.has_lost_bytes and not self.is_ending:
            self.reset()

    def lost(self, direction: Direction, error: Exception | None) -> None:
        """End the other socket in the same way, because this one is gone."""
        other = self._wires[direction.other]
        if not self._is_cut_off:
            if error is not None or self.is_ending or self._is_swallowing:
                other.reset()
            else:
                other.write(None)
        self.is_ending = True
        self._changed()

    def arrived(self, direction: Direction, data: bytes) -> None:
        if self._is_swallowing:
            self.has_lost_bytes = True
        else:
            self._arrived(direction, data)
            self._changed()

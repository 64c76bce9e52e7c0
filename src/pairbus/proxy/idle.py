"""Senders without work and connections without links, closed by a proxy as Azure closes them."""

from __future__ import annotations

import asyncio

from pairbus.amqp.errors import DETACH_FORCED
from pairbus.amqp.performatives import Error
from pairbus.faults import Active
from pairbus.proxy.conversation import is_node
from pairbus.proxy.passage import Passage
from pairbus.proxy.port import ProxyPort

LOOK_S = 5.0
LOOK_MIN_S = 0.05
FORSAKEN = "The connection was inactive for too long: it has no active links."


class IdleConnections:
    """The connections of a proxy, looked at while a fault closes idle ones."""

    def __init__(self, port: ProxyPort) -> None:
        self._port = port
        self._fault: Active | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, fault: Active | None) -> None:
        """Close idle senders and connections by the times of this fault from now on; None: close none."""
        if fault is self._fault:
            return
        self._fault = fault
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if fault is not None:
            now = asyncio.get_running_loop().time()
            for passage in self._port.open_passages():
                passage.used_at = now
                for link in passage.links():
                    link.used_at = now
            self._wait(fault)

    def _wait(self, fault: Active) -> None:
        shortest_s = min(fault.fault.arguments.values())
        delay_s = max(min(LOOK_S, shortest_s / 2), LOOK_MIN_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look, fault)

    def _look(self, fault: Active) -> None:
        for passage in self._port.open_passages():
            if passage.conversation.is_amqp and not passage.is_ending:
                _close_idle(passage, fault, asyncio.get_running_loop().time())
        self._wait(fault)


def _close_idle(passage: Passage, fault: Active, now: float) -> None:
    numbers = fault.fault.arguments
    for link in [link for link in passage.links() if not is_node(link.path)]:
        if link.client_sends and now - link.used_at >= numbers["link_s"]:
            text = f"The link '{link.name}' is force detached. Details: AmqpMessagePublisher.IdleTimerExpired."
            passage.detach(link, Error(DETACH_FORCED, text))
        else:
            passage.used_at = now
    if now - passage.used_at >= numbers["connection_s"]:
        passage.close_connection(FORSAKEN)

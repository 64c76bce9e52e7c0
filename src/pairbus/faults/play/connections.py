"""Faults of whole connections: refused, swallowed by a black hole, late, or of low bandwidth."""

from __future__ import annotations

import socket
from functools import partial
from typing import Protocol

from pairbus.faults.active import Active
from pairbus.faults.kinds import CONTACT, Place
from pairbus.faults.play.abort import reset
from pairbus.faults.play.cable import CableFaults
from pairbus.faults.play.swallowed import SwallowedConnections
from pairbus.faults.play.switches import FaultSwitches


class Entrance(Protocol):
    """The port of a broker or of a proxy, as the faults of connections see it."""

    def refuse(self, is_refusing: bool) -> None:
        """Stop listening and cut every connection, or listen again."""
        ...

    def welcome(self, client: socket.socket) -> None:
        """Go on with a connection that was accepted."""
        ...


class ConnectionFaults:
    """The faults of one port's connections. The port hands each accepted socket to `accept`."""

    def __init__(self, switches: FaultSwitches, port: Entrance | None = None) -> None:
        self.port = port
        "Port that listens; None: no port listens yet, or it is closed."
        self.cables = CableFaults(switches.faults.dice)
        self._switches = switches
        self._is_refusing = False
        self._swallowed = SwallowedConnections(switches.held, self.accept)
        switches.on_change.append(self.changed)
        switches.on_begin.append(self._begin)

    def changed(self) -> None:
        """Apply the changed set of faults to the port and to the cables."""
        faults = self._switches.faults
        is_refusing = any(
            active.fault.kind.name == "refuse" and active.fault.is_certain for active in faults.at(Place.CONNECT)
        )
        if self.port is not None and self._is_refusing is not is_refusing:
            self._is_refusing = is_refusing
            self.port.refuse(is_refusing)
            if is_refusing:
                self._swallowed.reset_all()
        self.cables.slow_by(faults.at(Place.WIRE))

    def _begin(self, active: Active) -> None:
        """Freeze the open connections when a black hole begins that meets every connection."""
        if active.fault.kind.name == "black-hole" and active.fault.is_certain:
            self._switches.held.add(active.id, self, partial(self.cables.thaw, active.id))
            self.cables.freeze(active.id)

    def accept(self, client: socket.socket) -> None:
        """Go on with a connection that was just accepted, or reset it, or keep it without an answer."""
        if self.port is None:
            client.close()
            return
        active = self._switches.meet(Place.CONNECT, CONTACT)
        if active is None:
            self.port.welcome(client)
        elif active.fault.kind.name == "refuse":
            reset(client)
        else:
            # No bytes are read, so none are lost: when the black hole ends, the client goes on as if it came then.
            self._swallowed.keep(active.id, client)

"""The faults of a proxy: those of the broker (`pairbus.faults`), as far as this proxy can play them.

Faults of whole connections are played by `pairbus.faults.play`; those that need frames by `pairbus.proxy.operations`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from pairbus.errors import InvalidFault
from pairbus.faults import Active, Fault, FaultKind, Place
from pairbus.faults.play.connections import ConnectionFaults, Entrance
from pairbus.faults.play.switches import FaultSwitches
from pairbus.proxy.idle import IdleConnections
from pairbus.proxy.operations import OperationRules
from pairbus.proxy.port import ProxyPort

WITHOUT_FRAMES = ("refuse", "black-hole", "latency", "bandwidth", "dns", "certificate")
"Kinds that need no look at frames."
BLIND = (
    "it needs to see AMQP frames, and this proxy passes TLS as bytes. Let clients speak AMQP in the clear with it, or"
    " let it end their TLS (--tls DIR), and encrypt to the target (--tls-to-target) instead of --pass-tls"
)
NO_TLS = "the proxy shows no certificate of its own; let it end the TLS of clients (--tls DIR)"
NO_NAME = (
    "nobody asks this proxy for a name. In Python, let a name of this process lead to it (Proxy.known_as); give another"
    " program a name that never resolves, such as contoso.invalid"
)
AT_THE_TARGET = {
    "delay": "the target decides when a message becomes receivable",
    "disk-full": "the disk is the target's",
    "slow-disk": "the disk is the target's",
}
"Kinds that no proxy can play, with the reason."


class Abilities(Entrance, Protocol):
    """A proxy, whose abilities depend on how it was started."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def sees_frames(self) -> bool: ...

    @property
    def ends_tls(self) -> bool: ...

    @property
    def has_names(self) -> bool: ...


class ProxyFaults(FaultSwitches):
    """The switches of one proxy: `add`, `list`, `clear`; and their effects on connections."""

    def __init__(self, proxy: Abilities, port: ProxyPort) -> None:
        super().__init__(proxy.name, logging.getLogger("pairbus.proxy"))
        self._proxy = proxy
        self._port = port
        self.connections = ConnectionFaults(self, proxy)
        self.rules = OperationRules(self, proxy.namespace)
        self.idle = IdleConnections(port)
        self.on_begin.append(self._begin)
        self.on_change.append(self._follow_idle)
        self.on_end.append(self._release)

    def add_fault(self, fault: Fault) -> Active:
        """Switch a fault on."""
        self._check(fault.kind)
        return super().add_fault(fault)

    def _check(self, kind: FaultKind) -> None:
        reason = None
        if "proxy" not in kind.at:
            reason = f"a proxy cannot play it: {AT_THE_TARGET[kind.name]}; pairbus broker can"
        elif kind.name not in WITHOUT_FRAMES and not self._proxy.sees_frames:
            reason = BLIND
        elif kind.name == "certificate" and not self._proxy.ends_tls:
            reason = NO_TLS
        elif kind.name == "dns" and not self._proxy.has_names:
            reason = NO_NAME
        if reason is not None:
            raise InvalidFault(f"{kind.name}: {reason}")

    def _begin(self, active: Active) -> None:
        self.rules.begin(active, self._port.open_passages())

    def _follow_idle(self) -> None:
        self.idle.follow(next(iter(self.faults.at(Place.IDLE)), None))

    def _release(self, active: Active) -> None:
        """Let the frames pass that the fault held."""
        for passage in self._port.open_passages():
            passage.release(partial(_is, active.id))


def _is(number: int, key: object) -> bool:
    return key == number

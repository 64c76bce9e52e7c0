"""The faults of a proxy: the switches, their times, and their effects on whole connections.

The faults are those of the broker (`pairbus.faults`). The end of a fault heals at once: the frames and connections that
it held are released.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Container, Sequence
from functools import partial
from typing import Any, Protocol

from pairbus.broker.outages.held import HeldSteps, run_all
from pairbus.broker.outages.swallowed import SwallowedConnections, reset
from pairbus.errors import InvalidFault
from pairbus.faults import CONTACT, Active, Fault, FaultKind, Faults, Place
from pairbus.proxy.conversation import DOWN, Direction
from pairbus.proxy.idle import IdleConnections
from pairbus.proxy.operations import OperationRules
from pairbus.proxy.port import ProxyPort

logger = logging.getLogger("pairbus.proxy")

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


class Abilities(Protocol):
    """Abilities of a proxy, which depend on how it was started."""

    @property
    def namespace(self) -> str: ...

    @property
    def sees_frames(self) -> bool: ...

    @property
    def ends_tls(self) -> bool: ...

    @property
    def has_names(self) -> bool: ...

    def welcome(self, client: socket.socket) -> None:
        """Go on with a connection that was accepted."""
        ...


class ProxyFaults:
    """The switches of one proxy: `add`, `list`, `clear`; and their effects on connections."""

    def __init__(self, proxy: Abilities, port: ProxyPort) -> None:
        self._proxy = proxy
        self._port = port
        self._timer: asyncio.TimerHandle | None = None
        self._lines: dict[Direction, list[Active]] = {}
        self._is_refusing = False
        self.faults = Faults(random.random)
        self.held = HeldSteps()
        self._swallowed = SwallowedConnections(self.held, self.accepted)
        self.rules = OperationRules(self, proxy.namespace)
        self.idle = IdleConnections(port)

    def __repr__(self) -> str:
        return f"<ProxyFaults {self.faults.items()!r}>"

    # ── the switches ──

    def add(self, kind: str, **fields: Any) -> int:
        """Switch a fault on; return its number.

        Fields: entity, direction, for_s, probability, count, and those of its kind. InvalidFault names a field that is
        wrong, or the reason why this proxy cannot play the fault and what to do.
        """
        return self.add_fault(Fault.read({"kind": kind, **fields})).id

    def add_fault(self, fault: Fault) -> Active:
        """Switch a fault on."""
        self._check(fault.kind)
        one = self.faults.add(fault, _now())
        logger.info("fault %d begins: %s", one.id, fault.to_json())
        self._changed()
        if fault.kind.name == "black-hole" and fault.is_certain:
            self._freeze(one)
        self.rules.begin(one, self._port.open_passages())
        return one

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

    def clear(self, number: int | None = None) -> int:
        """Switch one fault off, or all of them; return how many. FaultNotFound when none has this number."""
        ended = self.faults.clear(number)
        self._heal(ended)
        return len(ended)

    def close(self) -> None:
        """Switch all faults off and release all that they hold, because the proxy stops."""
        self.clear()
        self.held.release_all()

    # ── deciding ──

    def meet(
        self, place: Place, direction: str | None, entity: str = "", among: Container[str] | None = None
    ) -> Active | None:
        """Return the fault that meets an event now; a fault whose count is used up meets no more events."""
        if not len(self.faults):
            return None
        one = self.faults.meet(place, direction, entity, _now(), among)
        if one is not None and one.left == 0 and not one.fault.kind.holds:
            self._changed()
        return one

    def lines(self, direction: Direction) -> Sequence[Active]:
        """Return the faults that slow the bytes of that direction."""
        return self._lines.get(direction, ())

    def accepted(self, client: socket.socket) -> None:
        """Go on with a connection that was just accepted, or reset it, or keep it without an answer."""
        one = self.meet(Place.CONNECT, CONTACT)
        if one is None:
            self._proxy.welcome(client)
        elif one.fault.kind.name == "refuse":
            reset(client)
        else:
            # No bytes are read, so none are lost: when the black hole ends, the client goes on as if it came then.
            self._swallowed.keep(one.id, client)

    # ── beginning and ending ──

    def _freeze(self, one: Active) -> None:
        for passage in self._port.open_passages():
            passage.freeze(one.id)
        self.held.add(one.id, self, partial(self._thaw, one.id))

    def _thaw(self, number: int) -> None:
        run_all([partial(passage.thaw, number) for passage in self._port.open_passages()])

    def _changed(self) -> None:
        """Apply the changed set of faults to the port, the connections and the timers."""
        certain = {one.fault.kind.name for one in self.faults.at(Place.CONNECT) if one.fault.is_certain}
        if self._is_refusing is not ("refuse" in certain):
            self._is_refusing = not self._is_refusing
            if self._is_refusing:
                self._port.shut()
                self._port.reset_all()
                self._swallowed.reset_all()
            else:
                self._port.listen_again()
        self._change_lines()
        self.idle.follow(next(iter(self.faults.at(Place.IDLE)), None))
        if self._timer is not None:
            self._timer.cancel()
        ends = self.faults.next_end()
        self._timer = None if ends is None else asyncio.get_running_loop().call_at(ends, self._expire)

    def _change_lines(self) -> None:
        slow = self.faults.at(Place.WIRE)
        before = self._lines.get(DOWN, [])
        # As at the broker: bytes of the namespace come later; a thin line is thin both ways.
        thin = [one for one in slow if one.fault.kind.name == "bandwidth"]
        self._lines = {direction: slow if direction is DOWN else thin for direction in Direction} if slow else {}
        if any(one not in slow for one in before):
            run_all([passage.pace_anew for passage in self._port.open_passages()])

    def _expire(self) -> None:
        self._heal(self.faults.expire(_now()))

    def _heal(self, ended: list[Active]) -> None:
        self._changed()
        for one in ended:
            logger.info("fault %d ends: %s", one.id, one.fault.kind.name)
            self.held.release(one.id)
            for passage in self._port.open_passages():
                passage.release(partial(_is, one.id))

    # Last in the class, because `list` hides the builtin from later annotations.

    def list(self) -> list[dict[str, Any]]:
        """Return the faults that are on, as JSON: the fields of `add`, `id`, `left_s` and `left`."""
        now = _now()
        return [one.to_json(now) for one in self.faults.items()]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is(number: int, key: object) -> bool:
    return key == number

"""The network between one process and one namespace: it delays, cuts, refuses, falls silent and loses answers.

Bytes of one connection keep their order, as TCP's do; connections overtake each other. The genuine `Carrier` runs on
it: here are a connection and its links, which promise what those of `pairbus.transport` promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from pairbus.pairing.policy import Silence
from pairbus.transport import Carrier, ConnectionLost, Endpoint, Refused, Timeout, TransportError
from pairbus.transport.carrier.carrier import HIDES_PINGS
from pairbus.transport.connection.steps import Hearing
from tests.sim.broker import Namespace
from tests.sim.checker import History
from tests.sim.links import SimLink, SimManagement, SimReceiver, SimSender
from tests.sim.loop import VirtualLoop

ENDPOINT = Endpoint.parse(
    "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
)
TICK_S = 1e-6  # time between two events on one connection
DELAY_MAX_S = 15.0  # longest delay of bytes that arrive
IDLE_S = 30.0  # the heartbeat ends a connection on which nothing arrives for this time

Act = Callable[[], Any]


class Net:
    """State that all connections of one world share."""

    def __init__(self, loop: VirtualLoop, dice: Random, history: History, stored: Callable[[str], None]) -> None:
        self.loop = loop
        self.dice = dice
        self.history = history
        self.stored = stored
        "Called with the owner of a stored send, before its answer is on the way."
        self.wires: list[Wire] = []

    def delay_s(self, namespace: Namespace) -> float:
        """Mostly milliseconds, now and then much longer."""
        usual = self.dice.random() * 0.01
        return min((usual if self.dice.random() > 0.03 else usual * 30) * namespace.slowness, DELAY_MAX_S)

    def wires_to(self, namespace: Namespace) -> list[Wire]:
        self.wires = [wire for wire in self.wires if wire.loss is None]
        return [wire for wire in self.wires if wire.namespace is namespace]


class Wire:
    """One connection, in the shape of `transport.Connection`."""

    sender_class = SimSender

    def __init__(self, net: Net, namespace: Namespace, owner: str) -> None:
        self.net = net
        self.loop = net.loop
        self.namespace = namespace
        self.owner = owner
        "Process and role, for the history."
        self.loss: TransportError | None = None
        self.peer_properties = {HIDES_PINGS: True}
        self.opened_at = net.loop.time()
        self.is_full = False
        self.is_silent = False
        self.links: list[SimLink] = []
        self._pending: dict[asyncio.Future[Any], bool] = {}
        "Requests without an answer, and whether their outcome is unknown when the connection ends."
        self._held: list[Act] = []
        "Acts under way while nothing comes through."
        self._up_at = self._down_at = 0.0
        self._is_deaf = False
        self._arrives = True
        "Whether bytes under way still arrive after the connection was cut."

    # ── there and back ──

    def ask(self, act: Act, *, doubtful: bool) -> asyncio.Future[Any]:
        """Have `act` run at the peer; the future is its answer."""
        future: asyncio.Future[Any] = self.loop.create_future()
        future.add_done_callback(_heard)
        if self.loss is not None:
            future.set_exception(self.loss.again(outcome_unknown=False))
            return future
        self._pending[future] = doubtful
        self.up(lambda: self._answer(act, future))
        return future

    def up(self, step: Act) -> None:
        self._up_at = max(self._up_at + TICK_S, self.loop.time() + self.net.delay_s(self.namespace))
        self.loop.call_at(self._up_at, self._pass, step, True)

    def down(self, step: Act) -> None:
        if self.namespace.drops_answers and not self._is_deaf:
            self._is_deaf = True
            self.loop.call_later(self.net.dice.random() * IDLE_S, self.cut, "it was idle for too long")
        if not self._is_deaf:
            self._down_at = max(self._down_at + TICK_S, self.loop.time() + self.net.delay_s(self.namespace))
            self.loop.call_at(self._down_at, self._pass, step, False)

    def _pass(self, step: Act, going_up: bool) -> None:
        if self.loss is not None and not (going_up and self._arrives):
            return
        if self._held or self.namespace.is_silent:
            if not self._held:
                self.loop.call_later(self.net.dice.random() * IDLE_S, self._is_still_silent)
            self._held.append(lambda: self._pass(step, going_up))
            return
        step()

    def _answer(self, act: Act, future: asyncio.Future[Any]) -> None:
        try:
            result, error = act(), None
        except Refused as refused:
            result, error = None, refused
        self.down(lambda: self._hear(future, result, error))

    def _hear(self, future: asyncio.Future[Any], result: Any, error: Refused | None) -> None:
        self._pending.pop(future, None)
        if future.done():
            return
        self.net.history.heard(future)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    # ── ends ──

    def cut(self, why: str, *, arrives: bool | None = None) -> None:
        """End the connection; calls that wait on it get an error."""
        if self.loss is not None:
            return
        self._arrives = self.net.dice.random() < 0.5 if arrives is None else arrives
        self.loss = ConnectionLost(f"{self.namespace.name}: {why}")
        for link in list(self.links):
            link.end(self.loss)
        for future, doubtful in self._pending.items():
            if not future.done():
                future.set_exception(self.loss.again(outcome_unknown=doubtful))

    def _is_still_silent(self) -> None:
        if self._held:
            self.cut("it was silent for too long")

    def silence_ends(self) -> None:
        """Held bytes come through after all, or the peers have given each other up."""
        held, self._held = self._held, []
        if self.net.dice.random() < 0.5:
            self.cut("it was silent for too long")
        for step in held:
            step()

    async def close(self, timeout_s: float = 2.0) -> None:
        if self.loss is None:
            for link in self.links:
                link.unlock_unread()
            self.cut("closed by this client", arrives=True)

    # ── links ──

    @property
    def has_links(self) -> bool:
        return any(link.over is None for link in self.links)

    def has_room(self, path: str) -> bool:
        return self.loss is None

    async def sender(
        self, path: str, *, timeout_s: float, name: str | None = None, hearing: Hearing | None = None
    ) -> SimSender:
        link, began = self.sender_class(self, path, timeout_s), self.loop.time()
        with (hearing or Hearing()).awaiting(lambda: began):
            await self._attach(link, timeout_s, lambda: self.namespace.queue(path).refuse(attaching=True))
        return link

    async def receiver(
        self,
        path: str,
        *,
        mode: str,
        credit: int,
        sub_queue: str | None,
        session: object,
        identifier: str | None,
        timeout_s: float,
    ) -> SimReceiver:
        assert mode == "peek-lock" and sub_queue is None and session is None, "only messages under lock are read here"
        link = SimReceiver(self, path, timeout_s, credit)
        await self._attach(link, timeout_s, link.opened)
        return link

    async def management(self, path: str, *, timeout_s: float, silence_s: float) -> SimManagement:
        link = SimManagement(self, path, timeout_s)
        await self._attach(link, timeout_s, lambda: self.namespace.queue(path).refuse(attaching=True))
        return link

    async def _attach(self, link: SimLink, timeout_s: float, act: Act) -> None:
        try:
            await link.attach(timeout_s, act)
        except Timeout:
            self.is_silent = True
            raise
        except Refused:
            self.is_silent = False
            raise
        self.is_silent = False


def _heard(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future that its caller gave up, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()


class SimCarrier(Carrier):
    """The genuine carrier of a process, on this network."""

    wire_class = Wire

    def __init__(self, net: Net, namespace: Namespace, owner: str, connect_timeout_s: float = 3.0) -> None:
        super().__init__(ENDPOINT, connect_timeout_s=connect_timeout_s)
        self._net = net
        self._namespace = namespace
        self._owner = owner
        self.is_dead = False
        self._pool.connect = self._dial  # type: ignore[assignment]

    async def _dial(self, hearing: Hearing) -> Wire:
        net, namespace, began = self._net, self._namespace, self._net.loop.time()
        with hearing.awaiting(lambda: began):
            await asyncio.sleep(2 * net.delay_s(namespace))
        if namespace.refuses or self.is_dead:
            raise ConnectionLost(f"{namespace.name}: connection refused")
        if namespace.is_silent:
            with hearing.awaiting(lambda: began):
                await asyncio.sleep(self.connect_timeout_s)
            silence = Silence(net.loop.time() - began, self.connect_timeout_s)
            raise Timeout(f"{namespace.name}: no connection within {self.connect_timeout_s:g} s", silence)
        wire = self.wire_class(net, namespace, self._owner)
        net.wires.append(wire)
        return wire

    def die(self) -> None:
        """The process is gone: nothing it holds says another word."""
        self.is_dead = True
        for wire in self._net.wires:
            if wire.owner == self._owner and wire.namespace is self._namespace:
                wire.cut("the process died")

"""A campaign against peers that say nothing: every client must leave them, and none may leave a slow one.

    python -m tests.client.silent_peers                 # every case, side by side
    python -m tests.client.silent_peers --only syn      # those whose name has this word

A case is a kind of silence, a time-out, a traffic, a client with or without an open link, and the side that is silent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from azure.servicebus.exceptions import ServiceBusError

from pairbus.pairing.events import BacklogQueueFailed, Diverted, FailedOver, Suspected
from tests.client.world import Client, Stage, message, new_client
from tests.limits import slowness
from tests.scripted import ScriptedEndpoint, Silent

How = Literal["black hole", "half-open", "syn hole", "slow"]
SideName = Literal["primary", "backlog"]
SILENCES: tuple[How, ...] = ("black hole", "half-open", "syn hole")
SIDES: tuple[SideName, ...] = ("primary", "backlog")
TIME_OUTS_S = (1.0, 1.5, 2.0, 3.0, 4.0)
INTERVAL_S = 3.0  # failover interval of the clients
GAPS_S = {"sparse": 4.0, "dense": 0.2}
LIMIT_S = 20.0  # interval, two gaps, two time-outs, and a moment
SLOW_S = 12.0  # for which a slow peer is sent to
LATENCY_S = 0.15  # of a slow peer, each way: an opening takes longer than the shortest time-out


@dataclass(frozen=True)
class Case:
    how: How
    timeout_s: float
    traffic: str
    has_link: bool
    side: SideName = "primary"

    def __str__(self) -> str:
        link = "open link" if self.has_link else "no link"
        return f"{self.how}, {self.timeout_s:g} s, {self.traffic}, {link}, {self.side}"


def cases(
    hows: Iterable[How] = SILENCES,
    time_outs_s: Iterable[float] = TIME_OUTS_S,
) -> list[Case]:
    every = itertools.product(hows, time_outs_s, GAPS_S, (False, True), SIDES)
    return [Case(*each) for each in every]


class Relay:
    """A port before an endpoint, which can fall silent in three ways, or be slow."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._latency_s = 0.0
        self._swallows = False
        self._reads = asyncio.Event()
        self._reads.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=4)
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def connection_string(self, direct: str) -> str:
        return direct.replace(f":{self._target};", f":{self.port};")

    async def become(self, how: How) -> None:
        """Black hole: connections are accepted and read, and nothing is said. Half-open: connections are made by the
        system, and no byte is read. Syn hole: no new connection comes about, as its first packet is dropped."""
        if how == "slow":
            self._latency_s = LATENCY_S
        elif how == "black hole":
            self._swallows = True
        else:
            self._reads.clear()
            self._accepting.cancel()
        if how == "syn hole":
            while await self._fills_line():
                pass

    async def _fills_line(self) -> bool:
        """Take a place in the line of connections that wait to be accepted; False when it is full."""
        sock = socket.socket()
        sock.setblocking(False)
        self._sockets.append(sock)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
                return True
        return False

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listening)
            far = socket.socket()
            far.setblocking(False)
            self._sockets += (near, far)
            await loop.sock_connect(far, ("127.0.0.1", self._target))
            for source, target in ((near, far), (far, near)):
                task = asyncio.create_task(self._pass(source, target))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await loop.sock_recv(source, 65_536):
                await self._reads.wait()
                await asyncio.sleep(self._latency_s)
                if not self._swallows:
                    await loop.sock_sendall(target, data)
        await self._reads.wait()
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        tasks = [self._accepting, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in (self._listening, *self._sockets):
            sock.close()


class Player:
    """One client, which goes through a relay."""

    def __init__(self, case: Case, primary: ScriptedEndpoint, secondary: ScriptedEndpoint) -> None:
        self.case = case
        self.is_away = case.side == "backlog"
        self.relay = Relay((secondary if self.is_away else primary).port)
        ends = [primary.connection_string, secondary.connection_string]
        ends[self.is_away] = self.relay.connection_string(ends[self.is_away])
        interval_s = 0.0 if case.how == "slow" else INTERVAL_S
        self.client: Client = new_client(
            "aio", *ends, primary_name="stage", create_backlog_queues=False, failover_interval=interval_s
        )
        self.began = 0.0

    async def play(self) -> str:
        """Return what went wrong; empty when it went right."""
        sender = self.client.sender("orders")
        if self.is_away:
            self.client.client.force_failover("orders")
        if self.case.has_link:
            await sender.send(message())
        self.client.events.clear()
        await self.relay.become(self.case.how)
        self.began = time.monotonic()
        traffic = [asyncio.create_task(self._send(sender)) for _ in range(3 if self.case.traffic == "dense" else 1)]
        try:
            return await (self._stays() if self.case.how == "slow" else self._leaves())
        finally:
            for task in traffic:
                task.cancel()
            await asyncio.gather(*traffic, return_exceptions=True)
            await self.relay.close()
            await self.client.close()

    async def _send(self, sender: object) -> None:
        while True:
            with suppress(ServiceBusError):
                await sender.send(message(), timeout=self.case.timeout_s)  # type: ignore[attr-defined]
            await asyncio.sleep(GAPS_S[self.case.traffic])

    @property
    def has_left(self) -> bool:
        """True when a message of a silent primary was diverted, or every backlog queue of a silent secondary is out."""
        if not self.is_away:
            return bool(self.client.told(Diverted))
        return {event.queue for event in self.client.told(BacklogQueueFailed)} == set(Stage.BACKLOG)

    async def _leaves(self) -> str:
        # A secondary has two queues, and each of them is left when it was silent for three seconds in all.
        limit_s = LIMIT_S * (3 if self.is_away else 1) * slowness()
        while not self.has_left:
            if time.monotonic() - self.began > limit_s:
                return f"{self.case}: it was not left within {limit_s:.0f} s: {self.client.client!r}"
            await asyncio.sleep(0.05)
        return ""

    async def _stays(self) -> str:
        await asyncio.sleep(SLOW_S)
        told = [event for kind in (Suspected, FailedOver, BacklogQueueFailed) for event in self.client.told(kind)]
        return f"{self.case}: {told}" if told else ""


async def campaign(given: Iterable[Case]) -> list[str]:
    """Play the cases side by side; return what went wrong."""
    async with ScriptedEndpoint() as primary, ScriptedEndpoint() as secondary:
        players = [Player(case, primary, secondary) for case in given]
        return [problem for problem in await asyncio.gather(*(player.play() for player in players)) if problem]


async def silent_queue(timeout_s: float, step: Literal["attach", "transfer"]) -> float:
    """Return the seconds after which a client with one silent backlog queue stores its messages in the other one."""
    async with ScriptedEndpoint() as primary, ScriptedEndpoint() as secondary:
        stage = Stage(primary, secondary)
        client = stage.client("aio")
        client.client.force_failover("orders")
        sender = client.sender("orders")
        await sender.send(message())
        [queue] = {event.queue for event in client.told(Diverted)}
        if step == "attach":
            secondary.close_connections()
        secondary.on(step, Silent(), path=queue)
        began = time.monotonic()
        while True:
            with suppress(ServiceBusError):
                await sender.send(message(), timeout=timeout_s)
                break
        took_s = time.monotonic() - began
        await stage.close()
        return took_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    given = parser.parse_args()
    chosen = [case for case in [*cases(), *cases(["slow"])] if given.only in str(case)]
    problems = asyncio.run(campaign(chosen))
    print(*problems, f"{len(chosen)} clients, {len(problems)} of them went wrong", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

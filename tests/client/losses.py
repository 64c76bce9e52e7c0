"""The ways of losing a primary, each with its way back. One loss may take several entities at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from pairbus.amqp.message import Message, Properties
from pairbus.testing import NemesisThread
from pairbus.transport import ReceivedMessage, Refused, connect
from tests.client.world import World
from tests.limits import slowness

QUICK_S, SILENT_S = 2.0, 5.0
Heal = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loss:
    name: str
    happens: Callable[[World, list[str]], Awaitable[Heal]]
    is_silent: bool = False
    "The peer says nothing: only a time-out shows the loss."
    of_one_entity: bool = False
    "Other entities of the primary work on."
    before_connection: bool = False
    "The sender has not been open before."
    through_proxy: bool = True
    max_size_mb: int = 1024

    def __str__(self) -> str:
        return self.name

    @property
    def limit_s(self) -> float:
        return (SILENT_S if self.is_silent else QUICK_S) * slowness()

    def make_queue(self, world: World, **settings: Any) -> str:
        return world.namespaces.make_queue(max_size_in_megabytes=self.max_size_mb, **settings)

    def prepare(self, world: World) -> None:
        """Decide, before the client is made, whether it goes through a proxy."""
        if self.through_proxy:
            world.nemesis()


def _by_nemesis(throw: Callable[[NemesisThread, str], object]) -> Callable[[World, list[str]], Awaitable[Heal]]:
    async def happens(world: World, paths: list[str]) -> Heal:
        nemesis = world.nemesis()
        for path in paths:
            await asyncio.to_thread(throw, nemesis, path)

        async def heal() -> None:
            await asyncio.to_thread(nemesis.heal)

        return heal

    return happens


async def _kill(world: World, paths: list[str]) -> Heal:
    broker = world.namespaces.process("primary")
    await asyncio.to_thread(broker.kill)

    async def heal() -> None:
        await asyncio.to_thread(broker.start)

    return heal


async def _stop(world: World, paths: list[str]) -> Heal:
    broker = world.namespaces.process("primary")
    os.kill(broker.pid, signal.SIGSTOP)

    async def heal() -> None:
        os.kill(broker.pid, signal.SIGCONT)

    return heal


FILLING = "filling"


async def _fill(world: World, paths: list[str]) -> Heal:
    """Fill the queues up to their limit, with messages of a subject of their own, which are removed when it heals."""
    filling = Message(properties=Properties(message_id="x", subject=FILLING), data=[bytes(200_000)]).encode()
    async with await connect(world.namespaces.connection_string("primary")) as connection:
        for path in paths:
            sender = await connection.sender(path)
            with pytest.raises(Refused, match="maximum size"):
                for _ in range(20):
                    await sender.send(filling)

    async def heal() -> None:
        async with await connect(world.namespaces.connection_string("primary")) as connection:
            for path in paths:
                receiver = await connection.receiver(path)
                found: list[ReceivedMessage] = []
                while batch := await receiver.receive(100, timeout_s=2.0 if found else 20.0):
                    found += batch
                ours = [one for one in found if FILLING.encode() in one.payload[:300]]
                await receiver.complete(ours)
                await receiver.pause()  # otherwise released messages come back to this receiver
                await receiver.release([one for one in found if one not in ours])

    return heal


LOSSES = [
    Loss("broker killed", _kill, through_proxy=False),
    Loss("broker stopped", _stop, is_silent=True, through_proxy=False),
    Loss("port refused", _by_nemesis(lambda nemesis, _: nemesis.refuse())),
    Loss(
        "black hole before the connection",
        _by_nemesis(lambda nemesis, _: nemesis.black_hole(open_connections=False)),
        is_silent=True,
        before_connection=True,
    ),
    Loss("black hole on the connection", _by_nemesis(lambda nemesis, _: nemesis.black_hole()), is_silent=True),
    Loss("bytes stalled", _by_nemesis(lambda nemesis, _: nemesis.stall()), is_silent=True),
    Loss(
        "transfers stalled",
        _by_nemesis(lambda nemesis, path: nemesis.stall_transfers(path)),
        is_silent=True,
        of_one_entity=True,
    ),
    Loss(
        "answers dropped",
        _by_nemesis(lambda nemesis, path: nemesis.drop_answers(path)),
        is_silent=True,
        of_one_entity=True,
    ),
    Loss("links cut", _by_nemesis(lambda nemesis, path: nemesis.cut_links(path)), of_one_entity=True),
    Loss("links detached", _by_nemesis(lambda nemesis, path: nemesis.cut_links(path, "detach")), of_one_entity=True),
    Loss(
        "attaches unanswered",
        _by_nemesis(lambda nemesis, path: nemesis.cut_links(path, "stall")),
        is_silent=True,
        of_one_entity=True,
    ),
    Loss("entity full", _fill, of_one_entity=True, max_size_mb=1),
]
LOUD = [loss for loss in LOSSES if not loss.is_silent]
SILENT = [loss for loss in LOSSES if loss.is_silent]


def deep_but(losses: Sequence[Loss], *kept: str) -> list[ParameterSet]:
    """Parameters for a test whose whole row is part of `make deep`, and only the ways named here of `make test`."""
    assert {*kept} <= {loss.name for loss in losses}
    return [pytest.param(loss, id=loss.name, marks=() if loss.name in kept else pytest.mark.deep) for loss in losses]

"""A pump that ends leaves no message locked, whatever was refused, slow or interrupted before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pairbus.broker.entities.receivable import Outcome
from pairbus.broker.refusal import Refusal
from pairbus.pairing.events import DestinationSkipped
from pairbus.syphon import receive
from pairbus.syphon.decide.pace import BatchSize
from pairbus.testing.nemesis import Nemesis
from pairbus.transport import Carrier
from tests.syphon.world import BACKLOG, DISABLED, QUICK, World, locked, message, pair, running, until

NO_SPACE = Refusal("amqp:internal-error", "No space left on the disk.")


def refuse(world: World, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker of the secondary refuse the first settlement of this kind: the lock of its message runs on."""
    queue = world.away.queue(BACKLOG)
    assert queue is not None
    genuine, refused = queue.settle, list[bytes]()

    def settle(box: Any, token: bytes, wanted: Outcome, now_ms: int, done: Any, **more: Any) -> None:
        if wanted is outcome and not refused:
            refused.append(token)
            done(NO_SPACE)
        else:
            genuine(box, token, wanted, now_ms, done, **more)

    monkeypatch.setattr(queue, "settle", settle)


async def test_message_whose_mark_was_refused_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark would tell other processes since when the destination is missing."""
    async with pair() as world:
        refuse(world, Outcome.ABANDON, monkeypatch)
        await world.divert("missing", [message(number) for number in range(3)])
        async with running(world.syphon()) as syphon:
            await until(lambda: bool(world.told(DestinationSkipped)))
            await until(lambda: syphon.progress().blocked == 3)
        assert (world.waiting(), await locked(world)) == (3, 0)


async def test_message_that_could_not_be_dead_lettered_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as world:
        refuse(world, Outcome.DEAD_LETTER, monkeypatch)
        await world.put(BACKLOG, [message(1)])  # without the property that names its destination
        async with running(world.syphon()) as syphon:
            await until(lambda: syphon.progress().errors > 0)
        assert (world.waiting(), await locked(world)) == (1, 0)


async def test_messages_are_released_in_another_region() -> None:
    """An answer takes 0.7 s there: neither the drain nor the release may be given up before."""
    async with pair(DISABLED) as world:
        await world.divert("bills", [message(number) for number in range(30)])
        near = world.secondary.endpoint
        nemesis = Nemesis(near.host, near.port)
        await nemesis.start()
        try:
            async with Carrier(replace(near, port=nemesis.port)) as far:
                syphon = world.syphon(QUICK, secondary=far)
                async with running(syphon):
                    await until(lambda: syphon.progress().blocked == 30)
                    nemesis.latency(0.35)
                assert await locked(world) == 0
        finally:
            await nemesis.stop()


class HangingLink:
    """A link whose messages cannot be released."""

    is_closed = False

    async def end(self) -> bool:
        await asyncio.Event().wait()
        return True

    async def close(self) -> None:
        self.is_closed = True


async def test_link_that_gives_nothing_back_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it stays open on the secondary's connection, and nobody knows of it any more."""
    monkeypatch.setattr(receive, "GIVE_BACK_S", 0.01)
    link = HangingLink()
    state = SimpleNamespace(clock=lambda: 0.0, may_follow=False)
    held = receive.Intake(cast(Any, state), BACKLOG, None, BatchSize(), asyncio.Event(), is_new=False)
    held._parked = [cast(Any, link)]
    await held.give_all_back()
    assert link.is_closed and held._parked == []
    assert held.hidden_since == 0.0, "its messages are locked where nobody can settle them"

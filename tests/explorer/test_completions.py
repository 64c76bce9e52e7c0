"""Completions that fail: the counts say which messages are still there, and no message is acted upon twice."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.explorer import Choice, Progress, described, move, peek, sequence_number_of, taking
from pairbus.explorer.taking import Acted, ActOnMessages, Taking
from pairbus.transport import ReceivedMessage
from pairbus.transport.links.management import DispositionStatus
from tests.explorer.world import ORDERS, OTHER, World, message, world


async def numbers(w: World) -> list[int]:
    return [sequence_number_of(one) or 0 for one in await peek(w.carrier, ORDERS)]


def settling(w: World, number: int, disposition: DispositionStatus) -> ActOnMessages:
    """Make an action during which somebody else settles one of the messages, so that its lock is lost."""

    async def act(messages: list[ReceivedMessage]) -> Acted:
        others = await w.carrier.management("orders")
        for one in messages:
            if sequence_number_of(one.payload) == number:
                await others.update_disposition(disposition, [one.lock_token])
        return Acted(messages)

    return act


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen", "all"])
async def test_message_that_could_not_be_completed_counts_as_left(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, is_chosen: bool
) -> None:
    """A message loses its lock while the verb acts: somebody has deferred it."""
    monkeypatch.setattr(taking, "CHOSEN_WAIT_S", 1.0)
    told: list[int | None] = []
    progress = Progress(tell=lambda one: told.append(one.left))
    async with world() as w:
        await w.put(message(0), message(1))
        before = await numbers(w)
        act = settling(w, before[1], "defered")
        choice = Choice(numbers=before) if is_chosen else Choice()
        await Taking(w.carrier, ORDERS, choice, act, progress, limit).run()
        assert await numbers(w) == before[1:]
        assert (progress.done, progress.uncompleted, progress.left) == (2, 1, 1)
        assert told[-1] == 1


async def test_copies_are_not_repeated_when_the_connection_breaks() -> None:
    """Messages that come again because their completion was lost are completed, and not moved once more."""
    async with world(lock_s=1.0) as w:
        await w.put(*(message(number) for number in range(3)))
        wanted, moved = await numbers(w), list[str]()

        async def act(messages: list[ReceivedMessage]) -> Acted:
            if not moved:
                await w.carrier.drop()
            moved.extend(described(one.payload)["message_id"] for one in messages)
            return Acted(messages)

        progress = await Taking(w.carrier, ORDERS, Choice(numbers=wanted), act, Progress()).run()
        assert (progress.done, progress.uncompleted, progress.left) == (3, 0, 0)
        assert sorted(moved) == ["m0", "m1", "m2"]
        assert await numbers(w) == []


async def test_message_that_is_gone_does_not_count_as_uncompleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A completion that is refused or has no answer leaves open whether the message is there; a look tells."""
    monkeypatch.setattr(taking, "CHOSEN_WAIT_S", 0.5)
    async with world() as w:
        await w.put(message(0), message(1))
        before = await numbers(w)
        act = settling(w, before[0], "completed")
        progress = await Taking(w.carrier, ORDERS, Choice(numbers=before), act, Progress()).run()
        assert (progress.done, progress.uncompleted, progress.left) == (2, 0, 0)
        assert await numbers(w) == []


async def test_last_step_tells_how_many_messages_are_left() -> None:
    """A page that follows the progress has no other way to learn it."""
    told: list[int | None] = []
    async with world() as w:
        await w.put(message(0), message(1))
        await asyncio.wait_for(
            move(w.carrier, ORDERS, w.carrier, "other", progress=Progress(tell=lambda one: told.append(one.left))), 10.0
        )
        assert (told[-1], len(await peek(w.carrier, OTHER))) == (0, 2)

"""Chosen messages of sessions: only their sessions are visited, and dead letters need no session."""

from __future__ import annotations

import time

import pytest

from pairbus.explorer import Address, Choice, peek, purge, receive, sequence_number_of
from tests.explorer.world import MEETINGS, World, message, world

MEETING_LETTERS = Address("meetings", is_dead_letter=True)


async def with_sessions(w: World) -> list[int]:
    """Put two messages into each of four sessions; return the sequence numbers in the order of the sessions."""
    await w.put(*(message(n, group_id=f"s{n // 2}") for n in range(8)), path="meetings")
    return [sequence_number_of(one) or 0 for one in await peek(w.carrier, MEETINGS)]


async def test_only_sessions_with_chosen_messages_are_visited() -> None:
    """In each of the others the verb would wait for ten seconds for a message that cannot come."""
    async with world() as w:
        numbers = await with_sessions(w)
        other = await w.carrier.receiver("meetings", session="s0")
        began = time.monotonic()
        progress = await purge(w.carrier, MEETINGS, choice=Choice(numbers=[numbers[4], numbers[6]]))
        assert time.monotonic() - began < 5.0
        await other.close()
        assert (progress.done, progress.left, progress.notes) == (2, 0, [])
        assert await w.ids(MEETINGS) == ["m0", "m1", "m2", "m3", "m5", "m7"]


async def test_session_that_another_receiver_has_is_told_when_its_messages_are_chosen() -> None:
    """Messages of the locked session are left; the next session is visited."""
    async with world() as w:
        numbers = await with_sessions(w)
        other = await w.carrier.receiver("meetings", session="s0")
        progress = await purge(w.carrier, MEETINGS, choice=Choice(numbers=[numbers[0], numbers[2]]))
        await other.close()
        assert (progress.done, progress.left) == (1, 1)
        assert progress.notes == ["session 's0' is locked by another receiver"]


@pytest.mark.parametrize("verb", ["purge", "receive"])
async def test_dead_letters_of_one_session_are_taken(verb: str) -> None:
    """A dead-letter queue has no sessions to lock, but its messages have their session ids."""
    async with world() as w:
        await with_sessions(w)
        for session in ("s0", "s1"):
            receiver = await w.carrier.receiver("meetings", session=session)
            await receiver.dead_letter(await receiver.receive(1, 5.0), "Poison")
            await receiver.close()
        letters = await w.ids(MEETING_LETTERS)
        assert len(letters) >= 2
        before = {one: f"s{int(one[1:]) // 2}" for one in letters}

        async def take(_: list[bytes]) -> None:
            pass

        choice = Choice(session="s1")
        if verb == "purge":
            progress = await purge(w.carrier, MEETING_LETTERS, choice=choice)
        else:
            progress = await receive(w.carrier, MEETING_LETTERS, take, choice=choice)
        assert (progress.done, progress.left) == (sum(one == "s1" for one in before.values()), 0)
        assert await w.ids(MEETING_LETTERS) == [one for one, session in before.items() if session != "s1"]

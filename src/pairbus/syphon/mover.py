"""The order in which the batches of one queue go to their destinations: each in its turn, to sixteen at once."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pairbus.backlog.envelope import Spoiled, home_payload
from pairbus.syphon.decide.at_home import sequence_number_of
from pairbus.syphon.decide.relay import Item, by_destination
from pairbus.syphon.shared import SyphonState
from pairbus.syphon.trip import Trip, Turn
from pairbus.transport import ReceivedMessage

AT_ONCE = 16  # destinations of one queue to which batches go at once
TURNS_MAX = 1000  # destinations whose last batch is remembered


class Opened(NamedTuple):
    """A batch whose messages were decoded and sorted."""

    items: list[Item]
    "Messages without order."
    lanes: list[Item]
    "Messages of senders that keep order."
    at_home: list[Item]
    "Messages that their destination has accepted before: they are only completed."
    spoiled: list[tuple[int, Spoiled]]
    locked_until_ms: int | None


class Mover:
    """Mover of the batches of one queue."""

    def __init__(self, shared: SyphonState, queue: str) -> None:
        self._shared = shared
        self._queue = queue
        self._opener = shared.new_opener()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._turns: dict[str, Turn] = {}
        "Key of a destination → turn of the last batch for it."

    def open(self, received: list[ReceivedMessage]) -> Opened:
        """Decode received messages, and sort them by how they are handled."""
        shared = self._shared
        opener, policy, now_ms = self._opener, shared.settings.ttl_policy, shared.wall_ms()
        remembers = shared.at_home.count(self._queue) > 0
        opened = Opened([], [], [], [], None)
        locked_until_ms = None
        for message in received:
            home = opener(message.payload)
            payload = home if isinstance(home, Spoiled) else home_payload(home, policy, now_ms)
            if isinstance(home, Spoiled) or isinstance(payload, Spoiled):
                assert isinstance(payload, Spoiled)
                opened.spoiled.append((message.delivery_id, payload))
                continue
            item = Item(message.delivery_id, home, payload)
            locked_until_ms = home.locked_until_ms or locked_until_ms
            if remembers and self._is_at_home(item, message):
                opened.at_home.append(item)
            else:
                (opened.items if home.sender is None else opened.lanes).append(item)
        return opened._replace(locked_until_ms=locked_until_ms)

    def _is_at_home(self, item: Item, message: ReceivedMessage) -> bool:
        identity = sequence_number_of(message.payload), item.home.message_id, item.home.enqueued_ms
        return self._shared.at_home.knows(self._queue, identity)

    def in_turns(self, items: list[Item]) -> list[tuple[list[Item], Turn]]:
        """Group messages by destination, and give each group the next turn there."""
        return [(group, self._turn(key)) for key, group in by_destination(items).items()]

    def _turn(self, key: str) -> Turn:
        if len(self._turns) >= TURNS_MAX and key not in self._turns:
            self._turns = {key: turn for key, turn in self._turns.items() if not turn.is_over}
        turn = self._turns[key] = Turn(self._turns.get(key))
        return turn

    async def move(self, trip: Trip, turns: list[tuple[list[Item], Turn]]) -> None:
        """Bring each group to its destination, after the groups with an earlier turn."""
        try:
            if len(turns) == 1:
                await self._bring(trip, *turns[0])
            else:
                async with asyncio.TaskGroup() as tasks:
                    for group, turn in turns:
                        tasks.create_task(self._bring(trip, group, turn))
        finally:
            for _, turn in turns:
                turn.over()

    async def _bring(self, trip: Trip, group: list[Item], turn: Turn) -> None:
        await turn.come()
        async with self._at_once:
            await trip.bring(group, turn)

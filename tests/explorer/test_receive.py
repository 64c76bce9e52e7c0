"""Receiving messages that the service deletes as it delivers them."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.errors import EntityError
from pairbus.explorer import described, receive_and_delete
from pairbus.transport import ReceivedMessage, Receiver, TransportError
from tests.explorer.world import ORDERS, message, world


async def test_deleted_messages_are_taken_when_credit_cannot_be_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that have arrived are gone from the entity, and must not be dropped with the link."""
    receive_many = Receiver.receive

    async def receive_one(self: Receiver, max_count: int, timeout_s: float) -> list[ReceivedMessage]:
        return await receive_many(self, min(max_count, 1), timeout_s)

    async def pause(self: Receiver, timeout_s: float | None = None) -> None:
        raise TransportError("no answer")

    monkeypatch.setattr(Receiver, "receive", receive_one)
    monkeypatch.setattr(Receiver, "pause", pause)
    async with world() as w:
        await w.put(*(message(number) for number in range(5)))
        taken: list[str] = []

        async def take(payloads: list[bytes]) -> None:
            taken.extend(described(payload)["message_id"] for payload in payloads)
            if len(taken) == 1:
                await asyncio.sleep(0.3)  # the others arrive meanwhile
                raise EntityError("stop here")

        with pytest.raises(EntityError):
            await receive_and_delete(w.carrier, ORDERS, take, limit=5)
        assert sorted(taken + await w.ids()) == [f"m{number}" for number in range(5)]

"""Locks of messages that a verb passes over: they are kept, few bytes are held, and nobody waits for too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pairbus.explorer import Address, Choice, described, peek, purge, sequence_number_of, taking
from pairbus.explorer import intake as intake_of_explorer
from pairbus.explorer.calls import RetryPatience
from pairbus.explorer.intake import BATCH, MessageIntake
from pairbus.transport import Carrier, ReceivedMessage
from tests.explorer.world import LETTERS, ORDERS, World, message, world

LOCK_S = 3.0


@asynccontextmanager
async def first_message_elsewhere(w: World) -> AsyncIterator[None]:
    """Hold the first message of `orders` in another receiver, which renews its lock."""
    async with Carrier(w.broker.connection_string("contoso")) as other:
        receiver = await other.receiver("orders", credit=1)
        await receiver.receive(0, 5.0)  # asks for one message and takes none: taking would ask for more
        receiver.credit = 0
        held = await receiver.receive(1, 5.0)

        async def keep() -> None:
            while True:
                await asyncio.sleep(LOCK_S / 3)
                await receiver.renew(held)

        keeping = asyncio.create_task(keep())
        yield
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def deliveries(w: World, address: Address = ORDERS) -> list[int]:
    return [described(one)["delivery_count"] for one in await peek(w.carrier, address)]


async def test_messages_passed_over_keep_their_short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that ends counts as a failed delivery, and after some of these the service dead-letters the message.

    Each of its arrivals also began the wait for the chosen message anew.
    """
    monkeypatch.setattr(taking, "CHOSEN_WAIT_S", 2.5 * LOCK_S)
    async with world(lock_s=LOCK_S) as w:
        await w.put(*(message(number) for number in range(6)))
        first = sequence_number_of((await peek(w.carrier, ORDERS))[0]) or 0
        async with first_message_elsewhere(w):
            began = time.monotonic()
            progress = await asyncio.wait_for(purge(w.carrier, ORDERS, choice=Choice(numbers=[first])), 20.0)
            assert (progress.done, progress.left) == (0, 1)
            assert time.monotonic() - began < 3.5 * LOCK_S
            assert await deliveries(w) == [0] * 6
        assert await peek(w.carrier, LETTERS) == []


async def test_lost_lock_does_not_end_the_renewal_of_others() -> None:
    """The service refuses a renewal as a whole when one of the locks is gone."""
    async with world(lock_s=LOCK_S) as w:
        await w.put(*(message(number) for number in range(5)))
        async with MessageIntake(w.carrier, ORDERS) as intake:
            got = await taken(intake, 5)
            management = await w.carrier.management("orders")
            await management.update_disposition("completed", [got[2].lock_token])
            await asyncio.sleep(1.5 * LOCK_S)
            assert await deliveries(w) == [0] * 4
            assert sorted(intake.held) == sorted(one.delivery_id for one in got if one is not got[2])


async def test_message_that_arrives_again_replaces_its_lost_delivery() -> None:
    """Lost deliveries would be renewed and counted for ever."""
    async with world() as w:
        await w.put(*(message(number) for number in range(3)))
        async with MessageIntake(w.carrier, ORDERS) as intake:
            got = await taken(intake, 3)
            management = await w.carrier.management("orders")
            await management.update_disposition("abandoned", [got[0].lock_token])
            [again] = await taken(intake, 1)
            assert again.delivery_id != got[0].delivery_id
            assert sorted(intake.held) == sorted(one.delivery_id for one in (again, *got[1:]))


async def test_messages_passed_over_are_held_without_their_bytes() -> None:
    """To find one message, a verb may pass over 20 000 others, of up to 100 MB each."""
    async with world() as w:
        await w.put(*(message(number, bytes(1000)) for number in range(300)))
        async with MessageIntake(w.carrier, ORDERS) as intake:
            async for _ in intake.batches(RetryPatience()):
                if len(intake.held) == 300:
                    break
            held = [len(one.payload) for one in intake.held.values()]
            assert sum(size > 0 for size in held) <= BATCH
        assert len(await w.receivable()) == 300


async def test_bytes_that_arrive_ahead_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred messages ahead are too many when they are large."""
    monkeypatch.setattr(intake_of_explorer, "BYTES_AHEAD_MAX", 100_000)
    ahead: list[int] = []
    async with world() as w:
        await w.put(*(message(number, bytes(10_000)) for number in range(100)))
        async with MessageIntake(w.carrier, ORDERS) as intake:
            async for batch in intake.batches(RetryPatience()):
                await asyncio.sleep(0.02)  # as long as a verb acts, messages arrive
                assert intake._receiver is not None
                ahead.append(sum(len(one.payload) for one in (*batch, *intake._receiver._buffer)))
        assert len(intake.held) == 0
        assert max(ahead) <= 2 * 100_000
        assert max(ahead) > 50_000


async def taken(intake: MessageIntake, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    async for batch in intake.batches(RetryPatience()):
        got += batch
        if len(got) >= count:
            break
    return got

"""Destinations that are topics and session queues, and dead letters of subscriptions and sessions on their way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pairbus.amqp.message import Message
from pairbus.broker import QueueDescription
from pairbus.broker.description import RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.filters import SqlFilter
from pairbus.pairing.events import PumpPaused
from pairbus.syphon import redrive
from pairbus.syphon.decide.dead_letter import MISSING
from pairbus.transport import ReceivedMessage
from tests.syphon.world import ORDERS, QUICK, World, bare, message, numbers, pair, running, until

NEWS = TopicDescription("news")
CASES = QueueDescription("cases", requires_session=True)
PARTS = QueueDescription("parts", requires_session=True, enable_partitioning=True)
EVEN = [RuleDescription("news", "even", "only", SqlFilter("sys.Label = 'even'"))]


@asynccontextmanager
async def world_with_topic(topic: TopicDescription = NEWS, lock_s: float = 60.0) -> AsyncIterator[World]:
    """A pair whose primary has the topic with subscriptions `all`, `even` and `sessions`, and two queues."""
    async with pair(ORDERS, CASES, PARTS, lock_s=lock_s) as world:
        await world.home.create(topic)
        await world.home.create(SubscriptionDescription("news", "all"))
        await world.home.create(SubscriptionDescription("news", "sessions", requires_session=True))
        await world.home.create_subscription(SubscriptionDescription("news", "even"), EVEN)
        yield world


def labelled(number: int) -> bytes:
    return message(number, subject="even" if number % 2 == 0 else "odd", group_id=f"s{number % 3}")


async def taken(world: World, path: str, count: int, session_id: str | None = None) -> list[bytes]:
    """Take the first messages of a subscription, or of one session of it."""
    connection = await world.primary.connection()
    receiver = await connection.receiver(path, mode="receive-and-delete", session=session_id, credit=count)
    got: list[bytes] = []
    async with asyncio.timeout(20):
        while len(got) < count:
            got += [received.payload for received in await receiver.receive(count - len(got), 5.0)]
    await receiver.close()
    return got


async def dead_lettered(world: World, path: str, count: int, session_id: str | None = None) -> None:
    receiver = await world.primary.receiver(path, session=session_id)
    batch: list[ReceivedMessage] = []
    async with asyncio.timeout(20):
        while len(batch) < count:
            batch += await receiver.receive(count - len(batch), 5.0)
    await receiver.dead_letter(batch, "why", "because")
    await receiver.close()


async def test_messages_for_a_topic_reach_every_matching_subscription() -> None:
    """Messages come byte for byte, with their sessions: rules and session subscription see the sender's values."""
    async with world_with_topic() as world:
        await world.divert("news", [labelled(number) for number in range(6)])
        assert (await world.syphon().run_once(0.2)).moved == 6
        everything = await taken(world, "news/Subscriptions/all", 6)
        assert sorted(map(bare, everything)) == sorted(bare(labelled(number)) for number in range(6))
        assert sorted(numbers(await taken(world, "news/Subscriptions/even", 3))) == [0, 2, 4]
        for session in range(3):
            got = await taken(world, "news/Subscriptions/sessions", 2, f"s{session}")
            assert sorted(numbers(got)) == [session, session + 3]
        assert world.home.topic_info("news").size_bytes == 0


async def test_messages_for_a_session_queue_are_in_their_sessions_again() -> None:
    """A send carries messages of several sessions, and each message has its own session id back."""
    async with world_with_topic() as world:
        await world.divert("cases", [labelled(number) for number in range(9)])
        assert (await world.syphon().run_once(0.2)).moved == 9
        for session in range(3):
            assert sorted(numbers(await taken(world, "cases", 3, f"s{session}"))) == [session, session + 3, session + 6]


async def test_batches_for_sessions_and_partitions_say_where_they_go() -> None:
    """The entity refuses a batch whose envelope lacks the id, session and key of its first message."""
    async with world_with_topic() as world:
        await world.divert("parts", [labelled(number) for number in range(9)])
        assert (await world.syphon().run_once(0.2)).moved == 9
        assert world.metered("send") == 9, "none was refused and sent again"
        for session in range(3):
            assert sorted(numbers(await taken(world, "parts", 3, f"s{session}"))) == [session, session + 3, session + 6]


async def test_ordered_messages_of_a_session_come_in_order_to_its_receiver() -> None:
    """Three senders' lanes of one entity, a session each, diverted in turns and received as sessions."""
    async with world_with_topic() as world:
        for number in range(30):
            payload = message(number, group_id=f"s{number % 3}")
            for path in ("cases", "news"):
                await world.divert(path, [payload], sender=f"me{number % 3}", counter=number + 1)
        assert (await world.syphon().run_once(0.3)).moved == 60
        for session in range(3):
            expected = list(range(session, 30, 3))
            assert numbers(await taken(world, "cases", 10, f"s{session}")) == expected
            assert numbers(await taken(world, "news/Subscriptions/sessions", 10, f"s{session}")) == expected


@pytest.mark.slow
async def test_a_topic_that_is_disabled_is_waited_for() -> None:
    """Messages of the disabled topic stay in the backlog, those of other destinations go; enabled again, it gets
    them all.
    """
    async with world_with_topic(replace(NEWS, status="SendDisabled"), lock_s=3.0) as world:
        await world.divert("news", [labelled(number) for number in range(3)])
        await world.divert("orders", [message(9)])
        async with running(world.syphon()) as syphon:
            assert numbers(await world.arrived("orders", 1)) == [9]
            await until(lambda: bool(world.told(PumpPaused)))
            assert syphon.progress().blocked == 3
            await world.home.update(replace(world.home.topic_info("news").description, status="Active"))
            assert sorted(numbers(await taken(world, "news/Subscriptions/all", 3))) == [0, 1, 2]


async def test_topic_missing_for_too_long_is_given_up() -> None:
    """A missing topic is treated like a missing queue."""
    async with world_with_topic() as world:
        await world.home.delete("news")
        await world.divert("news", [labelled(0)])
        settings = replace(QUICK, missing_destination_grace_s=0.0)
        progress = await world.syphon(settings).run_once(0.2)
        assert (progress.moved, progress.dead_lettered) == (0, 1)
        [letter] = await world.dead_letters(1)
        assert (letter.application_properties or {})["DeadLetterReason"] == MISSING


@pytest.mark.slow
async def test_a_topic_that_is_full_is_waited_for() -> None:
    """A slow subscription fills the topic; other messages stay in the backlog until a receiver makes room."""
    async with world_with_topic(replace(NEWS, max_size_mb=1), lock_s=3.0) as world:
        large = [replace_body(labelled(number), 250_000) for number in range(5)]
        sender = await world.primary.sender("news")
        for payload in large[:4]:
            await sender.send(payload)
        await sender.send(large[4])
        await world.divert("news", [labelled(8)])
        async with running(world.syphon()) as syphon:
            await until(lambda: syphon.progress().blocked == 1)
            for name in ("all", "even"):
                await taken(world, f"news/Subscriptions/{name}", 5 if name == "all" else 3)
            for session, count in enumerate((2, 2, 1)):
                await taken(world, "news/Subscriptions/sessions", count, f"s{session}")
            assert numbers(await taken(world, "news/Subscriptions/all", 1)) == [8]


def replace_body(payload: bytes, size: int) -> bytes:
    made = Message.decode(payload)
    made.data = [bytes(size)]
    return made.encode()


@pytest.mark.parametrize("target", [None, "orders", "cases"])
async def test_dead_letters_of_a_subscription_go_to_its_topic_or_elsewhere(target: str | None) -> None:
    """Through the topic every matching subscription gets them, as with any send to it."""
    async with world_with_topic() as world:
        sender = await world.primary.sender("news")
        for number in range(3):
            await sender.send(message(number, group_id="s"))
        await taken(world, "news/Subscriptions/sessions", 3, "s")
        await dead_lettered(world, "news/Subscriptions/all", 3)
        path = "news/Subscriptions/all/$DeadLetterQueue"
        back = redrive(world.primary, path, target=target, publish=world.events.append, duplicate_window_s=0)
        assert (await back.run_once()).moved == 3
        if target == "orders":
            got = await world.arrived("orders", 3)
        elif target == "cases":
            got = await taken(world, "cases", 3, "s")
        else:
            got = await taken(world, "news/Subscriptions/all", 3)
            assert numbers(await taken(world, "news/Subscriptions/sessions", 3, "s")) == [0, 1, 2]
        assert [bare(payload) for payload in got] == [bare(message(number, group_id="s")) for number in range(3)]
        assert world.home.subscription_info("news", "all").dead_lettered == 0


async def test_dead_letters_of_sessions_return_to_their_sessions() -> None:
    """The dead-letter queue of an entity with sessions has none itself; each letter still has its session id."""
    async with world_with_topic() as world:
        for path, read in (("cases", "cases"), ("news", "news/Subscriptions/sessions")):
            sender = await world.primary.sender(path)
            for number in range(6):
                await sender.send(labelled(number))
            for session in range(3):
                await dead_lettered(world, read, 2, f"s{session}")
            back = redrive(world.primary, read, publish=world.events.append, duplicate_window_s=0)
            assert (await back.run_once()).moved == 6
            for session in range(3):
                got = await taken(world, read, 2, f"s{session}")
                assert sorted(numbers(got)) == [session, session + 3]

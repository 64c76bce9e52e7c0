"""Faults of operations at a proxy, as the genuine SDK meets them; and the endpoint is whole when they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import Any

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus.amqp.message import Message
from pairbus.transport import Refused, connect
from tests.proxy.conftest import World, encoded, message, running, until

ERRORS = {
    "throttle": (ServiceBusServerBusyError, r"Error code : 50009."),
    "disable": (MessagingEntityDisabledError, "'orders' is in status SendDisabled"),
    "quota": (ServiceBusQuotaExceededError, "The maximum entity size has been reached"),
    "unauthorized": (ServiceBusAuthorizationError, r"'Send' claim\(s\) are required"),
    "internal-error": (ServiceBusError, "The service was unable to process the request"),
    "time-out": (OperationTimeoutError, "did not complete within the allotted timeout"),
}
MANY = 1200  # messages; more than the credit that a strict broker gives at once


@pytest.mark.parametrize("kind", ERRORS)
async def test_send_is_refused_and_nothing_is_stored(world: World, kind: str) -> None:
    """On an open link, which sends again after the fault."""
    sender = await world.sender()
    world.faults.add(kind, entity="Orders", direction="send")
    error, text = ERRORS[kind]
    with pytest.raises(error, match=text):
        await sender.send_messages(message("refused"), timeout=5)
    assert world.waiting() == 0
    world.faults.clear()
    await sender.send_messages(message("again"), timeout=5)
    assert world.waiting() == 1
    await world.check_whole()


@pytest.mark.parametrize("kind", ["throttle", "restart"])
async def test_link_of_the_entity_cannot_be_opened(world: World, kind: str) -> None:
    """Other entities and directions are not met."""
    world.faults.add(kind, entity="orders", direction="send")
    with pytest.raises(ServiceBusError):
        await world.sender()
    assert await world.sender("other")
    world.faults.clear()
    await world.check_whole()


@pytest.mark.parametrize("kind", ["throttle", "disable", "unauthorized"])
async def test_receiver_is_refused_and_loses_nothing(world: World, kind: str) -> None:
    """New links and open ones; the message stays where it is."""
    receiver = await world.receiver()
    world.faults.add(kind, entity="orders", direction="receive")
    await world.store("kept")
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(max_wait_time=2)
    with pytest.raises(ERRORS[kind][0]):
        await world.receiver()
    assert world.waiting() == 1
    world.faults.clear()
    await world.check_whole()
    assert world.waiting() == 0


async def test_settlement_is_refused_and_the_lock_stays(world: World) -> None:
    """The client can settle again with the same lock."""
    await world.store("one")
    receiver = await world.receiver()
    [one] = await receiver.receive_messages(max_wait_time=5)
    world.faults.add("throttle", direction="receive", count=1)
    with pytest.raises(ServiceBusServerBusyError):
        await receiver.complete_message(one)
    assert world.waiting() == 1
    await receiver.complete_message(one)
    await until(lambda: world.waiting() == 0)
    await world.check_whole()


async def test_request_is_refused_by_its_direction(world: World) -> None:
    """A peek is a receive: a fault of sends does not meet it. The SDK's receiver keeps the error of a rejected one."""
    receiver = await world.receiver()
    number = world.faults.add("throttle", direction="send")
    assert await receiver.peek_messages(timeout=5) == []
    world.faults.clear(number)
    world.faults.add("throttle", direction="receive", count=1)
    with pytest.raises(ServiceBusServerBusyError):
        await receiver.peek_messages(timeout=5)
    assert await (await world.receiver()).peek_messages(timeout=5) == []
    await world.check_whole()


async def test_restart_detaches_links_by_force(world: World) -> None:
    """Only links of that entity are detached."""
    async with await connect(world.connection_string) as connection:
        orders, other = await connection.sender("orders"), await connection.sender("other")
        world.faults.add("restart", entity="orders", for_s=60)
        with pytest.raises(Refused, match="force detached"):
            await orders.send(encoded("lost"), timeout_s=2)
        await other.send(encoded("at home"), timeout_s=5)
        assert (world.waiting(), world.waiting("other")) == (0, 1)
        world.faults.clear()
    await world.check_whole()


async def test_stalled_send_is_answered_when_the_stall_ends(world: World) -> None:
    """Other entities go on meanwhile."""
    sender = await world.sender()
    world.faults.add("stall", entity="orders", direction="send")
    sending = asyncio.create_task(sender.send_messages(message("late"), timeout=5))
    await until(lambda: world.proxy.counts.of("orders").transfers_held == 1)
    await world.store("meanwhile", "other")
    assert (world.waiting(), sending.done()) == (0, False)
    world.faults.clear()
    await sending
    assert world.waiting() == 1
    await world.check_whole()


async def test_stalled_receiver_gets_its_message_afterwards(world: World) -> None:
    receiver = await world.receiver()
    world.faults.add("stall", entity="orders", direction="receive")
    await world.store("kept")
    assert await receiver.receive_messages(max_wait_time=0.3) == []
    world.faults.clear()
    [one] = await receiver.receive_messages(max_wait_time=5)
    world.faults.add("stall", direction="receive")
    completing = asyncio.create_task(receiver.complete_message(one))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(completing), 0.2)
    assert world.waiting() == 1
    world.faults.clear()
    await completing
    await until(lambda: world.waiting() == 0)
    await world.check_whole()


async def test_lost_answer_makes_a_duplicate(world: World) -> None:
    """The message is stored, and the sender cannot know."""
    sender = await world.sender()
    world.faults.add("drop-answer", entity="orders", direction="send", count=1)
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(message("twice"), timeout=5)
    assert world.waiting() == 1
    await sender.send_messages(message("twice"), timeout=5)
    assert world.waiting() == 2
    await world.check_whole()


async def test_answer_to_a_request_can_be_lost(world: World) -> None:
    receiver = await world.receiver()
    world.faults.add("drop-answer", direction="receive", count=1)
    with pytest.raises(ServiceBusError):
        await receiver.peek_messages(timeout=5)
    assert await receiver.peek_messages(timeout=5) == []
    await world.check_whole()


# ── the numbers of a session ──


async def test_refusals_cost_no_credit_and_break_no_numbers() -> None:
    """More are refused than there is credit; then every second one, while another link of the session sends too.

    The broker keeps Azure's windows and credit, and is left behind in its numbers by each refusal.
    """
    async with running(strict=True) as world, await connect(world.connection_string) as connection:
        orders, other = await connection.sender("orders"), await connection.sender("other")
        number = world.faults.add("internal-error", entity="orders", direction="send")
        assert await outcomes(orders.send(encoded("refused"), timeout_s=20) for _ in range(MANY)) == {Refused: MANY}
        world.faults.clear(number)
        draws = iter(range(10**9))
        world.faults.faults.dice = lambda: float(next(draws) % 2)
        world.faults.add("internal-error", entity="orders", direction="send", probability=0.5)
        sends = [orders.send(encoded(str(each)), timeout_s=20) for each in range(MANY)]
        sends += [other.send(encoded(str(each)), timeout_s=20) for each in range(MANY // 10)]
        assert await outcomes(sends) == {Refused: MANY // 2, type(None): MANY // 2 + MANY // 10}
        assert (world.waiting(), world.waiting("other")) == (MANY / 2, MANY / 10)
        world.faults.clear()
        await orders.send(encoded("after"), timeout_s=5)
        assert connection.loss is None
        assert world.waiting() == MANY / 2 + 1


async def outcomes(sends: Iterable[Awaitable[Any]]) -> Counter[type]:
    """Count each kind of end."""
    return Counter(type(each) for each in await asyncio.gather(*sends, return_exceptions=True))


async def test_large_message_is_refused_whole(world: World) -> None:
    """The message has many frames, and so has one between the two refusals that passes."""
    async with await connect(world.connection_string) as connection:
        sender = await connection.sender("orders")
        large = Message(data=[bytes(200_000)]).encode()
        for _ in range(2):
            world.faults.add("internal-error", direction="send", count=1)
            with pytest.raises(Refused):
                await sender.send(large, timeout_s=5)
            await sender.send(large, timeout_s=5)
    assert world.waiting() == 2
    await world.check_whole()


async def test_message_that_overtakes_a_stalled_one_is_numbered_anew(world: World) -> None:
    """On one session: the stalled one arrives later, and each gets its own answer."""
    async with await connect(world.connection_string) as connection:
        orders, other = await connection.sender("orders"), await connection.sender("other")
        world.faults.add("stall", entity="orders", direction="send")
        stalled = orders.send_nowait(encoded("late"), timeout_s=10)
        for _ in range(3):
            await other.send(encoded("first"), timeout_s=5)
        world.faults.clear()
        await asyncio.wait_for(stalled, 5)
        await other.send(encoded("last"), timeout_s=5)
    assert (world.waiting(), world.waiting("other")) == (1, 4)

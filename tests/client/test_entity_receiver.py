"""A receiver inside the engine: its link, what it leaves locked, how it settles, and how it outlives trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusAuthenticationError, SessionLockLostError

from pairbus.aio import ServiceBusClient
from pairbus.amqp.message import Message, Properties
from pairbus.client.receiving.entity_receiver import EntityReceiver
from pairbus.client.receiving.incoming import Incoming
from pairbus.client.receiving.options import of_queue
from pairbus.client.receiving.settling import Settle, Settlement
from pairbus.pairing.pings import CONTENT_TYPE
from tests.client.world import Client, World, message, until
from tests.transport.server import Server

COMPLETE = Settlement(Settle.COMPLETE)
New = Callable[..., EntityReceiver]


async def opened(world: World, queue: str, **options: Any) -> tuple[Client, EntityReceiver]:
    client = await world.client("aio")
    return client, client.client._life.engine_here().new_receiver(of_queue(queue, **options))


async def filled(client: Client, queue: str, *bodies: str, **fields: Any) -> None:
    await client.sender(queue).send([message(body, **fields) for body in bodies])


def bodies(received: list[Incoming]) -> list[str]:
    return [str(each.message(SimpleNamespace(session=None))) for each in received]


async def test_receive_returns_all_that_is_there_without_a_pause(world: World) -> None:
    """The answer to the drain ends the call; nothing arrives after it."""
    queue = world.namespaces.make_queue()
    client, receiver = await opened(world, queue)
    await filled(client, queue, "a", "b", "c")
    began = asyncio.get_running_loop().time()
    found = await receiver.receive(10, 5.0)
    assert bodies(found) == ["a", "b", "c"]
    assert asyncio.get_running_loop().time() - began < 1.0
    await filled(client, queue, "d")
    other = client.client._life.engine_here().new_receiver(of_queue(queue))
    assert bodies(await other.receive(1, 5.0)) == ["d"], "the first receiver has taken no message outside of its call"
    await asyncio.gather(*(receiver.settle(each.locked, COMPLETE) for each in found))
    assert world.count(queue) == 1


async def test_receive_from_an_empty_queue_returns_nothing_at_its_time_out(world: World) -> None:
    queue = world.namespaces.make_queue()
    _, receiver = await opened(world, queue)
    began = asyncio.get_running_loop().time()
    assert await receiver.receive(5, 0.3) == []
    assert 0.25 < asyncio.get_running_loop().time() - began < 1.5


@pytest.mark.parametrize("operation", list(Settle))
async def test_message_is_settled_on_its_link_or_by_its_lock_token(world: World, operation: Settle) -> None:
    """The second message outlives its link: the lock is the queue's."""
    queue = world.namespaces.make_queue()
    client, receiver = await opened(world, queue)
    await filled(client, queue, "a", "b")
    first, second = await receiver.receive(2, 5.0)
    said = Settlement(operation, "why", "in words") if operation is Settle.DEAD_LETTER else Settlement(operation)
    await receiver.settle(first.locked, said)
    assert receiver._link is not None
    receiver._link.leave()
    await receiver.settle(second.locked, said)
    counts = world.namespaces.admin("primary").get_queue_runtime_properties(queue)
    places = {
        Settle.COMPLETE: (0, 0),
        Settle.ABANDON: (2, 0),
        Settle.DEFER: (2, 0),
        Settle.DEAD_LETTER: (0, 2),
    }
    left = (counts.total_message_count or 0) - (counts.dead_letter_message_count or 0)
    assert (left, counts.dead_letter_message_count) == places[operation]


async def test_closing_leaves_nothing_locked(world: World) -> None:
    """Also what was fetched ahead, and what a waiting call is about to get."""
    queue = world.namespaces.make_queue()
    client, receiver = await opened(world, queue, prefetch_count=10)
    await filled(client, queue, *"abcde")
    assert bodies(await receiver.receive(1, 5.0)) == ["a"]
    waiting = client.client._life.engine_here().new_receiver(of_queue(queue))
    await receiver.close()
    assert bodies(await waiting.receive(10, 5.0)) == ["b", "c", "d", "e"]
    call = asyncio.create_task(waiting.receive(1, 30.0))
    await asyncio.sleep(0)
    await waiting.close()
    assert await call == []


async def test_cancelled_receive_leaves_nothing_locked(world: World) -> None:
    queue = world.namespaces.make_queue()
    client, receiver = await opened(world, queue)
    await receiver.open()
    call = asyncio.create_task(receiver.receive(10, 30.0))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.wait([call])
    await filled(client, queue, "a")
    other = client.client._life.engine_here().new_receiver(of_queue(queue))
    assert bodies(await other.receive(1, 5.0)) == ["a"]


async def test_deleted_message_that_is_given_back_comes_with_the_next_call(world: World) -> None:
    """The entity has it no more: an interrupted caller would lose it."""
    queue = world.namespaces.make_queue()
    client, receiver = await opened(world, queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    await filled(client, queue, "a", "b")
    await receiver.release(await receiver.receive(2, 5.0))
    assert bodies(await receiver.receive(1, 5.0)) == ["a"]
    assert bodies(await receiver.receive(2, 5.0)) == ["b"]
    assert world.count(queue) == 0


async def test_ping_is_completed_and_not_returned() -> None:
    """The peer of this test hands pings out like any message; the broker of these tests would drop them itself."""
    async with Server() as server, ServiceBusClient.from_connection_string(server.connection_string) as client:
        receiver = client._life.engine_here().new_receiver(of_queue("orders"))
        server.put("orders", Message(properties=Properties(content_type=CONTENT_TYPE), data=[b"ping"]).encode())
        server.put("orders", Message(data=[b"real"]).encode())
        assert bodies(await receiver.receive(5, 5.0)) == ["real"]
        await server.until(lambda: server.settlements)
        assert [(first, last, outcome) for first, last, outcome, _ in server.settlements] == [(0, 0, "accepted")]


async def test_lost_connection_is_opened_again_within_the_call(world: World) -> None:
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client, receiver = await opened(world, queue)
    await receiver.open()
    call = asyncio.create_task(receiver.receive(1, 20.0))
    await asyncio.sleep(0.05)
    nemesis.refuse()
    await until(lambda: receiver.outage, "the outage is known")
    nemesis.heal()
    await filled(client, queue, "a")
    assert bodies(await call) == ["a"]
    assert receiver.outage is None


async def test_missing_queue_is_told_at_once(world: World) -> None:
    _, receiver = await opened(world, "no-such-queue")
    with pytest.raises(ServiceBusAuthenticationError) as missing:
        await receiver.receive(1, 20.0)
    assert "could not be found" in missing.value.__notes__[0]


async def test_session_is_accepted_kept_and_lost(world: World) -> None:
    queue = world.namespaces.make_queue(requires_session=True)
    client, receiver = await opened(world, queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
    await filled(client, queue, "a", "b", session_id="s1")
    found = await receiver.receive(2, 5.0)
    assert (receiver.session_id, bodies(found)) == ("s1", ["a", "b"])
    before = receiver.session_locked_until
    assert before is not None
    assert await receiver.renew_session() >= before
    await receiver.set_state(b"done")
    assert await receiver.get_state() == b"done"
    await receiver.settle(found[0].locked, COMPLETE)
    assert receiver._link is not None
    receiver._link.leave()
    with pytest.raises(SessionLockLostError):
        await receiver.settle(found[1].locked, COMPLETE)
    with pytest.raises(SessionLockLostError):
        await receiver.receive(1, 1.0)


async def test_waiting_for_a_session_ends_with_the_sdks_error(world: World) -> None:
    queue = world.namespaces.make_queue(requires_session=True)
    _, receiver = await opened(world, queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5)
    with pytest.raises(OperationTimeoutError, match="NEXT_AVAILABLE_SESSION"):
        await receiver.open(2.0)

"""Faults of the broker meet requests about messages as they meet links."""

from __future__ import annotations

import asyncio
import http.client

import aiohttp
import pytest

from pairbus.broker import NamespaceOptions, QueueDescription
from tests.faults.conftest import until
from tests.rest.world import HttpWorld, http_world, plain_request

STATUS = {
    "throttle": 503,
    "disable": 400,
    "quota": 403,
    "unauthorized": 401,
    "internal-error": 500,
    "time-out": 408,
    "restart": 500,
}


@pytest.mark.parametrize("kind", STATUS)
async def test_send_is_refused_and_nothing_is_stored(world: HttpWorld, kind: str) -> None:
    """With the status and the words of the service; other entities and directions are not met."""
    await world.send("orders", b"before")
    world.faults.add(kind, entity="Orders", direction="send")
    answer = await world.ask("POST", "orders/messages", b"refused")
    assert answer.status == STATUS[kind], answer
    assert ("Retry-After" in answer.headers) == (kind == "throttle")
    assert world.waiting() == 1
    await world.send("other")
    assert (await world.ask("DELETE", "orders/messages/head?timeout=0")).body == b"before"
    world.faults.clear()
    await world.send("orders")


@pytest.mark.parametrize("kind", [kind for kind in STATUS if kind != "quota"])
async def test_receive_is_refused_and_the_message_stays(world: HttpWorld, kind: str) -> None:
    """One that begins before the request, and one that a waiting request meets when a message comes."""
    await world.send("orders")
    world.faults.add(kind, entity="orders", direction="receive")
    for method in ("POST", "DELETE"):
        assert (await world.ask(method, "orders/messages/head?timeout=0")).status == STATUS[kind]
    world.faults.clear()
    assert (world.waiting(), world.locks()) == (1, 0)
    assert (await world.ask("DELETE", "orders/messages/head?timeout=5")).status == 200
    if kind != "restart":  # which detaches links, and waits for no message
        waiting = asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60"))
        await until(lambda: len(world.namespace.waiting_requests) == 1)
        world.faults.add(kind, entity="orders", direction="receive")
        await world.send("orders")
        assert (await waiting).status == STATUS[kind]
        assert (world.waiting(), world.locks()) == (1, 0)


@pytest.mark.parametrize("kind", ["restart", "disable"])
async def test_fault_that_detaches_links_ends_the_wait(world: HttpWorld, kind: str) -> None:
    """At once, without a message; requests at other entities go on."""
    waiting = asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60"))
    other = asyncio.create_task(world.ask("POST", "other/messages/head?timeout=60"))
    await until(lambda: len(world.namespace.waiting_requests) == 2)
    world.faults.add(kind, entity="orders")
    assert (await waiting).status == STATUS[kind]
    await world.send("other")
    assert (await other).status == 201


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
async def test_settlement_is_refused_and_the_lock_stays(world: HttpWorld, method: str) -> None:
    """The client may settle again with the same lock."""
    await world.send("orders")
    location = (await world.lock("orders")).headers["Location"]
    world.faults.add("throttle", direction="receive", count=1)
    assert (await world.ask(method, location)).status == 503
    assert (await world.ask(method, location)).status == 200


async def test_stalled_request_is_answered_when_the_stall_ends(world: HttpWorld) -> None:
    """Nothing is stored before; a client that leaves meanwhile stores nothing at all."""
    world.faults.add("stall", entity="orders", direction="send")
    left = asyncio.create_task(world.ask("POST", "orders/messages", b"left"))
    stays = asyncio.create_task(world.ask("POST", "orders/messages", b"stays"))
    await until(lambda: world.namespace.budget.arriving.used == 9)
    left.cancel()
    await until(lambda: world.namespace.budget.arriving.used == 5)
    assert (world.waiting(), stays.done()) == (0, False)
    world.faults.clear()
    assert (await stays).status == 201
    assert (await world.ask("DELETE", "orders/messages/head?timeout=5")).body == b"stays"
    assert world.waiting() == 0


async def test_stalled_queue_hands_no_message_to_a_request(world: HttpWorld) -> None:
    """Until the stall ends."""
    await world.send("orders")
    world.faults.add("stall", entity="orders", direction="receive")
    assert (await world.ask("POST", "orders/messages/head?timeout=1")).status == 204
    waiting = asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60"))
    await until(world.faults.held.owns_any)
    world.faults.clear()
    assert (await waiting).status == 201


async def test_lost_answer_is_stored_and_the_connection_cut(world: HttpWorld) -> None:
    """The client does not know, and a retry makes a second message."""
    world.faults.add("drop-answer", entity="orders", direction="send", count=1)
    with pytest.raises(aiohttp.ClientError):
        await world.ask("POST", "orders/messages", b"x")
    assert world.waiting() == 1
    location = (await world.lock("orders")).headers["Location"]
    world.faults.add("drop-answer", entity="orders", direction="receive", count=1)
    with pytest.raises(http.client.RemoteDisconnected):  # aiohttp would repeat a DELETE
        await asyncio.to_thread(plain_request, world, "DELETE", location.removeprefix(world.url("")))
    assert world.waiting() == 0


async def test_delayed_message_becomes_receivable_later(world: HttpWorld) -> None:
    """By the namespace's clock."""
    world.faults.add("delay", entity="orders", delay_s=600)
    await world.send("orders")
    assert (await world.ask("POST", "orders/messages/head?timeout=0")).status == 204
    await world.namespace.clock.advance(601)
    assert (await world.ask("POST", "orders/messages/head?timeout=0")).status == 201


async def test_load_beyond_the_rate_is_throttled() -> None:
    """Sends over HTTP use the same budget of operations as sends over AMQP."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),), operations_per_s=0.001)
    async with http_world(options) as world:
        answers = [(await world.ask("POST", "orders/messages", b"x")).status for _ in range(8)]
    assert set(answers) == {201, 503}

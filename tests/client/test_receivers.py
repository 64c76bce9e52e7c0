"""Receivers are the primary's own: they keep to their time-outs, and outlive a connection as the plain SDK's do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from tests.client.world import Client, World, message
from tests.limits import slowness
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


async def received(client: Client, receiver: Any, wait_s: float) -> Any:
    return await client.call(receiver.receive_messages, 1, wait_s)


@pytest.mark.parametrize("call", ["receive", "peek"])
async def test_a_receiver_that_meets_a_silent_primary_keeps_to_its_time_out(
    world: World, flavour: Flavour, call: str
) -> None:
    """The sync SDK would wait for ever for an answer to its first bytes."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    receiver = client.client.get_queue_receiver(queue)
    nemesis.black_hole()
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        if call == "receive":
            await received(client, receiver, 1.5)
        else:
            await client.call(receiver.peek_messages, 1, timeout=1.5)
    assert time.monotonic() - began < 4.0 * slowness()
    nemesis.heal()
    await client.sender(queue).send(message("after"))
    assert len(await received(client, receiver, 10)) == 1, "the receiver continues when the primary is back"


async def test_a_message_is_completed_after_its_connection_was_reset(world: World, flavour: Flavour) -> None:
    """With the SDK's retries; an application that got an error here would work on the message twice."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    receiver = client.client.get_queue_receiver(queue)
    await client.sender(queue).send(message())
    [taken] = await received(client, receiver, 10)
    nemesis.cut()
    nemesis.heal()
    await client.call(receiver.complete_message, taken)
    assert world.count(queue) == 0

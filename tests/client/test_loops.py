"""An asyncio client and the event loops that it is used in, one after the other."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.client.errors import ClientClosed
from pairbus.pairing.events import Closed, Event, FailedOver
from pairbus.pairing.failover import State
from tests.client.world import Stage, message, until
from tests.scripted import Reject

pytestmark = pytest.mark.slow


async def in_a_loop_of_its_own(work: Any) -> Any:
    return await asyncio.to_thread(asyncio.run, work)


async def test_a_client_goes_on_in_the_next_event_loop(stage: Stage, tmp_path: Path) -> None:
    """`asyncio.run` for each job, with one client for all: an outage in the second one ends as in the first."""
    client = stage.client("aio", spool_dir=tmp_path, backlog_retry_interval=1)
    sender = client.sender("orders").sender

    async def healthy() -> None:
        await sender.send_messages(ServiceBusMessage("m"))

    async def outage() -> None:
        rule = stage.primary.on("transfer", Reject("amqp:internal-error"))
        await sender.send_messages(ServiceBusMessage("m"))
        assert client.state("orders") is State.FAILED_OVER
        stage.primary.remove(rule)
        await until(lambda: client.state("orders") is State.HEALTHY, "the pings of this loop bring it back")
        await sender.send_messages(ServiceBusMessage("m"))

    async def both_away() -> None:
        rules = [side.on("transfer", Reject("amqp:internal-error")) for side in (stage.primary, stage.secondary)]
        await sender.send_messages(ServiceBusMessage("m"))
        assert client.client.counters["total"]["spooled"] == 1
        for side, rule in zip((stage.primary, stage.secondary), rules, strict=True):
            side.remove(rule)

    for work in (healthy, outage, healthy, outage, both_away):
        await in_a_loop_of_its_own(work())
    assert (len(stage.primary.stored("orders")), len(stage.in_backlog())) == (4, 2)

    async def forwarded() -> None:
        await client.client.pair()
        await until(lambda: "spool=" not in repr(client.client), "the next loop forwards what the last one spooled")

    await in_a_loop_of_its_own(forwarded())
    assert len(stage.primary.stored("orders")) + len(stage.in_backlog()) == 7
    await in_a_loop_of_its_own(client.client.close())


async def test_what_a_new_loop_begins_with_lives_on_when_it_sends(stage: Stage) -> None:
    """A receiver and an iterator of events may be there before the first send finds out that the loop is another."""
    client = stage.client("aio")
    sender = client.sender("orders").sender
    heard: list[Event] = []

    async def send() -> None:
        await sender.send_messages([ServiceBusMessage("m") for _ in range(3)])

    async def forward() -> None:
        async def listen() -> None:
            heard.extend([event async for event in client.client.events()])

        listening = asyncio.create_task(listen())
        receiver = client.client.get_queue_receiver("orders", max_wait_time=5)
        async with receiver:
            for one in await receiver.receive_messages(3, max_wait_time=5):
                await sender.send_messages(ServiceBusMessage("again"))
                await receiver.complete_message(one)
        client.client.force_failover("orders")
        await client.client.close()
        await listening

    await in_a_loop_of_its_own(send())
    await in_a_loop_of_its_own(forward())
    assert len(stage.primary.stored("orders")) == 6
    assert [type(event) for event in heard] == [FailedOver, Closed]


async def test_a_closed_client_begins_nothing_in_the_next_loop(stage: Stage) -> None:
    client = stage.client("aio", enable_syphon=True)
    await in_a_loop_of_its_own(client.sender("orders").sender.send_messages(ServiceBusMessage("m")))
    sender = client.sender("orders").sender
    await in_a_loop_of_its_own(client.client.close())

    async def late() -> int:
        for work in (sender.send_messages(ServiceBusMessage("m")), sender.create_message_batch(), client.client.pair()):
            with pytest.raises(ClientClosed):
                await work
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert await in_a_loop_of_its_own(late()) == 1


async def test_no_socket_of_an_ended_loop_is_kept(stage: Stage) -> None:
    client = stage.client("aio")
    sender = client.sender("orders").sender

    async def send() -> None:
        await sender.send_messages(ServiceBusMessage("m"))

    for _ in range(4):
        await in_a_loop_of_its_own(send())
        gc.collect()
        await until(lambda: len(stage.primary.peers) <= 1, "the connections of earlier loops have ended")
    await in_a_loop_of_its_own(client.client.close())
    assert len(stage.primary.stored("orders")) == 4


async def test_second_loop_is_refused_while_the_first_is_open(stage: Stage) -> None:
    """A task that waits for the other loop would never wake up."""
    client = stage.client("aio")
    await client.sender("orders").send(message())
    sender = client.sender("orders").sender
    for work in (sender.send_messages(ServiceBusMessage("m")), sender.create_message_batch(), client.client.close()):
        with pytest.raises(RuntimeError, match="another event loop"):
            await in_a_loop_of_its_own(work)
    await client.sender("orders").send(message())
    assert len(stage.primary.stored("orders")) == 2

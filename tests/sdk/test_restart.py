"""The broker is killed or stopped and started again on the same folder: what was acknowledged is there."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Flavour, Sdk, assert_empty, number, receive, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
DEAD = ServiceBusSubQueue.DEAD_LETTER
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test alone, with the queue `orders`."""
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as process:
        with process.admin() as admin:
            admin.create_queue("orders")
        yield process


@asynccontextmanager
async def _client(flavour: Flavour, broker: BrokerProcess) -> AsyncIterator[Sdk]:
    sdk = Sdk(flavour, broker.connection_string())
    try:
        yield sdk
    finally:
        await sdk.close()


async def test_every_state_survives_a_kill(own: BrokerProcess, flavour: Flavour) -> None:
    """Active, deferred, scheduled and dead-lettered messages, delivery counts and contents; not what was completed."""
    async with _client(flavour, own) as sdk:
        sender, receiver = await sdk.pair("orders")
        names = ("completed", "deferred", "dead", "abandoned", "active")
        messages = [ServiceBusMessage(name, application_properties={"name": name}) for name in names]
        await sender.send_messages(messages, timeout=10)
        await sender.schedule_messages(
            ServiceBusMessage("scheduled"), datetime.datetime.now(datetime.UTC) + HOUR, timeout=10
        )
        completed, deferred, dead, abandoned = await receive(receiver, 4)
        await receiver.complete_message(completed)
        await receiver.defer_message(deferred)
        await receiver.dead_letter_message(dead, reason="r", error_description="d")
        await receiver.abandon_message(abandoned)
        own.kill()

    own.start()
    async with _client(flavour, own) as sdk:
        receiver, deads = await sdk.receiver("orders"), await sdk.receiver("orders", sub_queue=DEAD)
        states = {text(message): message.state for message in await receiver.peek_messages(20, timeout=10)}
        assert states == {
            "deferred": ServiceBusMessageState.DEFERRED,
            "abandoned": ServiceBusMessageState.ACTIVE,
            "active": ServiceBusMessageState.ACTIVE,
            "scheduled": ServiceBusMessageState.SCHEDULED,
        }
        found = {text(message): message for message in await receive(receiver, 2)}
        assert {name: message.delivery_count for name, message in found.items()} == {"abandoned": 1, "active": 0}
        assert found["active"].application_properties == {b"name": b"active"}
        [again] = await receiver.receive_deferred_messages(number(deferred), timeout=10)
        assert text(again) == "deferred"
        letter = await receive_one(deads)
        assert (text(letter), letter.dead_letter_reason, letter.dead_letter_error_description) == ("dead", "r", "d")
        assert letter.application_properties is not None
        assert letter.application_properties[b"name"] == b"dead"


async def test_sequence_numbers_grow_over_restarts(own: BrokerProcess, flavour: Flavour) -> None:
    """Also when every message was consumed before the kill: a number never comes twice."""
    numbers: list[int] = []
    for _ in range(3):
        async with _client(flavour, own) as sdk:
            sender, receiver = await sdk.pair("orders", receive_mode=DELETE)
            await sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")], timeout=10)
            numbers += [number(message) for message in await receive(receiver, 2)]
        own.restart()
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 6


async def test_duplicates_are_remembered_over_a_kill(own: BrokerProcess, flavour: Flavour) -> None:
    """The sender that lost its answer in the crash repeats its send after it: exactly the case to catch."""
    with own.admin() as admin:
        admin.create_queue("unique", requires_duplicate_detection=True)
    async with _client(flavour, own) as sdk:
        sender = await sdk.sender("unique")
        await sender.send_messages(ServiceBusMessage("first", message_id="same"), timeout=10)
    own.restart()
    async with _client(flavour, own) as sdk:
        sender, receiver = await sdk.pair("unique", receive_mode=DELETE)
        await sender.send_messages(ServiceBusMessage("second", message_id="same"), timeout=10)
        assert text(await receive_one(receiver)) == "first"
        await assert_empty(receiver)


async def test_a_scheduled_message_that_fell_due_while_the_broker_was_down_appears(
    own: BrokerProcess, flavour: Flavour
) -> None:
    """Due times are points in time, not timers of a process."""
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    async with _client(flavour, own) as sdk:
        sender = await sdk.sender("orders")
        await sender.schedule_messages(ServiceBusMessage("due"), due, timeout=10)
        own.kill()
    own.start()
    async with _client(flavour, own) as sdk:
        assert text(await receive_one(await sdk.receiver("orders"))) == "due"
        assert datetime.datetime.now(datetime.UTC) >= due - datetime.timedelta(milliseconds=50)


async def test_an_open_sender_and_receiver_go_on_after_a_restart(own: BrokerProcess, flavour: Flavour) -> None:
    """With the SDK's own retries an application does not notice that its broker was gone."""
    sdk = Sdk(flavour, own.connection_string(), retry_total=5, retry_backoff_factor=0.1, retry_backoff_max=0.5)
    try:
        sender, receiver = await sdk.pair("orders")
        await sender.send_messages(ServiceBusMessage("before"), timeout=10)
        own.restart()
        await sender.send_messages(ServiceBusMessage("after"), timeout=15)
        found = []
        for _ in range(2):
            message = await receive_one(receiver, within_s=15)
            found.append(text(message))
            await receiver.complete_message(message)
        assert found == ["before", "after"]
    finally:
        await sdk.close()


async def test_sigterm_ends_the_broker_cleanly_with_clients_connected(own: BrokerProcess, flavour: Flavour) -> None:
    """Exit code 0 although nobody hung up; everything is there afterwards, queues and settings included."""
    async with _client(flavour, own) as sdk:
        sender, _receiver = await sdk.pair("orders", prefetch_count=5)
        await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(20)], timeout=10)
        assert own.terminate() == 0
    own.start()
    with own.admin() as admin:
        assert [queue.name for queue in admin.list_queues()] == ["orders"]
    async with _client(flavour, own) as sdk:
        receiver = await sdk.receiver("orders", receive_mode=DELETE)
        assert [text(message) for message in await receive(receiver, 20)] == [f"{i}" for i in range(20)]

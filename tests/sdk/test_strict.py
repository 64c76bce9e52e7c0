"""The genuine SDK on a broker that keeps Azure's limits and habits (`--strict`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from pairbus.broker import Broker, NamespaceOptions, QueueDescription, Strictness
from pairbus.broker.strict import Credit
from tests.brokers import BrokerProcess
from tests.sdk.flavours import Flavour, Sdk, assert_empty, receive, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
QUEUES = ("orders", "settled", "taken", "annotated")
CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {"Name": "contoso", "Queues": [{"Name": f"{name}-{kind}"} for name in QUEUES for kind in ("sync", "aio")]}
        ]
    }
}


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("strict") / "data"
    with BrokerProcess(folder, namespaces=("contoso",), config=CONFIG, options=["--strict"]) as running:
        yield running
        assert running.terminate() == 0
        # Frames that an SDK sends while it works and closes cause no warning.
        assert "WARNING" not in running.stderr and "ERROR" not in running.stderr, running.stderr


@pytest_asyncio.fixture(loop_scope="session")
async def strict_sdk(flavour: Flavour, strict_broker: BrokerProcess) -> AsyncIterator[Sdk]:
    client = Sdk(flavour, strict_broker.connection_string())
    yield client
    await client.close()


async def test_messages_are_sent_received_and_settled(strict_sdk: Sdk) -> None:
    """Late credit, small numbers and bare answers do not disturb the plain use."""
    queue = f"orders-{strict_sdk.flavour}"
    sender, receiver = await strict_sdk.pair(queue)
    await sender.send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
    await sender.send_messages(ServiceBusMessage("5"))
    messages = await receive(receiver, 6)
    assert [text(message) for message in messages] == [f"{number}" for number in range(6)]
    for message in messages:
        await receiver.complete_message(message)
    await assert_empty(receiver)


async def test_more_sends_than_the_first_credit_go_through(flavour: Flavour) -> None:
    """Credit is refilled in portions as sends are settled: the SDK never runs dry."""
    strictness = Strictness(credit=Credit(first=10, refill=5, delay_s=0.2))
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with Broker([options], data=None, strict=strictness) as broker:
        sdk = Sdk(flavour, broker.connection_string("contoso"))
        sender = await sdk.sender("orders")
        for number in range(35):
            await sender.send_messages(ServiceBusMessage(f"{number}"))
        assert broker.namespace("contoso").catalog.queues["orders"].active_count == 35
        await sdk.close()


async def test_a_batch_is_filled_up_to_the_announced_size(flavour: Flavour) -> None:
    """The SDK reads `com.microsoft:max-message-batch-size`; a full batch of its own making is taken."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("large", max_message_size_kb=10_240),))
    async with Broker([options], data=None, strict=Strictness(batch_size_max=100_000)) as broker:
        sdk = Sdk(flavour, broker.connection_string("contoso"))
        sender = await sdk.sender("large")
        batch = await sender.create_message_batch()
        assert batch.max_size_in_bytes == 100_000
        with pytest.raises(MessageSizeExceededError):
            while True:
                batch.add_message(ServiceBusMessage(b"x" * 5000))
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage(b"x" * 1_000_000))
        assert broker.namespace("contoso").catalog.queues["large"].active_count == len(batch) + 1
        await sdk.close()


async def test_every_kind_of_settlement_is_answered(strict_sdk: Sdk) -> None:
    """One disposition for each delivery, also where the SDK settled several."""
    queue = f"settled-{strict_sdk.flavour}"
    sender, receiver = await strict_sdk.pair(queue)
    await sender.send_messages([ServiceBusMessage(name) for name in ("abandon", "defer", "dead-letter")])
    abandoned, deferred, dead = await receive(receiver, 3)
    await receiver.abandon_message(abandoned)
    await receiver.defer_message(deferred)
    await receiver.dead_letter_message(dead, reason="tested")
    again = await receive_one(receiver)
    assert (text(again), again.delivery_count) == ("abandon", 1)
    await receiver.complete_message(again)
    assert deferred.sequence_number is not None
    (found,) = await receiver.receive_deferred_messages([deferred.sequence_number])
    assert found.lock_token is not None
    await receiver.complete_message(found)
    await assert_empty(receiver)


async def test_a_refused_link_is_an_error_of_its_kind(strict_sdk: Sdk) -> None:
    """The attach that comes before the error is bare, and the error text has a tail."""
    path = f"orders-{strict_sdk.flavour}/$DeadLetterQueue"
    with pytest.raises(ServiceBusError, match=r"cannot be sent to the dead-letter queue.*TrackingId:.*Timestamp:"):
        sender = await strict_sdk.sender(path)
        await sender.send_messages(ServiceBusMessage("x"))


async def test_delivery_annotations_behind_the_body_are_accepted(strict_sdk: Sdk) -> None:
    """The SDK writes them there; the broker does not refuse a message for it, alone or in a batch."""
    sender, receiver = await strict_sdk.pair(f"annotated-{strict_sdk.flavour}")

    def annotated(body: str) -> AmqpAnnotatedMessage:
        return AmqpAnnotatedMessage(
            data_body=body.encode(),
            delivery_annotations={"x-trace": "1"},
            footer={"end": "2"},
            header={"durable": True},
        )

    await sender.send_messages(annotated("alone"))
    await sender.send_messages([annotated("first"), annotated("second")])
    messages = await receive(receiver, 3)
    assert [text(message) for message in messages] == ["alone", "first", "second"]
    assert messages[0].raw_amqp_message.footer == {b"end": b"2"}
    for message in messages:
        await receiver.complete_message(message)


async def test_the_lock_token_is_in_the_delivery_annotations(strict_sdk: Sdk) -> None:
    """The token is the delivery tag; a message that is received and deleted has none."""
    queue = f"taken-{strict_sdk.flavour}"
    sender, receiver = await strict_sdk.pair(queue)
    await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    message = await receive_one(receiver)
    annotations = message.raw_amqp_message.delivery_annotations or {}
    assert annotations[b"x-opt-lock-token"] == message.lock_token
    await receiver.complete_message(message)
    taking = await strict_sdk.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    taken = await receive_one(taking)
    assert b"x-opt-lock-token" not in (taken.raw_amqp_message.delivery_annotations or {})

"""Receivers got from a paired client never hand out a ping, and are the SDK's own in every other respect.

The broker hides pings itself, so these tests call another content type a ping.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
    aio,
)
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError, ServiceBusConnectionError

from pairbus.sdk import receivers
from pairbus.sdk.receivers import skip_pings
from pairbus.testing import Nemesis
from tests.sdk.flavours import Guarded, Sdk
from tests.sdk_edge.conftest import Strings

PING = "application/x-test-ping"


@pytest.fixture(autouse=True)
def another_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "PING_CONTENT_TYPE", PING)


def ping() -> ServiceBusMessage:
    return ServiceBusMessage(b"", content_type=PING)


class Meter:
    """Records the operations that it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, str]] = []

    def __call__(self, kind: str, count: int, size: int, outcome: str) -> None:
        self.rows.append((kind, count, size, outcome))


class World:
    """A queue of the real broker, a sender, and receivers without pings."""

    def __init__(self, kit: Sdk, queue: str, sender: Any) -> None:
        self.kit = kit
        self.queue = queue
        self.sender = sender
        self.meter = Meter()

    async def receiver(self, **options: Any) -> Any:
        """Swapped before it is open, as the paired client does."""
        genuine = self.kit._client.get_queue_receiver(self.queue, **options)
        same = skip_pings(genuine, self.meter)
        assert same is genuine
        return await self.kit._open(same)

    async def send(self, *messages: ServiceBusMessage) -> None:
        await self.sender.send_messages(list(messages))

    async def left(self) -> int:
        """Count the messages that a plain receiver would still find."""
        plain = await self.kit.receiver(self.queue)
        return len(await plain.peek_messages(10, sequence_number=1))


@pytest.fixture
async def world(is_aio: bool, strings: Strings, queue_name: str) -> AsyncIterator[World]:
    kit = Sdk("aio" if is_aio else "sync", strings.here)
    yield World(kit, queue_name, await kit.sender(queue_name))
    await kit.close()


async def test_a_ping_among_messages_is_completed_and_not_handed_out(world: World) -> None:
    """The caller sees the messages that the application sent, in their order."""
    await world.send(ServiceBusMessage("a"), ping(), ServiceBusMessage("b"), ping())
    receiver = await world.receiver()
    got = await receiver.receive_messages(10, max_wait_time=3)
    assert [str(message) for message in got] == ["a", "b"]
    for message in got:
        await receiver.complete_message(message)
    assert await world.left() == 0


async def test_a_receive_goes_on_waiting_when_only_pings_came(world: World) -> None:
    """Pings must not make a queue look empty, or a call last longer than its time."""
    await world.send(ping(), ping())
    receiver = await world.receiver()
    began = time.monotonic()
    assert await receiver.receive_messages(10, max_wait_time=3) == []
    assert 2.9 <= time.monotonic() - began < 5.8, "beginning again after the pings, it would last 6 s"
    assert await world.left() == 0


async def test_iterating_skips_pings(world: World) -> None:
    """A ping that is the first message is skipped too."""
    await world.send(ping(), ServiceBusMessage("a"), ping(), ServiceBusMessage("b"))
    receiver: Guarded = await world.receiver(max_wait_time=5)
    assert [str(message) for message in await receiver.first(2)] == ["a", "b"]


async def test_peeking_looks_behind_pings(world: World) -> None:
    """An empty answer would mean: nothing more to browse."""
    await world.send(ping(), ping(), ServiceBusMessage("a"))
    receiver = await world.receiver()
    assert [str(message) for message in await receiver.peek_messages(2)] == ["a"]
    assert await receiver.peek_messages(5, sequence_number=4) == []
    assert await world.left() == 3


async def test_in_receive_and_delete_a_ping_is_simply_gone(world: World) -> None:
    """A ping that was deleted by its delivery need not be completed."""
    await world.send(ping(), ServiceBusMessage("a"))
    receiver = await world.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert [str(message) for message in await receiver.receive_messages(2, max_wait_time=3)] == ["a"]
    assert await world.left() == 0


async def test_operations_are_told_to_the_meter(world: World) -> None:
    """Each operation is billed, receiving a ping too."""
    await world.send(ServiceBusMessage(b"12345"), ping())
    receiver = await world.receiver()
    [message] = await receiver.receive_messages(2, max_wait_time=3)
    await receiver.renew_message_lock(message)
    await receiver.peek_messages(1)
    await receiver.complete_message(message)
    await receiver.receive_messages(1, max_wait_time=0.3)
    assert world.meter.rows == [
        ("receive", 2, 5 + 2 * receivers._ENVELOPE_BYTES, "ok"),
        ("complete", 1, 0, "ok"),
        ("renew", 1, 0, "ok"),
        ("peek", 1, 0, "ok"),
        ("complete", 1, 0, "ok"),
        ("empty receive", 1, 0, "ok"),
    ]


async def test_an_operation_that_fails_is_told_with_its_error(is_aio: bool, strings: Strings, free_port: int) -> None:
    """The caller gets the error unchanged."""
    kit, meter = Sdk("aio" if is_aio else "sync", strings.at(free_port)), Meter()
    receiver: Any = Guarded(skip_pings(kit._client.get_queue_receiver("q"), meter), kit.flavour)
    with pytest.raises(ServiceBusConnectionError):
        await receiver.receive_messages(1, max_wait_time=1)
    assert meter.rows == [("receive", 1, 0, "communication")]
    await kit.close()


async def test_a_ping_that_cannot_be_completed_does_not_fail_the_receive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ping expires a second later anyway; the messages beside it were received."""

    def refuse(*args: object) -> None:
        raise MessageLockLostError

    async def refuse_async(*args: object) -> None:
        raise MessageLockLostError

    is_aio = world.kit.flavour == "aio"
    kind = receivers._SkipsPingsAsync if is_aio else receivers._SkipsPings
    monkeypatch.setattr(kind, "complete_message", refuse_async if is_aio else refuse)
    await world.send(ping(), ServiceBusMessage("a"))
    receiver = await world.receiver()
    assert [str(message) for message in await receiver.receive_messages(2, max_wait_time=3)] == ["a"]


@pytest.mark.parametrize(
    "operation",
    ["complete_message", "abandon_message", "defer_message", "dead_letter_message", "renew_message_lock"],
)
async def test_a_settlement_ends_on_a_silent_peer_and_the_receiver_lives_on(
    is_aio: bool, strings: Strings, queue_name: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would wait for a minute (sync) or for ever (aio); the product's limit is 30 s, retries included."""
    assert receivers.SETTLE_S + 1.5 * receivers.CLOSE_S < 30
    monkeypatch.setattr(receivers, "SETTLE_S", 2.0)
    nemesis = Nemesis.before(strings.here)
    await nemesis.start()
    kit = Sdk("aio" if is_aio else "sync", strings.at(nemesis.port), retry_total=3)
    try:
        sender = await kit.sender(queue_name)
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        genuine = kit._client.get_queue_receiver(queue_name)
        receiver = await kit._open(skip_pings(genuine, Meter()))
        [message] = await receiver.receive_messages(1, max_wait_time=5)
        nemesis.black_hole()
        began = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            await getattr(receiver, operation)(message)
        assert 1.9 < time.monotonic() - began < 20, "the SDK waits for a minute at least"
        nemesis.heal()
        nemesis.reset()
        [message] = await receiver.receive_messages(1, max_wait_time=10)
        await receiver.complete_message(message)
    finally:
        await kit.close()
        await nemesis.stop()


def test_the_automatic_renewer_works_with_the_receiver(strings: Strings, queue_name: str) -> None:
    """The renewer asks the receiver for its class and its attributes."""
    meter = Meter()
    with ServiceBusClient.from_connection_string(strings.here) as client:
        client.get_queue_sender(queue_name).send_messages([ping(), ServiceBusMessage("a")])
        with AutoLockRenewer(max_lock_renewal_duration=30) as renewer:
            receiver = skip_pings(client.get_queue_receiver(queue_name, auto_lock_renewer=renewer), meter)
            with receiver:
                [message] = receiver.receive_messages(2, max_wait_time=3)
                receiver.complete_message(message)
    assert message.auto_renew_error is None


async def test_session_receivers_sub_queues_and_subscriptions_keep_their_kind() -> None:
    """Attributes and classes that a caller reads, or checks with isinstance, stay the SDK's."""
    credential = AzureNamedKeyCredential("name", "key")
    sync, other = ServiceBusClient("h", credential), aio.ServiceBusClient("h", credential)
    for client, kind in ((sync, ServiceBusReceiver), (other, aio.ServiceBusReceiver)):
        session = skip_pings(client.get_queue_receiver("q", session_id=NEXT_AVAILABLE_SESSION))
        dead = skip_pings(client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER))
        subscribed = skip_pings(client.get_subscription_receiver("t", "s"))
        assert all(isinstance(receiver, kind) for receiver in (session, dead, subscribed))
        assert session.session is not None and session.session._receiver is session
        assert dead.entity_path == "q/$DeadLetterQueue" and subscribed.entity_path == "t/Subscriptions/s"

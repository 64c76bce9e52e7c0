"""A broker whose disk cannot be read for a moment: clients wait or are refused, and no message is hidden."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import (
    Broker,
    NamespaceOptions,
    QueueDescription,
    SubscriptionConfig,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.store import UNLIMITED, Loaded
from pairbus.broker.wire.dispatch import Dispatcher
from pairbus.errors import StoreError
from tests.store.common import unreadable

OPTIONS = NamespaceOptions(
    "contoso",
    queues=(
        QueueDescription("orders", dead_letter_on_expiration=True),
        QueueDescription("talks", requires_session=True),
    ),
    topics=(TopicDescription("events"),),
    subscriptions=(
        SubscriptionConfig(SubscriptionDescription("events", "audit")),
        SubscriptionConfig(SubscriptionDescription("events", "billing")),
    ),
)
COUNT = 5
TEXTS = [str(n) for n in range(COUNT)]


class World:
    """One broker on a real disk, and the genuine SDK as its client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "contoso"
        self._data = folder
        self.broker: Broker = Broker([OPTIONS], data=folder)

    async def start(self) -> None:
        self.broker = Broker([OPTIONS], data=self._data)
        await self.broker.start()
        self.client = ServiceBusClient.from_connection_string(self.broker.connection_string("contoso"), retry_total=0)

    async def stop(self) -> None:
        await self.client.close()
        await self.broker.stop()

    async def send(self, *texts: str, **settings: Any) -> None:
        """Send to every entity."""
        messages = [ServiceBusMessage(text, session_id="s", **settings) for text in texts]
        for entity in ("orders", "talks"):
            async with self.client.get_queue_sender(entity) as sender:
                await sender.send_messages(messages)
        async with self.client.get_topic_sender("events") as sender:
            await sender.send_messages(messages)

    async def restart(self) -> None:
        """Start again, so that the messages are on the disk alone, and then write: reads meet the log."""
        await self.stop()
        await self.start()
        await self.send("last")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def until_reads_have_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(20):
        while "messages cannot be read, the next try is" not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.005)


RECEIVERS: dict[str, Callable[[ServiceBusClient], ServiceBusReceiver]] = {
    "queue": lambda client: client.get_queue_receiver("orders"),
    "session": lambda client: client.get_queue_receiver("talks", session_id="s"),
    "subscription": lambda client: client.get_subscription_receiver("events", "audit"),
    "receive and delete": lambda client: client.get_queue_receiver("orders", receive_mode="receiveanddelete"),
}


@pytest.mark.parametrize("kind", RECEIVERS)
async def test_receiver_that_meets_a_read_error_gets_every_message_later(
    world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Acknowledged messages may be late, but must not be missing until the next start."""
    await world.send(*TEXTS)
    await world.restart()
    async with RECEIVERS[kind](world.client) as receiver:
        with unreadable(world.folder), caplog.at_level(logging.ERROR, "pairbus.broker"):
            receiving = asyncio.create_task(receiver.receive_messages(COUNT + 1, max_wait_time=20))
            await until_reads_have_failed(caplog)
        found = await receiving
        while len(found) < COUNT + 1:
            found += await receiver.receive_messages(COUNT + 1 - len(found), max_wait_time=20)
    assert [str(message) for message in found] == [*TEXTS, "last"]


async def test_session_that_cannot_be_read_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Receivers of other sessions go on during the pause, and that session goes on after it."""
    store = world.broker.namespace("contoso").store
    load = store.load

    def fail_once(box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        loaded = load(box, numbers, size_max, with_bodies=with_bodies)
        if any(message.session_id == "bad" for message in loaded.messages):
            monkeypatch.setattr(store, "load", load)
            raise StoreError("disk I/O error")
        return loaded

    async with world.client.get_queue_sender("talks") as sender:
        await sender.send_messages([ServiceBusMessage(name, session_id=name) for name in ("bad", "good")])
    monkeypatch.setattr(store, "load", fail_once)
    bad = world.client.get_queue_receiver("talks", session_id="bad")
    good = world.client.get_queue_receiver("talks", session_id="good")
    async with bad, good:
        waiting = asyncio.create_task(bad.receive_messages(1, max_wait_time=20))
        await until_reads_have_failed(caplog)
        assert [str(message) for message in await good.receive_messages(1, max_wait_time=20)] == ["good"]
        assert not waiting.done()
        assert [str(message) for message in await waiting] == ["bad"]


async def test_peek_and_receive_of_deferred_messages_are_refused_while_reads_fail(world: World) -> None:
    """The client learns that it is the broker's trouble, and not that there are no such messages."""
    await world.send(*TEXTS)
    async with world.client.get_queue_receiver("orders") as receiver:
        [first] = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.defer_message(first)
        number = first.sequence_number
    assert number is not None
    await world.restart()
    async with world.client.get_queue_receiver("orders") as receiver:
        with unreadable(world.folder):
            with pytest.raises(ServiceBusError, match="could not read its store"):
                await receiver.peek_messages(10, sequence_number=2)
            with pytest.raises(ServiceBusError, match="could not read its store"):
                await receiver.receive_deferred_messages([number])
        seen = await receiver.peek_messages(10)
        assert [str(message) for message in seen] == [*TEXTS, "last"]
        [again] = await receiver.receive_deferred_messages([number])
        assert str(again) == "0"


async def test_scheduled_and_expired_messages_wait_until_they_can_be_read(world: World) -> None:
    """The activation and the dead-lettering of messages that fall due while reads fail happen later."""
    due = datetime.now(UTC) + timedelta(hours=1)
    await world.send(*TEXTS, scheduled_enqueue_time_utc=due)
    async with world.client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(hours=1)))
    await world.restart()
    namespace = world.broker.namespace("contoso")
    with unreadable(world.folder):
        await namespace.clock.advance(2 * 3600)
    await namespace.clock.advance(10)
    for path in ("orders", "talks", "events/subscriptions/audit", "events/subscriptions/billing"):
        entity = cast(Any, namespace.catalog.find(path))
        assert (entity.main.active_count, entity.main.scheduled_count) == (COUNT + 1, 0), path
    async with world.client.get_queue_receiver("orders", sub_queue="deadletter") as receiver:
        assert [str(message) for message in await receiver.peek_messages(5)] == ["short"]


class Loop:
    """Calls that were put off, made by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_later(self, _: float, call: Callable[[], None]) -> None:
        self.later.append(call)


class OneThenError:
    """A receiver that is given one message; the next cannot be read."""

    room = 10

    def __init__(self) -> None:
        self.tries = 0

    def take(self, *_: object) -> int:
        self.tries += 1
        if self.tries == 2:
            raise StoreError("disk I/O error")
        return self.tries % 3 % 2

    def end_drain(self) -> None:
        pass


def test_dispatcher_pauses_after_a_read_error_and_times_the_locks_before_it() -> None:
    """Sends to the queue wake the dispatcher: without the pause each would read, fail and start a timer of its own.
    The message that was handed out before the error has a lock, which must end in time."""
    loop, locked, outlet = Loop(), list[object](), OneThenError()

    class Faults:
        acts = False
        operations = cast(Any, type("Operations", (), {"keeps": None}))

    class EmptyBox:
        def available(self, now_ms: int) -> bool:
            return False

    dispatcher = Dispatcher(
        cast(Any, "orders"),
        cast(Any, EmptyBox()),
        loop=cast(Any, loop),
        now_ms=lambda: 0,
        on_locked=locked.append,
        faults=cast(Any, Faults()),
    )
    dispatcher.add(cast(Any, outlet))
    dispatcher.wake()
    loop.soon.pop()()
    assert (outlet.tries, locked) == (2, ["orders"])
    for _ in range(3):
        dispatcher.wake()
    assert loop.soon == [] and len(loop.later) == 1
    loop.later.pop()()
    assert outlet.tries == 3
    dispatcher.wake()
    assert len(loop.soon) == 1 and loop.later == []

"""Reset: all entities are empty or gone after one call, and connected clients go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, MessagingEntityNotFoundError, ServiceBusError

from pairbus.broker.description import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.topic import Topic
from pairbus.broker.store import Done
from pairbus.broker.store.memory import MemoryStore
from pairbus.errors import ConfigError, StoreFull
from pairbus.filters import SqlFilter
from tests.kit.world import LISTENER, World, received, world

HOUR_S = 3600
MINUTE_MS = 60_000


async def fill(world: World) -> None:
    """A queue, a queue with sessions and a subscription, with messages in every state."""
    settings = {"requires_duplicate_detection": True, "duplicate_window_ms": 60 * MINUTE_MS}
    await world.namespace.create(QueueDescription("orders", **settings))  # type: ignore[arg-type]
    await world.namespace.create(QueueDescription("chats", requires_session=True))
    await world.namespace.create(TopicDescription("news"))
    await world.namespace.create(SubscriptionDescription("news", "all"))
    await world.namespace.create(SubscriptionDescription("news", "red"))
    await world.namespace.create(RuleDescription("news", "red", "colour", filter=SqlFilter("colour = 'red'")))
    await world.namespace.delete("news/Subscriptions/red/Rules/$Default")
    await world.send("orders", *(ServiceBusMessage(str(n), message_id=str(n)) for n in range(4)))
    sender = await world.sender("orders")
    await sender.schedule_messages(
        ServiceBusMessage("later", message_id="later"), world.namespace.clock.now().replace(year=2090)
    )
    receiver = await world.receiver("orders")
    first, second = await received(receiver, 2)
    await receiver.dead_letter_message(first)
    await receiver.defer_message(second)
    await world.send("chats", ServiceBusMessage("hello", session_id="ann"))
    await world.send(
        "news", ServiceBusMessage("plain"), ServiceBusMessage("hot", application_properties={"colour": "red"})
    )
    chat = await world.receiver("chats", session_id="ann")
    await chat.session.set_state("open")


def counts(world: World) -> list[int]:
    """Count everything that `fill` made: active, dead, scheduled, deferred messages and bytes."""
    queues = [world.namespace.queue_info(path) for path in ("orders", "chats")]
    subscriptions = [world.namespace.subscription_info("news", name) for name in ("all", "red")]
    found = [n for one in queues for n in (one.active, one.dead_lettered, one.scheduled, one.deferred, one.size_bytes)]
    return found + [n for one in subscriptions for n in (one.active, one.dead_lettered, one.deferred)]


async def test_reset_empties_every_entity(world: World) -> None:
    """Messages of every state, session states and remembered ids are gone; settings and rules are as before."""
    await fill(world)
    assert all(n > 0 for n in counts(world)[:5])
    before = [world.namespace.queue_info("orders").description, world.namespace.rules("news", "red")]
    await world.namespace.reset()
    assert set(counts(world)) == {0}
    assert world.namespace.topic_info("news").size_bytes == 0
    assert [world.namespace.queue_info("orders").description, world.namespace.rules("news", "red")] == before
    await world.send("orders", ServiceBusMessage("again", message_id="1"))
    assert world.namespace.queue_info("orders").active == 1
    await world.send("news", ServiceBusMessage("plain"))
    assert world.namespace.subscription_info("news", "red").active == 0
    assert world.namespace.subscription_info("news", "all").active == 1


async def test_reset_ends_whatever_the_names_of_the_entities_are(world: World) -> None:
    """A queue may be called `orders/subscriptions`, which is also the list of the subscriptions of `orders`; a reset
    once waited for itself then, and so did every later change of `orders`."""
    for path in ("orders/subscriptions", "orders", "orders-2", "subscriptions"):
        await world.namespace.create(QueueDescription(path))
    await world.send("orders/subscriptions", ServiceBusMessage("a book"))
    async with asyncio.timeout(5):
        await asyncio.gather(world.namespace.reset(), world.namespace.reset())
        await world.namespace.delete("orders")
    assert [info.active for info in world.namespace.queue_infos()] == [0, 0, 0]
    assert world.namespace.queue_keys() == ["orders-2", "orders/subscriptions", "subscriptions"]


async def test_open_links_go_on_after_a_reset(world: World) -> None:
    """The sender sends, the receiver gets later messages, with numbers that go on; its old lock is lost."""
    await world.namespace.create(QueueDescription("orders"))
    sender, receiver = await world.sender("orders"), await world.receiver("orders")
    dead = await world.receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    await sender.send_messages(ServiceBusMessage("old"))
    [old] = await received(receiver)
    await world.namespace.reset()
    await sender.send_messages(ServiceBusMessage("new"))
    [new] = await received(receiver)
    assert (str(new), new.sequence_number) == ("new", old.sequence_number + 1)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(old)
    await receiver.dead_letter_message(new, reason="a test")
    assert [str(one) for one in await received(dead)] == ["new"]


async def test_waiting_receiver_gets_the_next_message(world: World) -> None:
    """The receiver gave its credit before the reset, and does not give it again."""
    await world.namespace.create(QueueDescription("orders"))
    sender, receiver = await world.sender("orders"), await world.receiver("orders")
    waiting = asyncio.create_task(received(receiver))
    await asyncio.sleep(0.2)  # time for the credit of the receiver to arrive
    await world.namespace.reset()
    await sender.send_messages(ServiceBusMessage("new"))
    assert [str(one) for one in await waiting] == ["new"]


async def test_session_receiver_holds_its_session_on(world: World) -> None:
    """The state is empty, new messages come, no other receiver gets the session; one that waits for a session waits."""
    await world.namespace.create(QueueDescription("chats", requires_session=True, lock_duration_ms=MINUTE_MS))
    sender = await world.sender("chats")
    await sender.send_messages(ServiceBusMessage("old", session_id="ann"))
    ann = await world.receiver("chats", session_id="ann")
    await ann.session.set_state("open")
    other = world.client.get_queue_receiver("chats", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
    applying = asyncio.create_task(world.opened(other))
    await asyncio.sleep(0.3)  # time for the request for a session to arrive
    await world.namespace.reset()
    assert await ann.session.get_state() is None
    await ann.session.renew_lock()
    await sender.send_messages(ServiceBusMessage("new", session_id="ann"))
    assert [str(one) for one in await received(ann)] == ["new"]
    await sender.send_messages(ServiceBusMessage("hi", session_id="bob"))
    assert [str(one) for one in await received(await applying)] == ["hi"]


async def test_subscription_receiver_and_topic_sender_go_on(world: World) -> None:
    """The topic makes copies for the new subscription."""
    await world.namespace.create(TopicDescription("news"))
    await world.namespace.create(SubscriptionDescription("news", "all"))
    sender = await world.opened(world.client.get_topic_sender("news"))
    receiver = await world.opened(world.client.get_subscription_receiver("news", "all"))
    await sender.send_messages([ServiceBusMessage("old") for _ in range(3)])
    await world.namespace.reset()
    await sender.send_messages(ServiceBusMessage("new"))
    assert [str(one) for one in await received(receiver)] == ["new"]


async def test_forwarding_goes_on_after_a_reset(world: World) -> None:
    """Messages go from the new entity to the new destination."""
    await world.namespace.create(QueueDescription("last"))
    await world.namespace.create(QueueDescription("first", forward_to="last"))
    sender = await world.sender("first")
    await sender.send_messages(ServiceBusMessage("old"))
    await world.namespace.reset()
    await sender.send_messages(ServiceBusMessage("new"))
    assert [str(one) for one in await received(await world.receiver("last"))] == ["new"]


async def test_reset_may_delete_every_entity(world: World) -> None:
    """Senders and receivers are detached, and the names are free."""
    await fill(world)
    sender = await world.sender("orders")
    await world.namespace.reset("delete")
    assert world.namespace.queue_keys() == world.namespace.topic_keys() == []
    with pytest.raises((MessagingEntityNotFoundError, ServiceBusError)):
        await sender.send_messages(ServiceBusMessage("nowhere"))
    await world.namespace.create(QueueDescription("orders"))
    await world.send("orders", ServiceBusMessage("new"))
    assert world.namespace.queue_info("orders").active == 1


async def test_reset_deletes_all_entities_in_one_commit(world: World) -> None:
    """A kill leaves all entities or none: no deletion is written before every entity can be deleted."""
    await world.namespace.create(QueueDescription("orders"))
    await world.namespace.create(QueueDescription("others"))
    async with world.namespace._writer._turn("others"):  # as while a client changes it
        resetting = asyncio.create_task(world.namespace.reset("delete"))
        await asyncio.sleep(0.05)
        assert world.namespace.queue_keys() == ["orders", "others"]
    await resetting
    assert world.namespace.queue_keys() == []


async def test_reset_that_cannot_be_stored_changes_nothing(world: World) -> None:
    """Every message is still there, and links go on."""
    await fill(world)
    before = counts(world)
    assert isinstance(world.namespace.store, MemoryStore)
    world.namespace.store.fail_next(StoreFull("no space left"))
    with pytest.raises(StoreFull):
        await world.namespace.reset()
    assert counts(world) == before
    await world.namespace.reset()
    assert set(counts(world)) == {0}


async def test_send_that_a_fault_holds_back_is_before_the_reset(world: World) -> None:
    """Faults end first: the sender gets its answer, and the emptied queue stays empty."""
    await world.namespace.create(QueueDescription("orders"))
    sender = await world.sender("orders")
    await sender.send_messages(ServiceBusMessage("old"))
    world.namespace.faults.add("stall", entity="orders", direction="send")
    stalled = asyncio.create_task(sender.send_messages(ServiceBusMessage("stalled")))
    async with asyncio.timeout(5):
        while not world.namespace.faults.held.owns_any():  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.005)
    await world.namespace.reset()
    await asyncio.wait_for(stalled, 5)
    assert world.namespace.faults.list() == []
    assert world.namespace.queue_info("orders").active == 0
    await sender.send_messages(ServiceBusMessage("new"))
    assert world.namespace.queue_info("orders").active == 1


@pytest.mark.parametrize("entities", ["keep", "delete"])
async def test_full_disk_of_a_fault_does_not_hinder_a_reset(world: World, entities: Any) -> None:
    """A wrong reset leaves the fault on, a right one ends it."""
    await world.namespace.create(QueueDescription("orders"))
    world.namespace.faults.add("disk-full")
    with pytest.raises(ConfigError):
        await world.namespace.reset("all")  # type: ignore[arg-type]
    assert len(world.namespace.faults.list()) == 1
    await world.namespace.reset(entities)
    assert world.namespace.faults.list() == []
    assert len(list(world.namespace.queue_infos())) == (entities == "keep")


async def test_restart_brings_back_nothing_from_before_a_reset(tmp_path: Path) -> None:
    """Messages sent after the reset are kept, numbers go on, and the rows from before are swept."""
    async with world(data=tmp_path) as first:
        await fill(first)
        await first.namespace.reset()
        await first.send("news", ServiceBusMessage("kept"))
    async with world(data=tmp_path) as second:
        assert counts(second)[:10] == [0] * 10
        assert second.namespace.subscription_info("news", "all").active == 1
        await second.send("orders", ServiceBusMessage("new", message_id="1"))
        [new] = await received(await second.receiver("orders"))
        assert new.sequence_number > 4
        rows = [row.box for row in second.namespace.store.index()]
        assert len(rows) == 2


async def test_sends_during_resets_are_before_or_after(tmp_path: Path) -> None:
    """Each send is accepted; messages sent after the last reset are all there, and the store holds no others."""
    async with world(data=tmp_path) as here:
        await here.namespace.create(QueueDescription("orders"))
        sender = await here.sender("orders")

        async def send_many() -> None:
            for n in range(100):
                await sender.send_messages(ServiceBusMessage(str(n)))

        sending = asyncio.create_task(send_many())
        while not sending.done():
            await here.namespace.reset()
            await asyncio.sleep(0.01)
        await sending
        await here.namespace.reset()
        await sender.send_messages([ServiceBusMessage("last") for _ in range(5)])
        assert here.namespace.queue_info("orders").active == 5
    async with world(data=tmp_path) as again:
        assert again.namespace.queue_info("orders").active == 5


async def test_numbers_go_on_when_a_send_met_the_reset(tmp_path: Path) -> None:
    """A send that reaches the old queue while the reset is being committed gets a number: no later one gets it too."""
    async with world(data=tmp_path) as first:
        namespace, commits, sent = first.namespace, asyncio.Queue[Done](), asyncio.Future[Any]()
        await namespace.create(QueueDescription("orders"))
        queue = namespace.catalog.queues["orders"]
        resetting = asyncio.create_task(namespace.reset())
        await asyncio.sleep(0)  # lets the reset end all faults, which would let the commits go on
        namespace.store.hindrance = lambda takes_room, done: commits.put_nowait(done)
        of_reset = await commits.get()
        queue.send([Draft(b"during the reset")], namespace.now_ms(), sent.set_result)
        assert queue.last_seq == 1
        namespace.store.hindrance = None
        of_reset(None)
        await resetting
        assert sent.result() is None
    async with world(data=tmp_path) as second:
        await second.send("orders", ServiceBusMessage("new"))
        [new] = await received(await second.receiver("orders"))
        assert new.sequence_number == 2


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("call", ["send", "schedule"])
async def test_send_that_waits_for_an_earlier_one_goes_on_after_a_reset(world: World, kind: str, call: str) -> None:
    """A send waits while another one with its message id is being committed. When a reset came in between, it was once
    refused because the entity could not be found, which senders take for an answer that stays."""
    namespace, loop, commits = world.namespace, asyncio.get_running_loop(), asyncio.Queue[Done]()
    if kind == "queue":
        await namespace.create(QueueDescription("news", requires_duplicate_detection=True))
    else:
        await namespace.create(TopicDescription("news", requires_duplicate_detection=True))
        await namespace.create(SubscriptionDescription("news", "all"))
    entity: Queue | Topic = namespace.catalog.queues.get("news") or namespace.catalog.topic("news")
    resetting = asyncio.create_task(namespace.reset())
    await asyncio.sleep(0)  # lets the reset end all faults, which would let the commits go on
    namespace.store.hindrance = lambda takes_room, done: commits.put_nowait(done)
    of_reset = await commits.get()
    first, waiting = loop.create_future(), loop.create_future()
    entity.send([Draft(b"first", message_id="1")], namespace.now_ms(), first.set_result)
    getattr(entity, call)([Draft(b"waiting", message_id="1")], namespace.now_ms(), waiting.set_result)
    of_reset(None)
    of_first = await commits.get()
    namespace.store.hindrance = None
    while not entity.closed:  # noqa: ASYNC110 - the broker has no event for it
        await asyncio.sleep(0)
    of_first(None)
    await resetting
    assert await first is None
    assert await waiting == (None if call == "send" else [2])
    info = namespace.queue_info("news") if kind == "queue" else namespace.subscription_info("news", "all")
    assert info.active == 1


# ── over HTTP ──


@pytest.mark.parametrize(
    ("body", "left"), [(None, ["orders"]), ({"entities": "keep"}, ["orders"]), ({"entities": "delete"}, [])]
)
async def test_reset_over_http(world: World, body: Any, left: list[str]) -> None:
    """The request needs the Manage claim."""
    await world.namespace.create(QueueDescription("orders"))
    await world.send("orders", ServiceBusMessage("old"))
    assert (await world.http("POST", "$pairbus/reset", key=LISTENER, json=body))[0] == 401
    assert world.namespace.queue_info("orders").active == 1
    options = {} if body is None else {"json": body}
    assert await world.http("POST", "$pairbus/reset", **options) == (200, {})
    assert [info.description.path for info in world.namespace.queue_infos()] == left
    assert sum(info.active for info in world.namespace.queue_infos()) == 0


@pytest.mark.parametrize("body", [{"entities": "all"}, {"entities": None}, {"entity": "keep"}, []])
async def test_wrong_reset_changes_nothing(world: World, body: Any) -> None:
    """The answer names the possible values."""
    await world.namespace.create(QueueDescription("orders"))
    await world.send("orders", ServiceBusMessage("old"))
    status, answer = await world.http("POST", "$pairbus/reset", json=body)
    assert status == 400 and answer["error"]
    assert world.namespace.queue_info("orders").active == 1
    with pytest.raises(ConfigError, match="keep, delete"):
        await world.namespace.reset("all")  # type: ignore[arg-type]

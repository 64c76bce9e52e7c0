"""A clock that tests move: due events have happened when the call returns, and tokens are not affected."""

from __future__ import annotations

import asyncio
import math
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError, SessionLockLostError

from pairbus.broker.boxes.box import CHUNK_MAX
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.kit.clock import OFFSET_MAX_S, NamespaceClock
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.strict import Idle, Strictness
from pairbus.broker.wire.session_links import Applicant
from pairbus.errors import EntityNotFound, StoreFull
from tests.kit.world import LISTENER, World, received, world

MINUTE_MS = 60_000
HOUR = timedelta(hours=1)


def later(world: World, length: timedelta = HOUR) -> datetime:
    return world.namespace.clock.now() + length


# ── what falls due ──


async def test_lock_ends_when_the_test_says_so(world: World) -> None:
    """The message comes again with a higher count, and the old lock settles nothing."""
    await world.namespace.create(QueueDescription("orders", lock_duration_ms=MINUTE_MS))
    await world.send("orders", ServiceBusMessage("a book"))
    receiver = await world.receiver("orders")
    [first] = await received(receiver)
    await world.namespace.clock.advance(61)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(first)
    [again] = await received(await world.receiver("orders"))
    assert (str(again), again.delivery_count) == ("a book", 1)


async def test_renewed_lock_counts_from_the_moved_time(world: World) -> None:
    """A renewal 40 seconds into a minute leaves the lock 20 seconds beyond its first end."""
    await world.namespace.create(QueueDescription("orders", lock_duration_ms=MINUTE_MS))
    await world.send("orders", ServiceBusMessage("a book"))
    receiver = await world.receiver("orders")
    [message] = await received(receiver)
    await world.namespace.clock.advance(40)
    await receiver.renew_message_lock(message)
    await world.namespace.clock.advance(40)
    await receiver.complete_message(message)
    assert world.namespace.queue_info("orders").active == 0


async def test_session_lock_ends_when_the_test_says_so(world: World) -> None:
    """Another receiver gets the session and its message at once."""
    await world.namespace.create(QueueDescription("orders", requires_session=True, lock_duration_ms=MINUTE_MS))
    await world.send("orders", ServiceBusMessage("a book", session_id="ann"))
    first = await world.receiver("orders", session_id="ann")
    [message] = await received(first)
    await world.namespace.clock.advance(61)
    second = await world.receiver("orders", session_id=NEXT_AVAILABLE_SESSION)
    assert [str(one) for one in await received(second)] == ["a book"]
    with pytest.raises((SessionLockLostError, ServiceBusError)):
        await first.complete_message(message)


async def test_expired_messages_are_dead_letters_on_return(world: World) -> None:
    """More of them than one batch holds, in a queue and in a subscription."""
    count = CHUNK_MAX + 10
    await world.namespace.create(QueueDescription("orders", dead_letter_on_expiration=True))
    await world.namespace.create(TopicDescription("news"))
    await world.namespace.create(SubscriptionDescription("news", "audit", dead_letter_on_expiration=True))
    for path in ("orders", "news"):
        sender = await world.sender(path)
        await sender.send_messages([ServiceBusMessage("old", time_to_live=HOUR) for _ in range(count)])
    await world.namespace.clock.advance(HOUR)
    queue, subscription = world.namespace.queue_info("orders"), world.namespace.subscription_info("news", "audit")
    assert (queue.active, queue.dead_lettered) == (0, count)
    assert (subscription.active, subscription.dead_lettered) == (0, count)


async def test_scheduled_messages_are_active_on_return(world: World) -> None:
    """A queue and a topic have more messages than one batch holds; one that is due later waits on."""
    count = CHUNK_MAX + 10
    await world.namespace.create(QueueDescription("orders"))
    await world.namespace.create(TopicDescription("news"))
    await world.namespace.create(SubscriptionDescription("news", "audit"))
    for path in ("orders", "news"):
        sender = await world.sender(path)
        await sender.schedule_messages([ServiceBusMessage("soon") for _ in range(count)], later(world))
        await sender.schedule_messages(ServiceBusMessage("later"), later(world, 2 * HOUR))
    await world.namespace.clock.advance_to(later(world))
    info = world.namespace.queue_info("orders")
    assert (info.active, info.scheduled) == (count, 1)
    assert world.namespace.subscription_info("news", "audit").active == count
    assert world.namespace.topic_info("news").scheduled == 1


async def test_what_becomes_active_is_forwarded_on_return(world: World) -> None:
    """The messages make two hops: a test looks where they end."""
    await world.namespace.create(QueueDescription("last"))
    await world.namespace.create(QueueDescription("middle", forward_to="last"))
    await world.namespace.create(QueueDescription("first", forward_to="middle"))
    sender = await world.sender("first")
    await sender.schedule_messages([ServiceBusMessage(str(n)) for n in range(CHUNK_MAX + 10)], later(world))
    await world.namespace.clock.advance(HOUR)
    assert world.namespace.queue_info("last").active == CHUNK_MAX + 10


async def test_duplicate_window_ends_when_the_test_says_so(world: World) -> None:
    """Within the window the second message is dropped; behind it the third is new."""
    settings = {"requires_duplicate_detection": True, "duplicate_window_ms": MINUTE_MS}
    await world.namespace.create(QueueDescription("orders", **settings))  # type: ignore[arg-type]
    same = ServiceBusMessage("a book", message_id="1")
    await world.send("orders", same, same)
    assert world.namespace.queue_info("orders").active == 1
    await world.namespace.clock.advance(61)
    await world.send("orders", same)
    assert world.namespace.queue_info("orders").active == 2


async def test_idle_entity_is_gone_on_return(world: World) -> None:
    """An entity that was used in the meantime stays."""
    for path in ("orders", "used"):
        await world.namespace.create(QueueDescription(path, auto_delete_on_idle_ms=5 * MINUTE_MS))
    await world.namespace.clock.advance(200)
    await world.send("used", ServiceBusMessage("a book"))
    await world.namespace.clock.advance(200)
    with pytest.raises(EntityNotFound):
        world.namespace.queue_info("orders")
    assert world.namespace.queue_info("used").active == 1


async def test_subscriber_that_receives_keeps_its_topic(world: World) -> None:
    """A topic was once deleted five minutes after the last send, with the messages that its subscriber had still to
    receive."""
    await world.namespace.create(TopicDescription("news", auto_delete_on_idle_ms=5 * MINUTE_MS))
    await world.namespace.create(SubscriptionDescription("news", "all"))
    sender = await world.opened(world.client.get_topic_sender("news"))
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(8)])
    async with world.client.get_subscription_receiver("news", "all") as receiver:
        for n in range(8):
            [message] = await received(receiver)
            assert str(message) == str(n)
            await receiver.complete_message(message)
            await world.namespace.clock.advance(60)
    await world.namespace.clock.advance(301)
    with pytest.raises(EntityNotFound):
        world.namespace.topic_info("news")


async def test_waiting_for_a_session_keeps_a_topic(world: World) -> None:
    """A receiver that asks for the next session has no link with credit yet, and uses the subscription all the same."""
    await world.namespace.create(TopicDescription("news", auto_delete_on_idle_ms=5 * MINUTE_MS))
    await world.namespace.create(SubscriptionDescription("news", "all", requires_session=True))
    options: dict[str, Any] = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 30}
    applying = asyncio.create_task(world.opened(world.client.get_subscription_receiver("news", "all", **options)))
    async with asyncio.timeout(5):
        while not any(isinstance(link.context, Applicant) for link in world.namespace.links):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # the broker has no event for it
    await world.namespace.clock.advance(301)
    sender = await world.opened(world.client.get_topic_sender("news"))
    await sender.send_messages(ServiceBusMessage("a book", session_id="ann"))
    assert [str(message) for message in await received(await applying)] == ["a book"]


async def test_last_use_of_a_deleted_subscription_counts_for_its_topic(world: World) -> None:
    """A subscriber that deletes its subscription, to make another one, finds the topic; a subscription that was idle
    itself keeps its topic no longer than its own last use."""
    await world.namespace.create(TopicDescription("news", auto_delete_on_idle_ms=10 * MINUTE_MS))
    await world.namespace.create(SubscriptionDescription("news", "all"))
    await world.namespace.clock.advance(400)
    await world.namespace.delete("news/subscriptions/all")
    await world.namespace.clock.advance(400)
    await world.namespace.create(SubscriptionDescription("news", "again", auto_delete_on_idle_ms=5 * MINUTE_MS))
    await world.namespace.clock.advance(301)
    assert world.namespace.topic_info("news").subscriptions == 0
    await world.namespace.clock.advance(300)
    with pytest.raises(EntityNotFound):
        world.namespace.topic_info("news")


async def test_effects_of_a_move_are_committed_on_return(tmp_path: Path) -> None:
    """A copy of the data folder, taken right after the call, has the dead letter."""
    async with world(data=tmp_path / "bus") as first:
        await first.namespace.create(QueueDescription("orders", dead_letter_on_expiration=True))
        await first.send("orders", ServiceBusMessage("a book", time_to_live=HOUR))
        await first.namespace.clock.advance(HOUR)
        shutil.copytree(tmp_path / "bus", tmp_path / "copy", ignore=shutil.ignore_patterns("control.sock"))
    async with world(data=tmp_path / "copy") as second:
        assert second.namespace.queue_info("orders").dead_lettered == 1
        assert second.namespace.clock.offset == timedelta(0)


async def test_move_that_cannot_be_stored_says_so(world: World) -> None:
    """The clock has moved; the work is tried again like any other after a failed commit."""
    await world.namespace.create(QueueDescription("orders", dead_letter_on_expiration=True))
    await world.send("orders", ServiceBusMessage("a book", time_to_live=HOUR))
    assert isinstance(world.namespace.store, MemoryStore)
    world.namespace.store.fail_next(StoreFull("no space left"))
    with pytest.raises(StoreFull):
        await world.namespace.clock.advance(HOUR)
    assert world.namespace.clock.offset == HOUR
    await world.namespace.clock.advance(2)
    assert world.namespace.queue_info("orders").dead_lettered == 1


# ── what stays real ──


async def test_tokens_outlive_any_move(world: World) -> None:
    """A year later an open link goes on, and a new link, a new client and HTTP are let in."""
    await world.namespace.create(QueueDescription("orders"))
    sender = await world.sender("orders")
    await sender.send_messages(ServiceBusMessage("one"))
    await world.namespace.clock.advance(timedelta(days=366))
    await sender.send_messages(ServiceBusMessage("two"))
    receiver = await world.receiver("orders")
    assert [str(one) for one in await received(receiver, 2)] == ["one", "two"]
    assert (await world.http("GET", "$namespaceinfo"))[0] == 200


async def test_idle_time_outs_stay_real() -> None:
    """A sender that has been silent for an hour of the namespace's time is not detached."""
    idle = Strictness(idle=Idle(sender_s=600, connection_s=300))
    async with world(strict=idle) as strict:
        await strict.namespace.create(QueueDescription("orders"))
        sender = await strict.sender("orders")
        await strict.namespace.clock.advance(HOUR)
        for peer in strict.namespace.peers:
            peer._tick()  # checks for idle links now; the timer would do so within minutes
        await sender.send_messages(ServiceBusMessage("a book"))
        assert strict.namespace.queue_info("orders").active == 1


# ── the clock itself ──


def _not_stepped(ms: int) -> None:
    raise AssertionError(f"the clock was not set, not by {ms} ms either")


async def _nothing() -> None:
    pass


LENGTHS = [-1, -0.001, math.nan, math.inf, -math.inf, timedelta(-1), 10**400, "60", None, True]


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: f"{length!r:.12}")
async def test_clock_moves_forward_by_finite_lengths_only(length: Any) -> None:
    """A refused move changes nothing."""
    clock = NamespaceClock(lambda: 0, _nothing, steady_ms=lambda: 0, stepped=_not_stepped)
    with pytest.raises(ValueError):
        await clock.advance(length)
    assert clock.now_ms() == 0


@pytest.mark.parametrize(
    "when", [datetime(1969, 12, 31, tzinfo=UTC), datetime(2030, 1, 1), datetime(2200, 1, 1, tzinfo=UTC), "2030-01-01"]
)
async def test_clock_moves_to_later_dates_with_zone_only(when: Any) -> None:
    """A date without a zone would mean another time on another machine."""
    clock = NamespaceClock(lambda: 0, _nothing, steady_ms=lambda: 0, stepped=_not_stepped)
    with pytest.raises(ValueError):
        await clock.advance_to(when)
    assert clock.now_ms() == 0


async def test_moves_add_up_to_a_limit() -> None:
    """The limit keeps every date that clients compute from this clock in their range."""
    clock = NamespaceClock(lambda: 1000, _nothing, steady_ms=lambda: 0, stepped=_not_stepped)
    assert await clock.advance(1.5) == datetime(1970, 1, 1, 0, 0, 2, 500_000, UTC)
    await clock.advance(timedelta(seconds=OFFSET_MAX_S - 2))
    assert clock.offset == timedelta(seconds=OFFSET_MAX_S - 0.5)
    with pytest.raises(ValueError, match="ahead"):
        await clock.advance(1)
    await clock.advance(0)


# ── over HTTP ──


async def test_clock_moves_over_http(world: World) -> None:
    """The answer is the new time, when everything has happened."""
    await world.namespace.create(QueueDescription("orders", dead_letter_on_expiration=True))
    await world.send("orders", ServiceBusMessage("a book", time_to_live=HOUR))
    assert (await world.http("GET", "$pairbus/clock"))[1]["offset_seconds"] == 0
    status, answer = await world.http("POST", "$pairbus/clock", json={"advance_seconds": 3600})
    assert (status, answer["offset_seconds"]) == (200, 3600)
    assert world.namespace.queue_info("orders").dead_lettered == 1
    date = later(world).isoformat()
    status, answer = await world.http("POST", "$pairbus/clock", json={"advance_to": date})
    assert status == 200 and answer["now"] >= date


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"advance_seconds": -1}',
        b'{"advance_seconds": NaN}',
        b'{"advance_seconds": 1e999}',
        b'{"advance_seconds": 1' + 400 * b"0" + b"}",
        b'{"advance_seconds": "1"}',
        b'{"advance_to": "soon"}',
        b'{"advance_to": "2030-01-01"}',
        b'{"advance_seconds": 1, "advance_to": "soon"}',
    ],
)
async def test_wrong_request_moves_nothing(world: World, body: bytes) -> None:
    """The answer says why."""
    status, answer = await world.http("POST", "$pairbus/clock", data=body)
    assert status == 400 and answer["error"]
    assert world.namespace.clock.offset == timedelta(0)


async def test_clock_over_http_needs_manage(world: World) -> None:
    """A key that only listens must not end the locks of others; an unknown switch names those that exist."""
    request: dict[str, Any] = {"json": {"advance_seconds": 1}}
    assert (await world.http("POST", "$pairbus/clock", key=LISTENER, **request))[0] == 401
    assert world.namespace.clock.offset == timedelta(0)
    status, answer = await world.http("POST", "$pairbus/clocks", **request)
    assert status == 404 and "clock" in answer["error"]


async def test_switches_are_not_metered(tmp_path: Path) -> None:
    """Azure has none of them, so they are no part of a bill."""
    async with world(meter=tmp_path) as metered:
        assert (await metered.http("POST", "$pairbus/clock", json={"advance_seconds": 1}))[0] == 200
        assert (await metered.http("POST", "$pairbus/clock", data=b"{"))[0] == 400
        assert (await metered.http("GET", "$namespaceinfo"))[0] == 200
        status, rows = await metered.http("GET", "$meter")
        assert (status, [row["entity"] for row in rows]) == (200, ["$namespaceinfo"])

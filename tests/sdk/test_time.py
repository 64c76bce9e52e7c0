"""Time to live and scheduling: when a message disappears, and when it appears."""

from __future__ import annotations

import datetime

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    aio,
)
from azure.servicebus.exceptions import MessageNotFoundError

from tests.conftest import MakeQueue
from tests.sdk.flavours import Sdk, assert_empty, number, receive, receive_one, text, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
SECOND = datetime.timedelta(seconds=1)
LIFE = 4 * SECOND  # time to live; long enough to see the message alive on a busy machine
SOON = 4 * SECOND  # until a scheduled message is due; long enough for the calls that must come before
HOUR = datetime.timedelta(hours=1)
DEAD = ServiceBusSubQueue.DEAD_LETTER


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def _gone(receiver: aio.ServiceBusReceiver) -> None:
    async def nothing_to_peek() -> bool:
        return not await receiver.peek_messages(10, sequence_number=1, timeout=10)

    await until(nothing_to_peek, "the message has expired")


async def test_a_message_disappears_when_its_time_to_live_is_over(sdk: Sdk, queue_name: str) -> None:
    """Without dead-lettering it is simply gone; one without a limit stays."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("short", time_to_live=LIFE), timeout=10)
    [peeked] = await receiver.peek_messages(10, timeout=10)
    assert text(peeked) == "short"
    await _gone(receiver)
    await sender.send_messages(ServiceBusMessage("long"), timeout=10)
    assert text(await receive_one(receiver)) == "long"
    await assert_empty(await sdk.receiver(queue_name, sub_queue=DEAD))


async def test_an_expired_message_is_dead_lettered_when_the_queue_says_so(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The dead letter does not expire, and has the reason in words of the service."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    sender, dead = await sdk.sender(queue), await sdk.receiver(queue, sub_queue=DEAD)
    await sender.send_messages(ServiceBusMessage("late", time_to_live=SECOND), timeout=10)
    letter = await receive_one(dead)
    assert text(letter) == "late"
    assert letter.dead_letter_reason == "TTLExpiredException"
    assert letter.dead_letter_error_description


async def test_the_queues_time_to_live_is_default_and_ceiling(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A longer time of the message is lowered without a word; a shorter one holds."""
    sender, receiver = await sdk.pair(make_queue(default_message_time_to_live=LIFE + SECOND))
    lives = [None, HOUR, LIFE]
    await sender.send_messages([ServiceBusMessage("x", time_to_live=live) for live in lives], timeout=10)
    peeked = await receiver.peek_messages(3, timeout=10)
    ends = [
        message.expires_at_utc - message.enqueued_time_utc
        for message in peeked
        if message.expires_at_utc and message.enqueued_time_utc
    ]
    assert ends == [LIFE + SECOND, LIFE + SECOND, LIFE]
    await _gone(receiver)


async def test_a_locked_message_outlives_its_time_until_it_is_unlocked(sdk: Sdk, queue_name: str) -> None:
    """The receiver that has the lock may finish; given back too late, the message is gone."""
    sender, receiver = await sdk.pair(queue_name)
    messages = [ServiceBusMessage(name, time_to_live=LIFE) for name in ("finished", "given back")]
    await sender.send_messages(messages, timeout=10)
    finished, given_back = await receive(receiver, 2)

    async def over() -> bool:
        return _now() > (given_back.expires_at_utc or _now()) + SECOND / 4

    await until(over, "the time to live is over")
    await receiver.complete_message(finished)
    await receiver.abandon_message(given_back)
    await assert_empty(receiver)


async def test_a_scheduled_message_appears_at_its_time(sdk: Sdk, queue_name: str) -> None:
    """The message does not appear earlier, and its time to live begins at that time."""
    sender, receiver = await sdk.pair(queue_name)
    due = _now() + SOON
    [scheduled] = await sender.schedule_messages(ServiceBusMessage("later", message_id="m"), due, timeout=10)
    assert scheduled > 0
    await assert_empty(receiver)
    message = await receive_one(receiver)
    assert _now() >= due - SECOND / 20
    assert text(message) == "later"
    assert message.message_id == "m"
    assert message.state is ServiceBusMessageState.ACTIVE
    assert message.enqueued_time_utc is not None
    assert message.enqueued_time_utc >= due - SECOND / 20
    assert message.scheduled_enqueue_time_utc is not None
    assert abs(message.scheduled_enqueue_time_utc - due) < SECOND / 100


async def test_a_scheduled_time_can_be_a_property_of_a_sent_message(sdk: Sdk, queue_name: str) -> None:
    """Sent like any other message, also in a list, and yet scheduled."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    due = _now() + SOON
    messages = [ServiceBusMessage("later", scheduled_enqueue_time_utc=due), ServiceBusMessage("now")]
    await sender.send_messages(messages, timeout=10)
    assert text(await receive_one(receiver)) == "now"
    await assert_empty(receiver)
    assert text(await receive_one(receiver)) == "later"
    assert _now() >= due - SECOND / 20


async def test_a_cancelled_message_never_appears(sdk: Sdk, queue_name: str) -> None:
    """Messages scheduled in one call get distinct numbers; the cancelled ones are gone, the rest comes."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    due = _now() + SOON
    messages = [ServiceBusMessage(name) for name in "abc"]
    numbers = await sender.schedule_messages(messages, due, timeout=10)
    assert len(set(numbers)) == 3
    await sender.cancel_scheduled_messages([numbers[0], numbers[2]], timeout=10)
    assert text(await receive_one(receiver)) == "b"
    await assert_empty(receiver)


async def test_cancelling_what_is_not_scheduled_is_not_found(sdk: Sdk, queue_name: str) -> None:
    """An unknown number, and one that was cancelled before."""
    sender = await sdk.sender(queue_name)
    [scheduled] = await sender.schedule_messages(ServiceBusMessage("x"), _now() + HOUR, timeout=10)
    await sender.cancel_scheduled_messages(scheduled, timeout=10)
    for unknown in (scheduled, 987_654):
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(unknown, timeout=10)


async def test_a_time_in_the_past_means_now(sdk: Sdk, queue_name: str) -> None:
    """A late scheduler loses nothing."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.schedule_messages(ServiceBusMessage("late"), _now() - HOUR, timeout=10)
    assert text(await receive_one(receiver)) == "late"


async def test_the_time_to_live_of_a_scheduled_message_begins_with_its_activation(sdk: Sdk, queue_name: str) -> None:
    """Otherwise a message scheduled beyond its time to live would never be seen."""
    sender, receiver = await sdk.pair(queue_name)
    message = ServiceBusMessage("brief", time_to_live=LIFE, scheduled_enqueue_time_utc=_now() + LIFE + SECOND / 2)
    await sender.send_messages(message, timeout=10)
    received = await receive_one(receiver)
    assert text(received) == "brief"
    assert received.expires_at_utc is not None
    assert received.enqueued_time_utc is not None
    assert received.expires_at_utc - received.enqueued_time_utc == LIFE


async def test_peek_shows_active_deferred_and_scheduled_messages_and_locks_nothing(sdk: Sdk, queue_name: str) -> None:
    """A look at everything, in order of the sequence numbers, with the state of each; pages continue by themselves."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([ServiceBusMessage(name) for name in ("deferred", "active", "locked")], timeout=10)
    await sender.schedule_messages(ServiceBusMessage("scheduled"), _now() + HOUR, timeout=10)
    deferred, active, _locked = await receive(receiver, 3)
    await receiver.defer_message(deferred)
    await receiver.abandon_message(active)
    looker = await sdk.receiver(queue_name)
    peeked = await looker.peek_messages(2, timeout=10)
    peeked += await looker.peek_messages(10, timeout=10)
    states = {text(message): message.state for message in peeked}
    assert states == {
        "deferred": ServiceBusMessageState.DEFERRED,
        "active": ServiceBusMessageState.ACTIVE,
        "locked": ServiceBusMessageState.ACTIVE,
        "scheduled": ServiceBusMessageState.SCHEDULED,
    }
    numbers = [number(message) for message in peeked]
    assert numbers == sorted(numbers)
    from_second = await looker.peek_messages(10, sequence_number=numbers[1], timeout=10)
    assert [number(message) for message in from_second] == numbers[1:]
    assert all(message.locked_until_utc is None for message in peeked)
    assert text(await receive_one(looker)) == "active"


async def test_peek_of_an_empty_queue_is_empty(sdk: Sdk, queue_name: str) -> None:
    """The broker answers "no content" and the SDK shows no messages."""
    assert await (await sdk.receiver(queue_name)).peek_messages(5, timeout=10) == []

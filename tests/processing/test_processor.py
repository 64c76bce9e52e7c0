"""A processor: what happens to a message for every way that a handler can end, its locks, its stops and pauses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from pairbus import Backoff, DeadLetter, Defer, Retry
from pairbus.client.processing.events import HandlerFailed, LockLost
from pairbus.errors import PairbusError
from pairbus.testing.broker_thread import BrokerThread
from pairbus.transport import connect
from tests.limits import slowness
from tests.processing.desk import Desk, body_of, until

QUICK = Backoff(first=0.05, factor=1.0, jitter=0.0)


async def test_every_message_is_handled_once_and_completed(desk: Desk) -> None:
    queue, seen = desk.queue(), []
    bodies = [str(number) for number in range(300)]
    await desk.send(queue, *bodies)
    async with desk.processor(queue, lambda message: seen.append(str(message)), max_concurrent_calls=8) as processor:
        await until(lambda: len(seen) >= 300, "all are handled")
    assert Counter(seen) == Counter(bodies)
    assert await desk.take(queue, 0) == []
    assert processor.counts.completed == 300
    assert desk.most_at_once <= 8


async def test_one_handler_runs_at_once_by_default(desk: Desk) -> None:
    queue, seen = desk.queue(), []
    await desk.send(queue, *"abcdefgh")

    def behave(message: Any) -> Any:
        seen.append(str(message))
        return desk.nap(0.01)

    async with desk.processor(queue, behave):
        await until(lambda: len(seen) == 8, "all are handled")
    assert desk.most_at_once == 1
    assert seen == list("abcdefgh")


# ── the ends of handlers ──


async def test_exception_is_retried_as_a_copy_that_counts_attempts(desk: Desk) -> None:
    """The handler sees one message: the same id, body and first time, and a growing attempt."""
    queue, seen = desk.queue(), []

    def behave(message: Any) -> None:
        seen.append((message.attempt, message.message_id, str(message), message.first_enqueued_time_utc))
        if message.attempt < 3:
            raise ValueError("not yet")

    await desk.send(queue, "a", application_properties={"mine": 1})
    async with desk.processor(queue, behave, retry=QUICK) as processor:
        await until(lambda: processor.counts.handled == 3, "the third attempt")
    assert [attempt for attempt, *_ in seen] == [1, 2, 3]
    assert len({rest for _, *each in seen for rest in [tuple(each)]}) == 1
    assert await desk.take(queue, 0) == []
    assert [event.attempt for event in desk.told(HandlerFailed)] == [1, 2]


async def test_exception_of_the_last_attempt_dead_letters_with_the_exception(desk: Desk) -> None:
    queue = desk.queue()

    def behave(message: Any) -> None:
        raise KeyError("no such customer")

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, retry=QUICK, max_attempts=2) as processor:
        await until(lambda: processor.counts.dead_lettered, "the dead letter")
    letter = await desk.dead_letter(queue)
    assert letter.property("DeadLetterReason") == "KeyError"
    assert letter.property("DeadLetterErrorDescription") == "attempt 2: 'no such customer'"
    assert letter.property("x-pairbus-retry-message-id") == "a"
    assert await desk.take(queue, 0) == []


async def test_exception_without_retry_is_a_plain_abandon(desk: Desk) -> None:
    """The entity counts the deliveries, and dead-letters by its own limit."""
    queue, seen = desk.queue(max_delivery_count=3), []

    def behave(message: Any) -> None:
        seen.append(message.attempt)
        raise ValueError("never")

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, retry=None):
        await until(lambda: len(seen) == 3, "three deliveries")
    letter = await desk.dead_letter(queue)
    assert seen == [1, 2, 3]
    assert letter.property("DeadLetterReason") == "MaxDeliveryCountExceeded"


async def test_retry_after_names_its_own_delay(desk: Desk) -> None:
    queue, seen = desk.queue(), []

    def behave(message: Any) -> None:
        seen.append(time.monotonic())
        if len(seen) == 1:
            raise Retry(after=0.5)

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, retry=None) as processor:
        await until(lambda: len(seen) == 2, "the second attempt")
    assert seen[1] - seen[0] >= 0.4
    assert processor.counts.retried == 1
    assert desk.told(HandlerFailed) == [], "asking for another attempt is no failure"


async def test_dead_letter_has_the_reason_of_the_handler(desk: Desk) -> None:
    queue = desk.queue()

    def behave(message: Any) -> None:
        raise DeadLetter("NoStock", "the shelf is empty")

    await desk.send(queue, "a")
    async with desk.processor(queue, behave) as processor:
        await until(lambda: processor.counts.dead_lettered, "the dead letter")
    letter = await desk.dead_letter(queue)
    assert letter.property("DeadLetterReason") == "NoStock"
    assert letter.property("DeadLetterErrorDescription") == "the shelf is empty"


async def test_deferred_message_waits_for_its_sequence_number(desk: Desk) -> None:
    queue, numbers = desk.queue(), []

    def behave(message: Any) -> None:
        numbers.append(message.sequence_number)
        raise Defer

    await desk.send(queue, "a")
    async with desk.processor(queue, behave) as processor:
        await until(lambda: processor.counts.deferred, "the deferral")
    async with await connect(desk.broker.connection_string()) as connection:
        node = await connection.management(queue)
        (found,) = await node.receive_deferred(numbers)
    assert b"a" in found.payload


async def test_handler_that_settles_by_itself_is_left_alone(desk: Desk) -> None:
    """Also when it raises an exception afterwards."""
    queue = desk.queue()

    def behave(message: Any) -> Any:
        if not desk.is_aio:
            message.dead_letter("Mine")
            raise ValueError("too late")

        async def settle() -> None:
            await message.dead_letter("Mine")
            raise ValueError("too late")

        return settle()

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, auto_complete=False) as processor:
        await until(lambda: processor.counts.handled, "its end")
    letter = await desk.dead_letter(queue)
    assert letter.property("DeadLetterReason") == "Mine"
    assert processor.counts.retried == 0


async def test_unsettled_message_is_abandoned_without_auto_complete(desk: Desk) -> None:
    queue, seen = desk.queue(), []

    def behave(message: Any) -> Any:
        seen.append(message.attempt)
        return message.complete() if len(seen) == 2 else None

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, auto_complete=False) as processor:
        await until(lambda: processor.counts.handled == 2, "the second delivery")
    assert seen == [1, 2]
    assert len(desk.told(HandlerFailed)) == 1
    assert await desk.take(queue, 0) == []


async def test_unreadable_message_is_dead_lettered(desk: Desk) -> None:
    """Bytes that are an AMQP message for the service, and none for the SDK."""
    queue = desk.queue()
    async with await connect(desk.broker.connection_string()) as connection:
        sender = await connection.sender(queue)
        await sender.send(b"\x00\x53\x75\xa0\x01a" + b"\x00\x53\x78\xc1\x01\x00")
        await sender.send(b"\x00\x53\x74\xc1\x05\x02\xa1\x01k\x40\x00\x53\x77\x98" + bytes(16))
    handled: list[Any] = []
    async with desk.processor(queue, handled.append) as processor:
        await until(lambda: processor.counts.handled == 2, "both are decided about")
    assert processor.counts.completed + processor.counts.dead_lettered == 2


async def test_copy_passes_duplicate_detection(desk: Desk) -> None:
    """With the id of its original it would be accepted and dropped, and the message would be lost."""
    queue, seen = desk.queue(requires_duplicate_detection=True), []

    def behave(message: Any) -> None:
        seen.append(message.message_id)
        if len(seen) < 3:
            raise ValueError("not yet")

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, retry=QUICK) as processor:
        await until(lambda: processor.counts.handled == 3, "the third attempt")
    assert seen == ["a", "a", "a"]


async def test_subscription_retries_without_a_copy(desk: Desk, broker: BrokerThread) -> None:
    """A copy would go to the other subscriptions of the topic too."""
    topic = broker.create_topic(f"t-{time.monotonic_ns()}")
    for name in ("mine", "other"):
        broker.create_subscription(topic, name)
    seen: list[int] = []

    def behave(message: Any) -> None:
        seen.append(message.attempt)
        if len(seen) < 3:
            raise ValueError("not yet")

    await desk.send(topic, "a")
    processor = desk.client.get_subscription_processor(topic, "mine", desk.handler(behave), retry=QUICK)
    await desk.call(processor.start)
    await until(lambda: processor.counts.handled == 3, "the third attempt")
    await desk.call(processor.stop)
    assert seen == [1, 2, 3]
    assert len(await desk.take(f"{topic}/Subscriptions/other", 1)) == 1
    assert await desk.take(f"{topic}/Subscriptions/mine", 0) == []


# ── locks ──


async def test_lock_of_a_long_handler_is_renewed_also_while_it_blocks(desk: Desk) -> None:
    """A handler that blocks its thread, or the application's event loop, loses nothing."""
    queue, seen = desk.queue(lock_duration=timedelta(seconds=1)), []

    def behave(message: Any) -> None:
        seen.append(str(message))
        time.sleep(2.5)

    await desk.send(queue, "a")
    async with desk.processor(queue, behave) as processor:
        await until(lambda: processor.counts.completed, "it is completed")
    assert seen == ["a"]
    assert processor.counts.renewals >= 2
    assert desk.told(LockLost) == []
    assert await desk.take(queue, 0) == []


async def test_handler_that_takes_too_long_loses_its_lock_and_is_told(desk: Desk) -> None:
    """Asyncio: it is cancelled. Threads: `lock_lost` is true."""
    queue, seen = desk.queue(lock_duration=timedelta(seconds=1)), []

    async def wait_for_cancel(message: Any) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            assert message.lock_lost
            raise

    def wait_for_flag(message: Any) -> None:
        while not message.lock_lost:
            time.sleep(0.01)
        seen.append("cancelled")

    def behave(message: Any) -> Any:
        if seen:
            seen.append(message.attempt)
            return None
        return wait_for_cancel(message) if desk.is_aio else wait_for_flag(message)

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, max_auto_lock_renewal_duration=0) as processor:
        await until(lambda: processor.counts.completed, "its second delivery is completed")
    assert seen == ["cancelled", 2]
    (lost,) = desk.told(LockLost)
    assert lost.message_id == "a"
    assert desk.most_at_once == 1


async def test_message_that_was_delivered_again_waits_for_its_first_handler(desk: Desk) -> None:
    """A lock that the service lost: two handlers of one process never have one message at once."""
    queue, seen = desk.queue(lock_duration=timedelta(seconds=1)), []

    def behave(message: Any) -> None:
        seen.append(str(message))
        if len(seen) == 1:
            time.sleep(2.0)

    await desk.send(queue, "a")
    async with desk.processor(queue, behave, max_concurrent_calls=4, max_auto_lock_renewal_duration=0) as processor:
        await until(lambda: processor.counts.completed, "it is completed")
    assert desk.most_at_once == 1
    assert seen == ["a", "a"]


async def test_lock_is_renewed_in_time_when_the_clock_of_the_service_is_ahead(desk: Desk) -> None:
    """By our clock the lock seems to last for a minute more than it does."""
    desk.broker.clock().advance(60)
    queue, seen = desk.queue(lock_duration=timedelta(seconds=1)), []

    def behave(message: Any) -> Any:
        seen.append(str(message))
        return desk.nap(2.0)

    await desk.send(queue, "a")
    async with desk.processor(queue, behave) as processor:
        await until(lambda: processor.counts.completed, "it is completed")
    assert seen == ["a"]
    assert processor.counts.renewals >= 1


async def test_waiting_messages_keep_their_locks(desk: Desk) -> None:
    """Fast handlers fetch ahead; when one then blocks, those behind it are renewed."""
    queue, seen = desk.queue(lock_duration=timedelta(seconds=1)), []

    def behave(message: Any) -> None:
        seen.append(str(message))
        if len(seen) == 30:
            time.sleep(2.5)

    bodies = [str(number) for number in range(60)]
    await desk.send(queue, *bodies)
    async with desk.processor(queue, behave) as processor:
        await until(lambda: processor.counts.completed >= 60, "all are completed")
    assert Counter(seen) == Counter(bodies)


# ── pause, stop ──


async def test_nothing_is_locked_after_a_stop(desk: Desk) -> None:
    """A waiting message is given back without a delivery; one that was in a handler is completed."""
    queue, seen = desk.queue(), []

    def behave(message: Any) -> Any:
        seen.append(str(message))
        return desk.nap(0.02)

    bodies = [str(number) for number in range(200)]
    await desk.send(queue, *bodies)
    async with desk.processor(queue, behave, max_concurrent_calls=4):
        await until(lambda: len(seen) > 20, "some are handled")
    left = await desk.take(queue, 200 - len(seen))
    assert Counter(seen) + Counter(map(body_of, left)) == Counter(bodies)
    assert {message.header.delivery_count or 0 for message in left if message.header} <= {0}


async def test_paused_processor_takes_nothing_until_it_resumes(desk: Desk) -> None:
    queue, seen = desk.queue(), []
    await desk.send(queue, "a")
    async with desk.processor(queue, lambda message: seen.append(str(message))) as processor:
        await until(lambda: seen == ["a"], "the first message")
        await desk.call(processor.pause)
        await desk.send(queue, "b")
        assert [body_of(each) for each in await desk.take(queue, 1)] == ["b"]
        await desk.send(queue, "c")
        await desk.call(processor.resume)
        await until(lambda: seen == ["a", "c"], "the next message")
    assert "ended" in repr(processor)


async def test_stop_without_drain_gives_back_what_handlers_have(desk: Desk) -> None:
    queue, seen = desk.queue(), []

    def wait(message: Any) -> Any:
        seen.append(message)
        if desk.is_aio:
            return asyncio.sleep(60)
        while not message.lock_lost:
            time.sleep(0.01)
        return None

    await desk.send(queue, "a", "b")
    processor = desk.new_processor(queue, wait, max_concurrent_calls=2)
    await desk.call(processor.start)
    await until(lambda: len(seen) == 2, "both are in handlers")
    await desk.call(processor.stop, drain=False)
    assert sorted(map(body_of, await desk.take(queue, 2))) == ["a", "b"]
    await until(lambda: not desk.running, "the handlers end")


async def test_drain_that_takes_too_long_ends(desk: Desk) -> None:
    queue, seen = desk.queue(), []

    def wait(message: Any) -> Any:
        seen.append(message)
        return asyncio.sleep(60) if desk.is_aio else time.sleep(1.5)

    await desk.send(queue, "a")
    processor = desk.new_processor(queue, wait)
    await desk.call(processor.start)
    await until(lambda: len(seen) == 1, "it is in its handler")
    began = time.monotonic()
    await desk.call(processor.stop, timeout=0.2)
    assert time.monotonic() - began < 1.2 * slowness()
    assert [body_of(each) for each in await desk.take(queue, 1)] == ["a"]
    await until(lambda: not desk.running, "the handler ends")


async def test_held_message_is_given_back_with_its_attempts(desk: Desk, broker: BrokerThread) -> None:
    """A stop between two attempts loses neither the message nor the count."""
    topic = broker.create_topic(f"t-{time.monotonic_ns()}")
    broker.create_subscription(topic, "mine")
    seen: list[int] = []

    def behave(message: Any) -> None:
        seen.append(message.attempt)
        raise Retry(after=0.05 if len(seen) < 3 else 60)

    await desk.send(topic, "a")
    processor = desk.client.get_subscription_processor(topic, "mine", desk.handler(behave))
    await desk.call(processor.start)
    await until(lambda: processor.counts.handled == 3, "three attempts")
    await desk.call(processor.stop)
    again = desk.client.get_subscription_processor(
        topic, "mine", desk.handler(lambda message: seen.append(message.attempt))
    )
    await desk.call(again.start)
    await until(lambda: again.counts.completed, "its fourth attempt")
    await desk.call(again.stop)
    assert seen == [1, 2, 3, 4]


async def test_closing_the_client_stops_its_processors(desk: Desk) -> None:
    queue, seen = desk.queue(), []
    await desk.send(queue, "a")
    client = desk.new_client()
    processor = client.get_queue_processor(queue, desk.handler(lambda message: seen.append(str(message))))
    await desk.call(processor.start)
    await until(lambda: seen == ["a"], "the message")
    await desk.call(client.close)
    await desk.send(queue, "b")
    assert [body_of(each) for each in await desk.take(queue, 1)] == ["b"]
    assert "ended" in repr(processor)


async def test_processor_is_started_once(desk: Desk) -> None:
    queue = desk.queue()
    async with desk.processor(queue, lambda message: None) as processor:
        with pytest.raises(PairbusError, match="was started before"):
            await desk.call(processor.start)


# ── options ──


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_concurrent_calls": 0}, ValueError, "max_concurrent_calls is 0"),
        ({"retry": 3}, ValueError, "retry is 3; it must be a Backoff or None"),
        ({"max_attempts": 0}, ValueError, "max_attempts is 0"),
        ({"session_ids": "a"}, ValueError, "session_ids is 'a'"),
        ({"session_idle_timeout": -1}, ValueError, "session_idle_timeout is -1"),
        ({"max_concurent_calls": 2}, TypeError, "max_concurrent_calls"),
        ({"on_error": 5}, TypeError, "on_error is 5"),
    ],
)
async def test_wrong_option_is_refused_when_the_processor_is_made(
    desk: Desk, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        desk.client.get_queue_processor("orders", desk.handler(lambda message: None), **options)


async def test_handler_of_the_other_flavour_is_refused(desk: Desk) -> None:
    async def coroutine_function(message: Any) -> None: ...

    def function(message: Any) -> None: ...

    with pytest.raises(TypeError, match="coroutine function"):
        desk.client.get_queue_processor("orders", function if desk.is_aio else coroutine_function)

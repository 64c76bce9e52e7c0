"""Changes of a queue that time alone brings: locks end, messages expire, scheduled messages become active."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import encode_pair
from pairbus.broker.boxes.line import CHUNK_MAX, EXPIRED_MAX
from pairbus.broker.entities.queue import Outcome
from pairbus.settings.durations import UNLIMITED_MS
from tests.broker.locking import lock_next
from tests.broker.queue_world import World

# ── locks ──


def test_an_expired_lock_frees_the_message_and_counts_as_a_delivery() -> None:
    """The receiver may have died with it; after a restart the count is still known."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1")
    lock = world.lock()
    assert world.queue.next_due_ms() == world.now + 5_000
    world.pass_ms(4_999)
    assert world.bodies() == []
    world.ready.clear()
    world.pass_ms(1)
    assert world.ready == [world.queue.main]
    answer = world.settle(lock, Outcome.COMPLETE)
    world.store.commit()
    assert answer.condition == "com.microsoft:message-lock-lost"
    world.restart()
    assert world.lock().message.delivery_count == 1


def test_lock_is_lost_at_its_end_before_the_timer_runs() -> None:
    """The next receiver and the old one must not both believe that they own the message."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1")
    lock = world.lock()
    world.now += 5_000
    answer = world.settle(lock, Outcome.COMPLETE)
    world.store.commit()
    assert answer.condition == "com.microsoft:message-lock-lost"
    world.settle_down()
    assert world.bodies() == [b"1"]


def test_expiring_locks_exhaust_the_deliveries() -> None:
    """A message that kills its receivers ends in the dead-letter queue, where deliveries no longer count."""
    world = World(lock_duration_ms=5_000, max_delivery_count=3)
    world.send(b"1")
    for _ in range(3):
        world.lock()
        world.pass_ms(5_000)
    assert world.counts() == (0, 1, 0, 0)
    assert b"MaxDeliveryCountExceeded" in world.lock(world.queue.dead).message.patch
    world.pass_ms(5_000)
    assert world.lock(world.queue.dead).message.delivery_count == 3


def test_a_deferred_message_whose_lock_expires_is_deferred_again() -> None:
    """A deferred message must not appear among the messages that receivers get in order."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1")
    world.settled(world.lock(), Outcome.DEFER)
    world.receive_deferred(1)
    world.pass_ms(5_000)
    assert (world.bodies(), world.counts()) == ([], (0, 0, 0, 1))
    answer = world.receive_deferred(1)
    world.store.commit()
    assert answer.value[0].message.delivery_count == 2


def test_many_locks_that_expire_together_are_all_freed() -> None:
    """One step frees a bounded number of locks; the queue stays due until all are freed."""
    world = World(lock_duration_ms=5_000)
    count = 3 * CHUNK_MAX + 1
    world.offer(*[b"x"] * count)
    world.store.commit()
    assert len(world.bodies()) == count
    world.now += 5_000
    world.queue.run_due(world.now)
    assert world.queue.is_catching_up
    world.store.commit()
    assert world.queue.next_due_ms() == world.now
    world.settle_down()
    assert len(world.bodies()) == count


# ── time to live ──


@pytest.mark.parametrize(
    ("message_ttl_ms", "default_ttl_ms", "lives_ms"),
    [
        (None, None, None),
        (0, None, None),
        (100, None, 100),
        (None, 200, 200),
        (0, 200, 200),
        (100, 200, 100),
        (300, 200, 200),
        (300, UNLIMITED_MS, 300),
        (None, UNLIMITED_MS, None),
    ],
)
def test_time_to_live_is_capped_by_the_queue(
    message_ttl_ms: int | None, default_ttl_ms: int | None, lives_ms: int | None
) -> None:
    """A time to live of None or 0 means that the sender did not limit it."""
    world = World(default_ttl_ms=default_ttl_ms)
    world.send(b"1", ttl_ms=message_ttl_ms)
    assert world.queue.next_due_ms() == (None if lives_ms is None else world.now + lives_ms)
    if lives_ms is not None:
        world.pass_ms(lives_ms - 1)
        assert world.counts() == (1, 0, 0, 0)
        world.pass_ms(1)
        assert world.counts() == (0, 0, 0, 0)
        assert world.queue.size_bytes == world.stored_bytes() == 0
        world.restart()
        assert world.bodies() == []


@pytest.mark.parametrize("found_by", ["the clock", "a receiver"])
def test_an_expired_message_is_dead_lettered_when_the_queue_says_so(found_by: str) -> None:
    """The message leaves the queue once, whether the clock or a receiver notices first."""
    world = World(dead_letter_on_expiration=True)
    world.send(b"1", b"2", ttl_ms=100)
    world.send(b"3")
    world.now += 100
    if found_by == "a receiver":
        assert world.bodies() == [b"3"]
    world.settle_down()
    assert world.counts() == (1, 2, 0, 0)
    assert world.queue.dead in world.ready
    message = world.lock(world.queue.dead).message
    assert (message.body, message.expires_ms) == (b"1", 0)
    assert message.patch.startswith(encode_pair("DeadLetterReason", "TTLExpiredException"))
    assert world.queue.size_bytes == world.stored_bytes()


def test_a_locked_message_expires_only_when_it_is_unlocked() -> None:
    """The receiver that has it may finish."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1", b"2", ttl_ms=100)
    first, second = world.lock(), world.lock()
    world.pass_ms(4_000)
    assert world.counts() == (2, 0, 0, 0)
    world.settled(first, Outcome.COMPLETE)
    world.settled(second, Outcome.ABANDON)
    world.settle_down()
    assert world.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_locked_message_does_not_expire_when_many_others_wait_either(restarted: bool) -> None:
    """The heap of expiries still has the locked message; only waiting messages may be withdrawn by it."""
    world = World(lock_duration_ms=5_000)
    world.offer(*[b"x"] * 2000, ttl_ms=4_000)
    world.store.commit()
    if restarted:
        world.restart()
    locks = [world.lock() for _ in range(10)]
    world.pass_ms(4_000)
    assert world.counts() == (10, 0, 0, 0)
    for lock in locks:
        world.settled(lock, Outcome.DEFER)
    assert world.counts() == (0, 0, 0, 10)


def test_deferred_and_dead_messages_do_not_expire() -> None:
    """Deferred messages wait for a receiver that knows their number, dead letters for a person."""
    world = World()
    world.send(b"1", b"2", ttl_ms=100)
    world.settled(world.lock(), Outcome.DEFER)
    world.settled(world.lock(), Outcome.DEAD_LETTER)
    world.pass_ms(1_000)
    world.restart()
    world.pass_ms(1_000)
    assert world.counts() == (0, 1, 0, 1)
    assert (world.peeked(), world.peeked(dead=True)) == ([b"1"], [b"2"])


def test_what_expired_while_the_broker_was_down_is_not_delivered() -> None:
    """Time passes without us."""
    world = World(dead_letter_on_expiration=True)
    world.send(b"1", ttl_ms=100)
    world.send(b"2", ttl_ms=10_000)
    world.now += 100
    world.restart()
    assert (world.bodies(), world.counts()) == ([b"2"], (1, 1, 0, 0))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_crowd_of_expired_messages_is_removed_in_bounded_steps(restarted: bool) -> None:
    """A million messages that expire at once must not be loaded at once, and must not hide those behind them."""
    world = World(dead_letter_on_expiration=True)
    count = 2000
    world.offer(*[b"x"] * count, ttl_ms=100)
    world.offer(b"live")
    world.store.commit()
    if restarted:
        world.restart()
    world.now += 100
    world.queue.run_due(world.now)
    assert 0 < len(world.store._writes) <= CHUNK_MAX
    world.queue.run_due(world.now)
    assert 0 < len(world.store._writes) <= CHUNK_MAX
    world.settle_down()
    assert world.counts() == (1, count, 0, 0)
    assert world.bodies() == [b"live"]


def test_a_receiver_that_meets_only_expired_messages_is_called_again() -> None:
    """A search removes a bounded number; unless it announces itself again, a live message behind them stays there."""
    world = World()
    world.offer(*[b"x"] * (EXPIRED_MAX + 5), ttl_ms=100)
    world.offer(b"live")
    world.store.commit()
    world.now += 100
    world.ready.clear()
    assert lock_next(world.queue.main, world.now) is None
    world.store.commit()
    assert world.queue.main in world.ready
    world.settle_down()
    assert world.bodies() == [b"live"]


# ── scheduled messages ──


def test_a_scheduled_message_enters_at_the_end_when_its_time_comes() -> None:
    """Under a new number and with the time of activation as its enqueued time, like any message sent then."""
    world = World()
    at = world.now + 1_000
    (scheduled,) = world.schedule(b"later", at=at)
    world.send(b"now")
    assert (world.counts(), world.queue.next_due_ms()) == ((1, 0, 1, 0), at)
    world.pass_ms(999)
    assert world.counts() == (1, 0, 1, 0)
    world.pass_ms(1)
    assert world.counts() == (2, 0, 0, 0)
    locks = [world.lock(), world.lock()]
    assert [lock.message.body for lock in locks] == [b"now", b"later"]
    message = locks[1].message
    assert (message.seq > 2, message.enqueued_ms, message.scheduled_ms, message.state) == (True, at, 0, 0)
    answer = world.cancel(scheduled)
    world.store.commit()
    assert answer.condition == "com.microsoft:message-not-found"
    assert world.queue.size_bytes == world.stored_bytes()


def test_scheduled_messages_are_activated_in_the_order_of_their_times() -> None:
    """The order in which they were sent does not matter."""
    world = World()
    for body, after_ms in ((b"3", 300), (b"1", 100), (b"2", 200)):
        world.schedule(body, at=world.now + after_ms)
    world.pass_ms(1_000)
    assert world.bodies() == [b"1", b"2", b"3"]


def test_the_time_to_live_of_a_scheduled_message_counts_from_its_activation() -> None:
    """The message could not have been received before its activation."""
    world = World()
    world.schedule(b"1", at=world.now + 1_000, ttl_ms=500)
    world.pass_ms(1_000)
    world.pass_ms(499)
    assert world.counts() == (1, 0, 0, 0)
    world.pass_ms(1)
    assert world.counts() == (0, 0, 0, 0)


def test_a_time_in_the_past_means_now() -> None:
    """The two ways of scheduling do so; a sequence number is given all the same."""
    world = World()
    assert world.schedule(b"1", b"2", at=world.now) == [1, 2]
    world.send(b"3", scheduled_ms=world.now - 5)
    world.send(b"4", scheduled_ms=world.now + 5)
    assert (world.bodies(), world.counts()) == ([b"1", b"2", b"3"], (3, 0, 1, 0))


def test_message_due_during_downtime_is_activated_at_the_start() -> None:
    """A message that is due later still waits."""
    world = World()
    world.schedule(b"due", at=world.now + 100)
    world.schedule(b"later", at=world.now + 10_000)
    world.now += 5_000
    world.restart()
    message = world.lock().message
    assert (message.body, message.enqueued_ms) == (b"due", world.now)
    assert world.counts() == (1, 0, 1, 0)
    world.restart()
    assert world.bodies() == [b"due"]


def test_cancelling_is_all_or_nothing() -> None:
    """One unknown number refuses the whole request."""
    world = World()
    first, second = world.schedule(b"1", b"2", at=world.now + 100)
    world.send(b"3")
    for wrong in (3, 99):
        answer = world.cancel(first, wrong)
        world.store.commit()
        assert answer.condition == "com.microsoft:message-not-found"
    assert world.counts() == (1, 0, 2, 0)
    answer = world.cancel(first, second, first)
    world.store.commit()
    assert answer.value is None
    assert world.counts() == (1, 0, 0, 0)
    assert world.queue.size_bytes == world.stored_bytes() == 1
    world.pass_ms(100)
    assert world.bodies() == [b"3"]


def test_a_crowd_of_scheduled_messages_is_activated_in_bounded_steps() -> None:
    """The messages are activated in order, and never more than a chunk at a time."""
    world = World()
    count = 3 * CHUNK_MAX
    bodies = [b"%d" % n for n in range(count)]
    world.schedule(*bodies, at=world.now + 100)
    world.now += 100
    world.queue.run_due(world.now)
    world.queue.run_due(world.now)
    assert len(world.store._writes) == CHUNK_MAX
    world.settle_down()
    assert world.bodies() == bodies

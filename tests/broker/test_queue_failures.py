"""Commits that fail: nothing is lost, nothing is there twice, and the peer knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from pairbus.broker.entities.entity import RETRY_PAUSE_MS
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.store import SCHEDULED, UNLIMITED, IndexRow, Loaded
from pairbus.errors import StoreError
from tests.broker.queue_world import DISK_FULL, Answer, World


def fail(world: World) -> None:
    world.store.fail_next(DISK_FULL)
    world.store.commit()


def test_a_failed_send_stores_nothing_and_its_numbers_are_not_used_again() -> None:
    """A number that was once given out must never name another message."""
    world = World()
    answer = world.offer(b"1", b"2")
    fail(world)
    assert answer.condition == "amqp:internal-error"
    assert "the disk is full" in answer.value.description
    assert (world.counts(), world.queue.size_bytes) == ((0, 0, 0, 0), 0)
    world.send(b"3")
    assert world.lock().message.seq == 3


def test_failed_group_fails_all_its_sends_and_no_later_one() -> None:
    """Groups are committed whole; the queue does not stop with one of them."""
    world = World()
    answers = [world.offer(b"1"), world.offer(b"2", scheduled_ms=world.now + 10)]
    fail(world)
    assert [answer.condition for answer in answers] == ["amqp:internal-error"] * 2
    world.send(b"3")
    world.pass_ms(10)
    assert world.bodies() == [b"3"]


@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.ABANDON, Outcome.DEFER, Outcome.DEAD_LETTER])
def test_a_failed_settlement_leaves_the_lock_as_it_was(outcome: Outcome) -> None:
    """The receiver is told, and may settle again while its lock lasts."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1")
    lock = world.lock()
    answer = world.settle(lock, outcome, patch=b"p")
    fail(world)
    assert answer.condition == "amqp:internal-error"
    assert (world.counts(), world.bodies(), world.queue.size_bytes) == ((1, 0, 0, 0), [], 1)
    assert (lock.message.patch, lock.message.delivery_count, lock.message.state) == (b"", 0, 0)
    assert world.ready[-1] is world.queue.main, "the end of the lock is due again, and the timer must learn of it"
    world.settled(lock, Outcome.COMPLETE)
    assert world.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.ABANDON, Outcome.DEFER, Outcome.DEAD_LETTER])
def test_a_lock_that_ends_while_its_settlement_fails_ends(outcome: Outcome) -> None:
    """While the write is under way the lock cannot expire; when it fails, the time that passed counts."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1")
    answer = world.settle(world.lock(), outcome)
    world.now += 5_000
    world.queue.run_due(world.now)
    assert world.bodies() == []
    fail(world)
    assert answer.condition == "amqp:internal-error"
    world.settle_down()
    lock = world.lock()
    assert (lock.message.body, lock.message.delivery_count) == (b"1", 1)


def test_a_settlement_that_is_under_way_when_its_lock_ends_succeeds() -> None:
    """The settlement came in time; a slow disk is not the receiver's fault."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1")
    answer = world.settle(world.lock(), Outcome.COMPLETE)
    world.now += 5_000
    world.queue.run_due(world.now)
    world.settle_down()
    assert answer.value is None
    assert world.counts() == (0, 0, 0, 0)


def test_releasing_needs_no_disk() -> None:
    """A release writes no row, so a failing store cannot undo it."""
    world = World()
    world.send(b"1")
    answer = world.settle(world.lock(), Outcome.RELEASE)
    fail(world)
    assert answer.value is None
    assert world.bodies() == [b"1"]


def test_a_failed_range_restores_every_lock_and_reports_every_token() -> None:
    """Restored locks still end at their time, also when other messages were locked meanwhile."""
    world = World(lock_duration_ms=5_000)
    world.send(b"1", b"2", b"3")
    first, second = world.lock(), world.lock()
    answer = Answer()
    world.queue.complete_many(world.queue.main, [first.token, b"lost", second.token], world.now, answer)
    world.now += 1_000
    third = world.lock()
    fail(world)
    tokens, refusal = answer.value
    assert set(tokens) == {first.token, second.token, b"lost"}
    assert refusal.condition == "amqp:internal-error"
    world.settled(second, Outcome.COMPLETE)
    assert world.queue.next_due_ms() == first.until_ms
    world.pass_ms(4_000)
    assert list(world.queue.main.locks) == [third]
    assert world.bodies() == [b"1"]


def test_a_lock_whose_end_cannot_be_written_ends_without_being_counted() -> None:
    """The message must be free again; only the count of the delivery is lost."""
    world = World(lock_duration_ms=5_000, max_delivery_count=1)
    world.send(b"1")
    world.lock()
    world.now += 5_000
    world.queue.run_due(world.now)
    fail(world)
    assert world.counts() == (1, 0, 0, 0)
    assert world.lock().message.delivery_count == 0


@pytest.mark.parametrize("dead_letter", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_expired_messages_that_cannot_be_removed_are_tried_again_after_a_pause(
    dead_letter: bool, restarted: bool
) -> None:
    """Expired messages stay hidden from receivers, and the broker does not hammer a full disk."""
    world = World(dead_letter_on_expiration=dead_letter)
    world.send(b"live")
    world.send(b"1", b"2", b"3", ttl_ms=100)
    world.send(b"last")
    if restarted:
        world.restart()
    world.now += 100
    world.queue.run_due(world.now)
    assert world.queue.next_due_ms() == world.now + RETRY_PAUSE_MS
    fail(world)
    assert world.counts() == (5, 0, 0, 0)
    assert world.queue.next_due_ms() == world.now + RETRY_PAUSE_MS
    world.queue.run_due(world.now)
    assert not world.store._writes
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.counts() == (2, 3 if dead_letter else 0, 0, 0)
    assert world.bodies() == [b"live", b"last"]
    assert world.queue.size_bytes == world.stored_bytes()


def test_expired_messages_met_by_a_receiver_survive_a_failure_too() -> None:
    """The clock removes the messages that the receiver could not remove."""
    world = World(dead_letter_on_expiration=True)
    world.send(b"1", b"2", ttl_ms=100)
    world.now += 100
    assert world.bodies() == []
    fail(world)
    assert world.counts() == (2, 0, 0, 0)
    assert world.bodies() == []
    world.settle_down()
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.counts() == (0, 2, 0, 0)


def test_an_activation_that_failed_is_tried_again() -> None:
    """Until then the message is scheduled, and can be cancelled."""
    world = World()
    first, second = world.schedule(b"1", b"2", at=world.now + 100)
    world.now += 100
    world.queue.run_due(world.now)
    under_way = world.cancel(first)
    fail(world)
    assert under_way.condition == "com.microsoft:message-not-found"
    assert world.counts() == (0, 0, 2, 0)
    answer = world.cancel(second)
    world.store.commit()
    assert answer.value is None
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.bodies() == [b"1"]
    assert world.queue.size_bytes == world.stored_bytes()


def test_a_cancellation_that_failed_leaves_the_message_scheduled() -> None:
    """While it is under way the message is not activated: one of the two has it."""
    world = World()
    (seq,) = world.schedule(b"1", at=world.now + 100)
    answer = world.cancel(seq)
    world.now += 100
    world.queue.run_due(world.now)
    fail(world)
    assert answer.condition == "amqp:internal-error"
    world.settle_down()
    assert (world.bodies(), world.counts()) == ([b"1"], (1, 0, 0, 0))


def test_deferred_messages_whose_deletion_failed_are_deferred() -> None:
    """The messages were not handed out, so their receiver can ask for them again."""
    world = World()
    world.send(b"1")
    world.settled(world.lock(), Outcome.DEFER)
    answer = world.receive_deferred(1, lock=False)
    fail(world)
    assert answer.condition == "amqp:internal-error"
    again = world.receive_deferred(1)
    world.store.commit()
    assert [lock.message.body for lock in again.value] == [b"1"]


BODIES = [b"1" * (1 << 20), b"2" * (1 << 20)]
"Messages of a megabyte: a queue reads them one by one."


def fail_read(world: World, number: int) -> None:
    """Let one of the next reads of the store fail."""
    load, reads = world.store.load, itertools.count(1)

    def failing(box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        if next(reads) == number:
            raise DISK_FULL
        return load(box, numbers, size_max, with_bodies=with_bodies)

    world.store.load = failing  # type: ignore[method-assign]


def test_a_deletion_that_cannot_be_read_to_its_end_deletes_nothing() -> None:
    """The first message was read already when the second could not be: it waits again."""
    world = World()
    world.send(*BODIES)
    world.restart()
    fail_read(world, 2)
    answer = world.delete_waiting(2, world.now + 1)
    world.store.commit()
    assert answer.condition == "amqp:internal-error"
    assert (world.bodies(), world.counts()) == (BODIES, (2, 0, 0, 0))


def test_messages_that_are_withdrawn_in_part_are_given_back() -> None:
    """Forwarding takes a batch whole and in order, or not at all."""
    world = World()
    world.send(*BODIES)
    world.restart()
    fail_read(world, 2)
    with pytest.raises(StoreError, match="the disk is full"):
        world.queue.main.withdraw(2, world.now)
    assert (world.bodies(), world.counts()) == (BODIES, (2, 0, 0, 0))


@pytest.mark.parametrize("fields", [{"ttl_ms": 100}, {"scheduled_ms": 1_000_100}])
def test_due_messages_that_cannot_be_read_are_tried_again_after_a_pause(fields: dict[str, int]) -> None:
    """The store reports the failure; the message is where it was."""
    world = World(dead_letter_on_expiration=True)
    world.send(b"1", **fields)
    world.restart()
    before = world.counts()
    fail_read(world, 1)
    world.pass_ms(100)
    assert world.counts() == before
    assert world.queue.next_due_ms() == world.now + RETRY_PAUSE_MS
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.counts() == ((0, 1, 0, 0) if "ttl_ms" in fields else (1, 0, 0, 0))


def test_a_scheduled_message_whose_payload_is_lost_is_not_recovered() -> None:
    """The message could not be received; the namespace counts and announces such rows."""
    world = World()
    row = IndexRow(9, world.queue.main.number, 1, SCHEDULED, 0, world.now + 100, 10, 77, "")
    assert not world.queue.recover(row)
    assert (world.counts(), world.queue.size_bytes, world.queue.next_due_ms()) == ((0, 0, 0, 0), 0, None)


LIVES: dict[str, Callable[[World], object]] = {
    "send": lambda world: world.offer(b"new"),
    "schedule": lambda world: world.offer(b"new", scheduled_ms=world.now + 60_000),
    "complete": lambda world: world.settle(world.lock(), Outcome.COMPLETE),
    "abandon": lambda world: world.settle(world.lock(), Outcome.ABANDON, patch=b"p"),
    "defer": lambda world: world.settle(world.lock(), Outcome.DEFER),
    "dead-letter": lambda world: world.settle(world.lock(), Outcome.DEAD_LETTER, patch=b"why"),
    "take": lambda world: world.queue.main.take_next(world.now, Answer()),
    "cancel": lambda world: world.cancel(4),
    "delete": lambda world: world.delete_waiting(1, world.now + 1),
    "receive deferred": lambda world: world.receive_deferred(1, lock=False),
}


@pytest.mark.parametrize("operation", LIVES)
@pytest.mark.parametrize("end", ["committed", "failed", "killed"])
def test_memory_and_store_agree_after_every_operation_however_it_ends(operation: str, end: str) -> None:
    """A restart must find the state of the running queue: the same counts, sizes and messages."""
    world = World()
    world.send(b"deferred", b"2", b"33", ttl_ms=50_000)
    world.settled(world.lock(), Outcome.DEFER)
    world.schedule(b"scheduled", at=world.now + 60_000)
    before = world.counts(), world.queue.size_bytes
    LIVES[operation](world)
    if end == "failed":
        fail(world)
    elif end == "committed":
        world.store.commit()
    if end != "killed":
        world.settle_down()
        expected = world.counts(), world.queue.size_bytes
        assert end == "committed" or expected == before
    else:
        expected = before
    world.restart()
    assert (world.counts(), world.queue.size_bytes) == expected
    assert world.queue.size_bytes == world.stored_bytes()
    active = world.counts()[0]
    assert len(world.bodies()) == active


@pytest.mark.parametrize("call", ["complete", "delete", "deferred", "cancel"])
def test_call_that_writes_nothing_does_not_fail_with_its_neighbours(call: str) -> None:
    """A lost lock is lost, whatever happens to the writes of others in the same group."""
    world = World()
    sent, answer = world.offer(b"fails"), Answer()
    queue, now = world.queue, world.now
    match call:
        case "complete":
            queue.complete_many(queue.main, [b"lost"], now, answer)
        case "delete":
            queue.delete_waiting(queue.main, 10, now, now, answer)
        case "deferred":
            queue.receive_deferred(queue.main, [], now, False, answer)
        case "cancel":
            queue.cancel_scheduled([], now, answer)
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert sent.condition == "amqp:internal-error"
    assert answer.value == {"complete": ([b"lost"], None), "delete": 0, "deferred": [], "cancel": None}[call]

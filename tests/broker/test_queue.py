"""Sending, receiving and settling when the store works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.amqp.types import encode_pair
from pairbus.broker.entities import receivable
from pairbus.broker.entities.queue import Draft, Outcome
from pairbus.broker.entities.receivable import DEFERRED_SIZE_MAX, PATCH_SIZE_MAX
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import DEFERRED, DropEntity
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL, PENDING, Answer, World


def test_a_message_is_receivable_and_acknowledged_only_after_its_commit() -> None:
    """Accepted means committed: a message that could still vanish is shown to no client."""
    world = World()
    answer = world.offer(b"1")
    assert (answer.value, world.bodies(), world.peeked(), world.ready) == (PENDING, [], [], [])
    world.store.commit()
    assert answer.value is None
    assert world.ready == [world.queue.main]
    lock = world.lock()
    assert (lock.message.body, lock.message.seq, lock.message.delivery_count) == (b"1", 1, 0)
    assert lock.until_ms == world.now + 60_000


def test_a_batch_is_numbered_in_its_order() -> None:
    """One call is one atomic batch."""
    world = World()
    world.offer(b"1", b"2", b"3")
    world.store.commit()
    assert [world.lock().message.seq for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        ("Active", True, True),
        ("Disabled", False, False),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
    ],
)
def test_the_status_decides_who_may_come_in(status: str, sends: bool, receives: bool) -> None:
    """Links that are already attached are stopped too: nothing more is handed out to them."""
    world = World()
    world.send(b"1")
    world.ready.clear()
    world.queue.update(replace(world.description, status=status), world.now)
    main = world.queue.main
    for allowed, check in ((sends, world.queue.check_send), (receives, world.queue.check_receive)):
        if allowed:
            check()
        else:
            with pytest.raises(Refusal) as refused:
                check()
            assert refused.value.condition == "com.microsoft:entity-disabled"
    assert main.available(world.now) is receives
    assert world.ready == ([main] if receives else [])
    if sends:
        world.send(b"2")
    else:
        with pytest.raises(Refusal, match=f"'orders' is in status {status}"):
            world.offer(b"2")
    world.queue.update(world.description, world.now)
    assert world.bodies() == ([b"1", b"2"] if sends else [b"1"])


def test_a_full_queue_refuses_and_uncommitted_messages_count() -> None:
    """Otherwise a fast sender could exceed any quota within one commit."""
    world = World(max_size_mb=1)
    world.offer(bytes(1 << 19), bytes((1 << 19) - 1))
    assert world.queue.size_bytes == (1 << 20) - 1
    world.offer(b"1")
    for attempt in (lambda: world.offer(b"2"), lambda: world.schedule(b"2", at=world.now + 1)):
        with pytest.raises(Refusal, match="maximum size of 1 MB") as refused:
            attempt()
        assert refused.value.condition == "amqp:resource-limit-exceeded"
    world.store.commit()
    assert len(world.bodies()) == 3


def test_space_comes_back_with_every_way_out() -> None:
    """The size is the sum of the stored messages, in all states and in both boxes."""
    world = World(max_delivery_count=100)
    world.offer(b"12345", b"123", b"1", b"12")
    world.schedule(b"1234567", at=world.now + 50_000, annotations=b"89")
    locks = [world.lock() for _ in range(3)]
    world.settled(locks[0], Outcome.COMPLETE)
    world.settled(locks[1], Outcome.DEAD_LETTER, patch=b"why")
    world.settled(locks[2], Outcome.DEFER, patch=b"p")
    assert world.queue.size_bytes == world.stored_bytes() == 3 + 3 + 1 + 1 + 2 + 9
    world.settled(world.lock(), Outcome.ABANDON, patch=b"xx")
    world.settled(world.lock(world.queue.dead), Outcome.COMPLETE, dead=True)
    assert world.queue.size_bytes == world.stored_bytes() == 1 + 1 + 2 + 2 + 9
    assert world.counts() == (1, 0, 1, 1)


def test_completing_removes_the_message_once_and_for_all() -> None:
    """A second settlement of the same lock must not succeed: it has no message any more."""
    world = World()
    world.send(b"1")
    lock = world.lock()
    first, second = world.settle(lock, Outcome.COMPLETE), world.settle(lock, Outcome.COMPLETE)
    assert (first.value, second.value, world.queue.active_count) == (PENDING, PENDING, 1)
    world.store.commit()
    assert first.value is None
    assert second.condition == "com.microsoft:message-lock-lost"
    assert world.counts() == (0, 0, 0, 0)
    world.restart()
    assert world.bodies() == []


@pytest.mark.parametrize(
    ("outcome", "counts", "delivery_count"), [(Outcome.ABANDON, (1, 0, 0, 0), 1), (Outcome.RELEASE, (1, 0, 0, 0), 0)]
)
def test_abandoning_counts_as_a_delivery_and_releasing_does_not(
    outcome: Outcome, counts: tuple[int, int, int, int], delivery_count: int
) -> None:
    """A client that closes gives back the messages that it never looked at."""
    world = World()
    world.send(b"1")
    world.settled(world.lock(), outcome)
    assert world.counts() == counts
    world.restart()
    assert world.lock().message.delivery_count == delivery_count


def test_changed_properties_are_appended() -> None:
    """The pairs are opaque here: at delivery, later ones win."""
    world = World()
    world.send(b"1")
    world.settled(world.lock(), Outcome.ABANDON, patch=b"a=1 ")
    world.settled(world.lock(), Outcome.ABANDON, patch=b"a=2 ")
    world.restart()
    lock = world.lock()
    assert (lock.message.patch, lock.message.body) == (b"a=1 a=2 ", b"1")


def test_changed_properties_have_a_limit_and_the_lock_outlives_the_refusal() -> None:
    """Abandoning for ever with a property would otherwise grow the message without end."""
    world = World()
    world.send(b"1")
    lock = world.lock()
    answer = world.settle(lock, Outcome.ABANDON, patch=bytes(PATCH_SIZE_MAX + 1))
    world.store.commit()
    assert answer.condition == "com.microsoft:argument-error"
    world.settled(lock, Outcome.COMPLETE)


def test_a_message_delivered_too_often_is_dead_lettered() -> None:
    """The message is dead-lettered when the count after the increment reaches the maximum."""
    world = World(max_delivery_count=2)
    world.send(b"1")
    world.settled(world.lock(), Outcome.ABANDON)
    world.settled(world.lock(), Outcome.ABANDON, patch=b"")
    assert world.counts() == (0, 1, 0, 0)
    assert world.queue.dead in world.ready
    message = world.lock(world.queue.dead).message
    assert message.delivery_count == 2
    assert message.patch.startswith(encode_pair("DeadLetterReason", "MaxDeliveryCountExceeded"))
    assert b"after 2 delivery attempts" in message.patch


def test_the_dead_letter_queue_is_a_queue_without_a_way_further_down() -> None:
    """No dead-lettering out of it, no count of deliveries; everything else works."""
    world = World(max_delivery_count=1, default_ttl_ms=5_000)
    world.send(b"1")
    world.settled(world.lock(), Outcome.DEAD_LETTER, patch=b"reason")
    dead = world.queue.dead
    for _ in range(3):
        lock = world.lock(dead)
        assert (lock.message.delivery_count, lock.message.patch) == (0, b"reason")
        answer = world.settle(lock, Outcome.DEAD_LETTER, dead=True)
        world.store.commit()
        assert answer.condition == "amqp:not-allowed"
        world.settled(lock, Outcome.ABANDON, dead=True)
    world.pass_ms(10_000)
    assert world.counts() == (0, 1, 0, 0)
    lock = world.lock(dead)
    world.settled(lock, Outcome.DEFER, dead=True)
    assert world.queue.dead_count == 1
    world.restart()
    answer = world.receive_deferred(lock.message.seq, dead=True)
    world.store.commit()
    world.settled(answer.value[0], Outcome.COMPLETE, dead=True)
    assert world.counts() == (0, 0, 0, 0)


def test_a_range_is_completed_in_one_write_and_names_the_lost_locks() -> None:
    """One lock that is gone must not stop the others."""
    world = World(lock_duration_ms=10_000)
    world.send(b"1", b"2", b"3")
    old = world.lock()
    world.now += 5_000
    locks = [world.lock(), world.lock()]
    world.now += 5_000
    answer = Answer()
    tokens = [old.token, *(lock.token for lock in locks), b"never a token..."]
    world.queue.complete_many(world.queue.main, tokens, world.now, answer)
    assert len(world.store._writes) == 1
    world.store.commit()
    assert answer.value == ([old.token, b"never a token..."], None)
    world.settle_down()
    assert world.bodies() == [b"1"]


def test_renewing_is_all_or_nothing() -> None:
    """The answer is a list of times for all tokens; there is no half of it."""
    world = World(lock_duration_ms=10_000)
    world.send(b"1", b"2")
    first, second = world.lock(), world.lock()
    until_ms = first.until_ms
    world.now += 1_000
    world.settled(second, Outcome.COMPLETE)
    with pytest.raises(Refusal) as refused:
        world.queue.renew(world.queue.main, [first.token, second.token], world.now)
    assert refused.value.condition == "com.microsoft:message-lock-lost"
    assert first.until_ms == until_ms
    assert world.queue.renew(world.queue.main, [first.token], world.now) == [until_ms + 1_000]


@pytest.mark.parametrize(
    ("count", "younger_ms", "left"),
    [
        (10, 0, [b"3"]),  # what came at the given time stays
        (1, 0, [b"2", b"3"]),
        (10, 1, []),
        (10, -10, [b"1", b"2", b"3"]),
    ],
)
def test_the_oldest_messages_are_deleted_up_to_a_time_and_a_count(
    count: int, younger_ms: int, left: list[bytes]
) -> None:
    """An operator who empties a queue at noon does not mean messages that come after noon."""
    world = World()
    world.send(b"1", b"2")
    world.now += 10
    world.send(b"3")
    answer = world.delete_waiting(count, world.now + younger_ms)
    assert answer.value == "pending"
    world.store.commit()
    assert answer.value == 3 - len(left)
    assert (world.queue.active_count, world.queue.size_bytes) == (len(left), world.stored_bytes())
    assert world.bodies() == left


def test_a_deletion_ends_where_it_would_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages that one request deletes are in memory until its commit; the client asks again for the rest."""
    monkeypatch.setattr(receivable, "DELETED_SIZE_MAX", 5)
    world = World()
    world.send(*[b"four"] * 3)
    answer = world.delete_waiting(10, world.now + 1)
    world.store.commit()
    assert (answer.value, world.bodies()) == (2, [b"four"])


def test_messages_of_a_disabled_queue_are_not_deleted() -> None:
    """Deleting is receiving, and the status forbids that."""
    world = World(status="ReceiveDisabled")
    world.send(b"1")
    answer = world.delete_waiting(10, world.now + 1)
    world.store.commit()
    assert answer.condition == "com.microsoft:entity-disabled"
    assert world.counts() == (1, 0, 0, 0)


def test_deferred_messages_are_received_by_number_only() -> None:
    """The messages come in the order asked for; abandoned, they are deferred again."""
    world = World(max_delivery_count=10)
    world.send(b"1", b"2", b"3")
    for _ in range(3):
        world.settled(world.lock(), Outcome.DEFER)
    world.restart()
    assert (world.bodies(), world.counts()) == ([], (0, 0, 0, 3))
    answer = world.receive_deferred(3, 1)
    world.store.commit()
    locks = answer.value
    assert [lock.message.body for lock in locks] == [b"3", b"1"]
    assert locks[0].message.state == DEFERRED
    world.settled(locks[0], Outcome.ABANDON)
    world.settled(locks[1], Outcome.COMPLETE)
    assert (world.bodies(), world.counts()) == ([], (0, 0, 0, 2))
    answer = world.receive_deferred(3, lock=False)
    world.store.commit()
    assert [(lock.message.delivery_count, lock.until_ms) for lock in answer.value] == [(2, 0)]
    assert world.counts() == (0, 0, 0, 1)


def test_deferred_messages_are_not_received_by_the_gigabyte() -> None:
    """The answer holds all messages in memory. A request for a single one passes, whatever its size."""
    world = World(max_message_size_kb=102_400)
    world.send(b"x" * DEFERRED_SIZE_MAX, b"y")
    for _ in range(2):
        world.settled(world.lock(), Outcome.DEFER)
    both, large = world.receive_deferred(1, 2), world.receive_deferred(1)
    world.store.commit()
    assert isinstance(both.value, Refusal) and "ask for fewer" in both.value.description
    assert [lock.message.seq for lock in large.value] == [1]
    assert world.counts() == (0, 0, 0, 2)


@pytest.mark.parametrize("seqs", [(1, 2), (1, 99)])
def test_receiving_deferred_messages_is_all_or_nothing(seqs: tuple[int, ...]) -> None:
    """A number that is unknown is no deferred message, and neither is that of a waiting message."""
    world = World()
    world.send(b"1", b"2")
    world.settled(world.lock(), Outcome.DEFER)
    answer = world.receive_deferred(*seqs)
    world.store.commit()
    assert answer.condition == "com.microsoft:message-not-found"
    again = world.receive_deferred(1)
    world.store.commit()
    assert len(again.value) == 1
    twice = world.receive_deferred(1)
    world.store.commit()
    assert twice.condition == "com.microsoft:message-not-found"


def test_peek_shows_every_state_and_locks_nothing() -> None:
    """A person looks at a queue without changing it."""
    world = World()
    world.send(b"locked", b"deferred", b"waiting")
    world.settled(world.lock(), Outcome.RELEASE)
    locked = world.lock()
    world.settled(world.lock(), Outcome.DEFER)
    world.schedule(b"scheduled", at=world.now + 1)
    assert world.peeked() == [b"locked", b"deferred", b"waiting", b"scheduled"]
    assert [message.body for message in world.queue.peek(world.queue.main, 2, 2, world.now)] == [
        b"deferred",
        b"waiting",
    ]
    world.settled(locked, Outcome.DEAD_LETTER)
    assert (world.peeked(), world.peeked(dead=True)) == ([b"deferred", b"waiting", b"scheduled"], [b"locked"])
    assert world.bodies() == [b"waiting"]


def test_peek_skips_expired_messages_unless_they_are_locked() -> None:
    """A receiver could not get it either; but a locked message lives until it is unlocked."""
    world = World()
    world.send(b"locked", b"over", b"over", ttl_ms=10)
    world.send(b"live")
    world.lock()
    world.now += 10
    assert [message.body for message in world.queue.peek(world.queue.main, 1, 2, world.now)] == [b"locked", b"live"]


def test_answers_come_in_call_order_and_after_the_call() -> None:
    """Answers on one connection stay in order behind their commits, refusals included."""
    world = World()
    world.send(b"1")
    lock = world.lock()
    order: list[str] = []
    queue, main = world.queue, world.queue.main
    queue.settle(main, b"unknown", Outcome.COMPLETE, world.now, lambda refusal: order.append("lost"))
    queue.send([Draft(b"2")], world.now, lambda refusal: order.append("sent"))
    queue.settle(main, lock.token, Outcome.RELEASE, world.now, lambda refusal: order.append("released"))
    queue.cancel_scheduled([7], world.now, lambda refusal: order.append("not found"))
    queue.receive_deferred(main, [7], world.now, True, lambda refusal: order.append("not deferred"))
    queue.complete_many(main, [], world.now, lambda lost, refusal: order.append("none"))
    assert order == []
    world.store.commit()
    assert order == ["lost", "sent", "released", "not found", "not deferred", "none"]


def test_idleness_counts_from_the_last_use_and_not_while_messages_are_scheduled() -> None:
    """The namespace deletes an idle queue; the queue only knows since when it is idle."""
    world = World(auto_delete_on_idle_ms=300_000)
    start = world.now
    assert world.queue.idle_until_ms == start + 300_000
    for use in (
        lambda: world.send(b"1"),
        lambda: lock_next(world.queue.main, world.now),
        lambda: world.queue.peek(world.queue.main, 1, 1, world.now),
        lambda: world.queue.touch(world.now),
        lambda: world.queue.update(world.description, world.now),
    ):
        world.now += 1_000
        use()
        assert world.queue.idle_until_ms == world.now + 300_000
    world.schedule(b"2", at=world.now + 500_000)
    assert world.queue.idle_until_ms is None
    world.pass_ms(500_000)
    assert world.queue.idle_until_ms == world.now + 300_000
    assert World().queue.idle_until_ms is None


def test_a_closed_queue_writes_nothing_but_answers_what_is_under_way() -> None:
    """A row that is written after the drop would stay in the store for ever."""
    world = World(requires_duplicate_detection=True, lock_duration_ms=5_000)
    world.send(b"1", b"2", b"3")
    seqs = world.schedule(b"4", at=world.now + 1)
    locks = [world.lock(), world.lock()]
    under_way = world.settle(locks[0], Outcome.ABANDON), world.offer(b"5", message_id="a")
    parked = world.offer(b"6", message_id="a")
    world.queue.close()
    world.store.write(DropEntity(1))
    late = world.settle(locks[1], Outcome.COMPLETE), world.cancel(*seqs), world.receive_deferred(1)
    completed = Answer()
    world.queue.complete_many(world.queue.main, [locks[1].token], world.now, completed)
    world.ready.clear()
    world.store.commit()
    assert [answer.value for answer in under_way] == [None, None]
    assert parked.condition == "amqp:not-found"
    assert [answer.condition.partition(":")[2] for answer in late] == [
        "message-lock-lost",
        "message-not-found",
        "not-found",
    ]
    assert completed.value == ([locks[1].token], None)
    with pytest.raises(Refusal, match="The messaging entity 'orders' could not be found"):
        world.offer(b"7")
    assert (world.bodies(), world.ready) == ([], [])
    world.queue.run_due(world.now + 100_000)
    assert not world.store._writes


def test_a_queue_whose_deletion_failed_is_as_it_was() -> None:
    """The caller was told that the queue is still there."""
    world = World()
    world.send(b"1", b"2")
    lock = world.lock()
    world.queue.close()
    world.store.write(DropEntity(1))
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    world.queue.reopen(world.now)
    world.settled(lock, Outcome.COMPLETE)
    world.send(b"3")
    assert world.bodies() == [b"2", b"3"]


def test_what_it_prints_tells_its_state() -> None:
    """The texts are for a person who reads a log at night."""
    world = World()
    world.send(b"12")
    lock = world.lock()
    assert repr(world.queue) == "<Queue orders Active active=1 dead=0 scheduled=0 deferred=0 2 B>"
    assert repr(world.queue.main) == "<Box 4 active=1 locked=1 deferred=0>"
    assert repr(lock) == f"<Lock {lock.token.hex()} of 1 until 1060000>"

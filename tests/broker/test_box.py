"""The order, the limits and the locks of a box."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pairbus.broker.boxes.due import SLACK
from pairbus.broker.boxes.line import CHUNK_MAX, READY_BYTES_MAX, READY_MAX, Line
from pairbus.broker.boxes.locks import Locks
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.queue import Draft, Outcome, Queue
from pairbus.broker.store import UNLIMITED, Done, IndexRow, Loaded, Write, box_of
from pairbus.broker.store.memory import MemoryStore
from pairbus.errors import StoreError
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL, Answer, World


def line_of(world: World) -> Line:
    line = world.queue.main._line
    assert isinstance(line, Line)
    return line


def locks_of(world: World) -> Locks:
    locks = world.queue.main.locks
    assert isinstance(locks, Locks)
    return locks


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_messages_are_locked_in_order_also_beyond_what_stays_loaded() -> None:
    """The first ones never left memory, the others are read in chunks: the receiver must not notice."""
    world = World()
    world.offer(*numbered(READY_MAX + 3 * CHUNK_MAX))
    world.store.commit()
    world.send(b"last")
    assert world.bodies() == [*numbered(READY_MAX + 3 * CHUNK_MAX), b"last"]


def test_few_bytes_stay_loaded() -> None:
    """Payloads belong in the store: a box may cache a megabyte, and no more than one message beyond it."""
    world = World()
    world.offer(*[bytes(100_000)] * 30)
    world.store.commit()
    assert sum(message.size for message in line_of(world)._ready) < READY_BYTES_MAX + 100_000
    world.lock()
    assert len(world.bodies()) == 29


def test_message_received_at_once_is_never_read_from_the_store() -> None:
    """The limit is on the messages that are loaded now, not on all that ever were."""
    world = World()
    for _ in range(3):
        world.offer(*[bytes(100_000)] * 5)
        world.store.commit()
        locks = [world.lock() for _ in range(5)]
        for lock in locks:
            world.settled(lock, Outcome.COMPLETE)
    world.send(b"1")
    world.store._rows.clear()
    assert world.lock().message.body == b"1"


def test_large_messages_are_read_in_small_chunks() -> None:
    """256 messages of 256 KB each would be 64 MB at once."""
    world = World()
    world.offer(*[bytes(250_000)] * 12)
    world.store.commit()
    world.restart()
    world.lock()
    assert len(line_of(world)._ready) <= 4


def test_returned_messages_are_handed_out_in_their_old_order() -> None:
    """Order is by sequence number, however a message became free again."""
    world = World()
    world.send(*numbered(6))
    locks = [world.lock() for _ in range(4)]
    world.settled(locks[2], Outcome.ABANDON)
    world.settled(locks[0], Outcome.RELEASE)
    world.settled(locks[3], Outcome.ABANDON)
    assert world.bodies() == [b"0", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 5, 8))))
def test_the_order_of_return_does_not_matter(order: tuple[int, ...]) -> None:
    """Messages that came back are partly loaded and partly numbers; together they are one line."""
    world = World()
    world.send(*numbered(9))
    locks = [world.lock() for _ in range(9)]
    for which in order:
        world.settled(locks[which], Outcome.RELEASE)
    assert world.bodies() == [b"1", b"2", b"5", b"8"]


@pytest.mark.parametrize("restarted", [False, True])
def test_dead_letters_are_handed_out_by_number_not_by_time_of_death(restarted: bool) -> None:
    """A message keeps its number, and the dead-letter queue is a queue like any other."""
    world = World()
    world.send(*numbered(5))
    locks = [world.lock() for _ in range(5)]
    world.settled(locks[3], Outcome.DEAD_LETTER)
    world.settled(locks[1], Outcome.DEAD_LETTER)
    others = [locks[4], locks[0]]
    if restarted:
        world.restart()
        others = [world.lock() for _ in range(3)][::-2]
    for lock in others:
        world.settled(lock, Outcome.DEAD_LETTER)
    assert world.bodies(world.queue.dead) == [b"0", b"1", b"3", b"4"]


def test_a_message_that_cannot_be_read_still_waits() -> None:
    """A read that fails once must not lose the message."""

    class Unreadable(MemoryStore):
        broken = False

        def load(
            self, box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True
        ) -> Loaded:
            if self.broken:
                raise StoreError("unreadable")
            return super().load(box, numbers, size_max, with_bodies=with_bodies)

    world = World()
    world.send(*numbered(3))
    world.store.__class__ = Unreadable
    world.restart()
    world.store.broken = True  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="unreadable"):
        lock_next(world.queue.main, world.now)
    world.store.broken = False  # type: ignore[attr-defined]
    assert world.bodies() == numbered(3)


def test_a_damaged_message_is_left_out_and_not_counted() -> None:
    """The store reports it; the queue goes on with the intact messages."""
    world = World()
    world.send(*numbered(3))
    world.restart()
    del world.store._rows[2]
    assert world.bodies() == [b"0", b"2"]
    assert world.queue.active_count == 2


def test_availability_is_told_without_reading() -> None:
    """The dispatcher asks for availability at every flow frame, so the answer must not cost a read of the store."""
    world = World()
    main = world.queue.main
    assert not main.available(world.now)
    world.send(b"1", ttl_ms=10)
    assert main.available(world.now)
    assert not main.available(world.now + 10)
    world.lock()
    assert not main.available(world.now)
    world.restart()
    world.store._rows.clear()
    assert world.queue.main.available(world.now)


def test_tokens_are_sixteen_bytes_and_never_repeat() -> None:
    """The token is all that protects a lock."""
    world = World()
    world.offer(*numbered(1000))
    world.store.commit()
    tokens = [world.lock().token for _ in range(1000)]
    assert len(set(tokens)) == 1000
    assert {len(token) for token in tokens} == {16}


def test_locks_of_different_durations_end_each_at_its_own_time() -> None:
    """A shortened lock duration holds for new locks only, which then end before older ones."""
    world = World(lock_duration_ms=60_000)
    world.send(*numbered(3))
    world.lock()
    world.queue.update(replace(world.description, lock_duration_ms=5_000), world.now)
    world.lock()
    assert world.queue.next_due_ms() == world.now + 5_000
    world.pass_ms(5_000)
    assert world.bodies() == [b"1", b"2"]
    world.pass_ms(4_999)
    assert world.bodies() == []
    world.pass_ms(1)
    assert world.bodies() == [b"1", b"2"]
    world.pass_ms(50_000)
    assert world.bodies() == [b"0", b"1", b"2"]
    assert locks_of(world)._mixed_until_ms == 0


def test_a_look_before_the_shortest_lock_ends_frees_nothing() -> None:
    """Due work of another kind wakes the queue while locks of different durations run."""
    world = World(lock_duration_ms=60_000)
    world.send(*numbered(2))
    locks = [world.lock()]
    world.queue.update(replace(world.description, lock_duration_ms=5_000), world.now)
    locks.append(world.lock())
    world.queue.run_due(world.now + 4_999)
    assert list(world.queue.main.locks) == locks
    assert world.queue.next_due_ms() == world.now + 5_000


def test_shorter_lock_is_next_when_longer_ones_are_settled() -> None:
    """The ends of the longer locks are forgotten: else the queue would look at all its locks for no reason."""
    world = World(lock_duration_ms=60_000)
    world.send(*numbered(2))
    world.settled(world.lock(), Outcome.COMPLETE)
    world.queue.update(replace(world.description, lock_duration_ms=5_000), world.now)
    world.lock()
    assert world.queue.next_due_ms() == world.now + 5_000
    assert locks_of(world)._mixed_until_ms == 0
    world.pass_ms(5_000)
    assert world.lock().message.delivery_count == 1


def test_a_renewed_lock_moves_behind_the_others() -> None:
    """Otherwise the first lock would hide those that end behind it."""
    world = World(lock_duration_ms=10_000)
    world.send(*numbered(2))
    first, second = world.lock(), world.lock()
    world.now += 6_000
    assert world.queue.renew(world.queue.main, [first.token], world.now) == [world.now + 10_000]
    assert first.until_ms == world.now + 10_000
    world.pass_ms(4_000)
    assert list(world.queue.main.locks) == [first]
    assert world.queue.main.locks.held(second.token, world.now) is None


def test_receive_and_delete_hands_out_after_the_commit() -> None:
    """Delivery is at most once: a crash between the two loses the message, and must never deliver it twice."""
    world = World()
    world.send(b"1")
    answer = Answer()
    assert world.queue.main.take_next(world.now, answer)
    assert answer.value == "pending"
    assert not world.queue.main.take_next(world.now, Answer())
    world.store.commit()
    assert answer.value.body == b"1"
    assert world.counts() == (0, 0, 0, 0)
    assert world.queue.size_bytes == 0


def test_a_message_whose_deletion_failed_waits_again() -> None:
    """The message was not handed out, so the queue still owns it."""
    world = World()
    world.send(b"1")
    answer = Answer()
    world.queue.main.take_next(world.now, answer)
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert answer.value is None
    assert world.bodies() == [b"1"]


class ForgetfulStore(MemoryStore):
    """Keeps nothing, so that only the queue's own memory is measured."""

    rows = 0
    expires_ms = 0

    def write(self, op: Write) -> None:
        pass

    def after_commit(self, done: Done) -> None:
        done(None)

    def index(self) -> Iterator[IndexRow]:
        expires_ms = self.expires_ms
        for seq in range(1, self.rows + 1):
            yield IndexRow(seq + 1000, box_of(1), seq, 0, expires_ms and expires_ms + seq, 0, 1024, 0, "")


@pytest.mark.parametrize("ttl_ms", [0, 3_600_000])
@pytest.mark.parametrize("recovered", [False, True])
def test_a_waiting_message_costs_less_than_200_bytes(ttl_ms: int, recovered: bool) -> None:
    """A million of them wait in a backlog queue; 200 MB is what they may take, with a time to live as well."""
    count = 20_000
    store = ForgetfulStore()
    store.rows, store.expires_ms = count, ttl_ms
    description = QueueDescription("q", max_size_mb=5120)
    parts = NamespaceParts(store, Payloads(), MemoryBudget(), lambda queue, box: None)
    queue = Queue(1, description, parts, now_ms=0)
    answers: list[object] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        if recovered:
            for row in store.index():
                queue.recover(row)
        else:
            for n in range(count):
                queue.send([Draft(bytes(200), ttl_ms=ttl_ms + n if ttl_ms else 0)], 0, answers.append)
            answers.clear()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert queue.active_count == count
    assert used / count < 200


def test_received_messages_leave_no_trace_of_their_time_to_live() -> None:
    """A queue that passes 30 000 messages a second with a day to live would otherwise fill the memory in an hour."""
    world = World()
    for _ in range(20):
        world.offer(*numbered(500), ttl_ms=86_400_000)
        world.store.commit()
        locks = [world.lock() for _ in range(500)]
        answer = Answer()
        world.queue.complete_many(world.queue.main, [lock.token for lock in locks], world.now, answer)
        world.store.commit()
        assert answer.value == ([], None)
    assert len(line_of(world)._expiry._heap) <= SLACK + 600


def test_a_message_that_is_released_for_ever_leaves_no_trace_either() -> None:
    """Each release adds another entry of the same message to the order of expiry."""
    world = World()
    world.send(b"1", ttl_ms=86_400_000)
    for _ in range(3 * SLACK):
        world.settled(world.lock(), Outcome.RELEASE)
    assert len(line_of(world)._expiry._heap) <= SLACK + 2
    world.pass_ms(86_400_000)
    assert world.counts() == (0, 0, 0, 0)


def test_expired_messages_do_not_pile_up_in_the_index_when_nobody_receives() -> None:
    """Behind one message that lives for ever, others come and expire for years."""
    world = World()
    world.send(b"forever")
    for _ in range(8):
        world.offer(*numbered(1000), ttl_ms=1_000)
        world.store.commit()
        world.pass_ms(1_000)
    world.restart()
    for _ in range(8):
        world.offer(*numbered(1000), ttl_ms=1_000)
        world.store.commit()
        world.pass_ms(1_000)
    line = line_of(world)
    assert len(line._waiting) + len(line._gone) + len(line._returned) <= 2 * SLACK + 10
    assert world.bodies() == [b"forever"]


def test_a_peek_finds_its_place_by_halving() -> None:
    """A client that pages through a long queue asks by sequence number, and the box knows row numbers only."""
    world = World()
    world.offer(*numbered(3000))
    world.store.commit()
    for _ in range(700):
        world.lock()
    world.restart()
    asked: list[int] = []
    seq_of = world.store.seq_of
    world.store.seq_of = lambda box, n: asked.append(n) or seq_of(box, n)  # type: ignore[func-returns-value,method-assign]
    for from_seq, expected in ((1, 1), (1500, 1500), (2999, 2999), (3001, None)):
        asked.clear()
        found = [message.seq for message in world.queue.peek(world.queue.main, from_seq, 2, world.now)]
        assert found[:1] == ([] if expected is None else [expected])
        assert len(asked) <= 13


@pytest.mark.parametrize(
    "expired", [{0}, {9}, {3, 4, 5}, {0, 9}, {1, 3, 5, 7, 9}, {5, 6, 7, 8, 9}, set(range(9)), set(range(10))]
)
def test_a_peek_finds_its_place_among_expired_messages(expired: set[int]) -> None:
    """Rows of expired messages are deleted, so that the store cannot be asked for their sequence numbers."""
    world = World()
    for n in range(10):
        world.send(b"%d" % n, ttl_ms=100 if n in expired else 0)
    world.restart()
    world.pass_ms(100)
    for from_seq in range(1, 12):
        found = [message.body for message in world.queue.peek(world.queue.main, from_seq, 10, world.now)]
        assert found == [b"%d" % n for n in range(from_seq - 1, 10) if n not in expired]
    assert world.bodies() == [b"%d" % n for n in range(10) if n not in expired]


def test_box_of_transfer_dead_letters_is_made_on_request() -> None:
    """A broker without transactions never fills the box; a receiver can attach to it all the same."""
    world = World()
    boxes = list(world.queue.boxes)
    transfer = world.queue.transfer
    assert world.queue.transfer is transfer
    assert list(world.queue.boxes) == [*boxes, transfer] and len(boxes) == 2
    assert (transfer.receivable, world.bodies(transfer), world.queue.transfer_dead_count) == (True, [], 0)
    assert transfer.locks.duration_ms == world.description.lock_duration_ms
    world.queue.update(replace(world.description, status="Disabled"), world.now)
    assert not transfer.receivable

"""Sessions of a queue on a clock that is moved by hand: holders, the order of messages, and session state."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from pairbus.broker.boxes.box import Lock
from pairbus.broker.boxes.due import SLACK
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.boxes.line import CHUNK_MAX, Surroundings
from pairbus.broker.boxes.row_numbers import Numbers
from pairbus.broker.boxes.sessions import Sessions
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.entities.session_service import STATE_SIZE_MAX, SessionService, state_size
from pairbus.broker.refusal import Refusal
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL, Answer, World

MINUTE_MS = 60_000


class Receiver:
    """A holder that remembers whether it lost its session."""

    def __init__(self) -> None:
        self.has_lost = False

    def session_lost(self) -> None:
        self.has_lost = True


class SessionWorld(World):
    def __init__(self, **settings: Any) -> None:
        super().__init__(requires_session=True, **settings)

    @property
    def service(self) -> SessionService:
        assert self.queue.sessions is not None
        return self.queue.sessions

    def put(self, session_id: str, *bodies: bytes, **fields: Any) -> None:
        self.send(*bodies, session_id=session_id, **fields)

    def accept(self, session_id: str | None = None, holder: Receiver | None = None) -> Hold:
        hold = self.service.accept(session_id, holder or Receiver(), self.now)
        assert hold is not None, "no session is available"
        return hold

    def none_available(self) -> bool:
        return self.service.accept(None, Receiver(), self.now) is None

    def next(self, hold: Hold) -> Lock:
        lock = lock_next(self.queue.main, self.now, hold.session)
        assert lock is not None, "nothing to lock"
        return lock

    def all_of(self, hold: Hold) -> list[bytes]:
        found = []
        while (lock := lock_next(self.queue.main, self.now, hold.session)) is not None:
            found.append(lock.message.body)
        return found

    def set_state(self, hold: Hold, state: bytes | None) -> Answer:
        answer = Answer()
        self.service.set_state(hold, state, self.now, answer)
        return answer

    def restart(self) -> None:
        super().restart()
        for row in self.store.session_states():
            self.service.recover_state(row)


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld(lock_duration_ms=MINUTE_MS, max_delivery_count=3)


def test_a_receiver_gets_messages_of_its_session_only_in_order(world: SessionWorld) -> None:
    """Order within a session is the purpose of sessions."""
    for n in range(6):
        world.put("ab"[n % 2], b"%d" % n)
    assert world.all_of(world.accept("b")) == [b"1", b"3", b"5"]
    assert world.all_of(world.accept("a")) == [b"0", b"2", b"4"]


def test_the_next_session_is_that_of_the_oldest_message(world: SessionWorld) -> None:
    """No session waits for ever while messages of others come in."""
    for name in ("c", "a", "b"):
        world.put(name, b"x")
    assert [world.accept().session.id for _ in range(3)] == ["c", "a", "b"]
    assert world.none_available()


def test_a_held_session_cannot_be_held_by_another(world: SessionWorld) -> None:
    """A session has one receiver at a time: otherwise there is no order."""
    world.put("a", b"x")
    world.accept("a")
    with pytest.raises(Refusal, match="session-cannot-be-locked"):
        world.accept("a")
    assert world.none_available()


def test_a_session_without_messages_can_be_held_by_name(world: SessionWorld) -> None:
    """A receiver may be there first, and its messages come to it."""
    hold = world.accept("later")
    world.put("later", b"x")
    assert world.all_of(hold) == [b"x"]


def test_a_released_session_gives_its_messages_back_uncounted(world: SessionWorld) -> None:
    """Closing a receiver is no delivery, and the order stays."""
    world.put("a", b"1", b"2", b"3")
    hold = world.accept("a")
    world.next(hold), world.next(hold)
    world.service.release(hold)
    again = world.accept()
    locks = [world.next(again) for _ in range(3)]
    assert [(lock.message.body, lock.message.delivery_count) for lock in locks] == [(b"1", 0), (b"2", 0), (b"3", 0)]


def test_a_lost_lock_counts_as_a_delivery_and_tells_the_receiver(world: SessionWorld) -> None:
    """The message locks live and end with the session's."""
    world.put("a", b"1", b"2")
    receiver = Receiver()
    hold = world.accept("a", receiver)
    lock = world.next(hold)
    world.pass_ms(MINUTE_MS)
    assert receiver.has_lost
    assert world.settle(lock, Outcome.COMPLETE).value == "pending"
    world.store.commit()
    again = world.accept()
    assert [world.next(again).message.delivery_count for _ in range(2)] == [1, 0]


def test_nobody_gets_a_session_while_its_messages_are_on_their_way_back(world: SessionWorld) -> None:
    """The next holder must get the first message first, also when its count is still being written."""
    world.put("a", b"1", b"2")
    world.next(world.accept("a"))
    world.now += MINUTE_MS
    world.queue.run_due(world.now)
    assert world.none_available()
    assert world.service.accept("a", Receiver(), world.now) is None
    world.store.commit()
    assert world.all_of(world.accept()) == [b"1", b"2"]


def test_renewal_moves_the_end_of_session_and_messages(world: SessionWorld) -> None:
    """A message that was received before the renewal can be settled after the old end."""
    world.put("a", b"1")
    hold = world.accept("a")
    lock = world.next(hold)
    world.pass_ms(MINUTE_MS - 1)
    assert world.service.renew(hold, world.now) == world.now + MINUTE_MS
    world.pass_ms(MINUTE_MS - 1)
    world.settled(lock, Outcome.COMPLETE)
    assert world.counts() == (0, 0, 0, 0)


def test_a_settlement_that_fails_after_the_release_loses_nothing(world: SessionWorld) -> None:
    """The receiver is gone when the store says no: the message waits again."""
    world.put("a", b"1")
    hold = world.accept("a")
    answer = world.settle(world.next(hold), Outcome.COMPLETE)
    world.service.release(hold)
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert answer.condition == "amqp:internal-error"
    world.settle_down()
    assert world.all_of(world.accept()) == [b"1"]


def _complete(world: SessionWorld, hold: Hold) -> None:
    world.settle(world.next(hold), Outcome.COMPLETE)


def _complete_many(world: SessionWorld, hold: Hold) -> None:
    world.queue.complete_many(world.queue.main, [world.next(hold).token], world.now, Answer())


def _dead_letter(world: SessionWorld, hold: Hold) -> None:
    world.settle(world.next(hold), Outcome.DEAD_LETTER)


def _take(world: SessionWorld, hold: Hold) -> None:
    world.queue.main.take_next(world.now, Answer(), hold.session)


def _delete_waiting(world: SessionWorld, hold: Hold) -> None:
    world.queue.delete_waiting(world.queue.main, 1, world.now + 1, world.now, Answer(), session=hold.session)


def _take_deferred(world: SessionWorld, hold: Hold) -> None:
    lock = world.next(hold)
    world.settled(lock, Outcome.DEFER)
    world.queue.receive_deferred(world.queue.main, [lock.message.seq], world.now, False, Answer())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("end", [_complete, _complete_many, _dead_letter, _take, _delete_waiting, _take_deferred])
def test_session_freed_by_a_commit_is_announced(
    world: SessionWorld, end: Callable[[SessionWorld, Hold], None], fails: bool
) -> None:
    """A receiver whose connection breaks between a settlement and its commit leaves the session to the commit: who
    waits for a session is told then, and not at the time-out."""
    world.put("a", b"1", b"2")
    hold = world.accept("a")
    end(world, hold)
    world.service.release(hold)
    assert world.none_available()
    world.ready.clear()
    if fails:
        world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert world.queue.main in world.ready
    world.settle_down()
    assert world.all_of(world.accept())[-1] == b"2"


def test_abandoned_too_often_a_message_is_dead_and_read_without_a_session(world: SessionWorld) -> None:
    """The dead-letter queue of an entity with sessions has none."""
    world.put("a", b"poison", b"good")
    hold = world.accept("a")
    for _ in range(3):
        world.settled(world.next(hold), Outcome.ABANDON)
    assert world.next(hold).message.body == b"good"
    dead = world.lock(world.queue.dead)
    assert (dead.message.body, dead.message.session_id) == (b"poison", "a")


def test_deferred_messages_keep_their_session(world: SessionWorld) -> None:
    """Deferred messages are received by number, under the lock of their session."""
    world.put("a", b"1", b"2")
    hold = world.accept("a")
    lock = world.next(hold)
    world.settled(lock, Outcome.DEFER)
    world.restart()
    hold = world.accept("a")
    assert list(hold.session.deferred or {}) == [lock.message.seq]
    answer = world.receive_deferred(lock.message.seq)
    world.store.commit()
    [again] = answer.value
    assert again.until_ms == hold.until_ms
    world.settled(again, Outcome.COMPLETE)
    assert world.all_of(hold) == [b"2"]


def test_scheduled_messages_make_a_session_available_when_they_are_due(world: SessionWorld) -> None:
    """Until then no receiver is given the session."""
    world.schedule(b"1", at=world.now + 5_000, session_id="a")
    assert world.none_available()
    assert [m.body for m in world.queue.peek(world.queue.main, 1, 10, world.now, session_id="a")] == [b"1"]
    assert world.queue.peek(world.queue.main, 1, 10, world.now, session_id="b") == []
    world.pass_ms(5_000)
    assert world.all_of(world.accept()) == [b"1"]


def test_expired_messages_make_no_session_available(world: SessionWorld) -> None:
    """A session of which everything has expired would keep its receiver waiting."""
    world.put("a", b"1", b"2", ttl_ms=1_000)
    world.put("b", b"3")
    world.now += 1_000
    assert world.accept().session.id == "b"
    world.settle_down()
    assert world.none_available()
    assert world.counts() == (0, 0, 0, 0) or world.queue.active_count == 1


def test_received_and_deleted_messages_are_gone(world: SessionWorld) -> None:
    world.put("a", b"1", b"2")
    hold, answer = world.accept("a"), Answer()
    assert world.queue.main.take_next(world.now, answer, hold.session)
    world.store.commit()
    assert answer.value.body == b"1"
    world.restart()
    assert world.all_of(world.accept()) == [b"2"]


def test_many_messages_of_one_session_come_in_order_from_the_store(world: SessionWorld) -> None:
    """Messages are read in chunks; a message that is abandoned meanwhile comes first again."""
    count = 3 * CHUNK_MAX
    world.offer(*[b"%d" % n for n in range(count)], session_id="a")
    world.store.commit()
    world.restart()
    hold = world.accept("a")
    first = world.next(hold)
    world.settled(first, Outcome.ABANDON)
    assert world.all_of(hold) == [b"%d" % n for n in range(count)]


def test_peek_by_session_sees_every_state(world: SessionWorld) -> None:
    """Locked, waiting and deferred ones, of this session only, from a number on."""
    world.put("a", b"1", b"2", b"3")
    world.put("b", b"other")
    hold = world.accept("a")
    world.settled(world.next(hold), Outcome.DEFER)
    world.next(hold)
    main, now = world.queue.main, world.now
    assert [m.body for m in world.queue.peek(main, 1, 10, now, session_id="a")] == [b"1", b"2", b"3"]
    assert [m.body for m in world.queue.peek(main, 2, 1, now, session_id="a")] == [b"2"]
    assert world.peeked() == [b"1", b"2", b"3", b"other"]


def test_state_is_kept_and_survives_a_restart(world: SessionWorld) -> None:
    """An acknowledged state is durable, also of a session without messages."""
    hold = world.accept("a")
    assert world.service.state(hold) is None
    for state in (b"one", b"two"):
        answer = world.set_state(hold, state)
        world.store.commit()
        assert answer.value is None
    world.restart()
    hold = world.accept("a")
    assert world.service.state(hold) == b"two"
    assert world.queue.size_bytes == state_size("a", 3)
    world.set_state(hold, None)
    world.store.commit()
    assert world.service.state(hold) is None
    world.service.release(hold)
    world.restart()
    assert world.service.page(None, 0, 10) == []


def test_a_state_that_could_not_be_written_is_not_there(world: SessionWorld) -> None:
    """The old one stays."""
    hold = world.accept("a")
    world.set_state(hold, b"old")
    world.store.commit()
    answer = world.set_state(hold, b"new")
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert answer.condition == "amqp:internal-error"
    assert world.service.state(hold) == b"old"
    with pytest.raises(Refusal, match="at most"):
        world.set_state(hold, bytes(STATE_SIZE_MAX + 1))


def test_states_of_sessions_use_up_the_quota_and_give_it_back() -> None:
    """The right to listen could fill the disk: with large states, with many small ones, and with uncommitted ones."""
    world = SessionWorld(lock_duration_ms=MINUTE_MS, max_size_mb=1)
    holds = [world.accept(f"s{number}") for number in range(6)]
    empty = world.queue.size_bytes
    for hold in holds[:4]:
        world.set_state(hold, bytes(STATE_SIZE_MAX))
    with pytest.raises(Refusal, match="maximum size of 1 MB") as refused:
        world.set_state(holds[4], b"one more, before the others are committed")
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert world.queue.size_bytes == empty
    for hold in holds[:4]:
        world.set_state(hold, bytes(STATE_SIZE_MAX))
        world.store.commit()
    world.set_state(holds[0], b"smaller")
    world.set_state(holds[1], None)
    world.store.commit()
    size = world.queue.size_bytes
    world.restart()
    assert world.queue.size_bytes == size
    assert (STATE_SIZE_MAX * 2) < size < (STATE_SIZE_MAX * 2 + 1000)
    for number in range(3):
        world.set_state(world.accept(f"{number}"), b"")
    world.store.commit()
    assert world.queue.size_bytes > size + 3 * 50


def test_sessions_are_listed_in_pages_and_by_time_of_their_state(world: SessionWorld) -> None:
    """The list has sessions with messages or a state; or those whose state was set since a given time."""
    for name in ("c", "a", "b"):
        world.put(name, b"x")
    world.set_state(world.accept("only state"), b"1")
    world.store.commit()
    assert world.service.page(None, 0, 3) == ["a", "b", "c"]
    assert world.service.page(None, 3, 3) == ["only state"]
    assert world.service.page(world.now, 0, 10) == ["only state"]
    assert world.service.page(world.now + 1, 0, 10) == []


def test_sessions_of_which_nothing_is_left_are_forgotten(world: SessionWorld) -> None:
    """A queue that sees a new session id with each message must not grow."""
    for n in range(50):
        world.put(f"session {n}", b"x")
        hold = world.accept()
        world.settled(world.next(hold), Outcome.COMPLETE)
        world.service.release(hold)
    assert world.queue.main.sessions is not None
    assert len(world.queue.main.sessions) == 0


def test_numbers_stay_sorted_however_they_come_and_go() -> None:
    numbers = Numbers()
    for n in (5, 7, 9, 6):
        numbers.add(n)
    assert numbers.take(2) == [5, 6]
    numbers.add(5)
    numbers.add(8)
    assert list(numbers) == [5, 7, 8, 9]
    assert numbers.discard(7) and not numbers.discard(7)
    assert (5 in numbers, 7 in numbers, numbers.since(6, 9)) == (True, False, [8, 9])


def index() -> Sessions:
    around = Surroundings(
        lambda numbers: ([], []),
        lambda numbers: ([], []),
        lambda n: n,
        lambda: CHUNK_MAX,
        lambda messages, now_ms: None,
        MemoryBudget().ready,
    )
    return Sessions(around, lambda: None)


def test_the_next_of_many_sessions_is_found_without_a_scan() -> None:
    """100 000 sessions with messages: 5 ms are the limit on the wire, here it is a look at a heap."""
    sessions = index()
    for n in range(200_000):
        sessions.recover(f"session {n % 100_000}", n + 1, 0)
    started = time.process_time()
    for _ in range(1000):
        session = sessions.next_available()
        assert session is not None
        session.line.take(1)
        sessions.offer(session)
    assert (time.process_time() - started) / 1000 < 0.0005


def test_a_waiting_message_of_a_session_costs_few_bytes() -> None:
    """Eight bytes each, and room for growth; a session with one message about half a kilobyte."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        few = index()
        for n in range(100_000):
            few.recover("one", n + 1, 0)
        one_session = tracemalloc.get_traced_memory()[0] - before
        many = index()
        before = tracemalloc.get_traced_memory()[0]
        for n in range(20_000):
            many.recover(f"session {n}", n + 1, 0)
        many_sessions = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert one_session / 100_000 < 10
    assert many_sessions / 20_000 < 800


def test_pages_of_sessions_are_sorted_once(world: SessionWorld) -> None:
    """Every page of a list sorted all sessions again; sessions come and go between the pages."""
    for number in range(40):
        world.put(f"s{number:02}", b"x")
    names = [f"s{number:02}" for number in range(40)]
    pages = [world.service.page(None, skip, 10) for skip in range(0, 50, 10)]
    assert [name for page in pages for name in page] == names
    with patch("pairbus.broker.boxes.sessions.sorted", side_effect=AssertionError("sorted"), create=True):
        assert world.service.page(None, 5, 3) == names[5:8]
    hold = world.accept("s07")
    lock = world.next(hold)
    world.queue.complete_many(world.queue.main, [lock.token], world.now, lambda *_: None)
    world.store.commit()
    world.service.release(hold)
    world.put("s40", b"x")
    world.put("s005", b"x")
    assert world.service.page(None, 0, 100) == sorted({*names, "s40", "s005"} - {"s07"})
    world.put("s07", b"again")
    assert world.service.page(None, 0, 100) == sorted({*names, "s40", "s005"})


def test_ids_of_sessions_are_not_kept_for_a_list_that_nobody_wants(world: SessionWorld) -> None:
    """After one list, a million sessions that come and go must leave nothing behind."""
    assert world.service.page(None, 0, 10) == []
    for number in range(3 * SLACK):
        world.service.release(world.accept(f"{number}"))
    assert len(world.service._sessions) == 0
    assert len(world.service._sessions._new_ids or ()) <= SLACK + 1

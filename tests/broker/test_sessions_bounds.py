"""Sessions of a queue when memory is short, messages expire, the store fails or rows are damaged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pairbus.broker.boxes import sessions as sessions_module
from pairbus.broker.boxes.due import SLACK
from pairbus.broker.boxes.sessions import Sessions
from pairbus.broker.entities.draft import Draft, check_session_ids
from pairbus.broker.entities.entity import RETRY_PAUSE_MS
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import UNLIMITED, Loaded
from pairbus.errors import StoreError
from tests.broker.queue_world import DISK_FULL, Answer
from tests.broker.test_sessions import MINUTE_MS, Receiver, SessionWorld


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld(lock_duration_ms=MINUTE_MS, max_delivery_count=3)


def sessions_of(world: SessionWorld) -> Sessions:
    assert world.queue.main.sessions is not None
    return world.queue.main.sessions


def unreadable(world: SessionWorld) -> None:
    """Let the next read of the store fail."""
    load = world.store.load

    def fails(box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        world.store.load = load  # type: ignore[method-assign]
        raise StoreError("unreadable")

    world.store.load = fails  # type: ignore[method-assign]


def test_message_without_session_id_is_refused_and_a_ping_is_not() -> None:
    """A message without a session id could never be received; a ping does not enter the queue in any case."""
    check_session_ids([Draft(b"1", session_id=""), Draft(b"2", is_ping=True)], "orders")
    with pytest.raises(Refusal, match="SessionId was not set on a message, and it cannot be sent to 'orders'"):
        check_session_ids([Draft(b"1", session_id="a"), Draft(b"2")], "orders")


@pytest.mark.parametrize("room", [2, 4, 100])
def test_order_does_not_depend_on_how_many_messages_stay_loaded(
    world: SessionWorld, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Messages that come back go to their old places, among loaded ones as among those that were never loaded."""
    monkeypatch.setattr(sessions_module, "READY_MAX", room)
    one, other = world.accept("one"), world.accept("other")
    world.put("one", b"1", b"2", b"3", b"4")
    locks = [world.next(one) for _ in range(3)]
    world.put("other", b"5", b"6", b"7")
    world.put("one", b"8")
    for lock in (locks[1], locks[2], locks[0]):
        world.settled(lock, Outcome.RELEASE)
    assert world.all_of(one) == [b"1", b"2", b"3", b"4", b"8"]
    assert world.all_of(other) == [b"5", b"6", b"7"]


def test_repeated_releases_do_not_grow_the_order_of_expiry(world: SessionWorld) -> None:
    """Each release adds another entry of the same message to the order of expiry."""
    world.put("a", b"1", ttl_ms=86_400_000)
    hold = world.accept("a")
    for _ in range(SLACK + 10):
        world.settled(world.next(hold), Outcome.RELEASE)
    assert len(sessions_of(world)._expiry._heap) <= SLACK + 2
    world.service.release(hold)
    world.pass_ms(86_400_000)
    assert world.counts() == (0, 0, 0, 0)


def test_sessions_that_are_asked_for_by_name_leave_no_trace(world: SessionWorld) -> None:
    """Places of old sessions in the order are removed, though no receiver asks for the next session."""
    for n in range(SLACK + 10):
        world.put(f"session {n}", b"x")
        hold = world.accept(f"session {n}")
        world.settled(world.next(hold), Outcome.COMPLETE)
        world.service.release(hold)
    sessions = sessions_of(world)
    assert (len(sessions), len(sessions._heap) <= SLACK + 1) == (0, True)
    world.put("a", b"x")
    assert world.accept().session.id == "a"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_session_whose_first_message_expired_waits_by_its_second(world: SessionWorld, restarted: bool) -> None:
    """The next session is that of the oldest message that is still there."""
    world.put("a", b"old", ttl_ms=100)
    world.put("b", b"between")
    world.put("a", b"new")
    if restarted:
        world.restart()
    world.pass_ms(100)
    assert [world.accept().session.id for _ in range(2)] == ["b", "a"]
    assert world.queue.active_count == 2


def test_a_receiver_that_meets_expired_messages_gets_the_next_live_one(world: SessionWorld) -> None:
    """The clock has not removed them yet: a receiver must not get a message whose time is over."""
    world.put("a", b"1", b"2", ttl_ms=100)
    world.put("a", b"3")
    hold = world.accept("a")
    world.now += 100
    assert world.all_of(hold) == [b"3"]
    world.settle_down()
    assert world.counts() == (1, 0, 0, 0)


def test_messages_of_a_session_that_cannot_be_read_still_wait(world: SessionWorld) -> None:
    """A read that fails once must not lose its messages or change their order."""
    world.put("a", b"1", b"2")
    world.restart()
    hold = world.accept("a")
    unreadable(world)
    with pytest.raises(StoreError, match="unreadable"):
        world.next(hold)
    assert world.all_of(hold) == [b"1", b"2"]


def test_expired_messages_that_cannot_be_read_are_tried_again(world: SessionWorld) -> None:
    """The messages stay as they were, and the queue tries again after a pause."""
    world.put("a", b"1", ttl_ms=100)
    world.restart()
    unreadable(world)
    world.pass_ms(100)
    assert world.counts() == (1, 0, 0, 0)
    assert world.queue.next_due_ms() == world.now + RETRY_PAUSE_MS
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.counts() == (0, 0, 0, 0)


def test_expired_messages_are_not_removed_again_at_once_when_the_commit_fails(world: SessionWorld) -> None:
    """The failed commit announces the session, and a receiver that waits for any session asks again. Without a pause
    the two kept the event loop busy as long as commits failed."""
    world.put("a", b"1", b"2", ttl_ms=100)
    world.now += 100
    assert world.none_available()
    world.store.fail_next(DISK_FULL)
    world.ready.clear()
    world.store.commit()
    assert world.ready, "the receiver asks again"
    assert world.none_available() and not world.store._writes
    world.put("b", b"3")
    world.put("a", b"4")
    assert [world.accept().session.id for _ in range(2)] == ["a", "b"]
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.counts() == (2, 0, 0, 0)


def test_session_with_a_live_message_is_given_away_past_expired_ones(world: SessionWorld) -> None:
    """Expired messages that cannot be removed now keep no receiver from the session behind them."""
    world.put("a", b"1", ttl_ms=100)
    world.put("b", b"2")
    world.restart()
    world.now += 100
    unreadable(world)
    assert world.accept().session.id == "b"
    assert world.none_available()
    world.ready.clear()
    world.pass_ms(RETRY_PAUSE_MS)
    assert world.ready and world.counts() == (1, 0, 0, 0)


@pytest.mark.parametrize("found_by", ["receiver", "clock"])
def test_damaged_messages_of_a_session_are_left_out(world: SessionWorld, found_by: str) -> None:
    """The store reports them; the session goes on with the intact messages, or ends with the last of them."""
    world.put("a", b"1", ttl_ms=100)
    world.put("b", b"2", ttl_ms=100)
    world.put("b", b"3")
    world.restart()
    for n, (_, message) in list(world.store._rows.items()):
        if message.body != b"3":
            del world.store._rows[n]
    if found_by == "receiver":
        assert world.all_of(world.accept("a")) == []
    else:
        world.pass_ms(100)
        assert world.service.page(None, 0, 10) == ["b"]
    assert world.all_of(world.accept("b")) == [b"3"]
    assert world.queue.active_count == 1


def test_a_hold_that_is_over_can_be_released_once_more(world: SessionWorld) -> None:
    """A receiver closes its link after its lock was lost; the next holder must not lose the session by that."""
    world.put("a", b"1")
    lost = world.accept("a")
    world.pass_ms(MINUTE_MS)
    receiver = Receiver()
    hold = world.accept("a", receiver)
    world.service.release(lost)
    assert world.all_of(hold) == [b"1"]
    with pytest.raises(Refusal, match="session-cannot-be-locked"):
        world.accept("a")
    assert not receiver.has_lost


def test_many_messages_of_sessions_are_completed_in_one_write(world: SessionWorld) -> None:
    """A failed write gives every lock back; afterwards only tokens of locks that are over are named as lost."""
    world.put("a", b"1", b"2")
    world.put("b", b"3")
    one, other = world.accept("a"), world.accept("b")
    tokens = [world.next(one).token, world.next(one).token, world.next(other).token]
    world.service.release(other)
    answer = Answer()
    world.queue.complete_many(world.queue.main, tokens, world.now, answer)
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert sorted(answer.value[0]) == sorted(tokens)
    answer = Answer()
    world.queue.complete_many(world.queue.main, tokens, world.now, answer)
    world.store.commit()
    assert answer.value == ([tokens[2]], None)
    assert world.counts() == (1, 0, 0, 0)
    assert world.all_of(world.accept("b")) == [b"3"]


def test_every_row_of_a_deleted_queue_with_sessions_is_swept(world: SessionWorld) -> None:
    """Waiting, loaded, locked and deferred messages, and one whose settlement failed after its session was left."""
    world.put("a", b"1", b"2", b"3")
    world.put("b", b"4", b"5", b"6")
    world.put("c", b"7")
    left = world.accept("c")
    failed = world.settle(world.next(left), Outcome.COMPLETE)
    hold = world.accept("a")
    world.service.release(left)
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert failed.condition == "amqp:internal-error"
    world.settled(world.next(hold), Outcome.DEFER)
    world.next(hold)
    world.queue.close()
    number, drain = world.queue.remains().drains[1]
    assert number == world.queue.main.number
    found: list[int] = []
    while some := drain(2):
        found += some
    assert sorted(found) == sorted(world.store._rows)

"""The window of message ids."""

from __future__ import annotations

import pytest

from pairbus.broker.budget import MemoryBudget
from pairbus.broker.entities.duplicates import PURGE_MAX, PURGE_PAUSE_MS, DuplicateWindow
from pairbus.broker.entities.queue import Draft
from pairbus.broker.refusal import Refusal
from tests.broker.queue_world import DISK_FULL, Answer, World


def window_with(*ids: tuple[str, int]) -> DuplicateWindow:
    window = DuplicateWindow(MemoryBudget().index.share())
    window.resolve(window.claim(ids), committed=True)
    return window


@pytest.mark.parametrize(
    ("ids", "now_ms", "fresh"),
    [
        (["a"], 99, [False]),
        (["a"], 100, [True]),
        (["b", "b", "a"], 50, [True, False, False]),
        (["", ""], 50, [True, True]),
    ],
)
def test_an_id_is_fresh_unless_it_is_known_or_repeated(ids: list[str], now_ms: int, fresh: list[bool]) -> None:
    """The window ends at its end; messages without an id are never duplicates."""
    assert window_with(("a", 100)).fresh(ids, now_ms) == fresh


def test_purging_is_bounded_and_says_up_to_when() -> None:
    """A window of a million ids must not be forgotten in one go."""
    window = window_with(*((f"id{n}", n) for n in range(PURGE_MAX + 10)))
    assert window.purge(5000) == PURGE_MAX - 1
    assert len(window) == 10
    assert window.next_ms() == PURGE_MAX
    assert window.purge(5000) == PURGE_MAX + 9
    assert (len(window), window.next_ms()) == (0, None)


def test_purging_pauses_between_rounds() -> None:
    """Every id ends at another millisecond; waking up for each of them would be waste."""
    window = window_with(("a", 10), ("b", 11), ("c", 12))
    assert window.purge(10) == 10
    assert window.next_ms() == 10 + PURGE_PAUSE_MS


def test_a_scheduled_duplicate_gets_no_number_that_another_message_could_bear() -> None:
    """Cancelling by that number must never hit a stranger, also not one that came after a restart."""
    world = World(requires_duplicate_detection=True, duplicate_window_ms=20_000)
    (first,) = world.schedule(b"1", at=world.now + 5_000, message_id="a")
    assert world.schedule(b"2", at=world.now + 5_000, message_id="a") == [0]
    stranger, own = world.cancel(0), world.cancel(first)
    world.store.commit()
    assert isinstance(stranger.value, Refusal)
    assert own.value is None


def test_a_duplicate_is_accepted_and_dropped() -> None:
    """The sender cannot know whether its first attempt arrived; the window exists for this case."""
    world = World(requires_duplicate_detection=True, duplicate_window_ms=20_000)
    world.send(b"1", message_id="a")
    world.send(b"2", message_id="a")
    world.send(b"3", message_id="b")
    assert world.bodies() == [b"1", b"3"]
    world.pass_ms(20_000)
    world.send(b"4", message_id="a")
    assert world.queue.active_count == 3


def test_without_detection_the_same_id_is_stored_twice() -> None:
    """Detection is the queue's choice."""
    world = World()
    world.send(b"1", b"2", message_id="a")
    assert world.bodies() == [b"1", b"2"]


def test_duplicates_within_one_batch_are_dropped() -> None:
    """A batch is many messages, each with its own id."""
    world = World(requires_duplicate_detection=True)
    answer = world.offer(b"1", b"2", message_id="a")
    world.store.commit()
    assert answer.value is None
    assert world.bodies() == [b"1"]
    assert world.queue.size_bytes == 1


def test_scheduled_messages_count_and_a_dropped_one_still_gets_a_number() -> None:
    """An answer with fewer numbers than messages would give the caller the wrong ones to cancel."""
    world = World(requires_duplicate_detection=True)
    seqs = world.schedule(b"1", b"2", at=world.now + 1000, message_id="a")
    assert len(seqs) == 2
    world.send(b"3", message_id="a")
    assert world.counts() == (0, 0, 1, 0)
    assert world.queue.size_bytes == 1
    answer = world.cancel(seqs[1])
    world.store.commit()
    assert answer.condition == "com.microsoft:message-not-found"


def test_a_duplicate_of_an_uncommitted_message_waits_for_its_commit() -> None:
    """Accepting it earlier would promise a message that may never be stored."""
    world = World(requires_duplicate_detection=True)
    first, second = world.offer(b"1", message_id="a"), world.offer(b"2", message_id="a")
    world.store.commit()
    assert (first.value, second.value) == (None, None)
    assert world.bodies() == [b"1"]


def test_duplicate_fails_with_the_first_commit_and_its_retry_is_stored() -> None:
    """The two messages are not stored, so they must not be accepted, and the id must not stay known."""
    world = World(requires_duplicate_detection=True)
    first, second = world.offer(b"1", message_id="a"), world.offer(b"2", message_id="a")
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert first.condition == second.condition == "amqp:internal-error"
    world.send(b"3", message_id="a")
    assert world.bodies() == [b"3"]


def test_batch_with_an_uncommitted_duplicate_stores_its_other_messages() -> None:
    """The batch waits as a whole for the other commit, so that its messages are stored together."""
    world = World(requires_duplicate_detection=True)
    first = world.offer(b"1", message_id="a")
    batch = Answer()
    world.queue.send([Draft(b"2", message_id="a"), Draft(b"3", message_id="b")], world.now, batch)
    world.store.commit()
    assert first.value is None
    assert world.peeked() == [b"1"]
    world.store.commit()
    assert batch.value is None
    assert world.bodies() == [b"1", b"3"]


def test_the_window_survives_a_restart_and_is_forgotten_in_the_store_too() -> None:
    """A retry often comes after the broker's restart: that is why the sender retries."""
    world = World(requires_duplicate_detection=True, duplicate_window_ms=20_000)
    world.send(b"1", message_id="a")
    world.restart()
    world.send(b"2", message_id="a")
    assert world.bodies() == [b"1"]
    world.pass_ms(20_000)
    world.store.commit()
    assert world.store.remembered(1) == []

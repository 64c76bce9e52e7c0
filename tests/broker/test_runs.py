"""Messages that are locked together, in one run."""

from __future__ import annotations

import pytest

from pairbus.broker.boxes.line import BATCH_BYTES, CHUNK_MAX, READY_MAX
from pairbus.broker.entities.queue import Outcome
from pairbus.errors import StoreError
from tests.broker.queue_world import World


def run_of(world: World, limit: int = 1000) -> list[bytes]:
    return [lock.message.body for lock in world.queue.main.lock_next(limit, world.now)]


def test_runs_have_every_message_once_and_in_order() -> None:
    """Whether the messages never left memory or are read again."""
    world = World()
    sent = [b"%d" % n for n in range(READY_MAX + 2 * CHUNK_MAX + 7)]
    world.offer(*sent)
    world.store.commit()
    found: list[bytes] = []
    while run := run_of(world, 100):
        assert len(run) <= 100
        found += run
    assert found == sent
    assert len({lock.token for lock in world.queue.main.locks}) == len(sent)


def test_run_ends_before_a_message_that_came_back() -> None:
    """The place of the returned message is between two that are loaded."""
    world = World()
    world.send(b"0", b"1", b"2", b"3")
    locks = world.queue.main.lock_next(2, world.now)
    world.settled(locks[1], Outcome.ABANDON)
    world.settled(locks[0], Outcome.ABANDON)
    found: list[bytes] = []
    while run := run_of(world):
        found += run
    assert found == [b"0", b"1", b"2", b"3"]


def test_large_message_ends_its_run() -> None:
    """A run is sent as a whole: what waits for a receiver that does not read is one run at most."""
    world = World()
    world.send(b"a", bytes(BATCH_BYTES), b"b", b"c")
    assert [len(run_of(world)) for _ in range(3)] == [2, 2, 0]


def test_expired_messages_are_in_no_run() -> None:
    """The expired message in between is left out; the others stay in order."""
    world = World()
    world.send(b"0")
    world.send(b"1", ttl_ms=10)
    world.send(b"2")
    world.now += 10
    assert run_of(world) == [b"0", b"2"]
    world.settle_down()
    assert world.queue.main.active_count == 2


def test_store_that_cannot_be_read_costs_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded messages are handed out; messages that cannot be loaded wait."""
    world = World()
    sent = [b"%d" % n for n in range(READY_MAX + 5)]
    world.offer(*sent)
    world.store.commit()

    def fail(box: int, numbers: object, size_max: int, **_: object) -> object:
        raise StoreError("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "load", fail)
        found = run_of(world, READY_MAX + 5)
        with pytest.raises(StoreError):
            run_of(world)
    while run := run_of(world):
        found += run
    assert found == sent

"""Deleting an entity: gone at once, its rows go step by step, and a restart goes on where it was."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pairbus.auth.sas import KeyRing
from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.queue import Draft, Outcome, Queue
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.sweep import STEP_ROWS, Remains, Sweeper
from pairbus.broker.namespace import Namespace
from pairbus.broker.store import (
    Delete,
    DropEntity,
    EraseEntity,
    Forget,
    Insert,
    InsertPayload,
    PutEntity,
    Remember,
    StoredMessage,
    box_of,
    dead_box_of,
)
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL

NOW = 1_790_000_000_000


class SweepWorld:
    """A dropped entity with rows in two boxes, half of which share payloads, and remembered ids."""

    def __init__(self, rows: int = 2 * STEP_ROWS + 10) -> None:
        self.store = MemoryStore()
        self.retries: list[Callable[[], None]] = []
        number = self.store.number
        messages = [StoredMessage(seq, b"body", n=number()) for seq in range(1, rows + 1)]
        payload = number()
        copies = [StoredMessage(seq, b"", n=number(), payload=payload) for seq in range(1, 4)]
        elsewhere = StoredMessage(1, b"", n=number(), payload=payload)
        for op in (
            PutEntity(1, "{}"),
            PutEntity(2, "{}"),
            InsertPayload(payload, 1, b"shared"),
            Insert(box_of(1), messages),
            Insert(dead_box_of(1), copies),
            Insert(box_of(2), [elsewhere]),
            Remember(1, [(f"id {n}", n) for n in range(2500)]),
            DropEntity(1),
        ):
            self.store.write(op)
        self.store.commit()
        self.open()

    def open(self) -> None:
        self.payloads = Payloads()
        self.payloads.recover(self.store.payloads())
        self.sweeper = Sweeper(self.store, self.payloads, retry_later=self.retries.append)
        assert self.store.recover().dropped == [1]
        rows = list(self.store.index())
        for row in rows:
            if row.box == box_of(2) and row.payload:
                self.payloads.add_sharer(row.payload)
        self.sweeper.recover(1, [row for row in rows if row.box != box_of(2)], [])

    def left(self) -> int:
        return sum(row.box != box_of(2) for row in self.store.index())


def test_rows_are_deleted_in_bounded_steps_one_after_another() -> None:
    """No other commit waits for more than one step; the mark goes last."""
    world = SweepWorld()
    left = [world.left()]
    while world.store._writes:
        deleted = sum(len(op.numbers) for op in world.store._writes if isinstance(op, Delete))
        forgotten = [op for op in world.store._writes if isinstance(op, Forget)]
        assert deleted <= STEP_ROWS and len(forgotten) <= 1
        erased = any(isinstance(op, EraseEntity) for op in world.store._writes)
        world.store.commit()
        left.append(world.left())
        assert erased is (not world.store.recover().dropped)
    assert left[0] == 2 * STEP_ROWS + 13 and left[-1] == 0 and len(left) > 3
    assert world.store.remembered(1) == []
    assert [row.box for row in world.store.index()] == [box_of(2)], "messages of the other entity are still there"
    assert world.store.load(box_of(2), range(2000))[0][0].body == b"shared"


def test_a_sweep_goes_on_after_a_restart() -> None:
    """Killed between two steps, and once more before the mark is gone."""
    world = SweepWorld()
    for _ in range(2):
        world.store.commit()
        world.store._writes.clear()
        world.store._callbacks.clear()
        world.open()
    assert 0 < world.left() < 2 * STEP_ROWS + 13
    while world.store._writes:
        world.store.commit()
    assert (world.left(), world.store.recover().dropped) == (0, [])


def test_a_step_that_failed_is_tried_again_later() -> None:
    """On a full disk the rows stay; nothing is counted as gone."""
    world = SweepWorld()
    before = world.left()
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert (world.left(), len(world.retries), world.store._writes) == (before, 1, [])
    world.retries.pop()()
    while world.store._writes:
        world.store.commit()
    assert (world.left(), world.retries) == (0, [])


def test_an_entity_without_rows_is_erased_at_once() -> None:
    """A rule has none, most queues have few."""
    store = MemoryStore()
    store.write(PutEntity(3, "{}"))
    store.write(DropEntity(3))
    store.commit()
    Sweeper(store, Payloads(), retry_later=lambda step: None).add(Remains(3, []))
    store.commit()
    assert (store.recover().dropped, store.recover().last_entity_id) == ([], 3)


# ── through a broker ──


@pytest.fixture
def options() -> list[NamespaceOptions]:
    return [NamespaceOptions("contoso")]


async def filled(namespace: Namespace) -> None:
    """A queue and a topic with messages in every state."""
    await namespace.create(QueueDescription("orders", requires_duplicate_detection=True))
    await namespace.create(TopicDescription("prices"))
    for name in ("a", "b"):
        await namespace.create(SubscriptionDescription("prices", name))
    queue, topic = namespace.queue("orders"), namespace.catalog.topic("prices")
    assert queue is not None
    for target in (queue, topic):
        drafts = [Draft(b"x" * 500, message_id=f"{n}") for n in range(600)]
        drafts.append(Draft(b"later", message_id="later", scheduled_ms=NOW + 10**12))
        await done(lambda answer, target=target, drafts=drafts: target.send(drafts, NOW, answer))  # type: ignore[misc]
    holders: list[Queue | Subscription] = [queue, *topic.subscriptions.values()]
    for holder in holders:
        for outcome in (Outcome.DEFER, Outcome.DEAD_LETTER, None):
            lock = lock_next(holder.main, NOW)
            assert lock is not None
            if outcome is not None:
                settle = holder.settle
                token = lock.token
                await done(lambda answer, s=settle, h=holder, t=token, o=outcome: s(h.main, t, o, NOW, answer))  # type: ignore[misc]


async def swept(namespace: Namespace) -> None:
    """Wait for the end of the sweep; each look is behind a commit of it."""
    for _ in range(100):
        if not namespace._sweeper._remains:
            return
        looked: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        namespace.store.after_commit(looked.set_result)
        await looked
    raise AssertionError("the sweep does not end")


async def done(call: Callable[[Callable[[object], None]], None]) -> None:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    call(answer.set_result)
    assert await answer is None


async def test_nothing_is_left_of_deleted_entities_in_any_state(
    tmp_path: Path, options: list[NamespaceOptions]
) -> None:
    """Waiting, locked, deferred, scheduled, dead: every row goes, and with the last copy the payload."""
    async with Broker(options, data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        await filled(namespace)
        await namespace.delete("prices")
        await namespace.delete("orders")
        assert namespace.catalog.find("prices") is None
        await swept(namespace)
    async with Broker(options, data=tmp_path) as broker:
        store = broker.namespace("contoso").store
        assert (list(store.index()), list(store.payloads())) == ([], [])


async def test_a_broker_that_stops_in_the_middle_sweeps_at_its_next_start(
    tmp_path: Path, options: list[NamespaceOptions]
) -> None:
    """An entity that is created again under the same name is empty from the first moment on."""
    async with Broker(options, data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        await filled(namespace)
        await namespace.delete("orders")
    async with Broker(options, data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        await namespace.create(QueueDescription("orders"))
        assert namespace.queue_info("orders").size_bytes == 0
        await swept(namespace)
        assert namespace.topic_info("prices").size_bytes > 0
    async with Broker(options, data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        assert [namespace.subscription_info("prices", name).active for name in "ab"] == [598, 598]
        assert namespace.queue_info("orders").active == 0


async def test_a_message_whose_payload_is_lost_is_announced_and_can_be_swept(
    tmp_path: Path, options: list[NamespaceOptions]
) -> None:
    """A message without its payload cannot be served, but must not keep a topic from being deleted."""
    async with Broker(options, data=tmp_path) as broker:
        await filled(broker.namespace("contoso"))
    with closing(sqlite3.connect(tmp_path / "contoso" / "messages.db")) as vandal:
        vandal.execute("DELETE FROM payloads WHERE id = (SELECT min(id) FROM payloads)")
        vandal.commit()
    store = SqliteStore(tmp_path / "contoso", loop=asyncio.get_running_loop())
    namespace = Namespace("contoso", store, KeyRing([]), loop=asyncio.get_running_loop(), now_ms=lambda: NOW)
    assert namespace.recover() == ["contoso: 2 messages are not served because their payloads are missing"]
    await namespace.delete("prices")
    await swept(namespace)
    await namespace.close()

"""Bytes that sends and moves write: the limits of decisions 0020 and 0031."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.receivable import Outcome
from pairbus.broker.refusal import Refusal

SUBSCRIPTIONS = 50
SENDS = 20
LARGE = 4 << 20
HEADS_BYTES = 300_000  # pages of the two tables, of the list of free pages and of the journal, for a few commits


@pytest.mark.parametrize(("size", "limit"), [(1_024, 150_000), (102_400, 300_000)])
async def test_one_send_to_fifty_subscriptions_writes_little(tmp_path: Path, size: int, limit: int) -> None:
    """The body once, and the copies side by side, also when the subscriptions are far apart in the namespace."""
    async with Broker([NamespaceOptions("contoso")], data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        await namespace.create(TopicDescription("prices"))
        for n in range(SUBSCRIPTIONS):
            await asyncio.gather(*[namespace.create(QueueDescription(f"between-{n}-{m}")) for m in range(5)])
            await namespace.create(SubscriptionDescription("prices", f"s{n}"))
        topic = namespace.catalog.topic("prices")
        log = tmp_path / "contoso" / "messages.db-wal"
        written = []
        for n in range(SENDS):
            before = log.stat().st_size
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            topic.send([Draft(os.urandom(size), message_id=f"message {n:32}")], namespace.now_ms(), answer.set_result)
            assert await answer is None
            written.append(log.stat().st_size - before)
        assert {each.active_count for each in topic.subscriptions.values()} == {SENDS}
    # The largest commit is left out: counters may have been merged in it, which no send waits for.
    assert sorted(written)[-2] <= limit, written


async def test_a_large_body_is_written_once_whatever_becomes_of_its_message(tmp_path: Path) -> None:
    """It becomes active, is abandoned with a change, deferred, and dead-lettered: only its head is written."""
    async with Broker([NamespaceOptions("contoso")], data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        await namespace.create(QueueDescription("orders", max_message_size_kb=102_400, max_delivery_count=10))
        queue = namespace.catalog.queue("orders")
        loop, log = asyncio.get_running_loop(), tmp_path / "contoso" / "messages.db-wal"
        scheduled: asyncio.Future[object] = loop.create_future()
        at_ms = namespace.now_ms() + 3_600_000
        body = os.urandom(LARGE)
        queue.schedule([Draft(body, scheduled_ms=at_ms)], namespace.now_ms(), scheduled.set_result)
        assert await scheduled == [1]
        before = log.stat().st_size
        assert before > LARGE
        queue.run_due(at_ms)
        active: asyncio.Future[object] = loop.create_future()
        namespace.store.after_commit(active.set_result)
        assert await active is None
        for outcome in (Outcome.ABANDON, Outcome.DEFER):
            await settle(queue, queue.main.lock_next(1, at_ms)[0], outcome, at_ms)
        taken: asyncio.Future[Refusal | list[Lock]] = loop.create_future()
        queue.receive_deferred(queue.main, [2], at_ms, True, taken.set_result)
        locks = await taken
        assert isinstance(locks, list)
        [lock] = locks
        await settle(queue, lock, Outcome.DEAD_LETTER, at_ms)
        assert log.stat().st_size - before < HEADS_BYTES
        [lock] = queue.dead.lock_next(1, at_ms)
        assert lock.message.body == body
        await settle(queue, lock, Outcome.COMPLETE, at_ms, box=queue.dead)
        assert queue.size_bytes == 0


async def settle(queue: Queue, lock: Lock, outcome: Outcome, now_ms: int, *, box: Box | None = None) -> None:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queue.settle(box or queue.main, lock.token, outcome, now_ms, answer.set_result, patch=b"\xa1\x01a\xa1\x01b")
    assert await answer is None

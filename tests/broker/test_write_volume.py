"""Bytes that one send to many subscriptions writes: the limits of decision 0020."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.wire.draft import Draft

SUBSCRIPTIONS = 50
SENDS = 20


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

"""The broker is killed while a topic publishes, filters, forwards and dead-letters: nothing is lost, nothing is there
twice, and a subscription never misses a message that its topic accepted."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from pairbus.transport import Connection, connect
from tests.brokers import BrokerProcess
from tests.crash.topic_load import CHANGED, GRAVEYARD, OUTBOX, SINKS, TOPIC, TopicLoad, make_entities

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "12"))
SEED = os.environ.get("PAIRBUS_SEED") or str(time.time_ns())
QUIET_S = 1.5  # longer than any message of this test is scheduled


async def test_no_subscription_misses_a_message_when_the_broker_is_killed(tmp_path: Path) -> None:
    """Forwarded messages too: a kill leaves each in its source or in its destination, never in both or in neither."""
    print(f"PAIRBUS_SEED={SEED}")
    source = random.Random(SEED)
    load = TopicLoad(source)
    broker = BrokerProcess(tmp_path / "data", namespaces=["contoso"])
    broker.start()
    try:
        with broker.admin() as admin:
            make_entities(admin)
        for _ in range(ROUNDS):
            work = asyncio.create_task(load.round(broker.connection_string()))
            await asyncio.wait([work], timeout=source.uniform(0.3, 1.0))
            assert not work.done(), f"the clients ended before the broker: {work}"
            await asyncio.to_thread(broker.kill)
            async with asyncio.timeout(20):
                await work
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(QUIET_S)
        async with await connect(broker.connection_string()) as connection:
            for sink in SINKS:
                await drain(connection, sink, sink, load)
            await drain(connection, GRAVEYARD, CHANGED, load)
        accepted = sum(told.is_accepted for told in load.messages.values())
        print(f"{len(load.messages)} messages sent, {accepted} accepted")
        assert accepted > 100, "hardly anything was sent"
        assert load.faults() == []
        with broker.admin() as admin:
            sizes = {
                TOPIC: admin.get_topic_runtime_properties(TOPIC).size_in_bytes,
                OUTBOX: admin.get_queue_runtime_properties(OUTBOX).total_message_count,
                "forwarding": admin.get_subscription_runtime_properties(TOPIC, "forwarding").total_message_count,
            }
        assert sizes == {TOPIC: 0, OUTBOX: 0, "forwarding": 0}, "something was left behind, a payload perhaps"
        assert broker.stderr == "", "no damage and no error was reported"
        assert broker.terminate() == 0
    finally:
        broker.kill()


async def drain(connection: Connection, path: str, sink: str, load: TopicLoad) -> None:
    """Take everything out; dead letters of the sinks are none, because nothing is delivered too often."""
    receiver = await connection.receiver(path, mode="receive-and-delete", credit=200)
    while batch := await receiver.receive(200, timeout_s=0.5):
        for received in batch:
            load.drained(sink, received.payload)
    await receiver.close()

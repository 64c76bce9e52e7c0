"""The broker is killed in the middle of transactions: of each, everything is there or nothing.

`PAIRBUS_KILL_ROUNDS` makes it longer, `PAIRBUS_SEED` repeats the choices of a run (see `test_kill`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from pairbus.amqp.message import Message
from pairbus.transport import connect
from tests.brokers import BrokerProcess
from tests.crash.transaction_load import QUEUES, Oracle, TransactionLoad, Wire

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "3"))
DEEP_ROUNDS = 60
SEED = os.environ.get("PAIRBUS_SEED") or str(time.time_ns())
CLIENTS = 3


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(ROUNDS, marks=pytest.mark.slow), pytest.param(DEEP_ROUNDS, marks=pytest.mark.deep)],
    ids=["few", "many"],
)
async def test_killed_broker_has_every_transaction_whole_or_not_at_all(tmp_path: Path, rounds: int) -> None:
    """Messages move from one queue, with a receipt in two others: none is lost, doubled, or moved in part; what was
    answered as committed is there, and what was rolled back is not."""
    print(f"PAIRBUS_SEED={SEED}")
    source = random.Random(SEED)
    oracle = Oracle()
    load = TransactionLoad(oracle, source)
    broker = BrokerProcess(tmp_path / "data", namespaces=["contoso"])
    broker.start()
    try:
        with broker.admin() as admin:
            for name in QUEUES:
                admin.create_queue(name, max_delivery_count=2000)
        login = dict(part.split("=", 1) for part in broker.connection_string().rstrip(";").split(";"))
        for _ in range(rounds):
            key_name, key = login["SharedAccessKeyName"], login["SharedAccessKey"]
            wires = [await Wire().open(broker.ports["contoso"], key_name, key) for _ in range(CLIENTS)]
            work = asyncio.create_task(load.round(wires))
            await asyncio.wait([work], timeout=source.uniform(0.2, 0.6))
            assert not work.done(), f"the clients ended before the broker: {work}"
            await asyncio.to_thread(broker.kill)
            async with asyncio.timeout(20):
                await work
            await asyncio.to_thread(broker.start)
        left = {queue: await drained(broker, queue) for queue in QUEUES}
        answers = Counter(attempt.is_committed for attempt in oracle.attempts.values())
        print(f"{rounds} kills, {len(oracle.accepted)} messages, transactions by outcome: {dict(answers)}")
        assert oracle.faults(left) == []
        assert answers[True] > rounds and answers[None] > 0, "hardly anything happened"
        assert broker.stderr == "", "no damage and no error was reported"
        assert broker.terminate() == 0
    finally:
        broker.kill()


async def drained(broker: BrokerProcess, queue: str) -> Counter[str]:
    """Take everything out of a queue; how often each id was there."""
    ids: Counter[str] = Counter()
    async with await connect(broker.connection_string()) as connection:
        receiver = await connection.receiver(queue, credit=200)
        while batch := await receiver.receive(200, timeout_s=1):
            ids.update([Message.decode(each.payload).body.decode() for each in batch])
            await receiver.complete(batch)
    return ids

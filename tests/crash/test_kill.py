"""An acknowledged message is never lost: the broker is killed again and again, at any moment of its work.

`PAIRBUS_KILL_ROUNDS` makes it longer, `PAIRBUS_SEED` repeats the choices of a run. The moment at which the kernel stops
the process is not the seed's, so a repetition need not fail in the same way.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.transport import connect
from tests.brokers import BrokerProcess
from tests.crash.draining import drain
from tests.crash.load import QUEUES, SETTINGS, TAKEN, TAKEN_CREDIT, Load, now_ms
from tests.crash.places import misplaced
from tests.history.check import check
from tests.history.events import Attempt, Drained, Received
from tests.history.record import Recorder

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "5"))
STOPPED_ROUNDS = 2
LOG_SIZE_MAX = 64 << 20  # a checkpoint is due every 16 MB, and the log goes on growing while it is made
SEED = os.environ.get("PAIRBUS_SEED") or str(time.time_ns())


def new_broker(folder: Path) -> BrokerProcess:
    broker = BrokerProcess(folder, namespaces=["contoso"])
    broker.start()
    with broker.admin() as admin:
        for name, settings in QUEUES.items():
            admin.create_queue(name, **SETTINGS, **settings)
    return broker


async def load_for(load: Load, broker: BrokerProcess, seconds: float, *, kill: bool) -> int:
    """Run one round; return the exit code of a broker that was asked to stop, or -9 after a kill."""
    work = asyncio.create_task(load.round(broker.connection_string()))
    await asyncio.wait([work], timeout=seconds)
    assert not work.done(), f"the clients ended before the broker: {work}"
    code = await asyncio.to_thread(_kill, broker) if kill else await asyncio.to_thread(broker.terminate)
    async with asyncio.timeout(20):
        await work
    return code


def _kill(broker: BrokerProcess) -> int:
    broker.kill()
    return -9


def kill_while_it_starts(broker: BrokerProcess, seconds: float) -> None:
    """A start that is cut short must not harm the data for the next one."""
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", "contoso=0", "--data", str(broker.data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    assert process.wait() == -9, "the broker ended by itself"


async def drained_and_judged(load: Load, broker: BrokerProcess) -> tuple[str, ...]:
    """Take everything out of every queue and judge it; the messages that were lost on their way to a receiver that
    had them deleted, which is for the caller to judge."""
    recorder = load.recorder
    async with await connect(broker.connection_string()) as connection:
        for queue in QUEUES:
            await drain(connection, queue, recorder, within_s=30 + ROUNDS)
    history = recorder.history()
    taken = {event.id for event in history if isinstance(event, Attempt) and event.entity == TAKEN}
    verdict = check([event for event in history if event.id not in taken], drain_ended_ms=now_ms())
    print(verdict)
    assert verdict.ok, verdict
    assert verdict.accepted > 100, "hardly anything was sent"
    assert misplaced(history) == []
    assert load.repeated_numbers == []
    seen = [event for event in history if isinstance(event, Received | Drained)]
    bearers: dict[tuple[str, int], str] = {}
    again = [event for event in seen if bearers.setdefault((event.entity, event.sequence_number), event.id) != event.id]
    assert again == [], "a sequence number was given to two messages"
    assert load.cancelled.isdisjoint(event.id for event in seen), "a cancelled message came all the same"
    seen_ids = {event.id for event in seen}
    torn = [ids for ids in load.batches if 0 < len(seen_ids.intersection(ids)) < len(ids)]
    assert torn == [], "a batch was stored in part"
    verdict = check([event for event in history if event.id in taken], drain_ended_ms=now_ms())
    print(f"{TAKEN}: {verdict}")
    assert replace(verdict, lost=()).ok, verdict
    return verdict.lost


async def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    """Twenty lives on one data folder. Messages received and deleted may be lost on their way, up to the credit."""
    print(f"PAIRBUS_SEED={SEED}")
    source = random.Random(SEED)
    load = Load(Recorder(), source)
    broker = new_broker(tmp_path / "data")
    try:
        for _ in range(ROUNDS):
            assert await load_for(load, broker, source.uniform(0.2, 1.0), kill=True) == -9
            if source.random() < 0.2:
                await asyncio.to_thread(kill_while_it_starts, broker, source.uniform(0.1, 0.6))
            await asyncio.to_thread(broker.start)
        log_size = (broker.data_dir / "contoso" / "messages.db-wal").stat().st_size
        assert log_size < LOG_SIZE_MAX, f"the write-ahead log has grown to {log_size} bytes over these lives"
        lost = await drained_and_judged(load, broker)
        assert broker.stderr == "", "no damage and no error was reported"
        assert broker.terminate() == 0
    finally:
        broker.kill()
    assert len(lost) <= TAKEN_CREDIT * ROUNDS, "more messages were lost on their way than receivers had asked for"


async def test_sigterm_loses_nothing_and_clients_are_told(tmp_path: Path) -> None:
    """SIGTERM under the same load: exit code 0, every client hears why, and also what was received and deleted
    arrives: a broker that has time to say goodbye has time to hand out what it has deleted."""
    print(f"PAIRBUS_SEED={SEED}")
    source = random.Random(SEED)
    load = Load(Recorder(), source)
    broker = new_broker(tmp_path / "data")
    try:
        for _ in range(STOPPED_ROUNDS):
            assert await load_for(load, broker, source.uniform(0.3, 0.8), kill=False) == 0
            reasons = [str(loss) for loss in load.losses]
            assert all("amqp:connection:forced: The broker is shutting down." in each for each in reasons), reasons
            assert len(reasons) == 3
            await asyncio.to_thread(broker.start)
        assert await drained_and_judged(load, broker) == ()
        assert broker.stderr == ""
    finally:
        broker.kill()

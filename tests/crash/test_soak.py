"""Peers that stall, flood and never read cost the broker neither its honest clients nor its memory.

Everything happens at once, beside one client that sends and receives without a break. The silent ones come first: they
must be gone when the broker's deadlines (10 s for the first bytes, 20 s for a token) have passed.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.procstat import open_fds, rss_bytes

from pairbus.amqp.frames import SASL_FRAME, SASL_HEADER, frame
from pairbus.amqp.performatives import SaslInit
from pairbus.transport import ClientConnection, connect
from tests.brokers import BrokerProcess
from tests.crash import hostile
from tests.crash.hostile import Enemy
from tests.crash.messages import found, make

pytestmark = pytest.mark.slow

HONEST, LARGE, FLOODED = "honest", "large", "flooded"
LARGE_BYTES, LARGE_COUNT = 200_000, 250  # 50 MB wait in the queue
FLOOD_COUNT = 30_000
DEADLINE_S = 28.0  # deadline for a first token, the timer that checks it, and time for a busy machine
PEAK_BYTES = 80 << 20  # memory above that at the start, while the clients are at work
REST_BYTES = 40 << 20  # memory above that at the start, afterwards: the allocator keeps some
POUR_S = 60.0  # a flood takes some seconds on an idle machine; the broker hangs up at its end
WARM_COUNT = 50
STEP_S = 15.0  # to send or to receive one message; takes a fraction of a second on an idle machine


class Honest:
    """One client that sends a message and gets it back, again and again, each step within `STEP_S`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.count = 0
        self.longest_s = 0.0
        self.is_warm = asyncio.Event()
        "Set after the first few messages, which fill caches; memory and time before the storm are measured after that."

    async def run(self, stop: asyncio.Event) -> None:
        sender = await self._connection.sender(HONEST, timeout_s=STEP_S)
        receiver = await self._connection.receiver(HONEST, credit=1)
        source = random.Random("honest")
        while not stop.is_set():
            began = time.monotonic()
            message_id = f"m{self.count}"
            await sender.send(make(message_id, source, size=500))
            [received] = await receiver.receive(1, timeout_s=STEP_S)
            assert found(received.payload).id == message_id
            await receiver.complete([received])
            self.count += 1
            if self.count == WARM_COUNT:
                self.is_warm.set()
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(0.005)


async def watch(pid: int, stop: asyncio.Event) -> int:
    """The highest resident memory until `stop`."""
    peak = 0
    while not stop.is_set():
        peak = max(peak, rss_bytes(pid))
        await asyncio.sleep(0.02)
    return peak


async def settled(reading: Callable[[], int], limit: int, within_s: float = 30.0) -> int:
    """Return the reading as soon as it is within the limit; otherwise the last one."""
    deadline = time.monotonic() + within_s
    value = reading()
    while value > limit and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        value = reading()
    return value


def start(folder: Path) -> tuple[BrokerProcess, dict[str, Enemy]]:
    broker = BrokerProcess(folder, namespaces=["contoso"], options=["--log-level", "error"])
    broker.start()
    with broker.admin() as admin:
        for queue in (HONEST, LARGE, FLOODED):
            admin.create_queue(queue)
    parts = dict(part.split("=", 1) for part in broker.connection_string().split(";"))
    who = (broker.ports["contoso"], parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    return broker, {queue: Enemy(*who, queue) for queue in (LARGE, FLOODED)}


def silent_words(enemy: Enemy) -> dict[str, bytes]:
    """Return the bytes that each kind of silent peer sends before it is silent."""
    anonymous = SASL_HEADER + frame(0, SaslInit(mechanism="ANONYMOUS").encode(), SASL_FRAME)
    hello = enemy.hello()
    after_sasl = hello[hello.index(b"AMQP", 4) :]
    return {
        "nothing": b"",
        "a part of a header": b"AM",
        "the start of TLS": b"\x16\x03\x01\x02\x00",
        "the start of a request": b"GET /health HTTP/1.1\r\nHost: ",
        "a header": SASL_HEADER,
        "sasl": anonymous,
        "open": anonymous + after_sasl,
    }


async def floods(enemy: Enemy) -> None:
    """Run one attack after the other, so that each meets a broker that has survived those before it."""
    source = random.Random("garbage")
    for words in hostile.garbage(source):
        await asyncio.wait_for(hostile.pour(enemy, [words], greeting=False), POUR_S)
    for flood in (
        [hostile.oversized_frame()],
        hostile.tiny_transfers(enemy, FLOOD_COUNT),
        hostile.endless_message(enemy, 150),
        hostile.attach_flood(enemy, 5_000),
        hostile.channel_flood(5_000),
        hostile.handle_flood(enemy),
        hostile.flow_flood(20_000),
    ):
        await asyncio.wait_for(hostile.pour(enemy, flood), POUR_S)
    await hostile.churn(enemy, 1000)


async def test_hostile_peers_cost_neither_honest_clients_nor_memory(tmp_path: Path) -> None:
    """Half-open, slow, greedy, flooding and meaningless connections, and a thousand that come and go."""
    broker, enemies = await asyncio.to_thread(start, tmp_path / "data")
    stop, calm = asyncio.Event(), asyncio.Event()
    try:
        async with await connect(broker.connection_string()) as connection:
            large = await connection.sender(LARGE)
            for number in range(LARGE_COUNT):
                await large.send(make(f"large-{number}", random.Random(number), size=LARGE_BYTES))
            honest = Honest(connection)
            working = asyncio.create_task(honest.run(calm))
            await asyncio.wait_for(honest.is_warm.wait(), 60)
            fds_before, rss_before = open_fds(broker.pid), rss_bytes(broker.pid)
            watching = asyncio.create_task(watch(broker.pid, calm))
            enemy = enemies[FLOODED]
            async with asyncio.TaskGroup() as group:
                silent = {
                    name: group.create_task(asyncio.wait_for(hostile.say_and_wait(enemy, words), DEADLINE_S))
                    for name, words in silent_words(enemy).items()
                }
                group.create_task(hostile.say_slowly(enemy, enemy.hello() * 10, 0.01))
                group.create_task(hostile.ask_and_never_read(enemies[LARGE], 100_000, stop))
                group.create_task(hostile.peek_and_never_read(enemies[LARGE], 2_000, stop))
                await floods(enemy)
                stop.set()
            print({name: round(task.result(), 1) for name, task in silent.items()})
            still_there = [name for name, task in silent.items() if task.result() == math.inf]
            assert still_there == [], f"not hung up on within {DEADLINE_S} s: peers that said {still_there}"
            rss_after = await settled(lambda: rss_bytes(broker.pid), rss_before + REST_BYTES)
            fds_after = await settled(lambda: open_fds(broker.pid), fds_before)
            calm.set()
            await working
            peak = await watching
        print(f"honest: {honest.count} messages, longest {honest.longest_s:.2f} s")
        print(f"memory MB: {rss_before >> 20} before, {peak >> 20} peak, {rss_after >> 20} after")
        print(f"files: {fds_before} before, {fds_after} after; {os.getloadavg()}")
        assert fds_after <= fds_before
        assert peak - rss_before < PEAK_BYTES
        assert rss_after - rss_before < REST_BYTES
        assert honest.count > WARM_COUNT + 20
        assert "Traceback" not in broker.stderr, broker.stderr[-4000:]
        with broker.admin() as admin:
            flooded = admin.get_queue_runtime_properties(FLOODED).active_message_count
        assert flooded == FLOOD_COUNT, "the flood did not get in: this test proves nothing"
        assert broker.terminate() == 0
    finally:
        broker.kill()
